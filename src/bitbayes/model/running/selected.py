"""A model whose calls return one part of its output, or whose loaders give batches of another form.

A wrapping module would change the names of all parameters. So the model gets another class instead: its
attributes are the model's own, and only what a call returns differs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from bitbayes.errors import ArgumentError, ModelError

Selector = str | Callable[..., Tensor]
Adapter = Callable[..., object]


def selected(model: nn.Module, output: Selector | None, adapt: Adapter | None = None) -> nn.Module:
    """The model, whose calls return that part of its output; None is all of it.

    `adapt`: makes (inputs, labels) of a loader's batch. Those who read a batch for the model call `adapted`.

    >>> import torch
    >>> class Two(nn.Linear):
    ...     def forward(self, x):
    ...         return {"coarse": super().forward(x), "fine": 2 * x}
    >>> model = Two(2, 2)
    >>> fine = selected(model, "fine")
    >>> fine(torch.ones(1, 2)), fine.weight is model.weight
    (tensor([[2., 2.]]), True)
    """
    if adapt is not None and not callable(adapt):
        raise ArgumentError(f"adapt={adapt!r}: expected a function of a batch that gives (inputs, labels)")
    if output is None and adapt is None:
        return model
    if output is not None and not isinstance(output, str) and not callable(output):
        raise ArgumentError(
            f"output={output!r}: expected the name of a part of what the model returns, or a function that "
            "takes what the model returns and gives its logits"
        )
    kind = type(model)

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        returned = kind.__call__(self, *args, **kwargs)
        return returned if output is None else _part(returned, output)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    methods: dict[str, Any] = {"__call__": call, "_adapt_batch": staticmethod(adapt) if adapt else None}
    methods["_selected_from"] = kind
    methods["__reduce_ex__"] = lambda self, _: (selected, (_as(self, kind), output, adapt))
    return _as(model, type(kind.__name__, (kind,), {**names, **methods}))


def unselected(model: nn.Module) -> nn.Module:
    """The model that `selected` was given."""
    kind = getattr(type(model), "_selected_from", None)
    return model if kind is None else _as(model, kind)


def adapted(batch: Any, model: nn.Module) -> Any:
    """A loader's batch in the form that the model's `adapt` gives it, if there is one."""
    adapt = getattr(type(model), "_adapt_batch", None)
    return batch if adapt is None else adapt(batch)


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
