"""Hooks on modules: what each module is called with, and what it returns, while a model runs.

They are put on a `private_copy` of the model, which no other thread runs, and are removed when their `with`
block ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def call_hooks(modules: Mapping[str, nn.Module], on_call: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """After every call of one of the modules, call `on_call(name, input, output)`.

    The input is the first positional argument, or else the keyword argument "input", or else None.

    >>> import torch
    >>> layer, shapes = nn.Linear(2, 1), []
    >>> with call_hooks({"layer": layer}, lambda name, inputs, output: shapes.append((name, inputs.shape))):
    ...     _ = layer(input=torch.zeros(3, 2))
    >>> shapes
    [('layer', torch.Size([3, 2]))]
    """

    def hook(name: str) -> Callable[..., None]:
        def after_call(_: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            on_call(name, args[0] if args else keywords.get("input"), output)

        return after_call

    with _removed_at_exit(
        module.register_forward_hook(hook(name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


@contextmanager
def replaced_outputs(
    modules: Mapping[str, nn.Module], replace: Callable[[str, Any, Any], Any]
) -> Iterator[None]:
    """In place of what one of the modules returns, `replace(name, input, output)` is returned."""

    def hook(name: str) -> Callable[..., Any]:
        def after_call(_: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
            return replace(name, args[0] if args else keywords.get("input"), output)

        return after_call

    with _removed_at_exit(
        module.register_forward_hook(hook(name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


@contextmanager
def input_hooks(modules: Mapping[str, nn.Module], on_input: Callable[[str, Any], None]) -> Iterator[None]:
    """Before every call of one of the modules, call `on_input(name, input)`.

    A module that works in place overwrites its input: these hooks see the input before that.
    """

    def hook(name: str) -> Callable[..., None]:
        def before_call(_: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            on_input(name, args[0] if args else keywords["input"])

        return before_call

    with _removed_at_exit(
        module.register_forward_pre_hook(hook(name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


@contextmanager
def recorded_inputs(
    model: nn.Module, names: Iterable[str], take: Callable[[Any], Any] = lambda value: value
) -> Iterator[dict[str, list[Any]]]:
    """`take(input)` for every call of the named modules: a list for each name, in the order of the calls.

    The lists fill up while the model runs. `take` is called before the module is.
    """
    recorded: dict[str, list[Any]] = {name: [] for name in names}
    modules = {name: model.get_submodule(name) for name in recorded}
    with input_hooks(modules, lambda name, value: recorded[name].append(take(value))):
        yield recorded


@contextmanager
def _removed_at_exit(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Register the hooks, by going through `handles`, and remove them when the `with` block ends."""
    registered = list(handles)
    try:
        yield
    finally:
        for handle in registered:
            handle.remove()
