"""A callback of Hugging Face's `Trainer` that makes the trained model a bit Bayesian when training ends."""

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from bitbayes.callbacks import fit_and_tune
from bitbayes.errors import MissingPackageError, UntunedWarning, level_of_the_caller
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

__all__ = ["LaplaceCallback"]


class LaplaceCallback(TrainerCallback):
    """Fit a `Laplace` on the training data when `Trainer.train` ends, and tune it on the evaluation data.

    The loaders are the trainer's own. It has one for evaluation if it evaluated during training
    (`eval_strategy="epoch"`); otherwise give `val_loader`, such as `trainer.get_eval_dataloader()`, or tune
    yourself. If it evaluated several sets, none is taken by chance: nothing is tuned, and a warning says so
    at the first evaluation. With `load_best_model_at_end` the best model is the one that is fitted.

    If several processes train together, they also fit and tune together: each reads the share of the data
    that its trainer's loader gives it, and all end with the same `bayes`. A loader that you give must have
    the process's own share (a `DistributedSampler`).

    Args:
        train_loader: used instead of the trainer's.
        val_loader: used instead of the trainer's. If there is none, nothing is tuned.
        weighted: whether both yield weights of their points, under the key "weight"; see `Laplace.fit`. Give
            both loaders then: the trainer's own leave out what the model does not take.
        options: of the `Laplace`, such as `layers="all"`.

    Attributes:
        bayes: the fitted `Laplace`, or None before training has ended.
    """

    def __init__(
        self,
        *,
        train_loader: Loader | None = None,
        val_loader: Loader | None = None,
        weighted: bool = False,
        **options: Unpack[LaplaceOptions],
    ) -> None:
        if TrainerCallback is object:
            raise MissingPackageError("this callback is Hugging Face's: install transformers and accelerate")
        self.train_loader, self.val_loader, self.options = train_loader, val_loader, options
        self.weighted = weighted
        self.bayes: Laplace | None = None
        # The loaders of the sets that were evaluated in this training; None before and after it.
        self._evaluated: dict[str, Iterable[Any] | None] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Raise, before training starts, if the options are wrong."""
        Laplace(model, **self.options)
        self._evaluated = {}

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Mapping[str, float] | None = None,
        eval_dataloader: Iterable[Any] | None = None,
        **others: Any,
    ) -> None:
        """Warn when a second set is evaluated in training. It cannot be noticed earlier."""
        if self._evaluated is None or self.val_loader is not None:
            return
        before = len(self._evaluated)
        self._evaluated[_name_of_set(metrics or {})] = eval_dataloader
        if (before, len(self._evaluated)) == (1, 2):
            warnings.warn(_message_of_several(*self._evaluated), UntunedWarning, level_of_the_caller())

    def on_train_end(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        train_dataloader: Iterable[Any] | None = None,
        **others: Any,
    ) -> None:
        """Fit and tune."""
        training = train_dataloader if self.train_loader is None else self.train_loader
        # Not the trainer's current eval_dataloader: it may be from a prediction, or from before the training.
        loaders, self._evaluated = list((self._evaluated or {}).values()), None
        evaluated = loaders[0] if len(loaders) == 1 else None
        validation = evaluated if self.val_loader is None else self.val_loader
        self.bayes = fit_and_tune(model, self.options, training, validation, weighted=self.weighted)


def _name_of_set(metrics: Mapping[str, float]) -> str:
    """Return the prefix of an evaluation's metrics: "eval" if the trainer added "eval_runtime" to them."""
    runtimes = (name.removesuffix("_runtime") for name in metrics if name.endswith("_runtime"))
    return min(runtimes, key=len, default="")  # the user's own metrics may be longer: "eval_decoder_runtime"


def _message_of_several(first: str, second: str) -> str:
    return (
        f"the trainer evaluates several sets, {first!r} and {second!r} among them, and it is not known which "
        "one is to tune: the Laplace will be fitted, and not tuned. Choose one, "
        "trainer.add_callback(LaplaceCallback(val_loader=trainer.get_eval_dataloader(NAME))), or tune after "
        "training, callback.bayes.tune(trainer.get_eval_dataloader(NAME))"
    )
