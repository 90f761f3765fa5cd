"""The ReLU-GP residual: the variance of infinitely many ReLU features at the input (arXiv 2010.02709).

k(x) = 1/D Σ_d |x̂_d|³/3, the double-sided cubic spline kernel at (x, x), averaged over the D dimensions of the
input; x̂_d = (x_d − mean_d)/max(deviation_d, floor), with the training data's means and standard deviations.
Every logit gets the variance σ²·max(0, k(x) − threshold) more, independent of all others. It grows like δ³
along every ray, so deviations outgrow means like δ^½ and confidence goes to 1/k classes. The threshold keeps
it away from the data: below it nothing is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError
from bitbayes.model import Inputs
from bitbayes.precision import precise
from bitbayes.tensors import TensorBundle


@dataclass(frozen=True)
class InputMoments(TensorBundle):
    """`count` (), `mean` (D,) and `squares` (D,), the sum of (x − mean)², of inputs; in float64. They add.

    >>> a, b = torch.randn(5, 3), torch.randn(9, 3)
    >>> both = InputMoments.of(as_rows(a)) + InputMoments.of(as_rows(b))
    >>> torch.allclose(both.squares / 14, torch.cat([a, b]).double().var(0, correction=0))
    True
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> InputMoments:
        """The moments of inputs as rows (n, D)."""
        mean = rows.mean(0)
        return cls(torch.tensor(float(len(rows))).to(rows), mean, (rows - mean).square().sum(0))

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

    def check_finite(self) -> InputMoments:
        """Return itself; raise if the inputs' squares overflow."""
        if not bool(self.squares.isfinite().all()):
            raise DataError("the squares of the training inputs overflow float64: scale them down")
        return self

    def split(self, sizes: list[int]) -> list[InputMoments]:
        """The moments of parts of the rows, of these sizes; raises if these are not those of the data."""
        if sum(sizes) != len(self.mean):
            raise DataError(
                f"an input of {sum(sizes)} numbers, but the training data's have {len(self.mean)}: "
                "residual=True needs all of one size"
            )
        parts = (torch.split(each, sizes) for each in (self.mean, self.squares))
        return [InputMoments(self.count, *each) for each in zip(*parts, strict=True)]

    def root_kernel(self, rows: Tensor) -> Tensor:
        """√k(x), (n,) in float64, of inputs as rows (n, D): finite up to 1e200; differentiable in x.

        The floor of the deviations is the root of the mean variance: pixels that are black in all training
        images have no deviation of their own.

        >>> moments = InputMoments.of(torch.tensor([[0.0, 1.0], [2.0, 3.0]]).double())
        >>> moments.root_kernel(torch.tensor([[1.0, 5.0]]).double()) ** 2
        tensor([4.5000], dtype=torch.float64)
        """
        standard = torch.add(*self.standardised(rows))  # (n, D)
        # In units of the largest, so that no cube overflows.
        largest = standard.detach().abs().amax(1).clamp_min(1e-100)
        shape = (standard / largest[:, None]).abs().pow(3).mean(1) / 3
        return largest.pow(1.5) * shape.clamp_min(1e-200).sqrt()

    def standardised(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """x/deviation (n, D) and −mean/deviation (D,). Their sum is x̂; for δ·x the first is δ times that."""
        variances = (self.squares / self.count).to(rows)
        floor = variances.mean()
        # As tensors, so that it traces: 1 where no input varies.
        deviations = torch.maximum(variances, torch.where(floor > 0, floor, 1.0)).sqrt()
        return rows / deviations, -self.mean.to(rows) / deviations


def measurable(inputs: Inputs) -> bool:
    """Whether inputs can have a residual."""
    return isinstance(inputs, Tensor) and inputs.is_floating_point()


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
