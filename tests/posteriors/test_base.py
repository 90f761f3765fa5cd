"""What both kinds of posteriors share: drawn networks, and what they know of their outputs."""

import copy
import math

import pytest
import torch

import reference
from bitbayes.errors import ModelError
from bitbayes.model import Batch, DeferredChecks
from bitbayes.prior import Prior


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_a_temperature_divides_the_models_own_logits_in_each_drawn_network(layers, temperature):
    """f*/T + (f − f*), f those of the drawn network and f* those of the model."""
    bayes, x, _ = reference.fitted(3, layers=layers)
    posterior = bayes.posterior
    draws = posterior.sample(4, Prior(0.5), torch.Generator().manual_seed(0))
    found, shape = posterior.network_logits(Batch(x, None, "the input"), draws, temperature)
    own = bayes.model(x).detach()
    assert shape == own.shape
    for number, logits in enumerate(found):
        weights = {name: each[number] for name, each in draws.items()}
        drawn = torch.func.functional_call(bayes.model, weights, (x,))
        torch.testing.assert_close(logits, own / temperature + drawn - own)


@pytest.mark.parametrize("structure, known", [("kron", True), ("diag", True), ("lowrank", False)])
def test_it_is_known_whether_two_outputs_vary_together(structure, known):
    posterior = reference.fitted(3, structure=structure)[0].posterior
    assert posterior.has_cross_covariance is known
    assert posterior.outputs == 3 and posterior.names == ("head",)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_prior_variance_that_is_a_float_has_all_of_its_digits_in_the_evidence(layers):
    """0.3 in float32 is off by 4e-8 of itself, which a comparison of candidates could see."""
    posterior = reference.fitted(3, layers=layers, structure="kron")[0].posterior
    expected = 0.0
    for name, gaussian in posterior.decomposed().items():
        precisions = gaussian.precisions(1 / 0.3).flatten().tolist()
        fit = float(posterior.fitted.squared_norms[name]) / 0.3 - len(precisions) * math.log(1 / 0.3)
        expected += (fit + math.fsum(map(math.log, precisions))) / 2
    found = posterior.evidence_penalty(Prior(0.3), posterior.names)
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_a_model_that_has_changed_is_refused_at_once_or_later():
    bayes, _, _ = reference.fitted(3)
    posterior, model = bayes.posterior, bayes.model
    known = posterior._detector
    posterior.check_unchanged(model)
    assert posterior._detector is known  # nothing to renew
    model.load_state_dict({name: each.clone() for name, each in model.state_dict().items()})
    posterior.check_unchanged(model)  # the same weights, written again
    with pytest.raises(ModelError, match="has been replaced"):
        posterior.check_unchanged(copy.deepcopy(model))
    with torch.no_grad():
        model.head.bias += 1
    with pytest.raises(ModelError, match="has changed since it was fitted"):
        posterior.check_unchanged(model)
    with pytest.raises(ModelError, match="has changed since it was fitted"), DeferredChecks() as checks:
        posterior.check_unchanged(model, checks)
