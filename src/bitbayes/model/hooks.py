"""Watching modules while a model runs: what each is called with and what it returns."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# See(name, input, output).
See = Callable[[str, Tensor, Tensor], None]


@contextmanager
def watching(modules: Mapping[str, nn.Module], see: See) -> Iterator[None]:
    """`see` hears of every call of these modules, while it lasts, that this thread makes.

    Hooks sit on modules, which other threads may be running at the same time: their calls are theirs.

    >>> layer, heard = nn.Linear(2, 1), []
    >>> with watching({"layer": layer}, lambda name, inputs, output: heard.append((name, inputs.shape))):
    ...     _ = layer(input=Tensor(3, 2).zero_())
    >>> heard
    [('layer', torch.Size([3, 2]))]
    """
    own = _thread()

    def hook(name: str) -> Callable[..., None]:
        def remember(_: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            if _thread() == own:
                # While another thread takes its own hooks away, torch may leave the keywords out.
                *keywords, output = rest
                see(name, args[0] if args else keywords[0]["input"], output)

        return remember

    with _removed(each.register_forward_hook(hook(name), with_kwargs=True) for name, each in modules.items()):
        yield


@contextmanager
def entering(modules: Mapping[str, nn.Module], see: Callable[[str, Any], None]) -> Iterator[None]:
    """The same as they are called: `see(name, input)`, before a module that works in place changes it."""
    own = _thread()

    def hook(name: str) -> Callable[..., None]:
        def remember(_: nn.Module, args: tuple[Any, ...], *keywords: Any) -> None:
            if _thread() == own:
                see(name, args[0] if args else keywords[0]["input"])

        return remember

    with _removed(
        each.register_forward_pre_hook(hook(name), with_kwargs=True) for name, each in modules.items()
    ):
        yield


@contextmanager
def inputs_seen(
    model: nn.Module, names: Iterable[str], take: Callable[[Any], Any] = lambda value: value
) -> Iterator[dict[str, list[Any]]]:
    """The inputs of the named layers, call by call, while it lasts; `take` is applied as they go in."""
    seen: dict[str, list[Any]] = {name: [] for name in names}
    modules = {name: model.get_submodule(name) for name in seen}
    with entering(modules, lambda name, value: seen[name].append(take(value))):
        yield seen


@contextmanager
def _removed(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks, taken away at the end."""
    made = list(handles)
    try:
        yield
    finally:
        for handle in made:
            handle.remove()


def _thread() -> int:
    """Which thread this is; the same for all within a compiled graph, which cannot ask."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()
