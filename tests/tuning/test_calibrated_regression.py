"""Prior, noise and residual in regression, against plain computations from `predict` of other settings."""

import dataclasses
import math
import warnings

import pytest
import torch
from scipy import stats
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import EdgeWarning, FewPointsWarning
from bitbayes.tuning import calibrated_regression as tuning

pytestmark = pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")


def case(k=1, n=400, noise=0.5, **options):
    """A network that was trained on noisy values of a function of three inputs, and validation data."""
    torch.manual_seed(0)
    x = torch.randn(n, 3, dtype=torch.float64)
    y = torch.stack([torch.sin(x[:, c % 3]) for c in range(k)], 1) + noise * torch.randn(n, k).double()
    model = bb.toys.MLP((3, 20, 20, k)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    half = n // 2
    for _ in range(200):
        optimiser.zero_grad()
        (model(x[:half]) - y[:half]).square().mean().backward()
        optimiser.step()
    bayes = bb.Laplace(model, likelihood="gaussian", **options).fit([(x[:half], y[:half])])
    return bayes, x[half:], y[half:]


def nll(bayes, x, y):
    predicted = bayes.predict(x)
    return float(-stats.norm.logpdf(y, predicted.mean, predicted.deviation).mean())


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_no_other_noise_variance_has_a_lower_loss(k, layers):
    """But for the one point that the training data count for: they pull it by at most 1 in n."""
    bayes, x, y = case(k, layers=layers, residual=False)
    bayes.tune([(x, y)])
    chosen, best = bayes.noise_variance, nll(bayes, x, y)
    for factor in (0.8, 0.95, 1.05, 1.25):
        values = tuple(factor * each for each in chosen) if isinstance(chosen, tuple) else factor * chosen
        bayes.noise_variance = values
        assert nll(bayes, x, y) > best
    assert isinstance(chosen, tuple) == (layers == "last")


@pytest.mark.parametrize("k", [1, 2])
def test_the_noise_variance_is_the_weighted_mean_of_the_squared_errors(k):
    bayes, x, y = case(k, residual=False)
    bayes.tune([(x, y)])
    predicted, training = bayes.predict(x), torch.tensor(bayes.posterior.noise_variance)
    spread = 1 + predicted.variance / predicted.noise_variance
    total = ((y - predicted.mean).square() / spread).sum(0) + training
    expected = total / (len(x) + 1)
    assert bayes.noise_variance == pytest.approx(tuple(expected.tolist()), rel=1e-9)


def test_a_noise_variance_that_was_given_is_kept():
    bayes, x, y = case(2, noise_variance=(0.1, 3.0))
    for objective in ("calibrated", "evidence"):
        bayes.tune([(x, y)], objective=objective)
        assert bayes.noise_variance == (0.1, 3.0)


def test_the_prior_variance_is_that_of_a_brute_force_search():
    """Few training points, so that the data tell prior variances apart."""
    bayes, x, y = case(n=80, residual=False)
    bayes.tune([(x, y)])
    chosen, grid, costs = bayes.prior_variance, bayes.posterior.candidates(), []
    training = torch.tensor(bayes.posterior.noise_variance).double()
    for candidate in grid:
        bayes.settings = dataclasses.replace(bayes.settings, prior_variance=candidate, noise_variance=1.0)
        spread = 1 + bayes.predict(x).variance
        errors = (y - bayes.predict(x).mean).square() / spread
        noise = (errors.sum(0) + training) / (len(x) + 1)
        loss = ((2 * math.pi * noise).log() + (spread.log() + errors / noise).mean(0)).mean() / 2
        weak = float(spread.mean(1).median().log() / tuning.WIDENING_WIDTH) ** 2 / (2 * len(x))
        costs.append(float(loss) + weak)
    within = [each for each, cost in zip(grid, costs, strict=True) if cost <= min(costs) + 0.01 / len(x)]
    assert within[0] <= chosen <= within[-1]


@pytest.mark.parametrize("n", [80, 400, 4000])
def test_the_variance_near_the_data_is_the_widest_that_its_price_allows(n):
    bayes, x, y = case(n=n)
    bayes.tune([(x, y)])
    settings, count = bayes.settings, n // 2
    training = torch.tensor(bayes.posterior.noise_variance).double()
    largest = 8.0 * min(1.0, count / 1333)

    def loss(near):
        bayes.settings = dataclasses.replace(
            settings, near_variance=near, beyond_variance=0.0, noise_variance=1.0
        )
        predicted = bayes.predict(x)
        spread = 1 + predicted.variance
        errors = (y - predicted.mean).square() / spread
        noise = (errors.sum(0) + training) / (count + 1)
        return float(((2 * math.pi * noise).log() + (spread.log() + errors / noise).mean(0)).mean()) / 2

    candidates = [loss(largest * share) for share in tuning.NEAR]
    near = settings.near_variance
    # Between two candidates the loss is taken as linear, and it is convex there: it costs at most that.
    assert loss(near) <= min(candidates) + tuning.PRICE + 1e-9
    assert near == pytest.approx(largest) or loss(1.7 * near) > min(candidates) + tuning.PRICE


def test_where_the_steep_kernel_has_doubled_the_deviation_is_twice_that_of_the_targets():
    bayes, x, y = case(2)
    bayes.tune([(x, y)])
    wanted = (
        2 * (y.var(0, correction=0) / torch.tensor(bayes.noise_variance, dtype=torch.float64)).max().sqrt()
    )
    assert bayes.beyond_variance == pytest.approx(float(wanted) ** 2, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_points_and_batches_do_not_matter(seed):
    bayes, x, y = case(2)
    bayes.tune([(x, y)])
    expected = bayes.settings
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    bayes.tune(reference.loader(x[order], y[order], batch=7 + seed))
    for name, value in dataclasses.asdict(expected).items():
        if value is not None:
            assert getattr(bayes.settings, name) == pytest.approx(value, rel=1e-6), name


def test_intervals_cover_what_they_promise_on_new_data():
    """Over the noise of 4,000 new points: a binomial deviation is 0.5%, five of them."""
    bayes, x, y = case(n=4000)
    bayes.tune([(x, y)])
    new = torch.randn(4000, 3, dtype=torch.float64)
    values = torch.sin(new[:, :1]) + 0.5 * torch.randn(4000, 1).double()
    assert bayes.evaluate([(new, values)])["coverage90"] == pytest.approx(0.9, abs=0.025)


def test_away_from_the_data_intervals_widen():
    bayes, x, y = case(n=1000)
    bayes.tune([(x, y)])
    near, far = bayes.predict(x).deviation.mean(), bayes.predict(5 * x).deviation.mean()
    assert far > 3 * near
    assert bool((bayes.predict(1e4 * x).deviation > 1e4 * near).all())


@pytest.mark.filterwarnings("ignore::bitbayes.errors.FewPointsWarning")
@pytest.mark.parametrize("count", [3, 10])
def test_few_points_warn_and_stay_near_the_noise_of_all(count):
    bayes, x, y = case(n=1000)
    with pytest.warns(FewPointsWarning, match=f"there are {count} validation points"):
        bayes.tune([(x[:count], y[:count])])
    assert 0.02 < bayes.noise_variance[0] < 2


def test_the_evidence_chooses_prior_and_noise_together():
    """No neighbour of the pair has a larger evidence."""
    bayes, _, _ = case(2, residual=False)
    bayes.tune(objective="evidence")
    best, noise, prior = float(bayes.log_evidence()), bayes.noise_variance, bayes.prior_variance
    grid = bayes.posterior.candidates()
    for i, factor in ((-1, 1.0), (1, 1.0), (0, 0.97), (0, 1.03)):
        bayes.prior_variance = grid[grid.index(prior) + i]
        bayes.noise_variance = tuple(factor * each for each in noise)
        assert float(bayes.log_evidence()) < best


def test_the_evidence_over_all_layers_has_a_prior_for_each_and_one_noise():
    bayes, _, _ = case(2, layers="all", residual=False)
    bayes.prior_variance = dict.fromkeys(bayes.posterior.names, 1.0)
    bayes.tune(objective="evidence")
    assert isinstance(bayes.noise_variance, float) and len(bayes.prior_variance) == 3
    best, noise = float(bayes.log_evidence()), bayes.noise_variance
    for factor in (0.97, 1.03):
        bayes.noise_variance = factor * noise
        assert float(bayes.log_evidence()) < best


def test_a_linear_model_alone_is_tuned_too():
    x = torch.randn(100, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        bayes = bb.Laplace(nn.Linear(2, 1), likelihood="gaussian").fit([(x, x[:, 0])]).tune([(x, x[:, 0])])
    assert bayes.predict(x).deviation.shape == (100, 1)
