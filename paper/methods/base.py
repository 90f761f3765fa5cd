"""What all methods of the tables share: points, the network in two parts, ratings, and the protocol."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.errors import EdgeWarning, FewPointsWarning
from bitbayes.toys import scale_pixels

IMAGES_PER_BATCH = 1000
OUTLIER_WEIGHT = 0.25  # the paper's λ
LARGEST_PROBABILITY = "largest probability"

# What a method chose in a trial, by name.
Hyperparameters = dict[str, Any]


@dataclass(frozen=True, eq=False)  # compared by identity, so that results can be kept for a set
class Points:
    """Data points: images (n, c, h, w) as floats, their features (n, d), and labels (n,) where they count.

    The features are the last layer's input.
    """

    images: Tensor
    features: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Any) -> Points:
        labels = None if self.labels is None else self.labels[rows]
        return Points(self.images[rows], self.features[rows], labels)

    def batches(self) -> list[Tensor]:
        """The images in batches."""
        return list(torch.split(self.images, IMAGES_PER_BATCH))


class AllLayersFit(NamedTuple):
    """A fitted posterior over all layers, and the seconds that fitting took."""

    bayes: bb.Laplace
    seconds: float


class Network:
    """A trained sequential network, split into a backbone, which gives features, and a last linear layer."""

    def __init__(self, whole: nn.Module) -> None:
        assert isinstance(whole, nn.Sequential)
        self.whole = whole.eval()
        layers = list(whole)
        assert isinstance(layers[-1], nn.Linear)
        self.backbone, self.head = nn.Sequential(*layers[:-1]), layers[-1]
        self.device = next(whole.parameters()).device
        # Fitted posteriors over all layers, by their options: see `fit_all_layers`.
        self.all_layers: dict[tuple[tuple[str, Any], ...], AllLayersFit] = {}

    @torch.no_grad()
    def extract_features(self, images: Tensor, labels: Tensor | None = None) -> Points:
        """Compute the features of images, given as pixels in uint8 or as floats."""
        parts = [fast_layout(scale_pixels(part)) for part in torch.split(images, IMAGES_PER_BATCH)]
        return Points(torch.cat(parts), torch.cat([self.backbone(part) for part in parts]), labels)

    def synchronize(self) -> None:
        """Wait until a GPU has done all its work. Times need that."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def fast_layout(images: Tensor) -> Tensor:
    """Return images (n, c, h, w) with the channels last: convolutions are faster so. Rows (n, d) stay."""
    return images.contiguous(memory_format=torch.channels_last) if images.dim() == 4 else images


class BatchLoader:
    """A loader of batches (x, y) of tensors, which makes no copies. Pixels in uint8 become floats."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int = IMAGES_PER_BATCH) -> None:
        self.x, self.y, self.batch_size = x, y, batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = (torch.split(each, self.batch_size) for each in (self.x, self.y))
        for x, y in zip(*batches, strict=True):
            yield fast_layout(scale_pixels(x)), y


class Rated(NamedTuple):
    """What a method says of some points.

    probs: probabilities (n, k), or None for a method that gives none.
    scores: numbers (n,) by which data are told from outliers, larger for data. The first is the method's own.
    """

    probs: Tensor | None
    scores: dict[str, Tensor]

    @property
    def own_score(self) -> Tensor:
        return next(iter(self.scores.values()))

    def rows(self, which: Tensor) -> Rated:
        """Some of the points, by their numbers."""
        probs = None if self.probs is None else self.probs[which]
        return Rated(probs, {name: each[which] for name, each in self.scores.items()})


class Method(Protocol):
    """A method as the tables use it.

    `tune` returns the hyperparameters chosen on some rows of the test set, and on noise. With these, `rate`
    rates points, and `as_module` returns a module that gives logits, to be attacked. If `tuned_once` is True,
    all trials use what was chosen in the first, and the same random numbers. The paper's code has one prior
    variance for all trials, too.
    """

    tuned_once: bool

    def fit(self, network: Network, images: Tensor, train: Points, labels: Tensor) -> None: ...
    def tune(self, test: Points, rows: Tensor, noise: Points) -> Hyperparameters: ...
    def rate(self, points: Points, chosen: Hyperparameters, seed: int) -> Rated: ...
    def as_module(self, chosen: Hyperparameters) -> nn.Module: ...


def probabilities(logits: Tensor) -> Tensor:
    """Return the softmax of k logits (n, k), or both classes' probabilities (n, 2) of one logit (n, 1)."""
    if logits.shape[1] == 1:
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
    return logits.softmax(1)


def rate_by_probabilities(probs: Tensor, **own: Tensor) -> Rated:
    """Return probabilities with their scores: first the method's `own`, if it has any."""
    entropy = -torch.special.entr(probs).sum(1)
    return Rated(probs, {**own, LARGEST_PROBABILITY: probs.amax(1), "entropy": entropy})


def set_numbers(bayes: bb.Laplace, chosen: Hyperparameters) -> bb.Laplace:
    """Set the numbers that were chosen, and return the Laplace."""
    bayes.settings = replace(bayes.settings, **chosen)
    return bayes


@contextmanager
def ignore_edge_warnings() -> Iterator[None]:
    """Suppress warnings of choices on the edge of the range, and by few points. The tables show both."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        warnings.simplefilter("ignore", FewPointsWarning)
        yield
