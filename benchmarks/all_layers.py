"""All layers: fit, predict and tune as ratios to a plain forward pass, beside laplace-torch where installed.

    python benchmarks/all_layers.py [--images 10000] [--peer] [--device cuda]
    python benchmarks/all_layers.py --resnet [--images 1000] [--device cuda]

A LeNet-5 of 61,706 parameters on images of 28 × 28 pixels, or a ResNet-18 with batch norm (11 million) on
images of 32 × 32; batches of 128, two threads. Each number is a median over blocks of the data; a plain pass
over the same block is timed before and after each. "MB": the most memory above the plain pass's.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch
from torch import nn

import bitbayes as bb
from timing import Batches, peak_megabytes, plain, ratio, seconds

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.resnet import resnet18


def lenet5() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def ours(model: nn.Module, blocks: list[Batches], structure: str) -> None:
    floor = peak_megabytes()
    options = {"layers": "all", "structure": structure, "prior_variance": 1e-3}
    fisher = bb.Laplace(model, curvature="fisher", **options)
    show(f"{structure}: fit, Fisher with one draw", ratio(model, blocks, fisher.fit))
    bayes = bb.Laplace(model, **options)
    show(f"{structure}: fit, exact", ratio(model, blocks, bayes.fit))
    once = seconds(lambda: bayes.predict_proba(blocks[0].images[:1]))
    each = seconds(lambda: plain(model, blocks[0]))
    show(f"{structure}: decomposition, once after a fit (of a block)", once / each)
    linearised = ratio(model, blocks, bayes.predict_proba)
    show(f"{structure}: predict, linearised", linearised)
    show(
        f"{structure}: predict, 20 networks",
        ratio(model, blocks, lambda b: bayes.predict_proba(b, method="sampled_networks")),
    )
    tuned = ratio(model, blocks, lambda b: bayes.tune(b, objective="nll"))
    show(
        f"{structure}: tune, {len(bayes.posterior.candidates())} candidates, in predictions",
        tuned / linearised,
    )
    print(f"{structure}: {peak_megabytes() - floor:.0f} MB", flush=True)


def peer(model: nn.Module, block: Batches, structure: str) -> None:
    """The same jobs in laplace-torch, with its fastest backend, on one block of the data: it takes long."""
    import laplace
    from laplace.curvature import BackPackGGN
    from torch.utils.data import DataLoader, TensorDataset

    floor = peak_megabytes()
    loader = DataLoader(TensorDataset(block.images, block.labels), batch_size=128)
    other = laplace.Laplace(
        model,
        "classification",
        subset_of_weights="all",
        hessian_structure=structure,
        backend=BackPackGGN,
    )
    show(f"laplace-torch {structure}: fit", ratio(model, [block] * 3, lambda _: other.fit(loader)))

    def predict(batches: Batches, **how: object) -> None:
        for images, _ in batches:
            other(images, **how)

    show(
        f"laplace-torch {structure}: predict, linearised",
        ratio(model, [block], lambda b: predict(b, link_approx="probit")),
    )
    networks = {"pred_type": "nn", "link_approx": "mc", "n_samples": 20}
    show(
        f"laplace-torch {structure}: predict, 20 networks",
        ratio(model, [block], lambda b: predict(b, **networks)),
    )
    print(f"laplace-torch {structure}: {peak_megabytes() - floor:.0f} MB", flush=True)


def in_seconds(model: nn.Module, data: Batches, structure: str) -> None:
    """Once each, for networks that take long."""
    floor = peak_megabytes()
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=1e-5)
    tests = Batches(data.images[: max(1, len(data.images) // 5)], None, data.size)
    for name, job in (
        (f"fit, {len(data.images):,} images", lambda: bayes.fit(data)),
        ("decomposition, once", lambda: bayes.predict_proba(data.images[:1])),
        (f"predict, linearised, {len(tests.images):,} images", lambda: bayes.predict_proba(tests)),
        (
            f"predict, 20 networks, {len(tests.images):,} images",
            lambda: bayes.predict_proba(tests, method="sampled_networks"),
        ),
    ):
        print(f"{structure}: {name:<46} {seconds(job):8.1f} s", flush=True)
    print(f"{structure}: {peak_megabytes() - floor:.0f} MB", flush=True)
    if data.images.is_cuda:
        print(f"{structure}: {torch.cuda.max_memory_allocated() / 2**20:.0f} MB on the device", flush=True)


def show(name: str, value: float) -> None:
    print(f"{name:<60} {value:8.2f} x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int)
    parser.add_argument("--resnet", action="store_true", help="ResNet-18 with batch norm, in seconds")
    parser.add_argument("--peer", action="store_true", help="laplace-torch beside it")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    begun = time.perf_counter()
    shape, count = ((3, 32, 32), 1000) if options.resnet else ((1, 28, 28), 10_000)
    count = options.images or count
    model = (resnet18() if options.resnet else lenet5()).eval().to(options.device)
    images = torch.rand(count, *shape).to(options.device)
    data = Batches(images, torch.randint(0, 10, (count,)).to(options.device))
    plain(model, data)
    print(
        f"plain forward pass: {1e3 * seconds(lambda: plain(model, data)) / count:.3f} ms an image", flush=True
    )
    for structure in ("diag", "kron"):
        if options.resnet:
            in_seconds(model, data, structure)
        else:
            ours(model, data.blocks(max(1, count // 3000)), structure)
            if options.peer:
                peer(model, data.blocks(max(1, count // 1000))[0], structure)
    print(f"in all {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
