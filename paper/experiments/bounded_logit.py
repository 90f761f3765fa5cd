"""Figure 3: absolute logit and confidence of two moons' test points along δ·x, with their limits."""

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bitbayes as bb
from bitbayes.toys import make_moons, train_toy, two_moons
from paper.drawing.curves import (
    DOTTED_LINE,
    add_legend,
    label_end,
    plot_band,
    plot_paper_curve,
)
from paper.drawing.pictures import make_panels, styled
from paper.numbers import paper_numbers
from paper.report import Report
from paper.session import Session
from paper.toys import fit_laplace

DELTAS = range(41)
METHOD_TITLES = {"plain": "Plain", "llla": "Last-layer Laplace"}
PAPER_METHODS = {"plain": "MAP", "llla": "LLLA"}


def measure(session: Session) -> dict[str, Any]:
    toy = make_moons()
    network = train_toy(toy, seed=session.options.seed, quick=session.options.quick)
    bayes = fit_laplace(toy, network)
    x, _ = two_moons(200, noise=0.1, seed=2)  # test points
    found: dict[str, Any] = {
        key: {name: {"mean": [], "std": []} for name in ("abs_logit", "confidence")} for key in METHOD_TITLES
    }
    with torch.no_grad():
        for delta in DELTAS:
            for key, module in (("plain", network), ("llla", bayes)):
                logits = module(delta * x)[:, 0].double().abs()
                for name, values in (("abs_logit", logits), ("confidence", logits.sigmoid())):
                    found[key][name]["mean"].append(float(values.mean()))
                    found[key][name]["std"].append(float(values.std()))
    return {
        "delta": list(DELTAS),
        "prior_variance": bayes.prior_variance,
        "curves": found,
        "limit": compute_limits(bayes, x),
    }


def compute_limits(bayes: bb.Laplace, x: Tensor) -> dict[str, float]:
    """Return the mean limits of confidence and logit over the points, and the theorem's bound."""
    confidence = bayes.limit(x).confidence
    return {
        "confidence": float(confidence.mean()),
        "abs_logit": float(torch.logit(confidence).mean()),
        "bound": float(bayes.bound(form="theorem")),
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for name in ("abs_logit", "confidence"):
        for key, title in METHOD_TITLES.items():
            curve = values["curves"][key][name]
            paper = dict(paper_numbers("bounded-logit")[name][PAPER_METHODS[key]])
            for delta in (0, 1, 2, 5, 10, 20, 40):
                ours = f"{curve['mean'][delta]:.3f} ± {curve['std'][delta]:.3f}"
                rows.append((name.replace("_", " "), title, str(delta), ours, f"{paper[delta]:.3f}"))
    limit = values["limit"]
    notes = [
        "± is the standard deviation over 200 test points.",
        f"Computed limits for δ → ∞, mean over the points: confidence {limit['confidence']:.4f}, |z| "
        f"{limit['abs_logit']:.4f}; the theorem's bound on the confidence: {limit['bound']:.4f}.",
    ]
    header = ("Quantity", "Method", "δ", "Ours", "Paper's mean")
    report.write_table("Logit and confidence along δ·x, two moons", header, rows, *notes)
    report.write_picture(lambda: draw(values))


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw mean ± std, and the number at the largest δ. Dotted lines are the computed limit."""
    figure, (row,) = make_panels(1, 4, 2.7)
    plots = [(name, key) for name in ("abs_logit", "confidence") for key in METHOD_TITLES]
    for axes, (name, key) in zip(row, plots, strict=True):
        curve = values["curves"][key][name]
        limits = (0.0, math.inf) if name == "abs_logit" else (0.5, 1.0)
        plot_band(axes, key, values["delta"], curve["mean"], curve["std"], limits)
        plot_paper_curve(axes, paper_numbers("bounded-logit")[name][PAPER_METHODS[key]])
        digits = ".3g" if name == "abs_logit" else ".3f"
        label_end(axes, key, values["delta"], curve["mean"], format(curve["mean"][-1], digits))
        if key == "llla":
            axes.plot([DELTAS[0], DELTAS[-1]], [values["limit"][name]] * 2, **DOTTED_LINE)
        axes.set_ylim(*((0, None) if name == "abs_logit" else (0.48, 1.02)))
        quantity = "absolute logit |z|" if name == "abs_logit" else "confidence"
        axes.set(xlabel="δ", title=f"{METHOD_TITLES[key]}:\n{quantity}")
    add_legend(figure, row[0], "computed limit")
    return figure
