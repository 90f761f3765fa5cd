"""The last layer's Gaussian, in place in its network. `AllLayers` has the same functions over all layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes import rays as infinity
from bitbayes.curvature import FullCurvature, NetworkCurvature
from bitbayes.errors import ModelError
from bitbayes.fitting import Fitted
from bitbayes.logits import LogitGaussian, rescale
from bitbayes.model import (
    Head,
    Inputs,
    forward,
    grouped,
    observe,
    observe_inputs,
)
from bitbayes.posterior import Posterior, posterior_of
from bitbayes.precision import widest, without_autocast, working
from bitbayes.predictive import FEW
from bitbayes.prior import candidates
from bitbayes.rays import RayGaussian

# Features wait until they are worth one matrix product. Bytes, not batches, so that memory is bounded.
TUNE_BYTES = 2**22
# What the covariances of some points may take.
NUMBERS = 2**23


class LastLayer:
    """The Gaussian over the weights of the head of `model`, for any prior variance."""

    def __init__(self, model: nn.Module, fitted: Fitted, *, paper: bool) -> None:
        assert isinstance(fitted.part, Head) and not isinstance(fitted.curvature, NetworkCurvature)
        self.model, self.fitted, self.paper = model, fitted, paper
        self.head, self.curvature = fitted.part, fitted.curvature
        self._decomposed: Posterior | None = None
        self._working: tuple[torch.device, torch.dtype, Posterior] | None = None

    # ---- predicting

    def forward(self, x: Any, prior_variance: float) -> tuple[LogitGaussian, tuple[int, ...]]:
        """The Gaussian over logits at x, differentiable, and the shape of the model's own output."""
        features, logits, shape = forward(self.model, self.head, x)
        return self._gaussian(features, logits)(prior_variance), shape

    def logits(self, x: Inputs, prior_variance: float) -> LogitGaussian:
        """The Gaussian over logits at x."""
        ((features, logits),) = observe_inputs(self.model, self.head, x)
        return self._gaussian(features, logits)(prior_variance)

    def gaussians(
        self, data: Inputs | Iterable[Any], prior_variance: float, rows: int
    ) -> Iterator[LogitGaussian]:
        """The same for batches, at most `rows` points at a time."""
        for batch in observe_inputs(self.model, self.head, data):
            for features, logits in self._cut(batch, rows):
                yield self._gaussian(features, logits)(prior_variance)

    def sample(self, n: int, prior_variance: float, generator: torch.Generator | None) -> dict[str, Tensor]:
        """n draws of the head's weights by name."""
        module = self.head.module(self.model)
        if not isinstance(module.weight, nn.Parameter):
            raise ModelError(
                f"the head {self.head.name!r} makes its weight of other parameters (a weight norm?), which "
                "have no draws: remove that first (torch.nn.utils.parametrize.remove_parametrizations)"
            )
        dtype = working(module.weight.dtype)
        posterior = self.posterior(module.weight.device, dtype)
        noise = posterior.draw(n, min(prior_variance, widest(dtype)), generator)  # (n, k, D)
        noise = noise.to(module.weight.dtype)
        draws = [module.weight + noise[:, :, : self.head.inputs]]
        if self.head.bias:
            draws.append(module.bias + noise[:, :, -1])
        return dict(zip(self.head.parameter_names(), draws, strict=True))

    # ---- choosing the prior

    def candidates(self) -> list[float]:
        """Prior variances worth trying: fewer where each costs much, for all pairs of many classes."""
        return candidates() if self.head.outputs <= FEW else candidates(33)

    def labelled(
        self, loader: Iterable[Any], see: Callable[[Inputs], None]
    ) -> Iterator[tuple[Callable[[float], LogitGaussian], Tensor]]:
        """For points with labels the Gaussian as a function of the prior variance, and the labels."""
        points = observe(self.model, self.head, loader, self.fitted.likelihood.check, see)
        for group in grouped(points, TUNE_BYTES):
            for features, logits, labels in self._cut(group):
                yield self._gaussian(features, logits), labels

    def unlabelled(
        self, data: Inputs | Iterable[Any]
    ) -> Iterator[tuple[Callable[[float], LogitGaussian], None]]:
        """The same for points without labels."""
        for group in grouped(observe_inputs(self.model, self.head, data), TUNE_BYTES):
            for features, logits in self._cut(group):
                yield self._gaussian(features, logits), None

    def log_evidence(self, prior_variance: Tensor) -> Tensor:
        """log p(D | W*) − ½[τ‖W*‖² − P log τ + log det(H + τI)]."""
        weights = self.head.outputs * self.head.width
        occam = self.fitted.squared_norm / prior_variance + weights * prior_variance.log()
        return -self.fitted.loss - (occam + self._decompose().log_determinant(prior_variance)) / 2

    # ---- at infinity

    def rays(
        self, x: Tensor, prior_variance: float, *, find_alpha: bool, tolerance: float
    ) -> Iterator[RayGaussian]:
        """The Gaussian over logits along the rays δ·x; without `find_alpha` only at infinity."""
        parts = self.model, self.head, self._decompose(), prior_variance
        return infinity.last_layer_rays(*parts, x, find_alpha=find_alpha, tolerance=tolerance)

    def bound(self, x: Tensor | None, prior_variance: float, method: str) -> Tensor:
        """A confidence that no ray's limit exceeds, whatever its x."""
        return infinity.bound(self.model, self.head, self._decompose(), prior_variance, method)

    # ---- inside

    def _cut(self, batch: tuple[Tensor, ...], most: int | None = None) -> Iterator[tuple[Tensor, ...]]:
        """At most so many points at a time, and not so many that full covariances take much memory."""
        rows = len(batch[0]) if most is None else most
        if isinstance(self.curvature, FullCurvature) and self.head.outputs > 1:
            # c rows of the Hessian's width for each point.
            rows = min(rows, NUMBERS // (len(self.curvature.hessian) * (self.head.outputs - 1)))
        return zip(*(torch.split(each, max(1, rows)) for each in batch), strict=True)

    def posterior(self, device: torch.device, dtype: torch.dtype) -> Posterior:
        """The posterior where and in the precision that predictions are made."""
        if self._working is None or self._working[:2] != (device, dtype):
            self._working = (device, dtype, self._decompose().to(device, dtype).real())
        return self._working[2]

    def _decompose(self) -> Posterior:
        """The posterior in float64; made once."""
        if self._decomposed is None:
            contrasts = self.fitted.likelihood.contrasts(self.head.outputs)
            made = posterior_of(self.curvature, contrasts, bias=self.head.bias, paper=self.paper)
            self._decomposed = made.real()
        return self._decomposed

    def _gaussian(self, features: Tensor, logits: Tensor) -> Callable[[float], LogitGaussian]:
        """The Gaussian over logits as a function of the prior variance."""
        dtype = working(features.dtype)
        posterior = self.posterior(features.device, dtype)
        scaled, scale = rescale(features.to(dtype), self.head.bias)
        with without_autocast(features.device):
            coordinates, mean = posterior.coordinates(scaled), logits.to(dtype)

        def at(variance: float) -> LogitGaussian:
            with without_autocast(features.device):
                return LogitGaussian(mean, posterior.spread(coordinates, min(variance, widest(dtype))), scale)

        return at
