"""Points that are run through the model once, to tune and predict on them any number of times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError, DataError
from bitbayes.laplace import Laplace
from bitbayes.model import Batch, Loader
from bitbayes.options import SAMPLED_NETWORKS
from bitbayes.predicting import Predictor
from bitbayes.settings import Settings
from bitbayes.tuning import Costs, Points, TuningRequest, calibrate, kept_points

# The inputs are gone, and no predictive of a Gaussian needs them.
NO_BATCH = Batch({}, None, "the points")


@dataclass(frozen=True)
class PassedPoints:
    """The Gaussians over the logits of some labelled points, for any `Settings`, after one forward pass.

    Tuning on several splits of the same data, or comparing settings, then takes no further pass. Where `tune`
    keeps only some of the points, so does this.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(60, 4), torch.arange(60) % 3
    >>> bayes = bb.Laplace(torch.nn.Linear(4, 3)).fit([(x, y)])
    >>> passed = bb.PassedPoints.of(bayes, [(x, y)])
    >>> settings = passed.select(torch.arange(30)).tune()
    >>> probabilities, scores = passed.predict(settings)
    >>> bayes.settings = settings
    >>> torch.allclose(probabilities, bayes.predict_proba(x)), torch.allclose(scores, bayes.score(x))
    (True, True)
    """

    bayes: Laplace
    points: Points

    @classmethod
    @torch.no_grad()
    def of(cls, bayes: Laplace, loader: Loader, *, weighted: bool = False) -> Self:
        """Run the points of a loader, as for `tune`, through the model.

        Args:
            bayes: fitted.
            loader: labelled data.
            weighted: whether it yields weights of its points, with which `tune` counts them. Points of the
                weight 0 are left out.
        """
        likelihood = bayes.posterior.likelihood
        if not likelihood.classifies:
            raise ArgumentError(
                f"likelihood={likelihood.name!r} predicts values, and points that were passed once are for "
                "classes: use `Laplace.tune` and `Laplace.predict`, which run the model"
            )
        residual, settings = bayes.known_residual, bayes.settings
        request = TuningRequest(bayes.posterior, residual, settings, "auto", loader, False, weighted)
        groups = kept_points(request.posterior, request.validation_batches())
        return cls(bayes, Points.joined(groups))

    def __len__(self) -> int:
        return len(self.points.by_prior.scale)

    def select(self, indices: Tensor) -> Self:
        """Some of the points."""
        return type(self)(self.bayes, self.points.select(indices))

    @torch.no_grad()
    def tune(self, *, class_bias: bool = False) -> Settings:
        """Return the settings that `tune` chooses on these points, by the objective "calibrated".

        Args:
            class_bias: as for `tune`.
        """
        if not len(self):
            raise DataError("there are no points to tune on: select one or more")
        posterior, settings = self.bayes.posterior, self.bayes.settings
        # As `tune` does, drawn networks are compared by the closed form.
        name = "auto" if self.bayes.predictive == SAMPLED_NETWORKS else self.bayes.predictive
        predictive = Predictor(posterior, None, settings).predictive(name)
        costs = Costs([self.points], predictive.likelihood, predictive.name)
        residual = None if self.points.distances is None else self.bayes.known_residual
        if class_bias:
            predictive.likelihood.require_class_bias()
        biases = posterior.outputs if class_bias else 0
        return calibrate(costs, posterior.candidates(), residual, settings, biases)

    @torch.no_grad()
    def predict(self, settings: Settings) -> tuple[Tensor, Tensor]:
        """Return class probabilities (n, k) and scores (n,) with these settings."""
        (gaussian,) = self.points.gaussians([settings])
        predictor = Predictor(self.bayes.posterior, None, settings)
        predictive = predictor.predictive(self.bayes.predictive)
        if not predictive.of_gaussian:
            raise ArgumentError(
                f"predictive={predictive.name!r} runs networks on inputs, which are not kept: choose another"
            )
        batch = replace(NO_BATCH, distances=self.points.distances if settings.has_residual else None)
        return predictive.probabilities(batch, gaussian), predictor.score(batch, gaussian)
