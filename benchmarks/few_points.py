"""How few validation points `tune` can do with: its NLL on other points, relative to the plain network's.

    python benchmarks/few_points.py [--draws N]

The embedded digits with their LeNet, and tables with the MLP of residual.py. For each number of validation
points: the mean over draws (and three splits of a table), and the worst draw. Prints the table of
docs/prior.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

import bitbayes as bb
from bitbayes import metrics
from bitbayes.errors import EdgeWarning, FewPointsWarning
from bitbayes.toys import digits, digits_lenet
from residual import Part, tables, trained

COUNTS = (10, 20, 50, 100)
SPLITS = 3
TABLES = ("breast cancer", "digits, 8 × 8", "20% of labels flipped", "30% of labels flipped")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    draws = parser.parse_args().draws
    warnings.simplefilter("ignore", EdgeWarning)
    warnings.simplefilter("ignore", FewPointsWarning)
    print("| validation points | " + " | ".join(str(count) for count in COUNTS) + " |")
    print("|---|" + "--:|" * len(COUNTS))
    for name, cases in problems():
        found = np.array([[ratios(*case, count, draws) for count in COUNTS] for case in cases])
        cells = [f"{each.mean():.3f} ({each.max():.2f})" for each in np.moveaxis(found, 1, 0)]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def problems() -> Iterator[tuple[str, list[tuple[nn.Module, Part, Part]]]]:
    """The name of a data set, and for each split of it: a network, its training data, and other data."""
    data = digits()
    yield (
        "embedded digits",
        [(digits_lenet(), (data.train_images, data.train_labels), (data.test_images, data.test_labels))],
    )
    for name in TABLES:
        yield name, [table_split(*tables()[name], seed) for seed in range(SPLITS)]


def table_split(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[nn.Module, Part, Part]:
    order = np.random.RandomState(seed).permutation(len(x))
    train, rest = order[: len(x) // 2], order[len(x) // 2 :]
    x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-9)
    rows, labels = torch.tensor(x).float(), torch.tensor(y)
    return trained(rows[train], labels[train], seed), (rows[train], labels[train]), (rows[rest], labels[rest])


@torch.no_grad()
def ratios(model: nn.Module, train: Part, rest: Part, count: int, draws: int) -> list[float]:
    """The NLL on points that were not drawn, over the plain network's, for each draw."""
    bayes = bb.Laplace(model).fit([train], progress=False)
    found = []
    for draw in range(draws):
        order = torch.randperm(len(rest[0]), generator=torch.Generator().manual_seed(draw))
        few, others = order[:count], order[max(COUNTS) :]
        bayes.tune([(rest[0][few], rest[1][few])], progress=False)
        x, y = rest[0][others], rest[1][others]
        plain = metrics.nll(model(x).softmax(1), y)
        found.append(metrics.nll(bayes.predict_proba(x), y) / plain)
    return found


if __name__ == "__main__":
    main()
