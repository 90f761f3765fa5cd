"""The Gaussian over all layers, with a covariance of the logits that is estimated by draws of the weights.

C ≈ (1/S) Σₛ (J δₛ)(J δₛ)ᵀ with δₛ ~ N(0, Σ). The S columns of this root of C take about 2S + 1 forward
passes, for any number of logits. The exact C of `AllLayers` takes a backward pass for each logit but one. The
mean is exact. All points share the same δₛ, which follow from a seed: a prediction depends on no other point,
and is the same in each call and after loading a file.

For another prior variance each δₛ is made of the same noise. So variances are smooth in it, and one choice of
draws serves all candidates.
"""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Never

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError
from bitbayes.fitted import Fitted
from bitbayes.logits import LogitGaussian
from bitbayes.model import (
    Batch,
    Way,
    as_logits,
    call,
    check_finite,
    directions_at_once,
    finite,
    model_device,
    pass_bytes,
    working_dtype,
    working_way,
)
from bitbayes.options import Draws
from bitbayes.posteriors.all_layers import (
    LARGEST_NETWORK_VARIANCE,
    SMALLEST_NETWORK_VARIANCE,
    AllLayers,
    InterpolatedLogits,
    gaussian_of,
)
from bitbayes.posteriors.base import Choice, LogitsByPrior
from bitbayes.precision import prediction_dtype, without_autocast
from bitbayes.prior import Prior, variance_grid

# Each prior takes passes of its own, so there are fewer than for the exact covariance, and few points.
# Interpolation adds less than the draws, whose variances have a relative error of √(2/S).
NODES, POINTS = 12, 1500
# The largest size of what tuning keeps of its points, in numbers.
KEPT_NUMBERS = 2**28
SEED_OF_POINTS = 0
# A prime, so that draws of different seeds do not coincide.
SEED_OF_DRAWS = 1_000_003
# Derivatives that overflow are computed again along directions this much smaller.
SHRINK = 2.0**-60


# Weights minus their mean by name, (s, …) each, for each of some priors.
WeightsByPrior = Iterable[dict[str, Tensor]]


