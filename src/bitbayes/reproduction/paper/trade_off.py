"""What a prior variance buys and what it costs: calibration at the data against doubt elsewhere.

The curve is the last layer in closed form along a grid of prior variances, at a temperature of 1 and without
a residual. The choices are what each way of choosing gives, on the same splits of the test set.
"""

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

import bitbayes as bb
from bitbayes import metrics
from bitbayes.prior import variance_grid
from bitbayes.progress import track
from bitbayes.reproduction.paper.methods import Points, ignore_edge_warnings
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study

FAR = 2000
FAR_NAME = f"Noise × {FAR}"
PRIOR_VARIANCES = variance_grid(41)
POINTS_PER_BATCH = 1000
# In the order of the table.
TITLES = {
    "plain": "Plain network",
    "temperature": "Temperature scaling",
    "nll": "Last layer, NLL",
    "evidence": "Last layer, evidence",
    "ood": "Last layer, paper's objective",
    "default": "bitbayes (default)",
}
# The ways to choose the prior variance of the curve.
OBJECTIVES = ("nll", "evidence", "ood")

# NLL, ECE, mean confidence far away, and AUROC by set of near outliers.
Quantities = dict[str, Any]


class Sets(NamedTuple):
    """Points that are passed once, for all trials."""

    train: Points
    near: dict[str, Points]  # other images
    far: Points

    @classmethod
    def of(cls, study: Study) -> "Sets":
        extract, problem = study.network.extract_features, study.problem
        near = {name: extract(each.images) for name, each in problem.outliers.items()}
        return cls(extract(problem.train.images), near, extract(FAR * study.draw_noise(0)))

    def outliers(self) -> dict[str, Points]:
        return self.near | {FAR_NAME: self.far}


def measure(session: Session) -> dict[str, Any]:
    """Measure the curve, and in every trial each choice."""
    study = session.study("plain")
    sets, labels = Sets.of(study), study.problem.train.labels
    last = bb.Laplace(study.network.head, residual=False)
    last.fit(_batches(sets.train.features, labels), progress=False)
    whole = bb.Laplace(study.network.whole)
    whole.fit(_batches(sets.train.images, labels), progress=False)
    trials = track(range(study.trials), f"trade-off, choices ({study.problem.name})", study.progress)
    return {
        "problem": study.problem.title,
        "classes": study.problem.classes,
        "near": list(sets.near),
        "curve": _measure_curve(study, sets, last),
        "trials": [_measure_choices(study, sets, last, whole, trial) for trial in trials],
    }


def _measure_curve(study: Study, sets: Sets, last: bb.Laplace) -> Quantities:
    """The means over the trials at each prior variance. Every set is predicted once for all trials."""
    rows = [study.split(trial)[1].cpu() for trial in range(study.trials)]
    labels = study.problem.test.labels.cpu()
    found: Quantities = {"prior_variance": PRIOR_VARIANCES, "nll": [], "ece": [], "far": []}
    found["auroc"] = {name: [] for name in sets.near}
    for variance in track(PRIOR_VARIANCES, f"trade-off, curve ({study.problem.name})", study.progress):
        last.prior_variance = variance
        probs, inside = (predict(study.test.features).cpu() for predict in (last.predict_proba, last.score))
        found["nll"].append(statistics.fmean(metrics.nll(probs[own], labels[own]) for own in rows))
        found["ece"].append(statistics.fmean(metrics.ece(probs[own], labels[own]) for own in rows))
        found["far"].append(metrics.mmc(last.predict_proba(sets.far.features)))
        for name, points in sets.near.items():
            outside = last.score(points.features).cpu()
            found["auroc"][name].append(statistics.fmean(metrics.auroc(inside[own], outside) for own in rows))
    return found


def _measure_choices(
    study: Study, sets: Sets, last: bb.Laplace, whole: bb.Laplace, trial: int
) -> dict[str, Quantities]:
    """What each way of choosing gives on the test points of a trial."""
    validation, test = (study.test[rows] for rows in study.split(trial))
    validation_labels, test_labels = (study.problem.test.labels[rows] for rows in study.split(trial))
    found = {}

    scaled = bb.TemperatureScaling(study.network.head)
    scaled.temperature = 1.0
    found["plain"] = _rate_scaled(scaled, test.features, test_labels, sets)
    with ignore_edge_warnings():
        scaled.fit([(validation.features, validation_labels)], progress=False)
    found["temperature"] = _rate_scaled(scaled, test.features, test_labels, sets)

    # Not the noise on which the methods are tested.
    noise = study.network.extract_features(study.draw_noise(500 + trial)).features[: len(validation_labels)]
    features = {name: points.features for name, points in sets.outliers().items()}
    for objective in OBJECTIVES:
        with ignore_edge_warnings():
            last.tune(
                [(validation.features, validation_labels)],
                outliers=noise if objective == "ood" else None,
                objective=objective,
                progress=False,
            )
        found[objective] = _rate(last, [(test.features, test_labels)], features)

    images = {name: list(points.images.split(POINTS_PER_BATCH)) for name, points in sets.outliers().items()}
    whole.tune(_batches(validation.images, validation_labels), progress=False)
    found["default"] = _rate(whole, _batches(test.images, test_labels), images)
    return found


def _rate(bayes: bb.Laplace, test: Any, outliers: Mapping[str, Any]) -> Quantities:
    """The quantities of a tuned Laplace, which tells outliers from data by `score`."""
    found = bayes.evaluate(test, outliers=outliers, progress=False)
    return {
        "prior_variance": bayes.prior_variance,
        "temperature": bayes.temperature,
        "nll": found["nll"],
        "ece": found["ece"],
        "far": found[f"{FAR_NAME}/mmc"],
        "auroc": {name: found[f"{name}/auroc"] for name in outliers if name != FAR_NAME},
    }


def _rate_scaled(scaled: bb.TemperatureScaling, test: Tensor, labels: Tensor, sets: Sets) -> Quantities:
    """The quantities of a network with a temperature, which tells outliers by the largest probability."""
    probs = scaled.predict_proba(test)
    return {
        "prior_variance": None,
        "temperature": scaled.temperature,
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "far": metrics.mmc(scaled.predict_proba(sets.far.features)),
        "auroc": {
            name: metrics.auroc(probs, scaled.predict_proba(points.features))
            for name, points in sets.near.items()
        },
    }


def _batches(x: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(POINTS_PER_BATCH), labels.split(POINTS_PER_BATCH), strict=True))
