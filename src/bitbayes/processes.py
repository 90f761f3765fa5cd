"""Several processes: add their sums and exchange their results, by `torch.distributed`.

Each process reads its own share of the data. Between two collective operations it works by itself, so shares
may be uneven or empty, and a process that fails can report it before others wait for its sums. For
one process alone, every function returns at once, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from bitbayes.errors import ArgumentError, BitbayesError, ProcessError

T = TypeVar("T")
F = TypeVar("F")

# The choice of `process_group`: a group, None for this process alone, or this text for all processes.
EVERY_PROCESS = "every process"
_chosen: ContextVar[Any] = ContextVar("group", default=EVERY_PROCESS)


@contextmanager
def process_group(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Choose which processes share the work of `fit`, `update` and `tune` inside a `with` block.

    Without it, all processes of an initialised `torch.distributed` work together.

    Args:
        group: some of the processes (`torch.distributed.new_group`), or None for this process alone.

    >>> import bitbayes as bb
    >>> x, y = torch.randn(40, 4), torch.arange(40) % 3
    >>> with bb.process_group(None):
    ...     bayes = bb.Laplace(torch.nn.Linear(4, 3)).fit([(x, y)])
    """
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise ArgumentError(
            f"process_group({group!r}): expected a group of torch.distributed that this process belongs to, "
            "or None for this process alone"
        )
    before = _chosen.set(group)
    try:
        yield
    finally:
        _chosen.reset(before)


def current_processes() -> Processes:
    """The processes that currently share the work; this one alone if there are no others."""
    group = _chosen.get()
    if group is None or not dist.is_available() or not dist.is_initialized():
        return Processes(None, 0, 1)
    group = dist.group.WORLD if group == EVERY_PROCESS else group
    return Processes(group, dist.get_rank(group), dist.get_world_size(group))


@dataclass(frozen=True)
class Processes:
    """`size` processes; this one has the number `rank`. All of them must call each function."""

    group: dist.ProcessGroup | None
    rank: int
    size: int

    @property
    def alone(self) -> bool:
        return self.size == 1

    def shown(self, progress: bool | None) -> bool | None:
        """Whether to show a progress bar: by default only the first process does."""
        return False if progress is None and self.rank else progress

    def agree(self, task: str, work: Callable[[], T], facts: Callable[[T], F]) -> tuple[T, list[F]]:
        """Do this process's share of a task; return its result, and the facts of all processes.

        If one process fails, all raise: that one its own error, the others a `ProcessError`. All raise, too,
        if their tasks differ.

        Args:
            task: its description, which must be the same in all processes.
            work: does this process's share.
            facts: takes from the result what the other processes need.
        """
        if self.alone:
            mine = work()
            return mine, [facts(mine)]
        with self.propagate_errors(task):
            mine = work()
            message = task, None, facts(mine)
        answers = self._gather_objects(message)
        failed = [f"process {rank}: {error}" for rank, (_, error, _) in enumerate(answers) if error]
        if failed:
            raise ProcessError(
                f"{len(failed)} of {self.size} processes failed, so none has a result. {'; '.join(failed)}"
            )
        for rank, (theirs, _, _) in enumerate(answers):
            if theirs != task:
                raise ProcessError(
                    f"process {self.rank} was asked for {task}, and process {rank} for {theirs}: all "
                    "processes must do the same. One that works alone says so: bitbayes.process_group(None)"
                )
        return mine, [fact for _, _, fact in answers]

    @contextmanager
    def propagate_errors(self, task: str = "") -> Iterator[None]:
        """Send an error in this block to the other processes, and raise it.

        For checks before `agree`, where the others would otherwise wait until they time out.
        """
        try:
            yield
        except Exception as error:
            if not self.alone:
                try:
                    self._gather_objects((task, f"{type(error).__name__}: {error}", None))
                except BitbayesError as unreachable:
                    raise error from unreachable  # the others raise by themselves
            raise

    def add_(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over all processes, the same to the last bit everywhere."""
        for tensor in () if self.alone else tensors:
            sent = self._sendable(tensor)
            self._wait(dist.all_reduce, sent)
            # An algorithm may add in another order for each process.
            self._wait(dist.broadcast, sent, group_src=0)
            if sent is not tensor:
                tensor.copy_(sent)

    def broadcast_(self, tensors: Sequence[Tensor], rank: int) -> None:
        """Replace each tensor by that of one process."""
        for tensor in () if self.alone else tensors:
            sent = self._sendable(tensor)
            self._wait(dist.broadcast, sent, group_src=rank)
            if sent is not tensor:
                tensor.copy_(sent)

    def gather(self, mine: Tensor) -> Tensor:
        """The rows (n, …) of all processes, in the order of their ranks, on the device of `mine`."""
        if self.alone:
            return mine
        counts = torch.zeros(self.size, dtype=torch.int64)
        counts[self.rank] = len(mine)
        self.add_(counts)
        parts = [
            mine.contiguous() if rank == self.rank else mine.new_empty(count, *mine.shape[1:])
            for rank, count in enumerate(counts.tolist())
        ]
        for rank, part in enumerate(parts):
            if len(part):
                self.broadcast_([part], rank)
        return torch.cat(parts)

    def _sendable(self, tensor: Tensor) -> Tensor:
        """The tensor on a device that the group can send from: a GPU for NCCL, the CPU for Gloo."""
        backends = dict(pair.split(":") for pair in dist.get_backend_config(self.group).split(","))
        if backends.get(tensor.device.type, "gloo") != "gloo":
            device = tensor.device
        elif "cpu" in backends:
            device = torch.device("cpu")
        else:
            device = torch.device("cuda", torch.cuda.current_device())
        if tensor.device == device and tensor.is_contiguous():
            return tensor
        return tensor.to(device).contiguous()

    def _gather_objects(self, mine: Any) -> list[Any]:
        answers: list[Any] = [None] * self.size
        self._wait(dist.all_gather_object, answers, mine)
        return answers

    def _wait(self, collective: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Run a collective operation; raise a `ProcessError` if the others do not take part."""
        try:
            collective(*arguments, **named, group=self.group)
        except RuntimeError as error:  # of torch.distributed: a time-out, or a closed connection
            raise ProcessError(
                f"process {self.rank} of {self.size} timed out waiting for the others ({error}). Did one of "
                "them end, or not call this function, or take longer than the group's time-out "
                "(init_process_group(timeout=…))? One that works alone says so: bitbayes.process_group(None)"
            ) from error
