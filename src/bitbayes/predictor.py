"""Predictions with one posterior, one residual and one choice of settings: what a call of `Laplace` uses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitbayes import rays
from bitbayes.closed_forms import FEW_CLASSES
from bitbayes.errors import ArgumentError
from bitbayes.logits import LogitGaussian
from bitbayes.model import Batch, Data, input_batches
from bitbayes.posteriors.base import WeightPosterior
from bitbayes.predictives import SAMPLES, Predictive, SampledNetworks, predictive_for
from bitbayes.rays import RayGaussian
from bitbayes.residual import Residual
from bitbayes.settings import Settings

# Numbers that one step of a prediction may hold.
NUMBERS_PER_PREDICTION = 2**24


class Rated(NamedTuple):
    """Labels (n,), if there are any, probabilities (n, k) and scores (n,) of one forward pass, on the CPU."""

    labels: Tensor | None
    probabilities: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Predictor:
    """`residual`: the one in use, if any."""

    posterior: WeightPosterior
    residual: Residual | None
    settings: Settings

    def predictive(
        self, name: str, samples: int | None = None, generator: torch.Generator | None = None
    ) -> Predictive:
        """The predictive of that name; see `predictive_for`."""
        return predictive_for(self.posterior, self.settings, name, samples, generator)

    def batches(self, x: Data, *, keep_labels: bool = False) -> Iterator[Batch]:
        """The batches of x on the model's device.

        `keep_labels`: where the output has positions, of which labels say whether these count.
        """
        positions = self.posterior.layout.positions
        return input_batches(
            x, self.posterior.device, positions=positions, keep_labels=keep_labels and positions
        )

    def gaussians(
        self, batches: Iterator[Batch], samples: int = SAMPLES
    ) -> Iterator[tuple[Batch, LogitGaussian]]:
        """The points of each batch, as many at a time as may be drawn at once, and their Gaussian."""
        if self.residual is not None:
            batches = self.residual.attached_to(batches)
        rows = max(1, NUMBERS_PER_PREDICTION // (self.posterior.outputs * max(FEW_CLASSES, samples)))
        for batch, gaussian in self.posterior.gaussians(batches, self.settings.prior, rows):
            yield batch, self.complete(gaussian, batch.root_kernel)

    def predict(self, batches: Iterator[Batch], predictive: Predictive) -> Iterator[tuple[Batch, Tensor]]:
        """The points of each batch, and the probabilities (n, classes) of their averaged prediction."""
        likelihood = predictive.likelihood
        for batch, gaussian in self._for(predictive, batches):
            yield batch, likelihood.log_probabilities(predictive.logits(batch, gaussian)).exp()

    def draw(self, batches: Iterator[Batch], predictive: Predictive) -> Iterator[tuple[Batch, Tensor]]:
        """The points of each batch, and draws (samples, n, classes) of their probabilities."""
        for batch, gaussian in self._for(predictive, batches):
            yield batch, predictive.draws(batch, gaussian)

    def rate(self, batches: Iterator[Batch], predictive: Predictive) -> Iterator[Rated]:
        """Predictions and scores of one forward pass."""
        likelihood = predictive.likelihood
        for batch, gaussian in self.gaussians(batches):
            probabilities = likelihood.log_probabilities(predictive.logits(batch, gaussian)).exp()
            labels = None if batch.labels is None else batch.labels.cpu()
            yield Rated(labels, probabilities.cpu(), likelihood.score(gaussian).cpu())

    def forward(self, x: Any) -> tuple[LogitGaussian, tuple[int, ...]]:
        """The Gaussian over the logits at x, differentiable, and the shape of the model's own output."""
        root = None if self.residual is None else self.residual.root_kernel(x)  # before the model runs
        gaussian, shape = self.posterior.forward(x, self.settings.prior)
        return self.complete(gaussian, root), shape

    def drop_in(self, x: Any, predictive: Predictive) -> tuple[Tensor, LogitGaussian | None]:
        """Drop-in logits in the shape of the model's output, and the Gaussian that they are of, if any."""
        if not predictive.likelihood.has_drop_in:
            raise ArgumentError(
                f"likelihood={predictive.likelihood.name!r} has no drop-in logits: use `predict_proba`"
            )
        if isinstance(predictive, SampledNetworks):
            (batch,) = self.batches(x)
            drawn, model_shape = predictive.run(batch)
            return predictive.likelihood.drop_in(drawn.mean(0)).reshape(model_shape), None
        gaussian, shape = self.forward(x)
        logits = predictive.logits(Batch(x, None, "the input"), gaussian)
        return self.posterior.layout.output(logits, shape), gaussian

    def logits(self, x: Data) -> LogitGaussian:
        """The Gaussian over the logits at x, the common shift of all logits included."""
        batches = self.batches(x)
        if self.residual is not None:
            batches = self.residual.attached_to(batches)
        prior = self.settings.prior
        return LogitGaussian.stacked(
            [
                self.complete(self.posterior.logits(batch.inputs, prior), batch.root_kernel)
                for batch in batches
            ]
        )

    def rays(self, x: Tensor, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        """The Gaussians over logits along the rays δ·x."""
        if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
            raise ArgumentError(f"tolerance={tolerance!r}: expected a number from 0 (exact) to below 1")
        found = self.posterior.rays(x, self.settings.prior, find_alpha=find_alpha, tolerance=tolerance)
        found = (ray.at_temperature(self.settings.temperature) for ray in found)
        return found if self.residual is None else rays.with_residual(found, x, self.residual, self.settings)

    def complete(self, gaussian: LogitGaussian, root_kernel: Tensor | None) -> LogitGaussian:
        """The Gaussian of the weights alone, with the temperature and the residual."""
        if root_kernel is not None:  # it is the same for all positions of an input
            root_kernel = self.posterior.layout.for_points(root_kernel, gaussian.scale.shape[0])
        return self.settings.complete(gaussian, root_kernel)

    def _for(
        self, predictive: Predictive, batches: Iterator[Batch]
    ) -> Iterator[tuple[Batch, LogitGaussian | None]]:
        """The points of each batch, with their Gaussian if the predictive starts from it."""
        if predictive.of_gaussian:
            return self.gaussians(batches, predictive.samples)
        return ((batch, None) for batch in batches)
