"""A callback of Hugging Face's `Trainer` that makes the trained model a bit Bayesian when training ends."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from bitbayes.callbacks import fit_and_tune
from bitbayes.errors import MissingPackageError
from bitbayes.laplace import Laplace
from bitbayes.model import Loader
from bitbayes.options import LaplaceOptions

if TYPE_CHECKING:
    TrainerCallback = object
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = object


class LaplaceCallback(TrainerCallback):
    """Fit a `Laplace` on the training data when `Trainer.train` ends, and tune it on the evaluation data.

    The loaders are the trainer's own. It has one for evaluation if it evaluated during training
    (`eval_strategy="epoch"`); otherwise give `val_loader`, such as `trainer.get_eval_dataloader()`, or tune
    yourself. With `load_best_model_at_end` the best model is the one that is fitted.

    Where several processes train together, they fit and tune together, too: each reads the share of the data
    that its trainer's loader gives it, and all end with the same `bayes`. A loader that you give must have
    the process's own share (a `DistributedSampler`).

    Args:
        train_loader: in the place of the trainer's.
        val_loader: in the place of the trainer's. Where there is none, nothing is tuned.
        options: of the `Laplace`, such as `layers="all"`.

    Attributes:
        bayes: the fitted `Laplace`, or None before training has ended.
    """

    def __init__(
        self,
        *,
        train_loader: Loader | None = None,
        val_loader: Loader | None = None,
        **options: Unpack[LaplaceOptions],
    ) -> None:
        if TrainerCallback is object:
            raise MissingPackageError("this callback is Hugging Face's: install transformers and accelerate")
        self.train_loader, self.val_loader, self.options = train_loader, val_loader, options
        self.bayes: Laplace | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Raise, before training starts, if the options are wrong."""
        Laplace(model, **self.options)

    def on_train_end(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        train_dataloader: Iterable[Any] | None = None,
        eval_dataloader: Iterable[Any] | None = None,
        **others: Any,
    ) -> None:
        """Fit and tune."""
        training = train_dataloader if self.train_loader is None else self.train_loader
        validation = eval_dataloader if self.val_loader is None else self.val_loader
        self.bayes = fit_and_tune(model, self.options, training, validation)
