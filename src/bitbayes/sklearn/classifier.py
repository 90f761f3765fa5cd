"""The classifier: labels of any kind, and probabilities in the sorted order of the classes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from bitbayes.errors import ArgumentError
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
from bitbayes.sklearn.estimator import LaplaceEstimator, Rows
from bitbayes.sklearn.installed import (
    ClassifierMixin,
    check_classification_targets,
    check_is_fitted,
    check_random_state,
    validate_data,
)


class LaplaceClassifier(ClassifierMixin, LaplaceEstimator):
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
        class_weight: how many times the rows of a class count, in training, fitting and tuning: a dict by
            label, in which others have 1; or "balanced", n/(k·rows of the class). None is once.
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
        class_weight: Mapping[Hashable, float] | Literal["balanced"] | None = None,
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
        self.class_weight = class_weight
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
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: tuple[ArrayLike, ...] | None = None,
    ) -> Self:
        """Train the network, unless it is trained already, fit the `Laplace` and tune it.

        Args:
            X: (n, features), or (n, …) as the network takes it.
            y: labels (n,), numbers or texts.
            sample_weight: (n,), how many times each row counts: in training, fitting and tuning. None is
                once. Rows of the weight 0 are left out.
            validation: (X, y) or (X, y, sample_weight) that the network was not trained on, to tune by.
                Without it a part of X and y is set aside. A trained network that has seen X is too sure of
                that part.
        """
        inputs, targets = validate_data(self, X, y, allow_nd=True, dtype="numeric", ensure_min_samples=2)
        check_classification_targets(targets)
        self._check_numbers()
        rows = Rows.of(inputs, targets, sample_weight)
        classes = self._classes_of(rows.y)

        def labels(some: Rows) -> Tensor:
            return _indices(some.y, classes)

        random = check_random_state(self.random_state)
        held_out = self._checked_validation(validation)
        if held_out is not None and not np.isin(held_out.y, classes).all():
            raise ArgumentError(f"validation has labels other than the classes {classes.tolist()}")
        if held_out is None and self.prior_variance is None:
            rows, held_out = self._set_aside(rows, random, by_class=True)
        if self.class_weight is not None:
            factors = self._class_factors(rows, classes)
            rows = rows.times(factors[labels(rows).numpy()])
            if held_out is not None:
                held_out = held_out.times(factors[labels(held_out).numpy()])
        network = self._network(rows, labels(rows), len(classes), int(random.randint(2**31 - 1)))
        bayes = self._fitted_laplace(network, rows, held_out, labels, predictive=self.predictive)
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

    # ---- inside

    def _check_outputs(self, outputs: int, wanted: int) -> None:
        if outputs != wanted and (outputs, wanted) != (1, 2):
            raise ArgumentError(
                f"the network has {outputs} outputs and there are {wanted} classes: give all its labels in "
                "their order, classes=[…], or another network"
            )

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy."""
        if outputs.shape[1] == 1:
            return functional.binary_cross_entropy_with_logits(
                outputs[:, 0], targets.to(outputs), reduction="none"
            )
        return functional.cross_entropy(outputs, targets, reduction="none")

    def _class_factors(self, rows: Rows, classes: NDArray[Any]) -> NDArray[Any]:
        """How many times the rows of each class count, (k,)."""
        given = self.class_weight
        if not isinstance(given, Mapping) and given != "balanced":
            raise ArgumentError(f"class_weight={given!r}: expected None, 'balanced', or a dict by label")
        if isinstance(given, Mapping):
            known = set(classes.tolist())
            if unknown := [each for each in given if each not in known]:
                raise ArgumentError(
                    f"class_weight={given!r}: {unknown[0]!r} is no class; these are {classes.tolist()}"
                )
            factors = np.array([given.get(label, 1.0) for label in classes.tolist()], dtype=np.float64)
            if not (np.isfinite(factors) & (factors > 0)).all():
                raise ArgumentError(f"class_weight={given!r}: expected finite numbers above 0")
            return factors
        indices = _indices(rows.y, classes).numpy()
        counts = np.bincount(indices, weights=rows.weights, minlength=len(classes))
        # A class that a trained network has, and y has not, has no rows to weigh.
        return np.where(counts > 0, counts.sum() / (len(classes) * np.where(counts > 0, counts, 1)), 1.0)

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
