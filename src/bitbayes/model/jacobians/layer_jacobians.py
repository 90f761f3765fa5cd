"""The Jacobian of one layer: the derivatives of some points in the layer's parameters.

The Jacobian of a matrix layer is J = Σₜ gₜaₜᵀ over its T positions. There are two ways to compute sums over
products of entries of J:

- Form J, in chunks that fit into the cache (`chunks`, `part`, `dense`).
- Do not form J. Multiply pairs of positions, aₜaₜ' and gₜgₜ' (`input_pairs`, `gradient_pairs`); what remains
  is one product of large matrices. This is faster if there are few positions (`few_positions`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# How many numbers a chunk may hold. On a CPU they should fit into its cache.
CPU_CHUNK_NUMBERS, DEVICE_CHUNK_NUMBERS = 2**20, 2**27
# To square an entry of J and add it to a sum takes about as long as this many products gₜaₜ.
SQUARE_COST_IN_PRODUCTS = 16


@dataclass(frozen=True)
class MatrixJacobian:
    """J = Σₜ gₜaₜᵀ as its factors: inputs a (n, groups, i, T) and gradients g (n, groups, c, o, T)."""

    inputs: Tensor
    gradients: Tensor

    def __getitem__(self, rows: slice) -> MatrixJacobian:
        return MatrixJacobian(self.inputs[rows], self.gradients[rows])

    def dense(self) -> Tensor:
        """J = Σₜ gₜaₜᵀ, (n, c, P)."""
        c, o = self.gradients.shape[2:4]
        jacobian = self.gradients.flatten(2, 3) @ self.inputs.mT  # (n, groups, c·o, i)
        return jacobian.reshape(*jacobian.shape[:2], c, o, jacobian.shape[3]).transpose(1, 2).flatten(2)

    def scaled(self, factors: Tensor) -> MatrixJacobian:
        """The Jacobian of each point times a factor, (n,)."""
        return MatrixJacobian(
            self.inputs, self.gradients * factors.to(self.gradients)[:, None, None, None, None]
        )

    def columns(self, chosen: Tensor) -> DenseJacobian:
        """The derivatives in the parameters with these m indices alone, (n, c, m)."""
        n, groups, c, o, positions = self.gradients.shape
        size = groups * o * self.inputs.shape[2]
        # m entries of gₜaₜᵀ at each position, or all entries of J.
        few = positions * len(chosen) <= size
        group, output, column = torch.unravel_index(chosen, (groups, o, self.inputs.shape[2]))
        points = max(1, _chunk_numbers(self.inputs) // (c * min(positions * len(chosen), size)))
        found = []
        # In one chunk while compiling: the number of points is not known.
        starts = [0] if torch.compiler.is_compiling() else range(0, max(1, n), points)
        for start in starts:
            part = self if torch.compiler.is_compiling() else self[start : start + points]
            if few:
                gradients, inputs = part.gradients[:, group, :, output], part.inputs[:, group, column]
                found.append(torch.einsum("mnct,nmt->ncm", gradients, inputs))
            else:
                found.append(part.dense()[:, :, chosen])
        return DenseJacobian(torch.cat(found))

    @property
    def few_positions(self) -> bool:
        """Whether it is cheaper to multiply pairs of positions than to form J."""
        c, positions = self.gradients.shape[2], self.gradients.shape[4]
        return positions * (positions + 1) // 2 <= c * (positions + SQUARE_COST_IN_PRODUCTS)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Slices of points and outputs: the J of each `part` of them fits into a chunk."""
        if torch.compiler.is_compiling():
            yield slice(None), slice(None)  # the number of points is not known
            return
        n, groups, c, o, _ = self.gradients.shape
        outputs = max(1, _chunk_numbers(self.inputs) // (groups * c * self.inputs.shape[2]))  # of one point
        points = max(1, outputs // o)
        for start in range(0, n, points):
            for first in range(0, o, outputs):
                yield slice(start, start + points), slice(first, first + outputs)

    def part(self, points: slice, outputs: slice) -> MatrixJacobian:
        """The Jacobian of these points in the weights of these outputs."""
        return MatrixJacobian(self.inputs[points], self.gradients[points, :, :, outputs])

    def pair_chunks(self) -> Iterator[MatrixJacobian]:
        """The Jacobian in chunks of points whose pairs fit into memory."""
        if torch.compiler.is_compiling():
            yield self
            return
        n, groups, inputs, positions = self.inputs.shape
        numbers = groups * (inputs + self.gradients.shape[2] * self.gradients.shape[3]) * positions**2
        points = max(1, 4 * _chunk_numbers(self.inputs) // numbers)
        for start in range(0, max(1, n), points):  # without any points there is one empty chunk
            yield self[start : start + points]

    def input_pairs(self) -> Tensor:
        """aₜaₜ' for all pairs t ≤ t', (groups, i, n, pairs)."""
        inputs = self.inputs.permute(1, 2, 0, 3)
        first, second = _pair_indices(inputs)
        return inputs[..., first] * inputs[..., second]

    def gradient_pairs(self) -> Tensor:
        """Σ gₜgₜ' over the directions, for all pairs t ≤ t', (groups, o, n, pairs).

        A pair t < t' counts twice, because it also stands for the pair (t', t).
        """
        gradients = self.gradients.permute(1, 3, 0, 2, 4)  # (groups, o, n, c, T)
        first, second = _pair_indices(gradients)
        both = (gradients[..., first] * gradients[..., second]).sum(3)
        return both.mul_(2 - (first == second).to(both))


@dataclass(frozen=True)
class DenseJacobian:
    """J as one tensor of derivatives in the layer's P parameters, (n, c, P)."""

    derivatives: Tensor

    def __getitem__(self, rows: slice) -> DenseJacobian:
        return DenseJacobian(self.derivatives[rows])

    def dense(self) -> Tensor:
        return self.derivatives

    def columns(self, chosen: Tensor) -> DenseJacobian:
        """The derivatives in the parameters with these m indices alone, (n, c, m)."""
        return DenseJacobian(self.derivatives[:, :, chosen])

    def scaled(self, factors: Tensor) -> DenseJacobian:
        """The Jacobian of each point times a factor, (n,)."""
        return DenseJacobian(self.derivatives * factors.to(self.derivatives)[:, None, None])

    def chunks(self) -> Iterator[DenseJacobian]:
        """The Jacobian in chunks of points."""
        if torch.compiler.is_compiling():
            yield self
            return
        n, c, size = self.derivatives.shape
        points = max(1, _chunk_numbers(self.derivatives) // (c * size))
        for start in range(0, max(1, n), points):  # without any points there is one empty chunk
            yield self[start : start + points]


LayerJacobian = MatrixJacobian | DenseJacobian


def from_pairs(values: Tensor, positions: int) -> Tensor:
    """(…, pairs) → symmetric matrices (…, T, T), from the entries at all pairs t ≤ t'."""
    first, second = _pair_indices(values, positions)
    where = torch.empty(positions, positions, dtype=torch.long, device=values.device)
    where[first, second] = where[second, first] = torch.arange(len(first), device=values.device)
    return values[..., where]


def _pair_indices(values: Tensor, positions: int | None = None) -> Tensor:
    """The indices t and t' of all pairs t ≤ t' of positions, (2, pairs)."""
    size = values.shape[-1] if positions is None else positions
    return torch.triu_indices(size, size, device=values.device)


def _chunk_numbers(values: Tensor) -> int:
    return CPU_CHUNK_NUMBERS if values.device.type == "cpu" else DEVICE_CHUNK_NUMBERS
