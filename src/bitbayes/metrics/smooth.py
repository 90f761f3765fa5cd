"""A calibration error without bins."""

import math

import torch
from torch import Tensor

from bitbayes.metrics.checks import check_labels, check_probs, confidence_of, correct_of, weights_or_ones

# Cells of the grid from 0 to 1. A power of two, for the fast Fourier transform.
CELLS = 8192
# The smallest bandwidth, eight cells.
SMALLEST_BANDWIDTH = 1e-3
# The interval of the bandwidth, at first from 0 to 1, is halved so many times.
HALVINGS = 40


def smooth_ece(probs: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> float:
    """Return the smooth calibration error of Błasiok and Nakkiran (2023): σ with σ = ∫₀¹ |r_σ(t)| dt.

    r_σ(t) = 1/n Σᵢ K_σ(t, cᵢ)·([prediction right] − cᵢ), with the confidences cᵢ. K_σ is the Gaussian kernel
    of deviation σ, reflected at 0 and at 1. The integral does not grow with σ, so there is one such σ.

    It has no bins, so it is continuous in the probabilities, which `ece` is not: there a confidence that
    crosses the edge of a bin makes a jump. It is at most the mean of |[prediction right] − c|. A bandwidth
    below 0.001 is not tried. Below it, the result is the integral at 0.001.

    The residuals are put on a grid of 8,192 cells. This changes the result by less than ½(cell/σ)² of the
    mean of |[prediction right] − c|: by less than 10⁻⁴ of it from σ = 0.01 on.

    Args:
        probs: probabilities (n, k).
        labels: class numbers (n,).
        weights: how many times each point counts, (n,); once without them.

    >>> probs = torch.tensor([[0.75, 0.25]]).expand(4, 2)
    >>> round(smooth_ece(probs, torch.tensor([0, 0, 0, 1])), 6)
    0.0
    >>> round(smooth_ece(probs, torch.tensor([0, 0, 1, 1])), 6)
    0.25
    """
    probs = check_probs(probs)
    labels = check_labels(labels, probs)
    w = weights_or_ones(weights, len(probs))
    confidence = confidence_of(probs)  # (n,)
    residuals = w * (correct_of(probs, labels) - confidence) / w.sum()
    cosines = _cosine_sums(confidence, residuals)  # (CELLS + 1,)
    frequencies = math.pi * torch.arange(CELLS + 1, dtype=torch.float64)

    def integral(sigma: float) -> float:
        """∫₀¹ |r_σ(t)| dt; in its cosine series the kernel is a factor e^(−(πmσ)²/2) for each m."""
        smoothed = torch.fft.irfft(cosines * (-(sigma * frequencies).square() / 2).exp(), 2 * CELLS)
        return float(smoothed.abs().sum())

    low, high = SMALLEST_BANDWIDTH, 1.0
    at_smallest = integral(low)
    if at_smallest <= low:
        return at_smallest
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if integral(middle) > middle else (low, middle)
    return high


def _cosine_sums(places: Tensor, values: Tensor) -> Tensor:
    """Σᵢ valuesᵢ cos(πm·placeᵢ), m = 0, …, CELLS, of values (n,) at places from 0 to 1, put on the grid.

    Each value goes to the two points of the grid next to it, so that its place on average stays.
    """
    cell = (places * CELLS).long().clamp(max=CELLS - 1)
    share = places * CELLS - cell
    grid = torch.bincount(cell, weights=values * (1 - share), minlength=CELLS + 1)
    grid += torch.bincount(cell + 1, weights=values * share, minlength=CELLS + 1)
    # Reflected at 1, with the inner values halved, as they are there twice: (2·CELLS,).
    grid[1:-1] /= 2
    sums: Tensor = torch.fft.rfft(torch.cat((grid, grid[1:-1].flip(0)))).real
    return sums
