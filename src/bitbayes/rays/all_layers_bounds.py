"""The theorem's bound for a posterior over all layers, one for each ray.

In the ray's final region a logit is uᵀx + c, u the gradient in the D numbers of the input, and J = ∂u/∂θ, a
D × P matrix: δ·x has the slope uᵀx, whose derivative in the parameters is Jᵀx. With |uᵀx| ≤ ‖u‖‖x‖ and
(Jᵀx)ᵀΣ(Jᵀx) ≥ λ_min(Σ)·s_min(J)²·‖x‖² follows |z| ≤ ‖u‖/(s_min(J)·√(κ λ_min(Σ))), κ = π/8, where x ≠ 0. For k
logits the same holds of every combination of them, with its own u and J.

J is the same at all points of the region, so it is taken at one of them, by `torch.func`. Its singular values
are roots of the eigenvalues of JJᵀ, less what rounding may have added to these: a bound must not profit.
"""

import torch
from torch import Tensor, nn
from torch.func import jacrev

from bitbayes.errors import ArgumentError
from bitbayes.model import Layer, as_logits, call, model_device
from bitbayes.rays.all_layers import ExactNetwork, delta_inside, model_final_region
from bitbayes.rays.bounds import METHODS_WITH_BOUND, largest_confidence
from bitbayes.rays.limits import require_closed_form

# The largest part of J, of one layer and all logits, that is formed; in numbers.
MAX_JACOBIAN_NUMBERS = 2**28


@torch.no_grad()
def all_layers_bound(network: ExactNetwork, x: Tensor, temperature: float, method: str) -> Tensor:
    """A confidence that the limit along no ray of x exceeds, (n,) in float64.

    1 where s_min(J) is 0 for any of the combinations of logits, and at x = 0, whose ray is a point. The
    temperature divides each u, but not J.
    """
    require_closed_form(method, METHODS_WITH_BOUND, "bound")
    model, layers = network.model, network.layers
    region = model_final_region(model, x)
    x = x.to(model_device(model))
    k, size = region.logits.slope.shape[1], x[0].numel()
    numbers = k * size * max(layer.size for layer in layers)
    if numbers > MAX_JACOBIAN_NUMBERS:
        raise ArgumentError(
            f"the theorem's J, the derivatives of {size:,} slopes for each logit in each parameter, has "
            f"{numbers:,} entries in one layer, which is too many: use `limit`, which is exact"
        )
    points = x.double() * delta_inside(region).reshape(-1, *[1] * (x.dim() - 1))
    combinations = _combinations(k, method).to(points)
    found = [region_norms(model, layers, point, combinations) for point in points]
    gaps, values = (torch.stack(each) for each in zip(*found, strict=True))  # (n, m)
    if method == "meanfield":
        # Its variance is 2/(k − 1) times the sum of those of all logits less their mean.
        values = (values.sum(1, keepdim=True) * (2 / (k - 1))).expand_as(values)
    singular = (values == 0).any(1) | (x.flatten(1).abs().amax(1) == 0)
    largest = network.gaussian.largest_precision(network.prior)  # 1/λ_min(Σ)
    variances = torch.where(values > 0, values / largest, 1)
    if method == "pairwise":
        gaps, variances = _of_pairs(gaps, k, 0), _of_pairs(variances, k, 1)
    return largest_confidence(gaps / temperature, variances, 0, method).masked_fill(singular, 1)


def region_norms(
    model: nn.Module, layers: tuple[Layer, ...], point: Tensor, combinations: Tensor
) -> tuple[Tensor, Tensor]:
    """‖u‖ and s_min(J)² of combinations (m, k) of the logits, (m,) each, in the region of one point."""
    gram = torch.zeros((), dtype=point.dtype, device=point.device)
    for layer in layers:
        own = {name: model.get_parameter(name).detach() for name in layer.names}
        derivatives = jacrev(lambda parameters: _slopes(model, parameters, point))(own)
        parts = [each.reshape(*each.shape[:2], -1) for each in derivatives.values()]
        jacobian = torch.cat(parts, dim=2)  # (k, D, P)
        along = (torch.tensordot(each, jacobian, 1) for each in combinations)  # (D, P)
        gram = gram + torch.stack([each @ each.T for each in along])  # (m, D, D)
    values = torch.linalg.eigvalsh(gram)  # (m, D), ascending
    rounding = 2 * point.numel() * torch.finfo(values.dtype).eps * values[:, -1]
    norms = (combinations @ _slopes(model, {}, point)).norm(dim=1)
    return norms, (values[:, 0] - rounding).clamp_min(0)


def _slopes(model: nn.Module, parameters: dict[str, Tensor], point: Tensor) -> Tensor:
    """∂f/∂x at the point, (k, D)."""
    gradients: Tensor = jacrev(lambda x: as_logits(call(model, x[None], parameters), 1)[0])(point)
    return gradients.flatten(1)


def _combinations(k: int, method: str) -> Tensor:
    """Those of k logits that a predictive looks at, (m, k): each once, whatever its sign."""
    one = torch.eye(k, dtype=torch.float64)
    if method == "pairwise":
        first, second = torch.triu_indices(k, k, 1)
        return one[first] - one[second]
    return one if k == 1 else one - 1 / k


def _of_pairs(values: Tensor, k: int, own: float) -> Tensor:
    """(n, m) → (n, k, k), symmetric, with `own` on the diagonal."""
    first, second = torch.triu_indices(k, k, 1)
    square = torch.full((len(values), k, k), own, dtype=values.dtype, device=values.device)
    square[:, first, second] = square[:, second, first] = values
    return square
