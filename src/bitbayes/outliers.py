"""Inputs that a classifier should not be sure about: noise, far-away points, attacks and rotations."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (the name torch's own documentation uses)
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.model.running.private_copy import private_copy

__all__ = ["far_away", "pgd_confident", "rotate", "uniform_noise"]


def uniform_noise(like: Tensor, n: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
    """Return uniform noise over the range of some data, [min(like), max(like)].

    All entries are independent. The result is on the device and in the dtype of `like`.

    Args:
        like: the data, (m, ...). The minimum and the maximum are over all entries.
        n: the number of items, m by default. The result is (n, ...).
        generator: of the random numbers. A generator on the CPU gives the same noise on all devices.

    >>> images = torch.linspace(0, 1, 2 * 28 * 28).view(2, 1, 28, 28)
    >>> noise = uniform_noise(images, 5, generator=torch.Generator().manual_seed(0))
    >>> noise.shape, bool(noise.min() >= 0), bool(noise.max() <= 1)
    (torch.Size([5, 1, 28, 28]), True, True)
    """
    if not like.is_floating_point():
        raise DataError(
            f"uniform noise needs floating-point data, but got {like.dtype}: numbers between two token or "
            "category indices mean nothing. Convert pixels with .float(); otherwise give your own outliers"
        )
    if like.dim() == 0 or like.numel() == 0:
        raise DataError(f"the data has shape {tuple(like.shape)}: give at least one item, (m, ...)")
    if n is not None and n < 1:
        raise ArgumentError(f"n={n}: give a number of items, at least 1, or None for as many as the data has")
    low, high = like.detach().aminmax()
    if not (low.isfinite() and high.isfinite()):
        raise DataError("the data holds NaN or infinity, so it has no range to draw from: remove those items")
    return noise_between(low, high, torch.Size([len(like) if n is None else n, *like.shape[1:]]), generator)


def noise_between(low: Tensor, high: Tensor, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
    """Return uniform noise on [low, high], on the device and in the dtype of `low` (). Raises if low = high.

    Args:
        low, high: the range.
        shape: of the noise.
        generator: of the random numbers. If it is on another device, they are drawn there.
    """
    if low == high:
        raise DataError(
            f"every entry of the data is {low.item():g}: noise over that range would be the data itself. "
            "Give data that varies, or outliers of your own"
        )
    where = low.device if generator is None else generator.device
    # In half precision there are few numbers between 0 and 1.
    dtype = torch.promote_types(low.dtype, torch.float32)
    u = torch.rand(shape, dtype=dtype, device=where, generator=generator).to(low.device)
    # Not low + (high − low) · u: the difference overflows for data that fills its dtype's range.
    return (low * (1 - u) + high * u).to(low.dtype).clamp(low, high)


def far_away(x: Tensor, delta: float) -> Tensor:
    """Return points far away on the rays from the origin through x: δ · x, in the shape of `x` (n, ...).

    Args:
        x: inputs (n, ...).
        delta: the factor δ.

    >>> far_away(torch.tensor([[1.0, -2.0]]), 100)
    tensor([[ 100., -200.]])
    """
    return delta * x


def pgd_confident(
    model: nn.Module,
    x: Tensor,
    *,
    epsilon: float = 0.3,
    steps: int = 40,
    step_size: float = 0.1,
    bounds: tuple[float, float] | None = (0.0, 1.0),
) -> Tensor:
    """Return inputs near x on which the model is as confident as projected gradient ascent can make it.

    From x₀ = x, repeat xₜ₊₁ = Π(xₜ + step_size · sign ∇ maxᵢ log pᵢ(xₜ)), where Π clips to ‖· − x‖∞ ≤ epsilon
    and to `bounds`. Each row keeps its best iterate. x itself is one of them, so no row ends less confident
    than it began.

    The model is used as in eval mode, and is not changed; neither is any parameter's gradient.

    Args:
        model: maps x to logits: (n, k), read by a softmax, or (n, 1) or (n,), read by a sigmoid.
        x: (n, ...), the inputs from which the ascent starts. The result has their shape.
        epsilon: the largest change of an entry of x.
        steps: the number of steps.
        step_size: the change of each entry in one step.
        bounds: the smallest and the largest value of an entry. x must lie within. None: no bounds.

    >>> line = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(line.weight)
    >>> pgd_confident(line, torch.tensor([[0.5, 0.5], [0.9, 0.1]]), epsilon=0.25)
    tensor([[0.7500, 0.7500],
            [1.0000, 0.3500]])
    """
    _check_attack(x, epsilon, steps, step_size, bounds)
    # The attack needs gradients, even if the caller is inside no_grad or inference_mode.
    model = private_copy(model)
    with torch.inference_mode(False), torch.enable_grad():
        state = start_ascent(x.detach().clone(), epsilon, step_size, bounds)
        for _ in range(steps + 1):
            current = state.current.detach().requires_grad_()
            score = _log_confidence(model(current))  # (n,)
            (gradient,) = torch.autograd.grad(score.sum(), current)
            state = ascend(state, gradient, score.detach())
    return state.best


class Ascent(NamedTuple):
    """The state of projected gradient ascent on a score of each row."""

    current: Tensor  # (n, ...)
    best: Tensor  # (n, ...): the points with the best score so far
    direction: Tensor  # (n, ...): the signs of the gradient in the last step
    best_score: Tensor  # (n, 1, ...)
    step_size: Tensor  # (n, 1, ...)
    low: Tensor  # (n, ...): the smallest allowed entries
    high: Tensor  # (n, ...): the largest


def start_ascent(
    x: Tensor, epsilon: float | Tensor, step_size: float, bounds: tuple[float, float] | None
) -> Ascent:
    """Return the state before the first evaluation, at x (n, ...). See `pgd_confident` for the arguments."""
    low, high = x - epsilon, x + epsilon
    if bounds is not None:
        low, high = low.clamp(min=bounds[0]), high.clamp(max=bounds[1])
    no_score = x.new_full((len(x), *[1] * (x.dim() - 1)), -math.inf)
    return Ascent(x, x, torch.zeros_like(x), no_score, torch.full_like(no_score, step_size), low, high)


def ascend(state: Ascent, gradient: Tensor, score: Tensor, *, adaptive: bool = False) -> Ascent:
    """Take one step of projected gradient ascent, and keep the best point of each row.

    The fixed rule moves on from the current point, always by the same step size. The adaptive rule, ACET's,
    moves on from the best point so far and along its gradient. It makes the step 1.1 times as long after a
    success, and half as long after a failure.

    Args:
        state: the ascent so far.
        gradient: (n, ...), the gradient of the scores at `state.current`.
        score: (n,), the scores of `state.current`.
        adaptive: whether to use the adaptive rule.
    """
    score = score.view(state.best_score.shape)
    # For the adaptive rule an equal score is a success: on a plateau its steps must not shrink.
    better = score >= state.best_score if adaptive else score > state.best_score
    best = torch.where(better, state.current, state.best)
    start, direction, step_size = state.current, gradient.sign(), state.step_size
    if adaptive:
        start, direction = best, torch.where(better, direction, state.direction)
        step_size = torch.where(better, 1.1 * step_size, step_size / 2)
    current = torch.clamp(start + step_size * direction, state.low, state.high)
    best_score = torch.where(better, score, state.best_score)
    return Ascent(current, best, direction, best_score, step_size, state.low, state.high)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Return images turned counter-clockwise about their centre, with zeros outside.

    The output's pixel at (u, v) from the centre (u to the right, v down) is the input's at
    (u cos θ − v sin θ, u sin θ + v cos θ), where θ is the angle. Values are interpolated bilinearly.

    Args:
        x: images (n, c, h, w). The result has the same shape.
        degrees: the angle.

    >>> rotate(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 90).round(decimals=4)
    tensor([[[[2., 4.], [1., 3.]]]])
    """
    if x.dim() != 4 or not x.is_floating_point():
        raise DataError(f"give floating-point images (n, c, h, w), not {x.dtype} of shape {tuple(x.shape)}")
    height, width = x.shape[2:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # affine_grid's coordinates go from −1 to 1 along both sides: an oblong image needs its aspect ratio.
    turn = [[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]
    # In half precision, the coordinates of neighbouring pixels of a large image would be equal.
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    grid = F.affine_grid(wide.new_tensor([turn]), [1, 1, height, width], align_corners=False)  # (1, h, w, 2)
    rotated = F.grid_sample(wide, grid.expand(len(x), -1, -1, -1), padding_mode="zeros", align_corners=False)
    return rotated.to(x.dtype)


def _log_confidence(logits: Tensor) -> Tensor:
    """Return maxᵢ log pᵢ (n,) of k logits (n, k), or of one logit (n, 1) or (n,)."""
    if logits.dim() > 2 or logits.dim() == 0:
        raise ModelError(f"the model gave shape {tuple(logits.shape)}: it must give (n, k), (n, 1) or (n,)")
    if not logits.requires_grad:
        raise ModelError("the model's logits carry no gradient to its input: it must be differentiable in x")
    if logits.dim() == 1 or logits.shape[1] == 1:
        f = logits.view(-1)
        logits = torch.stack([torch.zeros_like(f), f], -1)  # softmax([0, f]) = [1 − σ(f), σ(f)]
    # If two classes are equal, the gradient of `max` follows one of them. That of `amax` is their average,
    # which can be zero.
    return logits.log_softmax(-1).max(-1).values


def _check_attack(
    x: Tensor, epsilon: float, steps: int, step_size: float, bounds: tuple[float, float] | None
) -> None:
    if not x.is_floating_point() or x.dim() == 0:
        raise DataError(f"give floating-point inputs (n, ...), not {x.dtype} of shape {tuple(x.shape)}")
    if not (epsilon >= 0 and steps >= 0 and step_size > 0):
        raise ArgumentError(
            f"epsilon={epsilon}, steps={steps}, step_size={step_size}: "
            "give epsilon ≥ 0, steps ≥ 0 and step_size > 0"
        )
    if bounds is not None and x.numel() and not (bounds[0] <= x.min() and x.max() <= bounds[1]):
        raise DataError(
            f"x goes from {x.min().item():g} to {x.max().item():g}, outside bounds={bounds}: "
            "give the bounds of your data, or bounds=None"
        )
