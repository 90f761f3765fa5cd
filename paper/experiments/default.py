"""What `bb.Laplace(model).fit(train).tune(validation)` gives, beside the plain network and temperature
scaling.

Every set of images passes each network once. Each trial then chooses its numbers on its own validation
points, and predicts from the Gaussians over logits that were kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

import bitbayes as bb
from bitbayes import metrics
from bitbayes.toys import scale_pixels
from paper import methods
from paper.drawing.dots import Block, Cell, Panel, draw_blocks
from paper.drawing.pictures import styled
from paper.methods import Rated
from paper.methods.all_layers import fast_products
from paper.progress import track
from paper.report import Report, format_mean_std, format_range
from paper.session import Session
from paper.study import Study, is_number

FAR = 2000
# Over all layers: the most points of each set of outliers. The work for a point is that of a hundred forward
# passes.
ALL_LAYERS_POINTS = 1000
TITLES = {
    "plain": "Plain network",
    "temperature": "Temperature scaling",
    "ours": "Last layer, paper's objective",
    "default": "bitbayes (default)",
    "default-all": "bitbayes, all layers",
}
# The methods that `Study` fits and tunes; all but the plain network look at features alone.
JUDGED = ("temperature", "ours")
# By which number outliers are told from data. The first of each method is the one that it is judged by.
SCORES = {
    "plain": ("largest probability", "energy", "maximum logit", "entropy"),
    "temperature": ("largest probability", "entropy"),
    "ours": ("score", "largest probability", "entropy"),
    "default": ("score", "largest probability", "entropy"),
    "default-all": ("score", "largest probability", "entropy"),
}
# Scores of the plain network that are drawn as rows of their own.
DETECTORS = {"energy": "energy", "max-logit": "maximum logit"}
QUANTITIES = {
    "accuracy": ("Accuracy, %", 100, 2),
    "nll": ("NLL", 1, 4),
    "ece": ("ECE, %", 100, 2),
    "brier": ("Brier", 1, 4),
}


PROMISES = (
    "What the default promises: accuracy within 0.2 points of the plain network's; NLL at most that of "
    "temperature scaling (or above it by less than 2%, or by less than one standard error of the "
    "difference), ECE at most 0.1 points above; AUROC of `score` at least that of the plain network's "
    "largest probability less 0.2 points, on other images at least that of its energy less 0.5, and at "
    "least 99.9% far away; there, confidence within 2 points of 1/k."
)


class PassedSets(NamedTuple):
    """For each set of images, what is kept of its pass through a fitted Laplace."""

    sets: dict[str, bb.PassedPoints]

    @classmethod
    def of(cls, bayes: bb.Laplace, sets: dict[str, Tensor], labels: Tensor) -> PassedSets:
        """Pass all sets. "test" has these labels."""
        return cls(
            {
                name: methods.pass_images(bayes, each, labels if name == "test" else None)
                for name, each in sets.items()
            }
        )

    def tune(self, rows: Tensor) -> methods.Hyperparameters:
        """Return the numbers that `tune` chooses on these rows of the test set."""
        return methods.tune_passed(self.sets["test"].select(rows))

    def rate(self, name: str, chosen: methods.Hyperparameters, rows: Tensor | None = None) -> Rated:
        """Rate a set, or some rows of it."""
        points = self.sets[name]
        if rows is not None:  # a set may hold only the first of the images that the rows count
            points = points.select(rows[rows < len(points)])
        return methods.rate_passed(points, chosen)


class DrawnSets:
    """The same for covariances that are estimated by draws, of which `tune` keeps too few points to test on.

    As other methods over all layers it is tuned in the first trial alone.
    """

    def __init__(self, bayes: bb.Laplace, sets: dict[str, Tensor], labels: Tensor) -> None:
        self.bayes, self.sets, self.labels = bayes, sets, labels
        self.chosen: methods.Hyperparameters = {}
        self.rated: dict[str, Rated] = {}

    def tune(self, rows: Tensor) -> methods.Hyperparameters:
        if not self.chosen:
            loader = methods.BatchLoader(self.sets["test"][rows], self.labels[rows])
            with methods.ignore_edge_warnings(), fast_products():
                self.chosen = asdict(self.bayes.tune(loader, progress=False).settings)
        return self.chosen

    def rate(self, name: str, chosen: methods.Hyperparameters, rows: Tensor | None = None) -> Rated:
        if name not in self.rated:
            parts = [scale_pixels(each) for each in torch.split(self.sets[name], methods.IMAGES_PER_BATCH)]
            with fast_products():
                probs, score = self.bayes.predict_and_score(parts)
            device = self.labels.device
            self.rated[name] = methods.rate_by_probabilities(probs.to(device), score=score.to(device))
        rated = self.rated[name]
        return rated if rows is None else rated.rows(rows[rows < len(self.sets[name])])


def measure(session: Session) -> dict[str, Any]:
    """Measure all methods on the test set and on each set of outliers, in every trial."""
    whole = session.study("plain")
    study = Study(whole.problem, whole.network, whole.trials, whole.progress)
    study.entries = {key: whole.entries[key] for key in ("plain", *JUDGED)}
    problem, network = study.problem, study.network
    noise = study.draw_noise(0)
    sets = {"test": problem.test.images, **{name: each.images for name, each in problem.outliers.items()}}
    near = [name for name in sets if name != "test"]
    far_test = scale_pixels(problem.test.images[: problem.noise_points]) * FAR
    sets |= {"Noise": noise, f"Noise × {FAR}": FAR * noise, f"Test × {FAR}": far_test}
    features = {name: network.extract_features(images).features for name, images in sets.items()}
    fitted = _fit(study, sets)
    results: list[dict[str, Any]] = []
    for trial in track(range(study.trials), f"default ({problem.name})", study.progress):
        validation, test = study.split(trial)
        rows = {"test": test, f"Test × {FAR}": test}
        chosen: dict[str, dict[str, float]] = {key: study.chosen[trial][key] for key in JUDGED}
        chosen |= {key: each.tune(validation) for key, each in fitted.items()}
        labels, found = problem.test.labels[test], {}
        for key in ("plain", *JUDGED, *fitted):
            rated = {
                name: fitted[key].rate(name, chosen[key], rows.get(name))
                if key in fitted
                else _rate(study, key, chosen.get(key, {}), features[name], rows.get(name))
                for name in sets
            }
            found[key] = _summary(rated, labels)
        results.append({"chosen": chosen, "methods": found})
    return {
        "problem": problem.title,
        "classes": problem.classes,
        "near": near,
        "far": [name for name in sets if str(FAR) in name],
        "sets": [name for name in sets if name != "test"],
        "all_layers_points": ALL_LAYERS_POINTS,
        "trials": results,
    }


def _fit(study: Study, sets: dict[str, Tensor]) -> dict[str, PassedSets | DrawnSets]:
    """The last layer and all layers, fitted and passed over all sets."""
    images, labels = study.problem.train
    test_labels = study.problem.test.labels
    last = bb.Laplace(study.network.whole).fit(methods.BatchLoader(images, labels), progress=False)
    every = bb.Laplace(study.network.whole, layers="all")
    every.fit(methods.BatchLoader(images, labels), progress=study.progress)
    fewer = {name: each if name == "test" else each[:ALL_LAYERS_POINTS] for name, each in sets.items()}
    return {
        "default": PassedSets.of(last, sets, test_labels),
        "default-all": DrawnSets(every, fewer, test_labels)
        if every.options.draws(study.problem.classes) is not None
        else PassedSets.of(every, fewer, test_labels),
    }


@torch.no_grad()
def _rate(study: Study, key: str, chosen: dict[str, float], features: Tensor, rows: Tensor | None) -> Rated:
    """The plain network, temperature scaling, or the paper's objective."""
    features = features if rows is None else features[rows[rows < len(features)]]
    rated = study.methods[key].rate(methods.Points(features, features), chosen, 0)  # they look at no images
    if key == "plain":
        logits = study.network.head(features)
        rated.scores.update({"energy": logits.logsumexp(1), "maximum logit": logits.amax(1)})
    return rated


