"""Predictions: the ways to average over the posterior, and the `Predictor` that `Laplace` calls.

There are three kinds of predictives with one interface: closed forms, draws of logits, and drawn networks. A
closed form and draws of logits start from the Gaussian over the logits of a batch, with temperature and
residual in it. Drawn networks are run on the inputs, and have no residual.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from bitbayes import metrics, rays
from bitbayes.closed_forms import FEW_CLASSES
from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import SAMPLED_LOGITS, SAMPLES, Likelihood
from bitbayes.likelihoods.preference import Reward
from bitbayes.logits import LogitGaussian
from bitbayes.model import Batch, Data, input_batches, is_pair, pair_data, unselected
from bitbayes.options import SAMPLED_NETWORKS
from bitbayes.posteriors.base import Passed, WeightPosterior
from bitbayes.precision import to_float64
from bitbayes.prior import Prior
from bitbayes.rays import RayGaussian
from bitbayes.regression import Prediction
from bitbayes.residual import Residual
from bitbayes.settings import Settings

# The numbers by which inputs are rejected: strangers by the score, mistakes by the confidence.
Rank = Literal["score", "confidence"]
SCORE, CONFIDENCE = RANKS = ("score", "confidence")
# The default number of draws: of logits, and of networks.
NETWORKS = 20
# How many numbers one step of a prediction may hold in memory.
NUMBERS_PER_PREDICTION = 2**24


class Predictive(ABC):
    """One way to average. The batch and the Gaussian over its logits belong to the same n points.

    in_closed_form: whether it is a formula, which exported graphs and limits need.
    of_gaussian: whether it starts from the Gaussian, which may be None otherwise.
    samples: the number of draws; a closed form draws only in `draws`.
    """

    in_closed_form: ClassVar[bool] = False
    of_gaussian: ClassVar[bool] = True
    name: str
    likelihood: Likelihood
    samples: int

    @abstractmethod
    def logits(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        """Drop-in logits (n, k) of the averaged prediction."""

    def probabilities(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        """The averaged probabilities (n, classes)."""
        return self.likelihood.log_probabilities(self.logits(batch, gaussian)).exp()

    @abstractmethod
    def draws(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        """Draws of the probabilities, (samples, n, classes), for the parts of the uncertainty."""


@dataclass(frozen=True)
class SampledLogits(Predictive):
    """The average over logits that are drawn from the Gaussian.

    `generator`: of the random numbers. `draws` takes the same ones for every batch.
    """

    likelihood: Likelihood
    name: str = SAMPLED_LOGITS
    samples: int = SAMPLES
    generator: torch.Generator | None = None

    def logits(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        assert gaussian is not None
        return self.likelihood.predict_by_draws(gaussian, self.samples, self.generator)

    def draws(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        assert gaussian is not None and self.generator is not None
        self.generator.set_state(self._first_state)
        return self.likelihood.drawn_probabilities(gaussian, self.samples, self.generator, shared=True)

    @cached_property
    def _first_state(self) -> Tensor:
        """That of the generator before the first batch."""
        assert self.generator is not None
        return self.generator.get_state()


@dataclass(frozen=True)
class ClosedForm(SampledLogits):
    """A formula of the likelihood, by its name."""

    in_closed_form = True

    def logits(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        assert gaussian is not None
        return self.likelihood.predict(gaussian, self.name)


class SampledNetworks(Predictive):
    """The average over networks, drawn once for all batches from the posterior over all layers."""

    of_gaussian = False
    name = SAMPLED_NETWORKS

    def __init__(
        self,
        posterior: WeightPosterior,
        settings: Settings,
        samples: int,
        generator: torch.Generator | None,
    ) -> None:
        self.posterior, self.settings = posterior, settings
        self.samples, self.generator = samples, generator
        self.likelihood = posterior.likelihood

    @cached_property
    def networks(self) -> dict[str, Tensor]:
        """The weights, drawn when they are first needed."""
        return self.posterior.sample(self.samples, Prior(self.settings.prior_variance), self.generator)

    def logits(self, batch: Batch, gaussian: LogitGaussian | None = None) -> Tensor:
        return self.likelihood.drop_in(self.draws(batch, gaussian).mean(0))

    def draws(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        return self.run(batch)[0]

    def run(self, batch: Batch) -> tuple[Tensor, torch.Size]:
        """Probabilities (samples, n, classes), and the shape of the model's own output."""
        bias = self.settings.bias_like(torch.zeros((), dtype=torch.float64))
        outputs, shape = self.posterior.network_logits(batch, self.networks, self.settings.temperature, bias)
        return self.likelihood.probabilities(outputs.nan_to_num()), shape


