"""Training a network by one of the paper's recipes, with the whole data set on the device."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, DataError, one_of
from bitbayes.progress import track
from bitbayes.reproduction.training import checkpoint
from bitbayes.reproduction.training.augment import augmented
from bitbayes.reproduction.training.objectives import OBJECTIVES, Objective
from bitbayes.reproduction.training.recipe import MNIST, Recipe
from bitbayes.reproduction.training.step import Step


def train(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    recipe: Recipe = MNIST,
    objective: str = "plain",
    outliers: Tensor | None = None,
    seed: int = 0,
    part: Path | None = None,
    progress: bool | None = None,
) -> list[float]:
    """Train `network` in place and leave it in eval mode; return the mean loss of each epoch.

    Args:
        network: on the device to train on; gives logits (n, k), or (n, 1) for two classes.
        images: (n, c, h, w), in [0, 1] or as pixels in uint8; labels: (n,). Moved to the network's device.
        recipe: optimizer, schedule and augmentation.
        objective: "plain", "oe" (outlier exposure: needs `outliers`, images) or "acet".
        seed: the order of the images, crops and noise follow from it; the same device and seed give the same
            network as far as the device's kernels are deterministic.
        part: a file to which the run is saved on its way, and from which it goes on; whoever has the network
            safe deletes it.
        progress: True, False, or None for a bar on terminals.

    On a GPU the forward pass runs in bfloat16. The images of an incomplete last batch wait for the next
    epoch's order, so every step has `batch_size` images (fewer only if there are fewer in all).

    >>> _ = torch.manual_seed(0)
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x = torch.rand(64, 1, 2, 2)
    >>> y = (x.mean((1, 2, 3)) > 0.5).long()
    >>> losses = train(network, x, y, recipe=Recipe(epochs=5, batch_size=16, crop=0, learning_rate=0.1))
    >>> losses[-1] < losses[0]
    True
    """
    chosen = OBJECTIVES[one_of("objective", objective, tuple(OBJECTIVES))]
    if chosen.exposed and outliers is None:
        raise ArgumentError(f"objective={objective!r} needs `outliers`, images that belong to no class")
    if len(images) != len(labels) or not len(images):
        raise DataError(f"{len(images)} images with {len(labels)} labels: give one label per image")
    device = next(network.parameters()).device
    images, labels = images.to(device), labels.to(device)
    outliers = None if outliers is None else outliers.to(device)
    optimizer = recipe.make_optimizer(network)
    begun = checkpoint.begun(part)
    losses = checkpoint.resume(part, network, optimizer)
    step = Step(network, optimizer, chosen.loss)
    rate: float | None = None
    network.train()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        for epoch in track(range(len(losses), recipe.epochs), f"training ({objective})", progress):
            if recipe.rate(epoch) != rate:
                rate = recipe.rate(epoch)
                step.begin(rate, chosen.strength)
            losses.append(_epoch(step, images, labels, outliers, recipe, chosen, seed, epoch))
            if losses[-1] != losses[-1]:
                raise DataError(f"the loss became NaN in epoch {epoch}: lower the learning rate")
            checkpoint.keep(part, network, optimizer, losses, begun)
    network.eval()
    return losses


def _epoch(
    step: Step,
    images: Tensor,
    labels: Tensor,
    outliers: Tensor | None,
    recipe: Recipe,
    objective: Objective,
    seed: int,
    epoch: int,
) -> float:
    """One pass over the images in an order of its own; the mean loss."""
    # A generator for each epoch, so that a run that goes on draws what it would have drawn.
    generator = torch.Generator(images.device).manual_seed(1_000_003 * seed + epoch)
    size = min(recipe.batch_size, len(images))
    order = torch.randperm(len(images), device=images.device, generator=generator)
    total = torch.zeros((), device=images.device)
    count = len(images) // size
    for number in range(count):
        batch = order[number * size : (number + 1) * size]
        x = augmented(_floats(images[batch]), recipe, generator)
        total += step(x, labels[batch], _outside(x, outliers, objective, generator))
    return float(total) / count


def _outside(x: Tensor, outliers: Tensor | None, objective: Objective, generator: torch.Generator) -> Tensor:
    """As many outliers as there are images; none where the objective looks at none."""
    if objective.noise:
        return torch.rand(x.shape, device=x.device, generator=generator)
    if objective.exposed:
        assert outliers is not None
        chosen = torch.randint(len(outliers), (len(x),), device=x.device, generator=generator)
        return _floats(outliers[chosen])
    return x[:0]


def _floats(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images
