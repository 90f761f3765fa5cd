"""The losses: plain, outlier exposure, and ACET. Each says how confident the network may be on outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from bitbayes.model.eval_mode import eval_mode
from bitbayes.reproduction.training.fused import Fused

Loss = Callable[[nn.Module, Tensor, Tensor, Tensor, float], Tensor]


def plain(network: nn.Module, x: Tensor, y: Tensor, outliers: Tensor, strength: float) -> Tensor:
    """Mean −log p(y | x): cross-entropy, or its binary form for a network with one logit (n, 1)."""
    return label_loss(network(x), y)


def outlier_exposure(network: nn.Module, x: Tensor, y: Tensor, outliers: Tensor, strength: float) -> Tensor:
    """Plain + strength × the cross-entropy from the uniform vector to p(· | outliers), ½ by default."""
    logits, outside = network(torch.cat([x, outliers])).split([len(x), len(outliers)])
    return label_loss(logits, y) - strength * log_probabilities(outside).mean()


def acet(network: nn.Module, x: Tensor, y: Tensor, outliers: Tensor, strength: float) -> Tensor:
    """(plain + strength × mean maxᵢ log pᵢ on outliers made as confident as an attack can) / (1 + strength).

    The attack is `confident_neighbours`; `outliers` is where it begins: uniform noise.
    """
    attacked = confident_neighbours(network, outliers)
    logits, outside = network(torch.cat([x, attacked])).split([len(x), len(outliers)])
    overconfidence = log_probabilities(outside).amax(1).mean()
    return (label_loss(logits, y) + strength * overconfidence) / (1 + strength)


@dataclass(frozen=True)
class Objective:
    """A loss, its weight on outliers, and what its outliers are."""

    loss: Loss
    strength: float = 0.0
    noise: bool = False  # uniform noise, rather than images that the user gives
    exposed: bool = False


OBJECTIVES = {
    "plain": Objective(plain),
    "oe": Objective(outlier_exposure, strength=0.5, exposed=True),
    # All of its weight from the first step. The code behind the paper's network has a thousandth of it in the
    # first three epochs; by then the attack reaches log p = 0, where the loss has no gradient ever after.
    "acet": Objective(acet, strength=1.0, noise=True),
}


def label_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean −log p(y), for k logits (n, k) or one (n, 1), in float32.

    >>> label_loss(torch.zeros(2, 1), torch.tensor([0, 1]))
    tensor(0.6931)
    """
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0].float(), y.float())
    return functional.cross_entropy(logits.float(), y)


def log_probabilities(logits: Tensor) -> Tensor:
    """log p (n, k), or (n, 2) for one logit, in float32."""
    if logits.shape[1] == 1:
        logits = torch.cat([-logits, torch.zeros_like(logits)], dim=1)
    return logits.float().log_softmax(1)


def confident_neighbours(
    network: nn.Module, x: Tensor, *, epsilon: float = 0.3, steps: int = 40, step_size: float = 0.1
) -> Tensor:
    """Points within ‖· − x‖∞ ≤ epsilon and [0, 1] at which the network is as confident as can be found.

    Gradient ascent on maxᵢ log pᵢ with signs, each point with its own step: 1.1 times as long after a step
    that helped, half as long and from the best point so far after one that did not.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    >>> _ = network[1].weight.data.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    >>> confident_neighbours(network, torch.tensor([[[[0.5, 0.4]]]]), epsilon=0.3)
    tensor([[[[0.8000, 0.1000]]]])
    """
    x = x.detach()
    low, high = (x - epsilon).clamp(min=0), (x + epsilon).clamp(max=1)
    worst = torch.full_like(x.flatten(1)[:, 0], -torch.inf)
    state = Ascent(x, x, torch.zeros_like(x), worst, torch.full_like(worst, step_size / 1.1))
    weights = _cast_once(network, x.device.type)
    ascend = _fused_ascend if x.is_cuda else _ascend
    with eval_mode(network):
        for _ in range(steps + 1):
            state = ascend(network, weights, low, high, state)
    return state.best


class Ascent(NamedTuple):
    """Where the attack stands: points (n, ...), and of each point a score and a step (n,)."""

    current: Tensor
    best: Tensor
    direction: Tensor  # the gradient's signs at the best point
    best_score: Tensor
    step: Tensor


def _ascend(
    network: nn.Module, weights: dict[str, Tensor], low: Tensor, high: Tensor, state: Ascent
) -> Ascent:
    """Look at the current points, and choose the next ones."""

    def confidence(points: Tensor) -> tuple[Tensor, Tensor]:
        score = log_probabilities(functional_call(network, weights, (points,))).amax(1)  # (n,)
        return score.sum(), score

    gradient, score = grad(confidence, has_aux=True)(state.current)
    better = score >= state.best_score
    best_score = torch.where(better, score, state.best_score)
    step = torch.where(better, 1.1 * state.step, state.step / 2)
    rest = [1] * (low.dim() - 1)
    better = better.view(-1, *rest)
    best = torch.where(better, state.current, state.best)
    direction = torch.where(better, gradient.sign(), state.direction)
    current = torch.clamp(best + step.view(-1, *rest) * direction, low, high)
    return Ascent(current, best, direction, best_score, step)


# 41 passes to each step of the training: compiled, they take two thirds of the time.
_fused_ascend = Fused(_ascend)


def _cast_once(network: nn.Module, device: str) -> dict[str, Tensor]:
    """The weights without their gradients; under autocast those of layers are cast here, not in every pass.

    Vectors stay: a batch norm's are never cast.
    """
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    if not torch.is_autocast_enabled(device):
        return weights
    dtype = torch.get_autocast_dtype(device)
    return {name: weight.to(dtype) if weight.dim() > 1 else weight for name, weight in weights.items()}
