"""Figure 3: absolute logit and confidence of the two moons' points along δ·x, with their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import bitbayes as bb
from bitbayes.reproduction.data import two_moons
from bitbayes.reproduction.paper.curves import band, paper_line
from bitbayes.reproduction.paper.numbers import printed
from bitbayes.reproduction.paper.pictures import COLOURS, panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.toys import bayesian, moons, train_toy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTAS = range(41)
TITLES = {"plain": "Plain", "llla": "Last-layer Laplace"}
PAPER = {"plain": "MAP", "llla": "LLLA"}


def measure(session: Session) -> dict[str, Any]:
    toy = moons()
    network = train_toy(toy, session.options)
    bayes = bayesian(toy, network)
    x, _ = two_moons(200, noise=0.1, seed=2)  # test points
    found: dict[str, Any] = {
        key: {name: {"mean": [], "std": []} for name in ("abs_logit", "confidence")} for key in TITLES
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
        "limit": limits(bayes, x),
    }


def limits(bayes: bb.Laplace, x: Tensor) -> dict[str, float]:
    """Mean limits of confidence and logit over the points, and the theorem's bound."""
    confidence = bayes.limit(x).confidence
    return {
        "confidence": float(confidence.mean()),
        "abs_logit": float(torch.logit(confidence).mean()),
        "bound": float(bayes.bound()),
    }


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for name, digits in (("abs_logit", 3), ("confidence", 3)):
        for key, title in TITLES.items():
            curve = values["curves"][key][name]
            paper = dict(printed("bounded-logit")[name][PAPER[key]])
            for delta in (0, 1, 2, 5, 10, 20, 40):
                ours = f"{curve['mean'][delta]:.{digits}f} ± {curve['std'][delta]:.{digits}f}"
                rows.append((name.replace("_", " "), title, str(delta), ours, f"{paper[delta]:.{digits}f}"))
    limit = values["limit"]
    notes = [
        "± is the standard deviation over 200 test points.",
        f"Computed limits for δ → ∞, mean over the points: confidence {limit['confidence']:.4f}, |z| "
        f"{limit['abs_logit']:.4f}; the theorem's bound on the confidence: {limit['bound']:.4f}.",
    ]
    header = ("Quantity", "Method", "δ", "Ours", "Paper's mean")
    report.table("Logit and confidence along δ·x, two moons", header, rows, *notes)
    report.picture(lambda: picture(values))


@styled
def picture(values: dict[str, Any]) -> Figure:
    """Mean ± 3 std; dashed: the paper's mean; dotted: the computed limit."""
    figure, (row,) = panels(1, 4, 2.4, 2.6)
    plots = [(name, key) for name in ("abs_logit", "confidence") for key in TITLES]
    for axes, (name, key) in zip(row, plots, strict=True):
        curve = values["curves"][key][name]
        band(axes, key, values["delta"], curve["mean"], curve["std"], TITLES[key])
        paper_line(axes, key, printed("bounded-logit")[name][PAPER[key]])
        if key == "llla":
            axes.axhline(values["limit"][name], color=COLOURS[key], linestyle=":", linewidth=1.2)
        if name == "confidence":
            axes.set_ylim(0.45, 1.05)
        axes.set(xlabel="δ", title=f"{TITLES[key]}: {'|z|' if name == 'abs_logit' else 'confidence'}")
    grey: dict[str, Any] = {"color": "#333333"}
    keys = [
        row[0].fill_between([], [], alpha=0.15, label="± 3 std over test points", **grey),
        *row[0].plot([], [], linestyle="--", linewidth=1.1, label="the paper's mean", **grey),
        *row[0].plot([], [], linestyle=":", linewidth=1.2, label="computed limit", **grey),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=3)
    return figure
