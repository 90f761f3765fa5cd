"""Data that nobody looked at while the library's constants were chosen, beside what else people use.

results/held-out/README.md is the protocol, which was written before the first run: which data are held out,
what is tested, and by which tests.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import bitbayes as bb
from bitbayes import metrics
from paper.data.held_out import SETS, HeldOutSet
from paper.drawing.pictures import COLOURS, make_panels, styled
from paper.methods.base import BatchLoader, ignore_edge_warnings, probabilities
from paper.paired import Compared, compare, compare_sets, holm
from paper.progress import track
from paper.report import Report, format_mean_std
from paper.rivals import LaplaceTorch, Predicted, Predictor, average, choose_temperature
from paper.session import Session

SPLITS, MEMBERS = 5, 5
# Shares of the rows that train and that tune. The others are tested.
TRAIN, VALIDATION = 0.5, 0.2
TEST_PER_TRAIN = (1 - TRAIN - VALIDATION) / TRAIN
WIDTHS, BATCH, RATE, DECAY = (64, 64), 32, 1e-3, 1e-4
FLOOR_DRAWS = 20
LEVEL = 0.05

TITLES = {
    "plain": "Plain network",
    "temperature": "Temperature scaling",
    "laplace-torch": "laplace-torch",
    "ensemble": "Ensemble of five",
    "default": "bitbayes (default)",
}
# By what they tell strangers from the data.
BY = {
    "plain": "energy",
    "temperature": "largest probability",
    "laplace-torch": "largest probability",
    "ensemble": "entropy",
    "default": "score",
}
PICTURE_COLOURS = {"laplace-torch": "dla", "ensemble": "kfla", "default": "default"}
# Larger ratios of the NLL are drawn at the edge. How texts stand beside points.
LARGEST_RATIO = 1.4
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "size": 7}
MEASURES = ("accuracy", "nll", "brier", "ece", "ece_floor", "aurc")


class Part(NamedTuple):
    """Inputs (n, d) and labels (n,)."""

    inputs: Tensor
    labels: Tensor


def measure(session: Session) -> dict[str, Any]:
    options = session.options
    splits, members = (2, 2) if options.quick else (SPLITS, MEMBERS)
    data = [make() for make in SETS.values()]  # all of them first: if one is missing, nothing was trained
    found, not_run = [], dict[str, str]()
    for each in data:
        numbers = range(options.seed * splits, (options.seed + 1) * splits)
        runs = [
            _split(each, number, members, options.quick, not_run)
            for number in track(numbers, f"held-out: {each.name}", options.progress)
        ]
        found.append(
            {
                "name": each.name,
                "licence": each.licence,
                "rows": len(each.labels),
                "classes": _classes(each),
                "splits": runs,
            }
        )
    return {"members": members, "not_run": not_run, "sets": found}


def _classes(data: HeldOutSet) -> int:
    return int(data.labels.max()) + 1


def _split(
    data: HeldOutSet, number: int, members: int, quick: bool, not_run: dict[str, str]
) -> dict[str, Any]:
    """Train on some rows, tune on others, and measure on the rest: by method."""
    generator = torch.Generator().manual_seed(number)
    rows = torch.randperm(len(data.labels), generator=generator)
    first, second = int(TRAIN * len(rows)), int((TRAIN + VALIDATION) * len(rows))
    parts = (rows[:first], rows[first:second], rows[second:])
    inputs, strangers = data.split(parts[0], parts[2], generator)
    train, validation, test = (Part(inputs[part], data.labels[part]) for part in parts)
    epochs = 1 if quick else data.epochs
    networks = [
        train_network(train, _classes(data), epochs, seed=1000 * number + member) for member in range(members)
    ]
    predictors = _predictors(networks, train, validation, not_run)
    return {key: _measured(each, test, strangers) for key, each in predictors.items()}


def train_network(train: Part, classes: int, epochs: int, seed: int) -> nn.Sequential:
    """Train an MLP with two hidden layers by Adam, as `benchmarks/residual.py` does."""
    torch.manual_seed(seed)
    network = bb.toys.MLP((train.inputs.shape[1], *WIDTHS, classes))
    optimiser = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(train.labels)), BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(train.inputs[rows]), train.labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return network.eval()


# ---- the methods


def _predictors(
    networks: list[nn.Sequential], train: Part, validation: Part, not_run: dict[str, str]
) -> dict[str, Predictor]:
    """Each method, tuned. All but the ensemble have the first network alone."""
    network = networks[0]
    loader = BatchLoader(*validation)
    with ignore_edge_warnings():
        temperature = bb.TemperatureScaling(network).fit(loader, progress=False).temperature
        bayes = bb.Laplace(network).fit(BatchLoader(*train), progress=False)
        bayes.tune(loader, progress=False)

    def plain(x: Tensor) -> Predicted:
        logits = network(x)
        return Predicted(probabilities(logits), logits.logsumexp(1))

    def scaled(x: Tensor) -> Predicted:
        probs = probabilities(network(x) / temperature)
        return Predicted(probs, probs.amax(1))

    def logits(x: Tensor) -> list[Tensor]:
        return [each(x) for each in networks]

    with torch.no_grad():
        shared = choose_temperature(logits(validation.inputs), validation.labels)
    found: dict[str, Predictor] = {"plain": plain, "temperature": scaled}
    try:
        found["laplace-torch"] = LaplaceTorch(network, *train)
    except ImportError as error:
        not_run["laplace-torch"] = str(error)
    found["ensemble"] = lambda x: average(logits(x), shared)
    found["default"] = lambda x: Predicted(*bayes.predict_and_score(x))
    return found


@torch.no_grad()
def _measured(predictor: Predictor, test: Part, strangers: dict[str, Tensor]) -> dict[str, Any]:
    probs, score = predictor(test.inputs)
    confidence, right = probs.amax(1), probs.argmax(1) == test.labels
    found: dict[str, Any] = {
        "accuracy": metrics.accuracy(probs, test.labels),
        "nll": metrics.nll(probs, test.labels),
        "brier": metrics.brier(probs, test.labels),
        "ece": metrics.ece(probs, test.labels),
        "ece_floor": ece_floor(probs),
        "aurc": metrics.aurc(confidence, right),
        "mmc": metrics.mmc(probs),
        "strangers": {},
    }
    for name, inputs in strangers.items():
        others = predictor(inputs)
        found["strangers"][name] = {
            "auroc": metrics.auroc(score, others.score),
            "fpr95": metrics.fpr95(score, others.score),
            "mmc": metrics.mmc(others.probs),
        }
    return found


def ece_floor(probs: Tensor) -> float:
    """The ECE that these probabilities (n, k) would have if they were right: the mean over drawn labels."""
    generator = torch.Generator().manual_seed(0)
    draws = [torch.multinomial(probs, 1, generator=generator)[:, 0] for _ in range(FLOOR_DRAWS)]
    return statistics.fmean(metrics.ece(probs, labels) for labels in draws)


# ---- the tests, from the numbers alone


class Cell(NamedTuple):
    """One comparison of the default with its rival: of which set, of which strangers, and Holm's p-value."""

    set_name: str
    strangers: str | None
    result: Compared
    p: float


