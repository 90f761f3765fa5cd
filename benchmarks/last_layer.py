"""Last layer: fit, predict and tune as ratios to a plain forward pass, beside laplace-torch where installed.

    python benchmarks/last_layer.py [--images 10000] [--batch 128] [--peer]
    python benchmarks/last_layer.py --device cuda --resnet --images 100000 --batch 1000 [--classes 100]
    python benchmarks/last_layer.py --memory        # d = 2048, k = 1000: megabytes above the model's own

The paper's LeNet (3.3 million parameters) or a ResNet-18, two threads. "The default" is what
`bb.Laplace(model).fit(data).tune(data)` does, and its predictions, residual included. Each number is a median
over ten blocks of the data; a plain pass over the same block is timed before and after each.
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

BLOCKS = 10


def ours(model: nn.Module, data: Batches) -> list[tuple[str, float]]:
    blocks = data.blocks(BLOCKS)
    default = bb.Laplace(model)
    rows = [("the default: fit", ratio(model, blocks, default.fit))]
    default.fit(data)
    rows += [("the default: tune", ratio(model, blocks, default.tune))]
    rows += [("the default: predict", ratio(model, blocks, default.predict_proba))]
    rows += [("the default: score", ratio(model, blocks, default.score))]
    bayes = bb.Laplace(model, residual=False)
    rows += [("fit", ratio(model, blocks, bayes.fit))]
    bayes.fit(data)
    once = seconds(lambda: bayes.logits(data.images[:1]))
    each = seconds(lambda: plain(model, data))
    rows += [("decomposition, once after a fit on all the data", once / each)]
    for method in ("pairwise", "meanfield", "probit", "bridge", "mc"):
        name = f"predict, {method}" + (" (100 samples)" if method == "mc" else "")
        rows += [(name, ratio(model, blocks, lambda block, m=method: bayes.predict_proba(block, method=m)))]
    # Validation data and as many outliers: two plain passes are the floor.
    rows += [
        (
            f"tune by the paper's objective, {len(bayes.posterior.candidates())} candidates",
            ratio(model, blocks, lambda block: bayes.tune(block, objective="ood")) / 2,
        )
    ]
    diag = bb.Laplace(model, structure="diag", residual=False)
    rows += [("diag: fit", ratio(model, blocks, diag.fit))]
    diag.fit(data)
    rows += [("diag: predict, pairwise", ratio(model, blocks, diag.predict_proba))]
    return rows


def peer(model: nn.Module, data: Batches) -> list[tuple[str, float]]:
    """The same jobs in laplace-torch, on one block of the data: it takes long."""
    import laplace
    from torch.utils.data import DataLoader, TensorDataset

    block = data.blocks(BLOCKS)[0]
    loader = DataLoader(TensorDataset(block.images, block.labels), batch_size=block.size)
    rows = []
    for structure in ("kron", "diag"):
        other = laplace.Laplace(
            model, "classification", subset_of_weights="last_layer", hessian_structure=structure
        )
        rows += [
            (f"laplace-torch {structure}: fit", ratio(model, [block] * 3, lambda _, o=other: o.fit(loader)))
        ]

        def predict(batches: Batches, o: object = other) -> None:
            for images, _ in batches:
                o(images, link_approx="probit")

        rows += [(f"laplace-torch {structure}: predict, probit", ratio(model, [block] * 3, predict))]
    return rows


def memory() -> None:
    """Fit, tune and predict with a head of 2048 features and 1000 classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1000))
    images, labels = torch.randn(512, 64), torch.randint(0, 1000, (512,))
    data = Batches(images, labels, 64)
    for batch, _ in data:
        model(batch)
    floor = peak_megabytes()
    bayes = bb.Laplace(model)
    few = Batches(images[:64], labels[:64], 64)
    for name, job in (
        ("fit, 512 points", lambda: bayes.fit(data)),
        ("predict, 64 points", lambda: bayes.predict_proba(few)),
        ("tune, 64 points", lambda: bayes.tune(few)),
        ("tune, 512 points", lambda: bayes.tune(data)),
    ):
        begun = time.perf_counter()
        job()
        print(f"{name:<36} {peak_megabytes() - floor:8.0f} MB {time.perf_counter() - begun:8.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=128, help="images in a batch")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--peer", action="store_true", help="laplace-torch beside it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--resnet", action="store_true", help="a ResNet-18 and images of 3 × 32 × 32")
    parser.add_argument("--memory", action="store_true", help="the memory of a head with 1,000 classes")
    options = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    if options.memory:
        return memory()
    torch.manual_seed(0)
    network = resnet18 if options.resnet else bb.toys.LeNet
    model = network(classes=options.classes).eval().to(options.device)
    shape = (3, 32, 32) if options.resnet else (1, 28, 28)
    images, labels = torch.rand(options.images, *shape), torch.randint(0, options.classes, (options.images,))
    data = Batches(images.to(options.device), labels.to(options.device), options.batch)
    plain(model, data)
    once = seconds(lambda: plain(model, data))
    print(f"plain forward pass: {1e3 * once / options.images:.2f} ms an image")
    for name, value in ours(model, data) + (peer(model, data) if options.peer else []):
        print(f"{name:<50} {value:8.2f} x", flush=True)
    return None


if __name__ == "__main__":
    main()
