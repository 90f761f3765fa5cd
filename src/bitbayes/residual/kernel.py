"""The ReLU-GP residual: the variance of infinitely many ReLU features at the input (arXiv 2010.02709).

k(x) = 1/D Σ_d |x̂_d|³/3, the double-sided cubic spline kernel at (x, x), averaged over the D dimensions of the
input; x̂_d = (x_d − mean_d)/max(deviation_d, floor), with the training data's means and standard deviations.
Every logit gets the variance σ²·max(0, k(x) − threshold) more, independent of all others. It grows like δ³
along every ray, so deviations outgrow means like δ^½ and confidence goes to 1/k classes. The threshold keeps
it away from the data: below it nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import Inputs
from bitbayes.precision import precise

# The share of the validation inputs to which tuning lets the residual add nothing.
INSIDE = 0.99


@dataclass(frozen=True)
class InputMoments:
    """`count` (), `mean` (D,) and `squares` (D,), the sum of (x − mean)², of inputs; in float64. They add.

    >>> a, b = torch.randn(5, 3), torch.randn(9, 3)
    >>> both = InputMoments.of(a) + InputMoments.of(b)
    >>> torch.allclose(both.squares / 14, torch.cat([a, b]).double().var(0, correction=0))
    True
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, inputs: Inputs) -> InputMoments:
        x = as_rows(inputs)
        mean = x.mean(0)
        return cls(torch.tensor(float(len(x))).to(x), mean, (x - mean).square().sum(0))

    def __add__(self, other: InputMoments) -> InputMoments:
        if self.mean.shape != other.mean.shape:
            raise DataError(
                f"inputs of {len(self.mean)} and of {len(other.mean)} numbers: "
                "residual=True needs all of one size"
            )
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        # Not Σx² − count·mean²: a mean of 1e9 would leave no digit of the variance.
        between = gap.square() * (self.count * other.count / count)
        return InputMoments(count, mean, self.squares + other.squares + between)

    def root_kernel(self, x: Inputs) -> Tensor:
        """√k(x), (n,) in float64: finite for inputs up to 1e200; differentiable in x.

        The floor of the deviations is the root of the mean variance: pixels that are black in all training
        images have no deviation of their own.

        >>> moments = InputMoments.of(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
        >>> moments.root_kernel(torch.tensor([[1.0, 5.0]])) ** 2
        tensor([4.5000], dtype=torch.float64)
        """
        standard = torch.add(*self.standardised(x))  # (n, D)
        # In units of the largest, so that no cube overflows.
        largest = standard.detach().abs().amax(1).clamp_min(1e-100)
        shape = (standard / largest[:, None]).abs().pow(3).mean(1) / 3
        return largest.pow(1.5) * shape.clamp_min(1e-200).sqrt()

    def along(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For δ·x: x̂ = slope·δ + offset, (n, D) each, and k = Σ_d weight_d |x̂_d|³/3, weights (D,)."""
        slope, offset = self.standardised(x)
        return slope, offset.expand_as(slope), torch.full_like(offset, 1 / len(offset))

    def standardised(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """x/deviation (n, D) and −mean/deviation (D,), whose sum is x̂; for δ·x the first is δ times that."""
        rows = as_rows(x)
        if rows.shape[1] != len(self.mean):
            raise DataError(
                f"an input of {rows.shape[1]} numbers, but the training data's have {len(self.mean)}: "
                "residual=True needs all of one size"
            )
        variances = (self.squares / self.count).to(rows)
        floor = variances.mean()
        # As tensors, so that it traces: 1 where no input varies.
        deviations = torch.maximum(variances, torch.where(floor > 0, floor, 1.0)).sqrt()
        return rows / deviations, -self.mean.to(rows) / deviations


class MomentsSum:
    """The moments of all inputs that have gone by."""

    def __init__(self) -> None:
        self.moments: InputMoments | None = None

    def see(self, inputs: Inputs) -> None:
        more = InputMoments.of(inputs)
        self.moments = more if self.moments is None else self.moments + more

    def total(self) -> InputMoments:
        """Raises if they overflow."""
        assert self.moments is not None
        if not bool(self.moments.squares.isfinite().all()):
            raise DataError("the squares of the training inputs overflow float64: scale them down")
        return self.moments


class Residual(NamedTuple):
    """The residual with its two numbers: σ² and the threshold."""

    moments: InputMoments
    variance: float
    threshold: float

    def join(self, gaussian: LogitGaussian, x: Inputs) -> LogitGaussian:
        """The Gaussian over logits at x with the residual's variance."""
        return widened(gaussian, self.moments.root_kernel(x), self.variance, self.threshold)


def widened(gaussian: LogitGaussian, root: Tensor, variance: float, threshold: float) -> LogitGaussian:
    """The Gaussian with σ²·max(0, k − threshold) more in each logit; `root` √k (n,), `variance` σ².

    Its scale becomes at least its largest mean, so that k ~ scale³ stays within float32 in its units.
    """
    mean, (weights, factor, shift) = gaussian.mean, gaussian.spread
    unit = torch.maximum(gaussian.scale, mean.detach().abs().amax(1))  # (n,)
    squared = (gaussian.scale / unit).square()
    inside = threshold / root.square().clamp_min(1e-200)
    extra = variance * (root / unit.to(root)).square() * (1 - inside).clamp_min(0)
    extra = extra.clamp_max(torch.finfo(mean.dtype).max ** 0.75).to(mean)[:, None]
    weights, shift = weights * squared[:, None], shift * squared
    if factor is None:
        return LogitGaussian(mean, CovarianceFactors(weights + extra, None, shift), unit)
    k = mean.shape[1]
    identity = torch.eye(k, dtype=mean.dtype, device=mean.device).expand(*factor.shape[:-1], k)
    weights = torch.cat([weights, extra.expand(-1, k)], dim=1)
    return LogitGaussian(mean, CovarianceFactors(weights, torch.cat([factor, identity], dim=-1), shift), unit)


class Watched:
    """A loader, or the inputs themselves, that shows the inputs of every batch to `see` as it goes by."""

    def __init__(self, loader: Iterable[Any], see: Callable[[Inputs], None]) -> None:
        self.loader, self.see = loader, see

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            # What is no batch at all is left to those who ask for its labels.
            self.see(batch[0] if isinstance(batch, (tuple, list)) and len(batch) else batch)
            yield batch

    def __len__(self) -> int:
        return len(self.loader) if isinstance(self.loader, Sized) else 0


def shown(data: Inputs | Iterable[Any], see: Callable[[Inputs], None]) -> Inputs | Iterable[Any]:
    """The data, every batch of which is shown to `see` as it goes by."""
    if isinstance(data, (Tensor, Mapping)):
        see(data)
        return data
    return Watched(data, see)


class Roots:
    """√k of the inputs that have gone by, to be taken in their order."""

    def __init__(self, moments: InputMoments) -> None:
        self.moments, self.waiting = moments, list[Tensor]()

    def see(self, inputs: Inputs) -> None:
        self.waiting.append(self.moments.root_kernel(inputs))

    def take(self, n: int) -> Tensor:
        """The first n, (n,)."""
        every = torch.cat(self.waiting)
        self.waiting = [every[n:]]
        return every[:n]


def as_rows(inputs: Inputs) -> Tensor:
    """(n, D) in float64; raises on inputs for which a distance from the data means nothing."""
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        kind = (
            f"of {inputs.dtype}"
            if isinstance(inputs, Tensor)
            else "in a mapping"
            if isinstance(inputs, Mapping)
            else f"of type {type(inputs).__name__}"
        )
        raise ArgumentError(
            f"the residual measures how far an input lies from the data, which means nothing for inputs "
            f"{kind}: use residual=False"
        )
    return precise(inputs.flatten(1))
