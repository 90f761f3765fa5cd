"""Intervals for regression whose coverage is guaranteed, whatever the noise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from bitbayes.decisions.conformal import check_coverage, check_points, conformal_quantile
from bitbayes.errors import ArgumentError
from bitbayes.model import Data, DeferredChecks, Loader, check_loader, labelled_batches
from bitbayes.precision import to_float64
from bitbayes.predicting import Predictor
from bitbayes.progress import track
from bitbayes.regression import Prediction


@dataclass(frozen=True)
class ConformalInterval:
    """Intervals m(x) ± q·s(x) that hold each output with a probability of at least `coverage`.

    m and s are mean and deviation of the prediction, so that intervals grow away from the training data. q is
    the ⌈(n + 1)·coverage⌉-th smallest |y − m|/s of n calibration points. The intervals keep the settings that
    the `Laplace` had then.

    coverage: that was asked for, of each output by itself.
    quantile: q of each output, (outputs,) in float64.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x = torch.randn(100, 4)
    >>> y = x[:, :1] + torch.randn(100, 1)
    >>> bayes = bb.Laplace(torch.nn.Linear(4, 1), likelihood="gaussian").fit([(x, y)]).tune([(x, y)])
    >>> interval = bayes.conformal_interval([(torch.randn(100, 4), y)])
    >>> interval(x).shape, interval.quantile.shape
    (torch.Size([100, 1, 2]), torch.Size([1]))
    """

    coverage: float
    quantile: Tensor
    predictor: Predictor = field(repr=False)

    @torch.no_grad()
    def __call__(self, x: Data) -> Tensor:
        """Return the interval of each output, (n, outputs, 2).

        Args:
            x: inputs, or a loader of them.
        """
        posterior = self.predictor.posterior
        posterior.check_unchanged(posterior.model)
        found = self.predictor.values(self.predictor.batches(x))
        return torch.cat([self.of(each.mean, each.deviation) for _, each in found])

    def of(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return the intervals of these means and deviations (n, outputs), (n, outputs, 2)."""
        half = self.quantile.to(mean) * deviation
        return torch.stack([mean - half, mean + half], dim=-1)

    def as_json(self) -> dict[str, Any]:
        """What an exported file says about the intervals."""
        return {"coverage": self.coverage, "quantile": self.quantile.tolist()}

    @classmethod
    def calibrated(
        cls, predictor: Predictor, loader: Loader, *, coverage: float, progress: bool | None
    ) -> Self:
        """What `Laplace.conformal_interval` returns."""
        share, posterior = check_coverage(coverage), predictor.posterior
        if posterior.likelihood.classifies:
            raise ArgumentError(
                f"likelihood={posterior.likelihood.name!r} predicts classes, which have no intervals: use "
                "`sets`"
            )
        parts = []
        steps = track(check_loader(loader), "conformal interval", progress)
        with DeferredChecks() as checks:
            for batch, gaussian in predictor.gaussians(labelled_batches(steps, posterior.model)):
                found = Prediction.of(gaussian, posterior.likelihood, predictor.settings).to_float64()
                assert batch.labels is not None
                shape = (len(found.mean), posterior.outputs)
                labels = posterior.likelihood.check_labels(batch.labels, shape, batch.name, checks)
                parts.append((to_float64(labels.cpu()) - found.mean).abs() / found.deviation)
        scores = torch.cat(parts)  # (n, outputs)
        check_points(len(scores), share)
        quantiles = [-conformal_quantile(-each, share) for each in scores.unbind(1)]
        return cls(float(coverage), torch.stack(quantiles), predictor)
