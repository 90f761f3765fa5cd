"""What the classifier and the regressor share: the network, its training, the `Laplace` and its tuning."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from bitbayes.errors import ArgumentError
from bitbayes.laplace import Laplace
from bitbayes.model import as_logits, call, model_device, private_copy
from bitbayes.options import CovarianceName, CurvatureName, Draws, Fisher, Layers, ResidualOption, Structure
from bitbayes.sklearn.installed import BaseEstimator, check_is_fitted, train_test_split, validate_data

# Rows that go through the network at once, except in training.
ROWS = 1024


class Rows(NamedTuple):
    """Rows of data: X (n, …), the labels or targets y (n,) or (n, k), and weights (n,) or None."""

    X: NDArray[Any]
    y: NDArray[Any]
    weights: NDArray[Any] | None = None

    @classmethod
    def of(cls, X: NDArray[Any], y: NDArray[Any], sample_weight: Any) -> Self:
        """The rows that have a weight above 0; all have the weight 1 if there are no weights."""
        if sample_weight is None:
            return cls(X, y)
        weights = np.asarray(sample_weight, dtype=np.float64)
        if weights.shape != (len(X),) or not (np.isfinite(weights) & (weights >= 0)).all():
            raise ArgumentError(
                f"sample_weight has the shape {weights.shape}, or numbers that are negative or not finite: "
                f"expected {(len(X),)}, one number from 0 on for each row"
            )
        kept = weights > 0
        if not kept.any():
            raise ArgumentError("no row counts: every sample_weight is zero")
        return cls(X[kept], y[kept], weights[kept])

    def times(self, factors: NDArray[Any]) -> Self:
        """The rows with weights that are so many times as large, (n,)."""
        return self._replace(weights=factors if self.weights is None else self.weights * factors)


class LaplaceEstimator(BaseEstimator):
    """A network, trained here or before, and a `Laplace` of it that is fitted and tuned.

    scikit-learn reads the names of the options from the constructor, so each estimator has its own.
    """

    module: nn.Module | Callable[[int, int], nn.Module] | None
    hidden: Sequence[int]
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    validation_fraction: float
    layers: Layers
    structure: Structure
    prior_variance: float | Mapping[str, float] | None
    head: str | None
    curvature: CurvatureName | Fisher
    covariance: CovarianceName | Draws
    residual: ResidualOption
    device: str | None

    module_: nn.Module
    laplace_: Laplace

    def score_samples(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return `Laplace.score` (n,), to reject by: larger means more like the data."""
        check_is_fitted(self)
        found: NDArray[Any] = self.laplace_.score(self._inputs(X)).cpu().numpy()
        return found

    # ---- what differs

    @abstractmethod
    def _check_outputs(self, outputs: int, wanted: int) -> None:
        """Raise if a network with so many outputs does not fit."""

    @abstractmethod
    def _losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each row that training minimises, (n,)."""

    # ---- inside

    def _fitted_laplace(
        self,
        network: nn.Module,
        rows: Rows,
        held_out: Rows | None,
        labels: Callable[[Rows], Tensor],
        **options: Any,
    ) -> Laplace:
        """The `Laplace` of a network, fitted on rows, and tuned on those that were set aside, if any.

        `labels`: makes the labels for the network of y.
        """
        weighted = rows.weights is not None
        bayes = Laplace(
            network,
            layers=self.layers,
            structure=self.structure,
            prior_variance=self.prior_variance,
            head=self.head,
            curvature=self.curvature,
            covariance=self.covariance,
            residual=self.residual,
            **options,
        ).fit(_batches(network, rows, labels(rows)), weighted=weighted, progress=False)
        if held_out is not None:
            weighted = held_out.weights is not None
            bayes.tune(_batches(network, held_out, labels(held_out)), weighted=weighted, progress=False)
        return bayes

    def _inputs(self, X: Any) -> list[Tensor]:
        X = validate_data(self, X, allow_nd=True, dtype="numeric", reset=False)
        return [*torch.split(as_inputs(X, self.module_), ROWS)]

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

    def _checked_validation(self, validation: tuple[Any, ...] | None, **checks: Any) -> Rows | None:
        if validation is None:
            return None
        if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
            raise ArgumentError(
                f"validation is a {type(validation).__name__}: expected (X, y), or (X, y, sample_weight)"
            )
        X, y, *weights = validation
        X, y = validate_data(self, X, y, allow_nd=True, dtype="numeric", reset=False, **checks)
        return Rows.of(X, y, *weights or [None])

    def _set_aside(self, rows: Rows, random: Any, *, by_class: bool) -> tuple[Rows, Rows]:
        """Split the rows into two parts, stratified by class if that is asked for and there are enough."""
        held = int(np.ceil(len(rows.y) * self.validation_fraction))
        if held == len(rows.y):
            raise ArgumentError(
                f"validation_fraction={self.validation_fraction!r} sets all {held} rows aside, and none is "
                "left to fit: give a smaller fraction, more rows, or fit(…, validation=(X, y))"
            )
        strata = None
        if by_class:
            counts = np.unique(rows.y, return_counts=True)[1]
            enough = counts.min() >= 2 and min(held, len(rows.y) - held) >= len(counts)
            strata = rows.y if enough else None
        columns = [each for each in rows if each is not None]
        split = train_test_split(*columns, test_size=held, random_state=random, stratify=strata)
        return Rows(*split[::2]), Rows(*split[1::2])

    def _network(self, rows: Rows, targets: Tensor, outputs: int, seed: int) -> nn.Module:
        """Return the trained network: the one that was given, or a new one."""
        X = rows.X
        if isinstance(self.module, nn.Module):
            self._check_outputs(_outputs(self.module, X), outputs)
            return self.module
        if self.module is not None and not callable(self.module):
            raise ArgumentError(
                f"module is a {type(self.module).__name__}: expected None, a trained nn.Module, or a "
                "function (features, outputs) that makes a network"
            )
        devices = (
            [self.device] if self.device is not None and torch.device(self.device).type == "cuda" else []
        )
        with (
            torch.random.fork_rng(devices=devices),
            torch.enable_grad(),
        ):  # the caller's random state stays as it is
            torch.manual_seed(seed)
            network = (
                _mlp(X.shape[1:], self.hidden, outputs)
                if self.module is None
                else self.module(X.shape[1], outputs)
            )
            if not isinstance(network, nn.Module):
                raise ArgumentError(f"module() returned a {type(network).__name__}: expected an nn.Module")
            network = network.to(self.device)
            self._check_outputs(_outputs(network, X), outputs)
            # With a mean of 1, so that the rate of learning does not depend on their size.
            weights = torch.ones(len(X)) if rows.weights is None else torch.as_tensor(rows.weights)
            self._train(network, as_inputs(X, network), targets, weights / weights.mean())
        return network

    def _train(self, network: nn.Module, x: Tensor, targets: Tensor, weights: Tensor) -> None:
        """Minimise the weighted mean loss by AdamW."""
        device = model_device(network)
        parameters = [each for each in network.parameters() if each.requires_grad]
        optimiser = torch.optim.AdamW(
            parameters, lr=float(self.learning_rate), weight_decay=float(self.weight_decay)
        )
        steps = int(self.epochs) * -(-len(x) // int(self.batch_size))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        network.train()
        for _ in range(int(self.epochs)):
            for some in torch.split(torch.randperm(len(x)), int(self.batch_size)):
                if len(some) == 1 < min(len(x), int(self.batch_size)):
                    continue  # batch norm cannot train on one row; the next epoch shuffles again
                optimiser.zero_grad()
                outputs = as_logits(call(network, x[some].to(device)), len(some))
                losses = self._losses(outputs, targets[some].to(device))
                (weights[some].to(losses) * losses).mean().backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
        network.eval()


def as_inputs(X: NDArray[Any], network: nn.Module) -> Tensor:
    """Return X as a tensor, in the dtype of the network's floating-point parameters."""
    dtype = next((each.dtype for each in network.parameters() if each.is_floating_point()), torch.float32)
    # torch shares the memory, and warns if it is read-only, as that of data frames is.
    return torch.as_tensor(np.require(X, requirements=["C", "W"])).to(dtype)


def _mlp(shape: tuple[int, ...], hidden: Sequence[int], outputs: int) -> nn.Module:
    """Return an MLP in float64, the precision of scikit-learn's own estimators."""
    widths = [int(np.prod(shape)), *(int(width) for width in hidden)]
    parts: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(widths[-1], outputs)).double()


@torch.no_grad()
def _outputs(network: nn.Module, X: NDArray[Any]) -> int:
    """Return the number of a network's outputs."""
    inputs = as_inputs(X[:2], network).to(model_device(network))
    return as_logits(call(private_copy(network), inputs)).shape[1]


def _batches(network: nn.Module, rows: Rows, targets: Tensor) -> list[tuple[Tensor, ...]]:
    columns = [as_inputs(rows.X, network), targets]
    if rows.weights is not None:
        columns.append(torch.as_tensor(rows.weights))
    return [*zip(*(torch.split(each, ROWS) for each in columns), strict=True)]