class Rated(NamedTuple):
    """Labels (n,) or None, probabilities (n, k), scores and confidences (n,) of some points, on the CPU.

    `weights`: how many times each counts, (n,), or None.
    """

    labels: Tensor | None
    probabilities: Tensor
    scores: Tensor
    confidences: Tensor
    weights: Tensor | None = None

    def by(self, rank: str) -> Tensor:
        """The scores or the confidences, (n,)."""
        return self.scores if rank == SCORE else self.confidences

    def measures(self) -> dict[str, float]:
        """What `Laplace.evaluate` returns for labelled data."""
        assert self.labels is not None
        ranks = self.by(CONFIDENCE)
        return metrics.of_predictions(self.probabilities, self.labels, ranks, weights=self.weights)

    def measures_of_outliers(self, inside: "Rated", by: str) -> dict[str, float]:
        """What it returns for outliers, compared with the data."""
        own, theirs = self.by(by), inside.by(by)
        return metrics.of_outliers(self.probabilities, own, theirs, weights_in=inside.weights)

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """The points of all parts."""
        labels, probabilities, scores, confidences, weights = zip(*parts, strict=True)
        return cls(
            None if labels[0] is None else torch.cat(labels),
            torch.cat(probabilities),
            torch.cat(scores),
            torch.cat(confidences),
            None if weights[0] is None else torch.cat(weights),
        )


class RatedLabels(Rated):
    """The same for several labels of each point: labels (n, k) or None."""

    def measures(self) -> dict[str, float]:
        """What `Laplace.evaluate` returns for labelled data."""
        assert self.labels is not None
        return metrics.of_labels(self.probabilities, self.labels, self.by(CONFIDENCE))

    def measures_of_outliers(self, inside: Rated, by: str) -> dict[str, float]:
        """What it returns for outliers, compared with the data."""
        found = metrics.of_scores(self.by(by), inside.by(by))
        return {**found, "mmc": metrics.label_mmc(self.probabilities)}


class RatedValues(NamedTuple):
    """Targets (n, k) or None, predicted values and scores (n,) of some points, on the CPU."""

    labels: Tensor | None
    prediction: Prediction
    scores: Tensor

    def by(self, rank: str) -> Tensor:
        """The scores, (n,): there is no other number for values."""
        assert rank == SCORE
        return self.scores

    def measures(self) -> dict[str, float]:
        """What `Laplace.evaluate` returns for labelled data."""
        assert self.labels is not None
        mean, deviation = self.prediction.mean, self.prediction.deviation
        return metrics.of_values(mean, deviation, self.prediction.interval(0.9), self.labels)

    def measures_of_outliers(self, inside: Self, by: str) -> dict[str, float]:
        """What it returns for outliers, compared with the data."""
        found = metrics.of_scores(self.by(by), inside.by(by))
        own, theirs = (each.prediction.deviation.mean().item() for each in (self, inside))
        return {**found, "widening": own / theirs}

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """The points of all parts."""
        labels, predictions, scores = zip(*parts, strict=True)
        joined = None if labels[0] is None else torch.cat(labels)
        return cls(joined, Prediction.joined(predictions), torch.cat(scores))


