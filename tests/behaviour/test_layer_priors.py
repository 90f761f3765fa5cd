"""A prior variance for each layer."""

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError
from dense import close, fitted, loader


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_each_layer_has_its_own_prior_variance(structure):
    bayes, model, x, _ = fitted("convnet", structure)
    names = bayes.posterior.names
    together = bayes.logits(x).covariance
    bayes.prior_variance = dict.fromkeys(names, 1.0)
    assert torch.equal(bayes.logits(x).covariance, together)
    assert float(bayes.log_evidence()) == float(bayes.log_evidence(1.0))
    # With a tiny prior variance for all layers but one, only that one has any variance.
    bayes.prior_variance = dict.fromkeys(names, 1e-14) | {"8": 1.0}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("8."))
    alone = bb.Laplace(model, layers="all", structure=structure).fit([(x, torch.arange(12) % 3)])
    close(bayes.logits(x).covariance, alone.logits(x).covariance, 1e-9)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_the_evidence_tunes_each_layers_prior(structure, tmp_path):
    bayes, model, x, _ = fitted("mlp", structure, n=40)
    bayes.prior_variance = dict.fromkeys(bayes.posterior.names, 1.0)
    bayes.tune(objective="evidence")
    best = float(bayes.log_evidence())
    for name, value in bayes.prior_variance.items():
        for factor in (0.6, 1.7):  # a candidate further
            assert float(bayes.log_evidence({**bayes.prior_variance, name: factor * value})) < best
    bayes.save(tmp_path / "each.safetensors")
    again = bb.Laplace.load(tmp_path / "each.safetensors", model)
    assert again.prior_variance == bayes.prior_variance
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


def test_priors_with_wrong_names_or_values_raise():
    bayes, model, x, y = fitted("mlp", "kron")
    with pytest.raises(ArgumentError, match=r"\['nine'\].*lacks \['0', '2', '4'\]"):
        bayes.prior_variance = {"nine": 1.0}
    with pytest.raises(ArgumentError, match="positive"):
        bayes.prior_variance = {"0": 1.0, "2": -1.0, "4": 1.0}
    assert bayes.prior_variance == 1.0
    with pytest.raises(ArgumentError, match="one number"):
        bb.Laplace(model, layers="all", structure="full", prior_variance={"0": 1.0, "2": 1.0, "4": 1.0})
    with pytest.raises(ArgumentError, match="one number"):
        bb.Laplace(model, prior_variance={"4": 1.0})
    bayes.prior_variance = {"0": 1.0, "2": 1.0, "4": 1.0}
    with pytest.raises(ArgumentError, match="one prior variance for all layers"):
        bayes.tune(loader(x, y), objective="nll")
