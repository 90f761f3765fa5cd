"""What tuning stores of the data after their one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import EmptyLoaderError
from bitbayes.logits import LogitGaussian
from bitbayes.model import Batch, model_device
from bitbayes.posteriors.base import LogitsByPrior, WeightPosterior
from bitbayes.prior import Prior
from bitbayes.processes import current_processes
from bitbayes.settings import Settings
from bitbayes.tuning.noise import NoiseLike

SEED = 0


class Points(NamedTuple):
    """Some points: Gaussians over their logits, labels (n,), (n, k) or None, distances (n, levels) or None.

    `share`: the share of the data that was kept, if the points were drawn from more.
    """

    by_prior: LogitsByPrior
    labels: Tensor | None
    distances: Tensor | None
    share: float = 1.0

    def gaussians(self, candidates: list[Settings]) -> list[LogitGaussian]:
        """The Gaussian over their logits for each candidate."""
        variances = {each.prior_variance for each in candidates}
        gaussians = {variance: self.by_prior.at(Prior(variance)) for variance in variances}
        return [each.complete(gaussians[each.prior_variance], self.distances) for each in candidates]

    def select(self, indices: Tensor) -> Points:
        """Some of the points."""
        labels = None if self.labels is None else self.labels[indices]
        distances = None if self.distances is None else self.distances[indices]
        return Points(self.by_prior.select(indices), labels, distances, self.share)

    @staticmethod
    def joined(parts: list[Points]) -> Points:
        """All points of the parts."""
        if len(parts) == 1:
            return parts[0]
        logits, labels, distances, shares = zip(*parts, strict=True)
        return Points(
            logits[0].joined(list(logits)),
            None if labels[0] is None else torch.cat(labels),
            None if distances[0] is None else torch.cat(distances),
            shares[0],
        )


def kept_points(posterior: WeightPosterior, batches: Iterable[Batch]) -> list[Points]:
    """The points that tuning uses: all or, if there are too many, some drawn at random.

    They are in groups of at most `rows_per_step` points, unless a batch has more.
    """
    if posterior.most_points is not None:
        return Thinning(posterior.most_points, model_device(posterior.model)).kept(posterior, batches)
    rows, count = posterior.rows_per_step, 0
    groups: list[Points] = []
    waiting: list[Points] = []
    for batch, by_prior in posterior.logits_by_prior(batches):
        points = Points(by_prior, batch.labels, batch.distances)
        if waiting and count + len(by_prior.scale) > rows:
            groups.append(Points.joined(waiting))
            waiting, count = [], 0
        waiting.append(points)
        count += len(by_prior.scale)
    return [*groups, Points.joined(waiting)] if waiting else groups


def shared_points(
    task: Callable[[], str], work: Callable[[], list[Points]], noise: Callable[[], NoiseLike]
) -> tuple[list[Points], list[NoiseLike]]:
    """This process's points (maybe none), and noise like the inputs of each process.

    Raises if no process has points, and in all processes if one fails.

    Args:
        task: describes the task, which must be the same in all processes.
        work: reads this process's share.
        noise: like the inputs of this process; called after `work`.
    """
    processes = current_processes()
    if processes.size == 1:
        return work(), [noise()]

    def share() -> list[Points]:
        try:
            return work()
        except EmptyLoaderError:
            return []

    def facts(mine: list[Points]) -> tuple[list[float], NoiseLike]:
        return [each.share for each in mine], noise().to(torch.device("cpu"))

    points, found = processes.agree(task(), share, facts)
    kept = [each for shares, _ in found for each in shares]
    if not kept:
        raise EmptyLoaderError("the loaders of all processes are empty: they yielded no batch")
    # One process may have dropped more of its points than another: all of them count alike.
    return thinned(points, min(kept)), [each for _, each in found]


def thinned(groups: list[Points], share: float) -> list[Points]:
    """Some of the points, drawn so that they are this share of the data."""
    generator = torch.Generator().manual_seed(SEED + 1)
    found = []
    for each in groups:
        if share < each.share:
            drawn = torch.rand(len(each.by_prior.scale), generator=generator) < share / each.share
            each = each.select(drawn.nonzero()[:, 0])._replace(share=share)
        if len(each.by_prior.scale):
            found.append(each)
    return found


class Thinning:
    """Draws at most `most` points with equal probability from all, whose number is not known in advance.

    Each time there are too many, about half of them are dropped, and the same share of those to come.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self.most, self.device = most, device
        self.generator, self.share = torch.Generator().manual_seed(SEED), 1.0

    def kept(self, posterior: WeightPosterior, batches: Iterable[Batch]) -> list[Points]:
        """The points that are kept, in groups of `rows_per_step`."""
        found: list[Points] = []
        count = 0
        for batch, by_prior in posterior.logits_by_prior(batches, self._chosen):
            if len(by_prior.scale):
                found.append(Points(by_prior, batch.labels, batch.distances))
                count += len(by_prior.scale)
            while count > self.most:
                self.share /= 2
                found = [Points.joined(found).select(self._drawn(count, 1 / 2))]
                count = len(found[0].by_prior.scale)
        if not count:
            return []
        every = Points.joined(found)._replace(share=self.share)
        indices = torch.arange(count, device=self.device)
        return [every.select(each) for each in torch.split(indices, posterior.rows_per_step)]

    def _chosen(self, count: int) -> Tensor | None:
        """The indices to keep of this many new points; None keeps all."""
        return None if self.share == 1 else self._drawn(count, self.share)

    def _drawn(self, count: int, share: float) -> Tensor:
        chosen = torch.rand(count, generator=self.generator) < share
        return chosen.nonzero()[:, 0].to(self.device)