def _summary(rated: dict[str, Rated], labels: Tensor) -> dict[str, Any]:
    """The metrics on the test set, and on each set of outliers by each score."""
    probs, inside = rated["test"]
    assert probs is not None
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "mmc": metrics.mmc(probs),
        "outliers": {
            name: {
                "mmc": metrics.mmc(each.probs),  # type: ignore[arg-type]
                "auroc": {score: metrics.auroc(inside[score], each.scores[score]) for score in inside},
                "fpr95": {score: metrics.fpr95(inside[score], each.scores[score]) for score in inside},
            }
            for name, each in rated.items()
            if name != "test"
        },
    }


# ---- the table


def show(values: dict[str, Any], report: Report) -> None:
    """Write the table, the picture, and below them what falls short of what the default promises."""
    header = [
        "Method, told from outliers by",
        *(title for title, _, _ in QUANTITIES.values()),
        "Confidence, %",
    ]
    header += [f"{name}: AUROC / FPR95 / confidence, %" for name in values["sets"]]
    short = misses(values)
    report.write_table(
        f"The default: {values['problem']}",
        header,
        list(_rows(values)),
        f"Mean ± standard deviation over {len(values['trials'])} splits of the test set.",
        _choices(values),
        *(f"Not run: {TITLES[key]} ({why})." for key, why in values.get("not_run", {}).items()),
        *(
            [f"All layers: at most {values['all_layers_points']:,} points of each set of outliers."]
            if "default-all" in values["trials"][0]["methods"]
            else []
        ),
        PROMISES + (" All of it holds." if not short else f" What does not hold: {'; '.join(short)}."),
    )
    report.write_picture(lambda: draw(values))


