"""Attacks on noise: on the plain network, as in the paper, and on each method itself."""

from functools import cache, partial
from typing import Any

from torch import nn

from bitbayes import metrics
from bitbayes.outliers import pgd_confident
from bitbayes.progress import track
from bitbayes.reproduction.paper import ood
from bitbayes.reproduction.paper.methods import Points, WeightSamples
from bitbayes.reproduction.paper.numbers import paper_scores
from bitbayes.reproduction.paper.ood import OutlierSet
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study

NEAR, FAR = "Adversarial", "FarAwayAdv"
ADAPTIVE_NOTE = "On the method itself: DLA and KFLA, each 20 networks, are attacked in the first trial alone."


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    values = ood.measure(study, attacked_sets(study))
    values["scores_percent"] |= evaluate_adaptive_attacks(study)
    return values


def show(values: dict[str, Any], report: Report) -> None:
    remarks = [*ood.table_notes(values), ADAPTIVE_NOTE]
    ood.show(values, report, partial(paper_scores, "adversarial"), "Adversarial outliers", remarks)


def attack(study: Study, module: nn.Module, where: str, trial: int) -> Points:
    """Return noise after 40 attack steps of 0.1 within ε = 0.3. Near noise stays in [0, 1]."""
    scale, bounds = (ood.MULTICLASS_NOISE_SCALE, None) if where == FAR else (1, (0.0, 1.0))
    noise = scale * study.draw_noise(trial)
    return study.network.extract_features(pgd_confident(module, noise, bounds=bounds))


def attacked_sets(study: Study) -> dict[str, OutlierSet]:
    """Return noise and far-away noise, both attacked on the plain network."""

    def make_set(where: str) -> OutlierSet:
        return OutlierSet(cache(lambda trial: attack(study, study.network.whole, where, trial)), where)

    return {where: make_set(where) for where in (NEAR, FAR)}


def evaluate_adaptive_attacks(study: Study) -> ood.Scores:
    """Return MMC and AUROC of each method under an attack on that method, in %.

    An average over 20 networks is attacked in the first trial alone, because that takes 20 times as long.
    """
    scores: ood.Scores = {NEAR: {}, FAR: {}}
    for trial in track(range(study.trials), "attacking each method", study.progress):
        _, rows = study.split(trial)
        for key, method in study.methods.items():
            if trial and isinstance(method, WeightSamples):
                continue
            module = method.as_module(study.chosen[trial][key])
            inside = study.predict_proba(key, study.test[rows], trial)
            for where, found in scores.items():
                outside = study.predict_proba(key, attack(study, module, where, trial), trial)
                values = found.setdefault(key, {"mmc": [], "auroc": []})
                values["mmc"].append(100 * metrics.mmc(outside))
                values["auroc"].append(100 * metrics.auroc(inside, outside))
    return {f"{where}, on the method itself": found for where, found in scores.items()}
