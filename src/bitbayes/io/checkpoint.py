"""The running sums of a fit, in a file that is written atomically twice a minute.

A file holds the sums over the first batches, and how many batches these are, written together. So no
batch is counted twice or left out, whenever the process ends. Each process of a group has a file of its own.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bitbayes.errors import ArgumentError, FileError
from bitbayes.fitting import FitRequest, Totals
from bitbayes.io import sums
from bitbayes.io.atomic_write import check_writable, make_folder
from bitbayes.io.strict_json import as_parsed, parse_json
from bitbayes.io.tensor_file import read_tensors, write_tensors
from bitbayes.model import DataDigest, OrderedLoader, fingerprint
from bitbayes.options import Options
from bitbayes.processes import Processes, current_processes

FORMAT = 7
SECONDS = 30.0
# A pause is at least this many times as long as writing takes, so that little time is spent on it.
PAUSE = 20
REMOVE = "give another folder, or remove it to begin again"


class Checkpoint:
    """The checkpoint of one process's share of a fit, in a folder; see `fitting.Checkpointer`."""

    def __init__(
        self,
        folder: str | PathLike[str],
        model: nn.Module,
        options: Options,
        processes: Processes,
        *,
        weighted: bool = False,
    ) -> None:
        if not isinstance(folder, (str, PathLike)):
            raise ArgumentError(f"checkpoint={folder!r}: expected the path of a folder")
        self.path = Path(folder) / f"fit-{processes.rank}-of-{processes.size}.safetensors"
        self.model, self.options, self.processes, self.weighted = model, options, processes, weighted
        self.belongs_to: dict[str, Any] = {}
        self.loader: OrderedLoader | None = None
        self._next = 0.0

    def begin(self, loader: Iterable[Any], device: torch.device) -> tuple[Iterable[Any], Totals]:
        """The loader without the batches already summed (except its first), and their sums."""
        make_folder(self.path.parent)
        check_writable(self.path)
        self._refuse_other_shares()
        # What must be the same when the fit is resumed.
        options, model = as_parsed(self.options.as_json()), asdict(fingerprint(self.model))
        self.belongs_to = {"options": options, "fingerprint": model, "weighted": self.weighted}
        none = {"order": "", "data": ""}, Totals()
        header, totals = self._read(device) if self.path.exists() else none
        self.loader = OrderedLoader(loader, totals.batches, header["order"], header["data"])
        self._next = time.monotonic() + SECONDS
        return self.loader, totals

    def write_if_due(self, totals: Totals, check: Callable[[], None]) -> None:
        """Write the sums, if the last time was long ago. Before that, `check` is called, which may raise."""
        begun = time.monotonic()
        if begun < self._next:
            return
        check()
        self._write(totals)
        now = time.monotonic()
        self._next = now + max(SECONDS, PAUSE * (now - begun))

    def remove(self) -> None:
        """Delete the file: the fit is complete."""
        self.path.unlink(missing_ok=True)

    def _refuse_other_shares(self) -> None:
        size = self.processes.size
        found = {each.name for each in self.path.parent.glob("fit-*-of-*.safetensors")}
        if others := found - {f"fit-{rank}-of-{size}.safetensors" for rank in range(size)}:
            raise FileError(
                f"the folder {self.path.parent} has checkpoints of another number of processes than {size} "
                f"({min(others)}), which have read other shares; {REMOVE}"
            )

    def _write(self, totals: Totals) -> None:
        assert self.loader is not None
        tensors, described = sums.to_tensors(totals.curvature, totals.level_sums)
        if totals.generator is not None:
            tensors["generator"] = totals.generator.get_state()
        header = {
            "format": FORMAT,
            **self.belongs_to,
            **described,
            "count": totals.count,
            "weight": float(totals.weight),
            "loss": float(totals.loss),
            "squared_errors": None if totals.squared_errors is None else totals.squared_errors.tolist(),
            "batches": totals.batches,
            "rows": totals.rows,
            "digest": int(totals.digest),
            "order": self.loader.digest_after(totals.batches),
            "data": self.loader.data,
            "generator": totals.generator is not None,
        }
        write_tensors(self.path, tensors, {"bitbayes-checkpoint": json.dumps(header)})

    def _read(self, device: torch.device) -> tuple[dict[str, Any], Totals]:
        file = read_tensors(self.path, REMOVE)
        if not file.checked or "bitbayes-checkpoint" not in file.metadata:
            raise FileError(f"{self.path} is no checkpoint that `fit` wrote; {REMOVE}")
        header = parse_json(file.metadata["bitbayes-checkpoint"])
        if header["format"] != FORMAT:
            raise FileError(f"{self.path} was written by another version of bitbayes; {REMOVE}")
        for what, now in self.belongs_to.items():
            if header[what] != now:
                other = {
                    "options": "other options",
                    "fingerprint": "another model, or with other weights",
                    "weighted": f"weighted={header[what]}",
                }[what]
                raise FileError(f"{self.path} is the checkpoint of a fit with {other}; {REMOVE}")
        target = torch.device("cpu") if device.type == "mps" else device  # MPS has no float64
        tensors = {name: tensor.to(target) for name, tensor in file.tensors.items() if name != "generator"}
        curvature, levels = sums.from_tensors(tensors, header)
        generator = None
        if header["generator"]:
            generator = torch.Generator(device)
            generator.set_state(file.tensors["generator"])
        numbers = {name: header[name] for name in ("count", "weight", "loss", "batches", "rows")}
        if header["squared_errors"] is not None:
            errors = torch.tensor(header["squared_errors"], dtype=torch.float64, device=target)
            numbers["squared_errors"] = errors
        numbers["digest"] = DataDigest(header["digest"])
        return header, Totals(curvature, level_sums=levels, generator=generator, **numbers)


@contextmanager
def checkpointing(folder: str | PathLike[str], request: FitRequest) -> Iterator[Checkpoint]:
    """The checkpoint of a fit in a folder; removed at the end of a block that succeeds."""
    processes = current_processes()
    with processes.propagate_errors():
        if request.options.subnetwork is not None:
            raise ArgumentError(
                f"checkpoint={str(folder)!r}: a checkpoint is of one pass, and "
                f"subnetwork={request.options.subnetwork} takes two: leave one of them out"
            )
        model, options, weighted = request.model, request.options, request.weighted
        checkpoint = Checkpoint(folder, model, options, processes, weighted=weighted)
    yield checkpoint
    checkpoint.remove()
