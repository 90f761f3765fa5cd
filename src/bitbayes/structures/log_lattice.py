"""Interpolation of functions of a logarithm between the points of an even lattice.

1/(1 + ρβ) and log(1 + ρβ), for any β ≥ 0, are functions of x = log ρ which are analytic up to a distance of π
from the real line. So are their sums. A polynomial through the 16 nearest points, which are a quarter apart,
has an error of about 2·∏|x − xⱼ|/π¹⁷ = 1e-10. Where the function falls like 1/ρ, this is the relative error.
"""

import math

import torch
from torch import Tensor

STEP, POINTS = 0.25, 16


def lattice(low: float, high: float) -> list[float]:
    """Return the points of a lattice that starts at `low` and ends half a polynomial beyond `high`.

    >>> len(lattice(0.0, 10.0)), lattice(0.0, 10.0)[1]
    (49, 0.25)
    """
    count = max(POINTS, math.ceil(max(0.0, high - low) / STEP) + POINTS // 2 + 1)
    return [low + STEP * i for i in range(count)]


def interpolation(x: Tensor, points: list[float]) -> Tensor:
    """Return weights (m, count) with f(x) ≈ weights @ f(points), differentiable in x (m,).

    Below the first point f is taken to be constant.
    """
    places = ((x - points[0]) / STEP).clamp(0, len(points) - 1)
    first = (places.detach().floor() - (POINTS // 2 - 1)).clamp(0, len(points) - POINTS)
    steps = torch.arange(POINTS, dtype=x.dtype, device=x.device)
    gaps = (places - first)[:, None] - steps  # (m, POINTS)
    one = torch.ones_like(gaps[:, :1])
    # Lagrange's polynomials: all gaps before a point, and all behind it.
    before = torch.cat([one, gaps[:, :-1]], dim=1).cumprod(1)
    behind = torch.cat([one, gaps.flip(1)[:, :-1]], dim=1).cumprod(1).flip(1)
    weights = before * behind / _divisors().to(x)
    columns = first.long()[:, None] + steps.long()
    return weights.new_zeros(len(x), len(points)).scatter(1, columns, weights)


def _divisors() -> Tensor:
    """Return ∏ (j − i) over all i ≠ j, (POINTS,)."""
    last = POINTS - 1
    found = [(-1) ** (last - j) * math.factorial(j) * math.factorial(last - j) for j in range(POINTS)]
    return torch.tensor(found, dtype=torch.float64)
