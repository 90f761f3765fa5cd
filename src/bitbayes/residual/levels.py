"""The levels at which the residual looks: the input and, if asked for, the inputs of some hidden layers.

k(x) = k₀(x) + Σ_l k_l(h_l(x)), h_l the input of layer l, each kernel with the means and deviations of its own
level, and one variance σ² for all.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from bitbayes.errors import ModelError
from bitbayes.model import Batch, Inputs, call, model_device, private_copy
from bitbayes.model.loaders.batches import move
from bitbayes.model.running.calls import recorded_inputs
from bitbayes.precision import prediction_dtype, to_float64
from bitbayes.residual.kernel import InputMoments, Kernel, as_rows

# Numbers of which the moments are taken at once. To a GPU it is the number of steps that costs the most.
MOMENT_NUMBERS, GPU_MOMENT_NUMBERS = 2**20, 2**24


def levels(model: nn.Module, layers: tuple[str, ...], inputs: Inputs) -> list[Tensor]:
    """The inputs as rows, and those of the named layers, as they pass the model in eval mode."""
    rows = as_rows(inputs)  # raises on inputs that have no levels
    if not layers:
        return [rows]
    # Copies, because a layer may work in place.
    network = private_copy(model)
    with recorded_inputs(network, layers, torch.clone) as seen:
        call(network, move(inputs, model_device(network)))
    if missing := [name for name in layers if not seen[name]]:
        raise ModelError(f"residual={layers!r}: the model does not call {missing}")
    return [rows, *(calls[-1] for calls in seen.values())]


@torch.no_grad()
def moments_of(model: nn.Module, layers: tuple[str, ...], inputs: Inputs) -> InputMoments:
    """The moments of all levels side by side."""
    found = [as_rows(level) for level in levels(model, layers, inputs)]
    rows = found[0] if len(found) == 1 else torch.cat(found, dim=1)
    # A few rows at a time: the sums take some copies of them in float64.
    numbers = GPU_MOMENT_NUMBERS if rows.device.type == "cuda" else MOMENT_NUMBERS
    parts = torch.split(rows, max(1, numbers // max(1, rows.shape[1])))
    first, *others = (InputMoments.of(to_float64(part)) for part in parts)
    return sum(others, first)


class Residual:
    """The residual of a model, up to its two numbers: variance σ² and threshold.

    Args:
        layers: the names of the hidden layers whose inputs it looks at too.
        moments: those of the training data at all levels.
    """

    def __init__(self, model: nn.Module, layers: tuple[str, ...], moments: InputMoments) -> None:
        self.model, self.layers, self.moments = model, layers, moments
        self._kernels: dict[tuple[tuple[int, torch.device, torch.dtype], ...], list[Kernel]] = {}

    def root_kernel(self, inputs: Inputs) -> Tensor:
        """√Σ_l k_l, (n,) in float64."""
        rows = [as_rows(level) for level in levels(self.model, self.layers, inputs)]
        roots = [kernel.root(each) for kernel, each in zip(self._kernels_for(rows), rows, strict=True)]
        if len(roots) == 1:
            return roots[0]
        every = torch.stack(roots)
        largest = every.detach().amax(0).clamp_min(1e-100)  # in units of it no square overflows
        return largest * (every / largest).square().sum(0).sqrt()

    def _kernels_for(self, rows: list[Tensor]) -> list[Kernel]:
        """The kernel of each level, where and in the precision that its rows are."""
        places = tuple((each.shape[1], each.device, prediction_dtype(each.dtype)) for each in rows)
        if (made := self._kernels.get(places)) is None:
            with torch.inference_mode(False):  # what is kept may be differentiated through later
                parts = zip(self.split(rows), places, strict=True)
                made = [Kernel.of(own, *place[1:]).refuse_traced() for own, place in parts]
            # Another thread may do this at the same time: nothing is read back from what is kept.
            kept = {key: value for key, value in self._kernels.items() if key[0][1] == places[0][1]}
            self._kernels = {**kept, places: made}
        return made

    def attached_to(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches with their √k(x): now, since a model may work in place on its inputs."""
        for batch in batches:
            yield replace(batch, root_kernel=self.root_kernel(batch.inputs))

    def split(self, found: list[Tensor]) -> list[InputMoments]:
        """The moments of each level."""
        return self.moments.split([math.prod(level.shape[1:]) for level in found])
