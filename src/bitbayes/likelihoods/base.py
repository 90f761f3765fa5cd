"""What a likelihood is: everything between the model's outputs and the numbers that a person reads.

Λ, the curvature of the loss at the outputs, goes into the posterior. What comes out of the posterior is a
Gaussian over the outputs, and from there on everything is the likelihood's: predictions, scores, what tuning
measures, and the values far from the data.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from bitbayes.closed_forms import KAPPA
from bitbayes.errors import ArgumentError, DataError, one_of
from bitbayes.logits import NO_CROSS_COVARIANCE, LogitGaussian
from bitbayes.model import IGNORED, DeferredChecks
from bitbayes.precision import without_autocast
from bitbayes.settings import Settings
from bitbayes.uncertainty import Uncertainty, uncertainty_of_draws

ClosedForm = Callable[[LogitGaussian], Tensor]
AUTO, SAMPLED_LOGITS = "auto", "mc"
# How many draws of logits are taken by default.
SAMPLES = 100

# The label that files of masks use for pixels to ignore, and what to write for it here.
MASKED = 255
IGNORE_MASKED = (
    f"If {MASKED} marks pixels to ignore, give labels = torch.where(labels == {MASKED}, {IGNORED}, "
    "labels.long())"
)


class Likelihood(ABC):
    """The likelihood p(y | f) of labels given a model's outputs f (n, k).

    A subclass is one small file with the functions below in the same order. A function that raises here by
    default may be left out.

    name: as in `Laplace(likelihood=…)` and in files.
    closed_forms: functions from a Gaussian over the outputs to drop-in logits, by name.
    need_cross_covariance: the predictives that use covariances between outputs.
    with_bounds: the closed forms that have bounds and certificates (`rays`).
    kappa: κ of the ratios z = m/√(1 + κv) that these depend on.
    has_drop_in: whether `bayes(x)`, in the shape of the model's outputs, can stand for the prediction.
    has_temperature: whether dividing the mean outputs by a temperature keeps their meaning.
    logits_in_a_margin: how many outputs a margin (see `margins`) is the difference of: 1 or 2.
    labels_are_classes: whether a label (`valid_labels`) is the number of one class, from 0 on.
    one_label: whether a point has one label, (n,); otherwise it has some, (n, m); see `targets`.
    classifies: whether predictions are probabilities of classes; otherwise they are values (`predict`).
    has_positions: whether the model's output may have positions.
    over_all_layers: whether the Gaussian may be over all layers, and not over the last alone.
    of_pairs: whether a point is a pair of inputs, and its one logit the difference of their outputs.
    has_softmax: whether Λ = diag(p) − ppᵀ, of which the structure "lowrank" keeps a sketch.
    has_noise: whether labels have a noise variance, which is one of the settings. The posterior is then in
        units of it: a covariance is multiplied by σ², and the prior variance of a weight is σ₀²σ².
    """

    name: ClassVar[str]
    closed_forms: ClassVar[dict[str, ClosedForm]]
    need_cross_covariance: ClassVar[tuple[str, ...]] = ()
    with_bounds: ClassVar[tuple[str, ...]] = ()
    kappa: ClassVar[float] = KAPPA
    has_drop_in: ClassVar[bool] = True
    has_temperature: ClassVar[bool] = True
    logits_in_a_margin: ClassVar[int] = 1
    labels_are_classes: ClassVar[bool] = False
    one_label: ClassVar[bool] = True
    classifies: ClassVar[bool] = True
    has_positions: ClassVar[bool] = True
    over_all_layers: ClassVar[bool] = True
    has_softmax: ClassVar[bool] = False
    has_noise: ClassVar[bool] = False
    of_pairs: ClassVar[bool] = False

    # What to say about a model with another number of outputs.
    wanted_outputs: ClassVar[str] = ""

    @abstractmethod
    def takes(self, outputs: int) -> bool:
        """Whether it fits a model with this many outputs."""

    def classes(self, outputs: int) -> int:
        """The number of classes that have a probability."""
        return outputs

    def targets(self, outputs: int) -> int:
        """How many labels a point has, unless it has one alone (`one_label`)."""
        return outputs

    # ---- labels and loss

    def check_labels(
        self, labels: Tensor, shape: tuple[int, int], where: str, checks: DeferredChecks
    ) -> Tensor:
        """Return the labels in the form that the other functions take; raise if they are not valid.

        They are (n,), or (n, m) if there are several for each point.

        Args:
            labels: as the loader gives them.
            shape: (n, k), that of the outputs.
            where: the name of the batch, for messages.
            checks: for the values, which are checked later.
        """
        n, k = shape
        m = 1 if self.one_label else self.targets(k)
        wanted = (n,) if self.one_label else (n, m)
        meaning = "input" if m == 1 else "output of each input"
        one = m == 1
        if labels.shape not in (((n,), (n, 1)) if one else (wanted,)):
            raise DataError(
                f"{where}: the labels have shape {tuple(labels.shape)}; expected {wanted}, one for each "
                f"{meaning}{self._advice(labels, k)}"
            )
        labels = labels.reshape(wanted)
        checked, ok, expected = self.valid_labels(labels, k)

        def refuse() -> None:
            given = f"of type {labels.dtype}"
            if ok is not False:  # the values are wrong, not the type
                values = torch.unique(labels)
                values = torch.cat([values[~values.isfinite()], values[values.isfinite()]]).tolist()
                given = f"{values[:5]}{' and more' if len(values) > 5 else ''}"
            ignore = f". {IGNORE_MASKED}" if bool((labels == MASKED).any()) else ""
            raise DataError(f"{where}: the labels are {given}; {expected}{ignore}{self._advice(labels, k)}")

        checks.add(ok, refuse)
        return checked

    def _advice(self, labels: Tensor, k: int) -> str:
        """Which other likelihood such labels may be for, as a sentence; "" if none is likely."""
        if not self.one_label:
            return ""
        zero_or_one = bool(((labels == 0) | (labels == 1)).all())
        if zero_or_one and k > 1 and labels.dim() == 2 and labels.shape[1] == k:
            return (
                ". If each input may have several labels, use Laplace(model, likelihood='multilabel'); if "
                "they are one-hot, give labels.argmax(1)"
            )
        real = labels.is_floating_point() and not zero_or_one and bool(labels.isfinite().all())
        return ". For regression, use Laplace(model, likelihood='gaussian')" if real else ""

    @abstractmethod
    def valid_labels(self, labels: Tensor, k: int) -> tuple[Tensor, Tensor | bool, str]:
        """The labels (n,) for the other functions, whether they are valid, and what is expected, in words.

        Whether they are valid is False for a wrong type, and a tensor () if it depends on the values. The
        returned labels must be safe to use even if they are not valid.
        """

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """−log p(yₙ | fₙ), (n,)."""

    def squared_errors(self, outputs: Tensor, labels: Tensor) -> Tensor | None:
        """(yₙ − fₙ)² for each output, (n, k), if the likelihood has a noise variance."""
        return None

    # ---- the curvature Λₙ of the loss at the outputs, which does not depend on the label

    @abstractmethod
    def differences(self, k: int, device: torch.device | None = None) -> Tensor:
        """Orthonormal directions (k, c) of the outputs outside of which Λ is zero, in float64."""

    @abstractmethod
    def curvature(self, outputs: Tensor) -> Tensor:
        """Λₙ along `differences`, (n, c, c)."""

    def total_curvature(self, outputs: Tensor, weights: Tensor | None = None) -> Tensor:
        """Σₙ wₙΛₙ along `differences`, (c, c), of outputs in float64; all weights are 1 if there are none."""
        each = self.curvature(outputs)
        return each.sum(0) if weights is None else torch.einsum("n,nab->ab", weights, each)

    @abstractmethod
    def diagonal(self, outputs: Tensor) -> Tensor:
        """The diagonal of each Λₙ in the outputs, (n, k)."""

    @abstractmethod
    def root(self, outputs: Tensor) -> Tensor:
        """V with V Vᵀ = Λₙ, (n, k, c)."""

    @abstractmethod
    def draw(self, outputs: Tensor, generator: torch.Generator | None) -> Tensor:
        """The gradient v (n, k) of log p(y | f) for a drawn label y: v vᵀ is Λₙ on average."""

    # ---- predictions

    @abstractmethod
    def default_predictive(self, outputs: int, has_cross_covariance: bool) -> str:
        """The name that "auto" stands for."""

    def predictive_name(self, name: str, outputs: int, *, has_cross_covariance: bool = True) -> str:
        """The predictive of that name for this many outputs; raises if there is none.

        Args:
            name: "auto", a closed form, or "mc".
            outputs: k.
            has_cross_covariance: whether the posterior has covariances between outputs.
        """
        if name == AUTO:
            return self.default_predictive(outputs, has_cross_covariance)
        one_of("method", name, (AUTO, *closed_form_names(), SAMPLED_LOGITS))
        if not has_cross_covariance and name in self.need_cross_covariance:
            raise ArgumentError(f"method={name!r}: {NO_CROSS_COVARIANCE}")
        fitting = (*self.closed_forms, SAMPLED_LOGITS)
        if name not in fitting:
            choices = ", ".join(repr(each) for each in fitting)
            raise ArgumentError(f"method={name!r} does not fit {outputs} logit(s): choose one of {choices}")
        return name

    def predict(self, gaussian: LogitGaussian, name: str) -> Tensor:
        """Drop-in logits (n, k) by the closed form of that name, all finite."""
        with without_autocast(gaussian.scale.device):
            logits = self.closed_forms[name](gaussian)
            # Half the largest number, so that the difference of two of them is finite too.
            largest = torch.finfo(logits.dtype).max / 2
            return logits.clamp(-largest, largest)

    def log_probabilities(self, drop_in: Tensor) -> Tensor:
        """log p of all classes, (n, classes), from drop-in logits (n, k)."""
        self.require_classes()
        raise NotImplementedError

    def log_decisions(self, drop_in: Tensor) -> Tensor:
        """log p of all choices of each decision, (n, decisions, choices): here one, among all classes."""
        return self.log_probabilities(drop_in)[:, None]

    def probabilities(self, outputs: Tensor) -> Tensor:
        """The probabilities (…, classes) of outputs (…, k) of the model itself."""
        self.require_classes()
        raise NotImplementedError

    def drop_in(self, probabilities: Tensor) -> Tensor:
        """Drop-in logits (n, k), all finite, that predict these probabilities (n, classes)."""
        self.require_classes()
        raise NotImplementedError

    def values(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor, Tensor]:
        """Means, variances of the function, and noise in units of the noise variance: (n, m) each."""
        raise ArgumentError(
            f"likelihood={self.name!r} predicts classes, and no values: use `predict_proba`; `predict` and "
            "`interval` are for regression (likelihood='gaussian')"
        )

    def confidence(self, probabilities: Tensor) -> Tensor:
        """The probability that the prediction is right, (n,), from probabilities (n, classes)."""
        return probabilities.amax(1)

    def require_classes(self) -> None:
        """Raise if predictions are no probabilities of classes."""
        if not self.classifies:
            raise ArgumentError(
                f"likelihood={self.name!r} predicts values, which have no probabilities of classes: use "
                "`predict` or `interval`"
            )

    def require_class_bias(self) -> None:
        """Raise if no bias can be added to the logits."""
        if not self.classifies or self.of_pairs:
            raise ArgumentError(
                f"likelihood={self.name!r} has no classes that could each get a bias: leave class_bias out"
            )

    def check_settings(self, settings: Settings, outputs: int | None, *, over_all_layers: bool) -> None:
        """Raise on settings that this likelihood does not have.

        Args:
            settings: what is to be set.
            outputs: the number of the model's outputs, or None before `fit`.
            over_all_layers: whether all layers share the weights' Gaussian.
        """
        if settings.temperature != 1 and not self.has_temperature:
            raise ArgumentError(f"likelihood={self.name!r} has no temperature: leave it at 1")
        bias, noise = settings.class_bias, settings.noise_variance
        if bias is not None:
            self.require_class_bias()
            if outputs is not None and len(bias) != outputs:
                raise ArgumentError(f"class_bias={bias!r}: expected one for each of {outputs} logit(s)")
        if noise is not None and not self.has_noise:
            raise ArgumentError(
                f"noise_variance={noise!r}: likelihood={self.name!r} has none; for regression give "
                "likelihood='gaussian'"
            )
        if isinstance(noise, tuple) and over_all_layers:
            raise ArgumentError(
                f"noise_variance={noise!r}: over all layers, the outputs share their weights, and so one "
                "noise variance: give one number"
            )
        if isinstance(noise, tuple) and outputs is not None and len(noise) != self.targets(outputs):
            raise ArgumentError(
                f"noise_variance={noise!r}: expected one number, or one for each of {self.targets(outputs)} "
                "target(s)"
            )

    def require_rays(self) -> None:
        """Raise if there are no limits, bounds and certificates along rays of inputs."""
        self.require_classes()
        if self.of_pairs:
            raise ArgumentError(
                f"likelihood={self.name!r}: limits, bounds and certificates are about one input that moves "
                "along a ray, and a preference is between two"
            )

    def prediction_losses(self, drop_in: Tensor, labels: Tensor) -> Tensor:
        """−log p of the labels, (n,), from drop-in logits."""
        return self.losses(drop_in, labels)

    def remove_shift(self, outputs: Tensor) -> Tensor:
        """Outputs (…, k) with the same prediction, shifted so that scaling them does not overflow."""
        return outputs

    def drawn_probabilities(
        self,
        gaussian: LogitGaussian,
        samples: int,
        generator: torch.Generator | None,
        *,
        shared: bool = False,
    ) -> Tensor:
        """Probabilities (samples, n, classes) of outputs drawn from the Gaussian; see `scaled_draws`."""
        with without_autocast(gaussian.scale.device):
            draws = self.remove_shift(gaussian.scaled_draws(samples, generator, shared=shared))
            return self.probabilities(draws * gaussian.scale[:, None])

    def predict_by_draws(
        self, gaussian: LogitGaussian, samples: int, generator: torch.Generator | None
    ) -> Tensor:
        """Drop-in logits (n, k) of the average over draws of the outputs."""
        return self.drop_in(self.drawn_probabilities(gaussian, samples, generator).mean(0))

    # ---- scores

    @abstractmethod
    def score(self, gaussian: LogitGaussian) -> Tensor:
        """A number for each point, (n,), that is larger for points that are more like the data."""

    def uncertainty(self, probabilities: Tensor) -> Uncertainty:
        """The parts of the uncertainty, from draws of the probabilities (s, n, classes)."""
        return uncertainty_of_draws(probabilities)

    # ---- what tuning measures

    def margins(self, mean: Tensor) -> Tensor:
        """How far the mean outputs (n, k) are from another decision, (n,)."""
        self.require_classes()
        raise NotImplementedError

    def scaled_margin_variance(self, gaussian: LogitGaussian) -> Tensor:
        """The variance of a typical margin, (n,), in units of scale²."""
        self.require_classes()
        raise NotImplementedError

    # ---- far from the data

    def far_confidence(self, outputs: int) -> float:
        """The confidence of a decision where the variance of every output has outgrown all means."""
        raise ArgumentError(f"likelihood={self.name!r} has no limit with the residual: use residual=False")

    def far_labels(self, mean: Tensor) -> Tensor:
        """The most probable classes (n,) as the variance of every output grows, from means (n, k).

        With several decisions for each point, they are (n, decisions).
        """
        raise ArgumentError(f"likelihood={self.name!r} has no limit with the residual: use residual=False")

    def centre(self, values: Tensor) -> Tensor:
        """Values (n, k, …) of the outputs, as values of the combinations of outputs that "probit" uses."""
        raise ArgumentError(f"likelihood={self.name!r} has no bounds")

    def scaled_centred(self, gaussian: LogitGaussian) -> tuple[Tensor, Tensor]:
        """Means and variances (n, k) of these combinations, in units of scale and scale²."""
        raise ArgumentError(f"likelihood={self.name!r} has no bounds")

    def largest_probability(self, low: Tensor, high: Tensor) -> Tensor:
        """The largest probability (n,) of any class, if each z of "probit" is in [low, high], (n, k).

        With several decisions it is that of any of them. In regression it is the largest |z|.
        """
        raise ArgumentError(f"likelihood={self.name!r} has no bounds")


# All likelihoods by name; `likelihoods/__init__.py` fills it.
LIKELIHOODS: dict[str, Likelihood] = {}


def likelihood_for(outputs: int, name: str = AUTO) -> Likelihood:
    """The likelihood of that name for a network with this many outputs.

    >>> likelihood_for(1).name, likelihood_for(10).name
    ('bernoulli', 'categorical')
    """
    if name == AUTO:
        return LIKELIHOODS["bernoulli" if outputs == 1 else "categorical"]
    likelihood = LIKELIHOODS[one_of("likelihood", name, (AUTO, *LIKELIHOODS))]
    if not likelihood.takes(outputs):
        todo = "leave it out, and their number decides"
        if likelihood.of_pairs or not likelihood.classifies:
            todo = likelihood.wanted_outputs
        raise ArgumentError(f"likelihood={name!r} does not fit a model with {outputs} output(s): {todo}")
    return likelihood


def closed_form_names() -> tuple[str, ...]:
    """The names of the closed forms of all likelihoods."""
    return tuple(dict.fromkeys(name for each in LIKELIHOODS.values() for name in each.closed_forms))
