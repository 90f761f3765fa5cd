"""Structures over all layers against dense float64 references: logits, evidence, draws."""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.prior import Prior
from bitbayes.structures import WHOLE_NETWORK, NetworkGaussian
from bitbayes.structures.kron import KronCurvature
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
        evidence_penalty = theta.square().sum() / value + len(theta) * math.log(value) - torch.logdet(sigma)
        close(bayes.log_evidence(value), -total_loss(model(x).detach(), y) - evidence_penalty / 2)
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


class SumOfPositions(nn.Module):
    def forward(self, x):
        return x.sum(2)


@pytest.mark.parametrize(
    "layer, positions, rows",
    [
        (nn.Conv1d(1, 1, 1), 1, 1),
        (nn.Conv1d(1, 1, 1), 1, 65),
        (nn.Conv1d(1, 1, 1), 64, 65),
        (nn.BatchNorm1d(1, eps=0), 1, 1),
    ],
    ids=["batches", "pairs of positions", "many positions", "a norm"],
)
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_a_float32_networks_curvature_is_summed_in_float64(structure, layer, positions, rows, monkeypatch):
    """2²⁴ + 1 is 2²⁴ in float32: of 64 small points after one large one, nothing would be left."""
    monkeypatch.setattr(
        "bitbayes.model.jacobians.layer_jacobians.CPU_CHUNK_NUMBERS", 1
    )  # each point for itself
    model = nn.Sequential(layer, SumOfPositions()).eval()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)  # so Λ = 1/4 at every point
    x = torch.zeros(65, 1, positions)
    x[:, 0, 0] = torch.tensor([2.0**12] + 64 * [1.0])
    if structure == "kron" and positions > 1:
        rows = 1  # it sums the positions of one batch in the network's own precision
    batches = zip(x.split(rows), (torch.arange(65) % 2).split(rows), strict=True)
    bayes = bb.Laplace(model, layers="all", structure=structure).fit(list(batches))
    (sums,) = bayes.posterior.fitted.curvature.values()
    if isinstance(sums, KronCurvature):
        assert sums.inputs.dtype == sums.outputs.dtype == torch.float64
        assert sums.inputs[0].tolist() == [[2**24 + 64, 2**12 + 64], [2**12 + 64, 65 * positions]]
        assert sums.outputs.tolist() == [[[65 * positions / 4]]] and float(sums.count) == 65 * positions
    else:
        h = sums.hessian.diagonal() if structure == "full" else sums.diagonal
        assert h.dtype == torch.float64
        assert h.tolist() == [(2**24 + 64) / 4, 65 * positions**2 / 4]


def network_gaussian(bayes):
    return NetworkGaussian(bayes.posterior.layers, bayes.posterior.decomposed())


@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", ["mlp", "convnet", "residual", "sequence"])
def test_the_largest_precision_over_all_layers_is_the_dense_one(name, structure):
    bayes, model, x, y = fitted(name, structure)
    for value in (0.01, 3.0):
        sigma = dense.covariance(structure, model, x, y, value)
        largest = 1 / torch.linalg.eigvalsh(sigma)[0]
        close(network_gaussian(bayes).largest_precision(Prior(value)), largest)


def test_the_largest_precision_takes_each_layers_own_prior():
    bayes, model, x, y = fitted("mlp", "diag")
    h = torch.diag(dense.ggn(model, x, y))
    for variances in ((1e-5, 2.0, 7.0), (2.0, 7.0, 1e-5), (3.0, 4.0, 5.0)):
        sizes = [layer.size for layer in bayes.posterior.layers]
        taus = torch.cat([torch.full((n,), 1 / v).double() for n, v in zip(sizes, variances, strict=True)])
        prior = Prior(dict(zip(bayes.posterior.names, variances, strict=True)))
        close(network_gaussian(bayes).largest_precision(prior), (h + taus).amax(), 1e-6)


@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", ["convnet", "sequence"])
def test_draws_of_all_layers_have_the_dense_covariance(name, structure):
    """Of the parameters themselves, and with the covariance between layers where the structure has one."""
    bayes, model, x, y = fitted(name, structure)
    n, own = 20_000, dense.parameters(model)
    draws = network_gaussian(bayes).draw(n, Prior(0.5), torch.Generator().manual_seed(0))
    assert {key: each.shape for key, each in draws.items()} == {
        key: (n, *value.shape) for key, value in own.items()
    }
    flat = torch.cat([draws[key].flatten(1) for key in own], dim=1)
    sigma = dense.covariance(structure, model, x, y, 0.5)
    variances = torch.diag(sigma)
    standard = ((torch.outer(variances, variances) + sigma.square()) / n).sqrt()
    # 6e-7 of all entries are beyond five standard errors, and there are some ten thousand of them.
    assert float(((flat.T @ flat / n - sigma).abs() / standard).max()) < 5.5


@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_each_layers_block_has_its_part_of_the_dense_curvature(name, structure):
    """One draw along each eigenvector gives the block's covariance exactly."""
    bayes, model, x, y = fitted(name, structure)
    sigma = dense.covariance(structure, model, x, y, 0.5)
    place, spans = 0, {}
    for key, value in dense.parameters(model).items():
        spans[key], place = torch.arange(place, place + value.numel()), place + value.numel()
    posterior = bayes.posterior
    for block, gaussian in posterior.decomposed().items():
        layers = [layer for layer in posterior.layers if block in (layer.name, WHOLE_NETWORK)]
        precisions = gaussian.precisions(2.0)
        size = precisions.numel()
        basis = torch.eye(size, dtype=torch.float64).reshape(size, *precisions.shape)
        roots = gaussian.to_weights(basis * precisions.rsqrt()).flatten(1)
        parts = torch.split(roots, [layer.size for layer in layers], dim=1)
        named = [
            each for layer, part in zip(layers, parts, strict=True) for each in layer.split(part).items()
        ]
        ours = torch.cat([value.flatten(1) for _, value in named], dim=1)
        theirs = torch.cat([spans[key] for key, _ in named])
        close(ours.T @ ours, sigma[theirs][:, theirs])
