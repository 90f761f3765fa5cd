"""Likelihoods, one file each: labels, loss, curvature, predictions, scores, tuning, values far away."""

from bitbayes.likelihoods.base import (
    AUTO,
    LIKELIHOODS,
    SAMPLED_LOGITS,
    SAMPLES,
    Likelihood,
    closed_form_names,
    likelihood_for,
)
from bitbayes.likelihoods.bernoulli import Bernoulli
from bitbayes.likelihoods.categorical import Categorical
from bitbayes.likelihoods.gaussian import Gaussian
from bitbayes.likelihoods.heteroscedastic import Heteroscedastic
from bitbayes.likelihoods.multilabel import Multilabel
from bitbayes.likelihoods.preference import Preference

_EVERY = (Categorical(), Bernoulli(), Gaussian(), Heteroscedastic(), Multilabel(), Preference())
LIKELIHOODS |= {each.name: each for each in _EVERY}

__all__ = [
    "AUTO",
    "LIKELIHOODS",
    "SAMPLED_LOGITS",
    "SAMPLES",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Heteroscedastic",
    "Likelihood",
    "Multilabel",
    "Preference",
    "closed_form_names",
    "likelihood_for",
]
