"""Outlier detection as the paper's tables show it: mean confidence (MMC) and AUROC of each set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

import bitbayes.metrics as m
from bitbayes.paper.methods import Entry, Seen
from bitbayes.paper.numbers import cell
from bitbayes.paper.pictures import COLOURS, MARKERS, panels, styled
from bitbayes.paper.report import as_printed, mean_std
from bitbayes.paper.study import Study
from bitbayes.progress import track

HEADER = ("Test set", "Method", "MMC, %", "AUROC, %", "Paper's MMC", "Paper's AUROC")


@dataclass(frozen=True)
class OutlierSet:
    """Outliers, perhaps others in each trial; `paper`: their row in the paper's tables."""

    seen: Callable[[int], Seen]
    paper: str | None


# Values of each trial, by set, method and quantity.
Scores = dict[str, dict[str, dict[str, list[float]]]]


def natural(study: Study) -> dict[str, OutlierSet]:
    """The problem's own sets of images that belong to no class."""
    sets = {}
    for name, outliers in study.problem.outliers.items():
        seen = study.network.see(outliers.images)
        sets[name] = OutlierSet(lambda trial, seen=seen: seen, outliers.paper)  # type: ignore[misc]
    return sets


def noise(study: Study, delta: int) -> dict[str, OutlierSet]:
    """Uniform noise, scaled: other noise in each trial, and other than what priors were tuned on."""

    def seen(trial: int) -> Seen:
        return study.network.see(delta * study.noise(trial))

    return {f"Noise × {delta}": OutlierSet(seen, f"Noise (delta={delta})")}


def evaluate(study: Study, sets: dict[str, OutlierSet]) -> Scores:
    """Every method on the test set and on each outlier set, in every trial; in %."""
    scores: Scores = {name: {key: {} for key in study.methods} for name in (study.problem.title, *sets)}

    def note(where: str, method: str, **values: float) -> None:
        for key, value in values.items():
            scores[where][method].setdefault(key, []).append(100 * value)

    for trial in track(range(study.trials), f"predicting ({study.problem.name})", study.progress):
        _, rows = study.split(trial)
        test, labels = study.test[rows], study.problem.test_labels[rows]
        seen = {name: outliers.seen(trial) for name, outliers in sets.items()}
        plain = study.predict("plain", test, trial).argmax(1)
        for method in study.methods:
            inside = study.predict(method, test, trial)
            note(
                study.problem.title,
                method,
                mmc=m.mmc(inside),
                accuracy=m.accuracy(inside, labels),
                changed=float((inside.argmax(1) != plain).double().mean()),
            )
            for name, points in seen.items():
                outside = study.predict(method, points, trial)
                note(name, method, mmc=m.mmc(outside), auroc=m.auroc(inside, outside))
    return scores


def table_rows(
    study: Study, scores: Scores, sets: dict[str, OutlierSet], table: str
) -> list[tuple[str, ...]]:
    """One row for each set and method, with the paper's value beside ours."""
    rows: list[tuple[str, ...]] = []
    printed = {study.problem.title: study.problem.paper} | {name: each.paper for name, each in sets.items()}
    for where, found in scores.items():
        for key, entry in study.entries.items():
            paper = cell(table, study.problem.paper, printed[where], entry.paper)
            values = found.get(key)
            rows.append(
                (
                    where,
                    entry.title,
                    mean_std(values["mmc"]) if values else "not run",
                    mean_std(values.get("auroc", [])) if values else "not run",
                    as_printed(paper.get("mmc")),
                    as_printed(paper.get("aur")),
                )
            )
    return rows


def notes(study: Study, scores: Scores) -> list[str]:
    """Accuracy, chosen numbers, and what was not run and why."""
    inside = scores[study.problem.title]
    accuracy = "; ".join(
        f"{study.entries[key].title}: {mean_std(values['accuracy'], 2)}"
        + (f" (labels changed: {mean_std(values['changed'], 2)})" if key != "plain" else "")
        for key, values in inside.items()
    )
    chosen = "; ".join(
        f"{study.entries[key].title}: {min(numbers):.3g} to {max(numbers):.3g}"
        for key in study.methods
        if key != "plain" and (numbers := [each[key] for each in study.numbers])
    )
    missing = [f"Not run: {study.entries[key].title} ({why})." for key, why in study.not_run.items()]
    return [
        f"Accuracy on the test set, %: {accuracy}.",
        f"Chosen temperature or prior variance over the trials: {chosen}.",
        *missing,
    ]


def as_json(study: Study, scores: Scores) -> dict[str, Any]:
    return {
        "problem": study.problem.title,
        "scores_percent": scores,
        "chosen": study.numbers,
        "not_run": study.not_run,
    }


@styled
def picture(study: Study, scores: Scores, sets: dict[str, OutlierSet], table: str) -> Figure:
    """MMC and AUROC of each set by method; hollow markers are the paper's."""
    figure, ((left, right),) = panels(1, 2, 4.2, 0.9 + 0.75 * len(scores), sharey=True)
    printed = {study.problem.title: study.problem.paper} | {name: each.paper for name, each in sets.items()}
    names = list(scores)
    entries: dict[str, Entry] = study.entries
    for number, (key, entry) in enumerate(entries.items()):
        offset = 0.36 - 0.72 * number / max(1, len(entries) - 1)
        style: dict[str, Any] = {
            "marker": MARKERS[key],
            "color": COLOURS[key],
            "linestyle": "none",
            "markersize": 6,
        }
        for axes, quantity, paper_quantity in ((left, "mmc", "mmc"), (right, "auroc", "aur")):
            for row, where in enumerate(names):
                y = len(names) - row + offset
                values = scores[where].get(key, {}).get(quantity)
                paper = cell(table, study.problem.paper, printed[where], entry.paper).get(paper_quantity)
                if values:
                    axes.plot([sum(values) / len(values)], [y], **style, clip_on=False)
                if paper:
                    axes.plot([paper[0]], [y], **style, markerfacecolor="none", clip_on=False)
        left.plot([], [], **style, label=entry.title)
    left.set(
        xlim=(0, 101), xlabel="Mean confidence (MMC), %", yticks=[len(names) - r for r in range(len(names))]
    )
    left.set_yticklabels(names)
    right.set(xlim=(0, 101), xlabel="AUROC, %")
    for axes in (left, right):
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        for row in range(len(names) - 1):
            axes.axhline(len(names) - row - 0.5, color="#bbbbbb", linewidth=0.6)
    left.plot(
        [],
        [],
        marker="o",
        color="#333333",
        linestyle="none",
        markerfacecolor="none",
        label="hollow: the paper's",
    )
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
