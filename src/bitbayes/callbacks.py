"""The step that all callbacks share: fit and tune a `Laplace` when training has ended."""

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
    *,
    weighted: bool = False,
) -> Laplace:
    """Return a `Laplace`, fitted on the training data, and tuned if there are validation data.

    `weighted`: whether both have weights of their points.
    """
    if training is None:
        raise DataError("the trainer has no training data: give LaplaceCallback(train_loader=…)")
    bayes = Laplace(network, **options).fit(training, weighted=weighted)
    return bayes if validation is None else bayes.tune(validation, weighted=weighted)
