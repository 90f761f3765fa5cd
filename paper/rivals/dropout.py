"""MC dropout (Gal and Ghahramani, 2016): dropout in training, and in each of the passes that are averaged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from paper.methods.base import Network
from paper.resnet import BasicBlock
from paper.rivals.base import Predicted, Predictor, average, choose_temperature
from paper.session import Session
from paper.training import trained

PASSES = 30
# Between the two convolutions of a block, and before the linear layers of a LeNet.
RATE_OF_BLOCKS, RATE_OF_LAYERS = 0.1, 0.5


def dropout_network(session: Session) -> Network:
    """The network of the problem with dropout, trained by the problem's own recipe."""
    problem, options = session.problem, session.options
    return Network(
        trained(
            options.cache,
            session.network_name(problem, "dropout", problem.recipe.epochs),
            lambda: with_dropout(problem.make_network(problem.classes)),
            *problem.train,
            recipe=problem.recipe,
            seed=options.seed,
            progress=options.progress,
        )
    )


def with_dropout(network: nn.Module) -> nn.Module:
    """Put dropout into a network, in place, and return it.

    >>> from bitbayes.toys import LeNet
    >>> [type(each).__name__ for each in with_dropout(LeNet())][-4:]
    ['Linear', 'ReLU', 'Dropout', 'Linear']
    """
    blocks = [each for each in network.modules() if isinstance(each, BasicBlock)]
    for block in blocks:
        block.residual.insert(3, nn.Dropout(RATE_OF_BLOCKS))  # behind the ReLU
    if not blocks:
        assert isinstance(network, nn.Sequential)
        linear = [number for number, each in enumerate(network) if isinstance(each, nn.Linear)]
        for number in reversed(linear):
            network.insert(number, nn.Dropout(RATE_OF_LAYERS))
    return network


def mc_dropout(network: nn.Module, images: Tensor, labels: Tensor) -> Predictor:
    """The average over `PASSES` passes, with a temperature chosen on these images."""

    @torch.no_grad()
    def passes(x: Tensor) -> list[Tensor]:
        layers = [each for each in network.modules() if isinstance(each, nn.Dropout)]
        for each in layers:
            each.train()
        try:
            return [network(x) for _ in range(PASSES)]
        finally:
            network.eval()

    temperature = choose_temperature(passes(images), labels)

    def predict(x: Tensor) -> Predicted:
        return average(passes(x), temperature)

    return predict
