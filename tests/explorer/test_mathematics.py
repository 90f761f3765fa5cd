"""The mathematics of the plane against the library."""

from dataclasses import replace

import pytest
import torch

from bitbayes.explorer.numbers import shipped_numbers
from bitbayes.explorer.page import read_scripts
from bitbayes.explorer.toys import fit_toy, network_of
from bitbayes.palette import CLASSES, map_colour, rgb
from bitbayes.residual import ClassDistance, Distance, LevelSums
from explorer.javascript import close, evaluate

# The first lies so far out that it alone would set the spread of the inputs: there the residual has a floor.
MORE = [[40.0, 400.0], [3.0, -1.0], [-5.0, 9.0], [0.5, 0.25]]
SETTINGS = [  # prior variance, temperature, multiple of the tuned residual, tolerance
    (1.0, 1.0, 0.0, 1e-9),
    (100.0, 0.3, 0.0, 1e-9),
    (1e6, 2.0, 0.0, 1e-9),
    (1e4, 0.5, 1.0, 1e-9),
    (1.0, 0.5, 0.01, 1e-9),
    # So wide a prior multiplies the rounding errors of the eigenvalues, in the page and in the library.
    (1e10, 1.0, 0.0, 1e-8),
]
ASK = """([packed, added, numbers, points, rays]) => {
  const toy = unpackToy(packed);
  const posterior = fitPosterior(toy, Float64Array.from([...toy.points, ...added.flat()]));
  const prepared = prepare(toy, posterior, Float64Array.from(points.flat()));
  const regions = rays.map((ray) => finalRegion(toy, ray));
  const scaling = { ...PLAIN, temperature: numbers.temperature };
  return {
    probabilities: [...predict(toy, posterior, numbers, prepared)],
    plain: [...predict(toy, posterior, PLAIN, prepared)],
    temperature: [...predict(toy, posterior, scaling, prepared)],
    residuals: [...residualVariances(toy, { ...numbers, residual: 1 }, prepared.cubes)],
    alpha: regions.map((region) => region.alpha),
    limits: regions.flatMap((region) => [...limit(toy, posterior, numbers, region)]),
  };
}"""


def grid():
    """Points from near the data to ×10,000."""
    side = torch.linspace(-2.5, 2.5, 11, dtype=torch.float64)
    return torch.cat([torch.cartesian_prod(side, side) * 10.0**power for power in range(5)])


