"""What all rivals share: predictions, their average over networks, and its temperature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bitbayes import metrics
from paper.methods.base import IMAGES_PER_BATCH, fast_layout, probabilities

# Temperatures from which one is chosen.
SMALLEST, LARGEST, STEPS = -1.5, 1.5, 301


class Predicted(NamedTuple):
    """Probabilities (n, k), and scores (n,) by which strangers are told."""

    probs: Tensor
    score: Tensor


# Takes images (n, c, h, w), floats.
Predictor = Callable[[Tensor], Predicted]


def average(logits: Sequence[Tensor], temperature: float) -> Predicted:
    """The mean of the probabilities at a temperature; strangers are told by minus their entropy.

    >>> found = average([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])], 1.0)
    >>> found.probs
    tensor([[0.5000, 0.5000]])
    """
    probs = torch.zeros_like(logits[0])
    for each in logits:
        probs = probs + probabilities(each / temperature) / len(logits)
    return Predicted(probs, -torch.special.entr(probs).sum(1))


def choose_temperature(logits: Sequence[Tensor], labels: Tensor) -> float:
    """The temperature of all logits at which the average has the least NLL."""
    grid: list[float] = torch.linspace(SMALLEST, LARGEST, STEPS).exp().tolist()
    return min(grid, key=lambda each: metrics.nll(average(logits, each).probs, labels))


@torch.no_grad()
def predict_in_parts(predictor: Predictor, images: Tensor) -> Predicted:
    """The predictions of a predictor, batch by batch."""
    batches = torch.split(images, IMAGES_PER_BATCH)
    return joined([predictor(fast_layout(batch)) for batch in batches], images.device)


def joined(parts: Sequence[Predicted], device: torch.device) -> Predicted:
    """The predictions of several batches as one."""
    probs, score = zip(*parts, strict=True)
    return Predicted(
        torch.cat([each.to(device) for each in probs]), torch.cat([each.to(device) for each in score])
    )