@dataclass(frozen=True)
class Predictor:
    """Makes predictions from a posterior, the residual that is in use (or None), and the settings."""

    posterior: WeightPosterior
    residual: Residual | None
    settings: Settings

    @property
    def prior(self) -> Prior:
        """The prior over the weights."""
        return Prior(self.settings.prior_variance)

    @property
    def noise_deviations(self) -> Tensor:
        """The deviation of each output's noise, (k,), in float64; 1 if there is none."""
        like = torch.zeros(1, self.posterior.outputs, dtype=torch.float64)
        return self.settings.noise_variances(like).sqrt()

    def predictive(
        self, name: str, samples: int | None = None, generator: torch.Generator | None = None
    ) -> Predictive:
        """The predictive of that name.

        Args:
            name: "auto", or as in `Laplace(predictive=…)`.
            samples: the number of draws; None is the default.
            generator: of the random numbers.
        """
        if samples is not None and (type(samples) is not int or samples < 1):
            raise ArgumentError(f"samples={samples!r}, method={name!r}: expected a positive number of draws")
        posterior = self.posterior
        if name == SAMPLED_NETWORKS and posterior.over_all_layers:
            return SampledNetworks(posterior, self.settings, samples or NETWORKS, generator)
        likelihood, pairs = posterior.likelihood, posterior.has_cross_covariance
        name = likelihood.predictive_name(name, posterior.outputs, has_cross_covariance=pairs)
        kind = SampledLogits if name == SAMPLED_LOGITS else ClosedForm
        return kind(likelihood, name, samples or SAMPLES, generator)

    def batches(self, x: Data, *, keep_labels: bool = False) -> Iterator[Batch]:
        """The batches of x on the model's device.

        `keep_labels`: keep labels if the output has positions, because they say which positions count.
        """
        posterior, positions = self.posterior, self.posterior.layout.positions
        form, keep = posterior.fitted.inputs, keep_labels and positions
        likelihood = posterior.likelihood
        width = None if likelihood.one_label else likelihood.targets(posterior.outputs)
        x = pair_data(x) if likelihood.of_pairs else x
        for batch in input_batches(
            x, posterior.model, form=form, positions=positions, width=width, keep_labels=keep
        ):
            form.refuse_one_row(batch.inputs)
            yield batch

    def batches_to_measure(self, x: Data) -> Iterator[Batch]:
        """The batches of x to measure distances of: where points are pairs, single inputs have one, too."""
        one = isinstance(x, (Tensor, Mapping)) and not is_pair(x)
        if one and self.posterior.likelihood.of_pairs:
            return input_batches(x, unselected(self.posterior.model))
        return self.batches(x)

    def gaussians(
        self, batches: Iterator[Batch], samples: int = SAMPLES
    ) -> Iterator[tuple[Batch, LogitGaussian]]:
        """Parts of the batches, small enough to draw from at once, and the Gaussian of each."""
        if self.residual is not None:
            batches = map(self.residual.attach, batches)
        rows = max(1, NUMBERS_PER_PREDICTION // (self.posterior.outputs * max(FEW_CLASSES, samples)))
        for batch, gaussian in self.posterior.gaussians(batches, self.prior, rows):
            # The posterior has repeated the distances for the positions of an input already.
            yield batch, self.settings.complete(gaussian, batch.distances)

    def predict(self, batches: Iterator[Batch], predictive: Predictive) -> Iterator[tuple[Batch, Tensor]]:
        """The points of each batch, and the probabilities (n, classes) of their averaged prediction."""
        for batch, gaussian in self._with_gaussians(predictive, batches):
            yield batch, predictive.probabilities(batch, gaussian)

    def draw(self, batches: Iterator[Batch], predictive: Predictive) -> Iterator[tuple[Batch, Tensor]]:
        """The points of each batch, and draws (samples, n, classes) of their probabilities."""
        for batch, gaussian in self._with_gaussians(predictive, batches):
            yield batch, predictive.draws(batch, gaussian)

    def rate(self, batches: Iterator[Batch], predictive: Predictive) -> Rated:
        """Probabilities and scores of one forward pass."""
        likelihood = self.posterior.likelihood
        kind = Rated if likelihood.one_label else RatedLabels

        def rated() -> Iterator[Rated]:
            for batch, gaussian in self.gaussians(batches):
                probabilities = predictive.probabilities(batch, gaussian)
                labels = None if batch.labels is None else batch.labels.cpu()
                confidences = likelihood.confidence(probabilities).cpu()
                weights = None if batch.weights is None else batch.weights.cpu()
                scores = self.score(batch, gaussian).cpu()
                yield kind(labels, probabilities.cpu(), scores, confidences, weights)

        return kind.joined(rated())

    def rate_values(self, batches: Iterator[Batch]) -> RatedValues:
        """Predicted values and scores of one forward pass, in regression."""

        def rated() -> Iterator[RatedValues]:
            for batch, gaussian in self.gaussians(batches):
                labels = None if batch.labels is None else to_float64(batch.labels.cpu())
                found = Prediction.of(gaussian, self.posterior.likelihood, self.settings).to_float64()
                yield RatedValues(labels, found, self.score(batch, gaussian).cpu())

        return RatedValues.joined(rated())

    def rank(
        self, batches: Iterator[Batch], by: str, predictive: Predictive
    ) -> Iterator[tuple[Batch, Tensor]]:
        """The points of each batch, and their scores or confidences (n,)."""
        if by == SCORE:
            for batch, gaussian in self.gaussians(batches):
                yield batch, self.score(batch, gaussian)
        else:
            for batch, probabilities in self.predict(batches, predictive):
                yield batch, self.posterior.likelihood.confidence(probabilities)

    def score(self, batch: Batch, gaussian: LogitGaussian) -> Tensor:
        """How much the points of a batch are like the data, (n,), from what `gaussians` gives."""
        energy = self.posterior.likelihood.score(self.settings.without_bias(gaussian))
        return self.settings.score(energy, batch.distances)

    def forward(self, x: Any) -> Passed:
        """A differentiable pass of x, with temperature and residual in its Gaussian."""
        observer = None if self.residual is None else self.residual.observer(x)  # before the model runs
        gaussian, shape, distances, features = self.posterior.forward(x, self.prior, observer)
        if distances is not None:  # all positions of an input share them
            distances = self.posterior.layout.for_points(distances, gaussian.scale.shape[0])
        return Passed(self.settings.complete(gaussian, distances), shape, distances, features)

    def drop_in(self, x: Any, predictive: Predictive) -> tuple[Tensor, Passed | None]:
        """Drop-in logits in the shape of the model's output, and the pass they come from (None: networks)."""
        if not predictive.likelihood.has_drop_in:
            raise ArgumentError(
                f"likelihood={predictive.likelihood.name!r} has no drop-in logits: use `predict_proba`"
            )
        if isinstance(predictive, SampledNetworks):
            (batch,) = self.batches(x)
            drawn, model_shape = predictive.run(batch)
            return predictive.likelihood.drop_in(drawn.mean(0)).reshape(model_shape), None
        passed = self.forward(x)
        logits = predictive.logits(Batch(x, None, "the input"), passed.gaussian)
        return self.posterior.layout.output(logits, passed.shape), passed

    def logits(self, x: Data) -> LogitGaussian:
        """The Gaussian over the logits at x, the common shift of all logits included."""
        parts = []
        for batch in self.batches(x):
            observed = batch if self.residual is None else self.residual.attach(batch)
            points, gaussian = self.posterior.logits(observed, self.prior)
            parts.append(self.settings.complete(gaussian, points.distances))
        return LogitGaussian.stacked(parts)

    def values(self, batches: Iterator[Batch]) -> Iterator[tuple[Batch, Prediction]]:
        """The points of each batch, and the prediction of their values."""
        for batch, gaussian in self.gaussians(batches):
            yield batch, Prediction.of(gaussian, self.posterior.likelihood, self.settings)

    def differentiable_values(self, x: Any) -> Prediction:
        """The prediction for one batch, differentiable in it."""
        return Prediction.of(self.forward(x).gaussian, self.posterior.likelihood, self.settings)

    def rewards(self, x: Data) -> Reward:
        """The rewards of inputs, or of a pair the difference of both."""
        batches = self.batches(x) if is_pair(x) else input_batches(x, unselected(self.posterior.model))
        return Reward.joined(gaussian for _, gaussian in self.gaussians(batches))

    def joint_values(self, x: Any) -> Prediction:
        """The prediction for one batch, with its covariance between the points."""
        passed = self.forward(x)
        found = Prediction.of(passed.gaussian, self.posterior.likelihood, self.settings)
        noise = self.settings.noise_variances(found.mean)
        own = self.posterior.joint_covariance(passed, self.prior)[: len(noise)]  # (m, n, n)
        # What the residual adds is independent of all else.
        own = noise[:, None, None] * (own - torch.diag_embed(own.diagonal(dim1=1, dim2=2)))
        return replace(found, covariance=own + torch.diag_embed(found.variance.T))

    def rays(self, x: Tensor, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        """The Gaussians over logits along the rays δ·x."""
        if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < 1:
            raise ArgumentError(f"tolerance={tolerance!r}: expected a number from 0 (exact) to below 1")
        found = self.posterior.rays(x, self.prior, find_alpha=find_alpha, tolerance=tolerance)
        settings = self.settings
        if self.posterior.likelihood.has_noise:  # all in units of the noise, as the covariance is
            found = (ray.in_units(self.noise_deviations.to(ray.alpha)) for ray in found)
        else:
            found = (ray.at_temperature(settings.temperature, settings.bias_like(ray.alpha)) for ray in found)
        return found if self.residual is None else rays.with_residual(found, x, self.residual, self.settings)

    def assemble(self, parts: Iterable[tuple[Batch, Tensor]]) -> Tensor:
        """The results (n, c) or (n,) of all batches, joined in the shape of the model's output."""
        layout = self.posterior.layout
        if not layout.positions:
            return torch.cat([result for _, result in parts])
        return layout.assemble((batch.positions, result) for batch, result in parts)

    def _with_gaussians(
        self, predictive: Predictive, batches: Iterator[Batch]
    ) -> Iterator[tuple[Batch, LogitGaussian | None]]:
        """The points of each batch, with their Gaussian if the predictive starts from it."""
        if predictive.of_gaussian:
            return self.gaussians(batches, predictive.samples)
        return ((batch, None) for batch in batches)
