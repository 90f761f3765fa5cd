"""Deep kernel learning, trained anew, beside the plain network and what makes that one a bit Bayesian."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bitbayes.reproduction.deep_kernel import TEST_SAMPLES, DeepKernel
from bitbayes.reproduction.paper import ood
from bitbayes.reproduction.paper.methods import MULTICLASS, ROWS, Chosen, Entry, Network, Seen, images_of
from bitbayes.reproduction.paper.numbers import cell
from bitbayes.reproduction.paper.problem import Problem
from bitbayes.reproduction.paper.report import Report, mean_std
from bitbayes.reproduction.paper.session import Session
from bitbayes.reproduction.paper.study import Study
from bitbayes.reproduction.paper.table2 import DELTA
from bitbayes.reproduction.training import augmented
from bitbayes.reproduction.training.cache import digest, kept

BESIDE = ("plain", "llla", "ours")


class Kernel:
    """A trained deep kernel as one of the tables' methods: it has nothing to choose.

    `by_batch`: features are scaled by their range in each batch of test points, as in the paper's code, which
    moves far-away features back among the others; otherwise by their range in training, and clamped to it.
    """

    def __init__(self, kernel: DeepKernel, by_batch: int | None = None) -> None:
        self.kernel, self.by_batch = kernel, by_batch

    def fit(self, network: Network, images: Tensor, train: Seen | None, labels: Tensor) -> None:
        pass

    def choose(self, validation: Seen, labels: Tensor, noise: Seen) -> Chosen:
        return {}

    @torch.no_grad()
    def probabilities(self, seen: Seen, chosen: Chosen, seed: int) -> Tensor:
        generator = torch.Generator(seen.images.device).manual_seed(seed)
        if self.by_batch is None:
            return self.kernel.predict_proba(list(torch.split(seen.images, ROWS)), generator=generator)
        parts = []
        for images in torch.split(seen.images, self.by_batch):
            features = self.kernel.features(images)
            bounds = torch.stack([features.amin(), features.amax()])
            parts.append(self.kernel.probabilities(features, bounds, TEST_SAMPLES, generator))
        return torch.cat(parts)

    def module(self, chosen: Chosen) -> nn.Module:
        return self.kernel


class Shuffled:
    """Training images and labels in batches, in an order and with crops of its own in each epoch."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.images, self.labels, self.recipe = problem.train_images, problem.train_labels, problem.recipe
        self.size, self.seed, self.epoch = min(self.recipe.batch_size, len(self.images)), seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        device, recipe = self.images.device, self.recipe
        generator = torch.Generator(device).manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(len(self.images), device=device, generator=generator)
        for rows in torch.split(order, self.size)[: len(self)]:
            yield augmented(images_of(self.images[rows]), recipe, generator), self.labels[rows]

    def __len__(self) -> int:
        return len(self.images) // self.size


def trained_kernel(session: Session) -> tuple[DeepKernel, dict[str, Any]]:
    """The deep kernel and the story of its training; read from the cache, or trained and kept there."""
    problem, options = session.problem, session.options
    quick = "-quick" if options.quick else ""
    settings = {
        "recipe": asdict(problem.recipe),
        "objective": "dkl",
        "seed": options.seed,
        "images": len(problem.train_images),
        "data": digest(problem.train_images, problem.train_labels),
    }

    def run(kernel: DeepKernel, part: Path) -> list[float]:
        loader = Shuffled(problem, options.seed)
        kernel.fit(loader, recipe=problem.recipe, seed=options.seed, part=part, progress=options.progress)
        return kernel.losses

    return kept(
        options.cache,
        f"{problem.name}-dkl{quick}-{problem.recipe.epochs}-{options.seed}",
        lambda: DeepKernel(problem.make(problem.classes)),
        settings,
        problem.train_images.device,
        run,
    )


def measure(session: Session) -> dict[str, Any]:
    kernel, story = trained_kernel(session)
    plain, options = session.study("plain"), session.options
    study = Study(session.problem, plain.network, options.trials, options.progress)
    batch = session.problem.recipe.batch_size
    study.entries = {key: MULTICLASS[key] for key in BESIDE} | {
        "dkl-batch": Entry("DKL, each batch's range", "DKL", lambda points: Kernel(kernel, batch)),
        "dkl": Entry("DKL, training's range", None, lambda points: Kernel(kernel)),
    }
    values = ood.measure(study, ood.natural(study) | ood.noise(study, DELTA))
    training = {key: story[key] for key in ("seconds", "device", "losses", "images")}
    return values | {"training": training | {"epochs": len(story["losses"])}}


def show(values: dict[str, Any], report: Report) -> None:
    ood.show(values, report, paper_cell, "Deep kernel learning", notes(values))


def paper_cell(train: str, test: str | None, method: str | None) -> dict[str, Any]:
    """The paper's numbers: DKL's are in a table of its own, where noise stands without its δ."""
    if method == "DKL" and test is not None:
        return cell("dkl", train, test.split(" (")[0], method)
    return cell("table2", train, test, method)


def notes(values: dict[str, Any]) -> list[str]:
    training, inside = values["training"], values["scores_percent"][values["problem"]]
    accuracy = "; ".join(
        f"{values['methods'][key]['title']}: {mean_std(found['accuracy'], 2)}"
        for key, found in inside.items()
    )
    return [
        f"Accuracy on the test set, %: {accuracy}.",
        f"DKL was trained from scratch on {training['images']:,} images (epochs: {training['epochs']}) in "
        f"{training['seconds']:.0f} s on {training['device']}; the other methods share the plain network.",
        "*Each batch's range*: features of test points are scaled by their range in each batch, as in the "
        "paper's code, so that far-away ones land among the others and a prediction depends on its batch. "
        "*Training's range*: they are scaled as in training and clamped.",
    ]
