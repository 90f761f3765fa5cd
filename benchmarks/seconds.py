"""All layers of a ResNet-18 in seconds: fit on so many images, predict so many, as the paper's table 3.

    python benchmarks/seconds.py --device cuda [--train 50000] [--test 10000]

Random images of 32 × 32 pixels, 10 classes, batches of 128: time does not depend on what they show. The paper
took 23 s (diagonal) and 78 s (Kronecker) to fit, 100 s and 151 s to predict 10,000 images with 20 samples.
"""

import argparse

import torch

import bitbayes as bb
from timing import Batches, plain, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--test", type=int, default=10_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = bb.networks.resnet18().to(options.device).eval()
    images = torch.rand(options.train, 3, 32, 32, device=options.device)
    train = Batches(images, torch.randint(0, 10, (options.train,), device=options.device))
    test = Batches(images[: options.test])
    plain(model, test)

    def show(name: str, taken: float) -> None:
        print(f"{name:<50} {taken:8.1f} s", flush=True)

    show(f"plain forward pass, {options.train:,} images", seconds(lambda: plain(model, train)))
    for structure in ("diag", "kron"):
        for estimate in ("fisher", "exact"):
            bayes = bb.Laplace(
                model, layers="all", structure=structure, estimate=estimate, prior_variance=1e-4
            )
            show(f"{structure}: fit, {estimate}", seconds(lambda b=bayes: b.fit(train)))
        show(f"{structure}: decomposition", seconds(lambda b=bayes: b.sample(1)))
        networks = seconds(lambda b=bayes: b.predict_proba(test, method="weights"))
        show(f"{structure}: predict {options.test:,} images, 20 networks", networks)
        linearised = seconds(lambda b=bayes: b.predict_proba(test))
        show(f"{structure}: predict {options.test:,} images, linearised", linearised)
    if torch.cuda.is_available():
        print(f"most memory: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
