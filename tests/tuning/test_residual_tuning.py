"""Tuning the residual's variance and threshold on the embedded digits."""

import pytest
import torch

import bitbayes as bb
from bitbayes import metrics
from bitbayes.toys import digits, digits_lenet, validation_split
from ray_cases import laplace
from reference import residual_kernel


@pytest.fixture(scope="module")
def embedded():
    data = digits()
    validation, test = validation_split(data.test_images, data.test_labels, 1000, 0)
    train = (data.train_images, data.train_labels)
    plain, bayes = (bb.Laplace(digits_lenet(), residual=each).fit([train]) for each in (False, True))
    return plain, bayes, train[0], validation, test


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("objective", ["nll", "ood"])
@pytest.mark.slow
def test_tuning_on_the_embedded_digits_keeps_accuracy_and_lowers_far_confidence(embedded, objective):
    plain, bayes, train, validation, (images, labels) = embedded
    plain.tune([validation], objective=objective)
    bayes.tune([validation], objective=objective)
    before, after = plain.predict_proba(images), bayes.predict_proba(images)
    assert abs(metrics.accuracy(after, labels) - metrics.accuracy(before, labels)) <= 0.001
    # Half a percent of the validation loss at most; of the test loss up to 4 % on the worst of eight splits.
    assert metrics.nll(after, labels) <= 1.04 * metrics.nll(before, labels)
    assert metrics.mmc(bayes.predict_proba(100 * images)) < 0.3
    assert metrics.mmc(bayes.predict_proba(2000 * images)) < 0.15
    threshold = residual_kernel(validation[0], train).quantile(0.99)
    assert bayes.residual_threshold == pytest.approx(float(threshold), rel=1e-6)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_the_residual_costs_at_most_half_a_percent_of_the_validation_loss(embedded):
    plain, bayes, _, (images, labels), _ = embedded
    batches = list(zip(torch.split(images, 300), torch.split(labels, 300), strict=True))
    bayes.tune(batches, objective="nll")
    plain.prior_variance = bayes.prior_variance
    base = metrics.nll(plain.predict_proba(images), labels)
    assert metrics.nll(bayes.predict_proba(images), labels) <= 1.005 * base * (1 + 1e-5)
    bayes.residual_variance *= 10 ** (1 / 6.9)  # beyond the next candidate
    assert metrics.nll(bayes.predict_proba(images), labels) > 1.005 * base


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_the_papers_objective_without_weight_still_chooses_both_numbers_jointly(monkeypatch):
    bayes, x = laplace("mlp", 3, residual=True)
    y = torch.arange(len(x)) % 3
    called = []
    monkeypatch.setattr("bitbayes.tuning.tune.search_pairs", lambda *_: called.append(True) or (1.0, 2.0))
    bayes.tune([(x, y)], objective="ood", weight=0)
    assert called and (bayes.prior_variance, bayes.residual_variance) == (1.0, 2.0)
    bayes.tune([(x, y)], objective="nll")
    assert len(called) == 1
