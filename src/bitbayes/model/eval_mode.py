"""Eval mode for a while: afterwards every module is in its own mode again."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile` and `nn.DataParallel`.

    A compiled graph may not call hooks, and the copies of a data-parallel network run in other threads.
    """
    inside = model.module if isinstance(model, nn.DataParallel) else getattr(model, "_orig_mod", model)
    return unwrapped(inside) if isinstance(inside, nn.Module) and inside is not model else model


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
    # Module by module, because one batch norm may be in eval mode inside a training model. A model that is
    # already in eval mode is not changed: several threads may be using it.
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
