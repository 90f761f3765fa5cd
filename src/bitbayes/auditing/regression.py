"""The audit is for classifiers: this says so, and what there is for regression."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from bitbayes.errors import ArgumentError, BitbayesError
from bitbayes.laplace import Laplace
from bitbayes.likelihoods import LIKELIHOODS
from bitbayes.model import labelled_batches

INSTEAD = (
    "the audit is for classifiers. For regression, fit Laplace(model, likelihood='gaussian') and use "
    "`evaluate(test)`, `bb.plots.intervals` and `bb.plots.coverage_curve`"
)


def refuse_regression(model: nn.Module, train: Any) -> None:
    """Raise if the model is a `Laplace` for values, or if the targets of the first batch are real numbers.

    A loader that will not do is left to the checks of the audit.
    """
    if isinstance(model, Laplace):
        likelihood = LIKELIHOODS.get(model.options.likelihood)
        if likelihood is not None and not likelihood.classifies:
            raise ArgumentError(f"the model is a Laplace with likelihood={likelihood.name!r}, and {INSTEAD}")
    if isinstance(train, Iterator) or not isinstance(train, Iterable):
        return
    try:
        with torch.random.fork_rng():  # so that the order of the next pass is what it would have been
            labels = next(labelled_batches(train, model)).labels
    except (BitbayesError, StopIteration):
        return
    if labels is not None and labels.is_floating_point() and bool(((labels != 0) & (labels != 1)).any()):
        raise ArgumentError(
            f"the targets of 'train' are real numbers ({labels.dtype}), and {INSTEAD}. If they are numbers "
            "of classes, give them as integers"
        )
