"""Corrupted, strange and other images: the default beside temperature scaling, an ensemble and detectors.

Here the trials are trainings. Each has its own seed, and all have the same validation images, on which
everything is tuned. The ensemble averages the probabilities of all trainings, and has one temperature for all
logits.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

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
from paper.methods import BatchLoader, Network
from paper.methods.base import ignore_edge_warnings, probabilities
from paper.progress import track
from paper.report import Report, format_mean_std
from paper.session import Session
from paper.study import Study

TITLES = {
    "plain": "Plain network",
    "temperature": "Temperature scaling",
    "default": "bitbayes (default)",
    "ensemble": "Ensemble, with temperature",
}
# Images that are nearly of the classes; all other sets are further away.
NEAR = ("CIFAR-10", "CIFAR-100", "EMNIST letters", "Letters (substitute for EMNIST)")
DETECTOR_NAMES = ("energy", "gen", "knn", "vim", "mahalanobis", "relative-mahalanobis")
STRANGE_POINTS = 1000
SCALES = (1.5, 2, 5, 2000)


class Predicted(NamedTuple):
    """Probabilities (n, k), scores by which strangers are told (n,), and logits (n, k)."""

    probs: Tensor
    score: Tensor
    logits: Tensor


class Trained(NamedTuple):
    """One training: the network, the fitted default, and the temperature."""

    network: Network
    bayes: bb.Laplace
    temperature: float

    @torch.no_grad()
    def predict(self, images: Tensor) -> dict[str, Predicted]:
        """The predictions of each method for some images, floats."""
        parts = []
        for batch in torch.split(images, 1000):
            logits = self.network.whole(batch)
            parts.append((logits, *self.bayes.predict_and_score(batch)))
        logits, probs, score = (
            torch.cat([each.to(images.device) for each in column]) for column in zip(*parts, strict=True)
        )
        energy = logits.logsumexp(1)
        return {
            "plain": Predicted(probabilities(logits), energy, logits),
            "temperature": Predicted(probabilities(logits / self.temperature), energy, logits),
            "default": Predicted(probs, score, logits),
        }


def measure(session: Session) -> dict[str, Any]:
    problem, options = session.problem, session.options
    trainings = [_trained(session, options.seed + number) for number in range(options.trials)]
    study = Study(problem, trainings[0].network, 1)
    validation, rest = study.split(0)
    labels = problem.test.labels
    ensemble = _ensemble_temperature(
        trainings, scale_pixels(problem.test.images[validation]), labels[validation]
    )
    sets = _sets(study, rest)
    found: dict[str, list[dict[str, Any]]] = {key: [] for key in TITLES}
    inside = [_predict_all(trainings, scale_pixels(problem.test.images[rest]), ensemble)]
    for key, each in _calibration(inside, labels[rest]).items():
        found[key] = [{"test": values} for values in each]
    _corrupted(trainings, scale_pixels(problem.test.images[rest]), labels[rest], ensemble, found)
    thresholds = {key: [each.score.quantile(0.05) for each in every] for key, every in inside[0].items()}
    for name, images in track(sets.items(), f"shift ({problem.name}): other images", options.progress):
        outside = _predict_all(trainings, images, ensemble)
        for key, every in outside.items():
            for number, predicted in enumerate(every):
                found[key][number].setdefault("sets", {})[name] = {
                    "mmc": metrics.mmc(predicted.probs),
                    "auroc": metrics.auroc(inside[0][key][number].score, predicted.score),
                    "accepted": float((predicted.score >= thresholds[key][number]).double().mean()),
                }
    return {
        "problem": problem.title,
        "classes": problem.classes,
        "points": len(rest),
        "chosen": [each.bayes.settings.as_json() for each in trainings],
        "methods": found,
        "detectors": _detectors(study, trainings, rest, sets),
        "near": [name for name in problem.outliers if name in NEAR],
        "far": [name for name in problem.outliers if name not in NEAR],
    }


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


def _predict_all(trainings: list[Trained], images: Tensor, temperature: float) -> dict[str, list[Predicted]]:
    """The predictions of each method, one for each training; the ensemble has one."""
    every = [each.predict(images) for each in trainings]
    found = {key: [each[key] for each in every] for key in every[0]}
    found["ensemble"] = [_ensemble([each["plain"].logits for each in every], temperature)]
    return found


def _ensemble(logits: list[Tensor], temperature: float) -> Predicted:
    """The mean probabilities at a temperature; strangers are told by minus their entropy."""
    probs = torch.stack([probabilities(each / temperature) for each in logits]).mean(0)
    return Predicted(probs, -torch.special.entr(probs).sum(1), probs.log())


@torch.no_grad()
def _ensemble_temperature(trainings: list[Trained], images: Tensor, labels: Tensor) -> float:
    """The temperature of the ensemble with the least NLL on the validation images."""
    logits = [each.network.whole(images) for each in trainings]
    grid: list[float] = torch.linspace(-1.5, 1.5, 301).exp().tolist()
    return min(grid, key=lambda each: metrics.nll(_ensemble(logits, each).probs, labels))


def _calibration(
    parts: list[dict[str, list[Predicted]]], labels: Tensor
) -> dict[str, list[dict[str, float]]]:
    """Accuracy, NLL, ECE and Brier score of each method and training, over all parts with the same labels."""
    every = labels.repeat(len(parts))
    found: dict[str, list[dict[str, float]]] = {}
    for key in parts[0]:
        found[key] = []
        for number in range(len(parts[0][key])):
            probs = torch.cat([part[key][number].probs for part in parts])
            found[key].append(
                {
                    "accuracy": metrics.accuracy(probs, every),
                    "nll": metrics.nll(probs, every),
                    "ece": metrics.ece(probs, every),
                    "brier": metrics.brier(probs, every),
                }
            )
    return found


def _corrupted(
    trainings: list[Trained],
    images: Tensor,
    labels: Tensor,
    temperature: float,
    found: dict[str, list[dict[str, Any]]],
) -> None:
    """Add the measures on corrupted images: of each severity, and of all."""
    kept: dict[int, list[dict[str, list[Predicted]]]] = {severity: [] for severity in SEVERITIES}
    steps = [(name, severity) for name in CORRUPTIONS for severity in SEVERITIES]
    for number, (name, severity) in enumerate(track(steps, "shift: corrupted images", None)):
        parts = torch.split(images, 1000)
        made = torch.cat([corrupt(part, name, severity, 1000 * number + i) for i, part in enumerate(parts)])
        kept[severity].append(_predict_all(trainings, made, temperature))
    for severity, predicted in kept.items():
        for key, each in _calibration(predicted, labels).items():
            for number, values in enumerate(each):
                found[key][number].setdefault("severities", {})[str(severity)] = values
    whole = [part for predicted in kept.values() for part in predicted]
    for key, each in _calibration(whole, labels).items():
        for number, values in enumerate(each):
            found[key][number]["corrupted"] = values


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
    sets = list(values["methods"]["default"][0]["sets"])
    header = ["Method", "Accuracy, %", "Test, NLL / ECE %", "Corrupted", "Severity 5"]
    header += [f"{name}, confidence / accepted / AUROC, %" for name in sets]
    rows = []
    for key, title in TITLES.items():
        each = values["methods"][key]
        row = [title, format_mean_std([100 * one["test"]["accuracy"] for one in each], 2)]
        for part in ("test", "corrupted", "5"):
            found = [one["severities"]["5"] if part == "5" else one[part] for one in each]
            nll = format_mean_std([one["nll"] for one in found], 4)
            row.append(f"{nll} / {format_mean_std([100 * one['ece'] for one in found], 2)}")
        for name in sets:
            cells = [[100 * one["sets"][name][what] for one in each] for what in ("mmc", "accepted", "auroc")]
            row.append(" / ".join(format_mean_std(cell) for cell in cells))
        rows.append(row)
    count = len(values["methods"]["default"])
    report.write_table(
        f"Corrupted and other images: {values['problem']}",
        header,
        rows,
        f"Mean ± standard deviation over {count} trainings; the ensemble is of all {count}. "
        f"{values['points']:,} test images, and all of them with each of the 12 corruptions in 5 severities. "
        "Accepted: the share above the score that 95 % of the test images exceed, by the energy, by `score`, "
        "and by minus the entropy of the ensemble.",
        "AUROC of detectors, in %: " + "; ".join(_detector_texts(values)) + ".",
        _verdict(values),
    )
    report.write_picture(lambda: draw(values))


def _detector_texts(values: dict[str, Any]) -> list[str]:
    texts = []
    for name, by_set in values["detectors"].items():
        cells = [f"{other} {format_mean_std([100 * one for one in each])}" for other, each in by_set.items()]
        texts.append(f"{DETECTORS[name].title}: {', '.join(cells)}")
    return texts


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
        for key, each in values["methods"].items():
            places = [0, *map(int, SEVERITIES)]
            rows = [
                [scale(one["test"][what])] + [scale(one["severities"][str(s)][what]) for s in SEVERITIES]
                for one in each
            ]
            mean = [statistics.fmean(column) for column in zip(*rows, strict=True)]
            low, high = ([pick(column) for column in zip(*rows, strict=True)] for pick in (min, max))
            colour = COLOURS.get(colours[key], "black")
            panel.plot(places, mean, color=colour, label=TITLES[key])
            panel.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
        panel.set(xlabel="severity of the corruption (0: clean)", title=f"{values['problem']}: {title}")
        panel.set_xticks(places)
    axes[0][0].legend()
    return figure
