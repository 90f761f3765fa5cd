"""Calibration of each method on the plain, the ACET and the outlier-exposure network.

The expected calibration error is computed twice: as it is defined, and as the paper's code computes it.
"""

from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from bitbayes import metrics
from bitbayes.baselines.detectors import DETECTORS
from paper.drawing.dots import Block, Cell, Panel, draw_blocks
from paper.drawing.pictures import styled
from paper.numbers import paper_numbers
from paper.progress import track
from paper.report import Report, format_mean_std, format_paper
from paper.session import Session
from paper.study import Study, choice_notes

NETWORK_TITLES = {"plain": "Plain", "acet": "ACET", "oe": "Outlier exposure"}
PAPER_NETWORKS = {"plain": "MAP", "acet": "ACET", "oe": "OE"}


def paper_code_ece(probs: Tensor, labels: Tensor) -> float:
    """Return the calibration error as the paper's code computes it.

    It has 100 bins and leaves out the last one, so points of confidence ≥ 0.99 do not count.

    >>> import torch
    >>> probs = torch.tensor([[0.995, 0.005], [0.995, 0.005], [0.705, 0.295]])
    >>> round(paper_code_ece(probs, torch.tensor([0, 1, 0])), 3)  # only the last point counts
    0.295
    """
    bins = metrics.reliability(probs, labels, bins=100)
    count, gap = bins.count[:99].double(), (bins.accuracy - bins.confidence)[:99].abs()
    return float((count * gap).nansum() / count.sum()) if count.sum() else 0.0


def measure(session: Session) -> dict[str, Any]:
    # A further training repeats the plain network alone: attacks during training take the longest of all.
    objectives = ["plain"] if session.options.seed else [*NETWORK_TITLES]
    return {
        "problem": session.problem.title,
        "paper_problem": session.problem.paper_name,
        "networks": {objective: measure_network(session.study(objective)) for objective in objectives},
    }


def measure_network(study: Study) -> dict[str, Any]:
    """Return the calibration of the methods that give probabilities, in every trial."""
    scores: dict[str, dict[str, list[float]]] = {}
    for trial in track(range(study.trials), f"calibration ({study.problem.name})", study.progress):
        _, rows = study.split(trial)
        labels = study.problem.test.labels[rows].cpu()
        for key in study.methods:
            probs = study.rate(key, study.test, trial).rows(rows).probs
            if probs is None:
                continue
            probs = probs.cpu()
            for name, value in (
                ("ece", 100 * metrics.ece(probs, labels)),
                ("papers_ece", 100 * paper_code_ece(probs, labels)),
                ("nll", metrics.nll(probs, labels)),
                ("brier", metrics.brier(probs, labels)),
                ("dropped", 100 * float((probs.amax(1) >= 0.99).double().mean())),
            ):
                scores.setdefault(key, {}).setdefault(name, []).append(value)
    # A method that gives no probabilities is not missing here, even if it could not be fitted.
    missing = study.not_run.keys() - DETECTORS.keys()
    keys = [key for key in study.entries if key in scores or key in missing]
    return {**study.describe(*keys), "scores": scores}


def paper_ece(objective: str, method: str | None, problem: str) -> list[float] | None:
    """Return the mean and standard deviation that the paper prints, or None."""
    network = PAPER_NETWORKS[objective]
    found = paper_numbers("ece")[network].get(network if method == "MAP" else method, {}).get(problem)
    return found and list(found)


def show(values: dict[str, Any], report: Report) -> None:
    rows = []
    for objective, found in values["networks"].items():
        for key, method in found["methods"].items():
            scores = found["scores"].get(key)
            paper = paper_ece(objective, method["paper"], values["paper_problem"])
            cells = (
                [format_mean_std(scores[name], 2) for name in ("ece", "papers_ece", "dropped")]
                + [format_mean_std(scores.get(name, []), 4) for name in ("nll", "brier")]
                if scores
                else ["not run"] * 5
            )
            rows.append((NETWORK_TITLES[objective], method["title"], *cells, format_paper(paper)))
    header = (
        "Network",
        "Method",
        "ECE, % (15 bins)",
        "ECE as in the paper's code, %",
        "Points it drops, %",
        "NLL, nats",
        "Brier score",
        "Paper's ECE",
    )
    note = (
        "The paper's code leaves out every point of confidence 0.99 or more. On a network that is right and "
        "sure of nearly all points its value is the miscalibration of the few others."
    )
    if len(values["networks"]) > 1:
        note += " The networks are those of the tables `acet` and `oe`."
    chosen = [
        f"{NETWORK_TITLES[objective]} network. {text}"
        for objective, found in values["networks"].items()
        for text in choice_notes(found)
    ]
    report.write_table(f"Expected calibration error: {values['problem']}", header, rows, note, *chosen)
    report.write_picture(lambda: draw(values))


@styled
def draw(values: dict[str, Any]) -> Figure:
    """Draw the error as it is defined, and as the paper's code computes it: the paper prints the latter."""
    titles: dict[str, str] = {}
    defined, computed = [], []
    for objective, found in values["networks"].items():
        titles |= {key: method["title"] for key, method in found["methods"].items()}
        scores, name = found["scores"], f"{NETWORK_TITLES[objective]} network"
        style: dict[str, Any] = {"least_span": 0.5, "number": "{:.2f}".format}
        errors = {key: Cell(each["ece"]) for key, each in scores.items()}
        defined.append(Panel(name, errors, best=min, **style))
        cells = {}
        for key, method in found["methods"].items():
            paper = paper_ece(objective, method["paper"], values["paper_problem"])
            cells[key] = Cell(scores.get(key, {}).get("papers_ece", []), paper[0] if paper else None)
        computed.append(Panel(name, cells, **style))
    return draw_blocks(
        titles,
        [
            Block("Expected calibration error, %, of all points", defined),
            Block("As the paper's code computes it, %: without points of confidence 0.99 or more", computed),
        ],
    )
