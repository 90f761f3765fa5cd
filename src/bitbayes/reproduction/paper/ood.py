"""Outlier detection, as in the paper's tables: mean maximum confidence (MMC) and AUROC on each set."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from bitbayes import metrics
from bitbayes.progress import track
from bitbayes.reproduction.paper.dots import Block, Cell, Panel, draw_blocks
from bitbayes.reproduction.paper.methods import Points
from bitbayes.reproduction.paper.pictures import styled
from bitbayes.reproduction.paper.report import Report, format_mean_std, format_paper
from bitbayes.reproduction.paper.study import Study, choice_notes

# The noise of tables 1 and 2 is uniform on [0, 1], times this.
BINARY_NOISE_SCALE, MULTICLASS_NOISE_SCALE = 100, 2000
# Returns the paper's numbers for a training set, a test set and a method: see `numbers.paper_scores`.
PaperScores = Callable[[str, str | None, str | None], dict[str, Any]]
HEADER = ("Test set", "Method", "MMC, %", "AUROC, %", "Paper's MMC", "Paper's AUROC")


@dataclass(frozen=True)
class OutlierSet:
    """A set of outliers."""

    draw: Callable[[int], Points]  # takes the number of the trial
    paper_row: str | None  # their row in the paper's tables


# Values of each trial, by set, method and quantity.
Scores = dict[str, dict[str, dict[str, list[float]]]]


def image_sets(study: Study) -> dict[str, OutlierSet]:
    """Return the problem's own sets of images that belong to no class."""
    sets = {}
    for name, outliers in study.problem.outliers.items():
        points = study.network.extract_features(outliers.images)
        sets[name] = OutlierSet(lambda trial, points=points: points, outliers.paper_row)  # type: ignore[misc]
    return sets


def noise_set(study: Study, scale: int) -> dict[str, OutlierSet]:
    """Return scaled uniform noise. It is new in each trial, and not the noise on which methods are tuned."""

    def draw(trial: int) -> Points:
        return study.network.extract_features(scale * study.draw_noise(trial))

    return {f"Noise × {scale}": OutlierSet(draw, f"Noise (delta={scale})")}


def evaluate(study: Study, sets: dict[str, OutlierSet]) -> Scores:
    """Return the scores of every method on the test set and on each outlier set, in every trial, in %."""
    scores: Scores = {name: {key: {} for key in study.methods} for name in (study.problem.title, *sets)}

    def add(where: str, method: str, **values: float) -> None:
        for key, value in values.items():
            scores[where][method].setdefault(key, []).append(100 * value)

    for trial in track(range(study.trials), f"predicting ({study.problem.name})", study.progress):
        _, rows = study.split(trial)
        test, labels = study.test[rows], study.problem.test.labels[rows]
        drawn = {name: outliers.draw(trial) for name, outliers in sets.items()}
        plain = study.predict_proba("plain", test, trial).argmax(1)
        for method in study.methods:
            inside = study.predict_proba(method, test, trial)
            add(
                study.problem.title,
                method,
                mmc=metrics.mmc(inside),
                accuracy=metrics.accuracy(inside, labels),
                changed=float((inside.argmax(1) != plain).double().mean()),
            )
            for name, points in drawn.items():
                outside = study.predict_proba(method, points, trial)
                add(name, method, mmc=metrics.mmc(outside), auroc=metrics.auroc(inside, outside))
    return scores


def measure(study: Study, sets: dict[str, OutlierSet]) -> dict[str, Any]:
    """Return the scores, and everything else that a table needs."""
    scores = evaluate(study, sets)
    return {
        "problem": study.problem.title,
        "paper_problem": study.problem.paper_name,
        "paper_rows": {name: each.paper_row for name, each in sets.items()},
        **study.describe(),
        "scores_percent": scores,
    }


def show(values: dict[str, Any], report: Report, paper: PaperScores, title: str, remarks: list[str]) -> None:
    """Write the table and the picture of what `measure` returned, with the paper's numbers beside ours.

    Args:
        values: what `measure` returned.
        report: writes the files.
        paper: returns the paper's numbers.
        title: the title of the table.
        remarks: the notes below the table.
    """
    rows = [
        (
            where,
            method["title"],
            format_mean_std(found["mmc"]) if found else "not run",
            format_mean_std(found.get("auroc", [])) if found else "not run",
            format_paper(theirs.get("mmc")),
            format_paper(theirs.get("aur")),
        )
        for where, method, found, theirs in iterate_cells(values, paper)
    ]
    report.write_table(f"{title}: {values['problem']}", HEADER, rows, *remarks)
    report.write_picture(lambda: draw_scores(values, paper))


def iterate_cells(
    values: dict[str, Any], paper: PaperScores
) -> Iterator[tuple[str, dict[str, Any], dict[str, list[float]], dict[str, Any]]]:
    """Yield for each set and method: the set, the method, our values (empty if not run), the paper's."""
    for where, found in values["scores_percent"].items():
        row = values["paper_problem"] if where == values["problem"] else values["paper_rows"].get(where)
        for key, method in values["methods"].items():
            theirs = paper(values["paper_problem"], row, method["paper"])
            yield where, {"key": key, **method}, found.get(key, {}), theirs


def table_notes(values: dict[str, Any]) -> list[str]:
    """Return notes on the accuracy, on what the methods chose, and on why some were not run."""
    title = {key: method["title"] for key, method in values["methods"].items()}
    inside = values["scores_percent"][values["problem"]]
    accuracy = "; ".join(
        f"{title[key]}: {format_mean_std(found['accuracy'], 2)}"
        + (f" (labels changed: {format_mean_std(found['changed'], 2)})" if key != "plain" else "")
        for key, found in inside.items()
    )
    return [f"Accuracy on the test set, %: {accuracy}.", *choice_notes(values)]


@styled
def draw_scores(values: dict[str, Any], paper: PaperScores) -> Figure:
    """Draw AUROC and MMC, a row for each method and a column for each set. The test set is the last column.

    In place of an AUROC, the column of the test set has the accuracy.
    """
    inside = values["problem"]
    columns = [name for name in values["scores_percent"] if name != inside] + [inside]
    auroc: dict[str, dict[str, Cell]] = {name: {} for name in columns}
    confidence: dict[str, dict[str, Cell]] = {name: {} for name in columns}
    for where, method, found, theirs in iterate_cells(values, paper):
        key, ranked = method["key"], "accuracy" if where == inside else "auroc"
        auroc[where][key] = Cell(found.get(ranked, []), _printed_mean(theirs, "aur"))
        confidence[where][key] = Cell(found.get("mmc", []), _printed_mean(theirs, "mmc"))
    plain = auroc[inside].get("plain")
    accuracy = plain.mean if plain and plain.values else None
    return draw_blocks(
        {key: method["title"] for key, method in values["methods"].items()},
        [
            Block(
                "AUROC, %",
                [
                    Panel(f"{name}: accuracy", auroc[name])
                    if name == inside
                    else Panel(name, auroc[name], best=max)
                    for name in columns
                ],
            ),
            Block(
                "Mean confidence (MMC), %",
                # A calibrated network is as sure of the test set as it is often right.
                [
                    Panel(name, confidence[name], dotted=accuracy if name == inside else None)
                    for name in columns
                ],
            ),
        ],
        dotted="accuracy of the plain network",
    )


def _printed_mean(theirs: dict[str, Any], quantity: str) -> float | None:
    """Return the paper's mean, or None if it prints none."""
    return theirs[quantity][0] if theirs.get(quantity) else None
