"""Clean, corrupted, strange and other images: the default, its parts, and what else people use.

Here the trials are trainings. Each has its own seed, and all have the same validation images, on which
everything is tuned. The ensemble averages the probabilities of all trainings. MC dropout has a training of
its own; SWAG and the Gaussian over all layers begin with the first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bitbayes as bb
from bitbayes import metrics
from bitbayes.baselines.detectors import DETECTORS
from bitbayes.errors import DataError
from bitbayes.toys import scale_pixels
from paper.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from paper.drawing.pictures import COLOURS, make_panels, styled
from paper.methods import BatchLoader, Network, pass_images
from paper.methods.all_layers import fast_products
from paper.methods.base import IMAGES_PER_BATCH, fast_layout, ignore_edge_warnings, probabilities
from paper.methods.parts import PARTS
from paper.problem import Problem
from paper.progress import track
from paper.report import Report
from paper.rivals import (
    LaplaceTorch,
    Predicted,
    Predictor,
    average,
    choose_temperature,
    dropout_network,
    joined,
    mc_dropout,
    predict_in_parts,
    swag,
)
from paper.session import Session
from paper.study import Study
from paper.tables import Column, measure_table

TITLES = {
    "plain": "Plain network",
    "temperature": "Temperature scaling",
    "default": "bitbayes (default)",
    "laplace-torch": "laplace-torch, last layer",
    "default-all": "bitbayes, all layers",
    "dropout": "MC dropout, with temperature",
    "swag": "SWAG, with temperature",
    "ensemble": "Ensemble, with temperature",
    **{key: part.title for key, part in PARTS.items()},
}
# They are slow, or many: measured on the first images of each set alone.
ON_FEW = ("default-all", "dropout", "swag", *PARTS)
FEW = 2000
# Images that are nearly of the classes; all other sets are further away.
NEAR = ("CIFAR-10", "CIFAR-100", "EMNIST letters", "Letters (substitute for EMNIST)")
DETECTOR_NAMES = ("energy", "gen", "knn", "vim", "mahalanobis", "relative-mahalanobis")
STRANGE_POINTS = 1000
SCALES = (1.5, 2, 5, 2000)
SPLITS = 5


@dataclass
class Trained:
    """One training: the network, the fitted default, and the temperature.

    Several methods need the logits of the same batch. Those of the last one are kept.
    """

    network: Network
    bayes: bb.Laplace
    temperature: float
    last: tuple[Tensor, Tensor] | None = None

    def logits(self, images: Tensor) -> Tensor:
        if self.last is None or self.last[0] is not images:
            self.last = images, self.network.whole(images)
        return self.last[1]

    def plain(self, images: Tensor) -> Predicted:
        logits = self.logits(images)
        return Predicted(probabilities(logits), logits.logsumexp(1))

    def scaled(self, images: Tensor) -> Predicted:
        logits = self.logits(images)
        return Predicted(probabilities(logits / self.temperature), logits.logsumexp(1))


def measure(session: Session) -> dict[str, Any]:
    problem, options = session.problem, session.options
    trainings = [_trained(session, options.seed + number) for number in range(options.trials)]
    study = Study(problem, trainings[0].network, 1)
    validation, rest = study.split(0)
    predictors, not_run = _predictors(session, trainings, validation)
    sets = _sets(study, rest)
    images, labels = scale_pixels(problem.test.images[rest]), problem.test.labels[rest]
    inside = _predict_all(predictors, images)
    few = {key: [_first(each) for each in every] for key, every in inside.items()}
    found: dict[str, list[dict[str, Any]]] = {
        key: [{"passes": _passes(trainings[0], each, images[:FEW])} for each in every]
        for key, every in predictors.items()
    }
    for key, each in _calibration([inside], labels).items():
        for number, values in enumerate(each):
            found[key][number]["test"] = values
            found[key][number]["test_few"] = calibrated([few[key][number]], labels)
    _corrupted(predictors, images, labels, found)
    thresholds = {key: [each.score.quantile(0.05) for each in every] for key, every in inside.items()}
    for name, others in track(sets.items(), f"shift ({problem.name}): other images", options.progress):
        for key, every in _predict_all(predictors, others).items():
            for number, predicted in enumerate(every):
                own = inside[key][number].score
                found[key][number].setdefault("sets", {})[name] = {
                    "mmc": metrics.mmc(predicted.probs),
                    "auroc": metrics.auroc(own, predicted.score),
                    "fpr95": metrics.fpr95(own, predicted.score),
                    "accepted": float((predicted.score >= thresholds[key][number]).double().mean()),
                }
    return {
        "problem": problem.title,
        "classes": problem.classes,
        "points": len(rest),
        "few": min(FEW, len(rest)),
        "not_run": not_run,
        "chosen": [each.bayes.settings.as_json() for each in trainings],
        "methods": found,
        "splits": _splits(study, trainings),
        "detectors": _detectors(study, trainings, rest, sets),
        "near": [name for name in problem.outliers if name in NEAR],
        "far": [name for name in problem.outliers if name not in NEAR],
    }


# ---- the methods


def _trained(session: Session, seed: int) -> Trained:
    """The network of that seed, with everything fitted and tuned on the validation images."""
    other = Session(replace(session.options, seed=seed))
    other.problem = problem = session.problem
    network = other.load_or_train(problem, "plain")
    validation, _ = Study(problem, network, 1).split(0)
    loader = BatchLoader(problem.test.images[validation], problem.test.labels[validation])
    with ignore_edge_warnings():
        bayes = bb.Laplace(network.whole).fit(BatchLoader(*problem.train), progress=False)
        bayes.tune(loader, progress=False)
        scaled = bb.TemperatureScaling(network.whole).fit(loader, progress=False)
    return Trained(network, bayes, scaled.temperature)


def _predictors(
    session: Session, trainings: list[Trained], validation: Tensor
) -> tuple[dict[str, list[Predictor]], dict[str, str]]:
    """The methods: one for each training, or one for all; and why some were not run."""
    problem, first = session.problem, trainings[0]
    images, labels = scale_pixels(problem.test.images[validation]), problem.test.labels[validation]
    loader = BatchLoader(images, labels)
    found: dict[str, list[Predictor]] = {
        "plain": [each.plain for each in trainings],
        "temperature": [each.scaled for each in trainings],
        "default": [_of(each.bayes) for each in trainings],
    }
    not_run = dict.fromkeys(session.options.without, "left out of this run")
    if "laplace-torch" not in not_run:
        try:
            found["laplace-torch"] = [LaplaceTorch(each.network.whole, *problem.train) for each in trainings]
        except ImportError as error:
            not_run["laplace-torch"] = str(error)
    slow: dict[str, Callable[[], Predictor]] = {
        "default-all": lambda: _all_layers(first, problem, loader),
        "dropout": lambda: mc_dropout(dropout_network(session).whole, images, labels),
        "swag": lambda: swag(first.network.whole, problem, images, labels, session.options.seed),
    }
    found |= {key: [make()] for key, make in slow.items() if key not in not_run}
    found["ensemble"] = [_ensemble(trainings, images, labels)]
    for key, part in PARTS.items():
        found[key] = [_of(part.fit(each.network, problem.train, loader)) for each in trainings]
    return {key: found[key] for key in TITLES if key in found}, not_run


def _all_layers(trained: Trained, problem: Problem, validation: BatchLoader) -> Predictor:
    with ignore_edge_warnings(), fast_products():
        bayes = bb.Laplace(trained.network.whole, layers="all")
        bayes.fit(BatchLoader(*problem.train), progress=False)
        return _of(bayes.tune(validation, progress=False))


def _of(bayes: bb.Laplace) -> Predictor:
    def predict(images: Tensor) -> Predicted:
        with fast_products():
            return Predicted(*bayes.predict_and_score(images))

    return predict


@torch.no_grad()
def _ensemble(trainings: list[Trained], images: Tensor, labels: Tensor) -> Predictor:
    """The average over all trainings, with one temperature chosen on these images."""

    def logits(x: Tensor) -> list[Tensor]:
        return [each.logits(x) for each in trainings]

    temperature = choose_temperature(logits(images), labels)
    return lambda x: average(logits(x), temperature)


@torch.no_grad()
def _predict_all(predictors: dict[str, list[Predictor]], images: Tensor) -> dict[str, list[Predicted]]:
    """The predictions of all methods, which see a batch one after the other; some see the first images."""
    parts: dict[str, list[list[Predicted]]] = {key: [[] for _ in every] for key, every in predictors.items()}
    assert FEW % IMAGES_PER_BATCH == 0
    for number, batch in enumerate(torch.split(images, IMAGES_PER_BATCH)):
        x = fast_layout(batch)
        for key, every in predictors.items():
            if key not in ON_FEW or number * IMAGES_PER_BATCH < FEW:
                for predictor, found in zip(every, parts[key], strict=True):
                    found.append(predictor(x))
    return {key: [joined(each, images.device) for each in every] for key, every in parts.items()}


def _first(predicted: Predicted) -> Predicted:
    return Predicted(predicted.probs[:FEW], predicted.score[:FEW])


def _passes(trained: Trained, predictor: Predictor, images: Tensor) -> float:
    """The time of a prediction in plain forward passes."""

    def seconds(each: Predictor) -> float:
        trained.network.synchronize()
        started = time.perf_counter()
        predict_in_parts(each, images)
        trained.network.synchronize()
        return time.perf_counter() - started

    def plain(x: Tensor) -> Predicted:
        logits = trained.network.whole(x)
        return Predicted(logits, logits[:, 0])

    ratios = []
    for _ in range(3):
        before, own, after = seconds(plain), seconds(predictor), seconds(plain)
        ratios.append(2 * own / (before + after))
    return statistics.median(ratios)


# ---- the sets of images


def _sets(study: Study, rest: Tensor) -> dict[str, Tensor]:
    """Other images, and strange ones within the range of pixels and beyond."""
    problem = study.problem
    few = scale_pixels(problem.test.images[rest[:STRANGE_POINTS]])
    # Drawn on the CPU, so that they are the same on every device.
    generator = torch.Generator().manual_seed(0)
    colours = torch.rand(len(few), few.shape[1], 1, 1, generator=generator).to(few.device).expand_as(few)
    orders = torch.rand(len(few), 1, few[0, 0].numel(), generator=generator).argsort(2).to(few.device)
    permuted = few.flatten(2).gather(2, orders.expand(-1, few.shape[1], -1)).reshape(few.shape)
    sets = {name: scale_pixels(each.images) for name, each in problem.outliers.items()}
    sets |= {"Noise": study.draw_noise(0), "One colour": colours, "Pixels permuted": permuted}
    return sets | {f"Test × {scale:g}": scale * few for scale in SCALES}


def calibrated(parts: list[Predicted], labels: Tensor) -> dict[str, float]:
    """The measures over all parts, each of which has the same labels, or the first of them."""
    probs = torch.cat([part.probs for part in parts])
    every = labels[: len(parts[0].probs)].repeat(len(parts))
    return {
        "accuracy": metrics.accuracy(probs, every),
        "nll": metrics.nll(probs, every),
        "ece": metrics.ece(probs, every),
        "brier": metrics.brier(probs, every),
        "aurc": metrics.aurc(probs.amax(1), probs.argmax(1) == every),
    }


def _calibration(
    parts: list[dict[str, list[Predicted]]], labels: Tensor
) -> dict[str, list[dict[str, float]]]:
    """The measures of each method and training."""
    return {
        key: [calibrated([part[key][number] for part in parts], labels) for number in range(len(every))]
        for key, every in parts[0].items()
    }


def _corrupted(
    predictors: dict[str, list[Predictor]],
    images: Tensor,
    labels: Tensor,
    found: dict[str, list[dict[str, Any]]],
) -> None:
    """Add the measures on corrupted images: of each severity, of all, and of all of the first images."""
    kept: dict[int, list[dict[str, list[Predicted]]]] = {severity: [] for severity in SEVERITIES}
    steps = [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]
    for name, severity in track(steps, "shift: corrupted images", None):
        batches = enumerate(torch.split(images, 1000))
        made = torch.cat([corrupt(batch, name, severity, 1000 * i) for i, batch in batches])
        kept[severity].append(_predict_all(predictors, made))
    for severity, predicted in kept.items():
        for key, each in _calibration(predicted, labels).items():
            for number, values in enumerate(each):
                found[key][number].setdefault("severities", {})[str(severity)] = values
    whole = [part for predicted in kept.values() for part in predicted]
    few = [{key: [_first(each) for each in every] for key, every in part.items()} for part in whole]
    for name, parts in (("corrupted", whole), ("corrupted_few", few)):
        for key, each in _calibration(parts, labels).items():
            for number, values in enumerate(each):
                found[key][number][name] = values


def _splits(study: Study, trainings: list[Trained]) -> dict[str, list[list[dict[str, Any]]]]:
    """The default and temperature scaling in other splits of the test set, by training and split."""
    problem = study.problem
    found: dict[str, list[list[dict[str, Any]]]] = {"temperature": [], "default": []}
    for trained in trainings:
        test = pass_images(trained.bayes, *problem.test)
        outside = {name: pass_images(trained.bayes, each.images) for name, each in problem.outliers.items()}
        logits = trained.network.head(trained.network.extract_features(problem.test.images).features)
        for key in found:
            found[key].append([])
        for number in range(1, SPLITS + 1):
            validation, rest = study.split(number)
            labels = problem.test.labels[rest]
            with ignore_edge_warnings():
                chosen = bb.Settings(**asdict(test.select(validation).tune()))
            probs, score = test.select(rest).predict(chosen)
            values: dict[str, Any] = calibrated([Predicted(probs, score)], labels.to(probs.device))
            values["auroc"] = {
                name: metrics.auroc(score, each.predict(chosen)[1]) for name, each in outside.items()
            }
            found["default"][-1].append(values)
            with torch.no_grad():
                temperature = choose_temperature([logits[validation]], problem.test.labels[validation])
                scaled = average([logits[rest]], temperature)
            found["temperature"][-1].append(calibrated([scaled], labels))
    return found


def _detectors(
    study: Study, trainings: list[Trained], rest: Tensor, sets: dict[str, Tensor]
) -> dict[str, dict[str, list[float]]]:
    """The AUROC of each detector on each set of other images, for each training."""
    problem = study.problem
    found: dict[str, dict[str, list[float]]] = {name: {} for name in DETECTOR_NAMES}
    for training in trainings:
        network, head = training.network, training.network.head
        train = network.extract_features(problem.train.images).features
        inside = network.extract_features(problem.test.images[rest]).features
        outside = {name: network.extract_features(sets[name]).features for name in problem.outliers}
        for name in DETECTOR_NAMES:
            try:
                detector = DETECTORS[name].fit(train, problem.train.labels, head.weight, head.bias)
            except DataError:  # a detector that does not suit the network
                continue
            scores = detector.score(inside)
            for other, features in outside.items():
                found[name].setdefault(other, []).append(metrics.auroc(scores, detector.score(features)))
    return found


# ---- the table


def show(values: dict[str, Any], report: Report) -> None:
    count = len(values["methods"]["default"])
    main = [key for key in TITLES if key in values["methods"] and key not in ON_FEW]
    report.write_page(
        f"Corrupted and other images: {values['problem']}",
        _verdict(values),
        "",
        f"All tables: mean ± standard deviation over {count} trainings, the best in bold. The ensemble is of "
        f"all {count}. {values['points']:,} test images, and all of them with each of the {len(CORRUPTIONS)} "
        "corruptions in 5 severities.",
        "",
        *(f"Not run: {TITLES[key]} ({why}).\n" for key, why in values.get("not_run", {}).items()),
        *table_lines(values, main, {"test": "Test", "corrupted": "Corrupted", "severity 5": "Severity 5"}),
    )
    others = [key for key in TITLES if key in values["methods"] and key in ON_FEW]
    if others:
        report.write_page(
            f"On the first {values['few']:,} test images: {values['problem']}",
            f"The default's parts, and methods that are slow. Calibration is measured on the first "
            f"{values['few']:,} test images, for every method. MC dropout, SWAG and all layers are of one "
            "training each.",
            "",
            *table_lines(values, [*main, *others], {"test_few": "Test", "corrupted_few": "Corrupted"}),
            extra="few",
        )
    report.write_picture(lambda: draw(values))


def table_lines(values: dict[str, Any], keys: list[str], parts: dict[str, str]) -> list[str]:
    """The tables: calibration; for strangers AUROC, confidence, and the share that is accepted.

    `parts`: what calibration is shown of, with its title.
    """
    methods = values["methods"]
    rows = [TITLES[key] for key in keys]

    def percent(what: str) -> list[Column]:
        """A column for each set of other images."""
        found = []
        for name in methods["default"][0]["sets"]:
            numbers = {TITLES[key]: [100 * one["sets"][name][what] for one in methods[key]] for key in keys}
            found.append(Column(name, numbers))
        return found

    detectors = {
        f"Detector: {DETECTORS[name].title}": found for name, found in values["detectors"].items() if found
    }
    told = []
    for column in percent("auroc"):
        numbers = {
            row: [100 * each for each in found.get(column.title, [])] for row, found in detectors.items()
        }
        best = None if column.title.startswith("Test ×") else "max"
        told.append(replace(column, values=column.values | numbers, best=best))
    still_read = (
        " A network mostly still reads images × 1.5." if "Test × 1.5" in methods[keys[0]][0]["sets"] else ""
    )
    return [
        "## Calibration\n\nNLL and ECE, the smaller the better. Passes: the time of a prediction in plain "
        "forward passes, where it was measured.\n",
        *measure_table(rows, _calibration_columns(values, keys, parts)),
        "\n## Strangers told apart\n\nAUROC in % against the test data, by the energy, by `score`, and by "
        "minus the entropy of averages. Detectors of the last layer are below. Whether scaled test data "
        "should be told apart is a matter of taste, so no number is the best there.\n",
        *measure_table([*rows, *detectors], told),
        "\n## Confidence\n\nMean confidence on strangers, in %. A blind guess is "
        f"{100 / values['classes']:g}%.{still_read}\n",
        *measure_table(rows, percent("mmc")),
        "\n## Accepted\n\nThe share of strangers above the score that 95% of the test data exceed, in %.\n",
        *measure_table(rows, percent("accepted")),
    ]


def _calibration_columns(values: dict[str, Any], keys: list[str], parts: dict[str, str]) -> list[Column]:
    methods = values["methods"]

    def numbers(part: str, what: str, scale: float) -> dict[str, list[float]]:
        return {TITLES[key]: [scale * _part(one, part)[what] for one in methods[key]] for key in keys}

    passes = {TITLES[key]: [one["passes"] for one in methods[key] if "passes" in one] for key in keys}
    columns = [
        Column("Passes", passes),
        Column("Accuracy, %", numbers(next(iter(parts)), "accuracy", 100), 2, "max"),
    ]
    for part, title in parts.items():
        columns.append(Column(f"{title}: NLL", numbers(part, "nll", 1), 4, "min"))
        columns.append(Column("ECE, %", numbers(part, "ece", 100), 2, "min"))
    return columns if any(passes.values()) else columns[1:]


def _part(one: dict[str, Any], name: str) -> dict[str, float]:
    found: dict[str, float] = one["severities"]["5"] if name == "severity 5" else one[name]
    return found


def _verdict(values: dict[str, Any]) -> str:
    """What was promised of the default, and what came out."""

    def mean(key: str, part: str, what: str) -> float:
        return statistics.fmean(one[part][what] for one in values["methods"][key])

    clean = mean("default", "test", "nll") / mean("temperature", "test", "nll")
    error = mean("default", "corrupted", "ece") / mean("temperature", "corrupted", "ece")
    shifted = mean("default", "corrupted", "nll"), mean("ensemble", "corrupted", "nll")
    texts = [
        f"Clean NLL: {clean:.4f} of temperature scaling's.",
        f"Corrupted: NLL {shifted[0]:.4f}, the ensemble's {shifted[1]:.4f}.",
        f"ECE on corrupted images: {error:.3f} of temperature scaling's.",
    ]
    for name in (*values["near"], *values["far"]):
        ours = statistics.fmean(one["sets"][name]["auroc"] for one in values["methods"]["default"])
        best, which = max(
            (statistics.fmean(by_set[name]), key)
            for key, by_set in values["detectors"].items()
            if name in by_set
        )
        gap = 100 * (best - ours)
        texts.append(
            f"{name}: AUROC {100 * ours:.1f}, the best detector ({which}) {100 * best:.1f}, {gap:+.1f}."
        )
    surer = [
        (one["sets"][name]["mmc"] <= other["sets"][name]["mmc"])
        for one, other in zip(values["methods"]["default"], values["methods"]["temperature"], strict=True)
        for name in (*values["near"], *values["far"])
    ]
    texts.append(f"No surer than temperature scaling on other images: {sum(surer)} of {len(surer)} cells.")
    return " ".join(texts)


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw NLL and ECE against the severity, with a band over trainings."""
    figure, axes = make_panels(1, 2, 2.6, sharex=True)
    measures: list[tuple[str, str, Callable[[float], float]]] = [
        ("nll", "NLL", float),
        ("ece", "ECE, %", lambda value: 100 * value),
    ]
    colours = {"plain": "plain", "temperature": "temperature", "default": "default", "ensemble": "kfla"}
    for panel, (what, title, scale) in zip(axes[0], measures, strict=True):
        for key, colour in colours.items():
            each = values["methods"][key]
            places = [0, *map(int, SEVERITIES)]
            rows = [
                [scale(one["test"][what])] + [scale(one["severities"][str(s)][what]) for s in SEVERITIES]
                for one in each
            ]
            mean = [statistics.fmean(column) for column in zip(*rows, strict=True)]
            low, high = ([pick(column) for column in zip(*rows, strict=True)] for pick in (min, max))
            panel.plot(places, mean, color=COLOURS[colour], label=TITLES[key])
            panel.fill_between(places, low, high, color=COLOURS[colour], alpha=0.18, linewidth=0)
        panel.set(xlabel="severity of the corruption (0: clean)", title=f"{values['problem']}: {title}")
        panel.set_xticks(places)
    axes[0][0].legend()
    return figure
