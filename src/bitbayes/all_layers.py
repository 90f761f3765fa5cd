"""The Gaussian over all layers, in place in its network. `LastLayer` has the same functions for the last."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes import rays as infinity
from bitbayes.curvature import NetworkCurvature
from bitbayes.errors import ArgumentError
from bitbayes.fitting import Fitted
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import (
    Inputs,
    LayerRecord,
    Network,
    as_logits,
    batches,
    call,
    check_finite,
    cut,
    differentiate,
    eval_mode,
    finite,
    items,
    model_device,
    points_at_once,
    row_count,
    working_dtype,
)
from bitbayes.posterior import NetworkPosterior, gram_root
from bitbayes.precision import without_autocast, working
from bitbayes.prior import candidates
from bitbayes.rays import ExactNetwork, RayGaussian

# Candidates that are compared, and the priors at which their covariances are computed: see `interpolation`.
NODES, CANDIDATES = 18, 55
# A network has many more weights than a layer: the same variance of its logits takes less variance in each.
SMALLEST, LARGEST = 1e-8, 1e4

Priors = dict[str, float]


class AllLayers:
    """The Gaussian over all trainable parameters of `model`, for any prior variances (layer name → σ₀²)."""

    def __init__(self, model: nn.Module, fitted: Fitted, *, paper: bool) -> None:
        assert isinstance(fitted.part, Network) and isinstance(fitted.curvature, NetworkCurvature)
        self.model, self.fitted, self.paper = model, fitted, paper
        self.network, self.curvature = fitted.part, fitted.curvature
        self.contrasts = fitted.likelihood.contrasts(self.network.outputs)  # (k, c)
        self._decomposed: NetworkPosterior | None = None
        self._working: tuple[torch.device, torch.dtype, NetworkPosterior] | None = None
        self._points: dict[torch.Size, int] = {}

    # ---- predicting

    def forward(self, x: Any, priors: Priors) -> tuple[LogitGaussian, tuple[int, ...]]:
        """The Gaussian over logits at x, its mean differentiable, and the shape of the model's own output."""
        output = call(self.model, x)
        with torch.no_grad():
            gaussian = self._gaussian(x, priors, self.contrasts)
        mean = as_logits(output, row_count(x)).to(gaussian.mean.dtype)
        return LogitGaussian(mean, gaussian.spread, gaussian.scale), tuple(output.shape)

    def logits(self, x: Inputs, priors: Priors) -> LogitGaussian:
        """The Gaussian over logits at x, the common shift included."""
        every = torch.eye(self.network.outputs, dtype=torch.float64)
        parts = [self._gaussian(part, priors, every) for _, part in self._parts(x)]
        spreads = CovarianceFactors(
            *(torch.cat(each) for each in zip(*(part.spread for part in parts), strict=True))
        )
        mean, scale = (torch.cat(each) for each in zip(*((p.mean, p.scale) for p in parts), strict=True))
        return LogitGaussian(mean, spreads, scale)

    def gaussians(self, data: Inputs | Iterable[Any], priors: Priors, rows: int) -> Iterator[LogitGaussian]:
        """The same without the shift, for batches, as many points at a time as memory allows."""
        for where, part in self._parts(data, most=rows):
            yield self._gaussian(part, priors, self.contrasts, where)

    def sample(self, n: int, priors: Priors, generator: torch.Generator | None) -> dict[str, Tensor]:
        """n draws of all trainable parameters by name."""
        posterior = self.posterior(model_device(self.model), working_dtype(self.model))
        draws = posterior.draw(n, _precisions(priors, working_dtype(self.model)), generator)
        means = {name: self.model.get_parameter(name).detach() for name in draws}
        return {name: means[name] + noise.to(means[name].dtype) for name, noise in draws.items()}

    def sampled_logits(
        self,
        data: Inputs | Iterable[Any],
        samples: int,
        priors: Priors,
        generator: torch.Generator | None,
    ) -> Iterator[Tensor]:
        """Drop-in logits (n, k) of each batch: the average prediction of the same drawn networks."""
        draws = self.sample(samples, priors, generator)
        networks = [{name: each[s] for name, each in draws.items()} for s in range(samples)]
        for inputs in items(data, model_device(self.model)):
            with eval_mode(self.model):
                rows = row_count(inputs)
                logits = torch.stack([as_logits(call(self.model, inputs, each), rows) for each in networks])
                # A drawn network may overflow where the trained one does not.
                own = logits if finite(logits) else as_logits(call(self.model, inputs), rows)
                check_finite("the input", inputs, own, own, self.model)
            yield _log_average(logits)

    # ---- choosing the prior

    def candidates(self) -> list[float]:
        """Prior variances worth trying."""
        return candidates(CANDIDATES, SMALLEST, LARGEST)

    def labelled(
        self, loader: Iterable[Any], see: Callable[[Inputs], None]
    ) -> Iterator[tuple[Callable[[float], LogitGaussian], Tensor]]:
        """For points with labels the Gaussian as a function of one prior variance, and the labels."""
        for number, (inputs, labels) in enumerate(batches(loader, model_device(self.model))):
            see(inputs)
            like = torch.empty(row_count(inputs), self.network.outputs)
            labels = self.fitted.likelihood.check(labels, like, number)
            for part in cut(inputs, self._rows(inputs)):
                now, labels = labels[: row_count(part)], labels[row_count(part) :]
                yield self._interpolated(part, f"batch {number}"), now

    def unlabelled(
        self, data: Inputs | Iterable[Any]
    ) -> Iterator[tuple[Callable[[float], LogitGaussian], None]]:
        """The same for points without labels."""
        for where, part in self._parts(data):
            yield self._interpolated(part, where), None

    def log_evidence(self, priors: dict[str, Tensor]) -> Tensor:
        """log p(D | θ*) − Σ over layers of `occam`."""
        return -self.fitted.loss - self.occam(priors)

    def occam(self, priors: dict[str, Tensor]) -> Tensor:
        """½ Σ over the named layers [τ‖θ*‖² − P log τ + log det(H + τI)], τ = 1/σ₀²."""
        norms = {
            layer.name: norm
            for layer, norm in zip(self.network.layers, self.network.squared_norms, strict=True)
        }
        sizes = {layer.name: layer.size for layer in self.network.layers}
        fit = torch.stack([norms[name] / value + sizes[name] * value.log() for name, value in priors.items()])
        precisions = {name: 1 / value for name, value in priors.items()}
        return (fit.sum() + self._decompose().log_determinant(precisions)) / 2

    # ---- at infinity

    def rays(self, x: Tensor, priors: Priors, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        """The Gaussian over logits along the rays δ·x; without `find_alpha` only at infinity."""
        return infinity.all_layers_rays(self._exact(priors), x, find_alpha=find_alpha, tolerance=tolerance)

    def bound(self, x: Tensor | None, priors: Priors, method: str) -> Tensor:
        """The theorem's bound, (n,)."""
        if x is None:
            raise ArgumentError("over all layers each ray has a bound of its own: give its x, `bound(x)`")
        return infinity.all_layers_bound(self._exact(priors), x, method)

    # ---- inside

    @torch.inference_mode(False)  # what is made here may need derivatives
    def _exact(self, priors: Priors) -> ExactNetwork:
        """The network and the Gaussian over its parameters in float64."""
        posterior = self.posterior(model_device(self.model), torch.float64)
        model = copy.deepcopy(self.model).double()
        return ExactNetwork(
            model, self.network.layers, posterior, _precisions(priors, torch.float64), self.contrasts
        )

    def posterior(self, device: torch.device, dtype: torch.dtype) -> NetworkPosterior:
        """The posterior where and in the precision that predictions are made."""
        if self._working is None or self._working[:2] != (device, dtype):
            self._working = (device, dtype, self._decompose().to(device, dtype))
        return self._working[2]

    def _decompose(self) -> NetworkPosterior:
        """The posterior in float64; made once."""
        if self._decomposed is None:
            self._decomposed = NetworkPosterior.of(self.curvature, self.network.layers, paper=self.paper)
        return self._decomposed

    def _parts(self, data: Inputs | Iterable[Any], most: int | None = None) -> Iterator[tuple[str, Inputs]]:
        """Batches cut to what memory allows, each with a name for messages."""
        one = isinstance(data, (Tensor, Mapping))
        for number, inputs in enumerate(items(data, model_device(self.model))):
            rows = self._rows(inputs)
            for part in cut(inputs, rows if most is None else min(rows, most)):
                yield "the input" if one else f"batch {number}", part

    def _rows(self, inputs: Inputs) -> int:
        """How many points at once; looked into once for each shape of input."""
        shape = inputs.shape[1:] if isinstance(inputs, Tensor) else torch.Size()
        if not row_count(inputs):
            return 1
        if shape not in self._points:
            with eval_mode(self.model):
                self._points[shape] = points_at_once(
                    self.model, self.network.layers, inputs, self.network.outputs
                )
        return self._points[shape]

    def _gaussian(
        self, inputs: Inputs, priors: Priors, directions: Tensor, where: str = "the input"
    ) -> LogitGaussian:
        """The Gaussian over logits in the span of the directions (k, c)."""
        logits, (root,), scale = self._roots(inputs, [priors], directions, where)
        return _gaussian_of(logits, root, directions, scale)

    def _interpolated(self, inputs: Inputs, where: str) -> Callable[[float], LogitGaussian]:
        """The Gaussian over logits as a function of one prior variance for all layers."""
        nodes = tuple(math.log(value) for value in candidates(NODES, SMALLEST, LARGEST))
        priors = [dict.fromkeys(self.network.names, math.exp(node)) for node in nodes]
        logits, roots, scale = self._roots(inputs, priors, self.contrasts, where)
        flat = roots.flatten(1)  # (q, n·c·c)

        def at(variance: float) -> LogitGaussian:
            weights = interpolation(nodes, math.log(variance)).to(flat)  # (q,)
            return _gaussian_of(logits, (weights @ flat).reshape(roots.shape[1:]), self.contrasts, scale)

        return at

    def _roots(
        self, inputs: Inputs, priors: list[Priors], directions: Tensor, where: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (n, k), roots L (q, n, c, c) of their covariance / scale² in the directions, scale (n,)."""
        with eval_mode(self.model), without_autocast(model_device(self.model)):
            logits, recorded = differentiate(
                self.model, self.network.layers, inputs, lambda f: directions.to(f).expand(len(f), -1, -1)
            )
            if working_dtype(self.model) != next(self.model.parameters()).dtype:
                # The mean is the network's own.
                logits = as_logits(call(self.model, inputs), row_count(inputs)).to(logits)
            check_finite(where, inputs, logits, logits, self.model)
            gram, scale = self._gram(recorded, [_precisions(each, logits.dtype) for each in priors], logits)
            lift = 4 * gram.shape[-1] * torch.finfo(gram.dtype).eps
            return logits, gram_root(gram, lift).to(logits), scale

    def _gram(
        self, recorded: list[LayerRecord], taus: list[dict[str, float]], like: Tensor
    ) -> tuple[Tensor, Tensor]:
        """J Σ Jᵀ / scale² (q, n, c, c) and scale (n,): 1, unless it overflows without."""
        posterior, scale = self.posterior(like.device, like.dtype), torch.ones_like(like[:, 0])
        gram = posterior.gram(recorded, taus, None)
        largest = torch.finfo(gram.dtype).max ** 0.75
        if gram.numel() and not bool(gram.abs().amax() < largest):  # nor if it is NaN
            scale = _scale(recorded).to(like)
            gram = posterior.gram(recorded, taus, scale.reciprocal())
        return gram, scale


def _gaussian_of(logits: Tensor, root: Tensor, directions: Tensor, scale: Tensor) -> LogitGaussian:
    with without_autocast(root.device):
        factor = directions.to(root) @ root  # (n, k, c)
    return LogitGaussian(
        logits, CovarianceFactors(torch.ones_like(factor[:, 0]), factor, torch.zeros_like(scale)), scale
    )


def _log_average(logits: Tensor) -> Tensor:
    """The logits (n, k) of the average of the softmax (one logit: of σ) over networks (s, n, k), finite."""
    each = logits.to(working(logits.dtype)).nan_to_num()
    one = each.shape[2] == 1
    pair = torch.cat([each, torch.zeros_like(each)], dim=2) if one else each
    log_p = pair.softmax(2).mean(0).clamp_min(torch.finfo(each.dtype).tiny).log()
    return log_p[:, :1] - log_p[:, 1:] if one else log_p


def _scale(recorded: list[LayerRecord]) -> Tensor:
    """For each point a size in whose units no derivative is larger than about 1, (n,) ≥ 1."""
    sizes = torch.stack([each.largest() for each in recorded])
    return sizes.amax(0).clamp(1, torch.finfo(sizes.dtype).max / 4)


def _precisions(priors: Priors, dtype: torch.dtype) -> dict[str, float]:
    """τ = 1/σ₀² of each layer; not so small that variances leave the dtype's range."""
    least = torch.finfo(dtype).tiny ** 0.75
    return {name: max(1 / value, least) for name, value in priors.items()}


@cache
def interpolation(nodes: tuple[float, ...], at: float) -> Tensor:
    """Weights (q,) with which roots at the nodes (log σ₀², evenly spaced) make the root at another prior.

    A cubic spline of σ₀^{-1/2}·L. A deviation (h + τ)^{-1/2} turns in log τ from one slope to another over
    a few nats: with 18 nodes over 12 decades it comes out 0.6 % wrong at most, and up to 2 % in the
    outermost intervals; mixtures over many h do better.

    >>> float((interpolation((0.0, 1.0, 2.0, 3.0), 1.0) - torch.tensor([0.0, 1, 0, 0])).abs().max()) < 1e-12
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
    quarter = torch.tensor(nodes, dtype=torch.float64) - at  # log of the ratios of σ₀²
    return weights * torch.exp(-quarter / 4)
