"""A Lightning callback that makes the trained network a bit Bayesian when training ends."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import length_hint
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from bitbayes.callbacks import fit_and_tune
from bitbayes.errors import ArgumentError, DataError, MissingPackageError
from bitbayes.laplace import Laplace
from bitbayes.model import Loader, check_loader, without_labels
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

__all__ = ["LaplaceCallback"]


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
        **options: Unpack[LaplaceOptions],
    ) -> None:
        if Callback is object:
            raise MissingPackageError("this callback is Lightning's: install lightning, or pytorch-lightning")
        self.network, self.options = network, options
        self.train_loader, self.val_loader = train_loader, val_loader
        self.bayes: Laplace | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Raise, before training starts, if there is no such network or the options are wrong."""
        Laplace(self._network(pl_module), **self.options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Raise, before training starts, if the trainer has several loaders and none was chosen."""
        self._loaders(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Fit and tune. Lightning calls it when training has ended, also if it was stopped early."""
        convert = trainer.precision_plugin.convert_input
        training, validation = (
            None if each is None else _Converted(each, convert) for each in self._loaders(trainer)
        )
        self.bayes = fit_and_tune(self._network(pl_module), self.options, training, validation)

    def _loaders(self, trainer: Any) -> tuple[Iterable[Any] | None, Iterable[Any] | None]:
        """Return the loaders for training and for validation."""
        training = _single_loader(trainer.train_dataloader, "train_loader", self.train_loader)
        return training, _single_loader(trainer.val_dataloaders, "val_loader", self.val_loader)

    def _network(self, module: nn.Module) -> nn.Module:
        found = module if self.network is None else getattr(module, self.network, None)
        if not isinstance(found, nn.Module):
            parts = [name for name, _ in module.named_children()]
            raise ArgumentError(
                f"network={self.network!r} is no network of the LightningModule: it has {parts}"
            )
        return found


class _Converted:
    """A loader whose inputs are converted to the trainer's precision, as the trainer does in training."""

    def __init__(self, loader: Iterable[Any], convert: Callable[[Any], Any]) -> None:
        self.loader, self.convert = check_loader(loader), convert

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
            return {**batch, **self.convert(without_labels(batch))}
        if isinstance(batch, (list, tuple)) and len(batch) == 2:
            return self.convert(batch[0]), batch[1]
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
            raise DataError(f"the trainer has {len(found)} loaders for this: give LaplaceCallback({name}=…)")
        return found[0]  # type: ignore[no-any-return]
    return loaders  # type: ignore[no-any-return]
