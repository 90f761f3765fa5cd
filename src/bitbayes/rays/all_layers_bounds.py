"""Bounds for a posterior over all layers, one for each ray.

In the ray's final region a logit is uᵀx + c, u the gradient in the D numbers of the input, and J = ∂u/∂θ, a
D × P matrix: δ·x has the slope uᵀx, whose derivative in the parameters is Jᵀx. So the limit is that of
|z| = |uᵀx|/√(κ xᵀGx) with G = JΣJᵀ, κ = π/8, where x ≠ 0. This is what the last layer has, with x for the
features, u for the mean of the weights, and G for their covariance. For k logits the same holds of every
combination of them.

**Tight**: |z| ≤ √(uᵀG⁻¹u/κ).
**Theorem**: λ_min(G) ≥ λ_min(Σ)·s_min(J)², so |z| ≤ ‖u‖/(s_min(J)·√(κ λ_min(Σ))).

The tight form has a second bound, which needs no J and holds for every input, near and far. The variance of a
logit is at least its variance given the parameters of all layers but the last. This is φ̃ᵀSφ̃, S the
covariance of the last layer's weights given all others. So the bound for the last layer, with this S, holds.

J is the same at all points of the region, so it is computed at one of them, by `torch.func`. The eigenvalues
of G and JJᵀ are lowered by the largest possible rounding error, so that the bound still holds.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jacrev

from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import Likelihood
from bitbayes.model import (
    DenseJacobian,
    LayerJacobian,
    as_logits,
    call,
    find_head,
    model_device,
)
from bitbayes.model.running.calls import recorded_inputs
from bitbayes.rays.all_layers import ExactNetwork, delta_inside, model_final_region
from bitbayes.rays.bounds import (
    TIGHT,
    BoundRequest,
    affordable,
    combinations,
    of_pairs,
    one_confidence,
    tight_bound,
)
from bitbayes.rays.final_regions import check_rays

# The largest J, over all layers and all logits, that is computed; in numbers.
MAX_JACOBIAN_NUMBERS = 2**28


@torch.no_grad()
def all_layers_bound(network: ExactNetwork, x: Tensor, request: BoundRequest) -> Tensor:
    """Return an upper bound on the limit of the confidence along each ray of x, (n,) or (n, k), in float64.

    The temperature divides each u, but not J, and the class bias vanishes in the limit. The theorem's bound
    is 1 if s_min(J) is 0 for any of the combinations of logits, and at x = 0, whose ray is a point. The tight
    form is the smallest of all known bounds.
    """
    request.check()
    check_rays(x)
    every = head_bound(network, x, request) if request.form == TIGHT else None
    k, size = network.differences.shape[0], x[0].numel()
    numbers = k * size * sum(layer.uncertain for layer in network.layers)
    if numbers > MAX_JACOBIAN_NUMBERS:
        if every is not None:
            return every.expand(len(x), *every.shape).clone()
        raise ArgumentError(
            f"the theorem's J, the derivatives of {size:,} slopes for each logit in each parameter, has "
            f"{numbers:,} entries, which is too many: use `limit`, which is exact"
        )
    model = network.model
    final = model_final_region(model, x)
    x = x.to(model_device(model))
    points = x.double() * delta_inside(final).reshape(-1, *[1] * (x.dim() - 1))
    regions = (Region.of(network, point, request.temperature) for point in points)
    found = torch.stack([_region_bound(each, request) for each in regions])
    still = ~x.reshape(len(x), -1).any(1).reshape(-1, *[1] * (found.dim() - 1))
    found = found.masked_fill(still, 1 if request.likelihood.classifies else torch.inf)
    return found if every is None else torch.minimum(found, every)


def head_bound(network: ExactNetwork, x: Tensor, request: BoundRequest) -> Tensor | None:
    """Return the bound by the last layer given all others, one number for all inputs, or None.

    It is None if the posterior does not cover all weights (and the bias) of the last layer, if there is a
    class bias and the last layer has none, if the last layer consists of several, if the network calls it
    more than once, or if there are too many combinations of logits.
    """
    model, few = network.model, x[:2].to(next(network.model.parameters()))
    head = find_head(model, few)
    if head.parts or (request.class_bias is not None and not head.bias):
        return None
    with recorded_inputs(model, [head.name]) as calls:
        call(model, few)
    layer = next((each for each in network.layers if each.name == head.name), None)
    whole = layer is not None and layer.kind == "matrix" and layer.uncertain == head.outputs * head.width
    if not whole or len(calls[head.name]) > 1 or not affordable(head.outputs, head.width, request.method):
        return None
    assert layer is not None
    gaussian, tau = network.gaussian.given_others(layer, network.prior)
    weights = request.mean_weights(model, head)
    whiten = partial(gaussian.to(weights.device).whiten, tau=tau)
    return tight_bound(weights, whiten, request.likelihood, request.method)


class Region(NamedTuple):
    """u (k, D) and J, {layer: (k, D, P)}, of all logits in the final region of a ray."""

    network: ExactNetwork
    slopes: Tensor
    jacobians: dict[str, Tensor]

    @classmethod
    def of(cls, network: ExactNetwork, point: Tensor, temperature: float | Tensor) -> Region:
        """Return the region that contains a point."""
        model, jacobians = network.model, {}
        for layer in network.layers:
            own = {name: model.get_parameter(name).detach() for name in layer.names}
            derivatives = jacrev(lambda parameters: _slopes(model, parameters, point))(own)
            flat = layer.join(each.flatten(0, 1) for each in derivatives.values())
            jacobians[layer.name] = flat.reshape(-1, point.numel(), flat.shape[1])
        return cls(network, _slopes(model, {}, point) / temperature, jacobians)

    def whiten(self, sets: Tensor, vectors: Tensor) -> Tensor:
        """Whiten by G, summed over a set's combinations: see `bounds.Whiten`. Infinite if G is singular."""
        return torch.stack(
            [_whiten(self._covariance(*each), own) for each, own in zip(sets, vectors, strict=True)]
        )

    def smallest_singular(self, each: Tensor) -> Tensor:
        """Return s_min(J)² for a combination (k,) of the logits."""
        parts = (torch.tensordot(each, jacobian, 1) for jacobian in self.jacobians.values())
        return _lowered(torch.linalg.eigvalsh(sum(part @ part.T for part in parts)))[0].clamp_min(0)

    def _covariance(self, *each: Tensor) -> Tensor:
        """Return the sum of JΣJᵀ over some combinations, (D, D)."""
        total = torch.zeros((), dtype=self.slopes.dtype, device=self.slopes.device)
        for one in each:
            along: dict[str, LayerJacobian] = {
                name: DenseJacobian(torch.tensordot(one, jacobian, 1)[None])
                for name, jacobian in self.jacobians.items()
            }
            total = total + self.network.covariance(along)[0]
        return total


