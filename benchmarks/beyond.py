"""How close `certify(x, at_most=c).beyond` comes to the last δ with a confidence above c, and what it costs.

    python benchmarks/beyond.py [--threads N] [--rays N]

An MLP on two moons, over the last and over all layers, and the LeNet of the embedded digits, each with its
default residual, tuned on held-out points. Rays go through held-out points. The last crossing is the last
point of a grid of δ, by steps of 0.2 per cent, at which a prediction in float64 is above c.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import bitbayes as bb
from bitbayes.errors import EdgeWarning
from bitbayes.toys import MLP, digits, digits_lenet, two_moons

SMALLEST, RATIO = 0.05, 1.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rays", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", EdgeWarning)
    print("| | c | alpha | beyond | last crossing | beyond / crossing, at most | seconds per ray |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, bayes, x, confidences in cases(options.rays):
        for at_most in confidences:
            start = time.process_time()
            found = bayes.certify(x, at_most=at_most)
            seconds = (time.process_time() - start) / len(x)
            crossing = last_crossing(bayes, x, at_most, 1.1 * float(found.beyond.max()))
            ratio = (found.beyond / crossing)[crossing > 0].max()
            medians = " | ".join(f"{each.median():.4g}" for each in (found.alpha, found.beyond, crossing))
            print(f"| {name} | {at_most} | {medians} | {ratio:.3f} | {seconds:.2g} |", flush=True)


def cases(rays: int) -> Iterator[tuple[str, bb.Laplace, Tensor, tuple[float, ...]]]:
    """The name of each problem, a tuned Laplace in float64, rays, and confidences c."""
    torch.manual_seed(0)
    train, held_out, test = (two_moons(200, noise=0.2, seed=seed) for seed in (1, 2, 3))
    model = MLP((2, 20, 20, 2))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(train[0]), train[1]).backward()
        optimiser.step()
    every = torch.linspace(0, len(test[0]) - 1, rays).long()
    for layers in ("last", "all"):
        bayes = tuned(bb.Laplace(model.double(), layers=layers), train, held_out)
        yield f"two moons, MLP, {layers}", bayes, test[0][every].double(), (0.55, 0.7, 0.9)
    data = digits()
    half = len(data.test_images) // 2
    held_out = data.test_images[:half], data.test_labels[:half]
    bayes = tuned(bb.Laplace(digits_lenet().double()), (data.train_images, data.train_labels), held_out)
    yield "digits, LeNet, last", bayes, data.test_images[half : half + rays].double(), (0.2, 0.5, 0.9)


def tuned(bayes: bb.Laplace, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor]) -> bb.Laplace:
    def batches(points: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
        x, y = (torch.split(each, 500) for each in points)
        return [(each.double(), labels) for each, labels in zip(x, y, strict=True)]

    return bayes.fit(batches(train), progress=False).tune(batches(held_out), progress=False)


def last_crossing(bayes: bb.Laplace, x: Tensor, at_most: float, up_to: float) -> Tensor:
    """The last δ of a grid up to a number at which the confidence is above c, (n,); 0 if there is none."""
    count = math.ceil(math.log(up_to / SMALLEST) / math.log(RATIO))
    last, open_rays = torch.zeros(len(x), dtype=torch.float64), torch.arange(len(x))
    for step in range(count, -1, -1):  # from far away, until each ray has its crossing
        if not len(open_rays):
            break
        delta = SMALLEST * RATIO**step
        above = bayes.predict_proba(delta * x[open_rays]).amax(1) > at_most
        last[open_rays[above]] = delta
        open_rays = open_rays[~above]
    return last


if __name__ == "__main__":
    main()
