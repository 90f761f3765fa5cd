"""Outlier detection, as in the paper's tables: mean maximum confidence (MMC) and AUROC on each set."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from bitbayes import metrics
from paper.drawing.dots import Block, Cell, Panel, draw_blocks
from paper.drawing.pictures import styled
from paper.methods import Points, Rated
from paper.progress import track
from paper.report import Report, format_mean_std, format_paper, markdown_table
from paper.study import Study, choice_notes

# The noise of tables 1 and 2 is uniform on [0, 1], times this.
BINARY_NOISE_SCALE, MULTICLASS_NOISE_SCALE = 100, 2000
# Returns the paper's numbers for a training set, a test set and a method: see `numbers.paper_scores`.
PaperScores = Callable[[str, str | None, str | None], dict[str, Any]]
HEADER = ("Test set", "Method", "MMC, %", "AUROC, %", "FPR95, %", "Paper's MMC", "Paper's AUROC")
CALIBRATION = {"accuracy": 2, "changed": 2, "nll": 4, "brier": 4, "ece": 2}  # digits
CALIBRATION_HEADER = ("Method", "Accuracy, %", "Labels changed, %", "NLL, nats", "Brier score", "ECE, %")
SCORES_NOTE = (
    "AUROC and FPR95: outliers are told from test images by the largest probability, as in the paper; for "
    "bitbayes and *last layer, paper's objective* by `score`, for detectors by their own score. Linearised "
    "networks and *bitbayes, all layers* see the first 1,000 outliers of each set alone. MMC is the mean of "
    "the largest probability."
)


@dataclass(frozen=True)
class OutlierSet:
    """A set of outliers. It is the same in all trials."""

    points: Points
    paper_row: str | None  # its row in the paper's tables


# Values of each trial, by set, method and quantity. All are in %, but for `nll` (in nats) and `brier`.
Scores = dict[str, dict[str, dict[str, list[float]]]]


def image_sets(study: Study) -> dict[str, OutlierSet]:
    """Return the problem's own sets of images that belong to no class."""
    rows = {name: each.paper_row for name, each in study.problem.outliers.items()}
    return {name: OutlierSet(points, rows[name]) for name, points in study.outliers.items()}


def noise_set(study: Study, scale: int) -> dict[str, OutlierSet]:
    """Return scaled uniform noise. It is not the noise on which methods are tuned."""
    points = study.network.extract_features(scale * study.draw_noise(0))
    return {f"Noise × {scale}": OutlierSet(points, f"Noise (delta={scale})")}


def evaluate(study: Study, sets: dict[str, OutlierSet]) -> Scores:
    """Return the scores of every method on the test set and on each outlier set, in every trial."""
    scores: Scores = {name: {key: {} for key in study.methods} for name in (study.problem.title, *sets)}

    def add(where: str, method: str, values: dict[str, float]) -> None:
        for key, value in values.items():
            scores[where][method].setdefault(key, []).append(value)

    for trial in track(range(study.trials), f"predicting ({study.problem.name})", study.progress):
        _, rows = study.split(trial)
        labels = study.problem.test.labels[rows]
        plain = study.rate("plain", study.test, trial).rows(rows)
        for method in study.methods:
            inside = study.rate(method, study.test, trial).rows(rows)
            add(study.problem.title, method, rate_labels(inside, plain, labels))
            for name, outliers in sets.items():
                add(name, method, tell_apart(inside, study.rate(method, outliers.points, trial)))
    return scores


def rate_labels(rated: Rated, plain: Rated, labels: Tensor) -> dict[str, float]:
    """Return confidence, accuracy and calibration on labelled points; nothing without probabilities."""
    if rated.probs is None or plain.probs is None:
        return {}
    probs = rated.probs
    return {
        "mmc": 100 * metrics.mmc(probs),
        "accuracy": 100 * metrics.accuracy(probs, labels),
        "changed": 100 * float((probs.argmax(1) != plain.probs.argmax(1)).double().mean()),
        "nll": metrics.nll(probs, labels),
        "brier": metrics.brier(probs, labels),
        "ece": 100 * metrics.ece(probs, labels),
    }


def tell_apart(inside: Rated, outside: Rated) -> dict[str, float]:
    """Return how well a method's own score tells outliers from data, and its confidence on outliers."""
    found = {
        "auroc": 100 * metrics.auroc(inside.own_score, outside.own_score),
        "fpr95": 100 * metrics.fpr95(inside.own_score, outside.own_score),
    }
    return found if outside.probs is None else {"mmc": 100 * metrics.mmc(outside.probs), **found}


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


def show(values: dict[str, Any], report: Report, paper: PaperScores, title: str, *remarks: str) -> None:
    """Write the tables and the picture of what `measure` returned, with the paper's numbers beside ours.

    Args:
        values: what `measure` returned.
        report: writes the files.
        paper: returns the paper's numbers.
        title: the title of the table.
        remarks: more notes for below the tables.
    """
    report.write_table(
        f"{title}: {values['problem']}",
        HEADER,
        table_rows(values, paper),
        calibration_table(values),
        SCORES_NOTE,
        *choice_notes(values),
        *remarks,
    )
    report.write_picture(lambda: draw_scores(values, paper))


def table_rows(values: dict[str, Any], paper: PaperScores) -> Iterator[tuple[str, ...]]:
    """Yield a row for each set and method. The best mean AUROC on a set is bold."""
    means = {
        where: {key: statistics.fmean(each["auroc"]) for key, each in found.items() if each.get("auroc")}
        for where, found in values["scores_percent"].items()
    }
    for where, method, found, theirs in iterate_cells(values, paper):
        key = method["key"]
        if key in values["not_run"]:
            cells = ["not run"] * 3
        elif found:
            cells = [format_mean_std(found.get(name, [])) for name in ("mmc", "auroc", "fpr95")]
            if key in means[where] and means[where][key] == max(means[where].values()):
                cells[1] = f"**{cells[1]}**"
        else:
            continue  # a detector has no confidence, and some methods are not attacked
        yield where, method["title"], *cells, *(format_paper(theirs.get(name)) for name in ("mmc", "aur"))


def calibration_table(values: dict[str, Any]) -> str:
    """Return a table of accuracy and calibration on the test set."""
    inside = values["scores_percent"][values["problem"]]
    rows = [
        (
            values["methods"][key]["title"],
            *(format_mean_std(found.get(name, []), digits) for name, digits in CALIBRATION.items()),
        )
        for key, found in inside.items()
        if found
    ]
    return "\n".join(markdown_table(CALIBRATION_HEADER, rows))


def iterate_cells(
    values: dict[str, Any], paper: PaperScores
) -> Iterator[tuple[str, dict[str, Any], dict[str, list[float]], dict[str, Any]]]:
    """Yield for each set and method: the set, the method, our values (empty if not run), the paper's."""
    for where, found in values["scores_percent"].items():
        row = values["paper_problem"] if where == values["problem"] else values["paper_rows"].get(where)
        for key, method in values["methods"].items():
            theirs = paper(values["paper_problem"], row, method["paper"])
            yield where, {"key": key, **method}, found.get(key, {}), theirs


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
