"""A Gaussian over the parameters of every layer: a diagonal one, once each layer is seen in the right basis.

Each structure is a diagonal matrix of precisions in some orthonormal basis: that of the parameters (diag), of
the eigenvectors of both Kronecker factors (kron), of the dense matrix's eigenvectors (full). So all that is
ever needed is the derivatives in that basis and one precision for each coordinate. The functions of a block:

- `rotated(piece)`: derivatives in the basis.
- `precisions(tau)`: of its coordinates, with the prior's τ = 1/σ₀² added; of the shape the block likes.
- `back(noise)`: from the basis to parameters, (s, P).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.curvature.all_layers import KRON_FACTORS, NetworkCurvature
from bitbayes.model import DenseJacobian, Layer, LayerJacobian, LayerRecord, MatrixJacobian, from_pairs
from bitbayes.posterior.base import Tensors, eigen, gaussian_noise

Precision = float | Tensor


class Block(Protocol):
    """The functions above, as a type."""

    def rotated(self, piece: LayerJacobian) -> LayerJacobian: ...
    def precisions(self, tau: Precision) -> Tensor: ...
    def back(self, noise: Tensor) -> Tensor: ...
    def to(self, device: torch.device, dtype: torch.dtype) -> Self: ...


@dataclass(frozen=True)
class DiagBlock(Tensors):
    """`values` h (P,): precisions h + τ of the parameters themselves."""

    values: Tensor

    def rotated(self, piece: LayerJacobian) -> LayerJacobian:
        return piece

    def precisions(self, tau: Precision) -> Tensor:
        return self.values + tau

    def back(self, noise: Tensor) -> Tensor:
        return noise


@dataclass(frozen=True)
class KronBlock(Tensors):
    """B/(N·T) = U diag(β) Uᵀ, A = V diag(α) Vᵀ, group by group: precisions βα + τ.

    `output_values` β (groups, o), `output_vectors` U (groups, o, o); `input_values` α (groups, i),
    `input_vectors` V (groups, i, i).
    """

    output_values: Tensor
    output_vectors: Tensor
    input_values: Tensor
    input_vectors: Tensor

    @classmethod
    def of(cls, outputs: Tensor, inputs: Tensor, positions: Tensor) -> Self:
        output_values, output_vectors = eigen(outputs)
        return cls(output_values / positions, output_vectors, *eigen(inputs))

    def rotated(self, piece: LayerJacobian) -> LayerJacobian:
        return _turned(piece, self.input_vectors, self.output_vectors)

    def precisions(self, tau: Precision) -> Tensor:
        return self.output_values[:, :, None] * self.input_values[:, None, :] + tau

    def back(self, noise: Tensor) -> Tensor:
        return (self.output_vectors @ noise @ self.input_vectors.mT).flatten(1)


@dataclass(frozen=True)
class PaperKronBlock(Tensors):
    """The paper's: (B/√(N·T) + τI) ⊗ (A/√(N·T) + τI) for the weights, B + τI for the biases by themselves.

    Damping each factor is not the prior. It is here so that tables can show the paper's formula beside the
    exact one. The last input is the bias's if there is one (`bias`).
    """

    output_values: Tensor
    output_vectors: Tensor
    input_values: Tensor
    input_vectors: Tensor
    positions: Tensor
    bias: bool

    @classmethod
    def of(cls, outputs: Tensor, inputs: Tensor, positions: Tensor, bias: bool) -> Self:
        width = inputs.shape[2] - bias
        input_values, vectors = eigen(inputs[:, :width, :width])
        input_vectors = torch.eye(inputs.shape[2], dtype=vectors.dtype, device=vectors.device).repeat(
            len(inputs), 1, 1
        )
        input_vectors[:, :width, :width] = vectors
        return cls(*eigen(outputs), input_values, input_vectors, positions, bias)

    def rotated(self, piece: LayerJacobian) -> LayerJacobian:
        return _turned(piece, self.input_vectors, self.output_vectors)

    def precisions(self, tau: Precision) -> Tensor:
        root = self.positions.sqrt()
        outputs, inputs = self.output_values[:, :, None], self.input_values[:, None, :]
        weights = (outputs / root + tau) * (inputs / root + tau)
        # τ² leaves the range of numbers long before τ does.
        weights = weights.clamp_min(torch.finfo(weights.dtype).tiny ** 0.75)
        return torch.cat([weights, outputs + tau], dim=2) if self.bias else weights

    def back(self, noise: Tensor) -> Tensor:
        return (self.output_vectors @ noise @ self.input_vectors.mT).flatten(1)


def _turned(piece: LayerJacobian, input_vectors: Tensor, output_vectors: Tensor) -> LayerJacobian:
    """Vᵀa and Uᵀg; where there are more positions than numbers in J, UᵀJV instead."""
    assert isinstance(piece, MatrixJacobian)
    n, groups, c, o, positions = piece.gradients.shape
    size = piece.inputs.shape[2]
    if c * o * size * (o + size) < positions * (c * o**2 + size**2):
        jacobian = piece.dense().reshape(n, c, groups, o, size)
        return DenseJacobian(_without_traces(output_vectors.mT @ jacobian @ input_vectors, 2).flatten(2))
    inputs = piece.inputs.permute(1, 2, 0, 3).flatten(2)  # (groups, i, n·T), as unfolded inputs lie in memory
    inputs = (input_vectors.mT @ inputs).reshape(groups, size, n, positions).permute(2, 0, 1, 3)
    if positions == 1:  # one product instead of one for each point and direction
        gradients = torch.einsum("ngco,gop->ngcp", piece.gradients[..., 0], output_vectors)[..., None]
    else:
        gradients = output_vectors[:, None].mT @ piece.gradients
    return MatrixJacobian(_without_traces(inputs, 2), _without_traces(gradients, 2))


def _without_traces(values: Tensor, axes: int) -> Tensor:
    """Numbers far below the rounding errors that turning them left, as an eigenbasis is full of, made zeros.

    `axes`: how many of the last ones were turned together, so that their rounding errors are alike.
    Their squares, weighted, are denormal numbers, which on a CPU cost ten times the time of others.
    """
    if values.device.type != "cpu":
        return values
    largest = values.abs().amax(tuple(range(-axes, 0)))
    smallest = float(largest[largest > 0].min()) if bool((largest > 0).any()) else 0.0
    return functional.hardshrink(values, torch.finfo(values.dtype).eps ** 2 * smallest)


@dataclass(frozen=True)
class FullBlock(Tensors):
    """`values` h (P,) and `vectors` (P, P) of the dense matrix over all layers: precisions h + τ."""

    values: Tensor
    vectors: Tensor

    def rotated(self, piece: LayerJacobian) -> LayerJacobian:
        return DenseJacobian(_without_traces(piece.dense() @ self.vectors, 1))

    def precisions(self, tau: Precision) -> Tensor:
        return self.values + tau

    def back(self, noise: Tensor) -> Tensor:
        return noise @ self.vectors.T


@dataclass(frozen=True)
class NetworkPosterior:
    """`blocks`, each with its layers: one layer a block, but for "full", which has one block for all."""

    blocks: tuple[tuple[tuple[Layer, ...], Block], ...]

    @classmethod
    def of(cls, curvature: NetworkCurvature, layers: tuple[Layer, ...], *, paper: bool) -> NetworkPosterior:
        """Decompose."""
        if curvature.structure == "full":
            return cls(((layers, FullBlock(*eigen(curvature.sums["hessian"]))),))
        return cls(tuple(((layer,), _block(curvature.sums, layer, paper)) for layer in layers))

    def to(self, device: torch.device, dtype: torch.dtype) -> NetworkPosterior:
        return replace(self, blocks=tuple((layers, block.to(device, dtype)) for layers, block in self.blocks))

    def gram(
        self, recorded: list[LayerRecord], taus: list[dict[str, float]], factor: Tensor | None
    ) -> Tensor:
        """J Σ Jᵀ along the recorded directions, for each prior: (q, n, c, c), times factor[n]²."""
        by_name = {each.layer.name: each for each in recorded}
        total: Tensor | None = None
        for layers, block in self.blocks:
            pieces = [by_name[layer.name].jacobian(factor) for layer in layers]
            piece = pieces[0]
            if isinstance(block, FullBlock):
                piece = DenseJacobian(torch.cat([each.dense() for each in pieces], dim=2))
            weights = [block.precisions(tau[layers[0].name]).reciprocal() for tau in taus]
            more = _gram(block.rotated(piece), weights)
            total = more if total is None else total + more
        assert total is not None
        return total

    def draw(self, n: int, tau: dict[str, float], generator: torch.Generator | None) -> dict[str, Tensor]:
        """Parameters minus their mean by name, each (n, …)."""
        draws = {}
        for layers, block in self.blocks:
            precisions = block.precisions(tau[layers[0].name])
            noise = gaussian_noise(precisions, n, *precisions.shape, generator=generator)
            parameters = torch.split(
                block.back(noise * precisions.rsqrt()), [layer.size for layer in layers], 1
            )
            for layer, part in zip(layers, parameters, strict=True):
                draws.update(layer.split(part))
        return draws

    def largest_precision(self, tau: dict[str, float]) -> Tensor:
        """λ_max(H + τI) = 1/λ_min(Σ), over the parameters of all layers."""
        return torch.stack(
            [block.precisions(tau[layers[0].name]).amax() for layers, block in self.blocks]
        ).amax()

    def log_determinant(self, tau: dict[str, Tensor]) -> Tensor:
        """log det(H + τI), over the parameters of the layers that `tau` names."""
        named = [(tau[layers[0].name], block) for layers, block in self.blocks if layers[0].name in tau]
        return torch.stack([block.precisions(precision).log().sum() for precision, block in named]).sum()


def _block(sums: dict[str, Tensor], layer: Layer, paper: bool) -> Block:
    if f"{layer.name}.diagonal" in sums:
        return DiagBlock(sums[f"{layer.name}.diagonal"])
    outputs, inputs, positions = (sums[f"{layer.name}.{name}"] for name in KRON_FACTORS)
    if paper:
        return PaperKronBlock.of(outputs, inputs, positions, layer.has_bias)
    return KronBlock.of(outputs, inputs, positions)


def _gram(piece: LayerJacobian, weights: list[Tensor]) -> Tensor:
    """Σ_p J_mp w_p J_m'p for each of the weights, (q, n, c, c)."""
    if isinstance(piece, DenseJacobian):
        flat = torch.stack([weight.flatten() for weight in weights], dim=1)  # (P, q)
        return torch.cat([_weighted(part.derivatives, flat) for part in piece.chunks()], dim=1)
    n, groups, c, o, positions = piece.gradients.shape
    many = torch.stack([weight.reshape(groups, o, -1) for weight in weights], dim=3)  # (groups, o, i, q)
    if positions == 1:
        return _gram_of_products(piece, many)
    if len(weights) == 1 and piece.few_positions:
        return torch.cat([_gram_of_pairs(part, many[..., 0]) for part in piece.pair_chunks()])[None]
    grams = piece.inputs.new_zeros(len(weights), n, c, c)
    for points, outputs in piece.chunks():
        jacobian = piece.part(points, outputs).dense()
        grams[:, points] += _weighted(jacobian, many[:, outputs].flatten(0, 2))
    return grams


