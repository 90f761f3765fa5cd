"""A private copy of a model to run: other modules, the same tensors.

Running a model for derivatives takes hooks, eval mode, and other parameters for a while. On the user's own
modules these would be seen by other threads, and would stay behind if the program is interrupted. So they are
put on a copy, which is made for one use and dropped.
"""

import functools
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from bitbayes.errors import ModelError

# What each copied module has to itself. All tensors in it are the model's own.
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
# A class with this attribute runs a private copy of its model itself.
RUNS_PRIVATELY = "_runs_privately"
WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
TABLES = frozenset(name for name in vars(nn.Module()) if name.startswith("_"))
# Entries of a module that hold no other module, by their types.
PLAIN_TYPES = frozenset({bool, int, float, str, bytes, type(None), torch.Tensor, nn.Parameter, torch.dtype})


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile` and `nn.DataParallel`.

    A compiled graph may not call hooks, and the copies of a data-parallel network run in other threads.
    """
    inside = model.module if isinstance(model, nn.DataParallel) else getattr(model, "_orig_mod", model)
    return unwrapped(inside) if isinstance(inside, nn.Module) and inside is not model else model


class _Through(nn.Module):
    """In place of a wrapper that compiles or distributes a module: the call goes to the module itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        (inside,) = self._modules.values()
        assert inside is not None
        return inside(*args, **kwargs)


def private_copy(model: nn.Module) -> nn.Module:
    """A copy of the modules, in eval mode, that shares all tensors with `model`, which is not changed.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> copy = private_copy(model)
    >>> copy.training, model.training, copy[0].weight is model[0].weight, copy[0] is model[0]
    (False, True, True, False)
    """
    if torch.compiler.is_dynamo_compiling():  # a compiled graph can make no modules
        return _in_eval_mode(model)
    return _Copies().of_model(model)


class _Copies:
    """The copies made so far, by the ids of what they are copies of."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}
        self.waiting: list[dict[str, Any]] = []  # the entries of copies that may still name other modules

    def of_model(self, model: nn.Module) -> nn.Module:
        copy = self.of_module(model, evaluate=True)
        # After all registered modules have their copies: only these are put into eval mode, as by `eval()`.
        while self.waiting:
            entries = self.waiting.pop()
            for name, value in entries.items():
                if type(value) not in PLAIN_TYPES and name not in TABLES:
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
        copy = object.__new__(_Through if wrapper else type(module))
        self.made[id(module)] = copy
        entries = copy.__dict__
        entries.update(module.__dict__)
        if wrapper:  # its compiled `forward` calls the module itself
            entries.pop("forward", None)
        for table in OWN_TABLES:
            entries[table] = entries[table].copy()
        if evaluate:
            entries["training"] = False
        if "_compiled_call_impl" in entries:  # what `module.compile()` made calls the module itself
            entries["_compiled_call_impl"] = None
        children = entries["_modules"]
        for name, child in children.items():
            if child is not None:
                children[name] = self.of_module(child, evaluate=evaluate)
        # torch's own layers name no modules but their children, unless somebody has put them there.
        if not type(module).__module__.startswith("torch.nn.modules.") or "forward" in entries:
            self.waiting.append(entries)
        return copy

    def of_value(self, value: Any) -> Any:
        """The value with copies in place of modules, in lists and the like, methods and closures too.

        A list of its own blocks, or a `forward` that was replaced, would run the modules themselves.
        """
        kind = type(value)
        if kind in PLAIN_TYPES:
            return value
        if isinstance(value, nn.Module):
            return self.of_module(value, evaluate=False)
        if kind is list or kind is tuple:
            parts = [self.of_value(each) for each in value]
            return value if _same(parts, value) else kind(parts)
        if kind is dict:
            parts = [self.of_value(each) for each in value.values()]
            return value if _same(parts, value.values()) else dict(zip(value, parts, strict=True))
        if kind is MethodType:
            owner = self.of_value(value.__self__)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        if kind is functools.partial:
            inside = [value.func, value.args, value.keywords]
            parts = [self.of_value(each) for each in inside]
            return value if _same(parts, inside) else functools.partial(parts[0], *parts[1], **parts[2])
        if kind is FunctionType and value.__closure__:
            return self._of_closure(value)
        return value

    def _of_closure(self, function: FunctionType) -> FunctionType:
        assert function.__closure__ is not None
        if (known := self.made.get(id(function))) is not None:
            return known  # type: ignore[no-any-return]
        self.made[id(function)] = function  # a closure may hold itself
        inside = [cell.cell_contents for cell in function.__closure__ if _is_filled(cell)]
        parts = [self.of_value(each) for each in inside]
        if _same(parts, inside):
            return function
        contents = iter(parts)
        cells = tuple(
            type(cell)(next(contents)) if _is_filled(cell) else cell for cell in function.__closure__
        )
        copy = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        self.made[id(function)] = copy
        return copy


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
    """The module itself, if it is in eval mode already: it cannot be copied."""
    if any(each.training for each in module.modules()):
        raise ModelError(
            f"a part of the model ({type(module).__name__}) is in training mode, and it cannot be copied: it "
            "is scripted, or being compiled. Call `model.eval()` first"
        )
    return module
