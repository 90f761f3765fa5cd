"""What a training run is made of, apart from its loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Recipe:
    """The paper's schedule: 100 epochs of batches of 128, rate divided by 10 at 50, 75 and 95 %.

    `milestones`: parts of the run, so that a shorter one has the same shape. `crop`: half of the images, at
    random, are moved by up to so many pixels each way, over `padding`; `flip`: and mirrored, one in two.

    >>> MNIST.rate(0), MNIST.rate(99)
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

    def rate(self, epoch: int) -> float:
        """The learning rate in that epoch, counted from 0."""
        passed = sum(epoch >= part * self.epochs for part in self.milestones)
        return float(f"{self.learning_rate * 0.1**passed:.12g}")

    def make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Adam, or SGD with a momentum of 0.9."""
        on_gpu = next(network.parameters()).is_cuda
        if self.optimizer == "adam":
            return torch.optim.Adam(
                network.parameters(),
                lr=self.learning_rate,
                weight_decay=self.weight_decay,
                capturable=on_gpu,  # its step count lives on the device, where a recorded step can see it
            )
        return torch.optim.SGD(
            network.parameters(), lr=self.learning_rate, momentum=0.9, weight_decay=self.weight_decay
        )


MNIST = Recipe()
CIFAR = Recipe("sgd", 0.1, crop=4, padding="reflect", flip=True)
SVHN = Recipe("sgd", 0.1, crop=4, padding="replicate")