class Claim(NamedTuple):
    """What is claimed of the default, and what came out. `sign` is that of a difference which supports it."""

    text: str
    sign: int
    cells: list[Cell]
    across: float  # the p-value over all sets, Holm's over the claims

    def count(self, sign: int) -> int:
        """The number of comparisons that show a difference of this sign."""
        return sum(each.p < LEVEL and sign * each.result.mean > 0 for each in self.cells)

    def misses(self) -> list[Cell]:
        """Those in which the default is behind its rival, shown or not."""
        return [each for each in self.cells if self.sign * each.result.mean < 0]


CLAIMS: tuple[tuple[str, int, str, str], ...] = (
    ("Its NLL is not above that of temperature scaling", -1, "nll", "temperature"),
    ("It tells strangers better than the energy does (AUROC)", +1, "auroc", "plain"),
    ("It accepts fewer strangers than the energy does (FPR95)", -1, "fpr95", "plain"),
)


def judge_claims(values: dict[str, Any]) -> list[Claim]:
    """Compare the default with its rivals, as the protocol says."""
    claims, across = [], []
    for text, sign, what, rival in CLAIMS:
        cells = []
        for data in values["sets"]:
            for strangers in [None] if what == "nll" else _strangers(data):
                result = compare(_differences(data["splits"], what, rival, strangers), TEST_PER_TRAIN)
                cells.append(Cell(data["name"], strangers, result, result.p))
        adjusted = holm([each.p for each in cells])
        cells = [each._replace(p=p) for each, p in zip(cells, adjusted, strict=True)]
        claims.append(Claim(text, sign, cells, 1.0))
        names = dict.fromkeys(each.set_name for each in cells)
        across.append(
            compare_sets(
                [statistics.fmean(t.result.mean for t in cells if t.set_name == name) for name in names]
            )
        )
    return [claim._replace(across=p) for claim, p in zip(claims, holm(across), strict=True)]


