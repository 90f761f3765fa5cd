"""A scikit-learn classifier: a network, trained here or before, with a Gaussian over its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitbayes.errors import ArgumentError, MissingPackageError
from bitbayes.laplace import Laplace
from bitbayes.model import as_logits, call, model_device, private_copy
from bitbayes.options import (
    AUTO,
    CovarianceName,
    CurvatureName,
    Draws,
    Fisher,
    Layers,
    PredictiveName,
    ResidualOption,
    Structure,
)

if TYPE_CHECKING:

    class BaseEstimator:
        """The part of scikit-learn's class that mypy needs: scikit-learn has no types."""

        def __sklearn_tags__(self) -> Any: ...

    class ClassifierMixin: ...

    check_random_state: Any
    train_test_split: Any
    check_is_fitted: Any
    check_classification_targets: Any
    validate_data: Any
else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin
        from sklearn.model_selection import train_test_split
        from sklearn.utils import check_random_state
        from sklearn.utils.multiclass import check_classification_targets
        from sklearn.utils.validation import check_is_fitted, validate_data
    except ImportError as error:
        raise MissingPackageError(
            "bitbayes.sklearn needs scikit-learn: install bitbayes with its extra 'sklearn'"
        ) from error

__all__ = ["LaplaceClassifier"]

# Rows that go through the network at once, except in training.
ROWS = 1024


class LaplaceClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities are averages over a Gaussian over its network's weights.

    `fit` sets aside a part of the data, trains a network on the rest, and fits a `Laplace` on that rest. The
    part that was set aside tunes it. A network that is trained already is used as it is.

    Args:
        module: None for an MLP with ReLUs in float64; a function (features, classes) → network, which `fit`
            calls and trains; or a trained network, an `nn.Module`, which is not trained further and never
            changed. Its outputs are k logits in the order of the classes, or one logit of two classes. X has
            the dtype of its parameters.
        hidden: the widths of the MLP's hidden layers.
        epochs: of the training, by Adam with decoupled weight decay.
        batch_size: rows in each step of the training.
        learning_rate: of the training; it falls to 0 along a cosine.
        weight_decay: of the training.
        validation_fraction: the part of the data that is set aside to tune; not needed if `fit` is given
            other validation data, or if `prior_variance` is set: then nothing is tuned.
        classes: the labels in the order of a trained network's outputs; by default those of y, sorted.
        layers, structure, prior_variance, predictive, head: as for `Laplace`.
        curvature, covariance, residual: as for `Laplace`.
        device: where a new network is trained. A trained network stays where it is.
        random_state: of the network, its training, and what is set aside.

    Attributes:
        classes_: the labels, sorted: the order of the columns of `predict_proba`.
        module_: the network, whose outputs keep their own order.
        laplace_: the fitted `Laplace`, with all that it can do; its columns are in the network's order.
        n_features_in_: the number of columns of X; `feature_names_in_`: their names, if they have any.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.model_selection import cross_val_score
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import bitbayes as bb
    >>> X, y = load_iris(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), bb.sklearn.LaplaceClassifier(epochs=30, random_state=0))
    >>> bool(cross_val_score(model, X, y, cv=3).mean() > 0.9)
    True
    """

    def __init__(
        self,
        module: nn.Module | Callable[[int, int], nn.Module] | None = None,
        *,
        hidden: Sequence[int] = (64, 64),
        epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 0.01,
        weight_decay: float = 0.01,
        validation_fraction: float = 0.2,
        classes: ArrayLike | None = None,
        layers: Layers = "last",
        structure: Structure = "auto",
        prior_variance: float | Mapping[str, float] | None = None,
        predictive: PredictiveName = "auto",
        head: str | None = None,
        curvature: CurvatureName | Fisher = AUTO,
        covariance: CovarianceName | Draws = AUTO,
        residual: ResidualOption = AUTO,
        device: str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.classes = classes
        self.layers = layers
        self.structure = structure
        self.prior_variance = prior_variance
        self.predictive = predictive
        self.head = head
        self.curvature = curvature
        self.covariance = covariance
        self.residual = residual
        self.device = device
        self.random_state = random_state

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, validation: tuple[ArrayLike, ArrayLike] | None = None
    ) -> Self:
        """Train the network, unless it is trained already, fit the `Laplace` and tune it.

        Args:
            X: (n, features), or (n, …) as the network takes it.
            y: labels (n,), numbers or texts.
            validation: (X, y) that the network was not trained on, to tune by. Without it a part of X and y
                is set aside. A trained network that has seen X is too sure of that part.
        """
        inputs: NDArray[Any]
        targets: NDArray[Any]
        inputs, targets = validate_data(self, X, y, allow_nd=True, dtype="numeric", ensure_min_samples=2)
        check_classification_targets(targets)
        self._check_numbers()
        classes = self._classes_of(targets)
        random = check_random_state(self.random_state)
        held_out = self._checked_validation(validation, classes)
        if held_out is None and self.prior_variance is None:
            inputs, held_out_x, targets, held_out_y = self._set_aside(inputs, targets, random)
            held_out = held_out_x, held_out_y
        labels = _indices(targets, classes)
        network = self._network(inputs, labels, len(classes), int(random.randint(2**31 - 1)))
        bayes = Laplace(
            network,
            layers=self.layers,
            structure=self.structure,
            prior_variance=self.prior_variance,
            predictive=self.predictive,
            head=self.head,
            curvature=self.curvature,
            covariance=self.covariance,
            residual=self.residual,
        ).fit(_batches(network, inputs, labels), progress=False)
        if held_out is not None:
            x, y_indices = held_out[0], _indices(held_out[1], classes)
            bayes.tune(_batches(network, x, y_indices), progress=False)
        # scikit-learn's scorers assume sorted columns, and ignore classes_.
        self._sorted_outputs = np.argsort(classes)
        self.classes_, self.module_, self.laplace_ = classes[self._sorted_outputs], network, bayes
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.generic]:
        """Return the most probable label of each row."""
        probabilities = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return found

    def predict_proba(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return the probabilities (n, k), in the order of `classes_`; rows sum to one."""
        check_is_fitted(self)
        by_output: NDArray[Any] = self.laplace_.predict_proba(self._inputs(X)).cpu().numpy()
        return by_output.take(self._sorted_outputs, axis=1)

    def score_samples(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return `Laplace.score` (n,), to reject by: larger means more like the data."""
        check_is_fitted(self)
        found: NDArray[Any] = self.laplace_.score(self._inputs(X)).cpu().numpy()
        return found

    # ---- inside

    def _inputs(self, X: Any) -> list[Tensor]:
        X = validate_data(self, X, allow_nd=True, dtype="numeric", reset=False)
        return [*torch.split(_as_inputs(X, self.module_), ROWS)]

    def _check_numbers(self) -> None:
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise ArgumentError(f"{name}={value!r}: expected a positive whole number")
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not 0 <= value < np.inf:
                raise ArgumentError(f"{name}={value!r}: expected a number from 0 on")
        if (
            not isinstance(self.validation_fraction, (float, np.floating))
            or not 0 < self.validation_fraction < 1
        ):
            raise ArgumentError(
                f"validation_fraction={self.validation_fraction!r}: expected a number between 0 and 1"
            )

    def _classes_of(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the labels in the order of the network's outputs."""
        seen = np.unique(y)
        classes = seen if self.classes is None else np.asarray(self.classes)
        if len(classes) < 2:
            raise ArgumentError(
                f"y has one class, {classes.tolist()}: a classifier needs two or more classes"
            )
        if classes.ndim != 1 or len(np.unique(classes)) != len(classes) or not np.isin(seen, classes).all():
            raise ArgumentError(
                f"classes={self.classes!r}: expected each label once, and all of y: {seen.tolist()}"
                + _hint_if_numbered(seen, len(classes))
            )
        return classes

    def _checked_validation(
        self, validation: tuple[Any, Any] | None, classes: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]] | None:
        if validation is None:
            return None
        if not isinstance(validation, (tuple, list)) or len(validation) != 2:
            raise ArgumentError(f"validation is a {type(validation).__name__}: expected a pair (X, y)")
        X, y = validate_data(self, *validation, allow_nd=True, dtype="numeric", reset=False)
        if not np.isin(y, classes).all():
            raise ArgumentError(f"validation has labels other than the classes {classes.tolist()}")
        return X, y

    def _set_aside(self, X: NDArray[Any], y: NDArray[Any], random: Any) -> Any:
        """Split X and y into two parts, stratified by class if there are enough rows of each."""
        counts = np.unique(y, return_counts=True)[1]
        held = int(np.ceil(len(y) * self.validation_fraction))
        if held == len(y):
            raise ArgumentError(
                f"validation_fraction={self.validation_fraction!r} sets all {held} rows aside, and none is "
                "left to fit: give a smaller fraction, more rows, or fit(…, validation=(X, y))"
            )
        enough = counts.min() >= 2 and min(held, len(y) - held) >= len(counts)
        return train_test_split(X, y, test_size=held, random_state=random, stratify=y if enough else None)

    def _network(self, X: NDArray[Any], labels: Tensor, k: int, seed: int) -> nn.Module:
        """Return the trained network: the one that was given, or a new one."""
        if isinstance(self.module, nn.Module):
            _check_outputs(self.module, X, k)
            return self.module
        if self.module is not None and not callable(self.module):
            raise ArgumentError(
                f"module is a {type(self.module).__name__}: expected None, a trained nn.Module, or a "
                "function (features, classes) that makes a network"
            )
        devices = (
            [self.device] if self.device is not None and torch.device(self.device).type == "cuda" else []
        )
        with (
            torch.random.fork_rng(devices=devices),
            torch.enable_grad(),
        ):  # the caller's random state stays as it is
            torch.manual_seed(seed)
            network = _mlp(X.shape[1:], self.hidden, k) if self.module is None else self.module(X.shape[1], k)
            if not isinstance(network, nn.Module):
                raise ArgumentError(f"module() returned a {type(network).__name__}: expected an nn.Module")
            network = network.to(self.device)
            _check_outputs(network, X, k)
            self._train(network, _as_inputs(X, network), labels)
        return network

    def _train(self, network: nn.Module, x: Tensor, labels: Tensor) -> None:
        """Minimise the cross-entropy by AdamW."""
        device = model_device(network)
        parameters = [each for each in network.parameters() if each.requires_grad]
        optimiser = torch.optim.AdamW(
            parameters, lr=float(self.learning_rate), weight_decay=float(self.weight_decay)
        )
        steps = int(self.epochs) * -(-len(x) // int(self.batch_size))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        network.train()
        for _ in range(int(self.epochs)):
            for rows in torch.split(torch.randperm(len(x)), int(self.batch_size)):
                if len(rows) == 1 < min(len(x), int(self.batch_size)):
                    continue  # batch norm cannot train on one row; the next epoch shuffles again
                optimiser.zero_grad()
                logits = as_logits(call(network, x[rows].to(device)), len(rows))
                _cross_entropy(logits, labels[rows].to(device)).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
        network.eval()


def _mlp(shape: tuple[int, ...], hidden: Sequence[int], k: int) -> nn.Module:
    """Return an MLP in float64, the precision of scikit-learn's own estimators."""
    widths = [int(np.prod(shape)), *(int(width) for width in hidden)]
    parts: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(widths[-1], k)).double()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits))
    return functional.cross_entropy(logits, labels)


