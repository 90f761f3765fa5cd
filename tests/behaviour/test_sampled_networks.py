"""The predictive 'sampled_networks', which averages the predictions of sampled networks."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, DataError
from dense import close, fitted, loader


def test_the_predictive_weights_averages_the_sampled_networks():
    bayes, model, x, _ = fitted("convnet", "diag", prior_variance=0.1)
    draws = bayes.sample(7, generator=torch.Generator().manual_seed(3))
    networks = [{name: each[s] for name, each in draws.items()} for s in range(7)]
    expected = torch.stack([functional_call(model, each, (x,)).softmax(1) for each in networks]).mean(0)
    seeded = {"method": "sampled_networks", "samples": 7}
    close(bayes.predict_proba(x, generator=torch.Generator().manual_seed(3), **seeded), expected, 1e-12)
    # All batches are predicted with the same networks.
    parts = bayes.predict_proba(list(x.split(5)), generator=torch.Generator().manual_seed(3), **seeded)
    close(parts, expected, 1e-12)


STRUCTURES = ["diag", "kron", "full"]


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    "bad, message",
    [(float("nan"), "NaN or infinity"), (float("inf"), "NaN or infinity"), (1e308, "overflows")],
)
def test_sampled_networks_raise_on_inputs_that_are_not_finite_or_overflow(structure, bad, message):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    model[2].weight.data *= 1e10
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    x[1] = bad
    with pytest.raises(DataError, match=message):
        bayes.predict_proba(x, method="sampled_networks")


def test_sampled_networks_with_a_residual_raise():
    model, x, y = dense.case("mlp")
    bayes = bb.Laplace(model, layers="all", residual=True).fit(loader(x, y))
    with pytest.raises(ArgumentError, match="does not use the residual"):
        bayes.predict_proba(x, method="sampled_networks")


def test_the_drop_in_refuses_what_predict_proba_refuses():
    bayes, _, x, _ = fitted("mlp", "kron", predictive="sampled_networks")
    with pytest.raises(DataError, match="NaN"):
        bayes(x * float("nan"))
    assert torch.isfinite(bayes(x)).all()
