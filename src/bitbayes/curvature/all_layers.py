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
from bitbayes.network import Layer, MatrixPiece, Piece, Recorded
from bitbayes.precision import precise

# Numbers that a chunk of explicit derivatives may hold: few enough to stay in the cache.
CHUNK = 2**20
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


def network_sums(structure: str, recorded: list[Recorded]) -> dict[str, Tensor]:
    """The sums of some points, from their derivatives along the columns of V."""
    if structure == "full":
        return {"hessian": _hessian([each.piece() for each in recorded])}
    sums = {}
    for each in recorded:
        piece = each.piece()
        factors = (
            _factors(piece) if structure == "kron" and isinstance(piece, MatrixPiece) else _diagonal(piece)
        )
        sums.update({f"{each.layer.name}.{factor}": value for factor, value in factors.items()})
    return sums


def _hessian(pieces: list[Piece]) -> Tensor:
    jacobian = torch.cat([piece.jacobian() for piece in pieces], dim=2).flatten(0, 1)  # (n·c, P)
    return precise(jacobian.T @ jacobian)


def _diagonal(piece: Piece) -> dict[str, Tensor]:
    if isinstance(piece, MatrixPiece) and piece.inputs.shape[3] == 1:
        # One position: the square of a product is the product of the squares.
        outputs = piece.gradients[..., 0].square().sum(2)  # (n, groups, o)
        inputs = piece.inputs[..., 0].square()  # (n, groups, i)
        return {"diagonal": precise(torch.einsum("ngo,ngi->goi", outputs, inputs).flatten())}
    total: Tensor | None = None
    for part in chunks(piece):
        square = part.jacobian().square_() if isinstance(part, MatrixPiece) else part.jacobian().square()
        more = precise(square.sum((0, 1)))
        total = more if total is None else total + more
    assert total is not None
    return {"diagonal": total}


def _factors(piece: MatrixPiece) -> dict[str, Tensor]:
    n, groups, _, _, positions = piece.gradients.shape
    inputs = torch.stack([_second_moment(piece.inputs[:, group]) for group in range(groups)])
    outputs = torch.stack(
        [_second_moment(piece.gradients[:, group].flatten(0, 1)) for group in range(groups)]
    )
    return {
        "outputs": precise(outputs),
        "inputs": precise(inputs),
        "positions": precise(inputs.new_tensor(float(n * positions))),
    }


def _second_moment(columns: Tensor) -> Tensor:
    """Σ over n and T of x xᵀ, (d, d), from x (n, d, T)."""
    _, d, positions = columns.shape
    if positions > d and not columns.mT.is_contiguous():
        return (columns @ columns.mT).sum(0)
    rows = columns.mT.reshape(-1, d)
    return rows.T @ rows


def chunks(piece: Piece) -> list[Piece]:
    """Points by the handful, so that explicit derivatives stay within `CHUNK` numbers."""
    if isinstance(piece, MatrixPiece):
        n, groups, c, o, _ = piece.gradients.shape
        size = groups * o * piece.inputs.shape[2]
    else:
        n, c, size = piece.derivatives.shape
    rows = max(1, CHUNK // (size * c))
    return [piece[start : start + rows] for start in range(0, n, rows)]
