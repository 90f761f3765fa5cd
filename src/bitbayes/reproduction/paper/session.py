"""What one call of `bitbayes reproduce` shares between tables: data, trained networks, fitted methods."""

from __future__ import annotations

from functools import cache, cached_property

import torch

from bitbayes.reproduction.data import digits_lenet
from bitbayes.reproduction.paper.methods import Network
from bitbayes.reproduction.paper.options import Options
from bitbayes.reproduction.paper.problem import Problem, make_problem
from bitbayes.reproduction.paper.study import Study
from bitbayes.reproduction.training import trained


class Session:
    """Everything is made when first asked for, and once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.study = cache(self._study)

    @cached_property
    def problem(self) -> Problem:
        return make_problem(self.options)

    @cached_property
    def binary(self) -> Study:
        """The two classes that the plain network confuses most."""
        problem = self.problem.pair(*most_confused(self.study("plain")))
        return Study(problem, self._trained(problem, "plain"), self.options.trials, self.options.progress)

    def _study(self, objective: str) -> Study:
        shipped = self.problem.name == "digits" and objective == "plain" and self.options.epochs is None
        network = (
            Network(digits_lenet().to(self.options.device))
            if shipped
            else self._trained(self.problem, objective)
        )
        # An exposed network is unsure of plain noise already: the paper's code tunes it on ten times that.
        noise = 10.0 if objective == "oe" else 1.0
        return Study(self.problem, network, self.options.trials, self.options.progress, noise)

    def _trained(self, problem: Problem, objective: str) -> Network:
        quick = "-quick" if self.options.quick else ""
        whole = trained(
            self.options.cache,
            f"{problem.name}-{objective}{quick}-{problem.recipe.epochs}-{self.options.seed}",
            lambda: problem.make(problem.classes),
            problem.train_images,
            problem.train_labels,
            recipe=problem.recipe,
            objective=objective,
            outliers=problem.exposure,
            seed=self.options.seed,
            progress=self.options.progress,
        )
        return Network(whole)


def most_confused(study: Study) -> tuple[int, int]:
    """The classes (smaller, larger) of the confusion matrix's largest entry off the diagonal."""
    k, labels = study.problem.classes, study.problem.test_labels
    with torch.no_grad():
        predicted = study.network.head(study.test.features).argmax(1)
    confusion = torch.bincount(k * labels + predicted, minlength=k * k).reshape(k, k)
    confusion.fill_diagonal_(-1)
    first, second = divmod(int(confusion.argmax()), k)
    return min(first, second), max(first, second)
