"""All layers for many classes: fit, predict and tune in plain forward passes, by draws and exactly.

    python benchmarks/many_classes.py [--classes 10 100 1000] [--images 32] [--exact 100] [--device cuda]
    python benchmarks/many_classes.py --imagenet --images 64 --device cuda

A small ResNet with batch norm on random images of 16 × 16 pixels. With `--imagenet` torchvision's ResNet-50
on images of 224 × 224, for 1,000 classes, untrained. Each number is the time of a job divided by that of a
plain forward pass over the same images, on a warm cache. "draws": `curvature="fisher"` and
`covariance="draws"`. "exact": both exact, for up to `--exact` classes: its cost grows with them. `tune` has
the candidates in it, too.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import bitbayes as bb
from timing import Batches, plain, seconds


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(inside)) + self.skip(x)).relu()


def resnet(classes: int) -> nn.Module:
    blocks = [Block(3, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def resnet50() -> nn.Module:
    from torchvision.models import resnet50  # here, because only this choice needs it

    made: nn.Module = resnet50(weights=None)
    return made


def passes(model: nn.Module, data: Batches, job: Callable[[], object], repeats: int = 3) -> float:
    """The median time of the job in plain forward passes, which are timed before and after it."""
    ratios = []
    for _ in range(repeats):
        before = min(seconds(lambda: plain(model, data)) for _ in range(3))
        own = seconds(job)
        after = min(seconds(lambda: plain(model, data)) for _ in range(3))
        ratios.append(2 * own / (before + after))
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--exact", type=int, default=100, help="the most classes for the exact form")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--imagenet", action="store_true", help="a ResNet-50 with 1,000 classes")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(name)
    print(f"{'classes':>8} {'form':>6} {'fit':>9} {'predict':>9} {'tune':>9}   (plain forward passes)")
    for classes in [1000] if options.imagenet else options.classes:
        model = (resnet50() if options.imagenet else resnet(classes)).eval().to(options.device)
        side = 224 if options.imagenet else 16
        images = torch.rand(options.images, 3, side, side).to(options.device)
        data = Batches(images, torch.arange(options.images).to(options.device) % classes)
        images_only = Batches(images)
        plain(model, data)
        for form in ("draws", "exact"):
            if form == "exact" and classes > options.exact:
                continue
            given = (bb.Fisher(draws=1), bb.Draws(options.draws)) if form == "draws" else ("exact", "exact")
            bayes = bb.Laplace(
                model, layers="all", prior_variance=1e-3, curvature=given[0], covariance=given[1]
            )
            bayes.fit(data)
            bayes.predict_proba(images_only)  # decompositions and draws are kept
            found = [
                passes(model, data, partial(bayes.fit, data), 1),
                passes(model, data, partial(bayes.tune, data, objective="nll"), 1),
            ]
            bayes.prior_variance = 1e-3
            bayes.predict_proba(images_only)
            predict = passes(model, data, partial(bayes.predict_proba, images_only))
            print(f"{classes:>8} {form:>6} {found[0]:>9.1f} {predict:>9.1f} {found[1]:>9.1f}", flush=True)
    print(f"in all {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
