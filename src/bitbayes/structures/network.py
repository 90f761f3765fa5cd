"""The Gaussian over the parameters of all layers: independent blocks, each with its own structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bitbayes.model import DenseJacobian, Layer, LayerJacobian, LayerRecord, MatrixJacobian
from bitbayes.prior import Prior
from bitbayes.structures.base import CURVATURES, Curvature, WeightGaussian
from bitbayes.structures.diag import DiagCurvature
from bitbayes.structures.full import FullCurvature, FullGaussian
from bitbayes.structures.grams import gram
from bitbayes.structures.kron import KronCurvature

# The name of the block that holds the parameters of all layers ("full"); other blocks have their layer's.
WHOLE_NETWORK = "*"


def layer_curvatures(
    structure: str, records: list[LayerRecord], weights: Tensor | None = None
) -> dict[str, Curvature]:
    """The curvature of each block at some points, from the derivatives of Vᵀf in every layer.

    `weights`: how many times each point counts, (n,); None is once.
    """
    kind = CURVATURES[structure]

    def sums(own: type[Curvature], jacobian: LayerJacobian) -> Curvature:
        return own.of_jacobian(jacobian) if weights is None else own.of_weighted_jacobian(jacobian, weights)

    if issubclass(kind, FullCurvature):
        whole = torch.cat([record.jacobian().dense() for record in records], dim=2)
        return {WHOLE_NETWORK: sums(kind, DenseJacobian(whole))}
    curvatures: dict[str, Curvature] = {}
    for record in records:
        jacobian = record.jacobian()
        # Norm layers, and those of kind "other", have no Kronecker factors.
        diagonal = issubclass(kind, KronCurvature) and not isinstance(jacobian, MatrixJacobian)
        own = DiagCurvature if diagonal else kind
        curvatures[record.layer.name] = sums(own, jacobian)
    return curvatures


@dataclass(frozen=True)
class NetworkGaussian:
    """`blocks`: the Gaussian over each layer's parameters by its name, or one over all of them."""

    layers: tuple[Layer, ...]
    blocks: dict[str, WeightGaussian]

    def gram(self, jacobian_of: Callable[[Layer], LayerJacobian], priors: list[Prior]) -> Tensor:
        """J Σ Jᵀ for each prior, (q, n, c, c), from the derivatives (n, c, …) in each layer's parameters."""
        total: Tensor | None = None
        for name, layers, block in self._blocks():
            jacobians = [jacobian_of(layer) for layer in layers]
            jacobian = jacobians[0]
            if name == WHOLE_NETWORK:
                jacobian = DenseJacobian(torch.cat([each.dense() for each in jacobians], dim=2))
            weights = [block.precisions(prior.precision(name, block.dtype)).reciprocal() for prior in priors]
            more = gram(block.rotate(jacobian), weights)
            total = more if total is None else total + more
        assert total is not None
        return total

    def draw(self, n: int, prior: Prior, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Parameters minus their mean by name, each (n, …)."""
        draws = {}
        for name, layers, block in self._blocks():
            draws.update(_split(layers, block.draw(n, prior.precision(name, block.dtype), generator)))
        return draws

    def noise(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Standard normal noise for one draw, by block, in float32 on the CPU: the same for any prior."""
        shapes = {name: block.precisions(1.0).shape for name, _, block in self._blocks()}
        return {
            name: torch.randn(1, *shape, generator=generator, dtype=torch.float32)
            for name, shape in shapes.items()
        }

    def of_noise(self, noise: dict[str, Tensor], prior: Prior) -> dict[str, Tensor]:
        """Parameters minus their mean by name, each (n, …), from such noise, (n, …) for each block."""
        draws = {}
        for name, layers, block in self._blocks():
            draws.update(_split(layers, block.of_noise(noise[name], prior.precision(name, block.dtype))))
        return draws

    def given_others(self, layer: Layer, prior: Prior) -> tuple[WeightGaussian, float]:
        """The Gaussian over a linear layer's weights (k, D) given those of all others, and its τ.

        Its precision is the layer's own part of H + τI.
        """
        name = WHOLE_NETWORK if WHOLE_NETWORK in self.blocks else layer.name
        block = self.blocks[name]
        if name == WHOLE_NETWORK:
            before = self.layers[: self.layers.index(layer)]
            start = sum(each.uncertain for each in before)
            assert isinstance(block, FullGaussian)
            block = block.part(slice(start, start + layer.uncertain))
        return block.as_head(layer.shapes[0][0]), prior.precision(name, block.dtype)

    def largest_precision(self, prior: Prior) -> Tensor:
        """λ_max(H + τI) = 1/λ_min(Σ), over the parameters of all layers."""
        blocks = ((block, prior.precision(name, block.dtype)) for name, _, block in self._blocks())
        return torch.stack([block.largest_precision(tau) for block, tau in blocks]).amax()

    def _blocks(self) -> Iterator[tuple[str, tuple[Layer, ...], WeightGaussian]]:
        """Each block's name, the layers in it, and its Gaussian."""
        if WHOLE_NETWORK in self.blocks:
            yield WHOLE_NETWORK, self.layers, self.blocks[WHOLE_NETWORK]
            return
        for layer in self.layers:
            yield layer.name, (layer,), self.blocks[layer.name]


def _split(layers: tuple[Layer, ...], draws: Tensor) -> dict[str, Tensor]:
    """Draws (n, …) of a block as the parameters of its layers by name, each (n, …)."""
    parts = torch.split(draws.flatten(1), [layer.uncertain for layer in layers], dim=1)
    found: dict[str, Tensor] = {}
    for layer, part in zip(layers, parts, strict=True):
        found.update(layer.split(part))
    return found
