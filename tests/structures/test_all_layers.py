"""Structures over all layers against dense float64 references: logits, evidence, draws."""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from dense import close, fitted
from reference import total_loss

EXACT = ("diag", "full")


@pytest.mark.parametrize("prior_variance", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", dense.NETWORKS)
def test_logits_over_all_layers_are_those_of_the_dense_matrix(name, structure, prior_variance):
    bayes, model, x, y = fitted(name, structure, prior_variance=prior_variance)
    new = torch.randn(4, *x.shape[1:], dtype=x.dtype)
    gaussian = bayes.logits(new)
    sigma = dense.covariance(structure, model, x, y, prior_variance)
    close(gaussian.mean, model(new).detach())
    close(gaussian.covariance, dense.logits_covariance(model, sigma, new))


@pytest.mark.parametrize("structure", EXACT)
def test_log_evidence_over_all_layers_is_that_of_the_dense_matrix(structure):
    bayes, model, x, y = fitted("convnet", structure)
    theta = torch.cat([p.flatten() for p in dense.parameters(model).values()])
    for value in (0.01, 1.0, 50.0):
        sigma = dense.covariance(structure, model, x, y, value)
        occam = theta.square().sum() / value + len(theta) * math.log(value) - torch.logdet(sigma)
        close(bayes.log_evidence(value), -total_loss(model(x).detach(), y) - occam / 2)
    variable = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(bayes.log_evidence(variable), variable)
    step = 1e-4
    close(slope, (bayes.log_evidence(2 + step) - bayes.log_evidence(2 - step)) / (2 * step), 1e-6)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_draws_of_all_layers_have_the_posteriors_covariance(structure):
    bayes, model, x, _ = fitted("convnet", structure)
    draws = bayes.sample(20_000, generator=torch.Generator().manual_seed(0))
    own = dense.parameters(model)
    assert set(draws) == set(own)
    assert all(draws[name].shape == (20_000, *own[name].shape) for name in own)
    gaps = torch.cat([(draws[name] - own[name]).flatten(1) for name in own], dim=1)  # (s, P)
    linear = torch.einsum("nkp,sp->snk", dense.jacobians(model, x[:2]), gaps)
    expected = bayes.logits(x[:2]).covariance
    found = torch.einsum("snk,snl->nkl", linear, linear) / len(linear)
    # Five standard errors of a covariance, √(2/s) of the largest variance at most.
    assert float((found - expected).abs().max()) < 5 * (2 / 20_000) ** 0.5 * float(expected.abs().max())


@pytest.mark.parametrize("seed", range(6))  # whether or not an eigenvalue rounds to less than zero
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_directions_without_data_keep_a_wide_priors_variance_in_float32(structure, seed):
    """One input is the sum of the others, so one direction of the weights has no data."""
    torch.manual_seed(seed)
    model = nn.Linear(4, 3)
    x, y = torch.randn(500, 4), torch.arange(500) % 3
    x[:, 3] = x[:, :3].sum(1)
    unseen, wide = torch.tensor([[1.0, 1.0, 1.0, -1.0]]), 1e7
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=wide).fit([(x, y)])
    contrast = torch.tensor([[1.0, -1.0, 0.0]])
    found = contrast @ bayes.logits(unseen).covariance[0] @ contrast.T
    # ‖unseen‖² = 4, ‖contrast‖² = 2. Rounding x leaves N·(6e-8)² ≪ 1/wide to be seen; the bias adds ≪ wide.
    close(found, torch.tensor([[8 * wide]]), 1e-3)
