"""SWAG (Maddox et al., 2019): a Gaussian about the mean of the weights along further training.

θ = mean + (diag(variance)^½ z₁ + D z₂/√(K − 1)) / √2, where D has the last K weights less their mean. The
statistics of batch norm are made anew for each draw.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from bitbayes.toys import scale_pixels
from paper.methods.base import fast_layout
from paper.problem import Problem
from paper.rivals.base import Predicted, Predictor, average, choose_temperature
from paper.training import Recipe
from paper.training.objectives import plain
from paper.training.step import TrainingStep
from paper.training.train import shuffled_batches

DRAWS = 30
EPOCHS, SGD_RATE, ADAM_RATE = 20, 0.01, 1e-4
# The training images from which the statistics of batch norm are made, in batches of the recipe's size.
IMAGES_FOR_STATISTICS = 10_000


def swag(network: nn.Module, problem: Problem, images: Tensor, labels: Tensor, seed: int = 0) -> Predictor:
    """The average over `DRAWS` networks, with a temperature chosen on these images."""
    mean, deviation, columns = trajectory(network, problem, seed)
    generator = torch.Generator(mean.device).manual_seed(seed)
    networks = []
    for _ in range(DRAWS):
        own, shared = (
            torch.randn(size, device=mean.device, generator=generator) for size in (len(mean), len(columns))
        )
        spread = deviation * own + columns.T @ shared / max(1, len(columns) - 1) ** 0.5
        drawn = copy.deepcopy(network)
        vector_to_parameters(mean + spread / 2**0.5, drawn.parameters())
        networks.append(with_new_statistics(drawn, problem))

    @torch.no_grad()
    def passes(x: Tensor) -> list[Tensor]:
        return [each(x) for each in networks]

    temperature = choose_temperature(passes(images), labels)

    def predict(x: Tensor) -> Predicted:
        return average(passes(x), temperature)

    return predict


def trajectory(network: nn.Module, problem: Problem, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Train a copy further at a constant rate; return the mean, the deviations and the columns (K, P)."""
    recipe: Recipe = problem.recipe
    moving = copy.deepcopy(network).train()
    moving.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = TrainingStep(moving, recipe.make_optimizer(moving), plain)
    step.start_phase(SGD_RATE if recipe.optimizer == "sgd" else ADAM_RATE)
    images, labels = problem.train
    weights = []
    for epoch in range(min(EPOCHS, recipe.epochs)):
        generator = torch.Generator(images.device).manual_seed(1_000_003 * seed + 10_000 + epoch)
        for x, y in shuffled_batches(images, labels, recipe, generator):
            step(x, y, x[:0])
        weights.append(torch.cat([each.detach().reshape(-1) for each in moving.parameters()]))
    stacked = torch.stack(weights)  # (K, P)
    mean = stacked.mean(0)
    # By differences: E θ² − (E θ)² loses its digits.
    columns = stacked - mean
    return mean, columns.square().mean(0).sqrt(), columns


@torch.no_grad()
def with_new_statistics(network: nn.Module, problem: Problem) -> nn.Module:
    """Make the running means and variances of batch norm anew, by plain averages over batches."""
    layers = [each for each in network.modules() if isinstance(each, nn.BatchNorm2d)]
    if layers:
        momenta = [each.momentum for each in layers]
        for each in layers:
            each.reset_running_stats()
            each.momentum = None  # an average over all batches
        network.train()
        for x in torch.split(problem.train.images[:IMAGES_FOR_STATISTICS], problem.recipe.batch_size):
            if len(x) > 1:
                network(fast_layout(scale_pixels(x)))
        for each, momentum in zip(layers, momenta, strict=True):
            each.momentum = momentum
    return network.eval()
