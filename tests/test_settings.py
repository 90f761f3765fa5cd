"""The settings: checked when they are made, frozen, and what they do to a Gaussian over logits."""

import dataclasses
import json
import math
from dataclasses import replace

import numpy
import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.settings import Settings
from classifiers import points, relu_mlp


def gaussian(n=6, k=3):
    factors = CovarianceFactors(torch.rand(n, k).double(), None, torch.rand(n).double())
    return LogitGaussian(torch.randn(n, k).double(), factors, 1 + torch.rand(n).double())


def test_they_are_numbers_whatever_was_given():
    one = torch.tensor(1)
    numbers = (
        numpy.float32(2),
        torch.tensor(0.5),
        3,
        0,
        {"a": one},
        {"a": numpy.int64(2)},
        one,
        4,
        one,
        0,
        2,
        one,
    )
    found = Settings(*numbers)
    assert found == Settings(2.0, 0.5, 3.0, 0.0, {"a": 1.0}, {"a": 2.0}, 1.0, 4.0, 1.0, 0.0, 2.0, 1.0)
    numbers = [each for each in dataclasses.astuple(found) if not isinstance(each, dict)]
    numbers += [*found.levels.values(), *found.thresholds.values()]
    assert [type(each) for each in numbers if each is not None] == [float] * 12
    biased = Settings(class_bias=torch.tensor([1, -1])).class_bias
    assert biased == (1.0, -1.0) and [type(each) for each in biased] == [float] * 2
    assert Settings({"a": 1, "b": torch.tensor(2)}).prior_variance == {"a": 1.0, "b": 2.0}
    assert Settings().prior_variance is Settings().score_centre is Settings().score_spread is None
    assert Settings().class_centre is Settings().class_spread is None and Settings().score_edge == 1.0
    for name in ("score", "class"):  # without a centre it is 0
        assert getattr(Settings(**{f"{name}_spread": 2}), f"{name}_centre") == 0.0


NEGATIVE = -1.0


@pytest.mark.parametrize("bad", [NEGATIVE, math.inf, math.nan, torch.ones(2), "large"])
@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(Settings)])
def test_numbers_that_will_not_do_are_named(name, bad):
    if name.endswith("_centre") and bad is NEGATIVE:
        assert getattr(Settings(**{name: bad}), name) == bad  # an energy has either sign
        return
    if name in ("noise_variance", "class_bias") and isinstance(bad, torch.Tensor):
        assert getattr(Settings(**{name: bad}), name) == (1.0, 1.0)  # one for each output
        return
    with pytest.raises(ArgumentError, match=name):
        Settings(**{name: bad})
    if name in ("prior_variance", "levels", "thresholds"):
        with pytest.raises(ArgumentError, match=name):
            Settings(**{name: {"layer": bad}})


def test_zero_is_only_for_the_residual():
    assert Settings(near_variance=0, beyond_variance=0) == Settings()
    assert Settings(levels={"input": 0}).levels == {"input": 0.0}
    for name in ("prior_variance", "temperature", "score_spread", "score_edge", "class_spread"):
        with pytest.raises(ArgumentError, match=name):
            Settings(**{name: 0.0})
    with pytest.raises(ArgumentError, match="thresholds"):
        Settings(thresholds={"input": 0.0})


def test_they_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().temperature = 2.0


@pytest.mark.parametrize("prior_variance", [None, 2.5, {"0": 1.0, "2": 3.0}])
def test_json_gives_them_back(prior_variance):
    settings = replace(WITH_CLASSES, prior_variance=prior_variance)
    again = Settings(**json.loads(json.dumps(settings.as_json())))
    assert again == settings and [*again.levels] == [*settings.levels]
    assert Settings(**json.loads(json.dumps(Settings().as_json()))) == Settings()


# ---- what they do to a Gaussian


CHOSEN = Settings(
    *(1.0, 0.5, 2.0, 3.0),
    *({"input": 0.25, "2": 0.5, "head": 0.0}, {"input": 1.0, "2": 2.0, "head": 0.5}),
    *(-1.5, 0.7, 0.8),
)
# The last level is the distance from the classes.
WITH_CLASSES = replace(CHOSEN, class_centre=0.3, class_spread=0.2)
DISTANCES = torch.tensor(
    [[0.0, 0.0, 0.0], [0.5, 1.0, 0.4], [1.0, 2.0, 0.5], [1.5, 1.0, 0.6], [3.0, 7.0, 0.1], [1e30, 1.0, 1e12]],
    dtype=torch.float64,
)


