"""Tuning: the prior variance and, with the residual, its two numbers, by the evidence or by data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bitbayes import predictive, prior
from bitbayes.all_layers import AllLayers
from bitbayes.last_layer import LastLayer
from bitbayes.logits import LogitGaussian
from bitbayes.model import Inputs, check_loader
from bitbayes.prior import Candidate, Points
from bitbayes.progress import track
from bitbayes.rays import InputMoments
from bitbayes.residual.kernel import INSIDE, Roots, shown, widened

SEED = 0


def by_evidence(
    part: LastLayer | AllLayers, log_evidence: Callable[[Tensor], Tensor], *, each_layer: bool
) -> float | dict[str, float]:
    """The prior variance of most evidence, or each layer's by itself: the evidence is a sum over layers."""
    grid = part.candidates()
    values = [torch.tensor(value, dtype=torch.float64) for value in grid]
    if each_layer and isinstance(part, AllLayers):
        return {
            name: prior.best(grid, torch.stack([part.occam({name: value}) for value in values]))
            for name in part.network.names
        }
    return prior.best(grid, torch.stack([-log_evidence(value) for value in values]))


@dataclass(frozen=True)
class Tuning:
    """Candidates by mean NLL on validation data + `weight` × mean overconfidence on outliers, in one pass.

    `weight` None is the NLL alone; `outliers` None is uniform noise like the validation data.
    """

    part: LastLayer | AllLayers
    method: str
    loader: Iterable[Any]
    outliers: Iterable[Any] | Inputs | None
    weight: float | None
    penalty: str
    progress: bool | None

    @torch.no_grad()
    def prior_variance(self) -> float:
        """The one of least cost."""
        return prior.search(self.part.candidates(), self._costs(*self._pass(lambda _: None)))

    @torch.no_grad()
    def with_residual(self, moments: InputMoments) -> tuple[float, float, float]:
        """Prior variance, residual variance and threshold."""
        roots = Roots(moments)
        inside, outside = self._pass(roots.see)
        inside_roots, outside_roots = (
            [roots.take(len(at(1.0).mean)) for at, _ in points] for points in (inside, outside)
        )
        threshold = float(torch.cat(inside_roots).square().quantile(INSIDE))
        wide = _joined(inside, inside_roots, threshold), _joined(outside, outside_roots, threshold)
        priors, residuals = self.part.candidates(), prior.candidates(113, 1e-6, 1e10)
        if self.weight is not None:
            return *prior.best_pair(self._costs(*wide), priors, residuals), threshold
        plain = self._costs(inside, outside)(priors)
        chosen = prior.best(priors, plain)
        limit = float(plain[priors.index(chosen)]) * (1 + prior.HALF_A_PERCENT)
        costs = self._costs(*wide)([(chosen, residual) for residual in residuals])
        return chosen, prior.largest_within(residuals, costs, limit), threshold

    def _pass(self, see: Callable[[Inputs], None]) -> tuple[list[Points[float]], list[Points[float]]]:
        """Validation points and, where they weigh anything, outliers; all inputs are shown to `see`."""
        noise = prior.UniformNoise(SEED)
        draw_noise = bool(self.weight) and self.outliers is None

        def see_inside(inputs: Inputs) -> None:
            see(inputs)
            if draw_noise:
                noise.see(inputs)

        steps = track(check_loader(self.loader), "tuning: validation data", self.progress)
        inside: list[Points[float]] = list(self.part.labelled(steps, see_inside))
        if not self.weight:
            return inside, []
        data = noise if self.outliers is None else self.outliers
        if not isinstance(data, (Tensor, Mapping)):
            data = track(data, "tuning: outliers", self.progress)
        return inside, list(self.part.unlabelled(shown(data, see)))

    def _costs(
        self, inside: list[Points[Candidate]], outside: list[Points[Candidate]]
    ) -> Callable[[list[Candidate]], Tensor]:
        """The cost (c,) of each of some candidates."""
        likelihood = self.part.fitted.likelihood
        nll, over = prior.negative_log_likelihood(likelihood), prior.overconfidence(likelihood, self.penalty)

        def costs(grid: list[Candidate]) -> Tensor:
            total = prior.mean_costs(inside, grid, self._predict, nll)
            if self.weight:
                total += self.weight * prior.mean_costs(outside, grid, self._predict, over)
            return total

        return costs

    def _predict(self, gaussians: list[LogitGaussian]) -> Tensor:
        """Drop-in logits, stacked; with the same random numbers for each, so that they can be compared."""
        if self.method != "mc":
            return predictive.predict(LogitGaussian.stacked(gaussians), self.method)
        device = gaussians[0].mean.device
        return torch.cat(
            [
                predictive.predict(each, self.method, generator=torch.Generator(device).manual_seed(SEED))
                for each in gaussians
            ]
        )


def _joined(
    points: list[Points[float]], roots: list[Tensor], threshold: float
) -> list[Points[tuple[float, float]]]:
    """The same points as functions of prior variance and residual variance; `roots` √k (n,) of each."""

    def joined(at: Callable[[float], LogitGaussian], root: Tensor) -> Callable[[Any], LogitGaussian]:
        return lambda pair: widened(at(pair[0]), root, pair[1], threshold)

    return [(joined(at, root), labels) for (at, labels), root in zip(points, roots, strict=True)]
