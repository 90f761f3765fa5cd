"""bitbayes without any option: `tune` chooses prior variance, temperature and residual."""

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

import bitbayes as bb
from bitbayes.tuning.points import Points as KeptPoints
from paper.methods.base import (
    BatchLoader,
    Hyperparameters,
    Network,
    Points,
    Rated,
    set_numbers,
)
from paper.methods.gaussians import Gaussians


class Default:
    """`bb.Laplace(model).fit(train).tune(validation)`. Every set of images passes the network once."""

    tuned_once = False
    options: ClassVar[dict[str, Any]] = {}  # of `bb.Laplace`

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None:
        self.gaussians = Gaussians(bb.Laplace(network.whole).fit(BatchLoader(images, labels), progress=False))
        # Sets that are no longer in use are forgotten.
        self.kept: WeakKeyDictionary[Points, KeptPoints] = WeakKeyDictionary()

    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters:
        return self.gaussians.choose(self._pass(test).rows(rows))

    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated:
        return self.gaussians.rate(self._pass(points), chosen)

    def as_module(self, chosen: Hyperparameters) -> nn.Module:
        return set_numbers(self.gaussians.bayes, chosen)

    def _pass(self, points: Points) -> KeptPoints:
        if points not in self.kept:
            self.kept[points] = self.gaussians.of(points.images, points.labels)
        return self.kept[points]
