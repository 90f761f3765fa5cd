"""A private copy of a model to run: other modules, the same tensors.

Running a model for derivatives takes hooks, eval mode, and other parameters for a while. On the user's own
modules these would affect other threads, and would remain after an interruption. So they are put on a copy,
which is made for one use and dropped.
"""

import functools
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from bitbayes.errors import ModelError

# The tables that each copied module has for itself. The tensors in them are the model's own, but for buffers
# that running it changes.
OWN_TABLES = (
    "_parameters",
    "_buffers",
    "_modules",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
USERS_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# A class with this attribute runs a private copy of its model itself.
RUNS_PRIVATELY = "_runs_privately"
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
TABLES = frozenset(name for name in vars(nn.Module()) if name.startswith("_"))
# Entries of a module that hold no other module, by their types.
PLAIN_TYPES = frozenset(
    {bool, int, float, str, bytes, type(None), type, torch.Tensor, nn.Parameter, torch.dtype, torch.device}
)
# The bytes of buffers that are copied before it is known which of them running the model changes.
MAX_COPIED_BYTES = 2**28
# The attribute of a copy with the stream of its random numbers.
STREAM = "_bitbayes_stream"


@dataclass(frozen=True)
class SideEffects:
    """What running a model does besides its output.

    buffers: the names of those that it changes.
    random: whether it draws random numbers.
    """

    buffers: tuple[str, ...] = ()
    random: bool = False

    @classmethod
    def any_of(cls, model: nn.Module) -> "SideEffects":
        """All that are possible: of the buffers all but the largest, which may be quantised weights."""
        found, total = list[str](), 0
        for name, buffer in sorted(model.named_buffers(), key=lambda each: each[1].numel()):
            total += buffer.numel() * buffer.element_size()
            if total <= MAX_COPIED_BYTES:
                found.append(name)
        return cls(tuple(found), random=True)


@dataclass
class RandomStream:
    """The random numbers of a copy: each of its calls has a seed of its own, 0, 1, ….

    used: whether a call has drawn any.
    """

    seed: int = 0
    used: bool = False

    @contextmanager
    def __call__(self, model: nn.Module) -> Iterator[None]:
        """Draw from this stream in the block, and leave torch's random state as it was."""
        devices = sorted({each.device.index for each in model.parameters() if each.is_cuda})
        generators = [torch.default_generator, *(torch.cuda.default_generators[each] for each in devices)]
        with torch.random.fork_rng(devices):
            states = [each.manual_seed(self.seed).get_state() for each in generators]
            self.seed += 1
            yield
            drawn = [not torch.equal(a.get_state(), b) for a, b in zip(generators, states, strict=True)]
            self.used |= any(drawn)


class _Through(nn.Module):
    """Replaces a wrapper that compiles or distributes a module: it calls the module directly."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (inside,) = self._modules.values()
        assert inside is not None
        return inside(*args, **kwargs)


def private_copy(model: nn.Module, effects: SideEffects = SideEffects()) -> nn.Module:  # noqa: B008
    """A copy of the modules, in eval mode, that shares all tensors with `model`, which is not changed.

    `effects`: what running the model does. The copy has its own tensors for the buffers that are changed, and
    its own random numbers (see `calls.call`).

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> copy = private_copy(model)
    >>> copy.training, model.training, copy[0].weight is model[0].weight, copy[0] is model[0]
    (False, True, True, False)
    """
    if torch.compiler.is_dynamo_compiling():  # a compiled graph can make no modules
        return _in_eval_mode(model)
    copy = _Copies(model.get_buffer(name) for name in effects.buffers).of_model(model)
    if effects.random and copy is not model:
        copy.__dict__[STREAM] = RandomStream()
    return copy


class _Copies:
    """The copies made so far, by the ids of what they are copies of.

    `changing`: tensors that get copies, too.
    """

    def __init__(self, changing: Iterable[torch.Tensor] = ()) -> None:
        self.kept: list[Any] = list(changing)  # alive, so that no id is used twice
        self.made: dict[int, Any] = {id(each): each.detach().clone() for each in self.kept}
        self.plain = PLAIN_TYPES - {torch.Tensor} if self.made else PLAIN_TYPES
        self.inside_object = False
        self.waiting: list[dict[Any, Any]] = []  # entries of copies that may still refer to other modules

    def of_model(self, model: nn.Module) -> nn.Module:
        copy = self.of_module(model, evaluate=True)
        # After all registered modules have their copies: only these are put into eval mode, as by `eval()`.
        while self.waiting:
            entries = self.waiting.pop()
            for name, value in entries.items():
                if type(value) not in self.plain and name not in TABLES:
                    entries[name] = self.of_value(value)
        return copy

    def of_module(self, module: nn.Module, *, evaluate: bool) -> nn.Module:
        """The copy of a module and its children."""
        if (known := self.made.get(id(module))) is not None:
            return known  # type: ignore[no-any-return]
        if getattr(type(module), RUNS_PRIVATELY, False):
            return module
        if isinstance(module, torch.jit.ScriptModule):
            return _in_eval_mode(module) if evaluate else module
        wrapper = _is_wrapper(module)
        copy: nn.Module = object.__new__(_Through if wrapper else _class_of_copies(type(module)))
        self.made[id(module)] = copy
        entries = copy.__dict__
        entries.update(module.__dict__)
        if wrapper:  # its compiled `forward` calls the module itself
            entries.pop("forward", None)
        for table in OWN_TABLES:
            entries[table] = entries[table].copy()
        buffers = entries["_buffers"]
        buffers.update({name: self.made.get(id(each), each) for name, each in buffers.items()})
        if evaluate:
            entries["training"] = False
        if "_compiled_call_impl" in entries:  # what `module.compile()` made calls the module itself
            entries["_compiled_call_impl"] = None
        if isinstance(module, nn.RNNBase):  # it writes into this list when a weight is set
            entries["_flat_weights"] = list(module._flat_weights)
        children = entries["_modules"]
        for name, child in children.items():
            if child is not None:
                children[name] = self.of_module(child, evaluate=evaluate)
        # A user's hooks may be methods of other modules.
        self.waiting += [entries[table] for table in USERS_HOOKS if entries[table]]
        # torch's own layers refer to no modules but their children, unless the user has changed them.
        if not type(module).__module__.startswith("torch.nn.modules.") or "forward" in entries:
            self.waiting.append(entries)
            for name in _slots(type(module)):
                if hasattr(module, name):
                    object.__setattr__(copy, name, getattr(module, name))
        return copy

    def of_value(self, value: Any) -> Any:
        """The value with copies in place of modules, in containers, objects, methods and closures too.

        A list of its own blocks, or a `forward` that was replaced, would run the modules themselves.
        """
        kind = type(value)
        if kind in self.plain:
            return value
        if isinstance(value, nn.Module):
            return self.of_module(value, evaluate=False)
        if (known := self.made.get(id(value))) is not None:
            return known
        self.kept.append(value)
        self.made[id(value)] = value  # until it is known: a container may hold itself
        self.made[id(value)] = self._of_new_value(value, kind)
        return self.made[id(value)]

    def _of_new_value(self, value: Any, kind: type) -> Any:
        if isinstance(value, dict):
            if self.plain.issuperset(map(type, value.values())) and self.plain.issuperset(map(type, value)):
                return value
            inside = [*value, *value.values()]
            parts = [self.of_value(each) for each in inside]
            pairs = zip(parts[: len(value)], parts[len(value) :], strict=True)
            return value if _same(parts, inside) else _filled(value, dict(pairs))
        if isinstance(value, (list, tuple, set, frozenset)):
            if self.plain.issuperset(map(type, value)):
                return value
            parts = [self.of_value(each) for each in value]
            if _same(parts, value):
                return value
            return kind(*parts) if hasattr(value, "_fields") else kind(parts)  # a named tuple, or another
        if kind is MethodType:
            owner = self.of_value(value.__self__)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if kind is functools.partial:
            inside = [value.func, value.args, value.keywords]
            parts = [self.of_value(each) for each in inside]
            return value if _same(parts, inside) else functools.partial(parts[0], *parts[1], **parts[2])
        if kind is weakref.ref:
            target = value()
            copy = None if target is None else self.of_value(target)
            return value if copy is target else weakref.ref(copy)
        if kind is FunctionType:
            return self._of_function(value)
        return self._of_object(value, kind)

    def _of_function(self, function: FunctionType) -> FunctionType:
        cells = function.__closure__ or ()
        inside = [function.__defaults__, function.__kwdefaults__]
        inside += [cell.cell_contents for cell in cells if _is_filled(cell)]
        parts = [self.of_value(each) for each in inside]
        if _same(parts, inside):
            return function
        contents = iter(parts[2:])
        closure = tuple(CellType(next(contents)) if _is_filled(cell) else cell for cell in cells)
        copy = FunctionType(
            function.__code__, function.__globals__, function.__name__, parts[0], closure or None
        )
        copy.__kwdefaults__ = parts[1]
        return copy

    def _of_object(self, value: Any, kind: type) -> Any:
        """An object that holds modules in its attributes; others are shared.

        Objects inside of objects are not searched: a logger alone leads to a thousand.
        """
        entries = getattr(value, "__dict__", None)
        if (
            self.inside_object
            or type(entries) is not dict
            or kind.__module__.startswith(("torch", "logging"))
        ):
            return value
        self.inside_object = True
        parts = [self.of_value(each) for each in entries.values()]
        self.inside_object = False
        if _same(parts, entries.values()):
            return value
        copy: Any = object.__new__(kind)
        copy.__dict__.update(zip(entries, parts, strict=True))
        return copy


def _class_of_copies(kind: type[nn.Module]) -> type[nn.Module]:
    """The class, but without its `__del__`, which would close what the model still uses."""
    if not hasattr(kind, "__del__"):
        return kind
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (kind,), {**names, "__del__": lambda self: None})


def _slots(kind: type) -> list[str]:
    """The attributes of its objects that are not in their `__dict__`."""
    found: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _filled(like: dict[Any, Any], entries: dict[Any, Any]) -> dict[Any, Any]:
    """A dict of the same kind with these entries."""
    if type(like) is dict:
        return entries
    copy = like.copy()
    copy.clear()
    copy.update(entries)
    return copy


@contextmanager
def none_called(model: nn.Module) -> Iterator[None]:
    """Raise if a module of the model itself is called in this block, in which only a copy should run."""
    copies = _Copies()
    copies.of_model(model)
    own = {id(each): name for name, each in model.named_modules() if id(each) in copies.made}
    calls: list[tuple[int, nn.Module]] = []  # (thread, module)
    handle = register_module_forward_pre_hook(lambda each, _: calls.append((threading.get_ident(), each)))
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # perhaps a consequence of such a call
        failure = error
    finally:
        handle.remove()
    called = [own[id(each)] for thread, each in calls if thread == threading.get_ident() and id(each) in own]
    if called:
        raise ModelError(
            f"the model calls its part {called[0]!r} through something that is no attribute, container, "
            "method or closure (a global variable?), so that no copy of it can be run in its place: call it "
            "as self.NAME in `forward`"
        ) from failure
    if failure is not None:
        raise failure


def _is_wrapper(module: nn.Module) -> bool:
    """Whether it is what `torch.compile` or data parallelism made of another module."""
    return "_orig_mod" in module._modules or isinstance(module, WRAPPERS)


def _same(parts: Any, values: Any) -> bool:
    return all(a is b for a, b in zip(parts, values, strict=True))


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _in_eval_mode(module: nn.Module) -> nn.Module:
    """Return the module, which cannot be copied; raise if it is in training mode."""
    if any(each.training for each in module.modules()):
        raise ModelError(
            f"a part of the model ({type(module).__name__}) is in training mode, and it cannot be copied: it "
            "is scripted, or being compiled. Call `model.eval()` first"
        )
    return module
