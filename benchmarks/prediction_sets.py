"""Prediction sets on digits, a noisy table and CIFAR-10: their coverage, and their size beside MAPIE's.

    python benchmarks/prediction_sets.py [--draws N] [--peer-draws N] [--cifar10 FOLDER]

The test data without tuning points are the population. Calibration sets of 200 points are drawn from it with
replacement. The quantile is then that of a j-th smallest of n uniform numbers U, and the share lost of N
points ⌊N·U⌋/N: so the mean coverage is from `coverage` to `coverage + 1/(n + 1) + 1/N`, and the limits of
its mean over draws are printed. Sizes are means over the population, of the same draws and probabilities for
both libraries, first without refused inputs, which MAPIE does not have. Prints the tables of
docs/decisions.md. CIFAR-10 takes part if the folder of its files is given; its network is trained first.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from mapie.classification import SplitConformalClassifier
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

import bitbayes as bb
from bitbayes.decisions.conformal import check_coverage, conformal_quantile
from bitbayes.decisions.prediction_sets import METHODS
from bitbayes.errors import EdgeWarning
from bitbayes.toys import digits, digits_lenet
from cifar10_network import cifar10, cifar10_network
from residual import tables, trained

COVERAGES = (0.9, 0.95, 0.99)
CALIBRATION, TUNING = 200, 300
TABLE, CIFAR10 = "20% of labels flipped", "CIFAR-10"
# How far the mean over draws may be from its expectation, in deviations: 1 of 15,000 is further.
DEVIATIONS = 4.0


class Problem(NamedTuple):
    """A tuned posterior, the population that calibration sets are drawn from, and inputs far from it."""

    name: str
    bayes: bb.Laplace
    x: Tensor
    y: Tensor
    far: dict[str, Tensor]


class Prefit(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are the probabilities, for MAPIE."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, x: np.ndarray, y: np.ndarray) -> Prefit:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--peer-draws", type=int, default=50, help="so many of these are given to MAPIE")
    add_cifar10_option(parser)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", EdgeWarning)
    kept = list(problems(arguments.cifar10))
    print_coverage(kept, arguments.draws)
    print_sizes(kept, arguments.peer_draws)
    print_far(kept)


def add_cifar10_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cifar10", type=Path, metavar="FOLDER", help="the folder that holds CIFAR-10")


def problems(cifar10_folder: Path | None = None) -> Iterator[Problem]:
    data, generator = digits(), torch.Generator().manual_seed(0)
    bayes = bb.Laplace(digits_lenet()).fit([(data.train_images, data.train_labels)], progress=False)
    x, y = data.test_images, data.test_labels
    far = {"noise": torch.rand(x.shape, generator=generator), "inverted": 1 - x}
    far |= {"clothes": data.fashion_images, "letters": data.letters_images}
    yield problem("digits", bayes, x, y, far)
    rows, labels = tables()[TABLE]
    order = np.random.RandomState(0).permutation(len(rows))
    train, rest = order[:700], order[700:]
    rows = (rows - rows[train].mean(0)) / rows[train].std(0)
    x, y = torch.tensor(rows).float(), torch.tensor(labels)
    bayes = bb.Laplace(trained(x[train], y[train], 0)).fit([(x[train], y[train])], progress=False)
    x, y = x[rest], y[rest]
    yield problem(TABLE, bayes, x, y, {"× 10": 10 * x, "× 1,000": 1000 * x})
    if cifar10_folder is None:
        return
    parts = cifar10(cifar10_folder)
    network, (x, y) = cifar10_network(*parts["train"]), parts["test"]
    loader = [(x, y) for x, y in zip(*(each.split(500) for each in parts["train"]), strict=True)]
    far = {"noise": torch.rand(1000, *x.shape[1:], generator=generator), "× 10": 10 * x[:1000]}
    yield problem(CIFAR10, bb.Laplace(network).fit(loader, progress=False), x, y, far, tuning=1000)


def problem(
    name: str, bayes: bb.Laplace, x: Tensor, y: Tensor, far: dict[str, Tensor], tuning: int = TUNING
) -> Problem:
    bayes.tune([(x[:tuning], y[:tuning])], progress=False)
    return Problem(name, bayes, x[tuning:], y[tuning:], far)


def calibration_sets(count: int, draws: int) -> Iterator[Tensor]:
    for draw in range(draws):
        yield torch.randint(count, (CALIBRATION,), generator=torch.Generator().manual_seed(draw))


def print_coverage(kept: list[Problem], draws: int) -> None:
    print(f"Coverage of the population, the mean over {draws:,} calibration sets of {CALIBRATION} points:\n")
    print("| data | asked for | expected | limits of the mean | lac | aps | raps | in the limits |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for name, bayes, x, y, _ in kept:
        probabilities, rows = bayes.predict_proba(x), torch.arange(len(x))
        check_calls(bayes, x, y, probabilities)
        for coverage in COVERAGES:
            exact, found = check_coverage(coverage), []
            for method in METHODS.values():
                own = method(probabilities)[rows, y]
                covered = [
                    (own >= conformal_quantile(own[each], exact)).double().mean()
                    for each in calibration_sets(len(x), draws)
                ]
                found.append(float(torch.stack(covered).mean()))
            expected, deviation = law(len(x), exact)
            off = DEVIATIONS * deviation / math.sqrt(draws)
            ok = all(expected - off <= each <= expected + off for each in found)
            assert coverage <= expected <= coverage + 1 / (CALIBRATION + 1) + 1 / len(x)
            cells = " | ".join(f"{each:.4f}" for each in found)
            limits = f"{expected - off:.4f} to {expected + off:.4f}"
            print(f"| {name} | {coverage} | {expected:.4f} | {limits} | {cells} | {'yes' if ok else 'NO'} |")


def law(count: int, coverage: Fraction) -> tuple[float, float]:
    """Mean and deviation of 1 − ⌊N·U⌋/N, with U the j-th smallest of n uniform numbers."""
    rank = math.floor((CALIBRATION + 1) * (1 - coverage))
    edges = stats.beta(rank, CALIBRATION + 1 - rank).cdf(np.arange(count + 1) / count)
    chances, values = np.diff(edges), 1 - np.arange(count) / count
    mean = float(chances @ values)
    return mean, math.sqrt(float(chances @ values**2) - mean**2)


def check_calls(bayes: bb.Laplace, x: Tensor, y: Tensor, probabilities: Tensor) -> None:
    """That `sets` does what is computed here from the probabilities."""
    drawn = next(calibration_sets(len(x), 1))
    for name, method in METHODS.items():
        sets = bayes.sets([(x[drawn], y[drawn])], 0.95, name, threshold=-math.inf, progress=False)
        own = method(probabilities)
        quantile = conformal_quantile(own[drawn, y[drawn]], check_coverage(0.95))
        assert abs(sets.quantile - float(quantile)) < 1e-6
        assert float((sets(x) == (own >= quantile)).double().mean()) > 0.999  # batches round differently


def print_sizes(kept: list[Problem], draws: int) -> None:
    print(f"\nMean set sizes over {draws} calibration sets, bitbayes / MAPIE, and coverages of the same:\n")
    print("| data | coverage | lac | aps | raps | coverage: lac | aps | raps |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, bayes, x, y, _ in kept:
        probabilities = bayes.predict_proba(x).double()
        probabilities /= probabilities.sum(1, keepdim=True)
        for coverage in COVERAGES:
            sizes, covered = [], []
            for method in METHODS:
                request = probabilities, y, draws, coverage, method
                own, peer = of_bitbayes(*request), of_mapie(*request)
                larger = " LARGER" if peer and own[0] > peer[0] else ""
                theirs = [f"{each:.3f}" for each in peer] if peer else ["too few points", "–"]
                sizes.append(f"{own[0]:.3f} / {theirs[0]}{larger}")
                covered.append(f"{own[1]:.3f} / {theirs[1]}")
            print(f"| {name} | {coverage} | {' | '.join(sizes)} | {' | '.join(covered)} |", flush=True)


def of_bitbayes(
    probabilities: Tensor, y: Tensor, draws: int, coverage: float, method: str
) -> tuple[float, float]:
    """Mean size and coverage of the sets."""
    own, exact = METHODS[method](probabilities), check_coverage(coverage)
    quantiles = [conformal_quantile(own[each, y[each]], exact) for each in calibration_sets(len(y), draws)]
    return mean_of([measured(own >= each, y) for each in quantiles])


def of_mapie(
    probabilities: Tensor, y: Tensor, draws: int, coverage: float, method: str
) -> tuple[float, float] | None:
    """The same, by MAPIE; None if it refuses: "raps" splits a fifth of the points off."""
    p, labels, found = probabilities.numpy(), y.numpy(), []
    if method == "raps" and 1 / (1 - coverage) >= CALIBRATION / 5:
        return None
    for drawn in calibration_sets(len(y), draws):
        peer = SplitConformalClassifier(
            Prefit(p.shape[1]), confidence_level=coverage, conformity_score=method, random_state=0
        )
        peer.conformalize(p[drawn], labels[drawn])
        found.append(measured(torch.tensor(peer.predict_set(p)[1][:, :, 0]), y))
    return mean_of(found)


def mean_of(found: list[tuple[float, float]]) -> tuple[float, float]:
    sizes, covered = zip(*found, strict=True)
    return float(np.mean(sizes)), float(np.mean(covered))


def measured(sets: Tensor, y: Tensor) -> tuple[float, float]:
    covered = sets[torch.arange(len(y)), y].double().mean()
    return float(sets.double().sum(1).mean()), float(covered)


def print_far(kept: list[Problem]) -> None:
    print("\nAt 95% (lac), with the default threshold, and with one that accepts 95% of the same points:\n")
    print("| data | inputs | full sets | at 95% accepted | mean size on the data |")
    print("|---|---|--:|--:|--:|")
    for name, bayes, x, y, far in kept:
        drawn = next(calibration_sets(len(x), 1))
        calibration = [(x[drawn], y[drawn])]
        sets = bayes.sets(calibration, progress=False)
        stricter = bayes.sets(calibration, threshold=bayes.threshold(x[drawn], accept=0.95), progress=False)
        size = f"{measured(sets(x), y)[0]:.3f}"
        for kind, inputs in {"the data": x, **far}.items():
            full = [float(each(inputs).all(1).double().mean()) for each in (sets, stricter)]
            print(
                f"| {name} | {kind} | {full[0]:.1%} | {full[1]:.1%} | {size if kind == 'the data' else ''} |"
            )


if __name__ == "__main__":
    main()
