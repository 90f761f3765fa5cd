"""Fitting and updating over all layers, labels that are drawn, and models and data that are refused."""

import copy
import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.structures.kron import KronCurvature
from dense import TextModel, close, fitted, loader


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
def test_fit_and_update_give_the_posterior_of_one_fit(structure):
    bayes, model, x, y = fitted("residual", structure)
    half = bb.Laplace(model, layers="all", structure=structure).fit(loader(x[:7], y[:7]))
    half.update(loader(x[7:], y[7:]))
    close(half.logits(x).covariance, bayes.logits(x).covariance, 1e-12)
    assert float(half.log_evidence()) == pytest.approx(float(bayes.log_evidence()), rel=1e-12)


def test_modes_and_weights_stay_as_they_were_over_all_layers():
    model, x, y = dense.case("convnet")
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    bayes = bb.Laplace(model, layers="all").fit(loader(x, y))
    for job in (
        bayes.logits,
        bayes.predict_proba,
        bayes,
        lambda x: bayes.predict_proba(x, method="sampled_networks"),
    ):
        job(x)
        assert [module.training for module in model.modules()] == modes
    before = copy.deepcopy(model.state_dict())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class CountingLoader:
    """A loader that counts the batches taken from it."""

    def __init__(self, x, y):
        self.x, self.y, self.taken = x, y, 0

    def __iter__(self):
        for _ in range(5):
            self.taken += 1
            yield self.x, self.y


def test_layers_without_kronecker_factors_are_named_before_any_pass():
    model = TextModel().double()
    x, y = torch.randint(0, 10, (6, 3)), torch.arange(6) % 2
    data = CountingLoader(x, y)
    with pytest.raises(ModelError, match=r"'' \(TextModel\).*requires_grad_\(False\).*structure='diag'"):
        bb.Laplace(model, layers="all").fit(data)
    model.scale.requires_grad_(False)
    with pytest.raises(ModelError, match=r"'words' \(Embedding\)"):
        bb.Laplace(model, layers="all").fit(data)
    assert data.taken <= 2  # only the first batch was looked at
    model.words.requires_grad_(False)
    bb.Laplace(model, layers="all").fit([(x, y)])


def test_tied_weights_raise_and_are_named():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2))
    model[2].weight = model[0].weight
    with pytest.raises(ModelError, match=r"'0' .*shares parameters with '2.weight'"):
        bb.Laplace(model, layers="all").fit([(torch.randn(4, 3), torch.arange(4) % 2)])


def test_a_dense_matrix_too_large_for_memory_raises():
    model = nn.Sequential(nn.Linear(200, 200), nn.Linear(200, 2))
    with pytest.raises(ModelError, match=r"40,602 parameters.*13.2 GB"):
        bb.Laplace(model, layers="all", structure="full").fit([(torch.randn(4, 200), torch.arange(4) % 2)])


def test_bad_batches_raise_and_change_nothing():
    bayes, model, x, y = fitted("mlp", "kron")
    before = bayes.predict_proba(x)
    with pytest.raises(DataError, match="batch 1: the labels"):
        bayes.fit([(x, y), (x, y + 5)])
    with pytest.raises(DataError, match="batch 0: the labels have shape"):
        bayes.fit([(x, y[:5])])
    with pytest.raises(DataError, match="NaN"):
        bayes.predict_proba(x * math.nan)
    with pytest.raises(DataError, match="batch 1 holds NaN"):
        bayes.fit([(x, y), (x * math.inf, y)])
    model[0].weight.data += 1
    with pytest.raises(ModelError, match="has changed"):
        bayes.update([(x, y)])
    model[0].weight.data -= 1
    close(bayes.predict_proba(x), before, 1e-9)


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
