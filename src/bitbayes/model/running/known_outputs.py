"""What a model returned at a few made-up inputs when it was fitted, to notice that it returns something else.

The change detector compares tensors. It does not see a hook that was added, an attribute that `forward`
reads, or another `forward`. So `fit` makes some inputs, by a fixed seed, that are like those it has seen in
kind and range, and keeps the model's outputs. No row of the data is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model.loaders.arguments import model_device
from bitbayes.model.loaders.batches import Inputs
from bitbayes.model.running.calls import call
from bitbayes.model.running.row_check import rounding

# How many inputs are made, and how many numbers of their outputs are kept at most.
MADE_ROWS, KEPT_NUMBERS = 3, 256
# Up to this many columns each has a range of its own, because the columns of a table differ. It is found in
# so many rows.
RANGED_COLUMNS, RANGED_ROWS = 1024, 64


@dataclass(frozen=True)
class InputKind:
    """One tensor of a model's inputs: its key (None if it is the only one), a row's shape, dtype and range.

    low, high: of each column, or of all of them. Whole numbers lie between the least and the largest that
        were seen, others within half a deviation of their mean.
    """

    key: str | int | None
    shape: tuple[int, ...]
    dtype: str
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, key: str | int | None, values: Tensor) -> InputKind:
        """That of some values (n, …)."""
        rows = values[:RANGED_ROWS].detach().cpu().double()
        rows = rows.reshape(len(rows), -1)
        if rows.shape[1] > RANGED_COLUMNS:
            rows = rows.reshape(-1, 1)
        low, high = rows.amin(0), rows.amax(0)
        if values.is_floating_point():
            half = rows.std(0, correction=0) / 2
            low, high = torch.maximum(low, rows.mean(0) - half), torch.minimum(high, rows.mean(0) + half)
        name = str(values.dtype).removeprefix("torch.")
        return cls(key, tuple(values.shape[1:]), name, tuple(low.tolist()), tuple(high.tolist()))

    @classmethod
    def read(cls, saved: dict[str, Any]) -> InputKind:
        """From what `dataclasses.asdict` and JSON made of it."""
        ranges = (tuple(map(float, saved[name])) for name in ("low", "high"))
        return cls(saved["key"], tuple(map(int, saved["shape"])), saved["dtype"], *ranges)

    def made(self, seed: int) -> Tensor:
        """Values (n, …) in that range, the same ones for each seed. Flags are all the larger one.

        So a mask hides nothing: where it hid all, there would be no numbers.
        """
        dtype: torch.dtype = getattr(torch, self.dtype)
        low, high = (torch.tensor(each, dtype=torch.float64) for each in (self.low, self.high))
        generator = torch.Generator().manual_seed(seed)
        shape = torch.Size((MADE_ROWS, *self.shape))
        share = torch.rand(MADE_ROWS, shape[1:].numel(), generator=generator).double()
        if dtype.is_floating_point:
            values = low + share * (high - low)
        else:
            values = torch.where(high - low <= 1, high, low + (share * (high - low + 1)).floor())
        return values.reshape(shape).to(dtype)


def input_kinds(inputs: Inputs) -> tuple[InputKind, ...]:
    """Those of a batch; (), for which no inputs are made, unless all are tensors with a row for each point.

    One row alone, or rows that are all the same, have no range: what is made would be a row of the data.
    """
    parts: dict[Any, Any] = dict(inputs) if isinstance(inputs, Mapping) else {None: inputs}
    for key, each in parts.items():
        if not isinstance(key, (str, int, type(None))) or not isinstance(each, Tensor) or not each.dim():
            return ()
        if each.layout != torch.strided or each.is_quantized or each.is_complex() or not each.numel():
            return ()
    if len({len(each) for each in parts.values()}) > 1:
        return ()
    if not all(bool(each[:RANGED_ROWS].isfinite().all()) for each in parts.values()):
        return ()  # the fit raises, and says where
    kinds = tuple(InputKind.of(key, each) for key, each in parts.items())
    return kinds if any(each.low != each.high for each in kinds) else ()


@dataclass(frozen=True)
class KnownOutputs:
    """A model's outputs at made-up inputs of these kinds; `rounding`: what they may change by, relatively."""

    kinds: tuple[InputKind, ...]
    outputs: tuple[float, ...]
    rounding: float

    @classmethod
    def of(cls, network: nn.Module, kinds: tuple[InputKind, ...]) -> KnownOutputs | None:
        """Those of a private copy of the model; None if it does not take such inputs."""
        found = _run(network, kinds) if kinds else None
        return None if found is None else cls(kinds, tuple(found[0].tolist()), found[1])

    @classmethod
    def read(cls, saved: dict[str, Any]) -> KnownOutputs:
        """From what `dataclasses.asdict` and JSON made of it."""
        kinds = tuple(map(InputKind.read, saved["kinds"]))
        return cls(kinds, tuple(map(float, saved["outputs"])), float(saved["rounding"]))

    def check(self, network: nn.Module) -> None:
        """Raise if the model, of which this is a private copy, has other outputs now."""
        found = _run(network, self.kinds)
        if found is None:  # on this device, say: predictions raise by themselves
            return
        outputs, coarse = found
        known = torch.tensor(self.outputs, dtype=torch.float64)
        same_size = len(outputs) == len(known)
        gap = float((outputs - known).abs().amax()) if same_size else torch.inf
        size = max(map(abs, self.outputs), default=0.0)
        if gap > max(coarse, self.rounding) * size:
            raise ModelError(
                "the model has changed since it was fitted: its weights are the same, but at made-up inputs "
                f"its outputs differ by up to {gap:.2g}. Look for hooks, adapters, numbers that its "
                "`forward` reads, or another `forward`: undo the change, or call `fit` again"
            )


@torch.no_grad()
def _run(network: nn.Module, kinds: tuple[InputKind, ...]) -> tuple[Tensor, float] | None:
    """Some numbers of the outputs at the made-up inputs, in float64, and their relative rounding."""
    device = model_device(network)
    try:
        made: dict[Any, Any] = {each.key: each.made(seed).to(device) for seed, each in enumerate(kinds)}
        output = call(network, made.get(None, made))
        flat = output.detach().flatten()
        some = flat[:: max(1, len(flat) // KEPT_NUMBERS)][:KEPT_NUMBERS].double().cpu()
        return (some, rounding(network, output)) if bool(some.isfinite().all()) else None
    except Exception:  # of any type: it is the model's own, or a file says anything
        return None