def _gram_of_products(piece: MatrixJacobian, weights: Tensor) -> Tensor:
    """One position: J = g aᵀ, so Σᵢ aᵢ² w_oi is all that is needed of the inputs."""
    groups, o, _, q = weights.shape
    inputs = piece.inputs[..., 0].square().transpose(0, 1)  # (groups, n, i)
    variances = inputs @ weights.transpose(1, 2).flatten(2)  # (groups, n, o·q)
    variances = variances.reshape(groups, -1, o, q).transpose(0, 1).flatten(1, 2)  # (n, groups·o, q)
    return _weighted(piece.gradients[..., 0].transpose(1, 2).flatten(2), variances)


def _gram_of_pairs(piece: MatrixJacobian, weights: Tensor) -> Tensor:
    """Few positions: Σ over o, t, t' of g_mot K_ott' g_m'ot' with K_ott' = Σᵢ aₜᵢ w_oi aₜ'ᵢ, (n, c, c)."""
    n, groups, _, o, positions = piece.gradients.shape
    kernel = (weights @ piece.input_pairs().flatten(2)).reshape(groups, o, n, -1)
    gradients = piece.gradients.permute(1, 3, 0, 4, 2)  # (groups, o, n, T, c)
    weighted = from_pairs(kernel, positions) @ gradients
    return torch.einsum("gontc,gontd->ncd", gradients, weighted)


def _weighted(roots: Tensor, weights: Tensor) -> Tensor:
    """Σ_p r_mp w_pq r_m'p, (q, n, c, c), from r (n, c, p) and w (p, q), or (n, p, q) for each its own."""
    # What has no square in this precision is nothing, and denormal numbers are slow.
    roots = functional.hardshrink(roots, math.sqrt(torch.finfo(roots.dtype).tiny))
    if weights.shape[-1] == 1:
        roots = roots * weights[..., 0].sqrt().reshape(-1, 1, weights.shape[-2])
        return (roots @ roots.mT)[None]
    # Many weights: each product of two derivatives is formed once.
    n, c, _ = roots.shape
    grams = roots.new_empty(weights.shape[-1], n, c, c)
    for m in range(c):
        column = ((roots[:, m:] * roots[:, m : m + 1]) @ weights).permute(2, 0, 1)  # (q, n, c − m)
        grams[:, :, m, m:] = grams[:, :, m:, m] = column
    return grams
