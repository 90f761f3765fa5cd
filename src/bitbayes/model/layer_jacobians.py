"""The derivatives of some points in one layer's parameters, formed as far as they have to be.

A matrix layer with T positions has J = Σₜ gₜaₜᵀ. Sums of products of J's can be had in two ways: form J, in
chunks that fit into the cache, or never form it: with few positions the products of pairs aₜaₜ' and gₜgₜ' are
fewer, and what remains is one product of large matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

# Numbers that a chunk may hold: on a CPU few enough to stay in its cache.
CPU_CHUNK, DEVICE_CHUNK = 2**20, 2**27
# Squaring and adding up a derivative takes about as long as this many of the products it is made of.
TRAFFIC = 16


@dataclass(frozen=True)
class MatrixJacobian:
    """A matrix layer's inputs a (n, groups, i, T) and derivatives at its outputs g (n, groups, c, o, T)."""

    inputs: Tensor
    gradients: Tensor

    def __getitem__(self, rows: slice) -> MatrixJacobian:
        return MatrixJacobian(self.inputs[rows], self.gradients[rows])

    def dense(self) -> Tensor:
        """Σₜ g aᵀ, (n, c, P)."""
        c, o = self.gradients.shape[2:4]
        jacobian = self.gradients.flatten(2, 3) @ self.inputs.mT  # (n, groups, c·o, i)
        return jacobian.reshape(*jacobian.shape[:2], c, o, jacobian.shape[3]).transpose(1, 2).flatten(2)

    @property
    def few_positions(self) -> bool:
        """Whether pairs of positions are cheaper than J."""
        c, positions = self.gradients.shape[2], self.gradients.shape[4]
        return positions * (positions + 1) // 2 <= c * (positions + TRAFFIC)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Points and outputs whose J is small enough."""
        n, groups, c, o, _ = self.gradients.shape
        outputs = max(1, _limit(self.inputs) // (groups * c * self.inputs.shape[2]))  # of one point
        points = max(1, outputs // o)
        for start in range(0, n, points):
            for first in range(0, o, outputs):
                yield slice(start, start + points), slice(first, first + outputs)

    def part(self, points: slice, outputs: slice) -> MatrixJacobian:
        return MatrixJacobian(self.inputs[points], self.gradients[points, :, :, outputs])

    def pair_chunks(self) -> Iterator[MatrixJacobian]:
        """Points whose pairs are few enough."""
        n, groups, inputs, positions = self.inputs.shape
        numbers = groups * (inputs + self.gradients.shape[2] * self.gradients.shape[3]) * positions**2
        points = max(1, 4 * _limit(self.inputs) // numbers)
        for start in range(0, max(1, n), points):  # no points are a chunk, too
            yield self[start : start + points]

    def input_pairs(self) -> Tensor:
        """aₜaₜ' for t ≤ t', (groups, i, n, pairs)."""
        inputs = self.inputs.permute(1, 2, 0, 3)
        first, second = _pairs(inputs)
        return inputs[..., first] * inputs[..., second]

    def gradient_pairs(self) -> Tensor:
        """Σ over directions of gₜgₜ' for t ≤ t', twice for t < t', (groups, o, n, pairs)."""
        gradients = self.gradients.permute(1, 3, 0, 2, 4)  # (groups, o, n, c, T)
        first, second = _pairs(gradients)
        both = (gradients[..., first] * gradients[..., second]).sum(3)
        return both.mul_(2 - (first == second).to(both))


@dataclass(frozen=True)
class DenseJacobian:
    """The derivatives in a layer's P parameters as they are, (n, c, P)."""

    derivatives: Tensor

    def __getitem__(self, rows: slice) -> DenseJacobian:
        return DenseJacobian(self.derivatives[rows])

    def dense(self) -> Tensor:
        return self.derivatives

    def chunks(self) -> Iterator[DenseJacobian]:
        """Points whose derivatives are few enough."""
        n, c, size = self.derivatives.shape
        points = max(1, _limit(self.derivatives) // (c * size))
        for start in range(0, max(1, n), points):  # no points are a chunk, too
            yield self[start : start + points]


LayerJacobian = MatrixJacobian | DenseJacobian


def from_pairs(values: Tensor, positions: int) -> Tensor:
    """(…, pairs) → symmetric matrices (…, T, T)."""
    first, second = _pairs(values, positions)
    where = torch.empty(positions, positions, dtype=torch.long, device=values.device)
    where[first, second] = where[second, first] = torch.arange(len(first), device=values.device)
    return values[..., where]


def _pairs(values: Tensor, positions: int | None = None) -> Tensor:
    size = values.shape[-1] if positions is None else positions
    return torch.triu_indices(size, size, device=values.device)


def _limit(values: Tensor) -> int:
    return CPU_CHUNK if values.device.type == "cpu" else DEVICE_CHUNK
