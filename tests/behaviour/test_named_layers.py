"""Layers that are named have a Gaussian, as if all others were frozen."""

import copy

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, ModelError


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)),
        nn.ReLU(),
        nn.Linear(6, 4),
        nn.Linear(4, 3),
    ).double()


X, Y = torch.randn(60, 3, dtype=torch.float64), torch.arange(60) % 3


@pytest.mark.parametrize("names", [("0",), ["2", "3"], ("0.2",), ("3",), ("0", "2", "3")])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_all_is_as_if_the_other_layers_were_frozen(names, structure):
    frozen = network()
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(any(name.startswith(f"{each}.") for each in names))
    options = {"structure": structure, "prior_variance": 0.3}
    named = bb.Laplace(network(), layers=names, **options).fit([(X, Y)])
    expected = bb.Laplace(frozen, layers="all", **options).fit([(X, Y)])
    assert named.posterior.names == expected.posterior.names
    torch.testing.assert_close(
        named.logits(X).covariance, expected.logits(X).covariance, rtol=1e-12, atol=1e-14
    )
    torch.testing.assert_close(named.predict_proba(X), expected.predict_proba(X), rtol=1e-12, atol=0)
    torch.testing.assert_close(named.log_evidence(), expected.log_evidence(), rtol=1e-12, atol=0)
    torch.testing.assert_close(named.limit(X).confidence, expected.limit(X).confidence, rtol=1e-9, atol=0)
    assert all(each.requires_grad for each in named.model.parameters())


def test_they_are_tuned_saved_and_merged(tmp_path):
    model = network()
    bayes = bb.Laplace(model, layers=["0"]).fit([(X, Y)])
    bayes.tune([(X, Y)])
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    assert loaded.layers == ("0",) and torch.equal(loaded.predict_proba(X), bayes.predict_proba(X))
    again = bb.Laplace(model, layers=("0",))
    again.load_state_dict(bayes.state_dict())
    assert torch.equal(again.predict_proba(X), bayes.predict_proba(X))
    parts = [
        bb.Laplace(model, layers=("0",)).fit([(X[rows], Y[rows])]) for rows in (slice(40), slice(40, 60))
    ]
    merged = bb.merge(parts)
    merged.settings = bayes.settings
    torch.testing.assert_close(merged.predict_proba(X), bayes.predict_proba(X), rtol=1e-9, atol=1e-12)
    other = bb.Laplace(model, layers=("2",)).fit([(X, Y)])
    with pytest.raises(ArgumentError, match="cannot be merged"):
        bb.merge([parts[0], other])
    priors = {"0.0": 1.0, "0.2": 2.0}
    assert bb.Laplace(model, layers=("0",), prior_variance=priors).prior_variance == priors


def test_names_that_do_not_fit_are_refused():
    for wrong in ((), ("9",), ("0", "0"), [3]):
        with pytest.raises(ArgumentError, match="expected 'last', 'all', or names of modules"):
            bb.Laplace(network(), layers=wrong)
    with pytest.raises(ArgumentError, match="layers='lasst'"):
        bb.Laplace(network(), layers="lasst")
    with pytest.raises(ModelError, match="'1' has no parameter"):
        bb.Laplace(network(), layers=("0", "1")).fit([(X, Y)])
    frozen = copy.deepcopy(network())
    frozen[2].requires_grad_(False)
    with pytest.raises(ModelError, match="'2' has no parameter that requires a gradient"):
        bb.Laplace(frozen, layers=("2",)).fit([(X, Y)])
