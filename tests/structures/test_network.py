"""Structures over all layers against dense float64 references: logits, evidence, draws."""

import pytest
import torch

import bitbayes as bb
import dense
from bitbayes.model import DenseJacobian, differentiate
from bitbayes.prior import Prior
from bitbayes.structures import WHOLE_NETWORK, NetworkGaussian
from bitbayes.toys import MLP
from dense import close, fitted

EXACT = ("diag", "full")


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


@pytest.mark.parametrize("structure", EXACT)
@pytest.mark.parametrize("number", [0, 2])
def test_a_layer_given_all_others_has_its_own_part_of_the_dense_precision(number, structure):
    bayes, model, x, y = fitted("mlp", structure)
    layer = bayes.posterior.layers[number]
    gaussian, tau = network_gaussian(bayes).given_others(layer, Prior(0.25))
    assert tau == 4
    weight = model.get_parameter(layer.names[0])
    place = sum(each.size for each in bayes.posterior.layers[:number])
    weights, biases = torch.arange(weight.numel()).reshape(weight.shape), torch.arange(len(weight))
    own = place + torch.cat([weights, weight.numel() + biases[:, None]], 1).flatten()  # row by row
    precision = torch.linalg.inv(dense.covariance(structure, model, x, y, 0.25))[own][:, own]
    precisions = gaussian.precisions(tau)
    basis = torch.eye(len(own), dtype=torch.float64).reshape(len(own), *precisions.shape)
    roots = gaussian.to_weights(basis * precisions.rsqrt())
    assert roots.shape[1:] == (len(weight), weight.shape[1] + 1)
    close(roots.flatten(1).T @ roots.flatten(1), torch.linalg.inv(precision))


PRIOR, TEMPERATURE = 3.0, 0.6


def network(k, structure, method, prior_variance=PRIOR, seed=0):
    torch.manual_seed(seed)
    model = MLP((3, 6, 4, k)).double()
    x, labels = 2 * torch.randn(25, 3, dtype=torch.float64), torch.arange(25) % max(k, 2)
    given = {"structure": structure, "predictive": method, "prior_variance": prior_variance}
    return bb.Laplace(model, layers="all", **given).fit([(x, labels)]), x, labels


@pytest.mark.parametrize("name", ["residual", "sequence"])
def test_dense_and_factored_derivatives_have_one_covariance(name):
    """These networks have convolutions with groups, with and without a bias."""
    bayes, model, x, _ = dense.fitted(name, "kron")
    network = bayes.posterior._network(x.device, x.dtype)
    _, found = differentiate(model.eval(), network.layers, x, lambda f: torch.eye(3).expand(len(f), -1, -1))
    factored = {each.layer.name: each.jacobian() for each in found}
    full = {name: DenseJacobian(each.dense()) for name, each in factored.items()}
    grams = [
        network.gram(lambda layer, given=given: given[layer.name], [Prior(PRIOR)])
        for given in (factored, full)
    ]
    dense.close(*grams, tolerance=1e-12)
