"""Regression with a noise that depends on x: outputs f (mean) and s, y = f + noise of variance σ²·exp(s).

Λ = diag(exp(−s), ½) in units of σ², the curvature of −log p averaged over y. The Gaussian is over the heads
of both outputs. σ² is a factor on the model's own noise: 1 if that is right. The prior variance of a weight
of the mean is σ₀²σ², of one of s it is σ₀².
"""

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.likelihoods.gaussian import Gaussian
from bitbayes.logits import LogitGaussian

# Beyond this the logarithm of a noise variance is cut off, so that all numbers are finite in float32.
LARGEST_LOG_NOISE = 40.0
# Up to this variance of s the mean of exp(s) says what the noise is like. Beyond it the mean is that of a few
# huge values: half of all draws are below exp(s̄), however large it is.
LARGEST_VARIANCE = 1.0


class Heteroscedastic(Gaussian):
    """One value with a Gaussian noise of its own variance: the outputs are its mean and log variance."""

    name = "heteroscedastic"
    over_all_layers = False
    wanted_outputs = "it needs two, the mean and the logarithm of the noise variance"

    def takes(self, outputs: int) -> bool:
        return outputs == 2

    def targets(self, outputs: int) -> int:
        return 1

    # ---- labels and loss

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """½[s + (y − f)²e⁻ˢ], (n,), in units of the noise and without ½ log 2π."""
        log_noise = outputs[:, 1]
        return (log_noise + (labels - outputs[:, :1]).square()[:, 0] * (-log_noise).exp()) / 2

    def squared_errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(y − f)²e⁻ˢ, (n, 1)."""
        return (labels - outputs[:, :1]).square() * (-outputs[:, 1:]).exp()

    # ---- the curvature of the loss at the outputs

    def curvature(self, outputs: Tensor) -> Tensor:
        return torch.diag_embed(self.diagonal(outputs))

    def diagonal(self, outputs: Tensor) -> Tensor:
        precision = (-outputs[:, 1]).exp()
        return torch.stack([precision, torch.full_like(precision, 0.5)], dim=1)

    def root(self, outputs: Tensor) -> Tensor:
        return torch.diag_embed(self.diagonal(outputs).sqrt())

    def draw(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """(εe^(−s/2), (ε² − 1)/2) for a normal ε, (n, 2): the derivative of log p at a drawn value."""
        noise = torch.randn(len(outputs), generator=generator, dtype=outputs.dtype, device=outputs.device)
        return torch.stack([noise * (-outputs[:, 1] / 2).exp(), (noise.square() - 1) / 2], dim=1)

    # ---- predictions

    def values(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of the noise variance exp(s) over the Gaussian of s is exp(s̄ + ½ Var s), Var s ≤ 1."""
        means, variances = gaussian.mean, gaussian.variances()
        log_noise = means[:, 1:] + variances[:, 1:].clamp_max(LARGEST_VARIANCE) / 2
        return means[:, :1], variances[:, :1], log_noise.clamp(-LARGEST_LOG_NOISE, LARGEST_LOG_NOISE).exp()

    # ---- far from the data

    def require_rays(self) -> None:
        """Raise: a noise of exp(s) has no slope."""
        raise ArgumentError(
            f"likelihood={self.name!r}: its noise variance exp(s) changes exponentially along a ray, so "
            "there are no limits, bounds and certificates. They are for likelihood='gaussian', whose noise "
            "is the same everywhere. Here, look at `predict(delta * x)` for some delta"
        )
