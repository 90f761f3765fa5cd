"""What `tune(class_bias=True)` mends after trainings with class weights and with a focal loss.

    python benchmarks/class_bias.py [--seeds N]

The embedded digits, of which class c has 0.7^c times as many as class 0, in training, validation and test
data alike. A fifth of all labels are shuffled. An MLP with one hidden layer is trained with
the plain loss, with the loss weighted by the inverse frequencies of the classes, and with a focal loss
(γ = 3). Then a Laplace over the last layer is fitted and tuned on the validation data, with one temperature
alone and with class biases. Means over N seeds. Prints the tables of docs/weights.md: first for all
validation points, then the NLL for few of them, relative to the temperature alone.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import bitbayes as bb
from bitbayes import metrics
from bitbayes.errors import EdgeWarning, FewPointsWarning
from bitbayes.toys import digits, validation_split

Part = tuple[Tensor, Tensor]
SHARE, FLIPPED, GAMMA, EPOCHS = 0.7, 0.2, 3.0, 30
TRAININGS = ("plain", "class weights", "focal loss")
COUNTS = (10, 20, 50, 100, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore", EdgeWarning)
    warnings.simplefilter("ignore", FewPointsWarning)
    found = {name: [measure(name, seed) for seed in range(seeds)] for name in TRAININGS}
    print("| training | | NLL | ECE | balanced accuracy |")
    print("|---|---|--:|--:|--:|")
    for name, runs in found.items():
        for method in ("network", "temperature", "class bias"):
            nll, ece, balanced = np.mean([scores[method] for scores, _ in runs], 0)
            print(f"| {name} | {method} | {nll:.3f} | {100 * ece:.1f} | {100 * balanced:.1f} |")
    print("\n| validation points | " + " | ".join(map(str, COUNTS)) + " |")
    print("|---|" + "--:|" * len(COUNTS))
    for name, runs in found.items():
        ratios = np.array([few for _, few in runs])  # (seeds, counts)
        cells = [
            f"{mean:.3f} ({worst:.2f})" for mean, worst in zip(ratios.mean(0), ratios.max(0), strict=True)
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


def measure(name: str, seed: int) -> tuple[dict[str, list[float]], list[float]]:
    """NLL, ECE and balanced accuracy by each method; and ratios of the NLL for few validation points."""
    generator = torch.Generator().manual_seed(seed)
    data = digits()
    train = imbalanced(data.train_images, data.train_labels, generator)
    validation, test = validation_split(*imbalanced(data.test_images, data.test_labels, generator), 330, seed)
    model = trained(name, train, seed)
    bayes = bb.Laplace(model).fit([train], progress=False)
    with torch.no_grad():
        scores = {"network": scores_of(model(test[0]).softmax(1), test[1])}
    for method, class_bias in (("temperature", False), ("class bias", True)):
        bayes.tune([validation], class_bias=class_bias, progress=False)
        scores[method] = scores_of(bayes.predict_proba(test[0]), test[1])
    ratios = []
    for count in COUNTS:
        few = validation[0][:count], validation[1][:count]
        plain, biased = (
            metrics.nll(bayes.tune([few], class_bias=each, progress=False).predict_proba(test[0]), test[1])
            for each in (False, True)
        )
        ratios.append(biased / plain)
    return scores, ratios


def imbalanced(images: Tensor, labels: Tensor, generator: torch.Generator) -> Part:
    """A share SHARE^c of the points of class c, and a share FLIPPED of them with another label."""
    kept = torch.rand(len(labels), generator=generator) < SHARE**labels
    images, labels = images[kept], labels[kept]
    flipped = torch.rand(len(labels), generator=generator) < FLIPPED
    others = labels[torch.randperm(len(labels), generator=generator)]
    return images, torch.where(flipped, others, labels)


def trained(name: str, data: Part, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    x, y = data
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    weights = torch.ones(10)
    if name == "class weights":
        counts = y.bincount(minlength=10)
        weights = len(y) / (10 * counts)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            losses = functional.cross_entropy(model(x[rows]), y[rows], weights, reduction="none")
            if name == "focal loss":
                losses = (1 - (-losses).exp()) ** GAMMA * losses
            losses.mean().backward()
            optimiser.step()
    return model.eval()


def scores_of(probs: Tensor, labels: Tensor) -> list[float]:
    """NLL, ECE, and the mean over the classes of the share that is recognised."""
    right = (probs.argmax(1) == labels).double()
    recalls = [right[labels == c].mean().item() for c in labels.unique()]
    return [metrics.nll(probs, labels), metrics.ece(probs, labels), float(np.mean(recalls))]


if __name__ == "__main__":
    main()
