"""Table 3: how long fitting and predicting take, each method from the images on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bitbayes.reproduction.paper.methods import (
    Entry,
    LastLayer,
    Network,
    Seen,
    WeightSamples,
    WholeNetwork,
    images_of,
)
from bitbayes.reproduction.paper.numbers import printed
from bitbayes.reproduction.paper.pictures import COLOURS, panels, styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study, choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPEATS = 3


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    found = {key: times(study, key, study.entries[key]) for key in study.methods}
    return {
        "problem": study.problem.title,
        "paper_problem": study.problem.paper,
        "images": {"train": len(study.problem.train_images), "test": len(study.problem.test_images)},
        **study.about(),
        "seconds": found,
    }


def times(study: Study, key: str, entry: Entry) -> dict[str, float | None]:
    """Seconds of fitting to the training set and of predicting the test set; the best of a few runs."""
    problem, network = study.problem, study.network
    chosen, fitted = study.chosen[0][key], study.methods[key]
    images = problem.test_images

    def fit() -> object:
        if isinstance(fitted, (LastLayer, WholeNetwork)):  # from images, not from features at hand
            method = entry.make(problem.tuning)
            seen = network.see(problem.train_images) if isinstance(fitted, LastLayer) else None
            method.fit(network, problem.train_images, seen, problem.train_labels)
            return method
        rows, _ = study.split(0)
        return fitted.choose(network.see(images[rows]), problem.test_labels[rows], network.see(images[:1]))

    def predict() -> object:
        if not isinstance(fitted, WholeNetwork):
            return fitted.probabilities(network.see(images), chosen, 0)
        if isinstance(fitted, WeightSamples):
            fitted.drawn = None  # drawing is part of it
        floats = images_of(images)
        return fitted.probabilities(Seen(floats, floats), chosen, 0)

    return {
        "inference": None if key == "plain" else seconds(fit, network),
        "prediction": seconds(predict, network),
    }


def seconds(work: Callable[[], object], network: Network) -> float:
    """The shortest of a few runs, after one that warms up."""
    taken = []
    for _ in range(REPEATS + 1):
        _wait(network)
        begun = time.perf_counter()
        work()
        _wait(network)
        taken.append(time.perf_counter() - begun)
        if taken[0] > 20:  # warming up matters little then
            return taken[0]
    return min(taken[1:])


def _wait(network: Network) -> None:
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)


def show(values: dict[str, Any], report: Report) -> None:
    paper, problem = printed("table3"), values["paper_problem"]
    rows = []
    for key, found in values["seconds"].items():
        method = values["methods"][key]
        cells = []
        for stage in ("inference", "prediction"):
            theirs = paper[stage].get(method["paper"], {}).get(problem)
            ours = found[stage]
            cells += ["–" if ours is None else f"{ours:.3g}", "–" if theirs is None else f"{theirs:.1f}"]
        rows.append((method["title"], *cells))
    header = ("Method", "Inference, s", "Paper's", "Prediction, s", "Paper's")
    note = (
        f"Inference: fitting to {values['images']['train']:,} training images (temperature scaling: choosing "
        f"the temperature on validation images). Prediction: {values['images']['test']:,} test images; for "
        "DLA and KFLA with drawing 20 networks. The shortest of three runs; the paper's times are from its "
        "own machine."
    )
    report.table(f"Table 3, wall-clock time: {values['problem']}", header, rows, note, *choices(values))
    report.picture(lambda: picture(values))


@styled
def picture(values: dict[str, Any]) -> Figure:
    """Seconds on a logarithmic axis; hollow: the paper's."""
    figure, (row,) = panels(1, 2, 3.6, 2.6, sharey=True)
    keys = list(values["seconds"])
    for axes, stage in zip(row, ("inference", "prediction"), strict=True):
        for y, key in enumerate(reversed(keys)):
            method = values["methods"][key]
            ours = values["seconds"][key][stage]
            theirs = printed("table3")[stage].get(method["paper"], {}).get(values["paper_problem"])
            if ours:
                axes.plot([ours], [y], "o", color=COLOURS[key])
            if theirs:
                axes.plot([theirs], [y], "o", color=COLOURS[key], markerfacecolor="none")
        axes.set(xscale="log", xlabel=f"{stage.capitalize()}, seconds (hollow: the paper's)")
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    row[0].set_yticks(range(len(keys)))
    row[0].set_yticklabels([values["methods"][key]["title"] for key in reversed(keys)])
    return figure
