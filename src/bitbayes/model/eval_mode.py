"""Eval mode for as long as it is needed, and every module back in its own mode afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside what `torch.compile` gives: hooks on a compiled graph are not always heard."""
    inside = getattr(model, "_orig_mod", model)
    return inside if isinstance(inside, nn.Module) else model


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put `model` into eval mode, and give each of its modules back in the mode it was in.

    >>> dropout = nn.Dropout().train()
    >>> with eval_mode(dropout):
    ...     dropout.training
    False
    >>> dropout.training
    True
    """
    # Module by module: a user may have frozen one batch norm inside a training model. A model that serves,
    # perhaps several threads at once, is not touched.
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
