"""Regression: y = f + noise of variance σ² for each output, Λ = I in units of σ².

The posterior is in units of the noise, too: the prior variance of a weight is σ₀²σ², and so Σ = σ²(H + τI)⁻¹
with H = Σₙ φ̃ₙφ̃ₙᵀ, τ = 1/σ₀². Nothing then depends on the units of the targets, each output may have a noise
variance of its own, and another one costs no decomposition.
"""

from typing import ClassVar

import torch
from torch import Tensor

from bitbayes.likelihoods.base import ClosedForm, Likelihood
from bitbayes.logits import LogitGaussian


def mean(gaussian: LogitGaussian) -> Tensor:
    """The mean of the outputs, (n, k)."""
    return gaussian.mean


class Gaussian(Likelihood):
    """k ≥ 1 values with Gaussian noise. A label is a row of k real numbers."""

    name = "gaussian"
    closed_forms: ClassVar[dict[str, ClosedForm]] = {"mean": mean}
    with_bounds = ("mean",)
    kappa = 1.0  # z is the mean by the deviation of y, with both in units of the noise
    has_temperature = False
    one_label = False
    classifies = False
    has_positions = False
    has_noise = True

    def takes(self, outputs: int) -> bool:
        return True

    # ---- labels and loss

    def valid_labels(self, labels: Tensor, k: int) -> tuple[Tensor, Tensor | bool, str]:
        """Finite real numbers; integers are accepted."""
        expected = "expected finite real numbers"
        if labels.is_complex() or labels.dtype == torch.bool:
            return labels.real.double(), False, expected
        if not labels.is_floating_point():
            return labels.double(), True, expected
        return labels, labels.isfinite().all(), expected

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """½‖y − f‖², (n,): in units of the noise and without its normalisation, which follow from sums."""
        return (labels - outputs).square().sum(1) / 2

    def squared_errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (labels - outputs).square()

    # ---- the curvature of the loss at the outputs

    def differences(self, k: int, device: torch.device | None = None) -> Tensor:
        return torch.eye(k, dtype=torch.float64, device=device)

    def curvature(self, outputs: Tensor) -> Tensor:
        """Λₙ = I, (n, k, k)."""
        k = outputs.shape[1]
        return torch.eye(k, dtype=outputs.dtype, device=outputs.device).expand(len(outputs), k, k)

    def diagonal(self, outputs: Tensor) -> Tensor:
        return torch.ones_like(outputs)

    def root(self, outputs: Tensor) -> Tensor:
        return self.curvature(outputs)

    def draw(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """y − f for values drawn from the model, (n, k)."""
        return torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)

    # ---- predictions

    def default_predictive(self, outputs: int, has_cross_covariance: bool) -> str:
        return "mean"

    def values(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor, Tensor]:
        mean = gaussian.mean
        return mean, gaussian.variances(), torch.ones_like(mean)

    # ---- scores

    def score(self, gaussian: LogitGaussian) -> Tensor:
        """−½ log Var(f), averaged over the values: larger where more is known of the function."""
        variances = gaussian.scaled_variances()[:, : self.targets(gaussian.scaled_mean.shape[1])]
        smallest = torch.finfo(gaussian.scale.dtype).tiny
        return -variances.clamp_min(smallest).log().mean(1) / 2 - gaussian.scale.log()

    # ---- far from the data

    def require_rays(self) -> None:
        """There are limits and certificates of |mean|/deviation."""

    def far_confidence(self, outputs: int) -> float:
        """|mean|/deviation: the deviation outgrows every mean."""
        return 0.0

    def centre(self, values: Tensor) -> Tensor:
        return values

    def scaled_centred(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor]:
        return gaussian.scaled_mean, gaussian.scaled_variances()

    def largest_probability(self, low: Tensor, high: Tensor) -> Tensor:
        """The largest |z| of any output."""
        return torch.maximum(high, -low).amax(1)
