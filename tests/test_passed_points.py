"""Points that pass the model once: what is tuned and predicted with them is what `Laplace` itself gives."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError
from bitbayes.settings import Settings


def fitted(k=3, **options):
    """A Laplace, and points in two batches."""
    torch.manual_seed(0)
    x, y = torch.randn(80, 4, dtype=torch.float64), torch.arange(80) % max(k, 2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, k)).double()
    bayes = bb.Laplace(model, **options).fit([(x, y)])
    return bayes, x, y


@pytest.mark.parametrize(
    "k, options", [(3, {}), (1, {}), (3, {"layers": "all"}), (3, {"residual": False, "predictive": "probit"})]
)
def test_settings_and_predictions_are_those_of_a_laplace(k, options):
    bayes, x, y = fitted(k, **options)
    passed = bb.PassedPoints.of(bayes, [(x[:50], y[:50]), (x[50:], y[50:])])
    assert len(passed) == 80
    before = bayes.settings
    settings = passed.tune()
    assert bayes.settings == before  # a choice, and no change
    bayes.tune([(x, y)])
    for name, value in settings.as_json().items():
        chosen = getattr(bayes.settings, name)
        assert value == (None if chosen is None else pytest.approx(chosen, rel=1e-6)), name
    assert bayes.settings.has_residual == (bayes.known_residual is not None)
    probabilities, scores = passed.predict(bayes.settings)
    # Over all layers deviations are interpolated between priors to 2%, and logits are of the size of 1.
    close = 0.01 if bayes.layers == "all" else 1e-9
    torch.testing.assert_close(probabilities, bayes.predict_proba(x), rtol=0, atol=close)
    torch.testing.assert_close(scores, bayes.score(x), rtol=0, atol=10 * close)


def test_some_of_the_points_are_those_points():
    bayes, x, y = fitted()
    some = torch.tensor([70, 3, 41, 8, 9, 30, 22, 57, 60, 61, 79, 0])
    passed = bb.PassedPoints.of(bayes, [(x, y)]).select(some)
    assert len(passed) == len(some)
    names = bayes.known_residual.names
    chosen = (0.3, 0.1, 0.2), (0.9, 1.1, 0.4)
    levels, thresholds = (dict(zip(names, values, strict=True)) for values in chosen)
    settings = Settings(5.0, 0.7, 2.0, 0.5, levels, thresholds, 1.0, 0.1, 0.7, 0.05, 0.3)
    probabilities, scores = passed.predict(settings)
    bayes.settings = settings
    torch.testing.assert_close(probabilities, bayes.predict_proba(x[some]), rtol=0, atol=1e-12)
    torch.testing.assert_close(scores, bayes.score(x[some]), rtol=0, atol=1e-12)
    chosen = passed.tune()
    bayes.tune([(x[some], y[some])])
    assert chosen.prior_variance == pytest.approx(bayes.prior_variance, rel=1e-6)


def test_the_model_runs_once_for_all_settings():
    bayes, x, y = fitted()
    passed = bb.PassedPoints.of(bayes, [(x, y)])
    calls = []
    bayes.model.register_forward_hook(lambda *_: calls.append(1))
    for prior_variance in (0.1, 1.0, 10.0):
        passed.predict(Settings(prior_variance))
    passed.tune()
    assert calls == []


def test_values_are_refused_with_what_to_do():
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    bayes = bb.Laplace(nn.Linear(3, 2), likelihood="gaussian").fit([(x, y)])
    with pytest.raises(ArgumentError, match=r"predicts values.*`Laplace\.tune` and `Laplace\.predict`"):
        bb.PassedPoints.of(bayes, [(x, y)])


def test_none_of_the_points_tune_nothing():
    bayes, x, y = fitted()
    none = bb.PassedPoints.of(bayes, [(x, y)]).select(torch.arange(0))
    with pytest.raises(DataError, match="no points to tune on"):
        none.tune()
    assert none.predict(bayes.settings)[0].shape == (0, 3)
