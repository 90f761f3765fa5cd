"""The Gaussian over the last layer's weights, in its network."""

import pytest
import torch

import bitbayes as bb
from classifiers import points, relu_mlp


def test_full_covariances_made_a_few_points_at_a_time_are_the_same(monkeypatch):
    x, _ = points(dtype=torch.float64)
    model = relu_mlp(dtype=torch.float64)
    y = model(x).argmax(1)  # the model's own labels: with random labels the optimum would be flat
    y[::7] = 0
    bayes = bb.Laplace(model, structure="full").fit([(x, y)])
    whole, tuned = (
        bayes.predict_proba(x),
        bayes.tune([(x, y)], objective="ood", outliers=3 * x).prior_variance,
    )
    bayes.prior_variance = 1.0
    monkeypatch.setattr("bitbayes.posteriors.last_layer.FULL_NUMBERS", 7 * 18 * 2)
    torch.testing.assert_close(bayes.predict_proba(x), whole, rtol=0, atol=1e-6)
    assert bayes.tune([(x, y)], objective="ood", outliers=3 * x).prior_variance == pytest.approx(tuned)
