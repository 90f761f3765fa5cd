"""What the tables of one run share: data, trained networks, and fitted methods."""

from functools import cache, cached_property

import torch

from bitbayes.toys import digits_lenet
from paper.methods import LINEARISED, Network
from paper.options import Options
from paper.problem import Problem, make_problem
from paper.study import Study
from paper.training import trained


class Session:
    """One run of `reproduce`. Each part is made once, when a table first asks for it.

    `study(objective)` is the study of the network that was trained with "plain", "oe" or "acet".
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.study = cache(self._make_study)

    @cached_property
    def problem(self) -> Problem:
        """The problem with all classes."""
        return make_problem(self.options)

    @cached_property
    def binary_study(self) -> Study:
        """The study of the two classes that the plain network confuses most."""
        return self.pair_study(*most_confused_classes(self.study("plain")))

    def pair_study(self, first: int, second: int) -> Study:
        """Return the study of two of the classes, with a network of one logit."""
        problem = self.problem.binary(first, second)
        network = self.load_or_train(problem, "plain")
        return Study(problem, network, self.options.trials, self.options.progress)

    def network_name(self, problem: Problem, objective: str, epochs: int) -> str:
        """Return the name of a trained network in the cache."""
        quick = "-quick" if self.options.quick else ""
        return f"{problem.name}-{objective}{quick}-{epochs}-{self.options.seed}"

    def _make_study(self, objective: str) -> Study:
        embedded = self.problem.name == "digits" and objective == "plain" and self.options.epochs is None
        network = (
            Network(digits_lenet().to(self.options.device))
            if embedded
            else self.load_or_train(self.problem, objective)
        )
        # Outlier exposure makes a network unsure of plain noise. The paper's code tunes it on noise up to 10.
        scale = 10.0 if objective == "oe" else 1.0
        study = Study(self.problem, network, self.options.trials, self.options.progress, scale)
        if objective != "plain" or self.options.seed:
            # They take most of the time, so they are compared on one network alone.
            study.entries = {key: each for key, each in study.entries.items() if key not in LINEARISED}
        return study

    def load_or_train(self, problem: Problem, objective: str) -> Network:
        """Return the network that was trained on a problem with this objective."""
        further = problem.fine_tuning.get(objective)
        recipe = further or problem.recipe
        whole = trained(
            self.options.cache,
            self.network_name(problem, objective, recipe.epochs),
            lambda: problem.make_network(problem.classes),
            *problem.train,
            recipe=recipe,
            objective=objective,
            outliers=problem.load_exposure_images() if objective == "oe" else None,
            start=self.study("plain").network.whole if further else None,
            attack_ramp=problem.attack_ramp if further and objective == "acet" else 0,
            seed=self.options.seed,
            progress=self.options.progress,
        )
        return Network(whole)


def most_confused_classes(study: Study) -> tuple[int, int]:
    """Return the two classes, smaller first, of the largest off-diagonal entry of the confusion matrix."""
    k, labels = study.problem.classes, study.problem.test.labels
    with torch.no_grad():
        predicted = study.network.head(study.test.features).argmax(1)
    confusion = torch.bincount(k * labels + predicted, minlength=k * k).reshape(k, k)
    confusion.fill_diagonal_(-1)
    first, second = divmod(int(confusion.argmax()), k)
    return min(first, second), max(first, second)
