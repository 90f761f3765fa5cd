"""The shift test on rotated digits: how often it raises an alarm, and how often it does without a shift.

    python benchmarks/shift_test.py [--draws N]

The test digits without tuning points are scored once at each angle. Each draw takes calibration points and a
batch of others from them at random. Without rotation both are then drawn alike, and the number of alarms at
5% is at most binomial: limits that are left with a probability of 0.01 on each side are printed. Prints the
tables of docs/decisions.md.
"""

from __future__ import annotations

import argparse
import math
from bisect import bisect_right

import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

import bitbayes as bb
from bitbayes.decisions.shift_test import LEVEL, ShiftTest, detectable_auroc, exact_tail
from bitbayes.toys import digits, digits_lenet

ANGLES = (0, 10, 20, 30, 40, 50, 60)
TUNING = 300
CALIBRATIONS, BATCHES = (200, 1000), (20, 50, 200)
# For the rate of false alarms of one calibration set: so many sets, and so many batches for each.
FIXED_SETS, FIXED_BATCHES = 1000, 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    data = digits()
    bayes = bb.Laplace(digits_lenet()).fit([(data.train_images, data.train_labels)], progress=False)
    bayes.tune([(data.test_images[:TUNING], data.test_labels[:TUNING])], progress=False)
    x, y = data.test_images[TUNING:], data.test_labels[TUNING:]
    rotated = {angle: rotate(x, angle) for angle in ANGLES}
    scores = {angle: bayes.score(images) for angle, images in rotated.items()}
    right = {angle: bayes.predict_proba(images).argmax(1) == y for angle, images in rotated.items()}
    check_calls(bayes, rotated, scores)
    print_detectable()
    for n in CALIBRATIONS:
        print_power(scores, right, n, draws)
    print_false_alarms(scores[0], draws)
    print_one_set(scores[0])


def rotate(images: Tensor, degrees: float) -> Tensor:
    """The images (n, 1, h, w), turned about their centre; black comes in at the corners."""
    turn = math.radians(degrees)
    matrix = torch.tensor([[math.cos(turn), -math.sin(turn), 0.0], [math.sin(turn), math.cos(turn), 0.0]])
    grid = functional.affine_grid(matrix.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, align_corners=False)


def check_calls(bayes: bb.Laplace, rotated: dict[int, Tensor], scores: dict[int, Tensor]) -> None:
    """That `shift_test` does what is computed here from the scores."""
    test = bayes.shift_test(rotated[0][:200])
    for angle in ANGLES:
        found, expected = test(rotated[angle][200:220]), of(scores[0][:200]).of(scores[angle][200:220])
        assert abs(found.p_value - expected.p_value) < 1e-3  # batches round differently


def of(scores: Tensor) -> ShiftTest:
    return ShiftTest(scores.double().sort().values, None)  # type: ignore[arg-type]


def print_detectable() -> None:
    sizes = (1, 5, 20, 50, 100, 500)
    print("Detectable AUROC (5%, power 80%):\n")
    print(f"| calibration points | {' | '.join(f'batch of {m}' for m in sizes)} |")
    print(f"|--:|{'--:|' * len(sizes)}")
    for n in (100, 200, 1000, 10000):
        print(f"| {n:,} | {' | '.join(f'{detectable_auroc(m, n):.3f}' for m in sizes)} |")


def p_values(known: Tensor, new: Tensor, n: int, m: int, draws: int) -> list[float]:
    """Of so many draws: n points with their known scores, and m others with their new ones."""
    found = []
    for draw in range(draws):
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(draw))
        found.append(of(known[order[:n]]).of(new[order[n : n + m]]).p_value)
    return found


def print_power(scores: dict[int, Tensor], right: dict[int, Tensor], n: int, draws: int) -> None:
    print(f"\nShare of {draws:,} draws with p ≤ {LEVEL}, {n:,} calibration points:\n")
    limits = " | ".join(f"batch of {m} ({detectable_auroc(m, n):.2f})" for m in BATCHES)
    print(f"| angle | accuracy | AUROC | {limits} |")
    print(f"|--:|--:|--:|{'--:|' * len(BATCHES)}")
    for angle in ANGLES:
        shares = []
        for m in BATCHES:
            found = p_values(scores[0], scores[angle], n, m, draws)
            shares.append(sum(p <= LEVEL for p in found) / draws)
        cells = " | ".join(f"{each:.1%}" for each in shares)
        auroc = bb.metrics.auroc(scores[0], scores[angle])
        accuracy = float(right[angle].double().mean())
        print(f"| {angle}° | {accuracy:.1%} | {auroc:.3f} | {cells} |", flush=True)


def print_false_alarms(scores: Tensor, draws: int) -> None:
    low, high = (stats.binom(draws, LEVEL).ppf(each) / draws for each in (0.01, 0.99))
    print(f"\nFalse alarms of {draws:,} draws; limits at exactly 5%: {low:.1%} to {high:.1%}\n")
    print("| calibration points | batch | alarms | at most the upper limit |")
    print("|--:|--:|--:|---|")
    for n in CALIBRATIONS:
        for m in (1, 5, *BATCHES):
            share = sum(p <= LEVEL for p in p_values(scores, scores, n, m, draws)) / draws
            print(f"| {n:,} | {m} | {share:.1%} | {'yes' if share <= high else 'NO'} |", flush=True)


def print_one_set(scores: Tensor) -> None:
    """Rates of false alarms of one calibration set: 5% is the mean over all sets.

    Points are drawn with replacement, so that a calibration set says nothing of the points of the batches.
    """
    print(f"\nFalse alarms of one calibration set: the middle 95% of {FIXED_SETS:,} sets\n")
    print("| calibration points | batch | mean | from | to |")
    print("|--:|--:|--:|--:|--:|")
    generator = torch.Generator().manual_seed(0)
    for n, m in ((200, 20), (200, 50), (1000, 20), (1000, 50), (1000, 200), (5000, 20), (5000, 50)):
        # The largest U with p ≤ 5%.
        most = bisect_right(range(m * n), LEVEL, key=lambda u, m=m, n=n: exact_tail(m, n, u)) - 1
        rates = []
        for _ in range(FIXED_SETS):
            known = scores[torch.randint(len(scores), (n,), generator=generator)].sort().values
            ranks = torch.searchsorted(known, scores, right=True)
            batches = torch.randint(len(scores), (FIXED_BATCHES, m), generator=generator)
            rates.append(float((ranks[batches].sum(1) <= most).double().mean()))
        found = torch.tensor(rates)
        low, high = found.quantile(torch.tensor([0.025, 0.975])).tolist()
        print(f"| {n:,} | {m} | {float(found.mean()):.1%} | {low:.1%} | {high:.1%} |", flush=True)


if __name__ == "__main__":
    main()
