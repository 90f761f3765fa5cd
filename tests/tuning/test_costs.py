"""Mean costs of candidates on points, against plain predictions of each candidate."""

from types import SimpleNamespace

import pytest
import torch

from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.settings import Settings
from bitbayes.tuning import Costs, Points
from bitbayes.tuning import costs as module
from bitbayes.tuning.costs import all_points, point_count


class Scaled:
    """Logits whose covariance is that of a prior variance of 1, times the prior variance."""

    def __init__(self, mean, variances):
        self.mean, self.variances, self.calls = mean, variances, []
        self.scaled_mean, self.scale = mean, torch.ones(len(mean), dtype=torch.float64)

    def at(self, prior):
        self.calls.append(float(prior.of("")))
        factors = CovarianceFactors(self.variances * float(prior.of("")), None, torch.zeros(len(self.mean)))
        return LogitGaussian(self.mean, factors, self.scale)

    def mean_pair_variance(self, prior):
        return self.at(prior).scaled_mean_pair_variance()

    @classmethod
    def joined(cls, parts):
        return cls(torch.cat([each.mean for each in parts]), torch.cat([each.variances for each in parts]))

    def select(self, indices):
        return Scaled(self.mean[indices], self.variances[indices])


def points(k, residual=True, n=9):
    torch.manual_seed(k)
    by_prior = Scaled(3 * torch.randn(n, k).double(), torch.rand(n, k).double())
    distances = 2 * torch.rand(n, 2).double() if residual else None
    return Points(by_prior, torch.arange(n) % max(k, 2), distances)


# More than are looked at together.
PLAIN = [Settings(v, t) for v in (0.1, 1.0, 30.0) for t in (0.5, 2.0)]
LEVELS, THRESHOLDS = {"input": 0.3, "head": 0.2}, {"input": 0.5, "head": 1.2}
WITH_RESIDUAL = [
    Settings(v, t, near, beyond, LEVELS, THRESHOLDS)
    for v in (0.1, 30.0)
    for t in (0.5, 2.0)
    for near, beyond in ((0.0, 1.0), (7.0, 0.0), (0.4, 2.0))
]


def expected(likelihood, group, settings, method):
    """−log p of each label, from the candidate's own Gaussian."""
    variances = group.by_prior.variances * settings.prior_variance
    if group.distances is not None:
        for number, name in enumerate(LEVELS):
            cubes = group.distances[:, number] ** 3
            near = settings.near_variance * LEVELS[name] * cubes
            beyond = settings.beyond_variance * (cubes / THRESHOLDS[name] ** 3 - 1).clamp_min(0)
            variances = variances + (near + beyond)[:, None]
    mean = group.by_prior.mean / settings.temperature
    factors = CovarianceFactors(variances, None, torch.zeros(len(mean)))
    logits = likelihood.predict(LogitGaussian(mean, factors, group.by_prior.scale), method)
    log_p = likelihood.log_probabilities(logits)
    return -log_p[torch.arange(len(mean)), group.labels]


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("k, method", [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "meanfield")])
def test_costs_are_the_means_of_each_candidates_own_predictions(k, method, residual):
    likelihood, groups = likelihood_for(k), [points(k, residual), points(k, residual, n=4)]
    costs, candidates = Costs(groups, likelihood, method), WITH_RESIDUAL if residual else PLAIN
    assert costs.count == 13
    found = costs.mean(candidates, likelihood.prediction_losses)
    assert found.dtype == torch.float64 and found.shape == (len(candidates),)
    wanted = [
        torch.cat([expected(likelihood, group, each, method) for group in groups]).mean()
        for each in candidates
    ]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-9, atol=0)


@pytest.mark.parametrize("at_once", [1, 5 * 9 * 3, 2**20])
@pytest.mark.parametrize("method", ["pairwise", "meanfield"])
def test_few_logits_at_a_time_give_the_same(method, at_once, monkeypatch):
    likelihood, group = likelihood_for(3), points(3)
    wanted = Costs([group], likelihood, method).mean(WITH_RESIDUAL, likelihood.prediction_losses)
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", at_once)
    found = Costs([group], likelihood, method).mean(WITH_RESIDUAL, likelihood.prediction_losses)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)


