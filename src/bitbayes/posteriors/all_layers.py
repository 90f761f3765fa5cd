"""The Gaussian over the parameters of all layers of a network, which is linearised at its trained weights."""

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from bitbayes import rays
from bitbayes.errors import ArgumentError
from bitbayes.fitted import Fitted
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import (
    Batch,
    DeferredChecks,
    LayerRecord,
    Observer,
    TrainableLayers,
    as_logits,
    call,
    check_finite,
    differentiate,
    model_device,
    points_at_once,
    recorded_levels,
    row_count,
    run_levels,
    working_dtype,
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
from bitbayes.precision import without_autocast
from bitbayes.prior import Prior, variance_grid
from bitbayes.rays import BoundRequest, ExactNetwork, RayGaussian
from bitbayes.structures import Curvature, NetworkGaussian, WeightGaussian, gram_root

# Candidates that are compared, and the priors at which their covariances are computed (see
# `interpolation_weights`).
CANDIDATES, NODES = 55, 18
# A network has many more weights than a layer: the same variance of its logits takes less variance in each.
SMALLEST_NETWORK_VARIANCE, LARGEST_NETWORK_VARIANCE = 1e-8, 1e4


@dataclass(frozen=True)
class InterpolatedLogits:
    """The Gaussians over the logits of some points, for any prior variance that all layers share.

    mean/scale (n, k), `scale` (n,). `roots` (q, n, c, r) of the covariance / scale² along the directions
    (k, c), at the prior variances whose logarithms are `nodes` (q,). Without directions c = k.
    """

    nodes: tuple[float, ...]
    directions: Tensor | None
    scaled_mean: Tensor
    roots: Tensor
    scale: Tensor

    def at(self, prior: Prior) -> LogitGaussian:
        weights = interpolation_weights(self.nodes, math.log(float(prior.of("")))).to(self.roots)  # (q,)
        with without_autocast(self.roots.device):
            root = (weights @ self.roots.flatten(1)).reshape(self.roots.shape[1:])
        return gaussian_of(self.scaled_mean, root, self.directions, self.scale)

    def mean_pair_variance(self, prior: Prior) -> Tensor:
        return self.at(prior).scaled_mean_pair_variance()

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        return replace(
            parts[0],
            scaled_mean=torch.cat([each.scaled_mean for each in parts]),
            roots=torch.cat([each.roots for each in parts], dim=1),
            scale=torch.cat([each.scale for each in parts]),
        )

    def select(self, indices: Tensor) -> Self:
        mean, roots, scale = self.scaled_mean[indices], self.roots[:, indices], self.scale[indices]
        return replace(self, scaled_mean=mean, roots=roots, scale=scale)


class AllLayers(WeightPosterior):
    """The Gaussian over all trainable parameters of `model`, for any prior."""

    over_all_layers = True

    def __init__(self, model: nn.Module, fitted: Fitted) -> None:
        super().__init__(model, fitted)
        assert isinstance(fitted.weights, TrainableLayers)
        self.layers = fitted.weights.layers
        self.differences = self.likelihood.differences(self.outputs)  # (k, c)
        # The passes back for each point that memory must allow.
        self._passes = self.outputs
        self._rows_by_shape: dict[torch.Size, int] = {}

    @property
    def chosen(self) -> dict[str, Tensor]:
        """Which weights are uncertain: a mask of each parameter that has any, by its name in the model."""
        every = {}
        for layer in self.layers:
            every.update(layer.split(torch.ones(1, layer.uncertain, dtype=torch.bool)))
        return {name: mask[0] for name, mask in every.items() if mask.any()}

    # ---- predicting

    def forward(self, x: Any, prior: Prior, observer: Observer | None) -> Passed:
        """The mean is differentiable in x, its covariance is not."""
        network, levels = self.network(), () if observer is None else observer.levels
        with recorded_levels(network, levels, x) as recorded:
            output = call(network, x)
        with torch.no_grad():
            gaussian = self._gaussian(Batch(x, None, "the input"), prior, self.differences)
        mean = as_logits(output, row_count(x)).to(gaussian.scale.dtype) / gaussian.scale[:, None]
        distances = None if observer is None else observer.look(recorded())
        return Passed(replace(gaussian, scaled_mean=mean), tuple(output.shape), distances)

    def logits(self, batch: Batch, prior: Prior) -> tuple[Batch, LogitGaussian]:
        every, batch = torch.eye(self.outputs, dtype=torch.float64), self._observed(batch)
        parts = [self._gaussian(part, prior, every) for part in self._parts([batch])]
        return batch, LogitGaussian.stacked(parts)

    def gaussians(self, batches: Iterable[Batch], prior: Prior, rows: int) -> BatchGaussians:
        for part in self._parts(self._checked(batches), rows):
            yield part, self._gaussian(part, prior, self.differences)

    def sample(
        self,
        n: int,
        prior: Prior,
        generator: torch.Generator | None,
        temperature: float = 1.0,
        noise: Noise = None,
        class_bias: Tensor | None = None,
    ) -> dict[str, Tensor]:
        gaussian = self._network(model_device(self.model), working_dtype(self.model))
        draws = gaussian.draw(n, prior, generator)
        if noise is not None:
            assert isinstance(noise, float)
            draws = {name: each * math.sqrt(noise) for name, each in draws.items()}
        means = {name: self.model.get_parameter(name).detach() for name in draws}
        return {name: means[name] + noise.to(means[name].dtype) for name, noise in draws.items()}

    # ---- choosing the prior

    def candidates(self) -> list[float]:
        return variance_grid(CANDIDATES, SMALLEST_NETWORK_VARIANCE, LARGEST_NETWORK_VARIANCE)

    @property
    def noise_variance(self) -> float:
        fitted = self.fitted
        return max(sum(fitted.squared_errors) / (fitted.total_weight * self.outputs), SMALLEST_NOISE)

    @property
    def rows_per_step(self) -> int:
        return 1  # one batch amortises its kernel launches

    def logits_by_prior(
        self, batches: Iterable[Batch], choose: Choice | None = None
    ) -> Iterator[tuple[Batch, LogitsByPrior]]:
        nodes = variance_grid(NODES, SMALLEST_NETWORK_VARIANCE, LARGEST_NETWORK_VARIANCE)
        logarithms = tuple(math.log(node) for node in nodes)
        for part in self._parts(self._checked(batches)):
            mean, roots, scale = self._roots(part, [Prior(node) for node in nodes], self.differences)
            yield part, InterpolatedLogits(logarithms, self.differences, mean, roots, scale)

    # ---- far from the data

    def rays(self, x: Tensor, prior: Prior, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        return rays.all_layers_rays(self._exact(prior), x, find_alpha=find_alpha, tolerance=tolerance)

    def bound(self, x: Tensor | None, prior: Prior, request: BoundRequest) -> Tensor:
        if x is None:
            raise ArgumentError("over all layers each ray has a bound of its own: give its x, `bound(x)`")
        return rays.all_layers_bound(self._exact(prior), x, request)

    # ---- inside

    def _decompose(self, name: str, curvature: Curvature) -> WeightGaussian:
        layer = next((layer for layer in self.layers if layer.name == name), self.layers[0])
        return curvature.layer_gaussian(layer)

    def _network(self, device: torch.device, dtype: torch.dtype) -> NetworkGaussian:
        return NetworkGaussian(self.layers, self.moved(device, dtype))

    @torch.inference_mode(False)  # what is made here may need derivatives
    def _exact(self, prior: Prior) -> ExactNetwork:
        """A copy of the network in float64, and the Gaussian over its parameters."""
        gaussian = self._network(model_device(self.model), torch.float64)
        network = copy.deepcopy(self.network()).double()
        return ExactNetwork(network, gaussian, prior, self.differences)

    def _checked(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches with their labels checked."""
        for batch in batches:
            if batch.labels is not None:
                with DeferredChecks() as checks:
                    shape = len(batch), self.outputs
                    labels = self.likelihood.check_labels(batch.labels, shape, batch.name, checks)
                batch = replace(batch, labels=labels)
            yield self._observed(batch)

    def _observed(self, batch: Batch) -> Batch:
        """The batch with its distances, by a pass of its own, which costs little beside the derivatives."""
        observer = batch.observer
        if observer is None:
            return batch
        with torch.no_grad():
            rows = run_levels(self.network(), observer.levels, batch.inputs)
            return replace(batch, observer=None, distances=observer.look(rows))

    def _parts(self, batches: Iterable[Batch], most: int | None = None) -> Iterator[Batch]:
        """Batches cut to what memory allows, but not mappings, whose tensors may depend on each other."""
        for batch in batches:
            if not isinstance(batch.inputs, Tensor) or not len(batch):
                yield batch
                continue
            rows = self._rows_at_once(batch.inputs)
            yield from batch.split(rows if most is None else min(rows, most))

    def _rows_at_once(self, inputs: Tensor) -> int:
        """How many points memory allows; computed once for each shape of input."""
        shape = inputs.shape[1:]
        if shape not in self._rows_by_shape:
            network = self.network()
            self._rows_by_shape[shape] = points_at_once(network, self.layers, inputs, self._passes)
        return self._rows_by_shape[shape]

    def _gaussian(self, batch: Batch, prior: Prior, directions: Tensor) -> LogitGaussian:
        """The Gaussian over logits in the span of the directions (k, c)."""
        mean, (root,), scale = self._roots(batch, [prior], directions)
        return gaussian_of(mean, root, directions, scale)

    def _roots(self, batch: Batch, priors: list[Prior], directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mean/scale (n, k), roots L (q, n, c, c) of covariance/scale² in the directions, and scale (n,)."""
        network = self.network()
        with without_autocast(model_device(network)):
            logits, records = differentiate(
                network, self.layers, batch.inputs, lambda f: directions.to(f).expand(f.shape[0], -1, -1)
            )
            if working_dtype(network) != next(network.parameters()).dtype:
                # The mean is the network's own.
                logits = as_logits(call(network, batch.inputs), len(batch)).to(logits)
            if not torch.compiler.is_compiling():  # a trace has no values
                check_finite(batch, logits, logits, network)
            gram, scale = self._gram(records, priors, logits)
            lift = 4 * gram.shape[-1] * torch.finfo(gram.dtype).eps
            roots = gram_root(gram, lift).to(logits)
        # In units of the largest logit at least, so that what a residual adds stays in the range of float32.
        unit = torch.maximum(scale, logits.abs().amax(1))
        return logits / unit[:, None], roots * (scale / unit)[:, None, None], unit

    def _gram(self, records: list[LayerRecord], priors: list[Prior], like: Tensor) -> tuple[Tensor, Tensor]:
        """J Σ Jᵀ / scale² (q, n, c, c), and scale (n,), which is 1 unless it would overflow."""
        network, scale = self._network(like.device, like.dtype), torch.ones_like(like[:, 0])
        by_name = {record.layer.name: record for record in records}
        if not torch.compiler.is_compiling():  # a traced graph cannot branch on values
            gram = network.gram(lambda layer: by_name[layer.name].jacobian(), priors)
            largest = torch.finfo(gram.dtype).max ** 0.75
            if not gram.numel() or bool(gram.abs().amax() < largest):  # False for NaN
                return gram, scale
        scale = _scale(records).to(like)
        gram = network.gram(lambda layer: by_name[layer.name].jacobian(scale.reciprocal()), priors)
        return gram, scale


def gaussian_of(scaled_mean: Tensor, root: Tensor, directions: Tensor | None, scale: Tensor) -> LogitGaussian:
    """The Gaussian with mean/scale (n, k), and a root (n, c, r) of covariance/scale² in the directions."""
    with without_autocast(root.device):
        factor = root if directions is None else directions.to(root) @ root  # (n, k, r)
    factors = CovarianceFactors(torch.ones_like(factor[:, 0]), factor, torch.zeros_like(scale))
    return LogitGaussian(scaled_mean, factors, scale)


def _scale(records: list[LayerRecord]) -> Tensor:
    """A scale (n,) ≥ 1: divided by it, no derivative of a point is larger than about 1."""
    sizes = torch.stack([record.largest() for record in records])
    return sizes.amax(0).clamp(1, torch.finfo(sizes.dtype).max / 4)


@cache
def interpolation_weights(nodes: tuple[float, ...], at: float) -> Tensor:
    """Weights (q,) that combine roots at the nodes (log σ₀², evenly spaced) into the root at another prior.

    A cubic spline of σ₀^{-1/2}·L. The slope of a deviation (h + τ)^{-1/2} in log τ changes over a few nats:
    with 18 nodes over 12 decades the error is at most 0.6%, and up to 2% in the outermost intervals; with
    12 nodes 3.5%, and 10%. Mixtures over many h have less.

    >>> weights = interpolation_weights((0.0, 1.0, 2.0, 3.0), 1.0)
    >>> float((weights - torch.tensor([0.0, 1, 0, 0])).abs().max()) < 1e-12
    True
    """
    step, count = nodes[1] - nodes[0], len(nodes)
    place = min(max((at - nodes[0]) / step, 0.0), count - 1.0)
    left = min(int(place), count - 2)
    # Second derivatives at the nodes, as a matrix on the values: continuous slopes inside, and the third
    # derivative continuous at the second and the last but one node ("not a knot").
    system, right = torch.zeros(2, count, count, dtype=torch.float64)
    for i in range(1, count - 1):
        system[i, i - 1 : i + 2] = torch.tensor([1.0, 4.0, 1.0])
        right[i, i - 1 : i + 2] = torch.tensor([6.0, -12.0, 6.0])
    system[0, :3] = system[-1, -3:] = torch.tensor([1.0, -2.0, 1.0])
    bends = torch.linalg.solve(system, right)
    a, b = left + 1 - place, place - left
    weights: Tensor = ((a**3 - a) * bends[left] + (b**3 - b) * bends[left + 1]) / 6
    weights[left] += a
    weights[left + 1] += b
    log_ratios = torch.tensor(nodes, dtype=torch.float64) - at  # of the σ₀²
    return weights * torch.exp(-log_ratios / 4)
