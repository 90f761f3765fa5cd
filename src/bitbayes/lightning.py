"""Lightning callbacks: one makes the trained network a bit Bayesian, one chooses its prior meanwhile."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from bitbayes.callbacks import fit_and_tune
from bitbayes.errors import ArgumentError, DataError, MissingPackageError
from bitbayes.evidence import Ascent, EvidenceTraining, Schedule
from bitbayes.laplace import Laplace
from bitbayes.model import Loader, check_loader, without_labels
from bitbayes.model.loaders.batches import WEIGHT
from bitbayes.options import LaplaceOptions

if TYPE_CHECKING:
    Callback = object
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            Callback = object

__all__ = ["EvidenceCallback", "LaplaceCallback"]

NO_LIGHTNING = "this callback is Lightning's: install lightning, or pytorch-lightning"


class LaplaceCallback(Callback):
    """Fit a `Laplace` on the training data when `Trainer.fit` ends, and tune it on the validation data.

    The loaders are the trainer's own. Their batches are pairs (x, y), or mappings with a key "labels". Inputs
    are converted to the trainer's precision, as they are for training. If the training loader augments its
    data randomly, the fit sees augmented data; give a loader without augmentation if you have one.

    If several processes train together, they also fit and tune together: each reads the share of the data
    that its trainer's loader gives it, and all end with the same `bayes`. A loader that you give must have
    the process's own share (a `DistributedSampler`).

    Args:
        network: the name of the attribute of the LightningModule that is the network, such as "model"; by
            default the LightningModule itself, whose `forward` then returns logits.
        train_loader: used instead of the trainer's.
        val_loader: used instead of the trainer's. If there is none, nothing is tuned.
        weighted: whether both yield weights of their points, as for `Laplace.fit`.
        options: of the `Laplace`, such as `layers="all"`.

    Attributes:
        bayes: the fitted `Laplace`, or None before training has ended.
    """

    def __init__(
        self,
        *,
        network: str | None = None,
        train_loader: Loader | None = None,
        val_loader: Loader | None = None,
        weighted: bool = False,
        **options: Unpack[LaplaceOptions],
    ) -> None:
        if Callback is object:
            raise MissingPackageError(NO_LIGHTNING)
        self.network, self.options, self.weighted = network, options, weighted
        self.train_loader, self.val_loader = train_loader, val_loader
        self.bayes: Laplace | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raise, before training starts, if there is no such network or the options are wrong."""
        Laplace(_network(pl_module, self.network), **self.options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Raise, before training starts, if the trainer has several loaders and none was chosen."""
        self._loaders(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit and tune. Lightning calls it when training has ended, also if it was stopped early."""
        convert = trainer.precision_plugin.convert_input
        training, validation = (
            None if each is None else _Converted(each, convert, self.weighted)
            for each in self._loaders(trainer)
        )
        network = _network(pl_module, self.network)
        self.bayes = fit_and_tune(network, self.options, training, validation, weighted=self.weighted)

    def _loaders(self, trainer: Any) -> tuple[Iterable[Any] | None, Iterable[Any] | None]:
        """Return the loaders for training and for validation."""
        training = _single_loader(trainer.train_dataloader, "train_loader", self.train_loader)
        return training, _single_loader(trainer.val_dataloaders, "val_loader", self.val_loader)


class EvidenceCallback(Callback):
    """Choose the prior of each layer by the evidence while the trainer trains: `train_by_evidence`.

    The module's own loss is the mean of −log p(y | x), without a penalty, and its optimisers have no weight
    decay. Before each step of an optimiser the gradient τθ/N of the penalty is added to that of the loss. The
    loss that the module logs does not have the penalty.

    When training ends, the network gets the weights with the largest evidence, before a `ModelCheckpoint`
    writes the last ones. The state of the callback is not part of a checkpoint: a training that is resumed
    begins with `prior_variance` again.

    Args:
        network: the name of the attribute of the LightningModule that is the network, such as "model"; by
            default the LightningModule itself, whose `forward` then returns logits.
        train_loader: used instead of the trainer's for the evidence, such as one without augmentation.
        burn_in: the first epoch at whose end the evidence is computed.
        every: the number of epochs from one evidence to the next. It is always computed after the last.
        steps: the number of Adam's steps for each evidence.
        learning_rate: of these steps, in the logarithms of the prior precisions.
        each_layer: whether each layer has its own prior variance.
        weighted: whether the training data have weights of their points, as for `Laplace.fit`. The module's
            own loss is then Σ wℓ divided by the sum of the weights.
        options: of the `Laplace`, such as `structure` or `prior_variance`, at which the training begins.

    Attributes:
        result: the `EvidenceTraining`, with the fitted `Laplace`, or None before training has ended. It has
            no losses: the trainer has them.
    """

    def __init__(
        self,
        *,
        network: str | None = None,
        train_loader: Loader | None = None,
        burn_in: int = 10,
        every: int = 5,
        steps: int = 20,
        learning_rate: float = 0.1,
        each_layer: bool = True,
        weighted: bool = False,
        **options: Unpack[LaplaceOptions],
    ) -> None:
        if Callback is object:
            raise MissingPackageError(NO_LIGHTNING)
        self.network, self.train_loader, self.options = network, train_loader, options
        self.weighted = weighted
        self.schedule = Schedule(burn_in, every, steps, learning_rate, each_layer)
        self.result: EvidenceTraining | None = None
        self._ascent: Ascent | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raise, before training starts, if there is no such network or the options are wrong."""
        self._new_ascent(pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check optimisers, data and network by a first fit, which also counts the points."""
        self.result, ascent = None, self._new_ascent(pl_module)
        ascent.check_optimizers(trainer.optimizers)
        ascent.begin(self._loader(trainer))
        self._ascent = ascent

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Add the gradient of the penalty. Lightning clips gradients after that."""
        assert self._ascent is not None
        among = {id(each) for group in optimizer.param_groups for each in group["params"]}
        self._ascent.add_penalty_gradient(among)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute and ascend the evidence after some epochs."""
        if self.schedule.is_due(epoch := trainer.current_epoch + 1):
            self._measure(trainer, epoch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Give the network the weights with the largest evidence."""
        assert self._ascent is not None
        if (epoch := trainer.current_epoch) not in self._ascent.evidences:
            self._measure(trainer, epoch)
        self.result, self._ascent = self._ascent.finish([]), None

    def _new_ascent(self, module: Any) -> Ascent:
        network = _network(module, self.network)
        return Ascent(network, self.schedule, self.options, weighted=self.weighted)

    def _measure(self, trainer: Any, epoch: int) -> None:
        assert self._ascent is not None
        self._ascent.measure(self._loader(trainer), epoch)

    def _loader(self, trainer: Any) -> Iterable[Any]:
        """The training data, in the trainer's precision."""
        found = _single_loader(trainer.train_dataloader, "train_loader", self.train_loader)
        assert found is not None  # the trainer trains with it
        return _Converted(found, trainer.precision_plugin.convert_input, self.weighted)


def _network(module: nn.Module, name: str | None) -> nn.Module:
    found = module if name is None else getattr(module, name, None)
    if not isinstance(found, nn.Module):
        parts = [name for name, _ in module.named_children()]
        raise ArgumentError(f"network={name!r} is no network of the LightningModule: it has {parts}")
    return found


class _Converted:
    """A loader whose inputs are converted to the trainer's precision, as the trainer does in training.

    `weighted`: whether its batches have weights, which stay as they are.
    """

    def __init__(self, loader: Iterable[Any], convert: Callable[[Any], Any], weighted: bool) -> None:
        self.loader, self.convert, self.weighted = check_loader(loader), convert, weighted

    def __iter__(self) -> Iterator[Any]:
        return map(self._converted, self.loader)

    def __length_hint__(self) -> int:
        return length_hint(self.loader)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loader: `fit` finds repeated points by its sampler."""
        return getattr(self.loader, name)

    def _converted(self, batch: Any) -> Any:
        """Convert the inputs of a batch, but not its labels. Anything else is left for `fit` to reject."""
        if isinstance(batch, Mapping):
            inputs = without_labels(batch)
            if self.weighted:
                inputs = {name: each for name, each in inputs.items() if name != WEIGHT}
            return {**batch, **self.convert(inputs)}
        if isinstance(batch, (list, tuple)) and len(batch) == (3 if self.weighted else 2):
            return self.convert(batch[0]), *batch[1:]
        return batch


def _single_loader(loaders: Any, name: str, given: Iterable[Any] | None) -> Iterable[Any] | None:
    """Return the given loader, or else the trainer's only one. Raise if the trainer has several."""
    if given is not None or loaders is None:
        return given
    if isinstance(loaders, (list, tuple, dict)):
        if not loaders:
            return None
        found = [*(loaders.values() if isinstance(loaders, dict) else loaders)]
        if len(found) > 1:
            raise DataError(f"the trainer has {len(found)} loaders for this: give the callback {name}=…")
        return found[0]  # type: ignore[no-any-return]
    return loaders  # type: ignore[no-any-return]
