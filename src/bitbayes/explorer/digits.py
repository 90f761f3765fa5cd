"""The numbers of the scene with digits: a small network of images, and what the library makes of it.

The weights are rounded to 8 bits before anything is fitted. The page has all that a prediction needs, and
fits nothing: the training images stay here.
"""

import base64
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

import bitbayes as bb
from bitbayes.explorer.toys import rounded
from bitbayes.residual import ClassDistance
from bitbayes.structures.kron import KronGaussian

EPOCHS, QUICK_EPOCHS, BATCH, LEARNING_RATE = 30, 1, 64, 2e-3
VALIDATION_POINTS = 1000
LARGEST_INTEGER = 127
# The first images of the letters and of Fashion-MNIST: strangers to a network of digits.
STRANGERS = 2

Batches = list[tuple[Tensor, Tensor]]


def small_lenet() -> nn.Sequential:
    """Return the LeNet of the page, with 42,000 weights that are not trained: (n, 1, 28, 28) → (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 48),
        nn.ReLU(),
        nn.Linear(48, 10, bias=False),
    )


def train_digits(*, quick: bool = False) -> nn.Sequential:
    """Train the network on the 5,000 embedded training digits.

    Args:
        quick: for one epoch only.
    """
    data = bb.toys.digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = small_lenet()
        steps = (QUICK_EPOCHS if quick else EPOCHS) * -(-len(data.train_labels) // BATCH)
        optimizer = torch.optim.AdamW(network.parameters(), weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
        order = torch.empty(0, dtype=torch.int64)
        for _ in range(steps):
            order = order if len(order) else torch.randperm(len(data.train_labels))
            batch, order = order[:BATCH], order[BATCH:]
            optimizer.zero_grad()
            logits = network(data.train_images[batch])
            functional.cross_entropy(logits, data.train_labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.eval()


def pack_digits(network: nn.Sequential) -> dict[str, Any]:
    """Return the network in 8 bits, what the library chose for it, and images to look at."""
    packed = {"network": [pack_layer(each) for each in network if hasattr(each, "weight")]}
    return packed | pack_fitted(packed) | {"images": pack_images()}


def pack_fitted(packed: dict[str, Any]) -> dict[str, Any]:
    """Return what `tune` chose, the posterior, the distances, and how good each method is on test digits."""
    tuned = fit_digits(packed)
    settings = tuned.settings
    scaling = bb.TemperatureScaling(tuned.model).fit(validation_digits())
    return {
        "tuned": {
            "priorVariance": settings.prior_variance,
            "temperature": settings.temperature,
            "nearVariance": settings.near_variance,
            "beyondVariance": settings.beyond_variance,
            "scaling": scaling.temperature,
        },
        "posterior": pack_posterior(tuned),
        "levels": [
            {"name": name, "weight": settings.levels[name], "threshold": settings.thresholds[name]}
            | pack_distance(tuned, name)
            for name in settings.levels
        ],
        "test": measure(tuned, scaling),
    }


def fit_digits(packed: dict[str, Any]) -> bb.Laplace:
    """Return a `Laplace` with the default options, fitted and tuned on the packed network in float64."""
    data = bb.toys.digits()
    bayes = bb.Laplace(digits_network(packed))
    bayes.fit([(data.train_images.double(), data.train_labels)], progress=False)
    return bayes.tune(validation_digits(), progress=False)


def validation_digits() -> Batches:
    """Return the digits on which `tune` chooses, as a loader of one batch."""
    return [_split()[0]]


def unseen_digits() -> tuple[Tensor, Tensor]:
    """Return the 1,000 digits that neither training nor tuning has seen, in float64."""
    return _split()[1]


def _split() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    data = bb.toys.digits()
    return bb.toys.validation_split(data.test_images.double(), data.test_labels, VALIDATION_POINTS, seed=0)


# ---- The network


def pack_layer(layer: nn.Module) -> dict[str, Any]:
    """Return a layer with its weights as integers from −127 to 127, times a scale."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    weight = layer.weight.detach().double()
    scale = rounded(weight.abs().amax()[None] / LARGEST_INTEGER)
    integers = (weight / scale).round().clamp(-LARGEST_INTEGER, LARGEST_INTEGER)
    return {
        "shape": list(weight.shape),
        "scale": scale.item(),
        "weight": encode(integers, numpy.int8),
        "bias": None if layer.bias is None else rounded(layer.bias.detach().double()).tolist(),
    }


