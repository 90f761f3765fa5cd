"""The toy figures, with networks trained for a moment."""

import json

import torch

from bitbayes.toys import MLP, TOY_PROBLEMS, make_moons, train_toy
from paper.experiments.linear_regions import activation_pattern, find_crossings
from paper.options import Options
from paper.registry import reproduce
from paper.report import TOY_FIGURES
from paper.toys import fit_methods


def test_the_toys_are_made(tmp_path):
    options = Options(output=tmp_path, quick=True, progress=False)
    reproduce(TOY_FIGURES, options)
    assert (tmp_path / "toy/toy-quick-moons.png").stat().st_size > 10_000
    assert (tmp_path / "linear-regions/toy-quick.pdf").exists() and (
        tmp_path / "bounded-logit/toy-quick.md"
    ).exists()
    values = json.loads((tmp_path / "toy/toy-quick.json").read_text())["toys"]
    assert set(values) == {"moons", "gaussians-2", "gaussians-4"}
    for toy in values.values():
        names = ["Plain", "Temperature", "Last layer", "All layers", "Isotropic", "Residual"]
        assert list(toy["maps"]) == names
    assert set(values["moons"]["maps"]["Residual"]["chosen"]) >= {
        "prior_variance",
        "temperature",
        "near_variance",
    }
    text = (tmp_path / "toy/toy-quick.md").read_text()
    assert "A quick run" in text and "python -m paper toy --quick" in text


def test_validation_points_are_no_training_points():
    for make in TOY_PROBLEMS:
        toy = make()
        assert len(toy.validation[0]) in (48, 50)
        assert torch.cdist(toy.x, toy.validation[0]).min() > 0
        assert set(toy.validation[1].tolist()) == set(toy.y.tolist())


def test_the_claim_of_the_figure():
    """Sure at the data, unsure far away, and the boundary where it was; the plain network is sure there."""
    toy = make_moons()
    network = train_toy(toy)
    made = {name: each.predict_proba for name, each in fit_methods(toy, network).items()}
    far = 100 * torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    confidence = {name: predict(far).amax(1).mean() for name, predict in made.items()}
    assert confidence["Plain"] > 0.99 and confidence["Temperature"] > 0.99
    assert confidence["Last layer"] < 0.7 and confidence["All layers"] < 0.75
    assert made["Last layer"](toy.x).amax(1).mean() > confidence["Last layer"] + 0.2
    assert made["Last layer"](far).argmax(1).equal(made["Plain"](far).argmax(1))


def test_walking_finds_every_crossing_of_the_ray():
    torch.manual_seed(3)
    network = MLP((2, 8, 8, 1)).double()
    direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
    crossings = find_crossings(network, direction)
    step = 1e-3
    delta = torch.arange(step, 60, step, dtype=torch.float64)
    pattern = activation_pattern(network, delta[:, None] * direction)
    changed = (pattern[1:] != pattern[:-1]).any(1)
    seen = delta[1:][changed]
    within = [c for c in crossings if c < 60 - step]
    # Each change on the fine grid lies within one step of a crossing, and each crossing near a change.
    assert all(min(abs(c - s) for c in within) <= step for s in seen.tolist())
    assert all((seen - c).abs().min() <= 1.01 * step for c in within if c > 2 * step)
    assert len(within) >= 3
