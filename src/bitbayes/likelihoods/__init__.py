"""Likelihoods, one file each: labels, loss, curvature, predictions, scores, tuning, values far away."""

from bitbayes.errors import ArgumentError, one_of
from bitbayes.likelihoods.base import AUTO, LIKELIHOODS, SAMPLED_LOGITS, Likelihood, closed_form_names
from bitbayes.likelihoods.bernoulli import Bernoulli
from bitbayes.likelihoods.categorical import Categorical

LIKELIHOODS |= {each.name: each for each in (Categorical(), Bernoulli())}

__all__ = [
    "AUTO",
    "LIKELIHOODS",
    "SAMPLED_LOGITS",
    "Bernoulli",
    "Categorical",
    "Likelihood",
    "closed_form_names",
    "likelihood_for",
]


def likelihood_for(outputs: int, name: str = AUTO) -> Likelihood:
    """The likelihood of that name for a network with so many outputs.

    >>> likelihood_for(1).name, likelihood_for(10).name
    ('bernoulli', 'categorical')
    """
    if name == AUTO:
        return LIKELIHOODS["bernoulli" if outputs == 1 else "categorical"]
    likelihood = LIKELIHOODS[one_of("likelihood", name, (AUTO, *LIKELIHOODS))]
    if not likelihood.takes(outputs):
        raise ArgumentError(
            f"likelihood={name!r} does not fit a model with {outputs} output(s): leave it out, and their "
            "number decides"
        )
    return likelihood
