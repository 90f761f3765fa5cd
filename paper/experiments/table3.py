"""Table 3: the time that each method needs to fit and to predict, beginning with the images."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure

import bitbayes as bb
from bitbayes.toys import scale_pixels
from paper.drawing.dots import Block, Cell, Panel, draw_blocks
from paper.drawing.pictures import styled
from paper.methods import (
    BatchLoader,
    Default,
    Detector,
    Hyperparameters,
    LastLayer,
    Linearised,
    Network,
    Points,
    SampledNetworks,
    Temperature,
    probabilities,
    set_numbers,
)
from paper.numbers import paper_numbers
from paper.problem import ImageSet
from paper.report import Report
from paper.session import Session
from paper.study import Study, choice_notes

TIMED_RUNS = 5
SECONDS_TOO_LONG_TO_REPEAT = 5
Seconds = dict[str, float | None]


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    problem = study.problem
    keys = [key for key, method in study.methods.items() if not isinstance(method, Detector)]
    return {
        "problem": problem.title,
        "paper_problem": problem.paper_name,
        "images": {"train": len(problem.train.images), "test": len(problem.test.images)},
        **study.describe(*keys),
        "forward_pass_train": time_pass(study.network, problem.train),
        "seconds": {key: measure_times(study, key, study.chosen[0][key]) for key in keys},
    }


def measure_times(study: Study, key: str, chosen: Hyperparameters) -> Seconds:
    """Return the seconds of fitting to the training set and of predicting the test set."""
    method, network = study.methods[key], study.network
    if isinstance(method, (SampledNetworks, Linearised)):
        return time_all_layers(method, network, study.problem.test, chosen)
    if isinstance(method, (LastLayer, Default)):
        bayes = bb.Laplace(network.whole, **method.options)
        return time_last_layer(bayes, network, study.problem.train, study.problem.test, chosen)
    if isinstance(method, Temperature):
        rows, _ = study.split(0)
        validation = ImageSet(*(each[rows] for each in study.problem.test))
        return time_temperature(network, validation, study.problem.test)
    return {"inference": None, "prediction": time_pass(network, study.problem.test)}


def time_pass(network: Network, data: ImageSet) -> float:
    """Return the seconds of the plain network."""

    @torch.no_grad()
    def run() -> object:
        return torch.cat([probabilities(network.whole(x)) for x, _ in BatchLoader(*data)])

    return time_shortest_run(run, network)


def time_temperature(network: Network, validation: ImageSet, test: ImageSet) -> Seconds:
    scaled = bb.TemperatureScaling(network.whole)
    return {
        "inference": time_shortest_run(lambda: scaled.fit(BatchLoader(*validation), progress=False), network),
        "prediction": time_shortest_run(lambda: scaled.predict_proba(BatchLoader(*test)), network),
    }


def time_last_layer(
    bayes: bb.Laplace, network: Network, train: ImageSet, test: ImageSet, chosen: Hyperparameters
) -> Seconds:
    inference = time_shortest_run(lambda: bayes.fit(BatchLoader(*train), progress=False), network)
    set_numbers(bayes, chosen)
    prediction = time_shortest_run(lambda: bayes.predict_proba(BatchLoader(*test)), network)
    return {"inference": inference, "prediction": prediction}


def time_all_layers(
    method: SampledNetworks | Linearised, network: Network, test: ImageSet, chosen: Hyperparameters
) -> Seconds:
    """The time of fitting is that of the study, because repeating it would take long."""
    images = scale_pixels(test.images)
    points = Points(images, images, test.labels)

    def run() -> object:
        if isinstance(method, SampledNetworks):
            method.drawn = None  # so that the time includes drawing networks
        return method.rate(points, chosen, 0)

    _, fit_seconds = method.fitted
    return {"inference": fit_seconds, "prediction": time_shortest_run(run, network)}


def time_shortest_run(work: Callable[[], object], network: Network) -> float:
    """Return the seconds of the shortest of a few runs. A first run, to warm up, does not count."""
    taken = []
    for _ in range(TIMED_RUNS + 1):
        network.synchronize()
        started = time.perf_counter()
        work()
        network.synchronize()
        taken.append(time.perf_counter() - started)
        if taken[0] > SECONDS_TOO_LONG_TO_REPEAT:  # warming up hardly matters in so long a run
            return taken[0]
    return min(taken[1:])


def show(values: dict[str, Any], report: Report) -> None:
    paper, problem = paper_numbers("table3"), values["paper_problem"]
    passes = {
        "inference": values["forward_pass_train"],
        "prediction": values["seconds"]["plain"]["prediction"],
    }
    rows = []
    for key, found in values["seconds"].items():
        method = values["methods"][key]
        cells = []
        for stage, one_pass in passes.items():
            theirs = paper[stage].get(method["paper"], {}).get(problem)
            ours = found[stage]
            cells += ["–", "–"] if ours is None else [f"{ours:.3g}", f"{ours / one_pass:.2f}"]
            cells.append("–" if theirs is None else f"{theirs:.1f}")
        rows.append((method["title"], *cells))
    header = (
        "Method",
        "Inference, s",
        "in forward passes",
        "Paper's, s",
        "Prediction, s",
        "in forward passes",
        "Paper's, s",
    )
    note = (
        f"Inference: fitting to {values['images']['train']:,} training images (temperature scaling: choosing "
        f"the temperature on validation images). Prediction: {values['images']['test']:,} test images; for "
        "DLA and KFLA with drawing 20 networks. A forward pass is that of the plain network over the same "
        "images, all in batches of 1,000 on the device. The shortest of five runs, or one run if that took "
        "over 5 s. Fits over all layers are timed once, when a table needs them. The paper's times are from "
        "its own machine."
    )
    title = f"Table 3, wall-clock time: {values['problem']}"
    report.write_table(title, header, rows, note, *choice_notes(values))
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
