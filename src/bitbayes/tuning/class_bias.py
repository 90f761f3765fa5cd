"""One bias for each class, added to the mean logits: what class weights in the training have shifted."""

import math

import torch
from torch import Tensor

from bitbayes.processes import current_processes
from bitbayes.settings import Settings
from bitbayes.tuning.costs import Costs

# The weak prior on each bias, in log odds at the median point, is normal with this deviation.
DEVIATION = 0.25
# Of L-BFGS.
MAX_STEPS, SMALLEST_CHANGE = 50, 1e-7


@torch.inference_mode(False)  # in which nothing can be differentiated
def best_class_bias(costs: Costs, outputs: int, settings: Settings, log_neutral: float) -> tuple[float, ...]:
    """The class bias b of least cost at the temperature T, with all other settings as they are.

    The cost is the mean NLL and a weak prior, divided by the number of points n: Σᵢ ½(βᵢ/s)²/n with s = ¼ and
    β = b·T₀/T. T₀ makes up for the shrinkage of the median point, as in `BestTemperatures`. So β is what b
    adds to its log odds, whatever the size of the network's logits. With a softmax Σ βᵢ = 0 follows: a common
    shift changes no prediction, and costs.

    Args:
        costs: on points with labels.
        outputs: k, the number of logits.
        settings: their class bias is where the search begins.
        log_neutral: log T₀.
    """
    unit = settings.temperature * math.exp(-log_neutral)  # T/T₀
    with torch.no_grad():
        losses = [costs.losses_by_bias(points, settings) for points in costs.groups]
    start = [0.0] * outputs if settings.class_bias is None else settings.class_bias
    beta = (torch.tensor(start, dtype=torch.float64) / unit).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [beta],
        max_iter=MAX_STEPS,
        tolerance_grad=SMALLEST_CHANGE,
        tolerance_change=SMALLEST_CHANGE**2,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        # The cost and its gradient, summed over all points of all processes.
        total = torch.zeros(1 + len(beta), dtype=torch.float64)
        for loss in losses:
            value = loss(beta * unit)
            (gradient,) = torch.autograd.grad(value, beta)
            total += torch.cat([value.detach().cpu()[None], gradient])
        current_processes().add_(total)
        beta.grad = (total[1:] + beta.detach() / DEVIATION**2) / costs.count
        prior: Tensor = beta.detach().square().sum() / (2 * DEVIATION**2)
        return (total[0] + prior) / costs.count

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    found: list[float] = (beta.detach() * unit).tolist()
    return tuple(found)
