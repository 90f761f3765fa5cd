"""What `bound` says in both its forms, beside the largest limit that was seen: the table of docs/infinity.md.

    python benchmarks/bounds.py

The paper's two moons with its network, small networks on two moons, and the embedded digits with their LeNet.
Limits are those along random rays, and for the digits along those of the test images too. The residual is
off: with it, all limits are 1/k. The last column is the largest confidence at the data themselves, which one
number for all inputs cannot be below.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.data import digits, digits_lenet, two_moons
from bitbayes.errors import ArgumentError, EdgeWarning
from bitbayes.networks import MLP
from bitbayes.reproduction.paper.options import Options
from bitbayes.reproduction.paper.toys import fit_laplace, make_moons, train_toy

RAYS, RAYS_OVER_ALL_LAYERS = 2000, 50


def main() -> None:
    warnings.simplefilter("ignore", EdgeWarning)
    print("| | layers | σ₀² | theorem's | tight | largest limit seen | at the data |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for name, bayes, far, data in cases():
        try:
            theorem = f"{bayes.bound(far, form='theorem').max():.4f}"
        except ArgumentError:  # J is too large
            theorem = "none"
        tight = bayes.bound(far).max()
        seen = max(float(bayes.limit(part).confidence.max()) for part in torch.split(far, 500))
        near = bayes.predict_proba([data]).max()
        print(
            f"| {name} | {bayes.layers} | {bayes.prior_variance:.3g} | {theorem} | {tight:.4f} | {seen:.4f} "
            f"| {near:.4f} |",
            flush=True,
        )


def cases() -> Iterator[tuple[str, bb.Laplace, Tensor, Tensor]]:
    """The name of each problem, a fitted Laplace without a residual, rays, and data."""
    toy = make_moons()
    yield "two moons, the paper's network", fit_laplace(toy, train_toy(toy, Options())), rays((2,)), toy.x
    x, y = two_moons(200, noise=0.3, seed=1)
    early = bb.Laplace(train(MLP((2, 20, 20, 1)), x, y, steps=0), prior_variance=1.0, residual=False)
    yield "two moons, MLP, 1 logit, untrained", early.fit([(x, y)]), rays((2,)), x
    for k in (1, 2):
        model = train(MLP((2, 20, 20, k)), x, y)
        for layers, far in (("last", rays((2,))), ("all", rays((2,))[:RAYS_OVER_ALL_LAYERS])):
            bayes = bb.Laplace(model, layers=layers, prior_variance=100.0, residual=False).fit([(x, y)])
            yield f"two moons, MLP, {k} logit{'s' * (k > 1)}", bayes, far, x
    data = digits()
    images, held_out = data.test_images, [(data.test_images, data.test_labels)]
    far = torch.cat([rays((1, 28, 28)), images])
    for layers, some in (("last", far), ("all", images[:RAYS_OVER_ALL_LAYERS])):
        bayes = bb.Laplace(digits_lenet(), layers=layers, residual=False)
        bayes.fit([(data.train_images, data.train_labels)]).tune(held_out, objective="ood")
        yield "digits, LeNet", bayes, some, images


def rays(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(RAYS, *shape, generator=torch.Generator().manual_seed(0))


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int = 300) -> nn.Module:
    torch.manual_seed(0)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        logits = model(x)
        one = logits.shape[1] == 1
        loss = nn.functional.binary_cross_entropy_with_logits if one else nn.functional.cross_entropy
        loss(*((logits[:, 0], y.float()) if one else (logits, y))).backward()
        optimiser.step()
    return model


if __name__ == "__main__":
    main()
