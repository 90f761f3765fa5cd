"""Predictions of values: a mean, what is not known of the function, and the noise, apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import Likelihood
from bitbayes.logits import LogitGaussian
from bitbayes.precision import to_float64
from bitbayes.settings import Settings

# What every prediction has, (n, k) each.
NUMBERS = ("mean", "variance", "noise_variance")


@dataclass(frozen=True)
class Prediction:
    """N(mean, variance + noise_variance) for k values at each of n points; what `Laplace.predict` returns.

    mean: (n, k), the model's own output.
    variance: (n, k), of the function f: it is small where there are data, and grows away from them.
    noise_variance: (n, k), of y around f, which more data would not reduce.
    covariance: (k, n, n), of f between the points, if it was asked for (`joint=True`). Its diagonal is
        `variance`.
    function_deviation: (n, k), the root of `variance`, also where that is cut off because it overflows.

    >>> p = Prediction(torch.zeros(1, 1), torch.full((1, 1), 9.0), torch.full((1, 1), 16.0))
    >>> float(p.deviation), [round(each, 2) for each in p.interval(0.95).flatten().tolist()]
    (5.0, [-9.8, 9.8])
    """

    mean: Tensor
    variance: Tensor
    noise_variance: Tensor
    covariance: Tensor | None = None
    function_deviation: Tensor | None = None

    @property
    def total_variance(self) -> Tensor:
        """The variance of y, (n, k)."""
        return self.variance + self.noise_variance

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of y, (n, k)."""
        if self.function_deviation is None:
            return self.total_variance.sqrt()
        noise = self.noise_variance.sqrt()
        unit = torch.maximum(self.function_deviation, noise)  # no square of a ratio overflows
        return unit * ((self.function_deviation / unit).square() + (noise / unit).square()).sqrt()

    def interval(self, coverage: float = 0.9) -> Tensor:
        """Return the interval around the mean that y lies in with this probability, (n, k, 2).

        Args:
            coverage: the probability, between 0 and 1.
        """
        if not isinstance(coverage, (int, float)) or not 0 < coverage < 1:
            raise ArgumentError(f"coverage={coverage!r}: expected a number between 0 and 1")
        quantile = math.sqrt(2) * torch.erfinv(torch.tensor(coverage, dtype=torch.float64)).item()
        half = quantile * self.deviation
        return torch.stack([self.mean - half, self.mean + half], dim=-1)

    @classmethod
    def of(cls, gaussian: LogitGaussian, likelihood: Likelihood, settings: Settings) -> Prediction:
        """The prediction from the Gaussian over the outputs, with the noise variance of the settings."""
        mean, variance, noise = likelihood.values(gaussian)
        largest = torch.finfo(mean.dtype).max / 4  # so that the sum of both variances is finite, too
        deviation = gaussian.deviations()[:, : mean.shape[1]]
        noise = noise * settings.noise_variances(mean)
        return cls(mean, variance.clamp_max(largest), noise, function_deviation=deviation)

    @classmethod
    def joined(cls, parts: Iterable[Prediction]) -> Prediction:
        """The points of all parts, without their covariance."""
        every = list(parts)
        found = cls(*(torch.cat([getattr(each, name) for each in every]) for name in NUMBERS))
        deviations = [each.function_deviation for each in every if each.function_deviation is not None]
        return replace(found, function_deviation=torch.cat(deviations)) if deviations else found

    def to_float64(self) -> Prediction:
        """The same on the CPU and in float64, for measures."""
        found = Prediction(*(to_float64(getattr(self, name).cpu()) for name in NUMBERS))
        deviation = self.function_deviation
        return replace(found, function_deviation=None if deviation is None else to_float64(deviation.cpu()))