def _strangers(data: dict[str, Any]) -> list[str]:
    return list(data["splits"][0]["default"]["strangers"])


def _differences(splits: list[dict[str, Any]], what: str, rival: str, strangers: str | None) -> list[float]:
    """The default's number less its rival's, for each split. Of the NLL it is the logarithm."""

    def number(found: dict[str, Any]) -> float:
        value = float(found[what] if strangers is None else found["strangers"][strangers][what])
        return math.log(value) if what == "nll" else value

    return [number(each["default"]) - number(each[rival]) for each in splits]


# ---- the tables


def show(values: dict[str, Any], report: Report) -> None:
    claims = judge_claims(values)
    methods = [key for key in TITLES if key in values["sets"][0]["splits"][0]]
    count = len(values["sets"][0]["splits"])
    about = (
        f"Means over {count} random splits, with the standard deviation after ±. Intervals and p-values are "
        "of paired differences, by the t-test for splits that share rows; p-values have Holm's correction. "
        "README.md says what was decided before the run."
    )
    not_run = [f"Not run: {TITLES[key]} ({why})." for key, why in values["not_run"].items()]
    (likelihood, auroc, fpr95) = claims
    report.write_table(
        "Held-out data: the NLL",
        [
            *("Set", "Rows", "Classes"),
            *(TITLES[key] for key in methods),
            *("Default / temperature scaling [95% interval]", "p"),
        ],
        [_likelihood_row(data, methods, each) for data, each in _zip(values["sets"], likelihood.cells)],
        *_verdicts(claims),
        about,
        *not_run,
    )
    report.write_table(
        "Held-out data: accuracy and calibration",
        ["Set", "Method", "Accuracy, %", "NLL", "Brier", "ECE, %", "ECE if it were calibrated, %", "AURC, %"],
        [_row(data, key) for data in values["sets"] for key in methods],
        about
        + " *ECE if it were calibrated* is the mean ECE of labels that are drawn from the probabilities.",
        *not_run,
        extra="calibration",
    )
    report.write_table(
        "Held-out data: strangers",
        [
            *("Set", "Strangers"),
            *(f"{TITLES[key]}, {BY[key]}" for key in methods),
            "Default − energy: AUROC [95% interval], p",
            "FPR95, p",
            "Confidence: temperature scaling, default",
        ],
        [
            _stranger_row(data, methods, first, second)
            for data, first, second in _zip(values["sets"], auroc.cells, fpr95.cells)
        ],
        "AUROC / FPR95 in %. " + about,
        *not_run,
        extra="strangers",
    )
    report.write_picture(lambda: draw(values))


def _zip(sets: list[dict[str, Any]], *cells: list[Cell]) -> Iterator[tuple[Any, ...]]:
    """Each cell, or those of several claims about the same, with its set."""
    by_name = {data["name"]: data for data in sets}
    for each in zip(*cells, strict=True):
        yield by_name[each[0].set_name], *each


def _values(data: dict[str, Any], key: str, what: str, factor: float = 100) -> list[float]:
    return [factor * each[key][what] for each in data["splits"]]


