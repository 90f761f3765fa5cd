"""Curvature over all layers estimated from drawn labels, and the paper's formulas."""

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


def test_the_papers_kronecker_factors_are_damped_one_by_one():
    bayes, model, x, _ = fitted("mlp", "kron", prior_variance=0.2, curvature="paper")
    curvature, total = bayes.posterior.fitted.curvature, 0
    derivatives, place = dense.jacobians(model, x), 0
    for layer in bayes.posterior.layers:
        outputs, inputs, positions = curvature[layer.name].tensors().values()
        width, root = layer.shapes[0][1], positions.sqrt()
        left = torch.linalg.inv(outputs[0] / root + torch.eye(len(outputs[0])) / 0.2)
        right = torch.linalg.inv(inputs[0, :width, :width] / root + torch.eye(width) / 0.2)
        blocks = [torch.kron(left, right)]
        if layer.has_bias:
            blocks.append(torch.linalg.inv(outputs[0] + torch.eye(len(outputs[0])) / 0.2))
        part = derivatives[:, :, place : place + layer.size]
        total, place = total + part @ torch.block_diag(*blocks) @ part.mT, place + layer.size
    close(bayes.logits(x).covariance, total, 1e-9)


def test_the_papers_diagonal_is_a_fisher_estimate():
    model, x, y = dense.case("mlp")
    paper = bb.Laplace(model, layers="all", structure="diag", curvature="paper").fit(loader(x, y))
    fisher = bb.Laplace(model, layers="all", structure="diag", curvature="fisher").fit(loader(x, y))
    assert torch.equal(paper.logits(x).covariance, fisher.logits(x).covariance)


def test_an_update_draws_labels_of_its_own():
    model, x, y = dense.case("mlp")
    once = bb.Laplace(model, layers="all", curvature="fisher").fit([(x, y)])
    before = {name: each.tensors() for name, each in once.posterior.fitted.curvature.items()}
    once.update([(x, y)])
    for name, each in once.posterior.fitted.curvature.items():
        assert not torch.allclose(each.tensors()["outputs"], 2 * before[name]["outputs"], rtol=1e-6)
