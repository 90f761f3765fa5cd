"""Outlier detection as the paper's tables show it: mean confidence (MMC) and AUROC of each set."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import bitbayes.metrics as m
from bitbayes.progress import track
from bitbayes.reproduction.paper.methods import Seen
from bitbayes.reproduction.paper.pictures import HOLLOW, marker_style, panels, styled
from bitbayes.reproduction.paper.report import Report, as_printed, mean_std
from bitbayes.reproduction.paper.study import Study, choices

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What the paper prints of a training set, a test set and a method: see `numbers.cell`.
Paper = Callable[[str, str | None, str | None], dict[str, Any]]
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


def measure(study: Study, sets: dict[str, OutlierSet]) -> dict[str, Any]:
    """The scores, with all that a table needs beside them."""
    scores = evaluate(study, sets)
    return {
        "problem": study.problem.title,
        "paper_problem": study.problem.paper,
        "paper_rows": {name: each.paper for name, each in sets.items()},
        **study.about(),
        "scores_percent": scores,
    }


def show(values: dict[str, Any], report: Report, paper: Paper, title: str, remarks: list[str]) -> None:
    """Table and picture of what `measure` gave, beside the paper's numbers; `remarks` below it."""
    rows = [
        (
            where,
            method["title"],
            mean_std(found["mmc"]) if found else "not run",
            mean_std(found.get("auroc", [])) if found else "not run",
            as_printed(theirs.get("mmc")),
            as_printed(theirs.get("aur")),
        )
        for where, method, found, theirs in cells(values, paper)
    ]
    report.table(f"{title}: {values['problem']}", HEADER, rows, *remarks)
    report.picture(lambda: picture(values, paper))


def cells(
    values: dict[str, Any], paper: Paper
) -> Iterator[tuple[str, dict[str, Any], dict[str, list[float]], dict[str, Any]]]:
    """Of each set and method: the set, the method, our values (none: not run), the paper's."""
    for where, found in values["scores_percent"].items():
        row = values["paper_problem"] if where == values["problem"] else values["paper_rows"].get(where)
        for key, method in values["methods"].items():
            theirs = paper(values["paper_problem"], row, method["paper"])
            yield where, {"key": key, **method}, found.get(key, {}), theirs


def notes(values: dict[str, Any]) -> list[str]:
    """Accuracy, chosen numbers, and what was not run and why."""
    title = {key: method["title"] for key, method in values["methods"].items()}
    inside = values["scores_percent"][values["problem"]]
    accuracy = "; ".join(
        f"{title[key]}: {mean_std(found['accuracy'], 2)}"
        + (f" (labels changed: {mean_std(found['changed'], 2)})" if key != "plain" else "")
        for key, found in inside.items()
    )
    return [f"Accuracy on the test set, %: {accuracy}.", *choices(values)]


@styled
def picture(values: dict[str, Any], paper: Paper) -> Figure:
    """MMC and AUROC of each set by method, with standard deviations; hollow markers are the paper's."""
    names, keys = list(values["scores_percent"]), list(values["methods"])
    figure, ((left, right),) = panels(1, 2, 4.2, 1.2 + 0.9 * len(names), sharey=True)
    for where, method, found, printed in cells(values, paper):
        key = method["key"]
        y = len(names) - names.index(where) + 0.36 - 0.72 * keys.index(key) / max(1, len(keys) - 1)
        style = marker_style(key)
        for axes, ours, theirs in ((left, "mmc", "mmc"), (right, "auroc", "aur")):
            if found.get(ours):
                mean, spread = statistics.fmean(found[ours]), statistics.pstdev(found[ours])
                whisker = max(0.0, mean - spread), min(100.0, mean + spread)
                axes.plot(whisker, [y, y], color=style["color"], linewidth=1.2)
                axes.plot([mean], [y], **style, clip_on=False)
            if printed.get(theirs):  # above ours, so that it is seen where they agree
                hollow = {"markerfacecolor": "none", "markersize": 9, "zorder": 3}
                axes.plot([printed[theirs][0]], [y], **(style | hollow), clip_on=False)
    for key, method in values["methods"].items():
        left.plot([], [], **marker_style(key), label=method["title"])
    left.plot([], [], **(marker_style("plain") | HOLLOW), label="hollow: the paper's")
    left.set(
        xlim=(0, 101), xlabel="Mean confidence (MMC), %, ± std over trials", yticks=range(len(names), 0, -1)
    )
    left.set_yticklabels(names)
    right.set(xlim=(0, 101), xlabel="AUROC, %, ± std over trials")
    for axes in (left, right):
        axes.grid(axis="x", color="#dddddd", linewidth=0.6)
        for row in range(1, len(names)):
            axes.axhline(row + 0.5, color="#bbbbbb", linewidth=0.6)
    figure.legend(loc="outside lower center", ncols=4)
    return figure
