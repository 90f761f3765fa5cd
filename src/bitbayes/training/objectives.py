"""The losses: plain, outlier exposure, and ACET. Each says how confident the network may be on outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bitbayes.network.mode import evaluating

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
    """A loss, its weight on outliers in the first three epochs and after, and what its outliers are."""

    loss: Loss
    strength: float = 0.0
    early_strength: float | None = None
    noise: bool = False  # uniform noise, rather than images that the user gives
    exposed: bool = False

    def strength_at(self, epoch: int) -> float:
        early = epoch < 3 and self.early_strength is not None
        return self.early_strength if early and self.early_strength is not None else self.strength


OBJECTIVES = {
    "plain": Objective(plain),
    "oe": Objective(outlier_exposure, strength=0.5, exposed=True),
    # Almost no weight at first: a network that knows nothing yet has nothing to be unsure about.
    "acet": Objective(acet, strength=1.0, early_strength=0.001, noise=True),
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
    """
    low, high = (x - epsilon).clamp(min=0), (x + epsilon).clamp(max=1)
    rest = [1] * (x.dim() - 1)
    best, direction = x, torch.zeros_like(x)
    best_score = torch.full_like(x.flatten(1)[:, 0], -torch.inf)
    step = torch.full_like(best_score, step_size / 1.1)
    current = x
    with evaluating(network), torch.enable_grad():
        for _ in range(steps + 1):
            current = current.detach().requires_grad_()
            score = log_probabilities(network(current)).amax(1)  # (n,)
            (gradient,) = torch.autograd.grad(score.sum(), current)
            score, better = score.detach(), score.detach() >= best_score
            best_score = torch.where(better, score, best_score)
            better = better.view(-1, *rest)
            best = torch.where(better, current.detach(), best)
            direction = torch.where(better, gradient.sign(), direction)
            step = torch.where(better.view(-1), 1.1 * step, step / 2)
            current = torch.clamp(best + step.view(-1, *rest) * direction, low, high)
    return best
