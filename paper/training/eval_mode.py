"""Eval mode for a while: afterwards every module is in its own mode again."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put `model` into eval mode, and afterwards each of its modules back into the mode it was in.

    >>> dropout = nn.Dropout().train()
    >>> with eval_mode(dropout):
    ...     dropout.training
    False
    >>> dropout.training
    True
    """
    # Module by module, because one batch norm may be in eval mode inside a training model.
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
