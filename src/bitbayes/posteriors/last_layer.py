"""The Gaussian over the weights of the last layer, in place in its network."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from bitbayes import rays
from bitbayes.closed_forms import FEW_CLASSES
from bitbayes.errors import ArgumentError, ModelError
from bitbayes.logits import LogitGaussian, rescale
from bitbayes.model import (
    Batch,
    DeferredChecks,
    FeatureBatch,
    FeaturePasses,
    Head,
    Observer,
    forward,
    recorded_levels,
)
from bitbayes.posteriors.base import (
    SMALLEST_NOISE,
    BatchGaussians,
    Choice,
    LogitsByPrior,
    Noise,
    Passed,
    WeightPosterior,
)
from bitbayes.precision import float64_or, prediction_dtype, without_autocast
from bitbayes.prior import Prior, variance_grid
from bitbayes.rays import BoundRequest, ExactHead, RayGaussian
from bitbayes.structures import Curvature, FullCurvature, WeightGaussian

# Numbers in the features of one step of tuning: large enough to amortise kernel launches.
STEP_NUMBERS = 2**20
# Predictions for small batches are computed together, up to so many points, to amortise kernel launches.
JOINED_ROWS = 1024
# The most logits in one step of tuning, for each of the candidates that are compared at once.
STEP_LOGITS = 2**20
# The most positions of validation data that are kept, and the most bytes of their features and logits. They
# determine two numbers, and the mean loss of 8,192 points is known to about one percent of its spread.
KEPT_POSITIONS, KEPT_BYTES = 2**13, 2**28
# Up to this prior variance the rounding of float32, eps² of a squared feature, is negligible in a variance.
WIDE = 1e4
# How many numbers the full structure may hold at once: rows of the Hessian's width, c for each point.
FULL_NUMBERS = 2**23


@dataclass(frozen=True)
class HeadLogitsByPrior:
    """The Gaussians over some points' logits: mean/scale (n, k), `scale` (n,), features' `coordinates`."""

    gaussian: WeightGaussian
    layer: str
    coordinates: Tensor
    scaled_mean: Tensor
    scale: Tensor

    def at(self, prior: Prior) -> LogitGaussian:
        tau = prior.precision(self.layer, self.scale.dtype)
        with without_autocast(self.scale.device):
            factors = self.gaussian.covariance(self.coordinates, tau)
        return LogitGaussian(self.scaled_mean, factors, self.scale)

    def mean_pair_variance(self, prior: Prior) -> Tensor:
        tau, outputs = prior.precision(self.layer, self.scale.dtype), self.scaled_mean.shape[1]
        with without_autocast(self.scale.device):
            return self.gaussian.mean_pair_variance(self.coordinates, tau, outputs)

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        coordinates = [each.coordinates for each in parts]
        if coordinates[0].is_contiguous():
            rows = torch.cat(coordinates)
        else:  # in the layout that their structure has chosen for speed
            rows = torch.cat([each.mT for each in coordinates], dim=1).mT
        return replace(
            parts[0],
            coordinates=rows,
            scaled_mean=torch.cat([each.scaled_mean for each in parts]),
            scale=torch.cat([each.scale for each in parts]),
        )

    def select(self, indices: Tensor) -> Self:
        parts = {name: getattr(self, name)[indices] for name in ("coordinates", "scaled_mean", "scale")}
        return replace(self, **parts)


class LastLayer(WeightPosterior):
    """The Gaussian over the weights of the head of `model`, for any prior variance."""

    over_all_layers = False

    @property
    def head(self) -> Head:
        """The last layer."""
        weights = self.fitted.weights
        assert isinstance(weights, Head)
        return weights

    @property
    def rows_per_step(self) -> int:
        rows = STEP_NUMBERS // self.head.width
        return self._affordable(max(1, min(rows, STEP_LOGITS // self.head.outputs)))

    @property
    def most_points(self) -> int | None:
        if not self.layout.positions:
            return None
        return max(1, min(KEPT_POSITIONS, KEPT_BYTES // (8 * (self.head.width + self.head.outputs))))

    # ---- predicting

    def forward(self, x: Any, prior: Prior, observer: Observer | None) -> Passed:
        network, levels = self.network(), () if observer is None else observer.levels
        with recorded_levels(network, levels, x) as recorded:
            features, logits, shape = forward(network, self.head, x)
        gaussian = self._by_prior(features, logits, wide=self._is_wide(prior)).at(prior)
        distances = None if observer is None else observer.look(recorded())
        return Passed(gaussian, shape, distances, features)

    def logits(self, batch: Batch, prior: Prior) -> tuple[Batch, LogitGaussian]:
        with DeferredChecks() as checks:
            points = FeaturePasses(self.network(), self.head, checks).run(batch)
        assert points is not None  # it has no labels
        points = points.observed()
        return points, self._by_prior(points.features, points.logits, wide=self._is_wide(prior)).at(prior)

    def gaussians(self, batches: Iterable[Batch], prior: Prior, rows: int) -> BatchGaussians:
        wide = self._is_wide(prior)
        for batch, by_prior in self._logits_by_prior(batches, self._affordable(rows), wide=wide):
            yield batch, by_prior.at(prior)

    def joint_covariance(self, passed: Passed, prior: Prior) -> Tensor:
        features = passed.features
        assert features is not None  # of a pass by `forward`
        device, dtype = features.device, prediction_dtype(features.dtype)
        with without_autocast(device):
            precision = float64_or(device, dtype)
            gaussian = self.moved(device, precision)[self.head.name]
            scaled, scale = rescale(features.to(precision), self.head.bias)
            tau = prior.precision(self.head.name, dtype)
            own = gaussian.joint_covariance(scaled, tau, self.head.outputs)
            return (own * scale[:, None] * scale).to(dtype)

    def sample(
        self,
        n: int,
        prior: Prior,
        generator: torch.Generator | None,
        temperature: float = 1.0,
        noise: Noise = None,
        class_bias: Tensor | None = None,
    ) -> dict[str, Tensor]:
        if class_bias is not None and not self.head.bias:
            raise ArgumentError(
                "a class bias is a part of the last layer's bias, and this one has none to draw: use "
                "`predict_proba(method='mc')`, or tune without class_bias=True"
            )
        weight = next(self._head_tensors())
        dtype = prediction_dtype(weight.dtype)
        gaussian = self.moved(weight.device, dtype)[self.head.name]
        draws = gaussian.draw(n, prior.precision(self.head.name, dtype), generator)  # (n, k, D)
        if noise is not None:
            assert isinstance(noise, tuple)
            units = torch.tensor(self._units(noise), dtype=dtype, device=weight.device).sqrt()
            draws = draws * units[:, None]
        network = self.network()
        # W*/T + noise is W* and more noise. An adapter adds to W*, so W* itself is not replaced.
        draws = draws + (1 / temperature - 1) * self.head.weights(network).to(draws)
        if class_bias is not None:
            draws[..., -1] += class_bias.to(draws) / temperature
        return self.head.draws(network, draws)

    # ---- choosing the prior

    def candidates(self) -> list[float]:
        # Fewer for many classes: a candidate's covariances take a product of n·k·D.
        return variance_grid(100 if self.head.outputs <= FEW_CLASSES else 49)

    def logits_by_prior(
        self, batches: Iterable[Batch], choose: Choice | None = None
    ) -> Iterator[tuple[Batch, LogitsByPrior]]:
        return self._logits_by_prior(batches, self.rows_per_step, choose=choose)

    def squared_norm(self, name: str, noise: Noise = None) -> float:
        if not isinstance(noise, tuple):
            return super().squared_norm(name, noise)
        return float(sum(each / own for each, own in zip(self._norms(), self._units(noise), strict=True)))

    def best_noise(self, prior: Prior) -> tuple[float, ...]:
        """The noise variance of each output with the largest evidence: (Σ(y − f)² + τ‖w‖²)/n."""
        tau, fitted = 1 / float(prior.of(self.head.name)), self.fitted
        return tuple(
            max((errors + tau * norm) / fitted.total_weight, SMALLEST_NOISE)
            for errors, norm in zip(fitted.squared_errors, self._norms(), strict=False)
        )

    def _units(self, noise: tuple[float, ...]) -> list[float]:
        """The noise variance of each output; 1 for those that are no values."""
        return [*noise, *[1.0] * (self.outputs - len(noise))]

    def _norms(self) -> list[float]:
        """‖w‖² of the weights of each output, its bias included."""
        weights = self.head.weights(self.network()).detach().double()  # (k, D)
        norms: list[float] = weights.square().sum(1).tolist()
        return norms

    # ---- far from the data

    def rays(self, x: Tensor, prior: Prior, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        self._refuse_positions()
        return rays.last_layer_rays(self._exact(prior), x, find_alpha=find_alpha, tolerance=tolerance)

    def bound(self, x: Tensor | None, prior: Prior, request: BoundRequest) -> Tensor:
        self._refuse_positions()
        return rays.bound(self._exact(prior), request)

    # ---- inside

    def _exact(self, prior: Prior) -> ExactHead:
        return ExactHead(self.network(), self.head, self.decomposed()[self.head.name], prior)

    def _refuse_positions(self) -> None:
        if self.layout.positions:
            raise ModelError(
                "limits, bounds and certificates are about one row of logits for each input, and this "
                "model's output has positions"
            )

    def _head_tensors(self) -> Iterator[Tensor]:
        """The floating-point parameters and buffers of the head."""
        modules = self.head.modules(self.model).values()
        tensors = (each for module in modules for each in (*module.parameters(), *module.buffers()))
        return (each for each in tensors if each.is_floating_point())

    def _decompose(self, name: str, curvature: Curvature) -> WeightGaussian:
        k, needed = self.head.outputs, curvature.in_class_differences
        differences = self.likelihood.differences(k) if needed else None  # (k, c)
        return curvature.head_gaussian(self.head, differences)

    def _affordable(self, rows: int) -> int:
        """That many rows, or fewer if full covariances would take too much memory."""
        curvature = self.fitted.curvature[self.head.name]
        if not isinstance(curvature, FullCurvature):
            return rows
        # c rows of the Hessian's width for each point; one class difference needs none.
        differences = len(curvature.hessian) // self.head.width
        if differences == 1:
            return rows
        return max(1, min(rows, FULL_NUMBERS // (len(curvature.hessian) * differences)))

    def _logits_by_prior(
        self,
        batches: Iterable[Batch],
        rows: int,
        choose: Choice | None = None,
        *,
        wide: bool = True,
    ) -> Iterator[tuple[FeatureBatch, HeadLogitsByPrior]]:
        """The points of all batches, at most `rows` at a time, and their Gaussians; see `_by_prior`."""
        with DeferredChecks() as checks:
            for points in self._joined_points(batches, min(rows, JOINED_ROWS), checks):
                for part in points.observed().split(rows):
                    chosen = None if choose is None else choose(len(part.logits))
                    part = part if chosen is None else part.select(chosen)
                    yield part, self._by_prior(part.features, part.logits, wide=wide)

    def _joined_points(
        self, batches: Iterable[Batch], rows: int, checks: DeferredChecks
    ) -> Iterator[FeatureBatch]:
        """The points of the batches, labels checked; small batches are joined, up to so many rows."""
        passes = FeaturePasses(self.network(), self.head, checks)
        waiting: list[FeatureBatch] = []
        for batch in batches:
            points = passes.run(batch)
            if points is None:
                continue
            if points.labels is not None:
                shape = len(points.logits), self.outputs
                labels = self.likelihood.check_labels(points.labels, shape, points.name, checks)
                points = replace(points, labels=labels)
            if waiting and (self.layout.positions or sum(map(len, waiting)) + len(points) > rows):
                yield FeatureBatch.joined(waiting)
                waiting = []
            waiting.append(points)
            checks.end_batch()
        if waiting:
            yield FeatureBatch.joined(waiting)
        if passes.skipped:
            passes.refuse_no_points()

    def _is_wide(self, prior: Prior) -> bool:
        """Whether products in float32 would add to the variances."""
        return float(prior.of(self.head.name)) > WIDE

    def _by_prior(self, features: Tensor, logits: Tensor, *, wide: bool = True) -> HeadLogitsByPrior:
        """The Gaussians for any prior; without `wide` only up to σ₀² = `WIDE`, which needs no float64."""
        device, dtype = features.device, prediction_dtype(features.dtype)
        with without_autocast(device):
            precision = float64_or(device, dtype) if wide else dtype
            gaussian = self.moved(device, precision)[self.head.name]
            scaled, scale = rescale(features.to(dtype), self.head.bias)
            coordinates = gaussian.coordinates(scaled)
        mean = logits.to(dtype) / scale[:, None]
        return HeadLogitsByPrior(gaussian, self.head.name, coordinates, mean, scale)
