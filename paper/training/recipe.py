"""The settings of a training run, apart from its loss."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Recipe:
    """Optimizer, schedule and augmentation. The defaults are the paper's for MNIST.

    Args:
        optimizer: "adam", or "sgd" with a momentum of 0.9.
        learning_rate: the learning rate before the first milestone.
        epochs: the number of epochs.
        batch_size: the number of images in each step.
        milestones: fractions of the epochs after each of which the learning rate is divided by 10.
        weight_decay: the optimizer's weight decay.
        crop: about half of the images are shifted by up to this many pixels in each direction.
        padding: the mode of `torch.nn.functional.pad` that fills the pixels beyond the image.
        flip: whether about half of the shifted images are mirrored as well.

    >>> MNIST.learning_rate_at(0), MNIST.learning_rate_at(99)
    (0.001, 1e-06)
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    epochs: int = 100
    batch_size: int = 128
    milestones: tuple[float, ...] = (0.5, 0.75, 0.95)
    weight_decay: float = 5e-4
    crop: int = 2
    padding: str = "constant"
    flip: bool = False

    def learning_rate_at(self, epoch: int) -> float:
        """Return the learning rate in an epoch, counted from 0."""
        passed = sum(epoch >= fraction * self.epochs for fraction in self.milestones)
        return float(f"{self.learning_rate * 0.1**passed:.12g}")

    def make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters of the network."""
        on_gpu = next(network.parameters()).is_cuda
        # On a CPU the fused update takes a tenth of the default's time.
        options: dict[str, Any] = {"weight_decay": self.weight_decay, "fused": None if on_gpu else True}
        if self.optimizer == "adam":
            # capturable: keeps the step count on the GPU, as a CUDA graph needs it
            options["capturable"] = on_gpu
            return torch.optim.Adam(network.parameters(), lr=self.learning_rate, **options)
        return torch.optim.SGD(network.parameters(), lr=self.learning_rate, momentum=0.9, **options)


MNIST = Recipe()
CIFAR = Recipe("sgd", 0.1, crop=4, padding="reflect", flip=True)
SVHN = Recipe("sgd", 0.1, crop=4, padding="replicate")
