"""What a person can choose about a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass(frozen=True)
class Options:
    """`quick`: few epochs, points and trials, to see that everything runs; the numbers then mean little.

    `epochs`: of training, where that is not to be the paper's 100. `redraw`: write tables and pictures again,
    from numbers that are there.
    """

    train: str = "mnist"
    data: Path = Path("data")
    trials: int = 10
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    output: Path = Path("results")
    cache: Path = Path("networks")
    quick: bool = False
    redraw: bool = False
    epochs: int | None = None
    seed: int = 0
    progress: bool | None = None
