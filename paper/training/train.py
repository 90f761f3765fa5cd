"""Train a network by one of the paper's recipes, with the whole data set on the device."""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from bitbayes.errors import ArgumentError, DataError, one_of
from bitbayes.toys import scale_pixels
from paper.progress import track
from paper.training import checkpoint
from paper.training.augment import augmented
from paper.training.objectives import OBJECTIVES, Objective
from paper.training.recipe import MNIST, Recipe
from paper.training.step import Batch, TrainingStep


def train(
    network: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    recipe: Recipe = MNIST,
    objective: str = "plain",
    outliers: Tensor | None = None,
    attack_ramp: float = 0.0,
    seed: int = 0,
    checkpoint_file: Path | None = None,
    progress: bool | None = None,
) -> list[float]:
    """Train `network` in place, leave it in eval mode, and return the mean loss of each epoch.

    The forward pass runs in bfloat16 where the device computes in it. Every step has `batch_size` images, or
    all images if there are fewer. The images of an incomplete last batch are left out; each epoch has a new
    random order.

    Args:
        network: on the device to train on. It gives logits (n, k), or (n, 1) for two classes.
        images: (n, c, h, w), floats in [0, 1] or pixels in uint8. They are moved to the network's device.
        labels: (n,). They are moved too.
        recipe: optimizer, schedule and augmentation.
        objective: "plain", "oe" (outlier exposure, which needs `outliers`) or "acet".
        outliers: images of no class, (m, c, h, w), in the same form as `images`.
        attack_ramp: the epochs in which ACET's attack grows from 0 to its full radius. A trained network is
            attacked too easily at first: where the attack reaches log p = 0, the loss has no gradient.
        seed: determines the order of the images, the crops and the noise. On the same device, the same seed
            gives the same network if the device's kernels are deterministic.
        checkpoint_file: the run is saved to this file from time to time, and resumed from it if it exists.
            The caller deletes it once the trained network is saved.
        progress: True or False to show a progress bar or not; None shows it on terminals.

    >>> _ = torch.manual_seed(0)
    >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> x = torch.rand(64, 1, 2, 2)
    >>> y = (x.mean((1, 2, 3)) > 0.5).long()
    >>> losses = train(network, x, y, recipe=Recipe(epochs=5, batch_size=16, crop=0, learning_rate=0.1))
    >>> losses[-1] < losses[0]
    True
    """
    chosen = OBJECTIVES[one_of("objective", objective, tuple(OBJECTIVES))]
    if chosen.needs_outliers and outliers is None:
        raise ArgumentError(f"objective={objective!r} needs `outliers`, images that belong to no class")
    if len(images) != len(labels) or not len(images):
        raise DataError(f"{len(images)} images with {len(labels)} labels: give one label per image")
    device = next(network.parameters()).device
    images, labels = images.to(device), labels.to(device)
    outliers = None if outliers is None else outliers.to(device)

    def draw_batches(epoch: int) -> Iterator[Batch]:
        generator = torch.Generator(device).manual_seed(1_000_003 * seed + epoch)
        steps = len(images) // min(recipe.batch_size, len(images))
        for i, (x, y) in enumerate(shuffled_batches(images, labels, recipe, generator), start=1):
            radius = (x.new_tensor(each) for each in chosen.radius(epoch + i / steps, attack_ramp))
            yield x, y, _draw_outliers(x, outliers, chosen, generator), *radius

    # Convolutions are faster with the channels last.
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = TrainingStep(network, recipe.make_optimizer(network), chosen.loss)
    network.train()
    losses = train_epochs(
        step,
        recipe,
        draw_batches,
        checkpoint_file,
        f"training ({objective})",
        progress,
    )
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    network.eval()
    return losses


def train_epochs(
    step: TrainingStep,
    recipe: Recipe,
    draw_batches: Callable[[int], Iterable[Batch]],
    checkpoint_file: Path | None,
    description: str,
    progress: bool | None,
) -> list[float]:
    """Take a step on each batch of each epoch, and return the mean loss of each epoch.

    Args:
        step: updates the network.
        recipe: gives the number of epochs and the learning rates.
        draw_batches: returns the batches of an epoch. They depend on the number of the epoch alone, so that a
            resumed run draws the same batches.
        checkpoint_file: as in `train`.
        description: the text of the progress bar.
        progress: as in `train`.
    """
    started = checkpoint.start_time(checkpoint_file)
    losses = checkpoint.resume(checkpoint_file, step.network, step.optimizer)
    learning_rate: float | None = None
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        for epoch in track(range(len(losses), recipe.epochs), description, progress):
            if recipe.learning_rate_at(epoch) != learning_rate:
                learning_rate = recipe.learning_rate_at(epoch)
                step.start_phase(learning_rate)
            total, count = torch.zeros((), device=step.device), 0
            for batch in draw_batches(epoch):
                total += step(*batch)
                count += 1
            losses.append(float(total) / count)
            if math.isnan(losses[-1]):
                raise DataError(f"the loss became NaN in epoch {epoch}: lower the learning rate")
            checkpoint.save_if_due(checkpoint_file, step.network, step.optimizer, losses, started)
    return losses


def shuffled_batches(
    images: Tensor, labels: Tensor, recipe: Recipe, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield augmented images and labels in a random order, without those of an incomplete last batch."""
    size = min(recipe.batch_size, len(images))
    order = torch.randperm(len(images), device=images.device, generator=generator)
    for rows in torch.split(order, size)[: len(images) // size]:
        yield augmented(scale_pixels(images[rows]), recipe, generator), labels[rows]


def _draw_outliers(
    x: Tensor, outliers: Tensor | None, objective: Objective, generator: torch.Generator
) -> Tensor:
    """Return as many outliers as there are images, or none if the objective needs none."""
    if objective.needs_noise:
        return torch.rand(x.shape, device=x.device, generator=generator)
    if objective.needs_outliers:
        assert outliers is not None
        chosen = torch.randint(len(outliers), (len(x),), device=x.device, generator=generator)
        return scale_pixels(outliers[chosen])
    return x[:0]