def plain_shares(settings, distances):
    """Each level's part of v(x), number by number."""
    found = []
    for row in distances.tolist():
        parts = []
        for name, d in zip(("input", "2", "head"), row, strict=True):
            near = settings.levels[name] if settings.levels else 1 / 3
            beyond = max(0.0, (d / settings.thresholds[name]) ** 3 - 1) if settings.thresholds else 0.0
            parts.append(settings.near_variance * near * d**3 + settings.beyond_variance * beyond)
        found.append(parts)
    return torch.tensor(found, dtype=torch.float64)


CASES = [
    CHOSEN,
    replace(CHOSEN, levels={}),
    replace(CHOSEN, thresholds={}),
    replace(CHOSEN, near_variance=0.0),
    replace(CHOSEN, beyond_variance=0.0),
]


@pytest.mark.parametrize("settings", CASES)
def test_the_residual_is_its_formula(settings):
    expected = plain_shares(settings, DISTANCES)
    torch.testing.assert_close(settings.residual_shares(DISTANCES), expected, rtol=1e-13, atol=0)
    found = settings.residual_variances(DISTANCES)
    torch.testing.assert_close(found, expected.sum(1), rtol=1e-13, atol=0)
    assert torch.equal(settings.variances_of_cubes(DISTANCES.pow(3)), found)


@pytest.mark.parametrize("settings", CASES)
def test_the_residual_may_be_had_in_other_units(settings):
    """In units of 1e-9 all cubes are 1e9 times as large, and so is v."""
    unit, cubes = torch.full((6,), 1e9, dtype=torch.float64), DISTANCES.pow(3)
    found = settings.variances_of_cubes(1e9 * cubes, unit)
    torch.testing.assert_close(found, 1e9 * settings.variances_of_cubes(cubes), rtol=1e-12, atol=0)
    assert torch.equal(settings.variances_of_cubes(1e9 * cubes, 1e9), found)


@pytest.mark.parametrize("settings", CASES)
def test_a_level_counts_if_it_adds_to_the_variance_somewhere(settings):
    far = torch.full((1, 3), 1e6, dtype=torch.float64)
    assert settings.counting(3) == (settings.residual_shares(far)[0] > 0).tolist()


def test_the_temperature_divides_the_mean_and_the_residual_adds_to_each_variance():
    before, distances = gaussian(), DISTANCES.clamp_max(10)
    after = CHOSEN.complete(before, distances)
    torch.testing.assert_close(after.mean, before.mean / 0.5, rtol=1e-13, atol=0)
    added = plain_shares(CHOSEN, distances).sum(1)
    expected = before.covariance + added[:, None, None] * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(after.covariance, expected, rtol=1e-12, atol=1e-12)


def test_without_a_residual_only_the_temperature_is_left():
    before, ones = gaussian(), torch.ones(6, 3).double()
    for settings, distances in ((Settings(temperature=2.0), ones), (replace(CHOSEN, temperature=2.0), None)):
        after = settings.complete(before, distances)
        torch.testing.assert_close(after.mean, before.mean / 2, rtol=1e-13, atol=0)
        torch.testing.assert_close(after.covariance, before.covariance, rtol=1e-13, atol=0)


def test_the_derivative_at_the_data_and_at_the_threshold_is_finite():
    distances = DISTANCES[:4].clone().requires_grad_()
    before = gaussian(4)
    CHOSEN.complete(before, distances).covariance.sum().backward()
    assert bool(distances.grad.isfinite().all()) and bool((distances.grad >= 0).all())
    assert not distances.grad[0].any() and bool((distances.grad[3] > 0).all())


# ---- the score


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_score_is_its_formula(dtype, tolerance):
    """−½ log(1 + e^(−2a)) − 4 log(1 + c²), c of the level at which it is largest."""
    energies = torch.tensor([-9.0, -2.0, -1.5, -1.0, 0.5, 30.0], dtype=dtype)
    found = CHOSEN.score(energies, DISTANCES)
    expected = []
    for energy, row in zip(energies.tolist(), DISTANCES.tolist(), strict=True):
        a = (energy + 1.5) / 0.7
        c = max(0.25 * row[0] ** 3, 0.5 * row[1] ** 3, 0.0 * row[2] ** 3) / 0.8
        expected.append(-math.log(1 + math.exp(-2 * a)) / 2 - 4 * math.log(1 + c**2))
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("weight", [0.0, 0.9])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_score_with_classes_is_its_formula(dtype, tolerance, weight):
    """−½ log(1 + e^(−2a)) − ½ log(1 + e^(2b)) − 4 log(1 + c²): the classes are in b, and not in c."""
    settings = replace(WITH_CLASSES, levels={**CHOSEN.levels, "head": weight})
    energies = torch.tensor([-9.0, -2.0, -1.5, -1.0, 0.5], dtype=dtype)
    found = settings.score(energies, DISTANCES[:5])
    expected = []
    for energy, row in zip(energies.tolist(), DISTANCES[:5].tolist(), strict=True):
        a, b = (energy + 1.5) / 0.7, (row[2] - 0.3) / 0.2
        c = max(0.25 * row[0] ** 3, 0.5 * row[1] ** 3) / 0.8
        score = -math.log(1 + math.exp(-2 * a)) / 2 - math.log(1 + math.exp(2 * b)) / 2
        expected.append(score - 4 * math.log(1 + c**2))
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=tolerance, atol=tolerance)


