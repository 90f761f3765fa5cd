"""Deferred checks: their outcome is read later. And checks that numbers are finite.

The outcome of a check is computed on the device of the batch. Reading it at once would wait until the device
has finished the batch, and then the device would wait for the next one. So the outcome is copied after the
work for the batch, and read when the next batch is under way.
"""

import math
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError
from bitbayes.model.loaders.batches import Batch, Inputs

# How many batches may be under way before their checks are read.
LAG = 1


class _Sent(NamedTuple):
    """Outcomes (m,) on their way to the CPU, an event for their arrival, and what to call if one is False."""

    outcomes: Tensor
    arrived: torch.cuda.Event | None
    otherwise: list[Callable[[], None]]


class DeferredChecks:
    """Checks that are read later, but before this `with` block ends: nothing may be returned before that.

    The error of an earlier batch is raised first, even if a later batch has raised one in the block.

    >>> def refuse():
    ...     raise ValueError("batch 0 is negative")
    >>> with DeferredChecks() as checks:
    ...     checks.add((torch.tensor([1.0, -1.0]) >= 0).all(), refuse)
    Traceback (most recent call last):
    ...
    ValueError: batch 0 is negative
    """

    def __init__(self) -> None:
        self._new: list[tuple[Tensor, Callable[[], None]]] = []
        self._sent: deque[_Sent] = deque()

    def add(self, ok: bool | Tensor, otherwise: Callable[[], None]) -> None:
        """Call `otherwise`, which may raise, unless `ok`: a boolean, or a tensor () of one."""
        if isinstance(ok, Tensor):
            self._new.append((ok, otherwise))
        elif not ok:
            self._read(0)  # errors of earlier batches come first
            self._call(otherwise)

    def end_batch(self) -> None:
        """Read the checks of earlier batches. Call it when all work for a batch was submitted."""
        self._send()
        self._read(LAG)

    def settle(self) -> None:
        """Read all checks now, before results that depend on them are written to a file, say."""
        self._send()
        self._read(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # Not if a generator is closed, or the user has interrupted the program.
        if kind is None or issubclass(kind, Exception):
            self.settle()

    def _send(self) -> None:
        if not self._new:
            return
        flags, otherwise = zip(*self._new, strict=True)
        self._new = []
        device = flags[0].device
        outcomes = torch.stack([flag.to(device) for flag in flags])
        arrived = None
        if device.type == "cuda":  # an asynchronous copy to pinned memory: the event marks its end
            outcomes = outcomes.to("cpu", non_blocking=True)
            arrived = torch.cuda.current_stream(device).record_event()
        self._sent.append(_Sent(outcomes, arrived, list(otherwise)))

    def _read(self, keep: int) -> None:
        """Read the checks of all batches that were sent, except the last `keep`."""
        while len(self._sent) > keep:
            outcomes, arrived, otherwise = self._sent.popleft()
            if arrived is not None:
                arrived.synchronize()
            for ok, call in zip(outcomes.tolist(), otherwise, strict=True):
                if not ok:
                    self._call(call)

    def _call(self, otherwise: Callable[[], None]) -> None:
        """Call it. If it raises, the checks of later batches are dropped: its error is the first one."""
        try:
            otherwise()
        except BaseException:
            self._new, self._sent = [], deque()
            raise


def check_finite(batch: Batch, features: Tensor, logits: Tensor, model: nn.Module) -> None:
    """Raise if something is not finite, and say what: the input, the model's weights, or the features."""
    where, inputs = batch.name, batch.inputs
    tensors = {"": inputs} if isinstance(inputs, Tensor) else inputs
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) and not finite(tensor):
            raise DataError(f"{where} holds NaN or infinity{f' in {name!r}' if name else ''}")
    if finite(features) and finite(logits):
        return
    bad = [name for name, parameter in model.named_parameters() if not finite(parameter)]
    if bad:
        raise DataError(
            f"the model's weights hold NaN or infinity: {', '.join(map(repr, bad))} (seen at {where})"
        )
    raise DataError(
        f"{where}: the network overflows; its features or logits are not finite in {features.dtype}. "
        "Use smaller inputs, or the model in float64"
    )


def finite(tensor: Tensor) -> bool:
    """Whether every number of the tensor is finite."""
    return bool(finite_sum(tensor)) or bool(tensor.isfinite().all())


def finite_sum(*values: Inputs) -> Tensor:
    """Whether the sum of all numbers is finite, (): it is not if a term is not, or if it overflows.

    One pass, and no mask.
    """
    tensors = [
        each for value in values for each in ([value] if isinstance(value, Tensor) else value.values())
    ]
    numbers = [each for each in tensors if isinstance(each, Tensor) and not _integers(each)]
    # Half precision in float32, because a sum of thousands of its numbers would overflow.
    sums = [each.sum(dtype=torch.promote_types(each.dtype, torch.float32)) for each in numbers]
    total = sums[-1] if sums else torch.zeros(())
    for more in sums[:-1]:
        total = total + more.to(total.device)
    return total.abs() < math.inf


def _integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())
