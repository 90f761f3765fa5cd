"""Many small kernels as a few: for what runs so often that the trips to the GPU's memory are its time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class Fused(Generic[P, T]):
    """`function`, compiled when it is first called; as it is, with a warning, where it cannot be compiled.

    Compiling takes some seconds, and needs Triton and a C compiler. It begins anew for another network or
    batch size.
    """

    def __init__(self, function: Callable[P, T]) -> None:
        self.function = function
        self.best: Callable[P, T] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if self.best is None:
                # Not before it is needed: the compiler is slow to import.
                self.best = torch.compile(self.function, dynamic=False)
            return self.best(*args, **kwargs)
        except RuntimeError as error:
            if self.best is self.function or isinstance(error, torch.OutOfMemoryError):
                raise
            warnings.warn(f"{self.function.__name__} could not be compiled: {error}", stacklevel=2)
            self.best = self.function
            return self.function(*args, **kwargs)
