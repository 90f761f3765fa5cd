"""Where the classes and the positions are in a model's output.

(n, k) is one row of logits for each input. An output with positions has more: (n, t, k) is a row for each
token, and (n, k, h, w) one for each pixel. Each position is a point: inside, all are rows (N, k), and what is
predicted for them gets the model's own shape again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitbayes.errors import DataError
from bitbayes.model.head.linear_maps import WAY_OUT
from bitbayes.model.loaders.batches import Batch

# The label of positions that do not count, as in `torch.nn.functional.cross_entropy`.
IGNORED = -100


@dataclass(frozen=True)
class Layout:
    """The layout of the logits in a model's output.

    positions: whether there are positions.
    axis: that of the classes.
    squeezed: whether there is one logit, and the model leaves its axis out.
    """

    positions: bool = False
    axis: int = 1
    squeezed: bool = False

    def position_sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of the positions' axes in an output of that shape: (t,), (h, w), or () without any."""
        if not self.positions:
            return ()
        every = list(shape)
        if not self.squeezed:
            del every[self.axis]
        return tuple(every[1:])

    def flatten(self, output: Tensor, points: int, k: int) -> Tensor:
        """(n, …) → (N, k), N the number of points."""
        if not self.positions:
            return output.reshape(points, k)
        whole = output.unsqueeze(self.axis) if self.squeezed else output
        return whole.movedim(self.axis, -1).reshape(points, k)

    def output(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        """(N, k) → the model's own shape.

        >>> rows = Layout(positions=True, axis=1).flatten(torch.arange(24).reshape(2, 3, 2, 2), 8, 3)
        >>> rows.shape, rows[0].tolist(), Layout(positions=True, axis=1).output(rows, (2, 3, 2, 2)).shape
        (torch.Size([8, 3]), [0, 4, 8], torch.Size([2, 3, 2, 2]))
        """
        if not self.positions:
            return rows.reshape(shape)
        values = rows.reshape(shape[0], *self.position_sizes(shape), rows.shape[1])
        return values[..., 0] if self.squeezed else values.movedim(-1, self.axis)

    def for_points(self, values: Tensor, points: int) -> Tensor:
        """Values (n, …) of inputs, repeated for each of their points, (N, …); (N, …) are not changed."""
        if not self.positions or values.shape[0] == points:
            return values
        return values.repeat_interleave(points // values.shape[0], dim=0)

    def assemble(self, parts: Iterable[tuple[tuple[int, ...], Tensor]]) -> Tensor:
        """The results (N, c) or (N,) of all points as (n, …), with the columns on the axis of the classes.

        Args:
            parts: the `position_sizes` of some inputs, and the results of their points.
        """
        first: tuple[int, ...] | None = None
        rows: list[Tensor] = []
        for sizes, part in parts:
            first = sizes if first is None else first
            if sizes != first:
                raise DataError(
                    f"the outputs of these batches have {first} and {sizes} positions, and no tensor holds "
                    "both: predict one batch at a time, or pad all to one size"
                )
            rows.append(part)
        every = torch.cat(rows)
        if not self.positions or first is None:
            return every
        values = every.reshape(-1, *first, *every.shape[1:])
        return values.movedim(-1, self.axis) if every.dim() > 1 else values

    @classmethod
    def read(cls, saved: dict[str, Any]) -> "Layout":
        """From what `dataclasses.asdict` and JSON made of it."""
        return cls(bool(saved["positions"]), int(saved["axis"]), bool(saved["squeezed"]))


def position_labels(labels: Tensor, rows: int, sizes: tuple[int, ...], k: int, where: str) -> Tensor:
    """Labels (n, …) of each position as (N,); a class axis of size one is allowed, as in mask files.

    `k`: the number of logits of a position.
    """
    if labels.shape not in ((rows, *sizes), (rows, 1, *sizes), (rows, *sizes, 1)):
        choice = ""
        if k == 1 and len(sizes) == 1 and labels.dim() == 1:
            choice = (
                f". If the {sizes[0]} logits of an input are those of a choice, let the model return them as "
                f"(n, {sizes[0]}), {WAY_OUT}"
            )
        raise DataError(
            f"{where}: the labels have shape {tuple(labels.shape)}; expected {(rows, *sizes)}, one for each "
            f"position of the model's output ({IGNORED} where it does not count){choice}"
        )
    # uint8, as in mask files, cannot hold -100 (it wraps to 156).
    return labels.reshape(-1).long() if labels.dtype == torch.uint8 else labels.reshape(-1)


def refuse_copied_labels(batch: Batch) -> None:
    """Raise if the labels are the token ids: a causal language model predicts the token after each.

    Hugging Face's models shift such labels by one when they compute their loss. Here a label belongs to the
    position of its logits.
    """
    labels = batch.labels
    if labels is None or labels.dim() != 2 or labels.shape[1] < 2:
        return
    tensors = [batch.inputs] if isinstance(batch.inputs, Tensor) else batch.inputs.values()
    for each in tensors:
        if isinstance(each, Tensor) and each.shape == labels.shape and not each.is_floating_point():
            same = (each == labels) | (labels == IGNORED)
            if bool(same.all() & (labels != IGNORED).any()):
                raise DataError(
                    f"{batch.name}: the labels are the token ids themselves, and a language model predicts "
                    "the next token: shift them, labels = torch.cat([ids[:, 1:], "
                    f"torch.full_like(ids[:, :1], {IGNORED})], dim=1)"
                )
