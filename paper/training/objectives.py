"""The losses of training: plain, outlier exposure, and ACET. The last two punish confidence on outliers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn import functional

from bitbayes.outliers import Ascent, ascend, start_ascent
from paper.training.compiled import CompiledOnFirstCall
from paper.training.eval_mode import eval_mode

# loss(network, x, y, outliers) returns a scalar. That of ACET takes the radius of its attack as well.
Loss = Callable[..., Tensor]


def plain(network: nn.Module, x: Tensor, y: Tensor, outliers: Tensor) -> Tensor:
    """Mean −log p(y | x). The outliers are not used."""
    return label_loss(network(x), y)


def outlier_exposure(
    network: nn.Module, x: Tensor, y: Tensor, outliers: Tensor, *, strength: float
) -> Tensor:
    """plain − strength × the mean of log pᵢ over all outliers and classes i."""
    logits, outside = network(torch.cat([x, outliers])).split([len(x), len(outliers)])
    return label_loss(logits, y) - strength * log_probabilities(outside).mean()


def acet(
    network: nn.Module, x: Tensor, y: Tensor, outliers: Tensor, epsilon: Tensor, *, strength: float
) -> Tensor:
    """(plain + strength × mean maxᵢ log pᵢ on attacked outliers) / (1 + strength).

    The attack is `confident_neighbours`. It starts at `outliers`, which are uniform noise, and changes no
    entry by more than `epsilon`, a tensor ().
    """
    attacked = confident_neighbours(network, outliers, epsilon=epsilon)
    logits, outside = network(torch.cat([x, attacked])).split([len(x), len(outliers)])
    overconfidence = log_probabilities(outside).amax(1).mean()
    return (label_loss(logits, y) + strength * overconfidence) / (1 + strength)


@dataclass(frozen=True)
class Objective:
    """A loss, the weight of outliers in it, and the kind of outliers that it needs."""

    loss: Loss
    strength: float = 0.0
    epsilon: float | None = None  # the radius of its attack, if it has one
    needs_noise: bool = False  # uniform noise
    needs_outliers: bool = False  # images that the user gives

    @classmethod
    def weighted(cls, loss: Loss, strength: float, **options: Any) -> "Objective":
        return cls(partial(loss, strength=strength), strength, **options)

    def radius(self, epochs: float, ramp: float) -> tuple[float, ...]:
        """Return the radius of the attack, if there is one, after so many epochs. It grows for `ramp` epochs.

        >>> OBJECTIVES["acet"].radius(1.0, ramp=3), OBJECTIVES["acet"].radius(5.0, ramp=3)
        ((0.1,), (0.3,))
        """
        if self.epsilon is None:
            return ()
        return (round(self.epsilon * min(1.0, epochs / ramp if ramp else 1.0), 9),)


OBJECTIVES = {
    "plain": Objective(plain),
    "oe": Objective.weighted(outlier_exposure, 0.5, needs_outliers=True),
    # Outliers have their full weight from the first step. In the code behind the paper's network they have a
    # thousandth of it in the first three epochs. After these, the attack here reached log p = 0, where the
    # loss has no gradient.
    "acet": Objective.weighted(acet, 1.0, epsilon=0.3, needs_noise=True),
}


def label_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean of −log p(y) in float32, for k logits (n, k) or for one logit (n, 1).

    >>> label_loss(torch.zeros(2, 1), torch.tensor([0, 1]))
    tensor(0.6931)
    """
    if logits.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0].float(), y.float())
    return functional.cross_entropy(logits.float(), y)


def log_probabilities(logits: Tensor) -> Tensor:
    """Return log p (n, k) in float32, or (n, 2) for one logit (n, 1)."""
    if logits.shape[1] == 1:
        logits = torch.cat([-logits, torch.zeros_like(logits)], dim=1)
    return logits.float().log_softmax(1)


def confident_neighbours(
    network: nn.Module, x: Tensor, *, epsilon: float | Tensor = 0.3, steps: int = 40, step_size: float = 0.1
) -> Tensor:
    """Return points near x at which the network is as confident as ACET's attack can make it.

    The attack is gradient ascent on maxᵢ log pᵢ within ‖· − x‖∞ ≤ epsilon and [0, 1]. It follows the signs of
    the gradient and adapts the step size of each point: see `bitbayes.outliers.ascend`.

    Args:
        network: gives logits (n, k), or (n, 1) for two classes.
        x: (n, ...), in [0, 1].
        epsilon: the largest change of an entry of x.
        steps: the number of steps.
        step_size: the size of the first step.

    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))
    >>> _ = network[1].weight.data.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.0]]))
    >>> confident_neighbours(network, torch.tensor([[[[0.5, 0.4]]]]), epsilon=0.3)
    tensor([[[[0.8000, 0.1000]]]])
    """
    # The first evaluation, of x itself, counts as a success and lengthens the step by 1.1.
    state = start_ascent(x.detach(), epsilon, step_size / 1.1, bounds=(0.0, 1.0))
    weights = _cast_weights(network, x.device.type)
    attack_step = _compiled_attack_step if x.is_cuda else _attack_step
    with eval_mode(network):
        for _ in range(steps + 1):
            state = attack_step(network, weights, state)
    return state.best


def _attack_step(network: nn.Module, weights: dict[str, Tensor], state: Ascent) -> Ascent:
    """Evaluate the current points and choose the next ones. A pure function of tensors, to be compiled."""

    def confidence(points: Tensor) -> tuple[Tensor, Tensor]:
        score = log_probabilities(functional_call(network, weights, (points,))).amax(1)  # (n,)
        return score.sum(), score

    gradient, score = grad(confidence, has_aux=True)(state.current)
    return ascend(state, gradient, score, adaptive=True)


# Each training step takes 41 steps of the attack. Compiled, they take two thirds of the time.
_compiled_attack_step = CompiledOnFirstCall(_attack_step)


def _cast_weights(network: nn.Module, device: str) -> dict[str, Tensor]:
    """Return the weights without gradients. Under autocast, cast them once here and not in every pass.

    Vectors stay as they are, since autocast never casts those of a batch norm.
    """
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    if not torch.is_autocast_enabled(device):
        return weights
    dtype = torch.get_autocast_dtype(device)
    return {name: weight.to(dtype) if weight.dim() > 1 else weight for name, weight in weights.items()}
