"""One trained network with all that the tables ask about it: trials, methods, and what they chose."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.outliers import uniform_noise
from bitbayes.prior import LARGEST, SMALLEST
from bitbayes.progress import track
from bitbayes.reproduction.paper.methods import (
    BINARY,
    MULTICLASS,
    Chosen,
    Entry,
    Method,
    Network,
    Seen,
    images_of,
)
from bitbayes.reproduction.paper.problem import Problem


class Study:
    """`trials` splits of the test set, on the same network; every method's number in each of them.

    A method that says (`ArgumentError`) that it does not fit the network is left out and named in `not_run`,
    with its reason; any other error is a mistake and stops the study.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        trials: int,
        progress: bool | None = None,
        tuning_noise: float = 1.0,
    ) -> None:
        self.problem, self.network, self.trials, self.progress = problem, network, trials, progress
        self.tuning_noise = tuning_noise  # how far the noise goes on which methods choose
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
    def chosen(self) -> list[dict[str, Chosen]]:
        """For each trial what each method chose."""
        chosen = []
        for trial in track(range(self.trials), f"tuning ({self.problem.name})", self.progress):
            rows, _ = self.split(trial)
            validation, labels = self.test[rows], self.problem.test_labels[rows]
            noise = self.tuning_noise * self.noise(500 + trial)[: self.problem.validation]
            outliers = self.network.see(noise)
            chosen.append(
                {name: method.choose(validation, labels, outliers) for name, method in self.methods.items()}
            )
        return chosen

    def about(self, *keys: str) -> dict[str, Any]:
        """The methods (all, or these), why some were not run, and what the others chose: for tables' JSON."""
        keys = keys or tuple(self.entries)
        fitted = [key for key in keys if key in self.methods]
        return {
            "methods": {
                key: {"title": self.entries[key].title, "paper": self.entries[key].paper} for key in keys
            },
            "not_run": {key: why for key, why in self.not_run.items() if key in keys},
            "chosen": [{key: trial[key] for key in fitted} for trial in self.chosen],
        }

    def predict(self, method: str, seen: Seen, trial: int) -> Tensor:
        """Probabilities (n, k) by a method as it was tuned in a trial."""
        return self.methods[method].probabilities(seen, self.chosen[trial][method], trial)


def choices(about: dict[str, Any]) -> list[str]:
    """What `Study.about` has to say below a table: what was chosen, and what was not run and why."""
    title = {key: method["title"] for key, method in about["methods"].items()}
    told = []
    for key in title:
        numbers = [trial.get(key, {}) for trial in about["chosen"]]
        spans = [f"{name.replace('_', ' ')} {_span([each[name] for each in numbers])}" for name in numbers[0]]
        told += [f"{title[key]}: {', '.join(spans)}"] if spans else []
    when = " over the trials" if len(about["chosen"]) > 1 else ""
    chosen = [f"Chosen{when}: {'; '.join(told)}."] if told else []
    return chosen + [f"Not run: {title[key]} ({why})." for key, why in about["not_run"].items()]


def _span(values: list[float]) -> str:
    """The smallest to the largest, with a remark where all are the first or the last of those tried."""
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    text = low if low == high else f"{low} to {high}"
    for edge, word in ((SMALLEST, "smallest"), (LARGEST, "largest")):
        if all(math.isclose(value, edge, rel_tol=1e-5) for value in values):
            return f"{text} (the {word} tried)"
    return text
