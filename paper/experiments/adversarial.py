"""Attacks on noise: on the plain network, as in the paper, and on each method itself."""

from functools import partial
from typing import Any

import torch
from torch import nn

from bitbayes.outliers import pgd_confident
from paper.experiments import ood
from paper.experiments.ood import OutlierSet
from paper.methods import (
    IMAGES_PER_BATCH,
    Detector,
    Linearised,
    Points,
    SampledNetworks,
)
from paper.numbers import paper_scores
from paper.progress import track
from paper.report import Report
from paper.session import Session
from paper.study import Study

NEAR, FAR = "Adversarial", "FarAwayAdv"
# An attack on a method itself starts from so many points. An average over 20 networks takes 20 times as long.
ADAPTIVE_POINTS, ADAPTIVE_POINTS_OF_AVERAGES = 500, 100
ADAPTIVE_NOTE = (
    f"On the method itself: in the first trial alone, from {ADAPTIVE_POINTS} points, for DLA and KFLA from "
    f"{ADAPTIVE_POINTS_OF_AVERAGES}. Linearised networks are not attacked themselves: no gradient passes "
    "through their variance. Nor are detectors."
)


def measure(session: Session) -> dict[str, Any]:
    study = session.study("plain")
    values = ood.measure(study, attacked_sets(study))
    values["scores_percent"] |= evaluate_adaptive_attacks(study)
    return values | {"adaptive": ADAPTIVE_NOTE}


def show(values: dict[str, Any], report: Report) -> None:
    paper = partial(paper_scores, "adversarial")
    ood.show(values, report, paper, "Adversarial outliers", values["adaptive"])


def attack(study: Study, module: nn.Module, where: str, count: int) -> Points:
    """Return noise after 40 attack steps of 0.1 within ε = 0.3. Near noise stays in [0, 1]."""
    scale, bounds = (ood.MULTICLASS_NOISE_SCALE, None) if where == FAR else (1, (0.0, 1.0))
    noise = scale * study.draw_noise(0)[:count]
    parts = [pgd_confident(module, part, bounds=bounds) for part in torch.split(noise, IMAGES_PER_BATCH)]
    return study.network.extract_features(torch.cat(parts))


def attacked_sets(study: Study) -> dict[str, OutlierSet]:
    """Return noise and far-away noise, both attacked on the plain network."""
    count = study.problem.noise_points
    return {
        where: OutlierSet(attack(study, study.network.whole, where, count), where) for where in (NEAR, FAR)
    }


def evaluate_adaptive_attacks(study: Study) -> ood.Scores:
    """Return the scores of each method under an attack on that method, in the first trial."""
    scores: ood.Scores = {NEAR: {}, FAR: {}}
    _, rows = study.split(0)
    for key, method in track(study.methods.items(), "attacking each method", study.progress):
        if isinstance(method, (Linearised, Detector)):
            continue
        count = ADAPTIVE_POINTS_OF_AVERAGES if isinstance(method, SampledNetworks) else ADAPTIVE_POINTS
        module = method.as_module(study.chosen[0][key])
        inside = study.rate(key, study.test, 0).rows(rows)
        for where, found in scores.items():
            outside = study.rate(key, attack(study, module, where, count), 0)
            found[key] = {name: [value] for name, value in ood.tell_apart(inside, outside).items()}
    return {f"{where}, on the method itself": found for where, found in scores.items()}
