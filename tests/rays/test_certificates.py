"""Certificates: no confidence beyond alpha exceeds them, and they are not much above the largest one."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
from bitbayes.rays.certificates import Ratio
from ray_cases import CERTIFIED, NETWORKS, STRUCTURES, deltas, fine_grid, laplace, largest_beyond


@pytest.mark.parametrize("structure, temperature", [*((each, 1.0) for each in STRUCTURES), ("kron", 0.3)])
@pytest.mark.parametrize("k, method", CERTIFIED)
def test_no_confidence_exceeds_a_certificate_and_certificates_are_tight(structure, temperature, k, method):
    bayes, x = laplace("mlp", k, n=30, structure=structure, predictive=method, prior_variance=2.0)
    bayes.temperature = temperature
    certificate = bayes.certify(x)
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 150))
    gap = certificate.confidence - torch.maximum(top, certificate.limit)
    assert gap.min() >= 0
    assert gap.max() <= (1e-4 if k == 1 else 0.01)
    torch.testing.assert_close(certificate.limit, bayes.limit(x).confidence)


def test_a_thousand_rays_have_certificates():
    for k in (1, 3):
        bayes, x = laplace("mlp", k, n=1000, prior_variance=5.0)
        certificate = bayes.certify(x)
        assert [value.shape for value in certificate] == [(1000,)] * 3
        assert bool((certificate.confidence >= certificate.limit).all())
        assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())


@given(
    name=st.sampled_from(list(NETWORKS)),
    case=st.sampled_from(CERTIFIED),
    structure=st.sampled_from(STRUCTURES),
    prior_variance=st.floats(1e-4, 1e4),
    temperature=st.floats(1e-2, 1e2),
    seed=st.integers(0, 10_000),
)
def test_no_confidence_exceeds_a_certificate_on_any_network(
    name, case, structure, prior_variance, temperature, seed
):
    k, method = case
    options = {"structure": structure, "predictive": method, "prior_variance": prior_variance}
    bayes, x = laplace(name, k, n=10, seed=seed, **options)
    bayes.temperature = temperature
    certificate = bayes.certify(x)
    top = torch.maximum(largest_beyond(bayes, x, deltas(certificate.alpha, 25)), certificate.limit)
    assert bool((certificate.confidence >= top).all())
    assert bool((certificate.confidence <= torch.maximum(bayes.bound(), top) + 2e-3).all())


def test_the_certificate_can_lie_above_the_limit():
    """With biases the confidence may have a maximum beyond alpha: the certificate includes it."""
    bayes, x = laplace("mlp", 1, n=300, prior_variance=0.5)
    certificate = bayes.certify(x)
    higher = certificate.confidence > certificate.limit + 0.01
    assert bool(higher.any())
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 200))
    assert (certificate.confidence - torch.maximum(top, certificate.limit)).max() < 1e-4


def test_linear_models_are_certified_for_every_delta():
    x = torch.randn(30, 2, dtype=torch.float64)
    bayes = bb.Laplace(torch.nn.Linear(2, 3).double()).fit([(x, torch.arange(30) % 3)])
    certificate = bayes.certify(x)
    assert bool((certificate.alpha == 0).all())
    grid = torch.cat([torch.zeros(1), torch.logspace(-6, 9, 300)]).double()[:, None].expand(-1, 30)
    gap = certificate.confidence - largest_beyond(bayes, x, grid)
    assert gap.min() >= 0 and gap.max() < 0.01


def largest_on_a_grid(ratio, low, high):
    for _ in range(2):  # then between the neighbours of the best
        grid = torch.linspace(low, high, 2001, dtype=torch.float64)
        best = int(ratio.at(grid).argmax())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 2000)])
    return float(ratio.at(grid).max())


@given(st.lists(st.floats(-5, 5), min_size=5, max_size=5), st.floats(0, 1), st.floats(0, 1))
@example([0.0, 3.0, 3.0, -3.0, 0.0], 0.0, 1.0)
def test_the_range_of_a_ratio_is_that_of_a_fine_grid(numbers, one, other):
    """The denominator may be any positive quadratic."""
    n0, n1, a, b, c = (torch.tensor([value], dtype=torch.float64) for value in numbers)
    d0, d1, d01 = a.square() + 0.1, b.square() + c.square() + 0.1, a * b
    ratio, mirrored = Ratio(n0, n1, d0, d01, d1), Ratio(-n0, -n1, d0, d01, d1)
    low, high = sorted((one, other))
    smallest, largest = ratio.range(*torch.tensor([[low], [high]], dtype=torch.float64))
    # With d ≥ 0.05, |n| ≤ 5 and d″ ≤ 200, |z″| is below 1e5, and steps of 5e-7 miss 1e-8 of a peak at most.
    assert -1e-12 <= float(largest) - largest_on_a_grid(ratio, low, high) <= 1e-8
    assert -1e-12 <= -float(smallest) - largest_on_a_grid(mirrored, low, high) <= 1e-8


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_certificate_does_not_depend_on_the_size_of_x(layers, residual):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.arange(10) % 3
    bayes = bb.Laplace(model, layers=layers, residual=residual).fit([(x, y)])
    here = bayes.certify(x)
    for size in (1e-8, 1e8):
        there = bayes.certify(size * x)
        torch.testing.assert_close(there.alpha * size, here.alpha, rtol=1e-9, atol=0)
        torch.testing.assert_close(there.limit, here.limit, rtol=0, atol=1e-9)
        # The cells differ, but both bounds are within 1e-3 of the largest confidence.
        torch.testing.assert_close(there.confidence, here.confidence, rtol=0, atol=1e-3)
