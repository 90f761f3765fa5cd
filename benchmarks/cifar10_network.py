"""A small network for CIFAR-10 that a CPU trains in some minutes, for benchmarks of decisions.

It is right on about three of four images. That leaves errors to promise something about.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.data.sets import load

EPOCHS, BATCH, RATE, DECAY = 8, 128, 3e-3, 5e-4


def cifar10(root: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Images (n, 3, 32, 32) in [0, 1] and labels of the parts "train" and "test"."""
    found = {part: load("cifar10", part, root) for part in ("train", "test")}
    return {part: (images.float() / 255, labels) for part, (images, labels) in found.items()}


def cifar10_network(images: Tensor, labels: Tensor) -> nn.Sequential:
    """Three blocks of convolutions, trained by Adam with a rate that falls to 0; half the images mirrored."""
    torch.manual_seed(0)
    widths = (3, 32, 64, 128)
    blocks: list[nn.Module] = []
    for before, after in pairwise(widths):
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        blocks += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(128 * 16, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY)
    steps = EPOCHS * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images))[: steps // EPOCHS * BATCH].split(BATCH):
            x = images[rows]
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(3))
            optimiser.zero_grad()
            functional.cross_entropy(model(x), labels[rows]).backward()
            optimiser.step()
            schedule.step()
    return model.eval()
