"""Limits and certificates over all layers: against prediction far out."""

import pytest
import torch
from ray_cases import NETWORKS, deltas, laplace
from test_certify import fine_grid, largest_beyond
from torch import nn

import bitbayes as bb


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("k, method", [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "probit")])
@pytest.mark.parametrize("name", NETWORKS)
def test_limits_and_certificates(name, k, method, structure):
    options = {"structure": structure, "predictive": method, "prior_variance": 0.1}
    bayes, x = laplace(name, k, n=10, layers="all", **options)
    limit, certificate = bayes.limit(x), bayes.certify(x)
    far = bayes.predict_proba(1e9 * x).max(1)
    torch.testing.assert_close(limit.confidence, far.values, rtol=0, atol=1e-5)
    assert bool((limit.label == far.indices).all())
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 20))
    gap = certificate.confidence - torch.maximum(top, certificate.limit)
    assert gap.min() >= 0
    assert gap.max() <= (1e-3 if k == 1 else 0.02)  # the grid is coarse


def test_with_the_residual():
    bayes, x = laplace("mlp", 3, n=10, layers="all", prior_variance=0.1, residual=True)
    certificate = bayes.certify(x)
    assert bool((certificate.limit == 1 / 3).all())
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())


def test_where_nothing_grows_it_is_the_finite_value():
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.fill_(-1.0)
        model[0].bias.fill_(1.0)
    x = torch.tensor([[-1.0], [0.5], [0.2]], dtype=torch.float64)
    bayes = bb.Laplace(model, layers="all").fit([(x, torch.tensor([0, 1, 1]))])
    dead = torch.tensor([[2.0], [0.0]], dtype=torch.float64)  # the first stops at 0.5, the second never moves
    expected = bayes.predict_proba(1e3 * dead).amax(1)
    torch.testing.assert_close(bayes.limit(dead).confidence, expected, rtol=1e-9, atol=0)
