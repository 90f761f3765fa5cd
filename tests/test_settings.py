"""The settings: checked when they are made, frozen, and what they do to a Gaussian over logits."""

import dataclasses
import json
import math

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
    found = Settings(numpy.float32(2), torch.tensor(0.5), 3, 0)
    assert found == Settings(2.0, 0.5, 3.0, 0.0)
    assert [type(each) for each in dataclasses.astuple(found)] == [float] * 4
    assert Settings({"a": 1, "b": torch.tensor(2)}).prior_variance == {"a": 1.0, "b": 2.0}
    assert Settings().prior_variance is None


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan, torch.ones(2), "large"])
@pytest.mark.parametrize("name", [each.name for each in dataclasses.fields(Settings)])
def test_numbers_that_will_not_do_are_named(name, bad):
    with pytest.raises(ArgumentError, match=name):
        Settings(**{name: bad})
    if name == "prior_variance":
        with pytest.raises(ArgumentError, match=name):
            Settings(prior_variance={"layer": bad})


def test_zero_is_only_for_the_residual():
    assert Settings(residual_variance=0, residual_threshold=0) == Settings()
    for name in ("prior_variance", "temperature"):
        with pytest.raises(ArgumentError, match=name):
            Settings(**{name: 0.0})


def test_they_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().temperature = 2.0


@pytest.mark.parametrize("prior_variance", [None, 2.5, {"0": 1.0, "2": 3.0}])
def test_json_gives_them_back(prior_variance):
    settings = Settings(prior_variance, 0.7, 3.0, 0.1)
    assert Settings(**json.loads(json.dumps(settings.as_json()))) == settings


def test_the_temperature_divides_the_mean_and_the_residual_adds_to_each_variance():
    before, root = gaussian(), torch.tensor([0.0, 0.5, 1.0, 1.5, 3.0, 40.0], dtype=torch.float64)
    after = Settings(1.0, 0.5, 2.0, 1.0).complete(before, root)
    torch.testing.assert_close(after.mean, before.mean / 0.5, rtol=1e-13, atol=0)
    added = 2 * (root.square() - 1).clamp_min(0)
    expected = before.covariance + added[:, None, None] * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(after.covariance, expected, rtol=1e-12, atol=1e-12)


def test_without_a_residual_only_the_temperature_is_left():
    before = gaussian()
    for settings, root in ((Settings(temperature=2.0), torch.ones(6)), (Settings(1.0, 2.0, 5.0), None)):
        after = settings.complete(before, root)
        torch.testing.assert_close(after.mean, before.mean / 2, rtol=1e-13, atol=0)
        torch.testing.assert_close(after.covariance, before.covariance, rtol=1e-13, atol=0)


def test_the_derivative_at_the_threshold_is_finite():
    root = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
    Settings(1.0, 1.0, 3.0, 1.0).residual_deviations(root).sum().backward()
    assert bool(root.grad.isfinite().all()) and float(root.grad[2]) > 0


def test_attributes_of_a_laplace_are_its_settings():
    bayes = bb.Laplace(relu_mlp())
    assert bayes.settings == Settings() and bayes.prior_variance == 1.0
    bayes.prior_variance, bayes.temperature, bayes.residual_variance = 3, 0.5, 7
    bayes.residual_threshold = torch.tensor(0.25)
    assert bayes.settings == Settings(3.0, 0.5, 7.0, 0.25)
    bayes.settings = Settings(2.0)
    assert (bayes.prior_variance, bayes.temperature, bayes.residual_variance) == (2.0, 1.0, 0.0)
    assert bb.Laplace(relu_mlp(), residual=True).settings == Settings(residual_variance=1.0)


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
    assert "variance" in bb.Laplace.residual_variance.__doc__
