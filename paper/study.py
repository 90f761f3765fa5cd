"""A trained network with the methods fitted to it, and their hyperparameters in each trial."""

import math
from collections import defaultdict
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bitbayes.errors import ArgumentError
from bitbayes.outliers import uniform_noise
from paper.methods import (
    BINARY,
    MULTICLASS,
    Hyperparameters,
    Method,
    MethodEntry,
    Network,
    Points,
    Rated,
)
from paper.problem import Problem
from paper.progress import track
from paper.report import format_range

# The range of prior variances in which `tune` searches.
SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-6, 1e10


class Study:
    """A trained network, and `trials` random splits of its test set into validation and test points.

    A method that raises `ArgumentError` when it is fitted does not suit the network. It is left out, and
    `not_run` holds its reason. Any other error stops the study.

    Args:
        problem: the classification problem.
        network: trained on the problem.
        trials: the number of splits.
        progress: True or False to show progress bars or not; None shows them on terminals.
        tuning_noise_scale: the largest value of the noise on which methods are tuned.
    """

    def __init__(
        self,
        problem: Problem,
        network: Network,
        trials: int,
        progress: bool | None = None,
        tuning_noise_scale: float = 1.0,
    ) -> None:
        self.problem, self.network, self.trials, self.progress = problem, network, trials, progress
        self.tuning_noise_scale = tuning_noise_scale
        self.entries: dict[str, MethodEntry] = dict(MULTICLASS if problem.classes > 1 else BINARY)
        self.not_run: dict[str, str] = {}
        # Of methods that are tuned once. Sets that are no longer in use are forgotten.
        self._rated: defaultdict[str, WeakKeyDictionary[Points, Rated]] = defaultdict(WeakKeyDictionary)

    @cached_property
    def methods(self) -> dict[str, Method]:
        """The methods that could be fitted, by name, in the order of the tables."""
        problem, fitted = self.problem, {}
        train = self.network.extract_features(problem.train.images)
        for name, entry in track(self.entries.items(), f"fitting ({problem.name})", self.progress):
            try:
                method = entry.make(problem.tuning_points)
                method.fit(self.network, problem.train.images, train, problem.train.labels)
            except ArgumentError as error:
                self.not_run[name] = str(error)
                continue
            fitted[name] = method
        return fitted

    @cached_property
    def test(self) -> Points:
        """The whole test set."""
        return self.network.extract_features(*self.problem.test)

    @cached_property
    def outliers(self) -> dict[str, Points]:
        """The problem's sets of images that belong to no class."""
        extract = self.network.extract_features
        return {name: extract(each.images) for name, each in self.problem.outliers.items()}

    @cached_property
    def tuning_noise(self) -> Points:
        """The noise on which methods are tuned, in all trials. It is not that of the tables."""
        noise = self.tuning_noise_scale * self.draw_noise(500)[: self.problem.validation_points]
        return self.network.extract_features(noise)

    def split(self, trial: int) -> tuple[Tensor, Tensor]:
        """Return the rows of the test set that are validation points in a trial, and the other rows."""
        order = torch.randperm(
            len(self.problem.test.labels), generator=torch.Generator().manual_seed(trial)
        ).to(self.network.device)
        return order[: self.problem.validation_points], order[self.problem.validation_points :]

    def draw_noise(self, seed: int) -> Tensor:
        """Return uniform noise in [0, 1], in the shape of images."""
        black = torch.zeros(1, *self.problem.test.images.shape[1:])
        # Drawn on the CPU, so that the noise is the same on every device.
        generator = torch.Generator().manual_seed(1_000 + seed)
        noise = uniform_noise(torch.cat([black, 1 - black]), self.problem.noise_points, generator=generator)
        return noise.to(self.network.device)

    @cached_property
    def chosen(self) -> list[dict[str, Hyperparameters]]:
        """The hyperparameters that each method chose, in each trial."""
        chosen: list[dict[str, Hyperparameters]] = []
        for trial in track(range(self.trials), f"tuning ({self.problem.name})", self.progress):
            rows, _ = self.split(trial)
            chosen.append(
                {
                    name: chosen[0][name]
                    if trial and method.tuned_once
                    else method.tune(self.test, rows, self.tuning_noise)
                    for name, method in self.methods.items()
                }
            )
        return chosen

    def describe(self, *keys: str) -> dict[str, Any]:
        """Return what the JSON of a table says about these methods, or about all.

        It holds their titles, the reasons why some were not run, and what the others chose.
        """
        keys = keys or tuple(self.entries)
        fitted = [key for key in keys if key in self.methods]
        return {
            "methods": {
                key: {"title": self.entries[key].title, "paper": self.entries[key].paper_column}
                for key in keys
            },
            "not_run": {key: why for key, why in self.not_run.items() if key in keys},
            "chosen": [{key: trial[key] for key in fitted} for trial in self.chosen],
        }

    def rate(self, method: str, points: Points, trial: int) -> Rated:
        """Rate points by a method with the hyperparameters that it chose in a trial."""
        fitted, chosen = self.methods[method], self.chosen[trial][method]
        if not fitted.tuned_once:
            return fitted.rate(points, chosen, trial)
        kept = self._rated[method]
        if points not in kept:
            kept[points] = fitted.rate(points, chosen, 0)
        return kept[points]


def is_number(name: str, value: object) -> bool:
    """Return whether a choice is a number that a note can show: not one for each level, and not the score's.

    >>> is_number("temperature", 0.9), is_number("levels", {"head": 1.0}), is_number("score_centre", 3.0)
    (True, False, False)
    """
    return isinstance(value, (int, float)) and not name.startswith("score")


def choice_notes(description: dict[str, Any]) -> list[str]:
    """Return notes for below a table: what the methods chose, and why some were not run.

    `description` is what `Study.describe` returns.
    """
    title = {key: method["title"] for key, method in description["methods"].items()}
    choices = []
    for key in title:
        trials = [trial.get(key, {}) for trial in description["chosen"]]
        ranges = [
            f"{name.replace('_', ' ')} {_format_range([each[name] for each in trials])}"
            for name, value in trials[0].items()
            if is_number(name, value)
        ]
        choices += [f"{title[key]}: {', '.join(ranges)}"] if ranges else []
    when = " over the trials" if len(description["chosen"]) > 1 else ""
    chosen = [f"Chosen{when}: {'; '.join(choices)}."] if choices else []
    return chosen + [f"Not run: {title[key]} ({why})." for key, why in description["not_run"].items()]


def _format_range(values: list[float]) -> str:
    """Return the smallest and the largest value, with a remark if all are at one end of the range tried."""
    text = format_range(values)
    for edge, word in ((SMALLEST_VARIANCE, "smallest"), (LARGEST_VARIANCE, "largest")):
        if all(math.isclose(value, edge, rel_tol=1e-5) for value in values):
            return f"{text} (the {word} tried)"
    return text
