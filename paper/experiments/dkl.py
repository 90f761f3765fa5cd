"""Deep kernel learning, beside the plain network and Laplace approximations of that network."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper.deep_kernel import PREDICTION_DRAWS, DeepKernel
from paper.experiments import ood
from paper.methods import (
    MULTICLASS,
    Hyperparameters,
    MethodEntry,
    Network,
    Points,
    Rated,
    rate_by_probabilities,
)
from paper.numbers import paper_scores
from paper.problem import Problem
from paper.report import Report
from paper.session import Session
from paper.study import Study
from paper.training.cache import hash_tensors, load_or_train
from paper.training.train import shuffled_batches

OTHER_METHODS = ("plain", "llla", "ours", "default")


class TrainedKernel:
    """A trained deep kernel as one of the tables' methods. It has no hyperparameters.

    With a `batch_size`, features are scaled by their range in each batch of test points, as in the paper's
    code. This moves far-away features back among the others. Without, features are clamped to their range in
    training, and scaled by it.
    """

    tuned_once = True

    def __init__(self, kernel: DeepKernel, batch_size: int | None = None) -> None:
        self.kernel, self.batch_size = kernel, batch_size

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        pass

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        return {}

    @torch.no_grad()
    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        generator = torch.Generator(points.images.device).manual_seed(seed)
        if self.batch_size is None:
            return rate_by_probabilities(self.kernel.predict_proba(points.batches(), generator=generator))
        parts = []
        for images in torch.split(points.images, self.batch_size):
            features = self.kernel.features(images)
            bounds = torch.stack([features.amin(), features.amax()])
            parts.append(self.kernel.probabilities(features, bounds, PREDICTION_DRAWS, generator))
        return rate_by_probabilities(torch.cat(parts))

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return self.kernel


class ShuffledLoader:
    """Training images and labels in batches, with a new random order and new crops in each epoch."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem, self.seed, self.epoch = problem, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        images = self.problem.train.images
        generator = torch.Generator(images.device).manual_seed(1_000_003 * self.seed + self.epoch)
        return shuffled_batches(images, self.problem.train.labels, self.problem.recipe, generator)


def load_or_train_kernel(session: Session) -> tuple[DeepKernel, dict[str, Any]]:
    """Return the deep kernel and the record of its training, from the cache or trained now."""
    problem, options = session.problem, session.options
    recipe = replace(problem.recipe, epochs=problem.kernel_epochs or problem.recipe.epochs)
    settings = {
        "recipe": asdict(recipe),
        "objective": "dkl",
        "seed": options.seed,
        "images": len(problem.train.images),
        "data": hash_tensors(problem.train.images, problem.train.labels),
    }

    def run(kernel: DeepKernel, checkpoint_file: Path) -> list[float]:
        kernel.fit(
            ShuffledLoader(problem, options.seed),
            recipe=recipe,
            seed=options.seed,
            checkpoint_file=checkpoint_file,
            progress=options.progress,
        )
        return kernel.losses

    return load_or_train(
        options.cache,
        session.network_name(problem, "dkl", recipe.epochs),
        lambda: DeepKernel(problem.make_network(problem.classes)),
        settings,
        problem.train.images.device,
        run,
    )


def measure(session: Session) -> dict[str, Any]:
    kernel, record = load_or_train_kernel(session)
    plain, options = session.study("plain"), session.options
    study = Study(session.problem, plain.network, options.trials, options.progress)
    batch_size = session.problem.recipe.batch_size
    study.entries = {key: MULTICLASS[key] for key in OTHER_METHODS} | {
        "dkl-batch": MethodEntry(
            "DKL, each batch's range", "DKL", lambda points: TrainedKernel(kernel, batch_size)
        ),
        "dkl": MethodEntry("DKL, training's range", None, lambda points: TrainedKernel(kernel)),
    }
    noise = ood.noise_set(study, ood.MULTICLASS_NOISE_SCALE)
    values = ood.measure(study, ood.image_sets(study) | noise)
    training = {key: record[key] for key in ("seconds", "device", "losses", "images")}
    return values | {"training": training | {"epochs": len(record["losses"])}}


def show(values: dict[str, Any], report: Report) -> None:
    ood.show(values, report, dkl_paper_scores, "Deep kernel learning", *training_notes(values["training"]))


def dkl_paper_scores(train: str, test: str | None, method: str | None) -> dict[str, Any]:
    """Return the paper's numbers. Those of DKL are in a table where the name of the noise lacks its δ."""
    if method == "DKL" and test is not None:
        return paper_scores("dkl", train, test.split(" (")[0], method)
    return paper_scores("table2", train, test, method)


def training_notes(training: dict[str, Any]) -> list[str]:
    """Return notes on the training, and on the two rows of DKL."""
    return [
        f"DKL was trained from scratch on {training['images']:,} images (epochs: {training['epochs']}) in "
        f"{training['seconds']:.0f} s on {training['device']}; the other methods share the plain network.",
        "*Each batch's range*: features of test points are scaled by their range in each batch, as in the "
        "paper's code, so that far-away ones land among the others and a prediction depends on its batch. "
        "*Training's range*: they are scaled as in training and clamped.",
    ]