@pytest.mark.parametrize(
    "place", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_the_page_computes_what_the_library_does(place):
    """Probabilities, the residual, alpha and limits, before and after points were added."""
    packed, points = shipped_numbers()["toys"][place], grid()
    network, bayes = network_of(packed), fit_toy(packed)
    tuned = bayes.settings
    angles = torch.linspace(0.01, 6.2, 25, dtype=torch.float64)
    rays = torch.stack([angles.cos(), angles.sin()], dim=1)
    for added in ([], MORE):
        if added:
            more = torch.tensor(added, dtype=torch.float64)
            with torch.no_grad():  # the page takes the classes that the network chooses
                labels = probabilities(network(more)).reshape(len(more), -1).argmax(1)
            bayes.update([(more, labels)])
        distances = bayes.known_residual.distances(points).detach()
        for prior, temperature, residual, tolerance in SETTINGS:
            bayes.prior_variance, bayes.temperature = prior, temperature
            bayes.near_variance = residual * tuned.near_variance
            bayes.beyond_variance = residual * tuned.beyond_variance
            numbers = {"priorVariance": prior, "temperature": temperature, "residual": residual}
            found = evaluate(ASK, [packed, added, numbers, points.tolist(), rays.tolist()])
            found = {key: torch.tensor(each, dtype=torch.float64) for key, each in found.items()}
            certificate, limits = bayes.certify(rays), bayes.limit(rays)
            close(found["probabilities"], bayes.predict_proba(points).flatten(), tolerance)
            close(found["residuals"], tuned.residual_variances(distances))
            close(found["alpha"], certificate.alpha)
            found_limits = found["limits"].reshape(len(rays), -1)
            close(found_limits.amax(1), certificate.limit, tolerance)
            if not residual:
                assert torch.equal(found_limits.argmax(1), limits.label)
            with torch.no_grad():
                logits = network(points)
            close(found["plain"], probabilities(logits))
            close(found["temperature"], probabilities(logits / temperature))


# Which levels count, and which part of the kernel.
PARTS = [
    (("input", "2"), "both"),
    (("head", "classes"), "near"),
    (("classes",), "beyond"),
    ((), "both"),
]


@pytest.mark.parametrize("levels, kernel", PARTS)
@pytest.mark.parametrize("place", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_levels_and_kernel_are_those_of_the_library(place, levels, kernel):
    """A level is off in the library if its weight is 0 and its threshold beyond all points."""
    packed, points = shipped_numbers()["toys"][place], grid()
    bayes = fit_toy(packed)
    tuned = bayes.settings
    bayes.settings = replace(
        tuned,
        near_variance=0.0 if kernel == "beyond" else tuned.near_variance,
        beyond_variance=0.0 if kernel == "near" else tuned.beyond_variance,
        levels={name: weight * (name in levels) for name, weight in tuned.levels.items()},
        thresholds={name: each if name in levels else 1e100 for name, each in tuned.thresholds.items()},
    )
    numbers = {
        "priorVariance": tuned.prior_variance,
        "temperature": tuned.temperature,
        "residual": 1,
        "levels": levels,
        "kernel": kernel,
    }
    found = evaluate(ASK, [packed, [], numbers, points.tolist(), []])
    found = torch.tensor(found["probabilities"], dtype=torch.float64)
    close(found, bayes.predict_proba(points).flatten())


@pytest.mark.parametrize("levels", [("head",), ("classes",), ("2", "classes"), ()])
@pytest.mark.parametrize("place", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_limits_if_only_some_levels_count(place, levels):
    """Along some rays the features of a late level stand still. Its residual then is a number."""
    packed = shipped_numbers()["toys"][place]
    bayes = fit_toy(packed)
    tuned = bayes.settings
    weights = {name: weight * (name in levels) for name, weight in tuned.levels.items()}
    bayes.settings = replace(tuned, beyond_variance=0.0, levels=weights)
    numbers = {"priorVariance": tuned.prior_variance, "temperature": tuned.temperature, "residual": 1}
    numbers |= {"levels": levels, "kernel": "near"}
    angles = torch.linspace(0.01, 6.2, 25, dtype=torch.float64)
    rays = torch.stack([angles.cos(), angles.sin()], dim=1)
    found = torch.tensor(evaluate(ASK, [packed, [], numbers, [[0.0, 0.0]], rays.tolist()])["limits"])
    close(found.double().reshape(len(rays), -1).amax(1), bayes.limit(rays).confidence, 1e-6)


def test_colours_of_the_map_are_those_of_the_palette():
    """Hue is the class and saturation the confidence: see `bitbayes.palette.map_colour`."""
    colours = [[round(255 * each) for each in rgb(colour)] for colour in CLASSES]
    script = read_scripts(("plane/map.js",))
    ask = script[script.index("const mapColour") : script.index("function drawLegend")]
    asked = [[label, share] for label in range(4) for share in (0.0, 0.3, 1.0)]
    call = "asked.map(([label, share]) => mapColour(label, share))"
    found = evaluate(f"([CLASS_COLOURS, asked]) => {{ {ask} return {call}; }}", [colours, asked])
    for (label, share), colour in zip(asked, found, strict=True):
        confidence = 0.25 + 0.75 * share
        expected = [255 * each for each in map_colour(label, confidence, 4)]
        close(torch.tensor(colour, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64))


def probabilities(logits):
    logits = torch.cat([torch.zeros_like(logits), logits], dim=1) if logits.shape[1] == 1 else logits
    return logits.softmax(1).flatten()


def features():
    """Rows (60, 6) with constant and rare features, some of them, and some that are all constant."""
    rows = torch.randn(60, 6, dtype=torch.float64) @ torch.randn(6, 6, dtype=torch.float64)
    rows[:, 1], rows[:, 2] = 0.0, 0.7
    rows[3:, 3] = 0.0  # three points determine it
    rows[1:, 5] = 0.0  # and one this
    return rows, rows[:2], rows[:, 1:2].expand(-1, 6)


def measured(made, argument, points):
    """The squared distances of points (n, 6) by a distance of JavaScript."""
    ask = f"([argument, points]) => [...squaredDistances({made}, points.flat(), points.length)]"
    return torch.tensor(evaluate(ask, [argument, points.tolist()]), dtype=torch.float64)


@pytest.mark.parametrize("at_zero", [1.0, 2.0**-6])
def test_distances_with_constant_and_rare_features(at_zero):
    points = 3 * torch.randn(20, 6, dtype=torch.float64)
    for rows in features():
        found = measured(f"dataDistance(argument.flat(), 6, {at_zero})", rows.tolist(), points)
        sums = LevelSums.of(rows, correlated=True)
        close(found.sqrt(), Distance.of(sums, torch.device("cpu"), torch.float64, at_zero)(points))


@pytest.mark.parametrize("classes", [1, 2, 4, 9])
def test_distances_from_classes(classes):
    """Also of one class, of more than there are directions, and if one has no points."""
    points = 3 * torch.randn(20, 6, dtype=torch.float64)
    for rows in features():
        labels = torch.arange(len(rows)) % classes
        rows = rows + (rows.std(0) > 1e-9) * torch.randn(classes, 6, dtype=torch.float64)[labels]
        made = "classDistance(argument[0].flat(), 6, argument[1])"
        found = measured(made, [rows.tolist(), labels.tolist()], points)
        sums = LevelSums.of(rows, correlated=True, labels=labels, classes=classes + 1)
        close(found.sqrt(), ClassDistance.of_classes(sums, torch.device("cpu"), torch.float64)(points))


def test_eigenvectors_of_a_matrix_with_zero_eigenvalues():
    root = torch.randn(12, 7, dtype=torch.float64)
    matrix = root @ root.T
    ask = "(rows) => Object.values(eigen(rows.flat(), 12)).map((each) => [...each])"
    values, vectors = (torch.tensor(each, dtype=torch.float64) for each in evaluate(ask, matrix.tolist()))
    vectors = vectors.reshape(12, 12)
    close(vectors @ values.diag() @ vectors.T, matrix)
    close(vectors @ vectors.T, torch.eye(12, dtype=torch.float64))
