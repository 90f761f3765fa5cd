"""`mathematics.js` against the library. Node runs it: the browser's is the same language."""

import json
import shutil
import subprocess
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bitbayes.explorer.numbers import shipped_numbers
from bitbayes.explorer.toys import fit_toy, network_of
from bitbayes.residual import ClassDistance, Distance, LevelSums

MATHEMATICS = files("bitbayes.explorer").joinpath("mathematics.js").read_text("utf-8")
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
  const settings = { method: "bitbayes", ...numbers };
  const prepared = prepare(toy, posterior, Float64Array.from(points.flat()));
  const regions = rays.map((ray) => finalRegion(toy, ray));
  return {
    probabilities: [...predict(toy, posterior, settings, prepared)],
    plain: [...predict(toy, posterior, { ...settings, method: "plain" }, prepared)],
    temperature: [...predict(toy, posterior, { ...settings, method: "temperature" }, prepared)],
    residuals: [...prepared.residuals],
    alpha: regions.map((region) => region.alpha),
    limits: regions.flatMap((region) => [...limit(toy, posterior, settings, region)]),
  };
}"""


def evaluate(function, argument):
    """What a function of JavaScript returns. The package playwright brings a node of its own."""
    playwright = find_spec("playwright")
    places = [None, *([Path(playwright.origin).parent / "driver"] if playwright else [])]
    node = next(filter(None, (shutil.which("node", path=each) for each in places)), None)
    if node is None:
        pytest.skip("node is not installed")
    script = f"{MATHEMATICS}\nconsole.log(JSON.stringify(({function})({json.dumps(argument)})));"
    result = subprocess.run([node, "-"], input=script, capture_output=True, text=True, encoding="utf-8")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


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


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


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
