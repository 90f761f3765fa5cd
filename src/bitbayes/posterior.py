"""What a Gaussian over weights can do, in place in its network. `LastLayer` and `AllLayers` are its kinds."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from bitbayes.fitting import Fitted
from bitbayes.logits import LogitGaussian
from bitbayes.model import (
    Batch,
    Data,
    Inputs,
    as_logits,
    call,
    check_finite,
    eval_mode,
    finite,
    input_batches,
    model_device,
)
from bitbayes.predictive import average_networks
from bitbayes.prior import Prior, Variance
from bitbayes.rays import RayGaussian
from bitbayes.structures import Curvature, WeightGaussian


class LogitFamily(Protocol):
    """The Gaussians over the logits of some points, one for each prior: made of one forward pass."""

    def at(self, prior: Prior) -> LogitGaussian:
        """The Gaussian for one prior."""

    def __len__(self) -> int:
        """The number of points."""

    @classmethod
    def joined(cls, families: list[Self]) -> Self:
        """The points of several families."""


class WeightPosterior(ABC):
    """The Gaussian over weights of `model` that follows from what was fitted, for any prior.

    The curvature is decomposed once, when it is first needed. No function changes the model.
    """

    def __init__(self, model: nn.Module, fitted: Fitted, *, paper: bool) -> None:
        self.model, self.fitted, self.paper = model, fitted, paper
        self._decomposed: dict[str, WeightGaussian] | None = None
        self._moved: tuple[torch.device, torch.dtype, dict[str, WeightGaussian]] | None = None

    @property
    def outputs(self) -> int:
        """The number of logits k."""
        return self.fitted.weights.outputs

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers that can have a prior of their own."""
        return tuple(self.fitted.curvature)

    # ---- predicting

    @abstractmethod
    def forward(self, x: Any, prior: Prior) -> tuple[LogitGaussian, tuple[int, ...]]:
        """The Gaussian over logits at x, differentiable, and the shape of the model's own output."""

    @abstractmethod
    def logits(self, x: Inputs, prior: Prior) -> LogitGaussian:
        """The Gaussian over logits at x, the common shift of all logits included."""

    @abstractmethod
    def gaussians(self, data: Data, prior: Prior, rows: int) -> Iterator[tuple[Batch, LogitGaussian]]:
        """The points of each batch, at most `rows` at a time, and the Gaussian over their logits."""

    @abstractmethod
    def sample(self, n: int, prior: Prior, generator: torch.Generator | None) -> dict[str, Tensor]:
        """n draws of the weights, stacked, by their names in the model."""

    def sampled_logits(
        self, data: Data, samples: int, prior: Prior, generator: torch.Generator | None
    ) -> Iterator[Tensor]:
        """Drop-in logits (n, k) of each batch: the average prediction of the same drawn networks."""
        draws = self.sample(samples, prior, generator)
        for batch in input_batches(data, model_device(self.model)):
            outputs = self.network_outputs(batch.inputs, draws)
            logits = torch.stack([as_logits(each, len(batch)) for each in outputs])
            if not finite(logits):  # a drawn network may overflow where the trained one does not
                with eval_mode(self.model):
                    own = as_logits(call(self.model, batch.inputs), len(batch))
                check_finite(batch, own, own, self.model)
            yield average_networks(logits)

    def network_outputs(self, inputs: Inputs, draws: dict[str, Tensor]) -> Tensor:
        """What drawn networks return, (s, …) with the shape of the model's own output."""
        networks = (dict(zip(draws, weights, strict=True)) for weights in zip(*draws.values(), strict=True))
        with eval_mode(self.model):
            return torch.stack([call(self.model, inputs, weights) for weights in networks])

    # ---- choosing the prior

    @abstractmethod
    def candidates(self) -> list[float]:
        """Prior variances worth trying, in ascending order."""

    @property
    @abstractmethod
    def rows_per_step(self) -> int:
        """To how many points `families` are worth joining, so that a step of tuning has enough to do."""

    @abstractmethod
    def families(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, LogitFamily]]:
        """The points of each batch, labels checked, and the Gaussians over their logits for any prior."""

    def log_evidence(self, prior: Prior) -> Tensor:
        """log p(D | θ*) − Σ over layers of `occam`: a scalar in float64."""
        return (
            -self.fitted.loss - torch.stack([self.occam(name, prior.of(name)) for name in self.names]).sum()
        )

    def occam(self, name: str, variance: Variance) -> Tensor:
        """A layer's part of the evidence: ½[τ‖θ*‖² − P log τ + log det(H + τI)], τ = 1/σ₀², P weights."""
        variance = torch.as_tensor(variance, dtype=torch.float64)
        gaussian = self.decomposed()[name]
        tau = 1 / variance
        count = gaussian.precisions(tau.detach()).numel()
        fit = self.fitted.squared_norms[name] * tau + count * variance.log()
        return (fit + gaussian.log_determinant(tau)) / 2

    # ---- far from the data

    @abstractmethod
    def rays(self, x: Tensor, prior: Prior, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        """The Gaussian over logits along the rays δ·x; `find_alpha`: with alpha."""

    @abstractmethod
    def bound(self, x: Tensor | None, prior: Prior, method: str) -> Tensor:
        """A confidence that no limit exceeds: one for all x, or one for each ray."""

    # ---- inside

    def decomposed(self) -> dict[str, WeightGaussian]:
        """The Gaussian over each layer's weights, in float64."""
        if self._decomposed is None:
            made = {name: self._decompose(name, each) for name, each in self.fitted.curvature.items()}
            self._decomposed = {name: each.refuse_traced() for name, each in made.items()}
        return self._decomposed

    def moved(self, device: torch.device, dtype: torch.dtype) -> dict[str, WeightGaussian]:
        """The Gaussian over each layer's weights, where and in the precision that predictions are made."""
        if self._moved is None or self._moved[:2] != (device, dtype):
            made = {name: each.to(device, dtype).refuse_traced() for name, each in self.decomposed().items()}
            self._moved = device, dtype, made
        return self._moved[2]

    @abstractmethod
    def _decompose(self, name: str, curvature: Curvature) -> WeightGaussian: ...
