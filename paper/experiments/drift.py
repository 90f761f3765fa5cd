"""Tables whose columns drift: the default, its parts, and what else people use.

A trial is a random split of the rows. Each has five networks of its own: all but the ensemble use the first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer  # type: ignore[import-untyped]
from torch import Tensor

import bitbayes as bb
from bitbayes import metrics
from bitbayes.baselines.detectors import DETECTORS
from bitbayes.errors import DataError
from paper.data.held_out import SETS, TableSet
from paper.drawing.pictures import COLOURS, make_panels, styled
from paper.experiments.held_out import MEMBERS, TEST_PER_TRAIN, TRAIN, VALIDATION, Part, train_network
from paper.experiments.shift import DETECTOR_NAMES, TITLES, calibrated, table_lines
from paper.methods.base import BatchLoader, Network, ignore_edge_warnings, probabilities
from paper.methods.parts import PARTS
from paper.paired import compare
from paper.progress import track
from paper.report import Report
from paper.rivals import LaplaceTorch, Predicted, Predictor, average, choose_temperature
from paper.session import Session

SEVERITIES = (1, 2, 3, 4, 5)
# How far a severity of 1 goes. Columns have a mean of 0 and a deviation of 1 in the training rows.
SHIFT, GAIN, NOISE, STUCK = 0.5, 0.5, 0.4, 0.15
MOVING = 1 / 3  # the share of the columns whose sensor drifts
NOISE_RANGE = 4.0


def measure(session: Session) -> dict[str, Any]:
    options = session.options
    trials = 2 if options.quick else options.trials
    found = {}
    for name, make in TABLES.items():
        data = make()
        numbers = range(options.seed * trials, (options.seed + 1) * trials)
        not_run: dict[str, str] = {}
        runs = [
            _split(data, number, options.quick, not_run)
            for number in track(numbers, f"drift: {data.name}", options.progress)
        ]
        found[name] = {
            "problem": data.name,
            "licence": data.licence,
            "classes": int(data.labels.max()) + 1,
            "points": len(data.labels) - int((TRAIN + VALIDATION) * len(data.labels)),
            "columns": len(data.columns),
            "test_per_train": TEST_PER_TRAIN,
            "not_run": not_run,
            "near": ["Columns shuffled"],
            "far": ["Test × 10"],
            "methods": {key: [methods[key] for methods, _ in runs] for key in runs[0][0]},
            "detectors": _by_detector([detectors for _, detectors in runs]),
        }
    return {"tables": found}


def breast_cancer() -> TableSet:
    """scikit-learn's copy of the Wisconsin diagnostic data."""
    data = load_breast_cancer()
    columns = {name: data.data[:, place] for place, name in enumerate(data.feature_names)}
    return TableSet("Breast cancer", "CC BY 4.0", columns, torch.from_numpy(data.target).long())


def cells() -> TableSet:
    """modeldata's images of cells: is a cell segmented well?"""
    data = SETS["cells"]()
    assert isinstance(data, TableSet)
    return TableSet("Cells", data.licence, data.columns, data.labels)


TABLES: dict[str, Callable[[], TableSet]] = {"cancer": breast_cancer, "cells": cells}


# ---- drift


def drifted(inputs: Tensor, severity: int, seed: int) -> Iterator[Tensor]:
    """The inputs (n, d), drifted in four ways. The same columns move at each severity.

    - A third of the columns moves by half a deviation for each severity, each up or down.
    - A third of the columns is multiplied by 1 + severity/2.
    - Noise of 0.4 deviations for each severity in all columns.
    - 15% of the columns for each severity stay at the mean: a sensor that is dead.
    """
    count, columns = inputs.shape
    generator = torch.Generator().manual_seed(seed)
    few = max(1, round(MOVING * columns))
    order = torch.randperm(columns, generator=generator)
    signs = torch.randint(2, (columns,), generator=generator) * 2.0 - 1
    noise = torch.randn(count, columns, generator=generator)
    moves = torch.zeros(columns)
    moves[order[:few]] = SHIFT * severity * signs[order[:few]]
    yield inputs + moves
    gains = torch.ones(columns)
    gains[order[-few:]] += GAIN * severity
    yield inputs * gains
    yield inputs + NOISE * severity * noise
    dead = inputs.clone()
    dead[:, order[: round(STUCK * severity * columns)]] = 0.0
    yield dead


# ---- one split


