"""What tuning keeps of the data after their one forward pass, and the numbers that it tries there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.logits import LogitGaussian
from bitbayes.model import Batch, model_device
from bitbayes.posterior import LogitFamily, WeightPosterior
from bitbayes.prior import Prior
from bitbayes.residual import Residual, deviations

SEED = 0


class Candidate(NamedTuple):
    """Numbers that are tried, chosen or in use together; the residual's are None where they are not known."""

    prior_variance: float | dict[str, float]
    temperature: float = 1.0
    residual_variance: float | None = None
    residual_threshold: float | None = None

    def complete(self, gaussian: LogitGaussian, root_kernel: Tensor | None) -> LogitGaussian:
        """The one place where temperature and residual join a Gaussian over logits.

        Args:
            gaussian: that of the weights alone.
            root_kernel: √k(x) (n,) of the residual, if there is one.
        """
        gaussian = gaussian.at_temperature(self.temperature)
        if root_kernel is None or not self.residual_variance or self.residual_threshold is None:
            return gaussian
        added = deviations(root_kernel, self.residual_variance, self.residual_threshold)
        return gaussian.plus_independent(added)


class Points(NamedTuple):
    """Some points: the Gaussians over their logits, labels (n,) and the residual's √k(x) (n,), if any."""

    family: LogitFamily
    labels: Tensor | None
    root_kernel: Tensor | None

    def gaussians(self, candidates: list[Candidate]) -> list[LogitGaussian]:
        """The Gaussian over their logits for each candidate."""
        variances = {candidate.prior_variance for candidate in candidates}
        shared = {each: self.family.at(Prior(each)) for each in variances}
        return [each.complete(shared[each.prior_variance], self.root_kernel) for each in candidates]

    def rows(self, which: Tensor) -> Points:
        """Some of the points, by their numbers."""
        labels = None if self.labels is None else self.labels[which]
        root = None if self.root_kernel is None else self.root_kernel[which]
        return Points(self.family.rows(which), labels, root)

    @staticmethod
    def joined(parts: list[Points]) -> Points:
        """All points of the parts."""
        if len(parts) == 1:
            return parts[0]
        families, labels, roots = zip(*parts, strict=True)
        return Points(
            families[0].joined(list(families)),
            None if labels[0] is None else torch.cat(labels),
            None if roots[0] is None else torch.cat(roots),
        )


def kept_points(
    posterior: WeightPosterior, residual: Residual | None, batches: Iterable[Batch]
) -> list[Points]:
    """The points that tuning keeps, in groups: all or, where there are too many, as many drawn from all."""
    attached = residual.attached_to(batches) if residual else batches
    most, rows = posterior.most_points, posterior.rows_per_step
    thinning = None if most is None else Thinning(most, model_device(posterior.model))
    parts = (
        Points(family, batch.labels, batch.root_kernel)
        for batch, family in posterior.families(attached, None if thinning is None else thinning.chosen)
    )
    return list(_in_steps(parts if thinning is None else thinning.kept(parts, rows), rows))


class Thinning:
    """Draws at most so many points evenly from all, whose number is not known before.

    Each time there are too many, about half of them are dropped, and as many of those to come.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self.most, self.device = most, device
        self.generator, self.share = torch.Generator().manual_seed(SEED), 1.0

    def chosen(self, count: int) -> Tensor | None:
        """The places of those of so many new points that are looked at; None if all are."""
        return None if self.share == 1 else self._drawn(count, self.share)

    def kept(self, parts: Iterable[Points], rows: int) -> Iterator[Points]:
        """What is left of the parts in the end, each of which was `chosen` just before; so many at once."""
        found: list[Points] = []
        count = 0
        for part in parts:
            if len(part.family):
                found.append(part)
                count += len(part.family)
            while count > self.most:
                self.share /= 2
                half = Points.joined(found)
                found = [half.rows(self._drawn(count, 1 / 2))]
                count = len(found[0].family)
        for part in found:
            places = torch.arange(len(part.family), device=self.device)
            yield from [part] if len(places) <= rows else map(part.rows, torch.split(places, rows))

    def _drawn(self, count: int, share: float) -> Tensor:
        chosen = torch.rand(count, generator=self.generator) < share
        return chosen.nonzero()[:, 0].to(self.device)


def _in_steps(parts: Iterable[Points], rows: int) -> Iterator[Points]:
    """The points in groups of at most that many rows, unless a part has more."""
    waiting: list[Points] = []
    count = 0
    for part in parts:
        if waiting and count + len(part.family) > rows:
            yield Points.joined(waiting)
            waiting, count = [], 0
        waiting.append(part)
        count += len(part.family)
    if waiting:
        yield Points.joined(waiting)