def _rows(values: dict[str, Any]) -> Iterator[list[str]]:
    for key in values["trials"][0]["methods"]:
        for score in SCORES[key]:
            first = score == SCORES[key][0]
            row = [f"{TITLES[key]}, {score}" if not first else f"**{TITLES[key]}**, {score}"]
            for name, (_, factor, digits) in QUANTITIES.items():
                row.append(format_mean_std(over_trials(values, key, name, factor), digits) if first else "")
            row.append(format_mean_std(over_trials(values, key, "mmc", 100)) if first else "")
            for outliers in values["sets"]:
                parts = [
                    format_mean_std(_of_outliers(values, key, outliers, quantity, score))
                    for quantity in ("auroc", "fpr95")
                ]
                parts += [format_mean_std(_of_outliers(values, key, outliers, "mmc"))] if first else []
                row.append(" / ".join(parts))
            yield row


def over_trials(values: dict[str, Any], key: str, quantity: str, factor: float = 1) -> list[float]:
    """A quantity on the test set, for each trial."""
    return [factor * trial["methods"][key][quantity] for trial in values["trials"]]


def _of_outliers(
    values: dict[str, Any], key: str, outliers: str, quantity: str, score: str | None = None
) -> list[float]:
    """A quantity on a set of outliers in %, for each trial."""
    found = [trial["methods"][key]["outliers"][outliers][quantity] for trial in values["trials"]]
    return [100 * (each if score is None else each[score]) for each in found]


def misses(values: dict[str, Any]) -> list[str]:
    """What of the promises the default does not keep, in the means over all trials."""
    mean, found = statistics.fmean, []
    chance = 100 / max(2, values["classes"])
    for key in ("default", "default-all"):
        if key not in values["trials"][0]["methods"]:
            continue
        accuracy, plain = (mean(over_trials(values, each, "accuracy", 100)) for each in (key, "plain"))
        if abs(accuracy - plain) > 0.2:
            found.append(f"{TITLES[key]}: accuracy {accuracy:.2f} against {plain:.2f}")
        ours, theirs = (over_trials(values, each, "nll") for each in (key, "temperature"))
        gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
        if mean(gaps) > max(0.02 * mean(theirs), error):
            found.append(f"{TITLES[key]}: NLL {mean(ours):.4f} against {mean(theirs):.4f}")
        ece, scaled = (mean(over_trials(values, each, "ece", 100)) for each in (key, "temperature"))
        if ece > scaled + 0.1:
            found.append(f"{TITLES[key]}: ECE {ece:.2f} against {scaled:.2f}")
        for name in values["sets"]:
            auroc = mean(_of_outliers(values, key, name, "auroc", "score"))
            largest = mean(_of_outliers(values, "plain", name, "auroc", "largest probability"))
            energy = mean(_of_outliers(values, "plain", name, "auroc", "energy"))
            where = f"{TITLES[key]}, {name}: AUROC {auroc:.1f}"
            if auroc < largest - 0.2:
                found.append(f"{where} against {largest:.1f} by the largest probability")
            if name in values["near"] and auroc < energy - 0.5:
                found.append(f"{where} against {energy:.1f} by the energy")
            if name in values["far"]:
                if auroc < 99.9:
                    found.append(where)
                confidence = mean(_of_outliers(values, key, name, "mmc"))
                if abs(confidence - chance) > 2:
                    found.append(f"{TITLES[key]}, {name}: confidence {confidence:.1f} against {chance:.1f}")
    return found


def _choices(values: dict[str, Any]) -> str:
    """What was chosen, over the trials."""
    texts = []
    for key in values["trials"][0]["chosen"]:
        trials = [trial["chosen"][key] for trial in values["trials"]]
        ranges = []
        for name in (name for name, value in trials[0].items() if is_number(name, value)):
            ranges.append(f"{name.replace('_', ' ')} {format_range([each[name] for each in trials])}")
        texts.append(f"{TITLES[key]}: {', '.join(ranges)}")
    return f"Chosen over the trials: {'; '.join(texts)}."


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw AUROC and mean confidence, a row for each method and a column for each set of outliers.

    Two detectors by the plain network's logits have rows of their own.
    """
    found = values["trials"][0]["methods"]
    # By row: the method, the score that tells outliers, and the title.
    rows = {key: (key, SCORES[key][0], TITLES[key]) for key in found if key in SCORES}
    rows |= {
        key: ("plain", score, f"Plain network, {score}")
        for key, score in DETECTORS.items()
        if score in SCORES["plain"]
    }
    auroc = {
        name: {key: Cell(_of_outliers(values, of, name, "auroc", by)) for key, (of, by, _) in rows.items()}
        for name in values["sets"]
    }
    confidence = {
        name: {key: Cell(_of_outliers(values, key, name, "mmc")) for key in rows if key not in DETECTORS}
        for name in values["sets"]
    }
    chance = 100 / max(2, values["classes"])
    return draw_blocks(
        {key: title for key, (_, _, title) in rows.items()},
        [
            Block(
                f"{values['problem']}: AUROC, %",
                [Panel(name, cells, best=max) for name, cells in auroc.items()],
            ),
            Block(
                "Mean confidence, %",
                [Panel(name, cells, dotted=chance) for name, cells in confidence.items()],
            ),
        ],
        dotted="1 / number of classes",
    )
