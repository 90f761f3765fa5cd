"""A model whose calls return one part of its output: the logits of one of its heads.

A wrapping module would change the names of all parameters. So the model gets another class instead: its
attributes are the model's own, and only what a call returns differs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from bitbayes.errors import ArgumentError, ModelError

Selector = str | Callable[..., Tensor]


def selected(model: nn.Module, output: Selector | None) -> nn.Module:
    """The model, whose calls return that part of its output; None is all of it.

    >>> import torch
    >>> class Two(nn.Linear):
    ...     def forward(self, x):
    ...         return {"coarse": super().forward(x), "fine": 2 * x}
    >>> model = Two(2, 2)
    >>> fine = selected(model, "fine")
    >>> fine(torch.ones(1, 2)), fine.weight is model.weight
    (tensor([[2., 2.]]), True)
    """
    if output is None:
        return model
    if not isinstance(output, str) and not callable(output):
        raise ArgumentError(
            f"output={output!r}: expected the name of a part of what the model returns, or a function that "
            "takes what the model returns and gives its logits"
        )
    kind = type(model)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return _part(kind.__call__(self, *args, **kwargs), output)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods = {"__call__": call, "__reduce_ex__": lambda self, _: (selected, (_as(self, kind), output))}
    return _as(model, type(kind.__name__, (kind,), {**names, **methods}))


def _as(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    """The model as an object of another class, with the same attributes."""
    view: nn.Module = object.__new__(kind)
    view.__dict__ = model.__dict__
    return view


def _part(returned: Any, output: Selector) -> Any:
    if not isinstance(output, str):
        return output(returned)
    if isinstance(returned, Mapping) and output in returned:
        return returned[output]
    if hasattr(returned, output):
        return getattr(returned, output)
    has = f"the keys {list(returned)}" if isinstance(returned, Mapping) else f"type {type(returned).__name__}"
    raise ModelError(f"output={output!r}: what the model returns has no such part; it has {has}")
