"""Calling a model: its output, and hooks on the inputs and outputs of its modules.

Hooks are put on a `private_copy` of the model, which no other thread runs. They are removed when their `with`
block ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from bitbayes.errors import DataError, ModelError
from bitbayes.model.loaders.arguments import USE_ADAPT
from bitbayes.model.loaders.batches import SEVERAL_INPUTS, Inputs, row_count
from bitbayes.model.loaders.sides import pair_for
from bitbayes.model.running.private_copy import STREAM, RandomStream

ADVICE = f"{SEVERAL_INPUTS}. If a loader gives something else, {USE_ADAPT}"


def call(model: nn.Module, inputs: Inputs, tensors: dict[str, Tensor] | None = None) -> Tensor:
    """The model's output tensor, or the `.logits` of the object that a Hugging Face model returns.

    `tensors`: parameters and buffers that replace the model's own in this call. Where the model draws random
    numbers, they are its own: torch's random state is not changed. For a pair it is both rewards, (n, 2).
    """
    if (pair := pair_for(model, inputs)) is not None:
        return torch.cat([as_logits(call(model, each, tensors), row_count(each)) for each in pair], dim=1)
    args, kwargs = _arguments(inputs)
    stream: RandomStream | None = model.__dict__.get(STREAM)
    try:
        with nullcontext() if stream is None or torch.compiler.is_compiling() else stream(model):
            output = (
                model(*args, **kwargs) if tensors is None else functional_call(model, tensors, args, kwargs)
            )
    except TypeError as error:
        given = f"the keys {[*inputs]}" if isinstance(inputs, Mapping) else "one tensor"
        raise DataError(f"the model cannot be called with {given}: {error}. {ADVICE}") from error
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the model returned {type(output).__name__}: expected a tensor of logits, or an object with "
            "`.logits`. Say where the logits are: output='NAME', or a function that takes what the model "
            "returns"
        )
    return output


def _arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments: of a mapping, those under whole numbers and those under names."""
    if not isinstance(inputs, Mapping):
        return (inputs,), {}
    places = sorted(key for key in inputs if isinstance(key, int))
    if places != list(range(len(places))):
        raise DataError(
            f"the inputs are a mapping with the places {places}: expected {list(range(len(places)))}"
        )
    named = {key: value for key, value in inputs.items() if not isinstance(key, int)}
    return tuple(inputs[place] for place in places), named


def as_logits(output: Tensor, rows: int | None = None) -> Tensor:
    """The model's output as (n, k), where n = `rows` if given.

    Some models return one logit as (n,), or one point as (k,) or ().

    >>> import torch
    >>> one, many = torch.zeros(3), torch.zeros(3, 2)
    >>> as_logits(one).shape, as_logits(one, 3).shape, as_logits(one, 1).shape, as_logits(many, 3).shape
    (torch.Size([3, 1]), torch.Size([3, 1]), torch.Size([1, 3]), torch.Size([3, 2]))
    """
    if rows == 1 and output.dim() < 2:
        return output.reshape(1, -1)
    if output.dim() == 1:
        output = output[:, None]
    if output.dim() != 2 or (rows is not None and output.shape[0] != rows):
        given = "" if rows is None else f" for {rows} points"
        more = "; outputs with positions need layers='last'" if output.dim() > 2 else ""
        raise ModelError(f"the model's output has shape {tuple(output.shape)}{given}: expected (n, k){more}")
    return output


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
    """Make the modules return `replace(name, input, output)` in place of their output."""

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
    """Before every call of one of the modules, call `on_input(name, input)`; input is as in `call_hooks`.

    A module that works in place overwrites its input: these hooks are called before that.
    """

    def hook(name: str) -> Callable[..., None]:
        def before_call(_: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            on_input(name, args[0] if args else keywords.get("input"))

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
