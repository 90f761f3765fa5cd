"""What a person can choose about a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bitbayes.errors import FileError


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

    def stem(self, name: str) -> str:
        """The name of the files about `name`: what is not the paper's protocol has a name of its own.

        >>> Options().stem("mnist"), Options(quick=True, epochs=3, seed=1).stem("mnist")
        ('mnist', 'mnist-quick-3-epochs-seed1')
        """
        parts = ["quick" if self.quick else "", f"{self.epochs}-epochs" if self.epochs is not None else ""]
        parts.append(f"seed{self.seed}" if self.seed else "")
        return "-".join([name, *filter(None, parts)])


def check_folders(*folders: Path) -> None:
    """Raise if nothing can be written there: worth knowing before any training."""
    for folder in folders:
        there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
        if not there.is_dir() or not os.access(there, os.W_OK):
            raise FileError(f"cannot write to {folder}: {there} is no folder, or not writable")
