"""Promised risks on digits, a noisy table and CIFAR-10: how often they are exceeded, and what is accepted.

    python benchmarks/risk.py [--draws N] [--cifar10 FOLDER]

The test data without tuning points are the population. Calibration sets are drawn from it with replacement.
The risk of a threshold is that of the whole population, known exactly: the share of wrong predictions, or the
mean cost, among all inputs that it accepts. Where no threshold can promise the risk, there is an error, which
exceeds nothing and accepts nothing. Prints the table of docs/decisions.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from bitbayes.decisions.risk_threshold import RiskThreshold, decisions
from bitbayes.errors import DataError, EdgeWarning
from bitbayes.tuned import TunedData
from prediction_sets import CIFAR10, TABLE, Problem, add_cifar10_option, problems

LEVEL = 0.95
RISKS = {"digits": (0.01, 0.02, 0.05), TABLE: (0.2, 0.25, 0.3), CIFAR10: (0.05, 0.1, 0.2)}
# Costs of a mistake and of asking a person, who is always right: the last action.
MISTAKE, ASKED = 1.0, 0.3
COSTS = {"digits": (0.01, 0.02, 0.05), TABLE: (0.2, 0.25, 0.28), CIFAR10: (0.05, 0.1, 0.15)}
# What is tested, and how many calibration points there are.
KINDS = {"tuned": (300, 1000), "fixed grid": (1000,), "costs": (1000,)}


class Found(NamedTuple):
    """Of each calibration set: the risk of the population, and the share of it that is accepted."""

    risks: list[float]
    shares: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    add_cifar10_option(parser)
    options = parser.parse_args()
    draws = options.draws
    warnings.simplefilter("ignore", EdgeWarning)
    low, high = stats.binom.interval(0.999, draws, 1 - LEVEL)
    print(
        f"Of {draws:,} calibration sets, how many exceed the risk on the population. The chance of each is "
        f"at most {1 - LEVEL:.0%}: if it were exactly that, {low:.0f} to {high:.0f} would (99.9%).\n"
    )
    print("| data | thresholds | risk | points | exceeded | at most | promised | accepted | risk there |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for each in problems(options.cifar10):
        probabilities = each.bayes.predict_proba(each.x)
        check_call(each, probabilities)
        for kind, sizes in KINDS.items():
            for risk in (COSTS if kind == "costs" else RISKS)[each.name]:
                for size in sizes:
                    print_row(each, probabilities, kind, risk, size, draws, high)


def print_row(
    each: Problem, probabilities: Tensor, kind: str, risk: float, size: int, draws: int, most: float
) -> None:
    loss = costs(probabilities.shape[1]) if kind == "costs" else None
    tuned = each.bayes._tuned if kind == "tuned" else None
    found = measured(probabilities, each.y, risk, size, draws, loss, tuned)
    exceeded, made = sum(own > risk for own in found.risks), len(found.risks)
    verdict = "" if exceeded <= most else " TOO OFTEN"
    mean = f"{sum(found.risks) / made:.4f}" if made else "–"
    print(
        f"| {each.name} | {kind} | {risk:g} | {size:,} | {exceeded}{verdict} | {most:.0f} | "
        f"{made / draws:.1%} | {sum(found.shares) / draws:.1%} | {mean} |",
        flush=True,
    )


def measured(
    probabilities: Tensor,
    y: Tensor,
    risk: float,
    size: int,
    draws: int,
    loss: tuple[tuple[float, ...], ...] | None,
    tuned: TunedData | None,
) -> Found:
    action, confidence = decisions(probabilities, loss)
    lost = (action != y).double() if loss is None else torch.tensor(loss).double()[y, action]
    risks, shares = [], []
    for drawn in calibration_sets(len(y), size, draws):
        try:
            t = RiskThreshold.of(
                probabilities[drawn], y[drawn], risk=risk, level=LEVEL, loss=loss, tuned=tuned
            )
        except DataError:
            continue
        accepted = confidence >= t
        risks.append(float(lost[accepted].mean()))
        shares.append(float(accepted.double().mean()))
    return Found(risks, shares)


def calibration_sets(count: int, size: int, draws: int) -> Iterator[Tensor]:
    for draw in range(draws):
        yield torch.randint(count, (size,), generator=torch.Generator().manual_seed(draw))


def costs(classes: int) -> tuple[tuple[float, ...], ...]:
    """A mistake costs `MISTAKE`, and the last action, to ask a person, `ASKED`."""
    rows = MISTAKE * (1 - torch.eye(classes))
    return tuple((*row, ASKED) for row in rows.tolist())


def check_call(each: Problem, probabilities: Tensor) -> None:
    """That `threshold` does what is computed here from the probabilities."""
    drawn = next(calibration_sets(len(each.y), 1000, 1))
    risk = RISKS[each.name][-1]
    t = each.bayes.threshold([(each.x[drawn], each.y[drawn])], risk=risk, level=LEVEL, progress=False)
    own = RiskThreshold.of(
        probabilities[drawn], each.y[drawn], risk=risk, level=LEVEL, tuned=each.bayes._tuned
    )
    assert abs(t - own) < 1e-6 and abs(t.accepted - own.accepted) <= 1  # batches round differently


if __name__ == "__main__":
    main()
