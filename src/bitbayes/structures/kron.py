"""H ≈ B ⊗ A/N. The prior is added to each product of eigenvalues: Σ = (B ⊗ A/N + τI)⁻¹, exactly.

Last layer: B = Σₙ Λₙ and A = Σₙ φ̃ₙφ̃ₙᵀ over N points. A layer with T positions: B = Σ ggᵀ and A = Σ aaᵀ over N
points and T positions, divided by N·T. Exact for one point with one position, and whenever Λ does not depend
on φ̃.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors
from bitbayes.model import DenseJacobian, Head, Layer, LayerJacobian, MatrixJacobian
from bitbayes.precision import to_float64
from bitbayes.structures.base import Curvature, Precision, WeightGaussian, eigen, scaled_rows
from bitbayes.tensors import second_moments


@dataclass(frozen=True)
class KronCurvature(Curvature):
    """`outputs` B (…, o, o), `inputs` A (…, i, i), `count` () = N·T.

    A layer has a leading axis for the groups of a convolution. The last layer has none, and its B is stored
    along the class differences, (c, c).
    """

    structure = "kron"
    over_all_layers = True
    in_class_differences = True
    outputs: Tensor
    inputs: Tensor
    count: Tensor

    @classmethod
    def largest_side(cls, outputs: int, width: int) -> int:
        return max(outputs, width)

    @classmethod
    def bytes_needed(cls, outputs: int, width: int) -> int:
        # The last term: precisions of the candidates that `tune` compares at once.
        return 8 * (6 * outputs**2 + 5 * width**2 + 6 * outputs * width)

    @classmethod
    def of_features(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        return cls.of_moments(second_moments(features), logits, likelihood)

    @classmethod
    def of_moments(cls, moments: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        outputs = likelihood.total_curvature(to_float64(logits))
        return cls(outputs, moments, moments.new_full((), len(logits)))

    @classmethod
    def of_weighted_features(
        cls, features: Tensor, logits: Tensor, likelihood: Likelihood, weights: Tensor
    ) -> Self:
        """B = Σ wΛ, A = Σ wφ̃φ̃ᵀ and N = Σ w."""
        outputs = likelihood.total_curvature(to_float64(logits), weights)
        return cls(outputs, second_moments(scaled_rows(features, weights)), weights.sum())

    @classmethod
    def of_jacobian(cls, jacobian: LayerJacobian) -> Self:
        assert isinstance(jacobian, MatrixJacobian)
        n, _, _, _, positions = jacobian.gradients.shape
        return cls(
            _second_moments(jacobian.gradients.transpose(0, 1).flatten(1, 2)),
            _second_moments(jacobian.inputs.transpose(0, 1)),
            jacobian.inputs.new_full((), n * positions, dtype=torch.float64),
        )

    @classmethod
    def of_weighted_jacobian(cls, jacobian: LayerJacobian, weights: Tensor) -> Self:
        """B = Σ w ggᵀ, A = Σ w aaᵀ and N·T = Σ w T."""
        assert isinstance(jacobian, MatrixJacobian)
        roots, positions = weights.sqrt(), jacobian.inputs.shape[3]
        inputs = jacobian.inputs * roots.to(jacobian.inputs)[:, None, None, None]
        found = cls.of_jacobian(MatrixJacobian(inputs, jacobian.scaled(roots).gradients))
        return replace(found, count=weights.sum() * positions)

    def squares(self) -> dict[str, Tensor]:
        outputs, inputs = (each.diagonal(dim1=-2, dim2=-1) for each in (self.outputs, self.inputs))
        return {"outputs": outputs, "inputs": inputs, "count": self.count}

    def head_gaussian(self, head: Head, differences: Tensor | None) -> KronGaussian:
        assert differences is not None
        k, c = differences.shape
        values, vectors = eigen(self.outputs)
        vectors = differences.to(vectors) @ vectors  # (k, c)
        if k > c:  # the common shift of the logits, which has no curvature
            shift = torch.full_like(vectors[:, :1], k**-0.5)
            values, vectors = torch.cat([values, values.new_zeros(1)]), torch.cat([vectors, shift], dim=1)
        return KronGaussian(values / self.count, vectors, *eigen(self.inputs), k > c)

    def layer_gaussian(self, layer: Layer) -> KronGaussian:
        values, vectors = eigen(self.outputs)
        return KronGaussian(values / self.count, vectors, *eigen(self.inputs), False)


@dataclass(frozen=True)
class KronGaussian(WeightGaussian):
    """B/N = U diag(β) Uᵀ and A = V diag(α) Vᵀ: precisions βα + τ, (…, o, i).

    `output_values` β (…, o), `output_vectors` U (…, o, o), `input_values` α (…, i), `input_vectors` V
    (…, i, i). `shift`: whether the last column of U is the common shift of all logits (β = 0).
    """

    output_values: Tensor
    output_vectors: Tensor
    input_values: Tensor
    input_vectors: Tensor
    shift: bool

    def precisions(self, tau: Precision) -> Tensor:
        products = self.output_values[..., :, None] * self.input_values[..., None, :]
        # A graph of all layers, with its derivatives, is traced without writes.
        return products + tau if torch.compiler.is_compiling() else products.add_(tau)

    def to_weights(self, coordinates: Tensor) -> Tensor:
        return self.output_vectors @ coordinates @ self.input_vectors.mT

    def coordinates(self, features: Tensor) -> Tensor:
        """Squared coordinates of the features in A's eigenbasis, (n, D)."""
        return squared_components(self.input_vectors, features)

    def covariance(self, coordinates: Tensor, tau: Precision) -> CovarianceFactors:
        # In place: a matrix of k × D for each candidate of a tuning takes longer to allocate than to fill.
        inverse = self.precisions(tau).reciprocal_().to(coordinates)
        variances = (inverse @ coordinates.T).T  # (n, k)
        vectors = self.output_vectors.to(coordinates)
        if not self.shift:
            return CovarianceFactors(variances, vectors, torch.zeros_like(variances[:, 0]))
        shift = variances[:, -1] / variances.shape[1]
        return CovarianceFactors(variances[:, :-1], vectors[:, :-1], shift)

    def mean_pair_variance(self, coordinates: Tensor, tau: Precision, outputs: int) -> Tensor:
        """With a common shift it does without `covariance`, which takes a product of n·k·D.

        U is orthonormal, and its columns but the last are centred. So tr(PCP) is the sum of their variances.
        """
        if not self.shift:
            return super().mean_pair_variance(coordinates, tau, outputs)
        total = self.precisions(tau).reciprocal_()[:-1].sum(0)  # (D,)
        return coordinates @ (total * (2 / (outputs - 1))).to(coordinates)

    def joint_covariance(self, features: Tensor, tau: Precision, outputs: int) -> Tensor:
        """In A's eigenbasis: no matrix of all weights is needed."""
        rotated = features.to(self.input_vectors) @ self.input_vectors  # (n, D)
        inverse = self.precisions(tau).reciprocal()  # (k, D)
        variances = self.output_vectors.square() @ inverse  # (k, D)
        return (rotated * variances[:, None]) @ rotated.mT

    def whiten(self, combinations: Tensor, vectors: Tensor, tau: Precision) -> Tensor:
        """In A's eigenbasis, in which S is diagonal: Σ over c and b of (Uᵀc)_b²/(β_bα_a + τ)."""
        along = (combinations @ self.output_vectors).square().sum(1)  # (s, k)
        variances = along @ self.precisions(tau).reciprocal()  # (s, D)
        return (vectors @ self.input_vectors) * variances.rsqrt()[:, None]

    def as_head(self, outputs: int) -> KronGaussian:
        factors = ("output_values", "output_vectors", "input_values", "input_vectors")
        return replace(self, **{name: getattr(self, name)[0] for name in factors})  # without the groups

    def rotate(self, jacobian: LayerJacobian) -> LayerJacobian:
        """Vᵀa and Uᵀg; or UᵀJV, if J is given, or if that is cheaper because of many positions."""
        if isinstance(jacobian, DenseJacobian):
            return self._rotate_dense(jacobian.dense())
        n, groups, c, o, positions = jacobian.gradients.shape
        size = jacobian.inputs.shape[2]
        if c * o * size * (o + size) < positions * (c * o**2 + size**2):
            return self._rotate_dense(jacobian.dense())
        inputs = jacobian.inputs.permute(1, 2, 0, 3).flatten(2)  # (groups, i, n·T), as they lie in memory
        inputs = (self.input_vectors.mT @ inputs).reshape(groups, size, n, positions).permute(2, 0, 1, 3)
        if positions == 1:  # one product instead of one for each point and direction
            gradients = torch.einsum("ngco,gop->ngcp", jacobian.gradients[..., 0], self.output_vectors)[
                ..., None
            ]
        else:
            gradients = self.output_vectors[:, None].mT @ jacobian.gradients
        return MatrixJacobian(flush_rounding_noise(inputs, 2), flush_rounding_noise(gradients, 2))

    def _rotate_dense(self, jacobian: Tensor) -> DenseJacobian:
        """UᵀJV of J (n, c, P)."""
        groups, o, size = (*self.output_vectors.shape[:2], self.input_vectors.shape[2])
        dense = jacobian.reshape(*jacobian.shape[:2], groups, o, size)
        rotated = self.output_vectors.mT @ dense @ self.input_vectors
        return DenseJacobian(flush_rounding_noise(rotated, 2).flatten(2))


