"""One trained network with all that the tables ask about it: trials, methods, and what they chose."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.outliers import uniform_noise
from bitbayes.paper.methods import BINARY, MULTICLASS, Entry, Method, Network, Seen, images_of
from bitbayes.paper.problem import Problem
from bitbayes.progress import track


class Study:
    """`trials` splits of the test set, on the same network; every method's number in each of them.

    A method that says (`ArgumentError`) that it does not fit the network is left out and named in `not_run`,
    with its reason; any other error is a mistake and stops the study.
    """

    def __init__(self, problem: Problem, network: Network, trials: int, progress: bool | None = None) -> None:
        self.problem, self.network, self.trials, self.progress = problem, network, trials, progress
        self.entries: dict[str, Entry] = dict(MULTICLASS if problem.classes > 1 else BINARY)
        self.not_run: dict[str, str] = {}

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Those that could be fitted, by name, in the tables' order."""
        problem, fitted = self.problem, {}
        train = self.network.see(problem.train_images)
        for name, entry in track(self.entries.items(), f"fitting ({problem.name})", self.progress):
            try:
                method = entry.make(problem.tuning)
                method.fit(self.network, problem.train_images, train, problem.train_labels)
            except ArgumentError as error:
                self.not_run[name] = str(error)
                continue
            fitted[name] = method
        return fitted

    @cached_property
    def test(self) -> Seen:
        """All of the test set."""
        return self.network.see(self.problem.test_images)

    def split(self, trial: int) -> tuple[Tensor, Tensor]:
        """Rows of the test set that are validation points in a trial, and those that are test points."""
        order = torch.randperm(
            len(self.problem.test_labels), generator=torch.Generator().manual_seed(trial)
        ).to(self.network.device)
        return order[: self.problem.validation], order[self.problem.validation :]

    def noise(self, seed: int) -> Tensor:
        """Uniform noise in the image space, drawn on the CPU so that every device sees the same."""
        like = images_of(self.problem.test_images[:1]).cpu()
        like = torch.cat([torch.zeros_like(like), torch.ones_like(like)])
        generator = torch.Generator().manual_seed(1_000 + seed)
        return uniform_noise(like, self.problem.noise, generator=generator).to(self.network.device)

    @cached_property
    def numbers(self) -> list[dict[str, float]]:
        """For each trial, each method's number: its temperature or prior variance."""
        chosen = []
        for trial in track(range(self.trials), f"tuning ({self.problem.name})", self.progress):
            rows, _ = self.split(trial)
            validation, labels = self.test[rows], self.problem.test_labels[rows]
            noise = self.network.see(self.noise(500 + trial)[: self.problem.validation])
            chosen.append(
                {name: method.choose(validation, labels, noise) for name, method in self.methods.items()}
            )
        return chosen

    def predict(self, method: str, seen: Seen, trial: int) -> Tensor:
        """Probabilities (n, k) by a method as it was tuned in a trial."""
        return self.methods[method].probabilities(seen, self.numbers[trial][method], trial)