def _region_bound(region: Region, request: BoundRequest) -> Tensor:
    """Return the bound for a region's ray, (). Both forms are rounded: the tight one is their minimum."""
    likelihood, method = request.likelihood, request.method
    theorem = _theorem_bound(region, likelihood, method)
    if request.form != TIGHT:
        return theorem
    # Where G is singular it is infinite, or NaN from a difference of such.
    return torch.fmin(tight_bound(region.slopes, region.whiten, likelihood, method), theorem)


def _theorem_bound(region: Region, likelihood: Likelihood, method: str) -> Tensor:
    k = len(region.slopes)
    each = combinations(k, likelihood, method).to(region.slopes)
    values = torch.stack([region.smallest_singular(one) for one in each])
    if likelihood.one_label and not bool(values.all()):
        return torch.ones_like(values[0])
    if method == "meanfield":
        # The variance of "meanfield" is 2/(k − 1) times the sum of the variances of all centred logits.
        values = (values.sum() * (2 / (k - 1))).expand_as(values)
    largest = region.network.gaussian.largest_precision(region.network.prior)  # 1/λ_min(Σ)
    ratios = (each @ region.slopes).norm(dim=1) * (largest / values).sqrt()
    ratios = torch.where(values > 0, ratios, torch.inf)
    ratios = of_pairs(ratios[None], k)[0] if method == "pairwise" else ratios
    return one_confidence(ratios, likelihood, method)


def _whiten(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Return g (v, D) in coordinates whose squared norm is gᵀG⁻¹g; infinite if G (D, D) is singular."""
    values, basis = torch.linalg.eigh(matrix)
    values = _lowered(values)
    return torch.where(values > 0, vectors @ basis * values.clamp_min(0).rsqrt(), torch.inf)


def _lowered(values: Tensor) -> Tensor:
    """Return ascending eigenvalues (D,) of a sum of squares, minus the largest possible rounding error."""
    return values - 2 * len(values) * torch.finfo(values.dtype).eps * values[-1]


def _slopes(model: nn.Module, parameters: dict[str, Tensor], point: Tensor) -> Tensor:
    """Return ∂f/∂x at the point, (k, D)."""
    gradients: Tensor = jacrev(lambda x: as_logits(call(model, x[None], parameters), 1)[0])(point)
    return gradients.flatten(1)
