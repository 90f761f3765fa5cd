"""A problem small enough for every table: 4 × 4 images of three classes, and a network of a few units."""

from pathlib import Path

import pytest
import torch
from torch import nn

from paper import problem as problems
from paper.methods import Network
from paper.options import Options
from paper.problem import ImageSet, Outliers, Problem
from paper.session import Session
from paper.training import Recipe


def make_network(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, classes))


def tiny(options=None):
    generator = torch.Generator().manual_seed(5)
    patterns = torch.rand(3, 1, 4, 4, generator=generator)

    def images(n):
        labels = torch.arange(n) % 3
        noise = 0.35 * torch.randn(n, 1, 4, 4, generator=generator)
        return ImageSet((255 * (patterns[labels] + noise).clamp(0, 1)).to(torch.uint8), labels)

    train, test = images(96), images(90)
    outside = (255 * torch.rand(40, 1, 4, 4, generator=generator)).to(torch.uint8)
    return Problem(
        name="tiny",
        title="Tiny",
        paper_name="MNIST",
        train=train,
        test=test,
        outliers={"Fashion-MNIST": Outliers(outside, "FMNIST")},
        load_exposure_images=lambda: outside[:20],
        exposure_title="made images",
        validation_points=30,
        noise_points=30,
        tuning_points=20,
        recipe=Recipe(epochs=20, batch_size=32, crop=1, learning_rate=0.01),
        make_network=make_network,
        classes=3,
        paper_pair=(0, 2),
    )


@pytest.fixture
def options(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(problems.PROBLEMS, "tiny", tiny)
    return Options(
        train="tiny", trials=2, output=tmp_path / "results", cache=tmp_path / "networks", progress=False
    )


@pytest.fixture
def session(options):
    return Session(options)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Network(make_network(3))


@pytest.fixture
def problem():
    return tiny()


@pytest.fixture
def fresh():
    return make_network


@pytest.fixture(scope="module")
def made():
    """Kept for all tests of a module: `measure` trains a network."""
    return {}


@pytest.fixture
def values(request, made, session):
    """What `measure` of the test module's TABLE returns, for its first session."""
    if not made:
        made["session"], made["values"] = session, request.module.TABLE.measure(session)
    return made["values"]
