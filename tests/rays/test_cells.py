"""Bounds on cells: no confidence at any δ of a cell exceeds them, and they are tight on narrow cells."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitbayes.closed_forms import KAPPA
from bitbayes.likelihoods import likelihood_for
from bitbayes.rays.cells import Range, _largest, near_bound
from ray_cases import CERTIFIED, NETWORKS, STRUCTURES, chosen_residual, laplace, largest_beyond


def bound_of(bayes, x, low, high):
    """The bound of `near_bound` for one cell on each ray."""
    predictor, predictive = bayes._current_predictor(), bayes._predictive()
    ray, *others = predictor.rays(x, find_alpha=True, tolerance=0.0)
    assert not others
    bound = near_bound(ray, x, predictor.residual, predictive.likelihood, predictive.name)
    with torch.no_grad():
        return bound(torch.arange(len(x)), low, high)


def on_cells(low, high, count):
    return low + torch.linspace(0, 1, count, dtype=torch.float64)[:, None] * (high - low)


@given(
    name=st.sampled_from(list(NETWORKS)),
    case=st.sampled_from(CERTIFIED),
    layers=st.sampled_from(["last", "all"]),
    structure=st.sampled_from(STRUCTURES[:3]),
    prior_variance=st.sampled_from([1e-3, 0.1, 10.0]),
    near=st.sampled_from([1e-6, 1e-2, 10.0]),
    beyond=st.sampled_from([0.0, 1.0]),
    temperature=st.sampled_from([0.1, 1.0, 5.0]),
    width=st.sampled_from([0.0, 1e-3, 0.1, 2.0]),
    seed=st.integers(0, 10_000),
)
def test_no_confidence_on_a_cell_exceeds_its_bound(
    name, case, layers, structure, prior_variance, near, beyond, temperature, width, seed
):
    k, method = case
    if layers == "all" and structure == "full":
        structure = "kron"
    options = {"layers": layers, "structure": structure, "predictive": method, "residual": True}
    bayes, x = laplace(name, k, n=6, seed=seed, prior_variance=prior_variance, **options)
    chosen_residual(bayes, near, beyond, seed, shortest=0.1)
    bayes.temperature = temperature
    low = torch.tensor([0.0, 0.1, 0.5, 1.0, 3.0, 20.0], dtype=torch.float64)
    high = low * (1 + width) + 0.1 * width
    found = bound_of(bayes, x, low, high)
    assert bool((found + 1e-9 >= largest_beyond(bayes, x, on_cells(low, high, 15))).all())


@pytest.mark.parametrize("k, method", CERTIFIED)
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_on_narrow_cells_are_tight_for_the_last_layer(name, k, method):
    bayes, x = laplace(name, k, n=6, predictive=method, prior_variance=0.5, residual=True)
    chosen_residual(bayes, 0.3, 2.0)
    low = torch.tensor([0.01, 0.1, 0.5, 1.0, 3.0, 20.0], dtype=torch.float64)
    largest = largest_beyond(bayes, x, on_cells(low, low, 1))
    torch.testing.assert_close(bound_of(bayes, x, low, low), largest, rtol=0, atol=1e-9)
    gap = bound_of(bayes, x, low, 1.001 * low) - largest
    assert float(gap.min()) + 1e-9 >= 0 and float(gap.max()) <= 0.005


def test_cells_in_batches_have_the_same_bounds(monkeypatch):
    bayes, x = laplace("convnet", 3, n=8, residual=True)
    chosen_residual(bayes, 0.3, 2.0)
    low = torch.linspace(0.1, 3, 8, dtype=torch.float64)
    whole = bound_of(bayes, x, low, 1.1 * low)
    monkeypatch.setattr("bitbayes.rays.cells.PAIR_NUMBERS_PER_BATCH", 27)
    torch.testing.assert_close(bound_of(bayes, x, low, 1.1 * low), whole)


def confidence(means, variances, k, method):
    """The confidence (c,) from means and κ·variances, (c, k) or (c, k, k), by the definitions."""
    z = means / (1 + variances).sqrt()
    if method == "quadrature":
        nodes = torch.linspace(-9, 9, 201, dtype=torch.float64)
        density = (-nodes.square() / 2).exp() / (-nodes.square() / 2).exp().sum()
        return ((means.abs() + (variances / KAPPA).sqrt() * nodes).sigmoid() * density).sum(1)
    if method == "pairwise":
        return (1 / (-z).exp().sum(2)).div((1 / (-z).exp().sum(2)).sum(1, keepdim=True)).amax(1)
    return z.abs().sigmoid()[:, 0] if k == 1 else z.softmax(1).amax(1)


@pytest.mark.parametrize("k, method", CERTIFIED)
def test_no_means_and_variances_in_their_ranges_exceed_the_bound(k, method):
    """Means and variances are drawn from the ends of their ranges. A class with little variance may lead."""
    torch.manual_seed(0)
    shape = (2000, k, k) if method == "pairwise" else (2000, k)

    def ends():
        chosen = torch.randint(0, 2, shape).double()
        return chosen.triu(1) + chosen.triu(1).mT if method == "pairwise" else chosen

    middle, slope = torch.randn(2, *shape, dtype=torch.float64)
    if method == "pairwise":
        middle, slope = middle - middle.mT, slope - slope.mT
    sizes = 0.3 * torch.rand(3, *shape, dtype=torch.float64)
    sizes = sizes + sizes.mT if method == "pairwise" else sizes
    radius, low, width = sizes[0], 10 * sizes[1], 100 * sizes[2] ** 2
    slope = 0.1 * slope
    found = _largest((slope, middle, radius), Range(low, low + width), likelihood_for(k), method)
    largest = torch.zeros(2000, dtype=torch.float64)
    for _ in range(200):
        sign, error = 2 * torch.randint(0, 2, (2000, *[1] * (len(shape) - 1))) - 1, radius * (2 * ends() - 1)
        if method == "pairwise":
            error = error.triu(1) - error.triu(1).mT
        drawn = confidence(middle + sign * slope + error, low + width * ends(), k, method)
        largest = torch.maximum(largest, drawn)
    assert bool((found >= largest - 1e-9).all())
    assert float((found - largest).median()) <= (1e-9 if k <= 2 else 0.1)
