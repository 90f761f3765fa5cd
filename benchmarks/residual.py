"""The default and the ReLU-GP residual on the embedded digits: near the data and far from them.

    python benchmarks/residual.py [--splits N]

The embedded LeNet; 1,000 of the 2,000 test digits tune, 1,000 score, for N splits: means over these, the
NLL as a multiple of that of temperature scaling. Prints the table of docs/residual.md.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes import metrics
from bitbayes.errors import EdgeWarning
from bitbayes.toys import digits, digits_lenet, validation_split

FAR = ("noise", "noise × 10", "noise × 2,000", "test × 100")
Part = tuple[Tensor, Tensor]
Rate = Callable[[Tensor], tuple[Tensor, Tensor]]  # inputs → probabilities (n, k) and scores (n,)
BASE = "temperature scaling"
LEVELS = {"input and features": ("9",), "input and every layer's input": ("3", "7", "9")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=8)
    splits = parser.parse_args().splits
    warnings.simplefilter("ignore", EdgeWarning)
    data, model = digits(), digits_lenet()
    train = [(data.train_images, data.train_labels)]
    fitted = bb.Laplace(model).fit(train)
    levels = {name: bb.Laplace(model, residual=layers).fit(train) for name, layers in LEVELS.items()}
    rows: dict[str, list[list[float]]] = {}
    for seed in range(splits):
        validation, test = validation_split(data.test_images, data.test_labels, 1000, seed)
        noise = torch.rand(1000, 1, 28, 28, generator=torch.Generator().manual_seed(1000 + seed))
        outliers = [noise, 10 * noise, 2000 * noise, 100 * test[0]]
        for name, rate in methods(model, fitted, levels, validation):
            rows.setdefault(name, []).append(score(rate, test, outliers))
        base = rows[BASE][-1][1]
        for each in rows.values():
            each[-1][1] /= base
    print("| | accuracy | NLL (worst) | ECE | " + " | ".join(FAR) + " |")
    print("|---|" + "--:|" * (3 + len(FAR)))
    for name, found in rows.items():
        accuracy, nll, ece, *far = torch.tensor(found).mean(0).tolist()
        worst = max(each[1] for each in found)
        pairs = [f"{far[i]:.0f} / {far[i + 1]:.1f}" for i in range(0, len(far), 2)]
        print(
            f"| {name} | {accuracy:.2f} | {nll:.3f} ({worst:.3f}) | {ece:.2f} | " + " | ".join(pairs) + " |"
        )


def methods(
    model: nn.Module, fitted: bb.Laplace, levels: dict[str, bb.Laplace], validation: Part
) -> Iterator[tuple[str, Rate]]:
    """Names and what predicts, tuned one after the other."""
    yield "plain network", by_confidence(lambda x: model(x).softmax(1))
    scaled = bb.TemperatureScaling(model).fit([validation], progress=False)
    yield BASE, by_confidence(scaled.predict_proba)
    yield "default", by_score(copy.copy(fitted).tune([validation]))
    narrow = copy.copy(fitted).tune([validation])
    narrow.residual_variance = 0.0
    yield "default without its residual", by_score(narrow)
    yield "prior by NLL", by_score(copy.copy(fitted).tune([validation], objective="nll"))
    yield "paper's objective", by_score(copy.copy(fitted).tune([validation], objective="ood"))
    for name, bayes in levels.items():
        yield f"default, residual at {name}", by_score(bayes.tune([validation]))


def by_confidence(predict: Callable[[Tensor], Tensor]) -> Rate:
    """Scores are confidences."""

    @torch.no_grad()
    def rate(x: Tensor) -> tuple[Tensor, Tensor]:
        probs = predict(x)
        return probs, probs.amax(1)

    return rate


def by_score(bayes: bb.Laplace) -> Rate:
    """Scores are those of `bayes.score`, of one forward pass with the probabilities."""

    return bayes.predict_and_score


def score(rate: Rate, test: Part, outliers: list[Tensor]) -> list[float]:
    """Accuracy %, NLL, ECE %, then MMC % and AUROC % on each set of outliers."""
    probs, inside = rate(test[0])
    scores = [100 * metrics.accuracy(probs, test[1]), metrics.nll(probs, test[1])]
    scores.append(100 * metrics.ece(probs, test[1]))
    for probs, outside in map(rate, outliers):
        scores += [100 * metrics.mmc(probs), 100 * metrics.auroc(inside, outside)]
    return scores


if __name__ == "__main__":
    main()
