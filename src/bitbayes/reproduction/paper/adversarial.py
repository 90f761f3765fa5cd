"""Attacks on noise: made on the plain network, as in the paper, and on each method itself."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from torch import nn

import bitbayes.metrics as m
from bitbayes.outliers import pgd_confident
from bitbayes.progress import track
from bitbayes.reproduction.paper import ood
from bitbayes.reproduction.paper.methods import Seen, WeightSamples
from bitbayes.reproduction.paper.numbers import cell
from bitbayes.reproduction.paper.ood import OutlierSet
from bitbayes.reproduction.paper.report import Report
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study

DELTA = 2000
NEAR, FAR = "Adversarial", "FarAwayAdv"
ATTACKED = "On the method itself: DLA and KFLA, each 20 networks, are attacked in the first trial alone."


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    values = ood.measure(study, attacked(study))
    values["scores_percent"] |= adaptive(study)
    return values


def show(values: dict[str, Any], report: Report) -> None:
    remarks = [*ood.notes(values), ATTACKED]
    ood.show(values, report, partial(cell, "adversarial"), "Adversarial outliers", remarks)


def attack(study: Study, module: nn.Module, where: str, trial: int) -> Seen:
    """Noise made as confident as 40 steps of 0.1 within ε = 0.3 can; in the image space unless far away."""
    noise = study.noise(trial)
    if where == FAR:
        return study.network.see(pgd_confident(module, DELTA * noise, bounds=None))
    return study.network.see(pgd_confident(module, noise, bounds=(0.0, 1.0)))


def attacked(study: Study) -> dict[str, OutlierSet]:
    """Both sets, attacked on the plain network."""

    def made(where: str) -> OutlierSet:
        return OutlierSet(cache(lambda trial: attack(study, study.network.whole, where, trial)), where)

    return {where: made(where) for where in (NEAR, FAR)}


def adaptive(study: Study) -> ood.Scores:
    """MMC and AUROC of each method under an attack on that very method; in %.

    Of an average over 20 networks in the first trial alone: it takes 20 times as long.
    """
    scores: ood.Scores = {NEAR: {}, FAR: {}}
    for trial in track(range(study.trials), "attacking each method", study.progress):
        _, rows = study.split(trial)
        for key, method in study.methods.items():
            if trial and isinstance(method, WeightSamples):
                continue
            module = method.module(study.chosen[trial][key])
            inside = study.predict(key, study.test[rows], trial)
            for where, found in scores.items():
                outside = study.predict(key, attack(study, module, where, trial), trial)
                values = found.setdefault(key, {"mmc": [], "auroc": []})
                values["mmc"].append(100 * m.mmc(outside))
                values["auroc"].append(100 * m.auroc(inside, outside))
    return {f"{where}, on the method itself": found for where, found in scores.items()}
