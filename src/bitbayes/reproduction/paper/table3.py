"""Table 3: the time that each method needs to fit and to predict, beginning with the images."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure

from bitbayes.reproduction.data import scale_pixels
from bitbayes.reproduction.paper.dots import Block, Cell, Panel, draw_blocks
from bitbayes.reproduction.paper.methods import (
    LastLayer,
    MethodEntry,
    Network,
    Points,
    WeightSamples,
    WholeNetwork,
)
from bitbayes.reproduction.paper.numbers import paper_numbers
from bitbayes.reproduction.paper.pictures import styled
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study, choice_notes

TIMED_RUNS = 3
SECONDS_TOO_LONG_TO_REPEAT = 20


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    found = {key: measure_times(study, key, study.entries[key]) for key in study.methods}
    return {
        "problem": study.problem.title,
        "paper_problem": study.problem.paper_name,
        "images": {"train": len(study.problem.train.images), "test": len(study.problem.test.images)},
        **study.describe(),
        "seconds": found,
    }


def measure_times(study: Study, key: str, entry: MethodEntry) -> dict[str, float | None]:
    """Return the seconds of fitting to the training set and of predicting the test set."""
    problem, network = study.problem, study.network
    chosen, fitted = study.chosen[0][key], study.methods[key]
    images = problem.test.images

    def fit() -> object:
        if isinstance(fitted, (LastLayer, WholeNetwork)):
            # Fitting begins with the images, not with stored features.
            method = entry.make(problem.tuning_points)
            last_layer = isinstance(fitted, LastLayer)
            train = network.extract_features(problem.train.images) if last_layer else None
            method.fit(network, problem.train.images, train, problem.train.labels)
            return method
        rows, _ = study.split(0)
        validation = network.extract_features(images[rows])
        return fitted.tune(validation, problem.test.labels[rows], network.extract_features(images[:1]))

    def predict() -> object:
        if not isinstance(fitted, WholeNetwork):
            return fitted.predict_proba(network.extract_features(images), chosen, 0)
        if isinstance(fitted, WeightSamples):
            fitted.drawn = None  # so that the time includes drawing networks
        floats = scale_pixels(images)
        return fitted.predict_proba(Points(floats, floats), chosen, 0)

    return {
        "inference": None if key == "plain" else time_shortest_run(fit, network),
        "prediction": time_shortest_run(predict, network),
    }


def time_shortest_run(work: Callable[[], object], network: Network) -> float:
    """Return the seconds of the shortest of a few runs. A first run, to warm up, does not count."""
    taken = []
    for _ in range(TIMED_RUNS + 1):
        _synchronize(network)
        started = time.perf_counter()
        work()
        _synchronize(network)
        taken.append(time.perf_counter() - started)
        if taken[0] > SECONDS_TOO_LONG_TO_REPEAT:  # warming up hardly matters in so long a run
            return taken[0]
    return min(taken[1:])


def _synchronize(network: Network) -> None:
    if network.device.type == "cuda":
        torch.cuda.synchronize(network.device)


def show(values: dict[str, Any], report: Report) -> None:
    paper, problem = paper_numbers("table3"), values["paper_problem"]
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
    report.write_table(
        f"Table 3, wall-clock time: {values['problem']}", header, rows, note, *choice_notes(values)
    )
    report.write_picture(lambda: draw(values))


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw seconds on logarithmic axes. Hollow markers are the paper's."""
    panels = []
    for stage in ("inference", "prediction"):
        cells = {}
        for key, found in values["seconds"].items():
            paper = paper_numbers("table3")[stage].get(values["methods"][key]["paper"], {})
            # A logarithmic axis has no place for 0.0, which the paper prints for times below 0.05 s.
            theirs = paper.get(values["paper_problem"]) or None
            cells[key] = Cell([found[stage]] if found[stage] else [], theirs)
        limits = (0.0, math.inf)
        panels.append(Panel(stage.capitalize(), cells, limits=limits, number="{:.3g}".format, log=True))
    titles = {key: method["title"] for key, method in values["methods"].items()}
    return draw_blocks(titles, [Block("Seconds", panels)])
