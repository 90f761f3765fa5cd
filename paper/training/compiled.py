"""Compile a function with `torch.compile`, or run it uncompiled where that fails."""

import warnings
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class CompiledOnFirstCall(Generic[P, T]):
    """`function`, compiled at its first call. If it cannot be compiled, it warns and runs as it is.

    Compiling takes some seconds, and needs Triton and a C compiler. Each new network or batch size is
    compiled again.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        self.function = function
        self.compiled: Callable[P, T] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if self.compiled is None:
                # Not in `__init__`: the compiler is slow to import.
                self.compiled = torch.compile(self.function, dynamic=False)
            return self.compiled(*args, **kwargs)
        except RuntimeError as error:
            if self.compiled is self.function or isinstance(error, torch.OutOfMemoryError):
                raise
            warnings.warn(f"{self.function.__name__} could not be compiled: {error}", stacklevel=2)
            self.compiled = self.function
            return self.function(*args, **kwargs)