def test_classes_that_are_the_only_level_are_the_furthest_one_too():
    settings = Settings(levels={"classes": 2.0}, class_spread=1.0)
    assert settings.furthest(torch.tensor([[3.0]], dtype=torch.float64)).tolist() == [54.0]
    two = replace(settings, levels={"input": 0.5, "classes": 2.0})
    assert two.furthest(torch.tensor([[2.0, 3.0]], dtype=torch.float64)).tolist() == [4.0]
    without = replace(two, class_spread=None, class_centre=None)
    assert without.furthest(torch.tensor([[2.0, 3.0]], dtype=torch.float64)).tolist() == [54.0]


def test_a_distance_from_the_classes_that_is_typical_costs_little_and_a_large_one_ten_at_most():
    energies, rows = torch.full((4,), 50.0).double(), torch.zeros(4, 3, dtype=torch.float64)
    rows[:, 2] = torch.tensor([0.0, 0.3, 2.1, 1e30], dtype=torch.float64)  # b = −1.5, 0, 9, 5e30
    found = WITH_CLASSES.score(energies, rows)
    expected = [-math.log1p(math.exp(-3)) / 2, -math.log(2) / 2, -9 - math.log1p(math.exp(-18)) / 2]
    assert found.tolist() == pytest.approx([*expected, -10 - math.log1p(math.exp(-20)) / 2], rel=1e-12)


