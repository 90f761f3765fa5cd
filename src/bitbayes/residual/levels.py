"""The levels at which the residual looks: the input and, if asked for, the inputs of some hidden layers.

k(x) = k₀(x) + Σ_l k_l(h_l(x)), h_l the input of layer l, each kernel with the means and deviations of its own
level, and one variance σ² for all.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model import Batch, Inputs, call, eval_mode, model_device
from bitbayes.model.hooks import recorded_inputs
from bitbayes.residual.kernel import InputMoments, as_rows


def levels(model: nn.Module, layers: tuple[str, ...], inputs: Inputs) -> list[Tensor]:
    """The inputs, and those of the named layers, as they pass the model in eval mode."""
    rows = as_rows(inputs)  # raises on inputs that have no levels
    if not layers:
        return [rows]
    assert isinstance(inputs, Tensor)
    # Copies, because a layer may work in place.
    with recorded_inputs(model, layers, torch.clone) as seen, eval_mode(model):
        call(model, inputs.to(model_device(model)))
    if missing := [name for name in layers if not seen[name]]:
        raise ModelError(f"residual={layers!r}: the model does not call {missing}")
    return [inputs, *(calls[-1] for calls in seen.values())]


@torch.no_grad()
def moments_of(model: nn.Module, layers: tuple[str, ...], inputs: Inputs) -> InputMoments:
    """The moments of all levels side by side."""
    return InputMoments.of(torch.cat([as_rows(level) for level in levels(model, layers, inputs)], dim=1))


@dataclass(frozen=True)
class Residual:
    """The residual of a model, up to its two numbers: variance σ² and threshold.

    layers: the names of the hidden layers whose inputs it looks at too.
    moments: those of the training data at all levels.
    """

    model: nn.Module
    layers: tuple[str, ...]
    moments: InputMoments

    def root_kernel(self, inputs: Inputs) -> Tensor:
        """√Σ_l k_l, (n,) in float64."""
        found = levels(self.model, self.layers, inputs)
        roots = [own.root_kernel(as_rows(level)) for own, level in zip(self.split(found), found, strict=True)]
        every = torch.stack(roots)
        largest = every.detach().amax(0).clamp_min(1e-100)  # in units of it no square overflows
        return largest * (every / largest).square().sum(0).sqrt()

    def attached_to(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches with their √k(x): now, since a model may work in place on its inputs."""
        for batch in batches:
            yield replace(batch, root_kernel=self.root_kernel(batch.inputs))

    def split(self, found: list[Tensor]) -> list[InputMoments]:
        """The moments of each level."""
        return self.moments.split([math.prod(level.shape[1:]) for level in found])


def deviations(root_kernel: Tensor, variance: float, threshold: float) -> Tensor:
    """√(σ²·max(0, k − threshold)), (n,), from √k (n,): what `LogitGaussian.plus_independent` takes."""
    beyond = 1 - threshold / root_kernel.square().clamp_min(1e-200)
    # The floor is for the derivative of the root, which is infinite at 0.
    floor = torch.finfo(beyond.dtype).tiny
    return math.sqrt(variance) * root_kernel * beyond.clamp_min(floor).sqrt()