def _split(
    data: TableSet, number: int, quick: bool, not_run: dict[str, str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, float]]]:
    """The numbers of each method, and the AUROC of each detector on each set of strangers."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randperm(len(data.labels), generator=generator)
    first, second = int(TRAIN * len(rows)), int((TRAIN + VALIDATION) * len(rows))
    parts = (rows[:first], rows[first:second], rows[second:])
    inputs, strangers = data.split(parts[0], parts[2], generator)
    train, validation, test = (Part(inputs[part], data.labels[part]) for part in parts)
    classes, epochs = int(data.labels.max()) + 1, 1 if quick else data.epochs
    members = 2 if quick else MEMBERS
    networks = [
        Network(train_network(train, classes, epochs, seed=1000 * number + member))
        for member in range(members)
    ]
    uniform = torch.rand(test.inputs.shape, generator=generator) * 2 - 1
    sets = {
        "Columns shuffled": strangers["Columns shuffled"],
        "Test × 10": 10 * test.inputs,
        "Noise": NOISE_RANGE * uniform,
        "Test × 2000": 2000 * test.inputs,
    }
    predictors = _predictors(networks, train, validation, not_run)
    found = {key: _measured(each, test, sets, number) for key, each in predictors.items()}
    return found, _detectors(networks[0], train, test, {name: sets[name] for name in strangers_of(sets)})


def strangers_of(sets: dict[str, Tensor]) -> list[str]:
    """Those by which strangers are counted: near ones, and further ones."""
    return [name for name in sets if name in ("Columns shuffled", "Test × 10")]


def _predictors(
    networks: list[Network], train: Part, validation: Part, not_run: dict[str, str]
) -> dict[str, Predictor]:
    network = networks[0].whole
    loader = BatchLoader(*validation)
    with ignore_edge_warnings():
        temperature = bb.TemperatureScaling(network).fit(loader, progress=False).temperature
        bayes = bb.Laplace(network).fit(BatchLoader(*train), progress=False).tune(loader, progress=False)
        every = bb.Laplace(network, layers="all").fit(BatchLoader(*train), progress=False)
        every.tune(loader, progress=False)

    def plain(x: Tensor) -> Predicted:
        logits = network(x)
        return Predicted(probabilities(logits), logits.logsumexp(1))

    def scaled(x: Tensor) -> Predicted:
        logits = network(x)
        return Predicted(probabilities(logits / temperature), logits.logsumexp(1))

    def logits(x: Tensor) -> list[Tensor]:
        return [each.whole(x) for each in networks]

    def of(each: bb.Laplace) -> Predictor:
        return lambda x: Predicted(*each.predict_and_score(x))

    with torch.no_grad():
        shared = choose_temperature(logits(validation.inputs), validation.labels)
    found: dict[str, Predictor] = {"plain": plain, "temperature": scaled, "default": of(bayes)}
    try:
        found["laplace-torch"] = LaplaceTorch(network, *train)
    except ImportError as error:
        not_run["laplace-torch"] = str(error)
    found["default-all"] = of(every)
    found["ensemble"] = lambda x: average(logits(x), shared)
    for key, part in PARTS.items():
        found[key] = of(part.fit(networks[0], (train.inputs, train.labels), loader))
    return {key: found[key] for key in TITLES if key in found}


@torch.no_grad()
def _measured(predictor: Predictor, test: Part, sets: dict[str, Tensor], seed: int) -> dict[str, Any]:
    inside = predictor(test.inputs)
    threshold = inside.score.quantile(0.05)
    severities = {
        severity: [predictor(each) for each in drifted(test.inputs, severity, seed)]
        for severity in SEVERITIES
    }
    every = [each for parts in severities.values() for each in parts]
    found: dict[str, Any] = {
        "test": calibrated([inside], test.labels),
        "severities": {str(key): calibrated(parts, test.labels) for key, parts in severities.items()},
        "corrupted": calibrated(every, test.labels),
        "sets": {},
    }
    for name, inputs in sets.items():
        others = predictor(inputs)
        found["sets"][name] = {
            "mmc": metrics.mmc(others.probs),
            "auroc": metrics.auroc(inside.score, others.score),
            "fpr95": metrics.fpr95(inside.score, others.score),
            "accepted": float((others.score >= threshold).double().mean()),
        }
    return found


def _detectors(
    network: Network, train: Part, test: Part, sets: dict[str, Tensor]
) -> dict[str, dict[str, float]]:
    head = network.head
    seen, inside = (network.extract_features(each.inputs).features for each in (train, test))
    found: dict[str, dict[str, float]] = {}
    for name in DETECTOR_NAMES:
        try:
            detector = DETECTORS[name].fit(seen, train.labels, head.weight, head.bias)
        except DataError:  # a detector that does not suit the network
            continue
        scores = detector.score(inside)
        found[name] = {
            other: metrics.auroc(scores, detector.score(network.extract_features(inputs).features))
            for other, inputs in sets.items()
        }
    return found


def _by_detector(runs: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Lists over splits, of the detectors that suit all of them."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: {other: [run[name][other] for run in runs] for other in runs[0][name]} for name in names}


# ---- the page


def show(values: dict[str, Any], report: Report) -> None:
    lines = [
        "Columns of tables drift: sensors move, gain, get noisy or die. All are standardised by the training "
        "rows, half of each table; a fifth tunes, the others are tested. The networks are those of "
        "[held-out](../held-out/README.md): an MLP with two hidden layers of 64 units. "
        f"Means ± standard deviations over {_splits(values)} random splits, the best in bold. *Drifted* is "
        "over four kinds of drift in five severities: a third of the columns moves by up to 2.5 deviations, "
        "or is multiplied by up to 3.5; noise of up to 2 deviations in all columns; up to three of four "
        "columns stay at their mean. The ensemble is of five networks.",
        "",
        f"![NLL and calibration error against the severity of the drift]({report.stem}.png)",
        "",
    ]
    for table in values["tables"].values():
        lines += [
            f"## {table['problem']}",
            "",
            f"{table['columns']} columns, {table['classes']} classes, {table['points']} rows are tested.",
            "",
            _verdict(table),
            "",
            *(f"Not run: {TITLES[key]} ({why}).\n" for key, why in table["not_run"].items()),
            *(line.replace("## ", "### ") for line in table_lines(table, _keys(table), PAGE_PARTS)),
            "",
        ]
    report.write_page("Tables whose columns drift", *lines)
    report.write_picture(lambda: draw(values))


PAGE_PARTS = {"test": "Test", "corrupted": "Drifted", "severity 5": "Severity 5"}


def _keys(table: dict[str, Any]) -> list[str]:
    return [key for key in TITLES if key in table["methods"]]


def _splits(values: dict[str, Any]) -> int:
    first = next(iter(values["tables"].values()))
    return len(first["methods"]["default"])


def _verdict(table: dict[str, Any]) -> str:
    """The default beside its rivals and its own distances, on test data and under drift."""

    def numbers(key: str, part: str) -> list[float]:
        return [one[part]["nll"] for one in table["methods"][key]]

    texts = []
    for part, word in (("test", "Test"), ("corrupted", "Drifted")):
        ours = numbers("default", part)
        gaps = []
        for key in ("temperature", "laplace-torch", "ensemble", "distances"):
            if key not in table["methods"]:
                continue
            theirs = numbers(key, part)
            difference = compare([b - a for a, b in zip(ours, theirs, strict=True)], table["test_per_train"])
            sign = "level with" if abs(difference.mean) <= difference.margin else "ahead of"
            sign = "behind" if difference.mean < -difference.margin else sign
            gaps.append(f"{sign} {TITLES[key][0].lower() + TITLES[key][1:]} ({statistics.fmean(theirs):.3f})")
        texts.append(f"{word} NLL {statistics.fmean(ours):.3f}: {', '.join(gaps)}.")
    return " ".join(texts)


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw NLL and ECE against the severity, a row for each table, with a band of one deviation."""
    tables = list(values["tables"].values())
    figure, axes = make_panels(len(tables), 2, 2.4, sharex=True)
    colours = {"plain": "plain", "temperature": "temperature", "default": "default", "ensemble": "kfla"}
    places = [0, *SEVERITIES]
    for row, table in zip(axes, tables, strict=True):
        for panel, (what, title, scale) in zip(row, (("nll", "NLL", 1), ("ece", "ECE, %", 100)), strict=True):
            for key, colour in colours.items():
                runs = [
                    [scale * one["test"][what]]
                    + [scale * one["severities"][str(s)][what] for s in SEVERITIES]
                    for one in table["methods"][key]
                ]
                columns = list(zip(*runs, strict=True))
                mean = [statistics.fmean(column) for column in columns]
                width = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
                low, high = ([m + s * w for m, w in zip(mean, width, strict=True)] for s in (-1, 1))
                panel.plot(places, mean, color=COLOURS[colour], label=TITLES[key])
                panel.fill_between(places, low, high, color=COLOURS[colour], alpha=0.18, linewidth=0)
            panel.set(title=f"{table['problem']}: {title}", ylim=(0, None))
            panel.set_xticks(places)
    for panel in axes[-1]:
        panel.set_xlabel("severity of the drift (0: none)")
    axes[0][0].legend()
    return figure
