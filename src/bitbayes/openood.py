"""bitbayes as a post-processor of OpenOOD's evaluator (version 1.5).

OpenOOD is not a dependency. Its evaluator accepts only a `BasePostprocessor`, so this class is a subclass of
it if OpenOOD can be imported.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from operator import length_hint
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitbayes.errors import DataError, ModelError, NotFittedError
from bitbayes.laplace import Laplace
from bitbayes.model import Fingerprint, Inputs, Loader, check_loader, fingerprint, unwrapped
from bitbayes.options import LaplaceOptions
from bitbayes.progress import track
from bitbayes.settings import Settings

if TYPE_CHECKING:
    BasePostprocessor = object
else:
    try:
        from openood.postprocessors import BasePostprocessor
    except ImportError:
        BasePostprocessor = object

__all__ = ["LaplacePostprocessor"]

# The names of the loaders. The evaluator uses "train", some programs derived from it use "main_train".
TRAINING, VALIDATION = ("train", "main_train"), ("val",)
INPUTS, LABELS = "data", "label"


class LaplacePostprocessor(BasePostprocessor):
    """`Laplace.score` as the confidence by which OpenOOD separates data from outliers.

    `setup` fits a `Laplace` on the training data and tunes it on the validation data. It does not use
    outliers, so OpenOOD needs no search of hyperparameters: `APS_mode` is False.

    Args:
        config: OpenOOD's configuration, which is stored but not used.
        options: of the `Laplace`, such as `layers="all"`.

    Attributes:
        bayes: the `Laplace`, or None before `setup`.
    """

    APS_mode = False
    hyperparam_search_done = True

    def __init__(self, config: object = None, **options: Unpack[LaplaceOptions]) -> None:
        self.config = config
        self.options = options
        self.args_dict: dict[str, list[Any]] = {}
        self.bayes: Laplace | None = None
        self._network: nn.Module | None = None
        self._fitted_to: Fingerprint | None = None

    def setup(
        self, net: nn.Module, id_loader_dict: Mapping[str, Loader], ood_loader_dict: object = None
    ) -> None:
        """Fit and tune, unless that was done for this network with the weights it has.

        Args:
            net: the classifier.
            id_loader_dict: loaders "train" and "val" of batches {"data": …, "label": …}.
            ood_loader_dict: not used.
        """
        bayes, network = Laplace(net, **self.options), unwrapped(net)
        now = fingerprint(network)
        if self.bayes is not None and self._network is network and self._fitted_to == now:
            return
        training, validation = _pairs(id_loader_dict, TRAINING), _pairs(id_loader_dict, VALIDATION)
        self.bayes, self._network, self._fitted_to = bayes.fit(training).tune(validation), network, now

    @torch.no_grad()
    def postprocess(self, net: nn.Module, data: Inputs) -> tuple[Tensor, Tensor]:
        """Return the most probable labels (n,) and the scores (n,), from one forward pass, on the CPU."""
        bayes = self._bayes_of(net)
        probabilities, scores = bayes.predict_and_score(data)
        return probabilities.argmax(1), scores

    def inference(
        self, net: nn.Module, data_loader: Loader, progress: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.floating], NDArray[np.int64]]:
        """Return the predictions, confidences and labels (n,) of all batches of a loader.

        Args:
            net: the classifier that was set up.
            data_loader: yields batches {"data": …, "label": …}.
            progress: whether to show a bar.
        """
        batches: list[tuple[Tensor, Tensor, Tensor]] = []
        for data, label in track(_Pairs(data_loader), "OpenOOD", progress):
            batches.append((*self.postprocess(net, data), label))
        if not batches:
            raise DataError("the loader is empty: it yielded no batch")
        predictions, confidences, labels = (
            torch.cat([each.cpu() for each in column]).numpy() for column in zip(*batches, strict=True)
        )
        return predictions.astype(np.int64), confidences, labels.astype(np.int64)

    def set_hyperparam(self, hyperparam: list[Any]) -> None:
        """Set the numbers that `tune` chooses, in the order of `get_hyperparam`."""
        self._bayes().settings = Settings(*hyperparam)

    def get_hyperparam(self) -> list[Any]:
        """The numbers that `tune` chose, in the order of `Settings`."""
        return list(asdict(self._bayes().settings).values())

    def _bayes(self) -> Laplace:
        if self.bayes is None:
            raise NotFittedError("this post-processor is not set up yet: call `setup` first")
        return self.bayes

    def _bayes_of(self, net: nn.Module) -> Laplace:
        bayes = self._bayes()
        if unwrapped(net) is not self._network:  # not `bayes.model`, which wraps it if there is an `output`
            raise ModelError("this post-processor was set up for another network: call `setup` with this one")
        return bayes


class _Pairs:
    """A loader of pairs (inputs, labels), made from OpenOOD's batches, which are mappings with many keys."""

    def __init__(self, loader: Loader) -> None:
        self.loader = check_loader(loader)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for number, batch in enumerate(self.loader):
            if not isinstance(batch, Mapping) or INPUTS not in batch or LABELS not in batch:
                keys = f"with the keys {sorted(batch)}" if isinstance(batch, Mapping) else "and no mapping"
                raise DataError(
                    f"batch {number} is a {type(batch).__name__} {keys}: expected OpenOOD's "
                    f"{{{INPUTS!r}: inputs, {LABELS!r}: labels}}"
                )
            yield batch[INPUTS], batch[LABELS]

    def __length_hint__(self) -> int:
        return length_hint(self.loader)


def _pairs(loaders: Mapping[str, Loader], names: tuple[str, ...]) -> _Pairs:
    for name in names:
        if name in loaders:
            return _Pairs(loaders[name])
    raise DataError(f"id_loader_dict has the keys {sorted(loaders)}: expected {names[0]!r} among them")
