"""What all structures share: sums over data that add, and Gaussians that are diagonal in some basis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import Head, Layer, LayerJacobian
from bitbayes.precision import to_float64
from bitbayes.tensors import TensorBundle, check_cancellation

# The prior's precision τ = 1/σ₀²; a tensor where the evidence is differentiated in it.
Precision = float | Tensor


@dataclass(frozen=True)
class Curvature(TensorBundle):
    """A sum over data with no prior in it: `a + b` is the curvature of both data sets."""

    structure: ClassVar[str]
    # Whether it exists over all layers, and not for the last one alone.
    over_all_layers: ClassVar[bool] = False
    # Whether `head_gaussian` needs the matrix of class differences, (k, c).
    in_class_differences: ClassVar[bool] = False
    # Whether the Gaussian over logits has covariances, and not only variances.
    has_cross_covariance: ClassVar[bool] = True

    @classmethod
    def largest_side(cls, outputs: int, width: int) -> int:
        """The side of the largest matrix that a head with these logits and features needs; 0 if none."""
        return 0

    @classmethod
    def bytes_needed(cls, outputs: int, width: int) -> int:
        """An estimate of the memory for such a head in `fit`, `tune` and predictions, without the features.

        `benchmarks/memory_needed.py` measures it.
        """
        return 0

    @classmethod
    def of_features(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        """The last layer's curvature at some points: features φ̃ (n, D), logits (n, k)."""
        raise NotImplementedError

    @classmethod
    def of_moments(cls, moments: Tensor, logits: Tensor, likelihood: Likelihood) -> Self | None:
        """The same from Σ φ̃φ̃ᵀ (D, D), if that is all it needs of the features; else None."""
        return None

    @classmethod
    def of_jacobian(cls, jacobian: LayerJacobian) -> Self:
        """A layer's curvature at some points, from the derivatives of Vᵀf with V Vᵀ = Λₙ."""
        raise NotImplementedError

    def head_gaussian(self, head: Head, differences: Tensor | None) -> WeightGaussian:
        """The Gaussian over the last layer's weights.

        Args:
            head: the last layer.
            differences: the likelihood's class differences (k, c); None if `in_class_differences` is False.
        """
        raise NotImplementedError

    def layer_gaussian(self, layer: Layer) -> WeightGaussian:
        """The Gaussian over a layer's parameters."""
        raise NotImplementedError

    def __add__(self, other: Self) -> Self:
        others = other.tensors()
        return replace(self, **{name: value + others[name] for name, value in self.tensors().items()})

    def without(self, part: Self, max_ratio: float) -> Self:
        """The curvature of the data that remain when a part of them is taken out.

        Raises a `DataError` if that part is all but 1/`max_ratio` of a sum: see `check_cancellation`.
        """
        parts = part.tensors()
        left = replace(self, **{name: value - parts[name] for name, value in self.tensors().items()})
        whole = self.squares()
        for name, value in left.squares().items():
            check_cancellation(whole[name], value, max_ratio)
        return left

    def squares(self) -> dict[str, Tensor]:
        """The sums over squares, which rounding errors are relative to; by default all sums."""
        return self.tensors()

    def in_any_order(self) -> dict[str, Tensor]:
        """The sums that do not depend on the order of the points; by default all sums."""
        return self.tensors()

    def add_(self, other: Self) -> None:
        """Add in place; only on an accumulator you own."""
        others = other.tensors()
        for name, value in self.tensors().items():
            value.add_(others[name].to(value.device))


# All structures by name; `structures/__init__.py` fills it.
CURVATURES: dict[str, type[Curvature]] = {}


@dataclass(frozen=True)
class WeightGaussian(TensorBundle):
    """N(0, (H + τI)⁻¹) over some weights, by the eigenvectors of H: diagonal in their basis.

    A structure gives `precisions` and `to_weights`, from which draws and determinants follow, and the
    functions for the last layer (`coordinates`, `covariance`) and for any layer (`rotate`, `as_head`). The
    prior's τ is an argument, so that another prior costs no decomposition.
    """

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.tensors().values())).dtype

    @property
    def size(self) -> int:
        """The number of weights."""
        return self.precisions(1.0).numel()

    def precisions(self, tau: Precision) -> Tensor:
        """The eigenvalues of H + τI, in a shape that `to_weights` takes."""
        raise NotImplementedError

    def to_weights(self, coordinates: Tensor) -> Tensor:
        """From coordinates (s, …) in the eigenbasis, `…` the shape of `precisions`, to s sets of weights."""
        raise NotImplementedError

    def draw(self, n: int, tau: Precision, generator: torch.Generator | None) -> Tensor:
        """n draws of the weights minus their mean."""
        precisions = self.precisions(tau)
        noise = torch.randn(
            n, *precisions.shape, generator=generator, dtype=precisions.dtype, device=precisions.device
        )
        return self.of_noise(noise, tau)

    def of_noise(self, noise: Tensor, tau: Precision) -> Tensor:
        """Draws of the weights minus their mean, from standard normal noise (n, …) in the eigenbasis."""
        return self.to_weights(noise * self.precisions(tau).rsqrt())

    def log_determinant(self, tau: Precision) -> Tensor:
        """log det(H + τI)."""
        return self.precisions(tau).log().sum()

    def largest_precision(self, tau: Precision) -> Tensor:
        """λ_max(H + τI) = 1/λ_min(Σ)."""
        return self.precisions(tau).amax()

    def coordinates(self, features: Tensor) -> Tensor:
        """Features φ̃ (n, D) in the form that `covariance` takes, which does not depend on the prior.

        Features and coordinates are in the precision of predictions. For wide priors the Gaussian is in
        float64, and so must be every product with its eigenvectors: where the data have no curvature, a wide
        prior amplifies the rounding error of a component that should be 0. Squares may then be rounded.
        """
        raise NotImplementedError

    def covariance(self, coordinates: Tensor, tau: Precision) -> CovarianceFactors:
        """The covariance of the logits at these coordinates, in their precision."""
        raise NotImplementedError

    def mean_pair_variance(self, coordinates: Tensor, tau: Precision, outputs: int) -> Tensor:
        """The mean of Var(fᵢ − fⱼ) over all pairs of k = `outputs` ≥ 2 logits at these coordinates, (n,)."""
        mean = coordinates.new_zeros(len(coordinates), outputs)
        gaussian = LogitGaussian(mean, self.covariance(coordinates, tau), mean[:, 0])
        return gaussian.scaled_mean_pair_variance()

    def joint_covariance(self, features: Tensor, tau: Precision, outputs: int) -> Tensor:
        """The covariance of each of k = `outputs` logits between the points φ̃ (n, D), (k, n, n)."""
        precisions = self.precisions(tau)
        every = torch.eye(precisions.numel(), dtype=precisions.dtype, device=precisions.device)
        every = every.reshape(-1, *precisions.shape) * precisions.rsqrt()
        roots = torch.einsum("pkd,nd->knp", self.to_weights(every), features.to(precisions))
        return roots @ roots.mT

    def whiten(self, combinations: Tensor, vectors: Tensor, tau: Precision) -> Tensor:
        """Vectors g (s, v, D) in coordinates (s, v, …) whose squared norm is gᵀS⁻¹g, of the last layer.

        Args:
            combinations: c (s, m, k). For each of s sets, S (D, D) is the sum of the covariances of Σᵢ cᵢwᵢ
                over its m combinations, wᵢ (D,) the weights of logit i.
            vectors: (s, v, D), v of them for each set.
            tau: the prior's precision.
        """
        precisions = self.precisions(tau)
        every = torch.eye(precisions.numel(), dtype=precisions.dtype, device=precisions.device)
        every = every.reshape(-1, *precisions.shape) * precisions.rsqrt()
        roots = self.to_weights(every)  # (P, k, D), with Σ = Σ_p r_p r_pᵀ
        found = []
        for some, own in zip(combinations, vectors, strict=True):
            rows = torch.einsum("mk,pkd->mpd", some, roots).flatten(0, 1)  # S = rowsᵀ rows
            # Not by S itself, whose condition is the square of that of the rows.
            triangle = torch.linalg.qr(rows, mode="r").R
            found.append(torch.linalg.solve_triangular(triangle.mT, own.mT, upper=False).mT)
        return torch.stack(found)

    def as_head(self, outputs: int) -> WeightGaussian:
        """The Gaussian of a linear layer with this many outputs, in the form that a last layer has."""
        raise NotImplementedError

    def rotate(self, jacobian: LayerJacobian) -> LayerJacobian:
        """A layer's derivatives in the eigenbasis, in which their products need `precisions` alone."""
        raise NotImplementedError


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below zero, and eigenvectors (columns) of a sum of squares, in float64."""
    values, vectors = torch.linalg.eigh(to_float64(matrix))
    # Rounding leaves −1e-16 of the largest where the truth is 0; the prior keeps the sum positive.
    return values.clamp_min(0), vectors