def squared_components(vectors: Tensor, features: Tensor) -> Tensor:
    """Squares of the components of features (n, D) along the columns of vectors, (n, D).

    A view of (D, n), for speed, in the features' precision.
    """
    squares = (vectors.T @ features.T.to(vectors.dtype)).square().to(features.dtype)
    # Tiny squares become 0: a dead unit's 1e-40 would slow a product down fivefold.
    return functional.threshold(squares, 1e8 * torch.finfo(squares.dtype).tiny, 0.0).T


def flush_rounding_noise(values: Tensor, axes: int) -> Tensor:
    """Set values to zero that are far below the rounding errors of a rotation.

    Squared and weighted, they would be denormal numbers, with which a CPU takes ten times as long.

    Args:
        values: what was rotated.
        axes: how many of the last axes were rotated together, and so have rounding errors of one size.
    """
    if values.device.type != "cpu" or torch.compiler.is_compiling():  # a graph's values are not known
        return values
    largest = values.abs().amax(tuple(range(-axes, 0)))
    smallest = float(largest[largest > 0].min()) if bool((largest > 0).any()) else 0.0
    return functional.hardshrink(values, torch.finfo(values.dtype).eps ** 2 * smallest)


def _second_moments(columns: Tensor) -> Tensor:
    """Σ over n and T of x xᵀ, (groups, d, d), from x (groups, n, d, T)."""
    moments = [_second_moment(each) for each in columns]
    return moments[0][None] if len(moments) == 1 else torch.stack(moments)  # it may be large


def _second_moment(columns: Tensor) -> Tensor:
    """Σ over n and T of x xᵀ, (d, d), from x (n, d, T)."""
    if columns.shape[2] == 1:  # as in `of_features`; for many positions it would take half as long again
        columns = to_float64(columns)
    if columns.stride(0) < columns.stride(1):  # the points of a row are adjacent in memory
        rows = columns.transpose(0, 1).flatten(1)  # (d, n·T)
        return rows @ rows.T
    _, d, positions = columns.shape
    if positions > d and not columns.mT.is_contiguous():
        return (columns @ columns.mT).sum(0)
    rows = columns.mT.reshape(-1, d)
    return rows.T @ rows
