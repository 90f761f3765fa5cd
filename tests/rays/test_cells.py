"""Bounds on cells: no confidence at any δ of a cell exceeds them, and they are tight on narrow cells."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitbayes.rays.cells import near_bound
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
