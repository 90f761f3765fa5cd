"""What a fit is asked for, and the sums on their way through its pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bitbayes.errors import DataError, EmptyLoaderError
from bitbayes.fitted import Fitted
from bitbayes.likelihoods import Likelihood
from bitbayes.model import Head, Inputs, Run, TrainableLayers, model_device
from bitbayes.options import Options
from bitbayes.precision import to_float64
from bitbayes.residual import InputMoments, as_rows, measurable, moments_of
from bitbayes.structures import WHOLE_NETWORK, Curvature

# Numbers whose squares are summed at once.
NORM_NUMBERS = 2**24


class Keeper(Protocol):
    """Keeps the sums of a pass on their way, so that one which was interrupted can be resumed."""

    def begin(self, loader: Iterable[Any], device: torch.device) -> tuple[Iterable[Any], Totals]:
        """What is left of the loader, after its first batch, and the sums over what was read before."""

    def keep_if_due(self, totals: Totals, check: Callable[[], None]) -> None:
        """Keep the sums, if the last time was long ago, after `check` has not raised."""


@dataclass(frozen=True)
class FitRequest:
    """One pass over data.

    seen: how many points were fitted before. After these, other random numbers are drawn than after none, so
        that `update` adds independent draws.
    """

    model: nn.Module
    loader: Iterable[Any]
    options: Options
    progress: bool | None = None
    seen: int = 0
    keeper: Keeper | None = None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return model_device(self.model)


@dataclass
class Totals:
    """The sums on their way through a pass.

    batches, rows: how many of them were read, and the inputs in them.
    generator: of the labels that are drawn, if any are.
    """

    curvature: dict[str, Curvature] = field(default_factory=dict)
    count: int = 0
    loss: Tensor | float = 0.0
    input_moments: InputMoments | None = None
    batches: int = 0
    rows: int = 0
    generator: torch.Generator | None = None

    def add_inputs(self, model: nn.Module, options: Options, inputs: Inputs) -> None:
        """Add the moments of inputs, if a residual needs them; before the model, which may work in place.

        With residual="auto", inputs that cannot be measured, or are not of one size, end all residual.
        """
        wanted = bool(options.residual) and not (self.count and self.input_moments is None)
        if wanted and not options.residual_asked:
            wanted = measurable(inputs) and self._one_size(inputs)
        if not wanted:
            self.input_moments = None
            return
        more = moments_of(model, options.residual_layers, inputs)
        self.input_moments = more if self.input_moments is None else self.input_moments + more

    def _one_size(self, inputs: Inputs) -> bool:
        """Whether the inputs have as many numbers as those before them."""
        return self.input_moments is None or as_rows(inputs).shape[1] == len(self.input_moments.mean)

    def add_points(
        self,
        outputs: Tensor,
        labels: Tensor,
        likelihood: Likelihood,
        curvature: dict[str, Curvature],
    ) -> None:
        """Add the loss and the curvature of some points."""
        self.count += len(labels)
        self.loss = self.loss + likelihood.losses(to_float64(outputs), labels).sum()
        for name, more in curvature.items():
            if name in self.curvature:
                self.curvature[name].add_(more)
            else:
                self.curvature[name] = more.to_float64()

    def as_fitted(
        self,
        weights: Head | TrainableLayers,
        likelihood: Likelihood,
        parameters: Mapping[str, Sequence[Tensor]],
        request: FitRequest,
        run: Run,
    ) -> Fitted:
        """What was learned, after the last batch.

        Args:
            weights: the weights that got a Gaussian.
            likelihood: of the labels.
            parameters: these weights, by the names of the curvatures.
            request: what was asked for.
            run: what is known of the model after the pass.
        """
        if not self.count:  # other processes have all the points that this one was given
            raise EmptyLoaderError("the loader has no points but those that other processes have")
        moments = self.input_moments
        if moments is not None and not moments.finite:  # a model may clip what is enormous
            if request.options.residual_asked:
                raise DataError("the fourth powers of the training inputs overflow float64: scale them down")
            moments = None
        norms = {name: _squared_norm(tensors) for name, tensors in parameters.items()}
        sums = self.curvature, norms, self.count, float(self.loss)
        return Fitted(weights, likelihood, *sums, run.fingerprint, moments, run.mutable_buffers)

    def check_overflow(self, dtype: torch.dtype) -> None:
        """Raise if a sum overflows in the prediction dtype."""
        for name, each in self.curvature.items():
            if not all(bool(total.to(dtype).isfinite().all()) for total in each.tensors().values()):
                where = "the network" if name == WHOLE_NETWORK else f"the layer {name!r}"
                larger = "" if dtype == torch.float64 else "fit the model in float64, or "
                raise DataError(
                    f"the squares of what the training data give at {where} overflow {dtype}: {larger}scale "
                    "its inputs down"
                )


def _squared_norm(tensors: Sequence[Tensor]) -> float:
    # In parts: a head of 100,000 classes would take several gigabytes in float64.
    parts = (part for tensor in tensors for part in torch.split(tensor.flatten(), NORM_NUMBERS))
    return sum(float(part.double().square().sum()) for part in parts)
