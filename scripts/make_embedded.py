"""Make the files in src/bitbayes/toys/embedded: images, and a LeNet trained on the digits.

    python scripts/make_embedded.py --source DATA

DATA holds `mnist/mnist.npz` (x_train, y_train, x_test, y_test), `fashion_mnist/test.npz` (x_test, y_test)
and `letters/az.npz` (x_uniform, y_uniform): images (n, 28, 28) and labels (n,), all uint8.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bitbayes.toys import LeNet, scale_pixels

sys.path.insert(0, str(Path(__file__).parents[1]))  # the checkout, for `paper`
from paper.training import Recipe, augmented

EMBEDDED = Path(__file__).parents[1] / "src/bitbayes/toys/embedded"
SEED = 0
EPOCHS = 30
BATCH_SIZE = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="the folder with the three data sets")
    source = parser.parse_args().source

    mnist = write_images(source)
    weights = train(mnist["train_images"], mnist["train_labels"])
    save_file(weights, EMBEDDED / "lenet.safetensors")
    correct = count_correct(weights, mnist["test_images"], mnist["test_labels"])
    about = {
        "command": "python scripts/make_embedded.py --source DATA",
        "choice": f"class-balanced, within a class at random, in random order; numpy default_rng({SEED})",
        "lenet": {
            "training": f"Adam, learning rate 1e-3, divided by 10 at 50, 75 and 90% of {EPOCHS} epochs, "
            f"weight decay 5e-4, batches of {BATCH_SIZE}, crop with padding 2 on half of the images, "
            f"seed {SEED}",
            "weights": "rounded to float16; the accuracy is that of the rounded network",
            "torch": torch.__version__,
            "test_correct": correct,
            "test_images": len(mnist["test_labels"]),
            "test_accuracy": correct / len(mnist["test_labels"]),
        },
        "sha256": {path.name: sha256(path) for path in sorted(EMBEDDED.iterdir()) if is_data(path)},
    }
    (EMBEDDED / "embedded.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(about, indent=2))


def write_images(source: Path) -> dict[str, np.ndarray]:
    """Write the three embedded sets, and return the digits."""
    rng = np.random.default_rng(SEED)
    mnist = np.load(source / "mnist/mnist.npz", allow_pickle=False)
    fashion = np.load(source / "fashion_mnist/test.npz", allow_pickle=False)
    letters = np.load(source / "letters/az.npz", allow_pickle=False)
    distinct = np.unique(letters["x_uniform"], axis=0, return_index=True)[
        1
    ]  # the source repeats a few images
    letter_images, letter_labels = letters["x_uniform"][distinct], letters["y_uniform"][distinct]
    train = choose_balanced(mnist["y_train"], 5000, rng)
    test = choose_balanced(mnist["y_test"], 2000, rng)
    digits = {
        "train_images": mnist["x_train"][train],
        "train_labels": mnist["y_train"][train],
        "test_images": mnist["x_test"][test],
        "test_labels": mnist["y_test"][test],
    }
    clothes = choose_balanced(fashion["y_test"], 1000, rng)
    chosen = choose_balanced(letter_labels, 1000, rng)
    np.savez_compressed(EMBEDDED / "mnist.npz", **digits)
    np.savez_compressed(
        EMBEDDED / "fashion_mnist.npz", images=fashion["x_test"][clothes], labels=fashion["y_test"][clothes]
    )
    np.savez_compressed(EMBEDDED / "letters.npz", images=letter_images[chosen], labels=letter_labels[chosen])
    return digits


def choose_balanced(labels: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of n points in random order. The sizes of the classes differ by at most one."""
    classes = np.unique(labels)
    sizes = [n // len(classes) + (c < n % len(classes)) for c in range(len(classes))]
    chosen = [
        rng.choice(np.flatnonzero(labels == label), size, replace=False)
        for label, size in zip(classes, sizes, strict=True)
    ]
    return rng.permutation(np.concatenate(chosen))


def train(pixels: np.ndarray, labels: np.ndarray) -> dict[str, Tensor]:
    """Train a LeNet, and return its weights, rounded to float16."""
    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    images, targets = scale_pixels(torch.from_numpy(pixels)[:, None]), torch.from_numpy(labels).long()
    network = LeNet()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=5e-4)
    milestones = [int(EPOCHS * part) for part in (0.5, 0.75, 0.9)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=0.1)
    crop = Recipe(crop=2)
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in torch.randperm(len(images)).split(BATCH_SIZE):
            x = augmented(images[batch], crop, torch.default_generator)
            loss = nn.functional.cross_entropy(network(x), targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        schedule.step()
        print(f"epoch {epoch + 1}: training loss {total / len(images):.5f}", flush=True)
    return {name: weight.half().contiguous() for name, weight in network.state_dict().items()}


def count_correct(weights: dict[str, Tensor], pixels: np.ndarray, labels: np.ndarray) -> int:
    network = LeNet().eval()
    network.load_state_dict({name: weight.float() for name, weight in weights.items()})
    with torch.no_grad():
        predicted = network(scale_pixels(torch.from_numpy(pixels)[:, None])).argmax(dim=1)
    return int((predicted == torch.from_numpy(labels).long()).sum())


def is_data(path: Path) -> bool:
    return path.suffix in {".npz", ".safetensors"}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
