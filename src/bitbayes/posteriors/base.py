"""The Gaussian over weights of a network, for any prior. `LastLayer` and `AllLayers` are its two kinds."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, ModelError
from bitbayes.fitted import Fitted
from bitbayes.logits import LogitGaussian
from bitbayes.model import (
    Batch,
    ChangeDetector,
    DeferredChecks,
    Observer,
    as_logits,
    call,
    check_finite,
    finite,
    private_copy,
)
from bitbayes.precision import prediction_dtype
from bitbayes.prior import Prior
from bitbayes.rays import BoundRequest, RayGaussian
from bitbayes.structures import Curvature, WeightGaussian

# Some points, and the Gaussian over their logits.
BatchGaussians = Iterator[tuple[Batch, LogitGaussian]]
# n → indices to keep (None: all).
Choice = Callable[[int], Tensor | None]
# A noise variance: one number, one for each output, or None for likelihoods that have none.
Noise = float | tuple[float, ...] | None
# Below this a noise variance is 0.
SMALLEST_NOISE = torch.finfo(torch.float32).tiny


class Passed(NamedTuple):
    """What comes out of a pass.

    gaussian: over the logits at N points.
    shape: of the model's own output.
    distances: (n, levels), which an observer has found, or None.
    features: (N, d), the input of the last layer, or None over all layers.
    """

    gaussian: LogitGaussian
    shape: tuple[int, ...]
    distances: Tensor | None
    features: Tensor | None = None


class LogitsByPrior(Protocol):
    """The Gaussians over the logits of n points, one for each prior, from one forward pass."""

    @property
    def scaled_mean(self) -> Tensor:
        """(n, k), the mean of every one of the Gaussians; see `LogitGaussian`."""

    @property
    def scale(self) -> Tensor:
        """(n,), the units of the Gaussians."""

    def at(self, prior: Prior) -> LogitGaussian:
        """The Gaussian for one prior."""

    def mean_pair_variance(self, prior: Prior) -> Tensor:
        """`scaled_mean_pair_variance` of that Gaussian, (n,), for k ≥ 2."""

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """The points of all parts."""

    def select(self, indices: Tensor) -> Self:
        """Some of the points."""


class WeightPosterior(ABC):
    """The Gaussian over weights of `model` that follows from what was fitted, for any prior.

    The curvature is decomposed once, when it is first needed. No function changes the model.
    """

    over_all_layers: ClassVar[bool]

    def __init__(self, model: nn.Module, fitted: Fitted) -> None:
        self.model, self.fitted, self.likelihood = model, fitted, fitted.likelihood
        # The number of outputs k, and where they are in the model's output.
        self.outputs, self.layout = fitted.weights.outputs, fitted.weights.layout
        # Whether covariances between outputs are known, and not only variances.
        self.has_cross_covariance = all(each.has_cross_covariance for each in fitted.curvature.values())
        self._detector = ChangeDetector(model, fitted.fingerprint, fitted.mutable_buffers)
        self._decomposed: dict[str, WeightGaussian] | None = None
        self._moved: dict[tuple[torch.device, torch.dtype], dict[str, WeightGaussian]] = {}

    def check_unchanged(self, model: nn.Module, checks: DeferredChecks | None = None) -> None:
        """Raise if this is no longer the model that was fitted, or if its weights have changed since.

        `checks`: if given, the weights' values are compared later.
        """
        if model is not self.model:
            raise ModelError(
                "`model` has been replaced since `fit`, and the Gaussian is over the weights of the one "
                "before: make a new Laplace for the new one"
            )
        unchanged = self._detector.unchanged()
        if checks is not None:
            checks.add(unchanged, self._renew_detector)
        elif not unchanged:
            self._renew_detector()

    def share_decomposition(self, other: Self) -> Self:
        """Take what another posterior of the same fit has decomposed already; return self."""
        self._decomposed, self._moved = other._decomposed, other._moved
        return self

    def _renew_detector(self) -> None:
        self._detector = self._detector.renewed()

    def check_outputs(self) -> None:
        """Raise if the model has other outputs than when it was fitted, though its tensors are the same.

        It takes one run of the model, on a few made-up inputs.
        """
        if self.fitted.known_outputs is not None:
            self.fitted.known_outputs.check(self.network())

    def __getstate__(self) -> dict[str, Any]:
        # A detector refers to the tensors of this model: a copy of the model needs its own.
        return {**self.__dict__, "_detector": (self._detector.fingerprint, self._detector.mutable_buffers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._detector = ChangeDetector(self.model, *state["_detector"])

    def network(self) -> nn.Module:
        """A private copy of the model to run."""
        return private_copy(self.model, self.fitted.side_effects)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layers that can have a prior of their own."""
        return tuple(self.fitted.curvature)

    # ---- predicting

    @abstractmethod
    def forward(self, x: Any, prior: Prior, observer: Observer | None) -> Passed:
        """One differentiable pass of x; `observer` looks at its levels."""

    @abstractmethod
    def logits(self, batch: Batch, prior: Prior) -> tuple[Batch, LogitGaussian]:
        """The points of a batch, and the Gaussian over their logits, their common shift included."""

    @abstractmethod
    def gaussians(self, batches: Iterable[Batch], prior: Prior, rows: int) -> BatchGaussians:
        """The points of each batch, at most `rows` at a time, and the Gaussian over their logits.

        Labels, if there are any, are checked.
        """

    @abstractmethod
    def sample(
        self,
        n: int,
        prior: Prior,
        generator: torch.Generator | None,
        temperature: float = 1.0,
        noise: Noise = None,
        class_bias: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """n draws of the weights, stacked, by their names in the model.

        `noise`: the noise variance that the prior's is in units of, or None.

        `temperature`, `class_bias`: (μ + b)/T is the mean of the last layer's weights. No weights of all
        layers have such logits, so draws of these do not depend on either: see `network_logits`.
        """

    def network_logits(
        self, batch: Batch, draws: dict[str, Tensor], temperature: float, class_bias: Tensor | None = None
    ) -> tuple[Tensor, torch.Size]:
        """The logits (s, n, k) of s drawn networks; and the shape of the model's own output.

        At a temperature T and with a class bias b, a drawn network's logits f become
        (f* + b)/T + (f − f*), f* those of the model itself.
        """
        networks = (dict(zip(draws, weights, strict=True)) for weights in zip(*draws.values(), strict=True))
        network = self.network()
        outputs = [call(network, batch.inputs, weights) for weights in networks]
        logits = torch.stack([as_logits(each, len(batch)) for each in outputs])
        logits = logits.to(prediction_dtype(logits.dtype))
        overflow = not finite(logits)  # a drawn network may overflow where the trained one does not
        if overflow or temperature != 1:
            own = as_logits(call(network, batch.inputs), len(batch))
            check_finite(batch, own, own, network)
            logits = logits - own.to(logits) * (1 - 1 / temperature)
        if class_bias is not None:
            logits = logits + class_bias.to(logits) / temperature
        return logits, outputs[0].shape

    def joint_covariance(self, passed: Passed, prior: Prior) -> Tensor:
        """The covariance of each output between the points of a pass, (k, n, n); differentiable."""
        raise ArgumentError("joint=True needs layers='last': over all layers there is no joint covariance")

    # ---- choosing the prior

    @abstractmethod
    def candidates(self) -> list[float]:
        """Prior variances worth trying, in ascending order."""

    @property
    @abstractmethod
    def rows_per_step(self) -> int:
        """How many points to join for one step of tuning, so that kernel launches are amortised."""

    @property
    def most_points(self) -> int | None:
        """How many points of validation data are kept at most, drawn at random; None keeps all."""
        return None

    @abstractmethod
    def logits_by_prior(
        self, batches: Iterable[Batch], choose: Choice | None = None
    ) -> Iterator[tuple[Batch, LogitsByPrior]]:
        """The points of each batch, labels checked, and the Gaussians over their logits for any prior.

        `choose`: which of n points to keep; the others cost only their forward pass. It is used only if
        `most_points` is a number.
        """

    def log_evidence(self, prior: Prior, noise: Noise = None) -> Tensor:
        """log p(D | θ*) − the penalty of all layers: a scalar in float64.

        `noise`: the noise variance σ², one number or one for each target, if the likelihood has one. Then
        log p(D | θ*) = −½ Σ over the targets [n log 2πσ² + Eₙ/σ²] − (loss − ½ Σ E), E = Σₙ(yₙ − fₙ)². The
        last term is what the loss has beside squared errors.
        """
        fitted, errors = self.fitted, self.fitted.squared_errors
        if noise is None:
            return -fitted.loss - self.evidence_penalty(prior, self.names)
        several = noise if isinstance(noise, tuple) else (noise,) * len(errors)
        loss = sum(
            fitted.total_weight * math.log(2 * math.pi * own) + (1 / own - 1) * each
            for own, each in zip(several, errors, strict=True)
        )
        return -loss / 2 - fitted.loss - self.evidence_penalty(prior, self.names, noise)

    def evidence_penalty(self, prior: Prior, names: Iterable[str], noise: Noise = None) -> Tensor:
        """½ Σ over the named layers [τ‖θ*‖² − P log τ + log det(H + τI)], τ = 1/σ₀², P weights.

        With a noise variance, ‖θ*‖² is in units of it. H is, too.
        """
        total = torch.zeros((), dtype=torch.float64)
        for name in names:
            gaussian, tau = self.decomposed()[name], 1 / torch.as_tensor(prior.of(name), dtype=torch.float64)
            fit = self.squared_norm(name, noise) * tau - gaussian.size * tau.log()
            total = total + (fit + gaussian.log_determinant(tau)) / 2
        return total

    def squared_norm(self, name: str, noise: Noise = None) -> float:
        """‖θ*‖² of a layer, in units of the noise variance if there is one."""
        norm = self.fitted.squared_norms[name]
        if isinstance(noise, tuple):
            raise ArgumentError(
                "over all layers, the outputs share their weights, and so one noise variance: give one number"
            )
        return norm if noise is None else norm / noise

    @property
    def noise_variance(self) -> float | tuple[float, ...]:
        """The mean squared error on the training data, which is used until a noise variance is chosen.

        One for each output; one for all if they share their weights.
        """
        fitted = self.fitted
        return tuple(max(each / fitted.total_weight, SMALLEST_NOISE) for each in fitted.squared_errors)

    def noise_of(self, noise: Noise) -> float | tuple[float, ...]:
        """A noise variance in the form of `noise_variance`; that one, if there is none."""
        if noise is None:
            return self.noise_variance
        if isinstance(noise, float) and not self.over_all_layers:
            return (noise,) * self.likelihood.targets(self.outputs)
        return noise

    def best_noise(self, prior: Prior) -> float | tuple[float, ...]:
        """The noise variance with the largest evidence for a prior."""
        total = sum(self.squared_norm(name) / float(prior.of(name)) for name in self.names)
        errors = sum(self.fitted.squared_errors)
        return max((errors + total) / (self.fitted.total_weight * self.outputs), SMALLEST_NOISE)

    # ---- far from the data

    @abstractmethod
    def rays(self, x: Tensor, prior: Prior, *, find_alpha: bool, tolerance: float) -> Iterator[RayGaussian]:
        """The Gaussian over logits along the rays δ·x; `find_alpha`: whether to find alpha, too."""

    @abstractmethod
    def bound(self, x: Tensor | None, prior: Prior, request: BoundRequest) -> Tensor:
        """A confidence that no limit exceeds: one for all x, or one for each ray."""

    # ---- graphs

    def check_graph(self) -> None:  # noqa: B027  # most posteriors have nothing to refuse
        """Raise if its predictions cannot be exported as a graph."""

    # ---- inside

    def decomposed(self) -> dict[str, WeightGaussian]:
        """The Gaussian over each layer's weights, in float64."""
        if self._decomposed is None:
            with torch.inference_mode(False):  # what is cached may be differentiated through later
                made = {name: self._decompose(name, each) for name, each in self.fitted.curvature.items()}
            self._decomposed = {name: each.refuse_traced() for name, each in made.items()}
        return self._decomposed

    def moved(self, device: torch.device, dtype: torch.dtype) -> dict[str, WeightGaussian]:
        """The Gaussian over each layer's weights, on this device and in this precision."""
        key = device, dtype
        if (made := self._moved.get(key)) is None:
            with torch.inference_mode(False):
                made = {name: each.to(*key).refuse_traced() for name, each in self.decomposed().items()}
            # Another thread may do this at the same time, so the cache is replaced, not changed.
            same_device = {each: value for each, value in self._moved.items() if each[0] == device}
            self._moved = {**same_device, key: made}
        return made

    @abstractmethod
    def _decompose(self, name: str, curvature: Curvature) -> WeightGaussian: ...
