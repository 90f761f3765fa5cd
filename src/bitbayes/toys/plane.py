"""The paper's toy sets in the plane.

They hold exactly the paper's points: random numbers come from numpy's `RandomState`, whose stream never
changes, in scikit-learn's order. The points are sorted by class.
"""

import numpy as np
import torch
from torch import Tensor

from bitbayes.errors import ArgumentError


def two_moons(n: int = 90, *, noise: float = 0.1, seed: int = 66) -> tuple[Tensor, Tensor]:
    """Return two interleaving half circles: points x (n, 2) in float32, classes y (n,) in int64.

    Class 0 is (cos t, sin t) and class 1 is (1 − cos t, 1/2 − sin t), with t evenly spaced on [0, π]. The
    defaults give the paper's training set. `two_moons(200, noise=0.05, seed=1)` is its validation set.

    Args:
        n: the number of points.
        noise: the standard deviation of the Gaussian noise that is added to each coordinate.
        seed: determines the noise.

    >>> x, y = two_moons(4, noise=0.0)
    >>> x.round(decimals=4)
    tensor([[ 1.0000,  0.0000], [-1.0000,  0.0000], [ 0.0000,  0.5000], [ 2.0000,  0.5000]])
    >>> y
    tensor([0, 0, 1, 1])
    """
    if n < 2:
        raise ArgumentError(f"n={n} is too few: two moons need at least 2 points")
    if not noise >= 0:
        raise ArgumentError(f"noise={noise} is no standard deviation: give 0 or more")
    stream = np.random.RandomState(seed)
    sizes = [n // 2, n - n // 2]
    outer, inner = (np.linspace(0, np.pi, size) for size in sizes)  # angles
    x = np.concatenate(
        [
            np.stack([np.cos(outer), np.sin(outer)], axis=1),
            np.stack([1 - np.cos(inner), 0.5 - np.sin(inner)], axis=1),
        ]
    )  # (n, 2)
    # scikit-learn adds the noise to shuffled points: adding it in that order gives its points, unshuffled.
    x[stream.permutation(n)] += stream.normal(scale=noise, size=(n, 2))
    return _as_tensors(x, sizes)


def gaussians(
    n: int = 90,
    *,
    classes: int = 2,
    std: float = 0.7,
    box: tuple[float, float] = (4.0, 7.5),
    seed: int = 62,
) -> tuple[Tensor, Tensor]:
    """Return one round cloud per class: points x (n, 2) in float32, classes y (n,) in int64.

    x | y = c is N(μ_c, std²·I), with each centre μ_c uniform in the square box × box. The defaults give the
    paper's binary set. Its set of four classes is `gaussians(500, classes=4, std=1.2, box=(-10, 10),
    seed=37)`.

    Args:
        n: the number of points. Each class has n / classes of them; if that is not an integer, the first
            classes have one more than the others.
        classes: the number of clouds.
        std: the standard deviation of each coordinate within a cloud.
        box: the lowest and the highest coordinate of a centre.
        seed: determines the centres and the points. To get more points of the same clouds, draw all of them
            in one call and split them.

    >>> x, y = gaussians(500, classes=4, std=1.2, box=(-10, 10), seed=37)
    >>> x.shape, y.bincount()
    (torch.Size([500, 2]), tensor([125, 125, 125, 125]))
    """
    if not 1 <= classes <= n:
        raise ArgumentError(f"n={n} points cannot have classes={classes}: give 1 to n classes")
    if not std >= 0:
        raise ArgumentError(f"std={std} is no standard deviation: give 0 or more")
    if not box[0] <= box[1]:
        raise ArgumentError(f"box={box} is empty: give (low, high) with low <= high")
    stream = np.random.RandomState(seed)
    centres = stream.uniform(box[0], box[1], size=(classes, 2))
    sizes = [n // classes + (c < n % classes) for c in range(classes)]
    x = np.repeat(centres, sizes, axis=0) + stream.normal(scale=std, size=(n, 2))
    return _as_tensors(x, sizes)


def _as_tensors(x: np.ndarray, sizes: list[int]) -> tuple[Tensor, Tensor]:
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return torch.from_numpy(x).float(), labels
