"""Layers that are frozen or unfrozen between fitting, updating and loading."""

import copy

import pytest
import torch

import bitbayes as bb
import dense
from bitbayes.errors import ArgumentError, ModelError
from classifiers import points, relu_mlp


@pytest.mark.parametrize("structure", ["diag", "kron"])
@pytest.mark.parametrize("first", [True, False])
def test_freezing_or_unfreezing_between_fit_and_update_raises(structure, first):
    model, x, y = dense.case("mlp")
    model[0].requires_grad_(first)
    bayes = bb.Laplace(model, layers="all", structure=structure).fit([(x, y)])
    before = bayes.logits(x).covariance
    model[0].requires_grad_(not first)
    with pytest.raises(ModelError, match="frozen"):
        bayes.update([(x, y)])
    assert torch.equal(bayes.logits(x).covariance, before)


def test_refitting_with_a_layer_frozen_since_raises_and_changes_nothing():
    x, y = points()
    model = relu_mlp()
    bayes = bb.Laplace(model, layers="all", prior_variance={"0": 1.0, "2": 2.0}).fit([(x, y)])
    before = bayes.predict_proba(x)
    model[0].requires_grad_(False)
    with pytest.raises(ArgumentError, match="no layers"):
        bayes.fit([(2 * x, y)])
    assert torch.equal(bayes.predict_proba(x), before)


@pytest.mark.parametrize("grad", [True, False])
def test_a_prior_for_each_layer_loads_whether_or_not_layers_are_frozen_now(grad, tmp_path):
    x, y = points()
    model = relu_mlp()
    model[0].requires_grad_(False)
    bayes = bb.Laplace(model, layers="all", prior_variance={"2": 2.0}).fit([(x, y)])
    bayes.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(tmp_path / "bayes.safetensors", copy.deepcopy(model).requires_grad_(grad))
    assert again.prior_variance == {"2": 2.0}
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
