"""The regressor, as scikit-learn's own tools and checks use it."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError
from bitbayes.sklearn import LaplaceRegressor

# Training in random batches is not the same for weights as for repeated rows. Without training it is:
# `test_weights_are_repeated_rows_for_a_trained_network`.
NOT_EQUIVALENT = "check_sample_weight_equivalence_on_dense_data"


# All checks of scikit-learn apply, but those that skip themselves, and one; see the classifier's.
@parametrize_with_checks(
    [LaplaceRegressor(epochs=30)], expected_failed_checks=lambda _: {NOT_EQUIVALENT: "trained in batches"}
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


def wave(n=400, noise=0.1, seed=0):
    """Two targets: sin(3x) and a line, with the same noise."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, size=(n, 1))
    y = np.column_stack([np.sin(3 * x[:, 0]), 1 - 2 * x[:, 0]])
    return x, y + noise * random.normal(size=y.shape)


def regressor(**options):
    return LaplaceRegressor(**{"epochs": 60, "random_state": 0, **options})


def trained_network():
    """A network of two outputs that predicts `wave`'s targets in their own units."""
    return regressor(module=lambda features, outputs: Scaled(features, outputs)).fit(*wave()).module_


class Scaled(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.inside, self.head = nn.Linear(features, 20), nn.Linear(20, outputs)

    def forward(self, x):
        return self.head(self.inside(x).relu())


@pytest.mark.parametrize("one", [True, False])
def test_values_and_deviations_have_the_shape_of_the_targets(one):
    X, y = wave()
    y = y[:, 0] if one else y
    model = regressor().fit(X, y)
    mean, deviation = model.predict(X, return_std=True)
    assert mean.shape == deviation.shape == y.shape
    np.testing.assert_array_equal(model.predict(X), mean)
    interval = model.interval(X, coverage=0.9)
    assert interval.shape == (*y.shape, 2)
    np.testing.assert_allclose(interval.mean(-1), mean, atol=1e-9)
    np.testing.assert_allclose(np.diff(interval, axis=-1)[..., 0] / 2, 1.6448536 * deviation, rtol=1e-6)
    assert np.ndim(model.noise_variance_) == (0 if one else 1)
    assert model.score_samples(X).shape == (len(X),)


def test_it_predicts_well_and_knows_the_noise():
    X, y = wave()
    model = regressor().fit(X, y)
    X_new, y_new = wave(2000, seed=1)
    assert model.score(X_new, y_new) > 0.97
    assert np.sqrt(model.noise_variance_) == pytest.approx([0.1, 0.1], rel=0.25)
    interval = model.interval(X_new, 0.9)
    inside = (interval[..., 0] < y_new) & (y_new < interval[..., 1])
    assert 0.84 < inside.mean() < 0.96
    _, far = model.predict([[-50.0], [50.0]], return_std=True)
    assert far.min() > 1


@pytest.mark.parametrize(("scale", "shift"), [(1e-150, 0.0), (1e6, 3e7), (1e200, -1e200)])
def test_the_units_of_the_targets_do_not_matter(scale, shift):
    """y → scale·y + shift: the standardised targets are the same, but for their rounding."""
    X, y = wave(200)
    plain, other = regressor(epochs=3).fit(X, y), regressor(epochs=3).fit(X, scale * y + shift)
    (mean, deviation), (theirs, their_deviation) = (
        each.predict(X, return_std=True) for each in (plain, other)
    )
    np.testing.assert_allclose((theirs - shift) / scale, mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(their_deviation / scale, deviation, rtol=1e-5)
    np.testing.assert_allclose(other.target_scale_ / scale, y_scale(plain, X, y), rtol=1e-6)


def y_scale(model, X, y):
    """The deviations of the targets that were not set aside, as the model has found them."""
    assert (abs(model.target_scale_ / y.std(0) - 1) < 0.2).all()
    return model.target_scale_


def test_a_trained_network_predicts_targets_in_their_own_units():
    network = trained_network()
    X, y = wave(seed=2)
    X_val, y_val = wave(seed=3)
    before = copy.deepcopy(network.state_dict())
    model = LaplaceRegressor(network).fit(X, y, validation=(X_val, y_val))
    assert model.module_ is network and (model.target_scale_ == 1).all() and (model.target_mean_ == 0).all()
    assert all(torch.equal(each, before[name]) for name, each in network.state_dict().items())

    def batch(X, y):
        return [(torch.tensor(X, dtype=torch.float32), torch.tensor(y))]

    by_hand = bb.Laplace(network, likelihood="gaussian").fit(batch(X, y)).tune(batch(X_val, y_val))
    found = by_hand.predict(torch.tensor(X_val, dtype=torch.float32))
    mean, deviation = model.predict(X_val, return_std=True)
    np.testing.assert_allclose(mean, found.mean.numpy(), rtol=1e-6)
    np.testing.assert_allclose(deviation, found.deviation.numpy(), rtol=1e-6)
    assert model.noise_variance_.tolist() == list(by_hand.noise_variance)


def test_a_noise_variance_is_given_in_the_units_of_the_targets():
    X, y = wave(200)
    y = 1000 * y
    model = regressor(epochs=2, noise_variance=[1e4, 4e4]).fit(X, y)
    np.testing.assert_allclose(model.noise_variance_, [1e4, 4e4])
    np.testing.assert_allclose(
        model.laplace_.noise_variance, np.array([1e4, 4e4]) / model.target_scale_**2, rtol=1e-12
    )
    one = regressor(epochs=2, noise_variance=1e4).fit(X, y[:, 0])
    assert one.noise_variance_ == pytest.approx(1e4)
    _, deviation = one.predict(X, return_std=True)
    assert deviation.min() >= 100 * (1 - 1e-9)
    shared = regressor(epochs=2, layers="all", noise_variance=1e4, prior_variance=1.0)
    assert shared.fit(X, y[:, 0]).noise_variance_ == pytest.approx(1e4)
    with pytest.raises(ArgumentError, match="share one noise variance"):
        clone(shared).fit(X, y)


def test_a_prior_variance_that_is_set_is_not_tuned():
    X, y = wave(200)
    model = regressor(epochs=2, prior_variance=3.0).fit(X, y)
    assert model.laplace_.prior_variance == 3 and model.laplace_.posterior.fitted.count == 200
    errors = np.square(y - model.predict(X)).mean(0)
    np.testing.assert_allclose(model.noise_variance_, errors, rtol=1e-6)


def test_a_constant_target_is_predicted():
    X, y = wave(200)
    y[:, 1] = 7.0
    model = regressor(epochs=30).fit(X, y)
    assert model.target_scale_[1] == 1
    assert abs(model.predict(X)[:, 1] - 7).max() < 0.5


def test_tools_of_scikit_learn_take_it():
    X, y = load_diabetes(return_X_y=True)
    pipeline = make_pipeline(StandardScaler(), regressor(epochs=15, hidden=(16,)))
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.3
    search = GridSearchCV(pipeline, {"laplaceregressor__structure": ["diag", "kron"]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.3


def test_it_is_cloned_and_pickled():
    X, y = wave(100)
    model = regressor(epochs=3).fit(X, y)
    assert not hasattr(clone(model), "laplace_")
    for mine, theirs in zip(
        model.predict(X, return_std=True),
        pickle.loads(pickle.dumps(model)).predict(X, return_std=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_mistakes_are_told():
    X, y = wave(60)
    with pytest.raises(NotFittedError):
        LaplaceRegressor().predict(X)
    wrong = {
        "epochs": 0,
        "learning_rate": -1.0,
        "validation_fraction": 1.0,
        "module": "mlp",
        "structure": "kfac",
        "noise_variance": (1.0, 2.0, 3.0),
    }
    for name, value in wrong.items():
        with pytest.raises(ArgumentError, match=name):
            regressor(**{"epochs": 1, name: value}).fit(X, y)
    with pytest.raises(ArgumentError, match="noise_variance"):
        regressor(epochs=1, noise_variance=-1.0).fit(X, y)
    for module in (nn.Linear(1, 5), lambda features, outputs: nn.Linear(features, 5)):
        with pytest.raises(ArgumentError, match="5 outputs and y has 2 columns"):
            regressor(module=module).fit(X, y)
    for validation in (X, (X, y[:, 0])):
        with pytest.raises(ArgumentError, match="validation"):
            regressor(epochs=1).fit(X, y, validation=validation)
    model = regressor(epochs=1).fit(X, y)
    with pytest.raises(ArgumentError, match="coverage"):
        model.interval(X, coverage=1.5)


def test_weights_are_repeated_rows_for_a_trained_network():
    network = trained_network()
    X, y = wave(200, seed=2)
    X_val, y_val = wave(200, seed=3)
    weights = np.arange(200) % 3
    found = LaplaceRegressor(network, residual=False)
    found.fit(X, y, weights, validation=(X_val, y_val, np.full(200, 2)))
    twice = np.repeat(X_val, 2, axis=0), np.repeat(y_val, 2, axis=0)
    wanted = LaplaceRegressor(network, residual=False)
    wanted.fit(np.repeat(X, weights, axis=0), np.repeat(y, weights, axis=0), validation=twice)
    for mine, theirs in zip(
        found.predict(X, return_std=True), wanted.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)
    np.testing.assert_allclose(found.noise_variance_, wanted.noise_variance_, rtol=1e-5)


def test_rows_count_as_their_weights_say():
    """Half the rows follow another line, and count a hundredth."""
    random = np.random.default_rng(0)
    X = random.uniform(-1, 1, size=(400, 1))
    other = np.arange(400) % 2 == 0
    y = np.where(other, 5 - X[:, 0], X[:, 0]) + 0.05 * random.normal(size=400)
    model = regressor().fit(X, y, sample_weight=np.where(other, 0.0, 1.0))
    assert abs(model.predict(X) - X[:, 0]).mean() < 0.1
    model = regressor().fit(X, y, sample_weight=np.where(other, 0.01, 1.0))
    assert abs(model.predict(X) - X[:, 0]).mean() < 0.3
    assert model.laplace_.posterior.fitted.total_weight < 200
    assert model.target_mean_[0] < 0.3
