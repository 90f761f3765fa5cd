"""The residual at hidden layers too: the kernels at the inputs of some layers, added to that at the input.

k(x) = k₀(x) + Σ_l k_l(h_l(x)), h_l the input of layer l, each kernel with the means and deviations of its own
level, and one variance σ² for all. Along a ray h_l is affine from alpha on, as everything in the network is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, ModelError
from bitbayes.model import Inputs, call, eval_mode, model_device
from bitbayes.model.hooks import recorded_inputs
from bitbayes.residual.kernel import InputMoments, as_rows


class Levels(NamedTuple):
    """The input of a model, and those of some of its layers by name."""

    model: nn.Module
    names: tuple[str, ...]

    def joined(self, inputs: Inputs) -> Tensor:
        """All levels side by side, (n, D) in float64: what moments are taken of."""
        return torch.cat([as_rows(level) for level in self.at(inputs)], dim=1)

    def at(self, inputs: Inputs) -> list[Any]:
        """Each level at the inputs, as they pass the model in eval mode."""
        as_rows(inputs)  # raises on inputs that have no levels
        assert isinstance(inputs, Tensor)
        inputs = inputs.to(model_device(self.model))
        # Copies: a layer may work in place.
        with recorded_inputs(self.model, self.names, torch.clone) as seen, eval_mode(self.model):
            call(self.model, inputs)
        if missing := [name for name in self.names if not seen[name]]:
            raise ModelError(f"residual={self.names!r}: the model does not call {missing}")
        return [inputs, *(calls[-1] for calls in seen.values())]


@dataclass(frozen=True)
class LevelMoments(InputMoments):
    """The moments of all levels side by side, and where the levels are to be found."""

    levels: Levels

    @classmethod
    def bind(cls, moments: InputMoments, levels: Levels) -> LevelMoments:
        return cls(moments.count, moments.mean, moments.squares, levels)

    def root_kernel(self, x: Inputs) -> Tensor:
        """√Σ k_l, (n,)."""
        levels = self.levels.at(x)
        roots = [own.root_kernel(level) for own, level in zip(self._split(levels), levels, strict=True)]
        every = torch.stack(roots)
        largest = every.detach().amax(0).clamp_min(1e-100)  # in its units no square overflows
        return largest * (every / largest).square().sum(0).sqrt()

    @torch.no_grad()
    def along(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For δ·x, from alpha on."""
        from bitbayes.rays.ray_tensor import RayTensor

        rays = self.levels.at(RayTensor.along(x.to(model_device(self.levels.model))))
        slopes, offsets, weights = [], [], []
        for own, ray in zip(self._split(rays), rays, strict=True):
            slope, intercept = (
                (ray.slope, ray.intercept) if isinstance(ray, RayTensor) else (torch.zeros_like(ray), ray)
            )
            slope, shift = own.standardised(slope)
            slopes.append(slope)
            offsets.append(own.standardised(intercept)[0] + shift)
            weights.append(torch.full_like(shift, 1 / len(shift)))
        return torch.cat(slopes, dim=1), torch.cat(offsets, dim=1), torch.cat(weights)

    def _split(self, levels: list[Any]) -> list[InputMoments]:
        """The moments of each level."""
        sizes = [math.prod(level.shape[1:]) for level in levels]
        parts = (torch.split(each, sizes) for each in (self.mean, self.squares))
        return [InputMoments(self.count, *each) for each in zip(*parts, strict=True)]


def checked_levels(model: nn.Module, residual: object) -> bool | tuple[str, ...]:
    """The option `residual`: True, False, or the names of layers."""
    if isinstance(residual, bool):
        return residual
    known = [name for name, _ in model.named_modules() if name]
    names = tuple(residual) if isinstance(residual, (tuple, list)) else ()
    if not names or any(name not in known for name in names) or len(set(names)) < len(names):
        raise ArgumentError(
            f"residual={residual!r}: expected True, False, or a tuple of names of layers, each once: {known}"
        )
    return names
