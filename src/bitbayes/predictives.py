"""How predictions are averaged over the posterior: closed forms, draws of logits, or drawn networks.

All three have one interface. A closed form and draws of logits start from the Gaussian over the logits of a
batch, with temperature and residual in it. Drawn networks are run on the inputs, and have no residual.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import SAMPLED_LOGITS, Likelihood
from bitbayes.logits import LogitGaussian
from bitbayes.model import Batch
from bitbayes.options import SAMPLED_NETWORKS
from bitbayes.posteriors.base import WeightPosterior
from bitbayes.settings import Settings

# How many draws are taken by default: of logits, and of networks.
SAMPLES, NETWORKS = 100, 20


class Predictive(ABC):
    """One way to average. The batch and the Gaussian over its logits belong to the same n points.

    in_closed_form: whether it is a formula, which exported graphs and limits need.
    of_gaussian: whether it starts from the Gaussian, which may be None otherwise.
    samples: the number of draws; a closed form draws only for `probabilities`.
    """

    in_closed_form: ClassVar[bool] = False
    of_gaussian: ClassVar[bool] = True
    name: str
    likelihood: Likelihood
    samples: int

    @abstractmethod
    def logits(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        """Drop-in logits (n, k) of the averaged prediction."""

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
        drawn = self.likelihood.drawn_probabilities(gaussian, self.samples, self.generator)
        return self.likelihood.drop_in(drawn.mean(0))

    def draws(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        assert gaussian is not None and self.generator is not None
        state = self.generator.get_state()
        drawn = self.likelihood.drawn_probabilities(gaussian, self.samples, self.generator, shared=True)
        self.generator.set_state(state)
        return drawn


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
        self.likelihood = posterior.fitted.likelihood

    @cached_property
    def networks(self) -> dict[str, Tensor]:
        """The weights, drawn when they are first needed."""
        return self.posterior.sample(self.samples, self.settings.prior, self.generator)

    def logits(self, batch: Batch, gaussian: LogitGaussian | None = None) -> Tensor:
        return self.likelihood.drop_in(self.draws(batch, gaussian).mean(0))

    def draws(self, batch: Batch, gaussian: LogitGaussian | None) -> Tensor:
        return self.run(batch)[0]

    def run(self, batch: Batch) -> tuple[Tensor, torch.Size]:
        """Probabilities (samples, n, classes), and the shape of the model's own output."""
        outputs, shape = self.posterior.network_logits(batch, self.networks, self.settings.temperature)
        return self.likelihood.probabilities(outputs.nan_to_num()), shape


def predictive_for(
    posterior: WeightPosterior,
    settings: Settings,
    name: str,
    samples: int | None = None,
    generator: torch.Generator | None = None,
) -> Predictive:
    """The predictive of that name.

    Args:
        posterior: the Gaussian over weights.
        settings: for networks that are drawn.
        name: "auto", or as in `Laplace(predictive=…)`.
        samples: the number of draws, if not the default.
        generator: of the random numbers.
    """
    if samples is not None and (type(samples) is not int or samples < 1):
        raise ArgumentError(f"samples={samples!r}: expected a positive number of draws")
    if name == SAMPLED_NETWORKS and posterior.over_all_layers:
        return SampledNetworks(posterior, settings, samples or NETWORKS, generator)
    likelihood = posterior.fitted.likelihood
    name = likelihood.predictive_name(
        name, posterior.outputs, has_cross_covariance=posterior.has_cross_covariance
    )
    kind = SampledLogits if name == SAMPLED_LOGITS else ClosedForm
    return kind(likelihood, name, samples or SAMPLES, generator)
