"""The regressor: targets in any units, one or several of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from bitbayes.errors import ArgumentError
from bitbayes.options import (
    AUTO,
    CovarianceName,
    CurvatureName,
    Draws,
    Fisher,
    Layers,
    ResidualOption,
    Structure,
)
from bitbayes.prior import check_noise_variance
from bitbayes.sklearn.estimator import LaplaceEstimator, Rows
from bitbayes.sklearn.installed import (
    MultiOutputMixin,
    RegressorMixin,
    check_is_fitted,
    check_random_state,
    validate_data,
)


class LaplaceRegressor(RegressorMixin, MultiOutputMixin, LaplaceEstimator):
    """A regressor with a deviation and an interval for each value that it predicts.

    `fit` sets aside a part of the data, trains a network on the rest, and fits a `Laplace` on that rest. The
    part that was set aside tunes it. A network that is trained already is used as it is.

    A network is trained on standardised targets, (y − mean)/deviation, so that their units do not matter, and
    `laplace_` predicts these. The estimator itself takes and gives everything in the units of y. A network
    that is trained already predicts y itself, and so does its `laplace_`.

    Args:
        module: None for an MLP with ReLUs in float64; a function (features, outputs) → network, which `fit`
            calls and trains; or a trained network, an `nn.Module`, which is not trained further and never
            changed. It has one output for each column of y. X has the dtype of its parameters.
        hidden: the widths of the MLP's hidden layers.
        epochs: of the training, by Adam with decoupled weight decay.
        batch_size: rows in each step of the training.
        learning_rate: of the training; it falls to 0 along a cosine.
        weight_decay: of the training.
        validation_fraction: the part of the data that is set aside to tune; not needed if `fit` is given
            other validation data, or if `prior_variance` is set: then nothing is tuned.
        noise_variance: the variance of y around the function, in the units of y squared, if it is known: one
            number, or one for each column of y. Otherwise it is tuned.
        layers, structure, prior_variance, head, curvature, covariance, residual: as for `Laplace`.
        device: where a new network is trained. A trained network stays where it is.
        random_state: of the network, its training, and what is set aside.

    Attributes:
        module_: the network.
        laplace_: the fitted `Laplace`, with all that it can do, in the units of the network.
        noise_variance_: the variance of y around the function, in the units of y squared: a number, or one
            for each column of y if y has two axes.
        target_mean_, target_scale_: what turns the network's outputs f into y, (k,): mean + scale·f.
        n_features_in_: the number of columns of X; `feature_names_in_`: their names, if they have any.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> import bitbayes as bb
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), bb.sklearn.LaplaceRegressor(epochs=20, random_state=0))
    >>> model = model.fit(X[:400], y[:400])
    >>> mean, deviation = model.predict(X[400:], return_std=True)
    >>> bool(model.score(X[400:], y[400:]) > 0.4), bool((abs(y[400:] - mean) < 2 * deviation).mean() > 0.8)
    (True, True)
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
        noise_variance: float | Sequence[float] | None = None,
        layers: Layers = "last",
        structure: Structure = "auto",
        prior_variance: float | Mapping[str, float] | None = None,
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
        self.noise_variance = noise_variance
        self.layers = layers
        self.structure = structure
        self.prior_variance = prior_variance
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
            y: targets (n,), or (n, k) for k of them.
            sample_weight: (n,), how many times each row counts: in training, fitting and tuning. None is
                once. Rows of the weight 0 are left out.
            validation: (X, y) or (X, y, sample_weight) that the network was not trained on, to tune by.
                Without it a part of X and y is set aside. A trained network that has seen X is too sure of
                that part.
        """
        checks = {"multi_output": True, "y_numeric": True}
        given = Rows(
            *validate_data(self, X, y, allow_nd=True, dtype="numeric", ensure_min_samples=2, **checks)
        )
        self._check_numbers()
        rows, one_target = _with_columns(Rows.of(*given[:2], sample_weight)), given.y.ndim == 1
        random = check_random_state(self.random_state)
        held_out = self._checked_validation(validation, **checks)
        if held_out is not None:
            held_out = _with_columns(held_out)
            if held_out.y.shape[1] != rows.y.shape[1]:
                raise ArgumentError(
                    f"validation has {held_out.y.shape[1]} targets, and y has {rows.y.shape[1]}"
                )
        if held_out is None and self.prior_variance is None:
            rows, held_out = self._set_aside(rows, random, by_class=False)
        trained = isinstance(self.module, nn.Module)
        units = _Units.none(rows.y) if trained else _Units.of(rows)
        noise = self._noise_in(units)
        targets = units.standardised(rows)
        network = self._network(rows, targets, targets.shape[1], int(random.randint(2**31 - 1)))
        options = {"likelihood": "gaussian", "noise_variance": noise}
        bayes = self._fitted_laplace(network, rows, held_out, units.standardised, **options)
        self.target_mean_, self.target_scale_ = units
        self._one_target = one_target
        self.module_, self.laplace_ = network, bayes
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.floating] | tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return the mean of y for each row, in the shape of y.

        Args:
            X: (n, features).
            return_std: whether to return also the standard deviation of y, with the noise, in that shape.
        """
        check_is_fitted(self)
        found = self.laplace_.predict(self._inputs(X))
        mean = self._shaped(self.target_mean_ + self.target_scale_ * _array(found.mean))
        if not return_std:
            return mean
        return mean, self._shaped(self.target_scale_ * _array(found.deviation))

    def interval(self, X: ArrayLike, coverage: float = 0.9) -> NDArray[np.floating]:
        """Return the interval that y lies in with this probability: (n, 2), or (n, k, 2) for k targets.

        Args:
            X: (n, features).
            coverage: the probability, between 0 and 1.
        """
        check_is_fitted(self)
        ends = _array(self.laplace_.interval(self._inputs(X), coverage=coverage))
        return self._shaped(self.target_mean_[:, None] + self.target_scale_[:, None] * ends)

    @property
    def noise_variance_(self) -> float | NDArray[np.floating]:
        """The variance of y around the function, in the units of y squared."""
        check_is_fitted(self)
        found: NDArray[np.floating] = np.square(self.target_scale_) * self.laplace_.noise_variance
        return float(found[0]) if self._one_target else found

    # ---- inside

    def _check_outputs(self, outputs: int, wanted: int) -> None:
        if outputs != wanted:
            raise ArgumentError(
                f"the network has {outputs} outputs and y has {wanted} columns: give another network"
            )

    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean squared error of each row."""
        return (outputs - targets.to(outputs)).square().mean(1)

    def _noise_in(self, units: _Units) -> float | tuple[float, ...] | None:
        """The noise variance that was given, in the units of the network."""
        if self.noise_variance is None:
            return None
        given = np.atleast_1d(check_noise_variance(self.noise_variance))
        if len(given) not in (1, len(units.scale)):
            raise ArgumentError(
                f"noise_variance={self.noise_variance!r}: expected one number, or one for each of the "
                f"{len(units.scale)} columns of y"
            )
        found = np.broadcast_to(given / units.scale / units.scale, units.scale.shape)
        if len(set(found.tolist())) == 1:
            return float(found[0])
        if self.layers == "all":
            raise ArgumentError(
                f"noise_variance={self.noise_variance!r}: over all layers the targets share one noise "
                "variance, in units of each target's own variance: leave it out, and it is tuned"
            )
        return tuple(found.tolist())

    def _shaped(self, values: NDArray[Any]) -> NDArray[np.floating]:
        """Values (n, k, …) in the shape of y: without the axis of targets if y had none."""
        return values[:, 0] if self._one_target else values


class _Units(NamedTuple):
    """y = mean + scale·f for outputs f of the network; both (k,)."""

    mean: NDArray[np.floating]
    scale: NDArray[np.floating]

    @classmethod
    def of(cls, rows: Rows) -> _Units:
        """The mean and the deviation of each column; the scale of a constant column is 1."""
        y, weights = rows.y, rows.weights
        largest = np.abs(y).max(0)  # no squares or sums of targets overflow
        relative = y / np.where(largest > 0, largest, 1.0)
        mean = np.average(relative, axis=0, weights=weights)
        scale = np.sqrt(np.average(np.square(relative - mean), axis=0, weights=weights))
        constant = scale <= 10 * np.finfo(y.dtype).eps
        return cls(largest * mean, np.where(constant, 1.0, largest * scale))

    @classmethod
    def none(cls, y: NDArray[Any]) -> _Units:
        """Those of a network that predicts y itself."""
        return cls(np.zeros(y.shape[1]), np.ones(y.shape[1]))

    def standardised(self, rows: Rows) -> Tensor:
        return torch.as_tensor((rows.y - self.mean) / self.scale)


def _with_columns(rows: Rows) -> Rows:
    """Return the rows with targets (n, k) in float64."""
    return rows._replace(y=rows.y.reshape(len(rows.y), -1).astype(np.float64))


def _array(values: Tensor) -> NDArray[Any]:
    found: NDArray[Any] = values.detach().double().cpu().numpy()
    return found