class DrawnLayers(AllLayers):
    """The Gaussian over all trainable parameters; `draws` of them estimate the covariance of the logits."""

    def __init__(self, model: nn.Module, fitted: Fitted, draws: Draws) -> None:
        super().__init__(model, fitted)
        self.draws = draws
        self._passes = 1
        self._way: Way | None = None
        # The weights that were drawn last, if memory allows to keep them: for the priors, device and dtype.
        self._kept: tuple[tuple[Any, ...], list[dict[str, Tensor]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_kept": None}

    # ---- choosing the prior

    def logits_by_prior(
        self, batches: Iterable[Batch], choose: Choice | None = None
    ) -> Iterator[tuple[Batch, LogitsByPrior]]:
        variances = variance_grid(NODES, SMALLEST_NETWORK_VARIANCE, LARGEST_NETWORK_VARIANCE)
        nodes, priors = tuple(map(math.log, variances)), [Prior(each) for each in variances]
        for batch in self._thinned(self._checked(batches)):
            mean, roots, scale = self._roots(batch, priors, self.differences)
            yield batch, InterpolatedLogits(nodes, None, mean, roots, scale)

    # ---- far from the data

    def rays(self, *_: object, **__: object) -> Never:
        self._refuse("limits and certificates are")

    def bound(self, *_: object, **__: object) -> Never:
        self._refuse("bounds are")

    def check_graph(self) -> Never:
        self._refuse("graphs are")

    # ---- inside

    def _refuse(self, what: str) -> Never:
        raise ArgumentError(
            f"{what} for the exact covariance of the logits, and covariance={self.draws} estimates it: set "
            f"`covariance = 'exact'` first, which takes {self.outputs - 1:,} backward passes for each batch"
        )

    def _parts(self, batches: Iterable[Batch], most: int | None = None) -> Iterator[Batch]:
        """Batches of at most `most` points; `_deviations` cuts them to what memory allows."""
        for batch in batches:
            yield from [batch] if most is None or not isinstance(batch.inputs, Tensor) else batch.split(most)

    def _thinned(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """At most `POINTS` of the points, each with equal probability, and fewer for very many logits.

        Each point gets a random number, and those with the smallest are kept.
        """
        most = max(1, min(POINTS, KEPT_NUMBERS // (NODES * self.draws.draws * self.outputs)))
        generator = torch.Generator().manual_seed(SEED_OF_POINTS)
        kept: list[tuple[Batch, Tensor]] = []
        limit = math.inf
        for batch in batches:
            if batch.weights is not None:  # points that count 0 times would take the places of others
                batch = batch.part((batch.weights > 0).nonzero()[:, 0])
            keys = torch.rand(len(batch), generator=generator, dtype=torch.float64)
            kept.append(_below(batch, keys, limit))
            every = torch.cat([keys for _, keys in kept])
            if len(every) > most:
                limit = float(every.kthvalue(most).values)
                kept = [_below(each, keys, limit) for each, keys in kept]
        yield from (batch for batch, keys in kept if len(keys))

    def _gaussian(self, batch: Batch, prior: Prior, directions: Tensor) -> LogitGaussian:
        mean, (root,), scale = self._roots(batch, [prior], directions)
        return gaussian_of(mean, root, None, scale)

    @torch.no_grad()
    def _roots(self, batch: Batch, priors: list[Prior], directions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """mean/scale (n, k), roots (q, n, k, S) of covariance/scale² along the directions, and scale (n,)."""
        network = self.network()
        logits = as_logits(call(network, batch.inputs), len(batch))
        logits = logits.to(prediction_dtype(logits.dtype))
        check_finite(batch, logits, logits, network)
        with without_autocast(model_device(self.model)):
            shrink, deviations = 1.0, self._deviations(batch, priors, 1.0)
            if not finite(deviations):
                shrink, deviations = SHRINK, self._deviations(batch, priors, SHRINK)
        deviations = deviations.to(logits)
        if directions.shape[1] < self.outputs:  # the class differences: all but the common shift
            deviations = deviations - deviations.mean(2, keepdim=True)
        # In units of the largest number of each point, so that no square overflows.
        largest = deviations.abs().amax((0, 2, 3)) / shrink  # (n,)
        scale = torch.maximum(largest, logits.abs().amax(1)).clamp(1, torch.finfo(logits.dtype).max / 4)
        roots = deviations / (scale * shrink)[:, None, None] / math.sqrt(self.draws.draws)
        return logits / scale[:, None], roots, scale

    def _deviations(self, batch: Batch, priors: list[Prior], shrink: float) -> Tensor:
        """shrink · J δₛ for each prior and draw, (q, n, k, S)."""
        dtype, n = working_dtype(self.model), len(batch)
        found = torch.empty(
            len(priors), n, self.outputs, self.draws.draws, dtype=dtype, device=model_device(self.model)
        )
        if not n:
            return found
        rows = self._rows_at_once(batch.inputs) if isinstance(batch.inputs, Tensor) else n
        parts = [*batch.split(rows)] if isinstance(batch.inputs, Tensor) else [batch]
        at_once = directions_at_once(self.network(), parts[0].inputs)
        for drawn, by_prior in self._drawn(priors):
            for q, weights in enumerate(by_prior):
                for i, part in enumerate(parts):
                    derivatives = [
                        self._along(part, {name: each * shrink for name, each in few.items()})
                        for few in _split(weights, at_once)
                    ]
                    found[q, i * rows : (i + 1) * rows, :, drawn] = torch.cat(derivatives).permute(1, 2, 0)
        return found

    def _along(self, part: Batch, directions: dict[str, Tensor]) -> Tensor:
        """J δ (s, n, k)."""
        if self._way is None:
            few = next(part.split(2)) if isinstance(part.inputs, Tensor) else part
            self._way = working_way(self.network, few.inputs, directions)
        return self._way(self.network(), part.inputs, directions)

    def _drawn(self, priors: list[Prior]) -> Iterator[tuple[slice, WeightsByPrior]]:
        """All draws: the numbers of as many as memory allows, and their weights."""
        device, dtype, count = model_device(self.model), working_dtype(self.model), self.draws.draws
        key, kept = (priors, device, dtype), self._kept
        if kept is not None and kept[0] == key:
            yield slice(0, count), kept[1]
            return
        gaussian = self._network(device, dtype)
        affordable = 2 * pass_bytes(device) // (sum(layer.size for layer in self.layers) * dtype.itemsize)
        at_once = max(1, min(count, affordable))
        for start in range(0, count, at_once):
            draws = range(start, min(start + at_once, count))
            noise = _stacked([gaussian.noise(self._generator(draw)) for draw in draws])
            noise = {name: each.to(device, dtype) for name, each in noise.items()}
            made: WeightsByPrior = map(partial(gaussian.of_noise, noise), priors)
            if len(priors) * count <= affordable:
                self._kept = key, (made := list(made))
            yield slice(draws.start, draws.stop), made

    def _generator(self, draw: int) -> torch.Generator:
        """Of one draw's random numbers, so that it does not matter how many are made at once."""
        return torch.Generator().manual_seed(SEED_OF_DRAWS * (self.draws.seed + 1) + draw)


def _below(batch: Batch, keys: Tensor, limit: float) -> tuple[Batch, Tensor]:
    """The points whose keys (n,) are at most the limit: copies, as a loader may use its memory again."""
    chosen = (keys <= limit).nonzero()[:, 0]
    return batch.part(chosen), keys[chosen]


def _split(weights: dict[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """At most `size` of the draws at a time."""
    for parts in zip(*(torch.split(each, size) for each in weights.values()), strict=True):
        yield dict(zip(weights, parts, strict=True))


def _stacked(draws: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([each[name] for each in draws]) for name in draws[0]}
