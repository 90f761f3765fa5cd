"""Eval mode for as long as it is needed, and every module back in its own mode afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put `model` into eval mode, and give each of its modules back in the mode it was in.

    >>> dropout = nn.Dropout().train()
    >>> with evaluating(dropout):
    ...     dropout.training
    False
    >>> dropout.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        # Module by module: a user may have frozen one batch norm inside a training model.
        for module, mode in modes:
            module.training = mode