@torch.no_grad()
def digits_network(packed: dict[str, Any]) -> nn.Sequential:
    """Return the network with the packed weights, in float64."""
    network = small_lenet().double()
    layers = [each for each in network if isinstance(each, nn.Conv2d | nn.Linear)]
    for layer, numbers in zip(layers, packed["network"], strict=True):
        integers = decode(numbers["weight"], numpy.int8).reshape(numbers["shape"])
        layer.weight.copy_(integers * numbers["scale"])
        if layer.bias is not None:
            layer.bias.copy_(torch.tensor(numbers["bias"], dtype=torch.float64))
    return network.eval()


# ---- What was fitted


def pack_posterior(tuned: bb.Laplace) -> dict[str, Any]:
    """Return the eigenvalues and eigenvectors of both Kronecker factors, without the common shift."""
    (gaussian,) = tuned.posterior.decomposed().values()
    assert isinstance(gaussian, KronGaussian)
    return {
        "inputValues": encode(gaussian.input_values),
        "vectors": encode(gaussian.input_vectors),
        "outputValues": encode(gaussian.output_values[:-1]),
        "outputVectors": encode(gaussian.output_vectors[:, :-1]),
    }


def pack_distance(tuned: bb.Laplace, name: str) -> dict[str, Any]:
    """Return mean and matrix of a level's distance, and the centres of classes where it has some."""
    residual = tuned.known_residual
    assert residual is not None
    distance = residual.distance(name, torch.device("cpu"), torch.float64)
    packed = {"mean": encode(distance.mean), "matrix": encode(distance.matrix * distance.unit)}
    if not isinstance(distance, ClassDistance):
        return packed
    centres, offsets = distance.centres * distance.unit, distance.offsets * distance.unit.square()
    return packed | {"centres": encode(centres), "offsets": encode(offsets)}


@torch.no_grad()
def measure(tuned: bb.Laplace, scaling: bb.TemperatureScaling) -> list[dict[str, Any]]:
    """Return the accuracy of bitbayes, and each method's mean confidence, on test digits and on letters."""
    x, y = unseen_digits()
    rows: list[tuple[str, Tensor, Tensor | None]] = [
        ("Digits", x, y),
        ("Rotated by 90°", x.rot90(dims=(2, 3)), y),
        ("3 times as bright", 3 * x, y),
        ("Letters", bb.toys.digits().letters_images.double(), None),
    ]
    found = []
    for name, images, labels in rows:
        probs = tuned.predict_proba(images)
        right = None if labels is None else (probs.argmax(1) == labels).double().mean().item()
        methods = {
            "plain": tuned.model(images).softmax(1),
            "temperature": scaling.predict_proba(images),
            "bitbayes": probs,
        }
        sure = {method: each.amax(1).mean().item() for method, each in methods.items()}
        found.append({"name": name, "accuracy": right} | sure)
    return found


# ---- Images, and numbers as text


def pack_images() -> list[dict[str, str]]:
    """Return the first test digit of each class, and the first strangers: none is chosen by its looks."""
    x, y = unseen_digits()
    data = bb.toys.digits()
    named = [(f"digit {label}", x[y == label][0]) for label in range(10)]
    for name, images in (("letter", data.letters_images), ("clothing", data.fashion_images)):
        named += [(f"{name} {i}", image.double()) for i, image in enumerate(images[:STRANGERS], 1)]
    return [{"name": name, "pixels": encode((255 * image).round(), numpy.uint8)} for name, image in named]


def encode(values: Tensor, kind: Any = numpy.float32) -> str:
    """Return numbers as base64 of their bytes, little-endian."""
    raw = values.numpy().astype(numpy.dtype(kind).newbyteorder("<")).tobytes()
    return base64.b64encode(raw).decode()


def decode(text: str, kind: Any = numpy.float32) -> Tensor:
    """Return the numbers of `encode`, in float64.

    >>> decode(encode(torch.tensor([-3.0, 127.0]), numpy.int8), numpy.int8)
    tensor([  -3.,  127.], dtype=torch.float64)
    """
    found = numpy.frombuffer(base64.b64decode(text), numpy.dtype(kind).newbyteorder("<"))
    return torch.from_numpy(found.astype(numpy.float64))
