"""The ReLU-GP residual on the embedded digits: near the data and far from them.

    python benchmarks/residual.py [--splits N]

The embedded LeNet; 1,000 of the 2,000 test digits tune, 1,000 score, for N splits: means over these, the
NLL as a multiple of the plain network's with the prior tuned by NLL. Prints the table of docs/infinity.md.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes import metrics
from bitbayes.data import digits, digits_lenet, validation_split
from bitbayes.errors import EdgeWarning
from bitbayes.prior import variance_grid
from bitbayes.tuning.tune import RESIDUAL_PRICE

FAR = ("noise", "noise × 10", "noise × 2,000", "test × 100")
Part = tuple[Tensor, Tensor]


class Plain(nn.Module):
    """The network itself, with the name that the others have for it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @torch.no_grad()
    def predict_proba(self, x: Tensor) -> Tensor:
        probs: Tensor = self.model(x).softmax(1)
        return probs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=8)
    splits = parser.parse_args().splits
    warnings.simplefilter("ignore", EdgeWarning)
    data, model = digits(), digits_lenet()
    train = [(data.train_images, data.train_labels)]
    plain, wide = bb.Laplace(model).fit(train), bb.Laplace(model, residual=True).fit(train)
    rows: dict[str, list[list[float]]] = {}
    for seed in range(splits):
        validation, test = validation_split(data.test_images, data.test_labels, 1000, seed)
        noise = torch.rand(1000, 1, 28, 28, generator=torch.Generator().manual_seed(1000 + seed))
        outliers = [noise, 10 * noise, 2000 * noise, 100 * test[0]]
        base: float | None = None
        for name, method in methods(model, plain, wide, validation):
            scores = score(method, test, outliers)
            base = scores[1] if name == "prior by NLL" else base
            rows.setdefault(name, []).append(scores)
        for each in rows.values():
            each[-1][1] /= base or 1
    print(f"{'':28} accuracy   NLL (worst)    ECE" + "".join(f"{name:>16}" for name in FAR))
    for name, found in rows.items():
        accuracy, nll, ece, *far = torch.tensor(found).mean(0).tolist()
        worst = max(each[1] for each in found)
        pairs = [f"{far[i]:.0f} / {far[i + 1]:.1f}" for i in range(0, len(far), 2)]
        print(
            f"{name:28}{accuracy:8.2f} {nll:8.3f} ({worst:.3f}){ece:6.2f}"
            + "".join(f"{p:>16}" for p in pairs)
        )


def methods(model: nn.Module, plain: bb.Laplace, wide: bb.Laplace, validation: Part):  # type: ignore
    """Names and what predicts, tuned one after the other."""
    yield "plain network", Plain(model)
    yield "prior by NLL", plain.tune([validation], objective="nll")
    base = metrics.nll(plain.predict_proba(validation[0]), validation[1])
    yield "paper's objective", plain.tune([validation], objective="ood")
    yield "NLL and residual", wide.tune([validation], objective="nll")
    yield "NLL, residual not hinged", unhinged(wide, validation, base)
    yield "paper's objective, residual", wide.tune([validation], objective="ood")


def unhinged(wide: bb.Laplace, validation: Part, base: float) -> bb.Laplace:
    """The half-percent rule with a threshold of 0."""
    wide.residual_threshold = 0.0
    for variance in reversed(variance_grid(33, 1e-6, 1e2)):
        wide.residual_variance = variance
        if metrics.nll(wide.predict_proba(validation[0]), validation[1]) <= base * (1 + RESIDUAL_PRICE):
            break
    return wide


def score(method: bb.Laplace | Plain, test: Part, outliers: list[Tensor]) -> list[float]:
    """Accuracy %, NLL, ECE %, then MMC % and AUROC % on each set of outliers."""
    inside = method.predict_proba(test[0])
    scores = [100 * metrics.accuracy(inside, test[1]), metrics.nll(inside, test[1])]
    scores.append(100 * metrics.ece(inside, test[1]))
    for outside in (method.predict_proba(each) for each in outliers):
        scores += [100 * metrics.mmc(outside), 100 * metrics.auroc(inside, outside)]
    return scores


if __name__ == "__main__":
    main()
