"""Prior variances: one for all layers or one for each, and the grid of candidates."""

import math

import pytest
import torch

from bitbayes.errors import ArgumentError
from bitbayes.prior import Prior, check_variance, differentiable, variance_grid


def test_candidates_are_spaced_evenly_in_the_logarithm():
    grid = torch.tensor(variance_grid(100), dtype=torch.float64).log()
    torch.testing.assert_close(grid.diff(), grid.diff()[:1].expand(len(grid) - 1), rtol=1e-9, atol=0)


@pytest.mark.parametrize("count", [2, 25, 55, 100])
def test_candidates_are_of_the_given_number_and_range(count):
    grid = variance_grid(count, 1e-3, 1e5)
    assert len(grid) == count and grid == sorted(grid)
    assert grid[0] == pytest.approx(1e-3) and grid[-1] == pytest.approx(1e5)


def test_one_variance_is_that_of_every_layer():
    prior = Prior(0.3)
    assert prior.of("conv") == prior.of("any other") == 0.3


def test_a_mapping_gives_each_layer_its_own_variance():
    prior = Prior({"conv": 0.5, "fc": 8.0})
    assert (prior.of("conv"), prior.of("fc")) == (0.5, 8.0)
    with pytest.raises(KeyError, match="head"):
        prior.of("head")


def test_a_tensor_keeps_its_graph():
    variance = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert Prior(variance).of("fc") is variance
    assert Prior({"fc": variance}).of("fc") is variance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variance", [1e-6, 0.3, 1.0, 83_000.0, 1e10])
def test_the_precision_is_the_inverse_of_the_variance(variance, dtype):
    for prior in (Prior(variance), Prior({"fc": variance, "conv": 7.0})):
        precision = prior.precision("fc", dtype)
        assert isinstance(precision, float) and precision == 1 / variance
    assert Prior({"fc": variance, "conv": 7.0}).precision("conv", dtype) == 1 / 7


@pytest.mark.parametrize("dtype, widest", [(torch.float32, 1e20), (torch.float64, 1e200)])
def test_the_variance_of_a_very_wide_prior_stays_within_the_dtype(dtype, widest):
    """Up to `widest` nothing changes; beyond, the variance leaves room for products with other numbers."""
    assert Prior(widest).precision("fc", dtype) == 1 / widest
    for variance in (1e39, 1e250, 1e300) if dtype == torch.float32 else (1e250, 1e300):
        precision = Prior(variance).precision("fc", dtype)
        assert 1 / variance < precision < 1 / widest
        in_dtype = torch.tensor(precision, dtype=dtype)
        assert float(in_dtype) > 0 and math.isfinite(float(1e6 * in_dtype.reciprocal()))


def test_a_variance_is_a_positive_number_or_one_for_each_layer():
    names = lambda: ("conv", "fc")  # noqa: E731
    assert check_variance(2, names) == 2.0
    assert check_variance({"fc": 3, "conv": 1}, names) == {"conv": 1.0, "fc": 3.0}
    for wrong, message in [
        (0, "positive"),
        ({"conv": 1.0}, r"lacks \['fc'\]"),
        ({"conv": 1.0, "fc": 1.0, "head": 1.0}, r"\['head'\], which are no layers"),
        ({"conv": 1.0, "fc": -1.0}, "positive"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            check_variance(wrong, names)
    with pytest.raises(ArgumentError, match="give one number"):
        check_variance({"fc": 1.0}, lambda: None)


def test_a_variance_to_differentiate_in_is_one_positive_number():
    for given in (3, 3.0, torch.tensor(3.0), torch.tensor([[3.0]])):
        found = differentiable(given, lambda: None).of("fc")
        assert found.shape == () and found.dtype == torch.float64 and float(found) == 3
    variance = torch.tensor([0.5], requires_grad=True)
    by_layer = differentiable({"fc": variance, "conv": 2}, lambda: ("conv", "fc"))
    (slope,) = torch.autograd.grad(by_layer.of("fc") ** 2, variance)
    assert slope.tolist() == [1.0] and float(by_layer.of("conv")) == 2
    for wrong in (0.0, -1.0, math.inf, math.nan, [1.0, 2.0], []):
        with pytest.raises(ArgumentError, match=r"prior_variance=tensor.*expected one positive number"):
            differentiable(torch.tensor(wrong), lambda: None)
