"""The tables `acet` and `oe`: the methods on networks that were trained to be unsure about outliers."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from bitbayes.reproduction.paper import adversarial, ood
from bitbayes.reproduction.paper.numbers import paper_scores
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session

TABLE_TITLES = {"acet": "Trained with ACET", "oe": "Trained with outlier exposure"}


def measure(objective: str, session: Session) -> dict[str, Any]:
    study = session.study(objective)
    noise = ood.noise_set(study, ood.MULTICLASS_NOISE_SCALE)
    return ood.measure(study, ood.image_sets(study) | noise | adversarial.attacked_sets(study))


def show(objective: str, values: dict[str, Any], report: Report) -> None:
    exposure = [exposure_note(values["scores_percent"])] if objective == "oe" else []
    remarks = [*ood.table_notes(values), *exposure]
    ood.show(values, report, partial(paper_scores, objective), TABLE_TITLES[objective], remarks)


def exposure_note(sets: Iterable[str]) -> str:
    """Return a note that names the outliers of the training. `sets` are the names of the outlier sets."""
    name = next((each for each in sets if "etters" in each), "letters")
    packed = " (of the packed sets: vowels, of another source than the test letters)" if "sub" in name else ""
    return (
        f"The outliers that the network was trained with: {name}, its training split{packed}. "
        "The noise on which methods choose goes up to 10, as in the paper's code."
    )
