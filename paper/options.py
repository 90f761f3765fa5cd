"""The settings of `python -m paper`."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bitbayes.errors import FileError


@dataclass(frozen=True)
class Options:
    """The settings of a run.

    Args:
        train: the problem: "mnist", or "digits" for the embedded digits.
        data: the folder with the files of the data sets.
        trials: the number of random splits into validation and test points.
        device: the device of all networks and data.
        output: the folder for the results.
        cache: the folder for trained networks.
        quick: use few epochs, points and trials. This shows that everything runs; the numbers mean little.
        redraw: make only the tables and pictures, from numbers that were written before.
        epochs: the number of epochs of training. None: the problem's own number.
        seed: determines the training.
        without: slow methods that `shift` leaves out. Its page says so.
        progress: True or False to show progress bars or not; None shows them on terminals.
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
    without: tuple[str, ...] = ()
    progress: bool | None = None

    def file_stem(self, name: str) -> str:
        """Return the stem of the names of files about `name`. It shows settings that are not the paper's.

        >>> Options().file_stem("mnist"), Options(quick=True, epochs=3, seed=1).file_stem("mnist")
        ('mnist', 'mnist-quick-3-epochs-seed1')
        """
        parts = ["quick" if self.quick else "", f"{self.epochs}-epochs" if self.epochs is not None else ""]
        parts.append(f"seed{self.seed}" if self.seed else "")
        return "-".join([name, *filter(None, parts)])


def check_folders(*folders: Path) -> None:
    """Raise if a folder cannot be written to. It is better to know this before a long training."""
    for folder in folders:
        # `os.path.exists` is False where no such name can be; `Path.exists` would raise.
        existing = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise FileError(f"cannot write to {folder}: {existing} is no folder, or not writable")
