"""Training by the evidence: the prior of each layer is chosen while the network is trained.

The scheme is that of Immer et al. (2021), Scalable Marginal Likelihood Estimation for Model Selection in Deep
Learning. `Ascent` is what happens beside the training, for any loop: the gradient of the penalty before each
step of the optimiser, and the steps in the prior precisions after some epochs.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from bitbayes.errors import (
    ArgumentError,
    DataError,
    ModelError,
    NormalisationWarning,
    level_of_the_caller,
    naming,
)
from bitbayes.laplace import Laplace
from bitbayes.likelihoods import LIKELIHOODS
from bitbayes.model import (
    DeferredChecks,
    Loader,
    as_logits,
    call,
    check_loader,
    find_layers,
    labelled_batches,
    selected,
)
from bitbayes.options import LaplaceOptions
from bitbayes.posteriors import WeightPosterior
from bitbayes.posteriors.base import Noise
from bitbayes.precision import prediction_dtype
from bitbayes.prior import LARGEST_VARIANCE, SMALLEST_VARIANCE, Prior, positive
from bitbayes.processes import current_processes
from bitbayes.progress import Progress
from bitbayes.structures import WHOLE_NETWORK

# Layers after which the size of the weights before them means nothing. A layer norm inside a residual block
# leaves some meaning to it.
NORMALISATIONS = (_NormBase, nn.GroupNorm)
SHOWN_NAMES = 3

PriorVariance = float | dict[str, float]


@dataclass(frozen=True)
class EvidenceTraining:
    """What `train_by_evidence` has found.

    Args:
        laplace: fitted over all layers, on the weights with the largest evidence, with their prior variances.
            The model has these weights.
        epoch: at whose end it had them, counted from 1.
        evidences: the log marginal likelihood, by the epoch at whose end it was computed.
        prior_variances: what was chosen then, by the same epochs.
        losses: the mean loss of each epoch, with the penalty.
    """

    laplace: Laplace
    epoch: int
    evidences: dict[int, float]
    prior_variances: dict[int, PriorVariance]
    losses: tuple[float, ...]

    @property
    def prior_variance(self) -> PriorVariance:
        """The prior variance of each layer, or of all weights, at the largest evidence."""
        return self.prior_variances[self.epoch]

    @property
    def evidence(self) -> float:
        """The largest log marginal likelihood."""
        return self.evidences[self.epoch]


def train_by_evidence(
    model: nn.Module,
    train_loader: Loader,
    optimizer: Optimizer,
    *,
    epochs: int,
    scheduler: LRScheduler | ReduceLROnPlateau | None = None,
    burn_in: int = 10,
    every: int = 5,
    steps: int = 20,
    learning_rate: float = 0.1,
    each_layer: bool = True,
    weighted: bool = False,
    progress: bool | None = None,
    **options: Unpack[LaplaceOptions],
) -> EvidenceTraining:
    """Train a model, and choose the prior of each layer meanwhile, without validation data.

    The loss is that of maximum a posteriori, −1/N·[Σₙ log p(yₙ | f(xₙ)) − ½ Σₗ τₗ‖θₗ‖²], τₗ the prior
    precision of layer l. At the end of some epochs a `Laplace` over all layers is fitted, and its evidence
    log p(D | θ) + ½ Σₗ [Pₗ log τₗ − τₗ‖θₗ‖² − log det(Hₗ + τₗI)] is ascended by a few steps of Adam in the
    logarithms of the τₗ. The next epochs have the penalty with these. In regression the noise variance is
    that of the largest evidence, unless it was given; penalty and loss are in units of it.

    The model is trained in place. At the end it has the weights with the largest evidence, and its modules
    are in the modes (train or eval) that they had before. Parameters that do not require a gradient stay as
    they are, and have no prior. If an error is raised, model, optimizer and scheduler are as before the call.

    >>> import bitbayes as bb
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.randn(40, 3), torch.arange(40) % 2
    >>> model = bb.toys.MLP((3, 8, 2))
    >>> adam = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> found = bb.train_by_evidence(model, [(x, y)], adam, epochs=20)
    >>> [*found.evidences], sorted(found.prior_variance)
    ([10, 15, 20], ['0', '2'])
    >>> found.laplace.predict_proba(x).shape
    torch.Size([40, 2])

    Args:
        model: the network. It may be inside `DistributedDataParallel` or `torch.compile`.
        train_loader: the training data, as for `Laplace.fit`. It is iterated over in each epoch, and once
            more for each evidence and before the training.
        optimizer: of all parameters that require a gradient, without weight decay.
        epochs: how often the training data are passed over.
        scheduler: of the optimizer's learning rate. Its `step` is called after each epoch.
        burn_in: the first epoch at whose end the evidence is computed; 0 is the same as `every`.
        every: the number of epochs from one evidence to the next. It is always computed after the last.
        steps: the number of Adam's steps for each evidence.
        learning_rate: of these steps, in the logarithms of the prior precisions.
        each_layer: whether each layer has its own prior variance. False is one for all; it is always one with
            `structure="full"`.
        weighted: whether the batches have weights of their points, as for `Laplace.fit`. In the loss, the
            evidence and N a point counts w times.
        progress: as for `Laplace.fit`.
        options: of the `Laplace`, such as `structure`, `curvature`, or `prior_variance`, at which the
            training begins.

    Warns (`NormalisationWarning`) if the model has batch, instance or group norms.
    """
    epochs = _whole("epochs", epochs, 1)
    schedule = Schedule(burn_in, every, steps, learning_rate, each_layer)
    if schedule.burn_in > epochs:
        raise ArgumentError(
            f"burn_in={burn_in!r}, epochs={epochs!r}: the prior would never be chosen; give a smaller burn_in"
        )
    ascent = Ascent(model, schedule, options, weighted=weighted)
    ascent.check_optimizers([optimizer])
    if iter(check_loader(train_loader)) is train_loader:
        raise DataError(
            f"the loader, a {type(train_loader).__name__}, can be iterated over only once: each epoch needs "
            "it again. Give a DataLoader, or a list of batches"
        )
    bayes = ascent.laplace
    network = selected(model, bayes.output, bayes.adapt)
    ascent.begin(train_loader)
    losses: list[float] = []
    shown = current_processes().shown(progress)
    with (
        _unchanged_by_errors(bayes.model, optimizer, scheduler),
        _same_modes(model),
        Progress("training", epochs, shown) as bar,
    ):
        for epoch in range(1, epochs + 1):
            model.train()
            _tell_epoch(train_loader, epoch - 1)
            losses.append(_train_epoch(ascent, network, train_loader, optimizer, epoch))
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(losses[-1])
            elif scheduler is not None:
                scheduler.step()
            if schedule.is_due(epoch) or epoch == epochs:
                ascent.measure(train_loader, epoch)
            bar.advance()
        return ascent.finish(losses)


@dataclass(frozen=True)
class Schedule:
    """When the evidence is computed, and how it is ascended; see `train_by_evidence`."""

    burn_in: int
    every: int
    steps: int
    learning_rate: float
    each_layer: bool

    def __post_init__(self) -> None:
        _whole("burn_in", self.burn_in, 0)
        _whole("every", self.every, 1)
        _whole("steps", self.steps, 1)
        positive(self.learning_rate, "learning_rate")

    def is_due(self, epoch: int) -> bool:
        """Whether the evidence is computed at the end of this epoch, counted from 1.

        >>> [epoch for epoch in range(1, 30) if Schedule(10, 5, 20, 0.1, True).is_due(epoch)]
        [10, 15, 20, 25]
        """
        return epoch >= max(self.burn_in, 1) and (epoch - self.burn_in) % self.every == 0


class Hyperparameters:
    """The logarithms of the prior precisions, in which the evidence is ascended by Adam.

    In regression the noise variance of the largest evidence is known in closed form for each of them. The
    loss is in units of it, and so is the penalty: the training does not depend on it.

    Args:
        groups: the parameters with a common prior, by the name of their layer.
        initial: the prior variance at the start.
        schedule: the steps and their size.
        noise: the noise variance, if it was given.
    """

    def __init__(
        self,
        groups: dict[str, list[nn.Parameter]],
        initial: PriorVariance,
        schedule: Schedule,
        noise: Noise = None,
    ) -> None:
        self.groups, self.steps, self.given_noise = groups, schedule.steps, noise
        by_name = initial if isinstance(initial, dict) else dict.fromkeys(groups, initial)
        with torch.inference_mode(False):
            self.log_precisions = {
                name: torch.tensor(-math.log(by_name[name]), dtype=torch.float64, requires_grad=True)
                for name in groups
            }
        # Its averages stay from one evidence to the next, as the precisions do.
        self.adam = torch.optim.Adam([*self.log_precisions.values()], lr=schedule.learning_rate)
        self.precisions = self._read()

    @property
    def prior_variance(self) -> PriorVariance:
        """One variance for each layer, or one for all."""
        variances = {name: 1 / tau for name, tau in self.precisions.items()}
        return variances.get(WHOLE_NETWORK, variances)

    def ascend(self, posterior: WeightPosterior) -> float:
        """Take the steps, and return the evidence at their end."""
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(self.steps):
                self.adam.zero_grad()
                evidence = posterior.log_evidence(self._prior(), self.noise(posterior))
                (-evidence).backward()  # type: ignore[no-untyped-call]
                self.adam.step()
                with torch.no_grad():
                    for each in self.log_precisions.values():
                        each.clamp_(-math.log(LARGEST_VARIANCE), -math.log(SMALLEST_VARIANCE))
        self.precisions = self._read()
        return float(posterior.log_evidence(Prior(self.prior_variance), self.noise(posterior)))

    def noise(self, posterior: WeightPosterior) -> Noise:
        """The noise variance with the largest evidence at these precisions, or the one that was given."""
        if not posterior.likelihood.has_noise or self.given_noise is not None:
            return self.given_noise
        variances = {name: 1 / tau for name, tau in self._read().items()}
        return posterior.best_noise(Prior(variances.get(WHOLE_NETWORK, variances)))

    @torch.no_grad()
    def add_penalty_gradient(self, count: float, among: set[int] | None = None) -> Tensor:
        """Add the gradient τθ/N of the penalty to that of the loss, and return ½ Σ τ‖θ‖²/N.

        Args:
            count: N, the number of points, or the sum of their weights.
            among: the ids of the parameters to be looked at; None is all.
        """
        total = torch.zeros(())
        for name, parameters in self.groups.items():
            weight = self.precisions[name] / count
            for each in parameters:
                if among is not None and id(each) not in among:
                    continue
                if each.grad is None:  # the loss does not depend on it, and the penalty does
                    each.grad = torch.zeros_like(each)
                each.grad.add_(each, alpha=weight)
                squares = each.square().sum(dtype=prediction_dtype(each.dtype))
                total = total.to(squares) + weight / 2 * squares
        return total

    def _prior(self) -> Prior:
        variances = {name: (-each).exp() for name, each in self.log_precisions.items()}
        return Prior(variances.get(WHOLE_NETWORK, variances))

    def _read(self) -> dict[str, float]:
        return {name: math.exp(each.item()) for name, each in self.log_precisions.items()}


class Ascent:
    """What happens beside the training of a model: the penalty, the evidence, and the best weights.

    Args:
        model: that is trained.
        schedule: when the evidence is computed, and how it is ascended.
        options: of the `Laplace`.
        weighted: whether the loaders yield weights of their points.
    """

    def __init__(
        self, model: nn.Module, schedule: Schedule, options: LaplaceOptions, *, weighted: bool = False
    ) -> None:
        if options.get("layers", "all") != "all":
            raise ArgumentError(
                f"layers={options['layers']!r}: all weights that are trained have a prior here; leave it "
                "out, and freeze (requires_grad_(False)) what is certain"
            )
        if options.get("subnetwork") is not None:
            raise ArgumentError(
                f"subnetwork={options['subnetwork']!r}: all weights that are trained have a prior here; fit "
                "a Laplace with it afterwards"
            )
        likelihood = LIKELIHOODS.get(options.get("likelihood", ""))
        if likelihood is not None and not likelihood.over_all_layers:
            raise ArgumentError(
                f"likelihood={likelihood.name!r} is for the last layer alone, and here all weights have a "
                "prior: train the network in another way, and fit a Laplace to it afterwards"
            )
        every: LaplaceOptions = {**options, "layers": "all"}
        self.laplace = Laplace(model, **every)
        own = self.laplace.model
        self.named = {
            layer.name: {name: own.get_parameter(name) for name in layer.names} for layer in find_layers(own)
        }
        groups = {name: [*parameters.values()] for name, parameters in self.named.items()}
        initial = self.laplace.prior_variance
        if self.laplace.structure == "full" or not schedule.each_layer:
            if isinstance(initial, dict):
                raise ArgumentError(
                    f"prior_variance={initial!r}: with each_layer=False there is one for all; give one number"
                )
            groups = {WHOLE_NETWORK: [each for parameters in groups.values() for each in parameters]}
        noise = self.laplace.settings.noise_variance
        self.hyperparameters = Hyperparameters(groups, initial, schedule, noise)
        self.weighted = weighted
        self.count, self.mean_weight = 0.0, 1.0
        self.evidences: dict[int, float] = {}
        self.prior_variances: dict[int, PriorVariance] = {}
        self.best: tuple[int, Laplace, list[Tensor]] | None = None

    def check_optimizers(self, optimizers: Iterable[object]) -> None:
        """Raise unless these train all parameters with a prior, without weight decay of their own."""
        trained: set[int] = set()
        for optimizer in optimizers:
            groups = getattr(optimizer, "param_groups", None)  # Lightning's are no `Optimizer`
            if groups is None:
                raise ArgumentError(
                    f"optimizer is a {type(optimizer).__name__}: expected a torch.optim.Optimizer of the "
                    "model's parameters"
                )
            for number, group in enumerate(groups):
                if decay := group.get("weight_decay", 0):
                    raise ArgumentError(
                        f"the optimizer has weight_decay={decay!r} in parameter group {number}: the prior "
                        "takes its place, so give weight_decay=0 (the default of AdamW is not 0). With "
                        "prior_variance=1/(N·weight_decay) training begins with the same penalty"
                    )
                trained.update(map(id, group["params"]))
        names = [name for own in self.named.values() for name, each in own.items() if id(each) not in trained]
        if names:
            more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
            shown = ", ".join(map(repr, names[:SHOWN_NAMES]))
            raise ArgumentError(
                f"the optimizer does not train {shown}{more}: give it all parameters that require a "
                "gradient, or freeze these (requires_grad_(False))"
            )

    def begin(self, loader: Iterable[Any]) -> None:
        """Check model and data by a first fit, which also counts the points."""
        bayes = copy.copy(self.laplace).fit(loader, weighted=self.weighted, progress=False)
        fitted = bayes.posterior.fitted
        self.count, self.mean_weight = fitted.total_weight, fitted.total_weight / fitted.count
        self.likelihood, self.outputs = fitted.likelihood, fitted.weights.outputs
        modules = self.laplace.model.named_modules()
        norms = [name for name, module in modules if isinstance(module, NORMALISATIONS)]
        if norms:
            warnings.warn(
                f"the model normalises (at {', '.join(map(repr, norms[:SHOWN_NAMES]))}): the size of the "
                "weights before that means nothing, so neither do their prior and the evidence. Train a "
                "model without, or compare its predictions on other data",
                NormalisationWarning,
                stacklevel=level_of_the_caller(),
            )

    def add_penalty_gradient(self, among: set[int] | None = None) -> Tensor:
        """Add the gradient of the penalty to the parameters', and return the penalty; see there."""
        return self.hyperparameters.add_penalty_gradient(self.count, among)

    def measure(self, loader: Iterable[Any], epoch: int) -> None:
        """Fit, take the steps in the prior, and remember the weights if their evidence is the largest."""
        bayes = copy.copy(self.laplace)
        with naming(f"after epoch {epoch}"):
            bayes.fit(loader, weighted=self.weighted, progress=False)
            bayes.prior_variance = self.hyperparameters.prior_variance
            if not math.isfinite(before := float(bayes.log_evidence())):
                raise ModelError(f"the evidence is {before}: {self._advice()}")
            evidence = self.hyperparameters.ascend(bayes.posterior)
        bayes.prior_variance = self.hyperparameters.prior_variance
        if (noise := self.hyperparameters.noise(bayes.posterior)) is not None:
            bayes.noise_variance = noise
        self.evidences[epoch], self.prior_variances[epoch] = evidence, self.hyperparameters.prior_variance
        if self.best is None or evidence > self.evidences[self.best[0]]:
            self.best = epoch, bayes, [each.detach().clone() for each in _tensors(bayes.model)]

    def finish(self, losses: Iterable[float]) -> EvidenceTraining:
        """Give the model the weights with the largest evidence."""
        assert self.best is not None
        epoch, bayes, weights = self.best
        _write(bayes.model, weights)
        return EvidenceTraining(bayes, epoch, self.evidences, self.prior_variances, tuple(losses))

    def check_loss(self, loss: float, epoch: int) -> None:
        """Raise if the loss of an epoch is not finite."""
        if not math.isfinite(loss):
            raise ModelError(f"the loss of epoch {epoch} is {loss}: {self._advice()}")

    def _advice(self) -> str:
        precisions = self.hyperparameters.precisions
        name = max(precisions, key=lambda each: precisions[each])
        return (
            "the training has diverged. Give the optimizer a smaller learning rate (the largest prior "
            f"precision over N is {precisions[name] / max(self.count, 1):.3g}, at {name!r})"
        )