def test_the_score_falls_with_the_distance_and_does_not_rise_with_more_energy_than_is_typical():
    energies = torch.tensor([-1.5, 8.5, 1e6, 1e38])
    near, far = (torch.full((4, 3), size, dtype=torch.float64) for size in (0.0, 1.0))
    found = CHOSEN.score(energies, near)
    assert found.tolist() == pytest.approx([-math.log(2) / 2, 0, 0, 0], abs=1e-6)
    assert bool((CHOSEN.score(energies, far) < found).all())
    assert bool(CHOSEN.score(-energies, 1e36 * far).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_score_falls_with_every_distance_up_to_1e49(dtype):
    """Also where the cube of the distance is beyond float32, from 1e12 on."""
    sizes = torch.logspace(-3, 49, 105, dtype=torch.float64)
    for level in (0, 1):
        distances = torch.zeros(len(sizes), 3, dtype=torch.float64)
        distances[:, level] = sizes
        found = CHOSEN.score(torch.zeros(len(sizes), dtype=dtype), distances)
        assert bool(found.isfinite().all()) and bool((found.diff() <= 0).all())
        assert bool((found.diff()[sizes[1:] > 0.1] < 0).all())
        expected = -8 * (3 * math.log(1e40) + math.log((0.25, 0.5)[level] / 0.8))
        assert float(found[sizes > 0.99e40][0]) == pytest.approx(expected, rel=1e-3)
    infinite = torch.full((1, 3), torch.inf, dtype=torch.float64)
    assert bool(CHOSEN.score(torch.zeros(1, dtype=dtype), infinite).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_score_falls_with_the_distance_from_the_classes(dtype):
    """Up to ten deviations; further out the distance from the data counts."""
    sizes = torch.logspace(-3, 36, 79, dtype=torch.float64)
    distances = torch.zeros(len(sizes), 3, dtype=torch.float64)
    distances[:, 2] = sizes
    found = WITH_CLASSES.score(torch.zeros(len(sizes), dtype=dtype), distances)
    assert bool(found.isfinite().all()) and bool((found.diff() <= 0).all())
    counts = (sizes[1:] > 0.1) & (sizes[1:] < 0.3 + 10 * 0.2)
    assert int(counts.sum()) > 1 and bool((found.diff()[counts] < 0).all())
    assert len({*found[sizes >= 0.3 + 10 * 0.2].tolist()}) == 1


def test_without_chosen_numbers_the_score_is_the_energy():
    energies = torch.randn(6)
    for settings, distances in (
        (replace(CHOSEN, score_spread=None), DISTANCES),
        (Settings(), DISTANCES),
        (CHOSEN, None),
    ):
        assert settings.score(energies, distances) is energies


@pytest.mark.parametrize("settings", [CHOSEN, WITH_CLASSES], ids=["without classes", "with classes"])
def test_the_score_is_differentiable_at_the_data(settings):
    energies, distances = torch.zeros(6, requires_grad=True), DISTANCES.clone().requires_grad_()
    settings.score(energies, distances).sum().backward()
    assert bool(energies.grad.isfinite().all()) and bool(distances.grad.isfinite().all())


# ---- the levels


def test_levels_can_be_had_in_another_order():
    names = ("head", "input", "2")
    found = CHOSEN.in_order_of(names)
    assert tuple(found.levels) == tuple(found.thresholds) == names and found == CHOSEN
    assert Settings().in_order_of(names) == Settings()
    plain = replace(CHOSEN, levels={}).in_order_of(names)
    assert plain.levels == {} and tuple(plain.thresholds) == names


@pytest.mark.parametrize("names", [("input", "2"), ("input", "2", "head", "4"), ("input", "2", "4")])
def test_other_levels_are_refused(names):
    for settings in (replace(CHOSEN, levels={}), replace(CHOSEN, thresholds={})):
        with pytest.raises(KeyError, match=r"4|head"):
            settings.in_order_of(names)


def test_a_laplace_takes_its_own_levels_in_any_order():
    x, y = points()
    bayes = bb.Laplace(relu_mlp()).fit([(x, y)])
    assert bayes.known_residual.names == ("input", "head", "classes")
    chosen = Settings(1.0, near_variance=1.0, levels={"classes": 0.5, "head": 0.0, "input": 2.0})
    bayes.settings = chosen
    assert [*bayes.settings.levels] == ["input", "head", "classes"] and bayes.settings == chosen
    expected = bayes.predict_proba(3 * x)
    early = bb.Laplace(bayes.model)
    early.settings = chosen  # before it is known which levels there are
    assert torch.equal(early.fit([(x, y)]).predict_proba(3 * x), expected)
    known = {"input": 1.0, "head": 1.0}
    for wrong in ({"input": 1.0}, known, {**known, "classes": 1.0, "2": 1.0}):
        with pytest.raises(ArgumentError, match=r"level.*\['input', 'head', 'classes'\]"):
            bayes.settings = replace(chosen, levels=wrong)
    assert bayes.settings == chosen


def test_a_fit_with_other_levels_forgets_what_was_chosen_for_the_old_ones():
    x, y = points()
    bayes = bb.Laplace(relu_mlp())
    bayes.settings = CHOSEN
    bayes.fit([(x, y)])
    assert bayes.settings == Settings(1.0, 0.5)
    bayes.predict_proba(x)


# ---- as attributes


def test_attributes_of_a_laplace_are_its_settings():
    bayes = bb.Laplace(relu_mlp())
    assert bayes.settings == Settings() and bayes.prior_variance == 1.0
    bayes.prior_variance, bayes.temperature, bayes.near_variance = 3, 0.5, 7
    bayes.beyond_variance = torch.tensor(0.25)
    assert bayes.settings == Settings(3.0, 0.5, 7.0, 0.25)
    bayes.settings = Settings(2.0)
    assert (bayes.prior_variance, bayes.temperature, bayes.near_variance) == (2.0, 1.0, 0.0)
    assert bb.Laplace(relu_mlp(), residual=True).settings == Settings(near_variance=1.0)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_settings_of_another_laplace_give_its_predictions():
    x, y = points()
    model = relu_mlp()
    tuned = bb.Laplace(model).fit([(x, y)]).tune([(x, y)])
    other = bb.Laplace(model).fit([(x, y)])
    other.settings = tuned.settings
    assert torch.equal(other.predict_proba(x), tuned.predict_proba(x))
    assert torch.equal(other.score(x), tuned.score(x))


def test_priors_of_layers_that_do_not_exist_raise_and_change_nothing():
    bayes = bb.Laplace(relu_mlp(), layers="all", prior_variance=2.0)
    with pytest.raises(ArgumentError, match="prior_variance"):
        bayes.settings = Settings({"nowhere": 1.0})
    assert bayes.settings == Settings(2.0)
    with pytest.raises(ArgumentError, match="prior_variance"):
        bb.Laplace(relu_mlp()).settings = Settings({"2": 1.0})


def test_a_setting_of_the_class_is_its_description():
    assert "mean logits" in bb.Laplace.temperature.__doc__
    assert "edge of the data" in bb.Laplace.near_variance.__doc__
