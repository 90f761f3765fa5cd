"""What tuning keeps of the data after their one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import EmptyLoaderError
from bitbayes.logits import LogitGaussian
from bitbayes.model import Batch
from bitbayes.posteriors.base import LogitsByPrior, WeightPosterior
from bitbayes.prior import Prior
from bitbayes.processes import current_processes
from bitbayes.settings import Settings
from bitbayes.tuning.noise import NoiseLike

SEED = 0
# The share of the validation inputs to which the residual adds nothing.
INSIDE = 0.99


class Points(NamedTuple):
    """Some points: the Gaussians over their logits, labels (n,) and the residual's √k(x) (n,), if any.

    `share`: that of the data which was kept, where these were drawn from more.
    """

    by_prior: LogitsByPrior
    labels: Tensor | None
    root_kernel: Tensor | None
    share: float = 1.0

    def gaussians(self, candidates: list[Settings]) -> list[LogitGaussian]:
        """The Gaussian over their logits for each candidate."""
        variances = {each.prior.variance for each in candidates}
        shared = {each: self.by_prior.at(Prior(each)) for each in variances}
        return [each.complete(shared[each.prior.variance], self.root_kernel) for each in candidates]

    def select(self, indices: Tensor) -> Points:
        """Some of the points."""
        labels = None if self.labels is None else self.labels[indices]
        root = None if self.root_kernel is None else self.root_kernel[indices]
        return Points(self.by_prior.select(indices), labels, root, self.share)

    @staticmethod
    def joined(parts: list[Points]) -> Points:
        """All points of the parts."""
        if len(parts) == 1:
            return parts[0]
        logits, labels, roots, shares = zip(*parts, strict=True)
        return Points(
            logits[0].joined(list(logits)),
            None if labels[0] is None else torch.cat(labels),
            None if roots[0] is None else torch.cat(roots),
            shares[0],
        )


def kept_points(posterior: WeightPosterior, batches: Iterable[Batch]) -> list[Points]:
    """The points that tuning keeps, in groups: all or, where there are too many, some drawn from all."""
    most, rows = posterior.most_points, posterior.rows_per_step
    thinning = None if most is None else Thinning(most, posterior.device)
    choose = None if thinning is None else thinning.chosen
    parts = (
        Points(by_prior, batch.labels, batch.root_kernel)
        for batch, by_prior in posterior.logits_by_prior(batches, choose)
    )
    if thinning is None:
        return list(_in_steps(parts, rows))
    groups = list(_in_steps(thinning.kept(parts, rows), rows))
    return [each._replace(share=thinning.share) for each in groups]


def shared_points(
    task: str, work: Callable[[], list[Points]], noise: Callable[[], NoiseLike]
) -> tuple[list[Points], list[NoiseLike]]:
    """This process's points, which may be none, and noise like the inputs of each process.

    Raises if no process has points, and in all processes if one fails.

    Args:
        task: what was asked for, in words.
        work: reads this process's share.
        noise: like the inputs of this process, once these were read.
    """
    processes = current_processes()

    def share() -> list[Points]:
        try:
            return work()
        except EmptyLoaderError:
            if processes.alone:
                raise
            return []

    def facts(mine: list[Points]) -> tuple[list[float], NoiseLike]:
        return [each.share for each in mine], noise().to(torch.device("cpu"))

    points, found = processes.agree(task, share, facts)
    kept = [each for shares, _ in found for each in shares]
    if not kept:
        raise EmptyLoaderError("the loaders of all processes are empty: they yielded no batch")
    # One process may have dropped more of its points than another: all of them count alike.
    return thinned(points, min(kept)), [each for _, each in found]


def thinned(groups: list[Points], share: float) -> list[Points]:
    """So many of the points that they are this share of the data, as the other processes' are."""
    generator = torch.Generator().manual_seed(SEED + 1)
    found = []
    for each in groups:
        if share < each.share:
            drawn = torch.rand(len(each.by_prior), generator=generator) < share / each.share
            each = each.select(drawn.nonzero()[:, 0])._replace(share=share)
        if len(each.by_prior):
            found.append(each)
    return found


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
            if len(part.by_prior):
                found.append(part)
                count += len(part.by_prior)
            while count > self.most:
                self.share /= 2
                half = Points.joined(found)
                found = [half.select(self._drawn(count, 1 / 2))]
                count = len(found[0].by_prior)
        for part in found:
            places = torch.arange(len(part.by_prior), device=self.device)
            yield from [part] if len(places) <= rows else map(part.select, torch.split(places, rows))

    def _drawn(self, count: int, share: float) -> Tensor:
        chosen = torch.rand(count, generator=self.generator) < share
        return chosen.nonzero()[:, 0].to(self.device)


def _in_steps(parts: Iterable[Points], rows: int) -> Iterator[Points]:
    """The points in groups of at most that many rows, unless a part has more."""
    waiting: list[Points] = []
    count = 0
    for part in parts:
        if waiting and count + len(part.by_prior) > rows:
            yield Points.joined(waiting)
            waiting, count = [], 0
        waiting.append(part)
        count += len(part.by_prior)
    if waiting:
        yield Points.joined(waiting)
