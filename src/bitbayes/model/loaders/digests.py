"""A digest of data that depends neither on the order of the points nor on how they are batched.

Each point has a number of 64 bits, a mixture of all bits of its inputs, its label and its weight, if that is
not 1. The digest is the sum
of these numbers modulo 2⁶⁴. So digests of parts add up to the digest of the whole, as the sums of a fit do.
It is computed on the device of the data, and nothing waits for it.
"""

import hashlib
import uuid
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bitbayes.model.head.layout import IGNORED
from bitbayes.model.loaders.batches import Batch, Inputs

# The odd factors of SplitMix64 (Steele, Lea and Flood, 2014) as signed integers.
FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
HALF = 2**32 - 1
# Tensors are read as integers of their own size, or as pairs of 32 bits: a number that is exact in fewer
# digits than its dtype has ends with zero bits, which a product with 64 bits would keep.
INTEGERS = {1: torch.int8, 2: torch.int16}
# How many products are computed at once: so many that they stay in a CPU's cache, or keep a GPU busy.
NUMBERS_AT_ONCE, GPU_NUMBERS_AT_ONCE = 2**16, 2**24
# How many batches wait to be mixed in.
MOST_WAITING = 256


class DataDigest:
    """The digest of labelled batches, which are added one by one; `int` gives it.

    What has no row for each point (a scalar, say, or the nodes of several graphs) is taken as a part of
    every point. Points of which no position has a label do not count.

    >>> x, y = torch.randn(5, 3), torch.arange(5)
    >>> whole, parts = DataDigest(), DataDigest()
    >>> whole.add(Batch(x, y, "batch"))
    >>> for rows in ([4, 2], [0, 1, 3]):
    ...     parts.add(Batch(x[rows], y[rows], "batch"))
    >>> int(parts) == int(whole)
    True
    """

    def __init__(self, value: int = 0) -> None:
        self._value: Tensor | int = value
        # Sums over the inputs of each point, and labels, (n,) each, of batches that are still to be mixed in:
        # many at once, because on a GPU each operation of a small batch costs as much as one of a large one.
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._factors: dict[torch.device, Tensor] = {}

    def add(self, batch: Batch) -> None:
        """Add a batch. Its inputs are read now."""
        assert batch.labels is not None
        labels = batch.labels
        # After the labels, whose integers have at most 32 bits.
        width = labels.numel() // max(1, len(labels)) * max(1, labels.element_size() // 4)
        hashed, start = self._sum_inputs(batch.inputs, len(labels), 1 + width, labels.device)
        if batch.weights is not None:
            weights = batch.weights.to(labels.device)
            # Zero bits for a weight of 1: such points are the same as points without a weight.
            numbers = _as_integers(weights, len(labels)) - _as_integers(weights.new_ones(1), 1)
            hashed = hashed + self._products(numbers, start)
        before = self._waiting[0][1] if self._waiting else labels
        if (before.dtype, before.shape[1:]) != (labels.dtype, labels.shape[1:]):
            self._mix()
        # A loader may write its next labels into the same tensor.
        self._waiting.append((hashed.expand(len(labels)), labels.clone()))
        if len(self._waiting) == MOST_WAITING or labels.dim() > 1:  # labels of all positions are large
            self._mix()

    def hash_inputs(self, inputs: Inputs, n: int) -> Tensor:
        """A number for the inputs of each of n points, (n,), the same for equal inputs. Nothing is added.

        >>> DataDigest().hash_inputs(torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]), 3).unique().numel()
        2
        """
        parts = [inputs] if isinstance(inputs, Tensor) else inputs.values()
        device = next((part.device for part in parts if isinstance(part, Tensor)), torch.device("cpu"))
        return self._sum_inputs(inputs, n, 1, device)[0].expand(n)

    def __int__(self) -> int:
        self._mix()
        return int(self._value)

    def _mix(self) -> None:
        if not self._waiting:
            return
        hashed, labels = (torch.cat(column) for column in zip(*self._waiting, strict=True))
        hashed = hashed + self._products(_as_integers(labels, len(labels)), 1)
        counts = (labels.reshape(len(labels), -1) != IGNORED).any(1) | labels.is_floating_point()
        self._value, self._waiting = self._value + (_mixed(hashed) * counts).sum(), []

    def _sum_inputs(self, inputs: Inputs, n: int, start: int, device: torch.device) -> tuple[Tensor, int]:
        """Sums over the inputs of each point, (n,) or (1,), and the place after the last factor used."""
        parts = [inputs] if isinstance(inputs, Tensor) else [inputs[name] for name in sorted(inputs, key=str)]
        hashed = None
        for part in parts:
            numbers = _as_integers(part, n).to(device)  # (n or 1, m)
            products = self._products(numbers, start)
            hashed = products if hashed is None else hashed + products
            start += numbers.shape[1]
        assert hashed is not None
        return hashed, start

    def _products(self, numbers: Tensor, start: int) -> Tensor:
        """Σⱼ wⱼ xⱼ modulo 2⁶⁴ for each row x, (n,) or (1,); w are 64 random bits for each place."""
        factors = self._factors_at(start, numbers.shape[1], numbers.device)
        at_once = GPU_NUMBERS_AT_ONCE if numbers.is_cuda else NUMBERS_AT_ONCE
        rows = max(1, at_once // max(1, numbers.shape[1]))
        if len(numbers) <= rows:
            return (numbers * factors).sum(1)
        return torch.cat([(part * factors).sum(1) for part in torch.split(numbers, rows)])

    def _factors_at(self, start: int, width: int, device: torch.device) -> Tensor:
        """The random bits of some places, from a table that grows."""
        table, end = self._factors.get(device), start + width
        if table is None or len(table) < end:
            self._factors[device] = table = _mixed(torch.arange(2 * end, device=device))
        return table[start:end]


def _as_integers(part: Any, n: int) -> Tensor:
    """All bits of some values as integers: (n, m) if there is one value for each point, else (1, m)."""
    if isinstance(part, Tensor):
        part = part.detach() if part.layout == torch.strided else part.detach().to_dense()
        part = torch.view_as_real(part) if part.is_complex() else part
        rows = n if part.dim() and len(part) == n else 1
        flat = part.reshape(rows, -1).contiguous()
        integers: Tensor = flat.view(INTEGERS.get(flat.element_size(), torch.int32))
        return integers
    several = part if isinstance(part, (list, tuple)) and len(part) == n else [part]
    digests = [hashlib.sha256(_as_bytes(each)).digest() for each in several]
    return torch.tensor([list(each) for each in digests], dtype=torch.uint8)


def _as_bytes(value: Any) -> bytes:
    """What a value that is no tensor of rows consists of.

    An object that is not known here is like no other, so that data which may differ do not count as the same.
    """
    if isinstance(value, Tensor):
        flat = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        content = flat.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} ".encode() + content
    if isinstance(value, Mapping):
        return b"".join(repr(name).encode() + _as_bytes(value[name]) for name in sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return b",".join(map(_as_bytes, value))
    if value is None or isinstance(value, (str, bytes, int, float)):
        return repr(value).encode()
    return uuid.uuid4().bytes


def _mixed(numbers: Tensor) -> Tensor:
    """A permutation of the integers of 64 bits that looks random."""
    for factor in FACTORS:
        numbers = (numbers ^ ((numbers >> 32) & HALF)) * factor
    return numbers ^ ((numbers >> 32) & HALF)
