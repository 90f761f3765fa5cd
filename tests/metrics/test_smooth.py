"""The smooth calibration error against a dense sum of kernels, and against the reference implementation."""

import math

import pytest
import torch

from bitbayes import metrics
from metric_cases import EXACT, case, scores

CELL = 1 / 8192


def dense_integral(confidence, residuals, sigma, cells=4000):
    """∫₀¹ |Σᵢ K_σ(t, cᵢ) rᵢ| dt by the trapezoid rule, the kernel as a sum over its images."""
    t = torch.linspace(0, 1, cells + 1, dtype=torch.float64)
    r = torch.zeros_like(t)
    for c, residual in zip(confidence, residuals, strict=True):
        for image in range(-8, 9):
            for place in (2 * image + c, 2 * image - c):
                r += residual * (-((t - place) / sigma).square() / 2).exp()
    return float(torch.trapezoid(r.abs(), t)) / (sigma * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sharpness", [0.5, 1.0, 5.0])
def test_the_bandwidth_is_the_dense_integral_at_itself(sharpness, weighted):
    probs, labels = case(n=60, k=3, sharpness=sharpness)
    probs[0], probs[1] = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0]) / 3
    weights = (torch.arange(60) % 3).double() if weighted else torch.ones(60, dtype=torch.float64)
    confidence, guess = probs.max(1)
    residuals = weights * ((guess == labels).double() - confidence) / weights.sum()
    found = metrics.smooth_ece(probs, labels, weights=weights)
    assert 0.01 < found < 0.4
    # What the docstring allows for the grid, and the same for the grid of the oracle.
    off = ((CELL / found) ** 2 + (1 / 4000 / found) ** 2) / 2 * residuals.abs().sum().item()
    assert dense_integral(confidence.tolist(), residuals.tolist(), found) == pytest.approx(found, abs=off)


def spread(n, low, power):
    """Confidences from `low` to 1, and labels that are right with the probability confidence^power, roughly.

    Multiples of irrational numbers, so that nothing depends on a generator.
    """
    i = torch.arange(1, n + 1, dtype=torch.float64)
    confidence = low + (1 - low) * (i * 0.6180339887498949 % 1)
    right = i * 0.7548776662466927 % 1 < confidence**power
    return torch.cat([confidence[:, None], ((1 - confidence) / 8)[:, None].expand(n, 8)], 1), (~right).long()


@pytest.mark.parametrize(
    "points, reference",
    [
        ((20, 0.5, 4.0), 0.2943273571026765),
        ((200, 0.5, 1.0), 0.02395585676668138),
        ((200, 0.5, 2.0), 0.1608820649171933),
        ((2000, 0.5, 1.0), 0.006350492356532068),
        ((2000, 0.9, 3.0), 0.0900770147444514),
        ((5000, 0.25, 0.5), 0.15276104167937818),
    ],
)
def test_it_agrees_with_the_reference_implementation(points, reference):
    """Numbers of relplot 1.0.3, `smECE(confidence, right)`. It halves the bandwidth's interval ten times."""
    assert metrics.smooth_ece(*spread(*points)) == pytest.approx(reference, abs=2**-10)


def test_one_confidence_has_its_gap():
    # Residuals of one sign at each place: the integral is their sum for any bandwidth.
    labels = torch.tensor([0] * 6 + [1] * 4)
    assert metrics.smooth_ece(scores(0.9).expand(10, 2), labels) == pytest.approx(0.3, abs=1e-11)
    assert metrics.smooth_ece(scores(0.6).expand(10, 2), labels) == pytest.approx(0, abs=EXACT)


def test_it_is_continuous_where_a_confidence_crosses_the_edge_of_a_bin():
    below, above = scores(0.8 - 1e-6, 0.79), scores(0.8 + 1e-6, 0.79)
    labels = torch.tensor([0, 1])
    assert abs(metrics.ece(below, labels) - metrics.ece(above, labels)) > 0.1
    change = abs(metrics.smooth_ece(below, labels) - metrics.smooth_ece(above, labels))
    assert 0 < change < 1e-5


def test_a_weight_counts_like_repeated_points():
    probs, labels = case(n=40)
    times = torch.arange(40) % 3
    repeated = metrics.smooth_ece(probs.repeat_interleave(times, 0), labels.repeat_interleave(times))
    assert metrics.smooth_ece(probs, labels, weights=times) == pytest.approx(repeated, abs=1e-10)
    assert metrics.smooth_ece(probs, labels) != pytest.approx(repeated, abs=1e-4)


def test_below_the_smallest_bandwidth_it_is_the_integral_there():
    probs = scores(0.9996, 0.9996, 0.9998)
    # All residuals are positive: the integral is their mean, whatever the bandwidth.
    assert metrics.smooth_ece(probs, torch.zeros(3, dtype=torch.long)) == pytest.approx(1e-3 / 3, abs=EXACT)


def test_a_bandwidth_of_little_more_than_the_smallest_is_found():
    """Gaps of 0.0025 and −0.0025 at confidences 0.0025 apart."""
    probs, labels = scores(0.9, 0.9, 0.9025, 0.9025), torch.tensor([0, 1, 0, 1])
    weights = torch.tensor([902.5, 97.5, 900.0, 100.0], dtype=torch.float64)
    found = metrics.smooth_ece(probs, labels, weights=weights)
    assert 0.001 < found < 0.002
    residuals = weights * ((labels == 0).double() - probs[:, 0]) / weights.sum()
    # Of one place the residuals are one: what the docstring allows, of their sums.
    off = (CELL / found) ** 2 / 2 * 0.0025
    dense = dense_integral(probs[:, 0].tolist(), residuals.tolist(), found, cells=100_000)
    assert dense == pytest.approx(found, abs=off)
