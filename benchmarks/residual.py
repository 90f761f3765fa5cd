"""The default near the data and beyond, on the embedded digits and on tables, beside temperature scaling.

    python benchmarks/residual.py [--splits N]

Digits: the embedded LeNet; 1,000 of the 2,000 test digits tune, 1,000 score. Tables: an MLP with two hidden
layers of 64 units; half of the rows train, a fifth tunes, the others score. Columns are standardised. Means
over N splits. Prints the tables of docs/residual.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

import bitbayes as bb
from bitbayes import metrics
from bitbayes.errors import EdgeWarning
from bitbayes.toys import digits, digits_lenet, validation_split

Part = tuple[Tensor, Tensor]
ACCEPTED = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=5)
    splits = parser.parse_args().splits
    warnings.simplefilter("ignore", EdgeWarning)
    print_digits(splits)
    print_tables(splits)


def print_digits(splits: int) -> None:
    """Confidence, accepted share and AUROC on other images, and on scaled digits with their accuracy."""
    data, model = digits(), digits_lenet()
    bayes = bb.Laplace(model).fit([(data.train_images, data.train_labels)], progress=False)
    rows: dict[str, list[list[float]]] = {}
    columns: list[str] = []
    for seed in range(splits):
        validation, (x, y) = validation_split(data.test_images, data.test_labels, 1000, seed)
        noise = torch.rand(1000, 1, 28, 28, generator=torch.Generator().manual_seed(1000 + seed))
        sets = {"letters": data.letters_images, "Fashion-MNIST": data.fashion_images, "noise": noise}
        sets |= {f"digits × {scale:,g}": scale * x for scale in (1.5, 2, 2000)}
        columns = list(sets)
        scaled = bb.TemperatureScaling(model).fit([validation], progress=False)
        bayes.tune([validation], progress=False)
        for name, rate in (("temperature scaling", by_energy(scaled)), ("default", bayes.predict_and_score)):
            rows.setdefault(name, []).append(measure(rate, (x, y), sets))
    print("| | accuracy | NLL | ECE | " + " | ".join(columns) + " |")
    print("|---|" + "--:|" * (3 + len(columns)))
    for name, found in rows.items():
        accuracy, nll, ece, *rest = torch.tensor(found).mean(0).tolist()
        cells = [f"{rest[i]:.0f} / {rest[i + 1]:.0f} / {rest[i + 2]:.1f}" for i in range(0, len(rest), 3)]
        print(f"| {name} | {accuracy:.1f} | {nll:.4f} | {ece:.2f} | " + " | ".join(cells) + " |")
    with torch.no_grad():
        right = [
            100 * metrics.accuracy(model(scale * data.test_images).softmax(1), data.test_labels)
            for scale in (1, 1.5, 2)
        ]
    print(f"\naccuracy on digits, × 1.5 and × 2: {', '.join(f'{each:.1f}' for each in right)}%\n")


def print_tables(splits: int) -> None:
    """The NLL relative to temperature scaling, and the shares of changed rows that are accepted."""
    first = True
    for name, (x, y) in tables().items():
        ratios, found = [], []
        for seed in range(splits):
            ratio, accepted = table_split(x, y, seed)
            ratios.append(ratio)
            found.append(list(accepted.values()))
            if first:
                print(f"| | NLL | {' | '.join(accepted)} |")
                print("|---|" + "--:|" * (1 + len(accepted)))
                first = False
        cells = " | ".join(f"{each:.0f}" for each in np.mean(found, 0))
        print(f"| {name} | {np.mean(ratios):.3f} | {cells} |")


def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    cancer, wine, small = datasets.load_breast_cancer(), datasets.load_wine(), datasets.load_digits()
    noisy = {"n_informative": 10, "n_classes": 4, "flip_y": 0.2, "class_sep": 1.5, "random_state": 0}
    noisier = {"n_informative": 8, "n_redundant": 8, "n_classes": 3, "flip_y": 0.3, "random_state": 1}
    return {
        "breast cancer": (cancer.data, cancer.target),
        "wine": (wine.data, wine.target),
        "digits, 8 × 8": (small.data, small.target),
        "20% of labels flipped": datasets.make_classification(2000, 20, **noisy),
        "30% of labels flipped": datasets.make_classification(3000, 30, **noisier),
    }


def table_split(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[float, dict[str, float]]:
    """NLL of the default over that of temperature scaling, and accepted shares in %."""
    order = np.random.RandomState(seed).permutation(len(x))
    half, rest = len(x) // 2, int(0.7 * len(x))
    train, val, test = order[:half], order[half:rest], order[rest:]
    x = (x - x[train].mean(0)) / (x[train].std(0) + 1e-9)
    rows, labels = torch.tensor(x).float(), torch.tensor(y)
    model = trained(rows[train], labels[train], seed)
    bayes = bb.Laplace(model).fit([(rows[train], labels[train])], progress=False)
    bayes.tune([(rows[val], labels[val])], progress=False)
    scaled = bb.TemperatureScaling(model).fit([(rows[val], labels[val])], progress=False)
    inside, right = rows[test], labels[test]
    generator = torch.Generator().manual_seed(seed)
    columns = inside.shape[1]
    moved = inside.clone()
    moved[torch.arange(len(moved)), torch.randint(0, columns, (len(moved),), generator=generator)] += 10
    orders = [torch.randperm(len(inside), generator=generator) for _ in range(columns)]
    sets = {f"× {scale}": scale * inside for scale in (2, 5, 10)}
    sets["±10σ"] = 20 * torch.rand(inside.shape, generator=generator) - 10
    sets["one column +10σ"] = moved
    sets["columns shuffled"] = torch.stack([inside[each, j] for j, each in enumerate(orders)], dim=1)
    threshold = bayes.threshold(rows[val], accept=ACCEPTED)
    accepted = {
        name: 100 * float((bayes.score(each) >= threshold).float().mean()) for name, each in sets.items()
    }
    probs, base = bayes.predict_proba(inside), scaled.predict_proba(inside)
    return metrics.nll(probs, right) / metrics.nll(base, right), accepted


def trained(x: Tensor, y: Tensor, seed: int, epochs: int = 60) -> nn.Module:
    torch.manual_seed(seed)
    model = bb.toys.MLP((x.shape[1], 64, 64, int(y.max()) + 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return model.eval()


def by_energy(scaled: bb.TemperatureScaling) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    @torch.no_grad()
    def rate(x: Tensor) -> tuple[Tensor, Tensor]:
        return scaled.predict_proba(x), scaled.model(x).logsumexp(1)

    return rate


def measure(
    rate: Callable[[Tensor], tuple[Tensor, Tensor]], test: Part, sets: dict[str, Tensor]
) -> list[float]:
    """Accuracy %, NLL, ECE %, then confidence, accepted share and AUROC on each set, in %."""
    probs, inside = rate(test[0])
    found = [
        100 * metrics.accuracy(probs, test[1]),
        metrics.nll(probs, test[1]),
        100 * metrics.ece(probs, test[1]),
    ]
    threshold = metrics.threshold(inside, accept=ACCEPTED)
    for x in sets.values():
        probs, outside = rate(x)
        found += [100 * metrics.mmc(probs), 100 * float((outside >= threshold).double().mean())]
        found.append(100 * metrics.auroc(inside, outside))
    return found


if __name__ == "__main__":
    main()
