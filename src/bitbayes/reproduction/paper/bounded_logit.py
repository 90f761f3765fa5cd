"""Figure 3: absolute logit and confidence of two moons' test points along δ·x, with their limits."""

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bitbayes as bb
from bitbayes.reproduction.data import two_moons
from bitbayes.reproduction.paper.curves import plot_band, plot_paper_curve
from bitbayes.reproduction.paper.numbers import paper_numbers
from bitbayes.reproduction.paper.pictures import COLOURS, make_panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.toys import fit_laplace, make_moons, train_toy

DELTAS = range(41)
METHOD_TITLES = {"plain": "Plain", "llla": "Last-layer Laplace"}
PAPER_METHODS = {"plain": "MAP", "llla": "LLLA"}


def measure(session: Session) -> dict[str, Any]:
    toy = make_moons()
    network = train_toy(toy, session.options)
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
    """Draw mean ± 3 std. Dashed lines are the paper's mean, dotted lines the computed limit."""
    figure, (row,) = make_panels(1, 4, 2.4, 2.6)
    plots = [(name, key) for name in ("abs_logit", "confidence") for key in METHOD_TITLES]
    for axes, (name, key) in zip(row, plots, strict=True):
        curve = values["curves"][key][name]
        plot_band(axes, key, values["delta"], curve["mean"], curve["std"], METHOD_TITLES[key])
        plot_paper_curve(axes, key, paper_numbers("bounded-logit")[name][PAPER_METHODS[key]])
        if key == "llla":
            axes.axhline(values["limit"][name], color=COLOURS[key], linestyle=":", linewidth=1.2)
        if name == "confidence":
            axes.set_ylim(0.45, 1.05)
        axes.set(xlabel="δ", title=f"{METHOD_TITLES[key]}: {'|z|' if name == 'abs_logit' else 'confidence'}")
    grey: dict[str, Any] = {"color": "#333333"}
    keys = [
        row[0].fill_between([], [], alpha=0.15, label="± 3 std over test points", **grey),
        *row[0].plot([], [], linestyle="--", linewidth=1.1, label="the paper's mean", **grey),
        *row[0].plot([], [], linestyle=":", linewidth=1.2, label="computed limit", **grey),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure
