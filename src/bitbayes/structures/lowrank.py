"""The Kronecker structure for many classes: H ≈ B ⊗ A/N, Σ = (B ⊗ A/N + τI)⁻¹, without a k × k matrix.

B = Σₙ Λₙ over the classes is stored as its diagonal and a rank-r sketch, A = Σₙ φ̃ₙφ̃ₙᵀ in full. Along an
eigenvector of A, with eigenvalue α, the covariance over the classes is σ₀²(I + ρB)⁻¹ with ρ = σ₀²α/N. So the
variances depend on the prior and on α only through ρ. For every prior they follow from one table: the
diagonals of P(I + ρB)⁻¹P at some 300 points of log ρ, between which they are interpolated.

If the rank suffices (for example for r classes or r points) the variances are those of "kron" to 1e-9. The
memory is k(300 + r) + D² numbers. Covariances between logits are not available.
"""

from __future__ import annotations

import math
import operator
import warnings
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Self

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, SketchWarning, level_of_the_caller
from bitbayes.likelihoods import Likelihood
from bitbayes.logits import CovarianceFactors
from bitbayes.model import Head
from bitbayes.precision import to_float64
from bitbayes.prior import LARGEST_VARIANCE
from bitbayes.structures.base import Curvature, Precision, WeightGaussian, eigen
from bitbayes.structures.class_curvature import ClassCurvature
from bitbayes.structures.kron import squared_components
from bitbayes.structures.log_lattice import interpolation, lattice
from bitbayes.structures.sketch import compress
from bitbayes.tensors import second_moments

# Directions of the sketch, and points that go into it at once. A point costs about 10·k·r operations.
RANK = 64
POINTS_AT_ONCE = 2 * RANK
# The smallest τ that the table covers. A smaller τ is replaced by this one.
SMALLEST_PRECISION = 0.01 / LARGEST_VARIANCE
# If ρ·λ_max(B) is below this, I + ρB counts as I.
NEGLIGIBLE = 1e-12
# Warn if δ, or the lost share of B, is above this. At 1 all may be lost, because C ⪯ diag(Σₙ pₙ). Up to this,
# scores and probabilities were within 0.02 and 1e-4 of those of "kron"; at 0.5 scores were off by 2.
LARGE_ERROR = 0.02
# About the number of nodes of the table, to estimate memory.
NODES = 320


@dataclass(frozen=True)
class LowRankCurvature(Curvature):
    """Statistics: A, diag(B), a rank-r sketch of B; all of them sums over N points.

    sums: Σₙ pₙ (k,).
    diagonal: that of B, Σₙ pₙ(1 − pₙ) (k,).
    directions: L (r, k), LᵀL ⪯ C = Σₙ(pₙ − p̄)(pₙ − p̄)ᵀ; its rows sum to zero over the classes.
    error: h (k,), with C − LᵀL ⪯ diag(h): 0 if the rank suffices.
    inputs, count: A (D, D) and N ().
    """

    structure = "lowrank"
    has_cross_covariance = False
    takes_weights = False
    sums: Tensor
    diagonal: Tensor
    directions: Tensor
    error: Tensor
    inputs: Tensor
    count: Tensor

    @classmethod
    def largest_side(cls, outputs: int, width: int) -> int:
        return width

    @classmethod
    def bytes_needed(cls, outputs: int, width: int) -> int:
        # A, sums of it and its eigenvectors; the table in two precisions; directions, and the rows that are
        # compressed into them.
        rows = 3 * NODES // 2 + RANK + 3 * (POINTS_AT_ONCE + RANK)
        return 8 * (6 * width**2 + outputs * rows)

    @classmethod
    def of_features(cls, features: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        return cls.of_moments(second_moments(features), logits, likelihood)

    @classmethod
    def of_moments(cls, moments: Tensor, logits: Tensor, likelihood: Likelihood) -> Self:
        if logits.shape[1] == 1:
            raise ArgumentError("structure='lowrank' is for many classes: use structure='full' for one logit")
        parts = torch.split(logits, POINTS_AT_ONCE)
        # Added one after the other, so that at most one is in memory besides the total.
        total = reduce(operator.add, (cls._of_logits(part, likelihood) for part in parts))
        return replace(total, inputs=moments)

    @classmethod
    def _of_logits(cls, logits: Tensor, likelihood: Likelihood) -> Self:
        """All but A, in whose place is a 0."""
        logits = to_float64(logits)
        p = likelihood.log_probabilities(logits).exp()
        sums, (n, k) = p.sum(0), p.shape
        directions, lost = compress(p - sums / n, sums, min(RANK, k - 1))
        diagonal, none = likelihood.diagonal(logits).sum(0), sums.new_zeros(())
        return cls(sums, diagonal, directions, lost * sums, none, sums.new_full((), n))

    def __add__(self, other: Self) -> Self:
        """Add the moments about the common mean: one extra row holds the difference of the two means."""
        sums, count = self.sums + other.sums, self.count + other.count
        gap = self.sums / self.count - other.sums / other.count
        gap = gap * (self.count * other.count / count).sqrt()
        rank = max(len(self.directions), len(other.directions))
        rows = torch.cat([self.directions, other.directions, gap[None]])
        directions, lost = compress(rows, sums, rank)
        return replace(
            self,
            sums=sums,
            diagonal=self.diagonal + other.diagonal,
            directions=directions,
            error=self.error + other.error + lost * sums,
            inputs=self.inputs + other.inputs,
            count=count,
        )

    def without(self, part: Self, max_ratio: float) -> Self:
        """Raise `ArgumentError`: data cannot be removed from a sketch."""
        raise ArgumentError(
            "structure='lowrank' keeps a sketch, from which no data can be taken out again: fit without "
            "these data, or use structure='diag' or 'kron'"
        )

    def in_any_order(self) -> dict[str, Tensor]:
        """Return all statistics but the sketch, whose error depends on the order of the points."""
        sketch = ("directions", "error")
        return {name: value for name, value in self.tensors().items() if name not in sketch}

    def add_(self, other: Self) -> None:
        total = (self + other.to(self.sums.device)).tensors()
        for name, value in self.tensors().items():
            value.copy_(total[name])

    @property
    def relative_error(self) -> float:
        """The largest possible loss of the sketch: δ with 0 ⪯ C − LᵀL ⪯ δ·diag(Σₙ pₙ); 0 if it is exact."""
        positive = self.sums > 0
        return float((self.error[positive] / self.sums[positive]).max()) if bool(positive.any()) else 0.0

    def head_gaussian(self, head: Head, differences: Tensor | None) -> LowRankGaussian:
        # B of a confident network is a small difference of diag(Σₙ pₙ) and C: a small δ may be much of it.
        share = float(self.error.sum() / self.diagonal.sum()) if bool(self.error.any()) else 0.0
        if max(lost := self.relative_error, share) > LARGE_ERROR:
            warnings.warn(
                f"the {len(self.directions)} directions of structure='lowrank' do not suffice for these "
                f"predictions (δ = {lost:.2g}, {share:.2g} of the curvature): where classes are confused in "
                "many pairs, variances may be much too small for a wide prior. Compare with "
                "structure='kron' or 'diag'",
                SketchWarning,
                stacklevel=level_of_the_caller(),
            )
        classes = ClassCurvature.matched(*map(to_float64, (self.sums, self.diagonal, self.directions)))
        values, vectors = eigen(self.inputs)
        return LowRankGaussian.of(classes, values / to_float64(self.count), vectors)


@dataclass(frozen=True)
class LowRankGaussian(WeightGaussian):
    """A/N = V diag(α) Vᵀ, and over the classes B (`classes`).

    input_values, input_vectors: α (D,) and V (D, D).
    table: the diagonals of P(I + ρB)⁻¹P at the `nodes` of log ρ, (k, nodes).
    log_determinants: log det(I + ρB) there, (nodes,).
    """

    classes: ClassCurvature
    nodes: list[float]
    input_values: Tensor
    input_vectors: Tensor
    table: Tensor
    log_determinants: Tensor
    # A cache: the interpolation weights of the last prior. An exported graph has them as constants.
    _kept: dict[float, Tensor] = field(default_factory=dict, init=False, compare=False, repr=False)

    @classmethod
    def of(cls, classes: ClassCurvature, values: Tensor, vectors: Tensor) -> Self:
        """Compute the table, which takes two products of k·r² operations for each node."""
        # Because B ⪯ diag(s), no eigenvalue exceeds the largest strength.
        low = math.log(NEGLIGIBLE / max(float(classes.strengths.max()), 1e-100))
        high = math.log(max(float(values.max()), 1e-100) / SMALLEST_PRECISION)
        nodes = lattice(low, high)
        table = values.new_empty(len(classes.strengths), len(nodes))
        determinants = values.new_empty(len(nodes))
        for i, node in enumerate(nodes):
            inverse = classes.inverse(math.exp(node))
            table[:, i], determinants[i] = inverse.diagonal(), inverse.log_determinant
        return cls(classes, nodes, values, vectors, table, determinants)

    @property
    def size(self) -> int:
        return len(self.classes.strengths) * len(self.input_values)

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return a copy on a device. Only the tensors that predictions multiply with get the dtype."""
        exact = torch.device("cpu") if device is not None and device.type == "mps" else device
        return replace(
            self,
            classes=self.classes.to(exact),
            input_values=self.input_values.to(exact),
            log_determinants=self.log_determinants.to(exact),
            input_vectors=self.input_vectors.to(device, dtype),
            table=self.table.to(device, dtype),
        )

    def draw(self, n: int, tau: Precision, generator: torch.Generator | None) -> Tensor:
        tau = max(float(tau), SMALLEST_PRECISION)
        width = len(self.input_values)
        drawn = self.input_values.new_empty(n, len(self.classes.strengths), width)
        for i, value in enumerate(self.input_values.tolist()):
            drawn[:, :, i] = self.classes.inverse(value / tau).draw(n, generator)
        weights: Tensor = drawn @ self.input_vectors.to(drawn).T
        return weights / math.sqrt(tau)

    def log_determinant(self, tau: Precision) -> Tensor:
        weights = self._interpolation(tau)
        own = torch.as_tensor(tau, dtype=torch.float64).clamp_min(SMALLEST_PRECISION).log()
        return self.size * own.to(weights.device) + (weights @ self.log_determinants).sum()

    def largest_precision(self, tau: Precision) -> Tensor:
        return self.input_values.amax() * self.classes.largest_eigenvalue() + tau

    def coordinates(self, features: Tensor) -> Tensor:
        """Return the squared coordinates of the features in A's eigenbasis, (n, D)."""
        return squared_components(self.input_vectors, features)

    def covariance(self, coordinates: Tensor, tau: Precision) -> CovarianceFactors:
        tau = max(float(tau), SMALLEST_PRECISION)
        weights = coordinates @ self._prior_weights(tau).to(coordinates)  # (n, nodes)
        shift = coordinates.sum(1) / (tau * len(self.table))
        return CovarianceFactors(weights, None, shift, table=self.table)

    def whiten(self, combinations: Tensor, vectors: Tensor, tau: Precision) -> Tensor:
        """Whiten in A's eigenbasis, where S is diagonal: Σ cᵀσ₀²(I + ρB)⁻¹c over a set's combinations."""
        flat = combinations.flatten(0, 1)
        forms = [self.classes.inverse(math.exp(node)).forms(flat) for node in self.nodes]
        sets = torch.stack(forms, 1).reshape(*combinations.shape[:2], -1).sum(1)  # (s, nodes)
        tau = max(float(tau), SMALLEST_PRECISION)
        variances = sets @ self._interpolation(tau).T / tau  # (s, D)
        return (vectors @ self.input_vectors) * variances.rsqrt()[:, None]

    def _prior_weights(self, tau: float) -> Tensor:
        """Return the weights (D, nodes), in float64, that turn the table into σ₀²(I + ρB)⁻¹."""
        if (made := self._kept.get(tau)) is None:
            with torch.inference_mode(False):  # the cached tensor may be used with autograd later
                made = self._interpolation(tau) / tau
            if type(made) is Tensor:  # not a symbolic tensor of a trace
                self._kept.clear()
                self._kept[tau] = made
        return made

    def _interpolation(self, tau: Precision) -> Tensor:
        """Return the weights (D, nodes), in float64, that turn values at the nodes into those at log(α/τ)."""
        precision = torch.as_tensor(tau, dtype=torch.float64).clamp_min(SMALLEST_PRECISION)
        places = self.input_values.log() - precision.to(self.input_values.device).log()
        return interpolation(places.clamp_min(self.nodes[0]), self.nodes)
