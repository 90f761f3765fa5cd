"""The scene with digits: its packed network is the library's, and the page computes the library's numbers."""

import re
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import bitbayes as bb
from bitbayes.explorer.digits import (
    digits_network,
    fit_digits,
    measure,
    pack_layer,
    train_digits,
    unseen_digits,
    validation_digits,
)
from bitbayes.explorer.numbers import shipped_numbers
from explorer.javascript import close, evaluate

ASK = """([packed, images]) => {
  const net = unpackDigits(packed);
  const made = prepareDigits(net, Float64Array.from(images.flat()));
  const { tuned } = packed;
  const settings = { priorVariance: tuned.priorVariance, temperature: tuned.temperature, residual: 1 };
  return {
    logits: [...made.logits],
    residuals: [...residualVariances(net, settings, made.cubes)],
    plain: [...predict(net, net.posterior, PLAIN, made)],
    temperature: [...predict(net, net.posterior, { ...PLAIN, temperature: tuned.scaling }, made)],
    bitbayes: [...predict(net, net.posterior, settings, made)],
  };
}"""
CHANGE = """([pixels, changes]) =>
  changes.map((change) => [...changeImage(Float64Array.from(pixels), change)])"""
AS_IT_IS = {"rotation": 0, "blur": 0, "brightness": 1}


@pytest.fixture(scope="module")
def packed():
    return shipped_numbers()["digits"]


@pytest.fixture(scope="module")
def tuned(packed):
    return fit_digits(packed)


def changed(image, *changes):
    found = evaluate(CHANGE, [image.flatten().tolist(), [AS_IT_IS | each for each in changes]])
    return torch.tensor(found, dtype=torch.float64).reshape(-1, 1, 28, 28)


@torch.no_grad()
def test_the_page_computes_what_the_library_does(packed, tuned):
    """`bb.Laplace(model).fit(…).tune(…)` of this network, on digits, on changed ones, and on strangers."""
    digit = unseen_digits()[0][:1]
    changes = [{"rotation": 77}, {"blur": 1.5}, {"brightness": 30.0}, {"rotation": -20, "brightness": 0.3}]
    strangers = [
        each[:3].double() for each in (bb.toys.digits().letters_images, bb.toys.digits().fashion_images)
    ]
    images = torch.cat([unseen_digits()[0][:20], changed(digit, *changes), *strangers])
    found = evaluate(ASK, [packed, images.flatten(1).tolist()])
    found = {name: torch.tensor(each, dtype=torch.float64) for name, each in found.items()}
    logits, scaling = tuned.model(images), bb.TemperatureScaling(tuned.model).fit(validation_digits())
    close(found["logits"], logits.flatten())  # the weights are the same to the last digit
    close(found["plain"], logits.softmax(1).flatten())
    # The page has what was fitted in float32.
    close(found["temperature"], scaling.predict_proba(images).flatten(), 1e-5)
    distances = tuned.known_residual.distances(images)
    close(found["residuals"], tuned.settings.residual_variances(distances), 1e-5)
    close(found["bitbayes"], tuned.predict_proba(images).flatten(), 1e-5)


def test_the_shipped_network_is_tuned_as_the_library_does_today(packed, tuned):
    """If this fails, the library chooses other numbers: run scripts/make_explorer_numbers.py."""
    settings, shipped = tuned.settings, packed["tuned"]
    scaling = bb.TemperatureScaling(tuned.model).fit(validation_digits())
    found = {
        "priorVariance": settings.prior_variance,
        "temperature": settings.temperature,
        "nearVariance": settings.near_variance,
        "beyondVariance": settings.beyond_variance,
        "scaling": scaling.temperature,
    }
    # The search for the settings ends when the loss does not move, at 1e-8: they move by its root.
    assert found == pytest.approx(shipped, rel=1e-4)
    for level in packed["levels"]:
        assert settings.levels[level["name"]] == pytest.approx(level["weight"], rel=1e-4)
        assert settings.thresholds[level["name"]] == pytest.approx(level["threshold"], rel=1e-4)
    for again, row in zip(measure(tuned, scaling), packed["test"], strict=True):
        assert again == pytest.approx(row, abs=1e-4)


def test_a_packed_layer_has_rounded_weights(packed):
    layer = torch.nn.Linear(5, 3)
    scale = pack_layer(layer)["scale"]
    assert 127 * scale == pytest.approx(layer.weight.abs().max().item(), rel=1e-5)
    network = digits_network(packed)
    found = network[7].weight / packed["network"][2]["scale"]
    close(found, found.round(), 1e-9)
    assert found.abs().max() == 127 and [name for name, _ in network.named_parameters()][-1] == "9.weight"


def test_an_image_is_changed_as_its_sliders_say():
    image = unseen_digits()[0][:1]
    quarter, half, blurred, bright, nothing = changed(
        image, {"rotation": 90}, {"rotation": -180}, {"blur": 1.3}, {"brightness": 7.0}, {}
    )
    close(nothing[None], image, 0.0)
    close(quarter[None], image.rot90(dims=(2, 3)))
    close(half[None], image.flip(2, 3))
    close(bright[None], 7 * image, 0.0)
    places = torch.arange(-6, 7, dtype=torch.float64)
    bell = (-(places**2) / (2 * 1.3**2)).exp()
    bell = bell / bell.sum()
    expected = functional.conv2d(image, (bell[:, None] * bell)[None, None], padding=6)
    close(blurred[None], expected)


def test_training_takes_the_digits_and_leaves_the_random_state():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    network = train_digits(quick=True)
    assert torch.equal(torch.rand(1), expected)
    x, y = unseen_digits()
    with torch.no_grad():
        assert (network(x.float()).argmax(1) == y).double().mean() > 0.7


def test_the_docs_show_the_shipped_averages(packed):
    page = (Path(__file__).parents[2] / "docs/explorer.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w[^|]*) \|(.*)\|$", page, re.MULTILINE)
    found = {name: [each.strip() for each in cells.split("|")] for name, cells in rows}
    for row in packed["test"]:
        values = [row[key] for key in ("accuracy", "plain", "temperature", "bitbayes")]
        expected = ["–" if each is None else f"{100 * each:.1f}" for each in values]
        name = row["name"]
        assert found[name[0].lower() + name[1:]] == expected