def test_mean_field_takes_one_variance_of_each_point_for_each_prior():
    """Its temperatures, residuals and all later calls need no other."""
    likelihood, group = likelihood_for(3), points(3)
    costs = Costs([group], likelihood, "meanfield")
    for candidates in (PLAIN, WITH_RESIDUAL, WITH_RESIDUAL):
        costs.mean(candidates, likelihood.prediction_losses)
        for each, gaussian in zip(candidates, costs.gaussians(group, candidates), strict=True):
            (whole,) = points(3).gaussians([each])
            found, wanted = (likelihood.scaled_margin_variance(one) for one in (gaussian, whole))
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    assert sorted(group.by_prior.calls) == [0.1, 1.0, 30.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_field_is_finite_where_logits_overflow(dtype):
    largest = torch.finfo(dtype).max
    by_prior = Scaled(
        torch.tensor([[largest / 4, 0, -largest / 4], [1, 0, 0]], dtype=dtype), torch.zeros(2, 3)
    )
    costs = Costs([Points(by_prior, torch.tensor([0, 1]), None)], likelihood_for(3), "meanfield")
    found = costs.mean([Settings(1.0, 1e-30)], lambda logits, labels: logits.abs().amax(1))
    assert bool(found.isfinite().all()) and float(found) > 1e29


def test_outliers_have_a_cost_without_labels():
    likelihood, group = likelihood_for(3), points(3)._replace(labels=None)
    found = Costs([group], likelihood, "pairwise").mean(WITH_RESIDUAL, lambda logits: logits[:, 0].exp())
    for each, cost in zip(WITH_RESIDUAL, found, strict=True):
        (gaussian,) = group.gaussians([each])
        torch.testing.assert_close(cost, likelihood.predict(gaussian, "pairwise")[:, 0].exp().mean())


def test_sampled_logits_are_close_to_the_closed_form_and_the_same_each_time():
    likelihood, group = likelihood_for(1), points(1, n=200)
    sampled, exact = (
        Costs([group], likelihood, method).mean(WITH_RESIDUAL, likelihood.prediction_losses)
        for method in ("mc", "quadrature")
    )
    # A mean of 100 draws has a tenth of their spread, and 200 points average that again.
    torch.testing.assert_close(sampled, exact, rtol=0.1, atol=0)
    again = Costs([group], likelihood, "mc").mean(WITH_RESIDUAL, likelihood.prediction_losses)
    assert torch.equal(again, sampled)


def test_numbers_of_all_points():
    assert point_count([points(3), points(3, n=2)]) == 11 and point_count([]) == 0
    many = points(3)._replace(weights=torch.full((9,), 1e300, dtype=torch.float64))
    likelihood = likelihood_for(3)
    found = Costs([many], likelihood, "probit").mean(PLAIN, likelihood.prediction_losses)
    plain = Costs([points(3)], likelihood, "probit").mean(PLAIN, likelihood.prediction_losses)
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=0)
    parts = [torch.ones(2, 3), torch.zeros(1, 3)]
    assert all_points(parts, 3).shape == (3, 3) and all_points(parts, 3).dtype == torch.float64
    assert all_points([], 3).shape == (0, 3) and all_points([]).shape == (0,)
    assert all_points([], 3).dtype == torch.float64  # other processes have points, and send them so


def test_means_are_over_the_points_of_all_processes(monkeypatch):
    """Two processes with the same points: sums and counts are twice as large, and their ratio is the same."""
    group, likelihood = points(3, residual=False), likelihood_for(3)
    alone = Costs([group], likelihood, "pairwise").mean(PLAIN, likelihood.prediction_losses)
    twins = SimpleNamespace(add_=lambda *tensors: [each.mul_(2) for each in tensors])
    monkeypatch.setattr(module, "current_processes", lambda: twins)
    together = Costs([group], likelihood, "pairwise")
    assert together.count == 18
    found = together.mean(PLAIN, likelihood.prediction_losses)
    torch.testing.assert_close(found, alone, rtol=1e-12, atol=0)
