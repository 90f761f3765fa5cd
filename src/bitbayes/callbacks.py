"""What the callbacks of other libraries share: the end of a training."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from bitbayes.errors import DataError
from bitbayes.laplace import Laplace
from bitbayes.options import LaplaceOptions


def fit_and_tune(
    network: nn.Module,
    options: LaplaceOptions,
    training: Iterable[Any] | None,
    validation: Iterable[Any] | None,
) -> Laplace:
    """A `Laplace` that was fitted, and tuned if there are validation data."""
    if training is None:
        raise DataError("the trainer has no training data: give LaplaceCallback(train_loader=…)")
    bayes = Laplace(network, **options).fit(training)
    return bayes if validation is None else bayes.tune(validation)
