"""What `bound` says in both its forms, beside the largest limit that was seen: the table of docs/infinity.md.

    python benchmarks/bounds.py

The paper's two moons with its network, small networks on two moons, and the embedded digits with their LeNet.
Limits are those along random rays, and for the digits along those of test images too, which were not used to
tune. The residual is off: with it, all limits are 1/k. The last column is the largest confidence at the data
themselves, which one number for all inputs cannot be below.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.errors import EdgeWarning
from bitbayes.toys import MLP, digits, digits_lenet, make_moons, train_toy, two_moons

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.toys import fit_laplace

RAYS, RAYS_OVER_ALL_LAYERS = 2000, 50


def main() -> None:
    warnings.simplefilter("ignore", EdgeWarning)
    print("| | layers | σ₀² | theorem's | tight | largest limit seen | at the data |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for name, bayes, far, data in cases():
        theorem, tight = (bayes.bound(far, form=form).max() for form in ("theorem", "tight"))
        seen = max(float(bayes.limit(part).confidence.max()) for part in torch.split(far, 500))
        near = bayes.predict_proba([data]).max()
        numbers = " | ".join(f"{value:.4f}" for value in (theorem, tight, seen, near))
        print(f"| {name} | {bayes.layers} | {bayes.prior_variance:.3g} | {numbers} |", flush=True)


def cases() -> Iterator[tuple[str, bb.Laplace, Tensor, Tensor]]:
    """The name of each problem, a fitted Laplace without a residual, rays, and data."""
    toy = make_moons()
    yield "two moons, the paper's network", fit_laplace(toy, train_toy(toy)), rays((2,)), toy.x
    x, y = two_moons(200, noise=0.3, seed=1)
    for k in (1, 2):
        model = train(MLP((2, 20, 20, k)), x, y)
        for layers, far in (("last", rays((2,))), ("all", rays((2,))[:RAYS_OVER_ALL_LAYERS])):
            for variance in (1.0, 100.0):
                bayes = bb.Laplace(model, layers=layers, prior_variance=variance, residual=False)
                yield f"two moons, MLP, {k} logit{'s' * (k > 1)}", bayes.fit([(x, y)]), far, x
    data = digits()
    half = len(data.test_images) // 2
    images, held_out = data.test_images[half:], [(data.test_images[:half], data.test_labels[:half])]
    for objective in ("calibrated", "ood"):
        bayes = bb.Laplace(digits_lenet(), residual=False).fit([(data.train_images, data.train_labels)])
        bayes.tune(held_out, objective=objective)
        yield f'digits, LeNet, "{objective}"', bayes, torch.cat([rays((1, 28, 28)), images]), images


def rays(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(RAYS, *shape, generator=torch.Generator().manual_seed(0))


def train(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        logits = model(x)
        one = logits.shape[1] == 1
        loss = nn.functional.binary_cross_entropy_with_logits if one else nn.functional.cross_entropy
        loss(*((logits[:, 0], y.float()) if one else (logits, y))).backward()
        optimiser.step()
    return model


if __name__ == "__main__":
    main()
