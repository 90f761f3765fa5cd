"""The curvature Σₙ Jₙᵀ Λₙ Jₙ over every layer (the generalised Gauss-Newton matrix), in three structures.

Λₙ = V Vᵀ, so with the derivatives of Vᵀf it is a sum of squares. A curvature is a frozen value of named sums
over data, `layer.factor`; `a + b` is the curvature of both data sets.

- diag: `diagonal` (P,) = Σₙ Σ_m J², point by point; exact on the diagonal, zero elsewhere.
- kron: `outputs` (groups, o, o) = Σ ggᵀ, `inputs` (groups, i, i) = Σ aaᵀ over N points and T positions,
  `positions` () = N·T: H ≈ outputs ⊗ inputs / positions. Norm layers as in diag.
- full: `hessian` (P, P) over all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.errors import ModelError
from bitbayes.model import DenseJacobian, Layer, LayerJacobian, LayerRecord, MatrixJacobian
from bitbayes.precision import precise

# Parameters of a dense matrix: 0.8 GB in float64, and minutes for its eigendecomposition.
WIDEST = 10_000
NETWORK_STRUCTURES = ("kron", "diag", "full")
KRON_FACTORS = ("outputs", "inputs", "positions")


@dataclass(frozen=True)
class NetworkCurvature:
    """`structure`, and its sums by name."""

    structure: str
    sums: dict[str, Tensor]

    def __add__(self, other: NetworkCurvature) -> NetworkCurvature:
        sums = {name: self.sums[name] + other.sums[name] for name in self.sums}
        return NetworkCurvature(self.structure, sums)


def check_width(layers: tuple[Layer, ...]) -> None:
    """Raise if a dense matrix over all parameters is out of the question."""
    width = sum(layer.size for layer in layers)
    if width > WIDEST:
        raise ModelError(
            f"structure='full' over all {width:,} parameters would need a matrix of "
            f"{8 * width**2 / 1e9:,.1f} GB: use structure='kron' or 'diag', or freeze "
            f"parameters (requires_grad_(False)) until {WIDEST:,} are left"
        )


def sum_names(structure: str, layers: tuple[Layer, ...]) -> list[str]:
    """The names of all sums of a structure over these layers."""
    if structure == "full":
        return ["hessian"]
    names = []
    for layer in layers:
        kron = structure == "kron" and layer.kind == "matrix"
        names += [f"{layer.name}.{factor}" for factor in (KRON_FACTORS if kron else ("diagonal",))]
    return names


def network_sums(structure: str, recorded: list[LayerRecord]) -> dict[str, Tensor]:
    """The sums of some points, from their derivatives along the columns of V; to be added up in float64."""
    if structure == "full":
        return {"hessian": _hessian([each.jacobian() for each in recorded])}
    sums = {}
    for each in recorded:
        piece = each.jacobian()
        factors = (
            _factors(piece) if structure == "kron" and isinstance(piece, MatrixJacobian) else _diagonal(piece)
        )
        sums.update({f"{each.layer.name}.{factor}": value for factor, value in factors.items()})
    return sums


def _hessian(pieces: list[LayerJacobian]) -> Tensor:
    # Precise before the product: float32 would leave nothing of eigenvalues below 1e-7 of the largest, and
    # these are what a wide prior is about.
    jacobian = precise(torch.cat([piece.dense() for piece in pieces], dim=2).flatten(0, 1))  # (n·c, P)
    return jacobian.T @ jacobian


def _diagonal(piece: LayerJacobian) -> dict[str, Tensor]:
    if isinstance(piece, DenseJacobian):
        return {"diagonal": precise(piece.derivatives.square().sum((0, 1)))}
    _, groups, _, o, _ = piece.gradients.shape
    total = precise(piece.inputs.new_zeros(groups, o, piece.inputs.shape[2]))
    if piece.few_positions:
        # (Σₜ gₜaₜ)² = Σ over pairs of gₜgₜ'·aₜaₜ'; for one position the square of a product.
        for part in piece.pair_chunks():
            total += precise(part.gradient_pairs().flatten(2) @ part.input_pairs().flatten(2).mT)
    else:
        for points, outputs in piece.chunks():
            squares = piece.part(points, outputs).dense().square_().sum((0, 1))
            total[:, outputs] += precise(squares.reshape(groups, -1, total.shape[2]))
    return {"diagonal": total.flatten()}


def _factors(piece: MatrixJacobian) -> dict[str, Tensor]:
    n, _, _, _, positions = piece.gradients.shape
    return {
        "outputs": _second_moments(piece.gradients.transpose(0, 1).flatten(1, 2)),
        "inputs": _second_moments(piece.inputs.transpose(0, 1)),
        "positions": piece.inputs.new_tensor(n * positions, dtype=torch.float64),
    }


def _second_moments(columns: Tensor) -> Tensor:
    """Σ over n and T of x xᵀ, (groups, d, d), from x (groups, n, d, T)."""
    moments = [_second_moment(each) for each in columns]
    return moments[0][None] if len(moments) == 1 else torch.stack(moments)  # one of them may be large


def _second_moment(columns: Tensor) -> Tensor:
    """Σ over n and T of x xᵀ, (d, d), from x (n, d, T)."""
    if columns.shape[2] == 1:  # precise as in `_hessian`; for many positions it would take half as long again
        columns = precise(columns)
    if columns.stride(0) < columns.stride(1):  # all points of a row lie together
        rows = columns.transpose(0, 1).flatten(1)  # (d, n·T)
        return rows @ rows.T
    _, d, positions = columns.shape
    if positions > d and not columns.mT.is_contiguous():
        return (columns @ columns.mT).sum(0)
    rows = columns.mT.reshape(-1, d)
    return rows.T @ rows
