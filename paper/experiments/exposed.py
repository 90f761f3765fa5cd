"""The tables `acet` and `oe`: the methods on networks that were trained to be unsure about outliers."""

from functools import partial
from typing import Any

from paper.experiments import adversarial, ood
from paper.numbers import paper_scores
from paper.problem import Problem
from paper.report import Report
from paper.session import Session

TABLE_TITLES = {"acet": "Trained with ACET", "oe": "Trained with outlier exposure"}


def measure(objective: str, session: Session) -> dict[str, Any]:
    study = session.study(objective)
    noise = ood.noise_set(study, ood.MULTICLASS_NOISE_SCALE)
    found = ood.measure(study, ood.image_sets(study) | noise | adversarial.attacked_sets(study))
    return found | {"training": training_note(objective, session.problem)}


def show(objective: str, values: dict[str, Any], report: Report) -> None:
    paper = partial(paper_scores, objective)
    ood.show(values, report, paper, TABLE_TITLES[objective], values["training"])


def training_note(objective: str, problem: Problem) -> str:
    """Return a note on how the network was trained."""
    recipe = problem.fine_tuning.get(objective)
    how = (
        "The network was trained from scratch"
        if recipe is None
        else f"The plain network was trained for {recipe.epochs} more epochs"
    )
    if objective == "acet":
        return f"{how} with attacked noise."
    return (
        f"{how} with outliers: {problem.exposure_title}. The noise on which methods choose goes up to 10, as "
        "in the paper's code."
    )