def _train_epoch(
    ascent: Ascent, network: nn.Module, loader: Iterable[Any], optimizer: Optimizer, epoch: int
) -> float:
    """Pass over the data once, and return the mean loss with the penalty."""
    likelihood, total, count = ascent.likelihood, torch.zeros(()), 0
    with DeferredChecks() as checks:
        for batch in labelled_batches(loader, ascent.laplace.model, weighted=ascent.weighted):
            assert batch.labels is not None
            shape = len(batch), ascent.outputs
            labels = likelihood.check_labels(batch.labels, shape, batch.name, checks)

            def closure(batch: Any = batch, labels: Tensor = labels) -> Tensor:
                optimizer.zero_grad()
                logits = as_logits(call(network, batch.inputs), len(batch))
                logits = logits.to(prediction_dtype(logits.dtype))
                losses = likelihood.losses(logits, labels)
                if batch.weights is not None:  # on average over the batches Σ wℓ/Σ w
                    losses = losses * (batch.weights / ascent.mean_weight).to(losses)
                loss = losses.mean()
                loss.backward()  # type: ignore[no-untyped-call]
                return loss.detach() + ascent.add_penalty_gradient().to(loss)

            with torch.inference_mode(False), torch.enable_grad():
                # Not a float, for which the device would have to be waited for.
                loss = torch.as_tensor(optimizer.step(closure))  # type: ignore[arg-type]
            total, count = total.to(loss) + loss * len(batch), count + len(batch)
            checks.end_batch()
    mean = float(total) / count
    ascent.check_loss(mean, epoch)
    return mean


def _whole(name: str, value: object, least: int) -> int:
    """Return a whole number; raise if it is none, or less than `least`."""
    if type(value) is not int or value < least:
        raise ArgumentError(f"{name}={value!r}: expected a whole number, at least {least}")
    return value


def _tell_epoch(loader: Iterable[Any], epoch: int) -> None:
    """Tell a `DistributedSampler` the epoch, as it wants to be told before each."""
    tell = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if callable(tell):
        tell(epoch)


@contextmanager
def _same_modes(model: nn.Module) -> Iterator[None]:
    """Give all modules the mode again, train or eval, that they have now."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _unchanged_by_errors(model: nn.Module, *others: Any) -> Iterator[None]:
    """Give the model's tensors, and the others' states, their present values again if an error is raised."""
    weights = [each.detach().clone() for each in _tensors(model)]
    states = [None if each is None else copy.deepcopy(each.state_dict()) for each in others]
    try:
        yield
    except Exception:
        _write(model, weights)
        for each, state in zip(others, states, strict=True):
            if state is not None:
                each.load_state_dict(state)
        raise


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


@torch.no_grad()
def _write(model: nn.Module, values: list[Tensor]) -> None:
    for own, value in zip(_tensors(model), values, strict=True):
        own.copy_(value)