@torch.no_grad()
def _check_outputs(network: nn.Module, X: NDArray[Any], k: int) -> None:
    """Raise unless the network has one output per class, or one output for two classes."""
    inputs = _as_inputs(X[:2], network).to(model_device(network))
    outputs = as_logits(call(private_copy(network), inputs)).shape[1]
    if outputs != k and (outputs, k) != (1, 2):
        raise ArgumentError(
            f"the network has {outputs} outputs and there are {k} classes: give all its labels in their "
            "order, classes=[…], or another network"
        )


def _as_inputs(X: NDArray[Any], network: nn.Module) -> Tensor:
    """Return X as a tensor, in the dtype of the network's floating-point parameters."""
    dtype = next((each.dtype for each in network.parameters() if each.is_floating_point()), torch.float32)
    # torch shares the memory, and warns if it is read-only, as that of data frames is.
    return torch.as_tensor(np.require(X, requirements=["C", "W"])).to(dtype)


def _indices(y: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """Return the index of each label in `classes`."""
    order = np.argsort(classes)
    return torch.as_tensor(order[np.searchsorted(classes, y, sorter=order)])


def _hint_if_numbered(seen: NDArray[Any], k: int) -> str:
    """Return advice if the labels may be numbers that a scikit-learn tool put in place of other labels.

    They are not translated back, because they may also be the indices of the network's outputs.
    """
    if seen.dtype.kind not in "iu" or seen.min() < 0 or seen.max() >= k:
        return ""
    return (
        ". cross_val_predict for probabilities, VotingClassifier and StackingClassifier put numbers in the "
        "place of the labels. For a trained network give them no classes, and as y the numbers of its "
        f"outputs, 0 to {k - 1}"
    )


def _batches(network: nn.Module, X: NDArray[Any], labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [*zip(torch.split(_as_inputs(X, network), ROWS), torch.split(labels, ROWS), strict=True)]