def _p(p: float) -> str:
    """Return a p-value to three digits.

    >>> _p(0.0004), _p(0.04)
    ('< 0.001', '0.040')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _equal(p: float) -> str:
    return _p(p) if p < 0.001 else f"= {_p(p)}"


def _likelihood_row(data: dict[str, Any], methods: list[str], cell: Cell) -> list[str]:
    mean, margin, _ = cell.result
    ratio = f"{math.exp(mean):.3f} [{math.exp(mean - margin):.3f}, {math.exp(mean + margin):.3f}]"
    cells = [format_mean_std(_values(data, key, "nll", 1), 4) for key in methods]
    return [data["name"], f"{data['rows']:,}", str(data["classes"]), *cells, ratio, _p(cell.p)]


def _row(data: dict[str, Any], key: str) -> list[str]:
    digits = {"accuracy": 1, "ece": 2, "ece_floor": 2, "aurc": 2}
    cells = {
        what: format_mean_std(_values(data, key, what, 100 if what in digits else 1), digits.get(what, 4))
        for what in MEASURES
    }
    return [data["name"], TITLES[key], *cells.values()]


def _stranger_row(data: dict[str, Any], methods: list[str], auroc: Cell, fpr95: Cell) -> list[str]:
    assert auroc.strangers is not None

    def mean(key: str, what: str) -> float:
        return 100 * statistics.fmean(
            each[key]["strangers"][auroc.strangers][what] for each in data["splits"]
        )

    cells = [f"{mean(key, 'auroc'):.1f} / {mean(key, 'fpr95'):.0f}" for key in methods]
    gain, margin, _ = (100 * number for number in auroc.result)
    differences = [
        f"{gain:+.1f} [{gain - margin:+.1f}, {gain + margin:+.1f}], {_p(auroc.p)}",
        f"{100 * fpr95.result.mean:+.0f}, {_p(fpr95.p)}",
    ]
    confidences = f"{mean('temperature', 'mmc'):.0f}, {mean('default', 'mmc'):.0f}%"
    return [data["name"], auroc.strangers, *cells, *differences, confidences]


def _verdicts(claims: list[Claim]) -> list[str]:
    """For each claim what contradicts it, before what supports it."""
    texts = []
    for claim in claims:
        behind = [
            f"{each.set_name}{f' ({each.strangers})' if each.strangers else ''}, p {_equal(each.p)}"
            for each in claim.misses()
        ]
        texts.append(
            f"**{claim.text}.** Behind in {len(behind)} of {len(claim.cells)} comparisons"
            f"{': ' + '; '.join(behind) if behind else ''}. A difference is shown (p < {LEVEL}) against it "
            f"in {claim.count(-claim.sign)}, and in its favour in {claim.count(claim.sign)}. Over all sets: "
            f"p {_equal(claim.across)}."
        )
    return texts


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw the NLL relative to temperature scaling, and the gain in AUROC over the energy, for each set."""
    names = [data["name"] for data in values["sets"]]
    figure, axes = make_panels(1, 2, 3.4, sharey=True)
    likelihood, auroc = axes[0]
    for place, data in enumerate(values["sets"]):
        for shift, key in ((-0.2, "laplace-torch"), (0.0, "ensemble"), (0.2, "default")):
            if key in data["splits"][0]:
                ratios = [each[key]["nll"] / each["temperature"]["nll"] for each in data["splits"]]
                drawn = [min(each, LARGEST_RATIO) for each in ratios]
                _points(likelihood, drawn, place + shift, key, TITLES[key] if not place else None)
                if max(ratios) > LARGEST_RATIO:
                    text = f"up to {max(ratios):.0f}"
                    likelihood.annotate(text, (LARGEST_RATIO, place + shift), (-6, 0), **BESIDE, ha="right")
        for shift, name in zip((-0.15, 0.15), _strangers(data), strict=True):
            gains = [100 * each for each in _differences(data["splits"], "auroc", "plain", name)]
            _points(auroc, gains, place + shift, "default", None)
            auroc.annotate(name, (max(gains), place + shift), (6, 0), **BESIDE)
    likelihood.axvline(1, color=COLOURS["temperature"], linewidth=1)
    auroc.axvline(0, color=COLOURS["plain"], linewidth=1)
    likelihood.set(title="NLL / that of temperature scaling (each split)")
    auroc.set(title="AUROC − that of the energy, points (each split)")
    likelihood.set_yticks(range(len(names)), names)
    likelihood.invert_yaxis()
    likelihood.set_xlim(right=LARGEST_RATIO)
    auroc.margins(x=0.25)
    likelihood.legend(fontsize=7.5, loc="lower right")
    return figure


def _points(panel: Axes, numbers: list[float], place: float, key: str, label: str | None) -> None:
    colour = COLOURS[PICTURE_COLOURS[key]]
    panel.plot(
        numbers,
        [place] * len(numbers),
        "o",
        color=colour,
        markersize=3.5,
        alpha=0.8,
        label=label,
        clip_on=False,
    )
