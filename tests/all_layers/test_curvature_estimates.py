"""Curvature over all layers estimated from drawn labels."""

import math

import pytest
import torch

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError
from dense import close, fitted, loader


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("name", ["convnet", "one logit"])
def test_the_fisher_estimate_is_that_of_the_drawn_labels(name, structure, draws, monkeypatch):
    """Its columns (e_y − p)/√draws take the place of the root of Λ. Their average is in test_likelihood."""
    exact, model, x, y = fitted(name, structure)
    likelihood = exact.posterior.fitted.likelihood
    drawn = []

    def draw(self, logits, generator):
        drawn.append(plain_draw(self, logits, generator))
        return drawn[-1]

    plain_draw = type(likelihood).draw
    monkeypatch.setattr(type(likelihood), "draw", draw)
    bayes = bb.Laplace(model, layers="all", structure=structure, curvature=bb.Fisher(draws)).fit([(x, y)])
    assert len(drawn) == draws
    columns = torch.stack(drawn, 2) / math.sqrt(draws)  # (n, k, draws)
    monkeypatch.setattr(type(likelihood), "root", lambda *_: columns)
    expected = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    for layer, sums in expected.posterior.fitted.curvature.items():
        for name, value in sums.tensors().items():
            close(bayes.posterior.fitted.curvature[layer].tensors()[name], value, 1e-12)
    if structure != "kron":
        jacobians = dense.jacobians(model, x)
        along = torch.einsum("nkp,nkd->ndp", jacobians, columns).flatten(0, 1)
        hessian = along.T @ along if structure == "full" else along.square().sum(0).diag()
        sigma = torch.linalg.inv(hessian + torch.eye(len(hessian)))
        close(bayes.logits(x).covariance, jacobians @ sigma @ jacobians.mT)


def test_the_fisher_estimate_is_seeded():
    model, x, y = dense.case("mlp")

    def covariance(curvature):
        return bb.Laplace(model, layers="all", curvature=curvature).fit(loader(x, y)).logits(x).covariance

    plain = covariance("fisher")
    assert torch.equal(plain, covariance(bb.Fisher())) and torch.equal(plain, covariance(bb.Fisher(1, 0)))
    one, two = (covariance(bb.Fisher(seed=7)) for _ in range(2))
    assert torch.equal(one, two) and not torch.equal(one, plain)
    for wrong in ({"draws": 0}, {"draws": 1.5}, {"seed": "7"}):
        with pytest.raises(ArgumentError, match=r"Fisher\(.*positive number of draws"):
            bb.Fisher(**wrong)


def test_an_update_draws_labels_of_its_own():
    model, x, y = dense.case("mlp")
    once = bb.Laplace(model, layers="all", curvature="fisher").fit([(x, y)])
    before = {name: each.tensors() for name, each in once.posterior.fitted.curvature.items()}
    once.update([(x, y)])
    for name, each in once.posterior.fitted.curvature.items():
        assert not torch.allclose(each.tensors()["outputs"], 2 * before[name]["outputs"], rtol=1e-6)
