"""The cells of a certificate: each bound against a fine grid of its own cell, and the search over cells.

Whole certificates would hide an error here: most rays have their largest confidence at one end, and cells
are halved until nothing depends on how a cell is bounded.
"""

import pytest
import torch

from bitbayes.closed_forms import KAPPA
from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.rays import certificates, limit
from bitbayes.rays.ray_gaussian import INFINITE_SCALE, RayGaussian
from bitbayes.rays.ray_residual import RayResidual
from bitbayes.settings import Settings

RAYS, DIMENSIONS = 400, 3
METHODS = [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "probit"), (3, "meanfield")]


def settings(variance, threshold):
    return Settings(residual_variance=variance, residual_threshold=threshold)


def random_ray(k, residual, seed=0):
    """Rays with an affine mean and a quadratic covariance; on a third of them 1/scale is not 0 at u = 0."""
    torch.manual_seed(seed)

    def normal(*shape):
        return torch.randn(RAYS, *shape, dtype=torch.float64)

    sizes = 10 ** normal(1, 1)
    means, roots = (3 * sizes[:, 0] * normal(k), normal(k)), (sizes * normal(k, 2), normal(k, 2))
    alpha, near, slope = normal().abs(), normal().exp(), normal().exp()
    alpha[::5] = 0
    far = torch.where(torch.arange(RAYS) % 3 == 0, 3 * normal().exp(), INFINITE_SCALE)

    def at(u):
        u = torch.as_tensor(u, dtype=torch.float64).expand(RAYS)[:, None]
        factor = (1 - u[..., None]) * roots[0] + u[..., None] * roots[1]
        weights = torch.ones(RAYS, 2, dtype=torch.float64)
        factors = CovarianceFactors(weights, factor, torch.zeros(RAYS, dtype=torch.float64))
        scale = 1 / ((1 - u) / far[:, None] + u / near[:, None])[:, 0]
        return LogitGaussian((1 - u) * means[0] + u * means[1], factors, scale)

    def delta(row, u):
        return alpha[row] + (1 - u) / ((1 - u) / INFINITE_SCALE + u / near[row]) / slope[row]

    ray = RayGaussian(alpha, at, far, near, delta)
    if not residual:
        return ray
    lines = normal(DIMENSIONS), 2 * normal(DIMENSIONS)
    lines[0][:, 0] = 0
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    return ray._replace(residual=RayResidual(*lines, weights, settings(0.7, 0.4)))


def cells(seed=1):
    """Low and high (n,): tiny and large cells, some of which begin at 0 or end at 1."""
    torch.manual_seed(seed)
    low, high = torch.rand(2, RAYS, dtype=torch.float64).sort(0).values
    narrow = torch.arange(RAYS) % 2 == 0
    high = torch.where(narrow, low + 0.05 * (high - low), high)
    low = torch.where(torch.arange(RAYS) % 7 == 0, 0, low)
    return low, torch.where(torch.arange(RAYS) % 11 == 0, 1, high)


def added(ray, u):
    """What the residual adds to every variance at u (n,), in units of scale²: the plain formula."""
    residual, row = ray.residual, torch.arange(RAYS)
    values = residual.slope * ray.delta(row, u)[:, None] + residual.offset
    kernel = (values.abs() ** 3 * residual.weights).sum(1) / 3
    chosen = residual.settings
    beyond = (kernel - chosen.residual_threshold).clamp_min(0)
    return chosen.residual_variance * beyond / ray.at(u).scale ** 2


def confidence(ray, method, u):
    """The prediction's confidence at u (n,)."""
    gaussian = ray.at(u)
    if ray.residual is not None:
        gaussian = gaussian.plus_independent(added(ray, u).sqrt() * gaussian.scale)
    likelihood = likelihood_for(gaussian.scaled_mean.shape[1])
    return likelihood.log_probabilities(likelihood.predict(gaussian, method)).exp().amax(1)


def cell_bound(ray, method):
    if method == "quadrature":
        return certificates._quadrature_bound(ray)
    likelihood = likelihood_for(ray.at(1.0).scaled_mean.shape[1])
    ratio = certificates._ratio(ray, likelihood, method)
    return certificates._ratio_bound(ray, ratio, likelihood, method)


def grid(low, high, count=60):
    """u (count, n) from low to high; none is 0, where δ is infinite."""
    steps = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    return (low + (high - low) * steps).clamp_min(1e-9)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("k, method", METHODS)
def test_no_confidence_in_a_cell_exceeds_its_bound(k, method, residual):
    ray, (low, high) = random_ray(k, residual), cells()
    bound = cell_bound(ray, method)(torch.arange(RAYS), low, high)
    found = torch.stack([confidence(ray, method, u) for u in grid(low, high)])
    assert bool((found.amax(0) <= bound + 1e-9).all())
    # The test would not tell a bound from the ends alone if no cell had its maximum inside.
    assert int((found.amax(0) > torch.maximum(found[0], found[-1]) + 0.01).sum()) >= 3


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("k, method", METHODS)
def test_the_bound_of_a_point_is_the_confidence_there(k, method, residual):
    ray, (_, u) = random_ray(k, residual), cells()
    bound = cell_bound(ray, method)(torch.arange(RAYS), u, u)
    torch.testing.assert_close(bound, confidence(ray, method, u), rtol=0, atol=1e-9)


def uncertain_leader():
    """A ray on which class 0 has the largest mean, and "pairwise" is surest of class 1; with a residual."""
    one = torch.ones(1, dtype=torch.float64)
    mean = torch.tensor([[28.0, 20.0, 0.0]], dtype=torch.float64)
    variances = torch.tensor([[1599 / KAPPA, 0.0, 0.0]], dtype=torch.float64)
    gaussian = LogitGaussian(mean, CovarianceFactors(variances, None, 0 * one), one)
    residual = RayResidual(one[:, None], 0 * one[:, None], one, settings(0.5, 1 / 3))
    return RayGaussian(one, lambda _: gaussian, one, one, lambda _, u: 1 / u, residual)


def test_the_surest_class_may_have_a_smaller_mean_than_another():
    """Its own z < 0 then grows with the residual, while all other |z| shrink."""
    ray, one = uncertain_leader(), torch.ones(1, dtype=torch.float64)
    bound = cell_bound(ray, "pairwise")(torch.zeros(1, dtype=torch.long), 0.5 * one, one)
    extra = 0.5 * (2.0**3 - 1) / 3  # at u = 0.5; none at u = 1
    predict = likelihood_for(3).predict
    logits = predict(ray.at(0.5).plus_independent((extra * one).sqrt()), "pairwise")
    assert int(logits.argmax()) == 1 and int(predict(ray.at(1.0), "pairwise").argmax()) == 1
    assert bound >= logits.softmax(1).amax()


def test_the_class_of_a_limit_with_a_residual_is_that_of_the_largest_mean():
    """The residual's variance is the same for all classes, and far out it is all there is."""
    found = limit([uncertain_leader()], likelihood_for(3), "pairwise")
    assert found.label.tolist() == [0] and found.confidence.tolist() == [1 / 3]


def test_the_residual_in_a_cell_lies_in_its_range():
    ray, (low, high) = random_ray(1, True), cells()
    below, above = ray.residual.range(ray, torch.arange(RAYS), low, high)
    found = torch.stack([added(ray, u) for u in grid(low, high, 300)])
    assert bool((below <= found.amin(0) * (1 + 1e-12)).all())
    assert bool((above >= found.amax(0) * (1 - 1e-12)).all())
    assert int(((below > 0) & (found.amin(0) < 0.99 * found[[0, -1]].amin(0))).sum()) >= 3


def test_the_range_of_the_residual_closes_with_the_cell():
    ray, (_, u) = random_ray(1, True), cells()
    below, above = ray.residual.range(ray, torch.arange(RAYS), u, u)
    torch.testing.assert_close(below, added(ray, u), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(above, added(ray, u), rtol=1e-9, atol=1e-12)


def test_near_infinity_the_range_of_the_residual_stays_above_zero():
    """1/scale² goes to 0 there, and δ³ to infinity: a bound by each of the two alone would be 0."""
    ray = random_ray(1, True)
    grows = ray.far_scale >= INFINITE_SCALE
    low, high = torch.zeros(RAYS, dtype=torch.float64), torch.full((RAYS,), 1e-4, dtype=torch.float64)
    below, above = ray.residual.range(ray, torch.arange(RAYS), low, high)
    assert bool((below[grows] > 0.5 * added(ray, high)[grows]).all()) and bool((above >= below).all())


# ---- the search over cells


def bumps():
    """f(u) = the larger of two bumps, for some rays: the largest is 1 − depth of the first, and inside."""
    torch.manual_seed(2)
    place, height = torch.rand(2, 50, 2, dtype=torch.float64)

    def value(row, u):
        return (height[row] - 4 * (u[:, None] - place[row]).abs()).amax(1)

    def bound(row, low, high):
        return value(row, (low + high) / 2) + 4 * (high - low) / 2

    return bound, height.amax(1)


def test_the_search_finds_the_largest_value_within_the_gap():
    bound, largest = bumps()
    found = certificates._branch_and_bound(bound, torch.zeros_like(largest), 1e-3)
    assert bool((found >= largest).all()) and bool((found <= largest + 1e-3 + 1e-12).all())


@pytest.mark.parametrize("halvings", [1, 3, 6])
def test_a_search_that_is_cut_short_is_loose_but_holds(halvings, monkeypatch):
    monkeypatch.setattr(certificates, "MAX_HALVINGS", halvings)
    bound, largest = bumps()
    found = certificates._branch_and_bound(bound, torch.zeros_like(largest), 1e-3)
    assert bool((found >= largest).all())
    # The last cells that were bounded have a width of 2^(1 − halvings), and a slope of 4.
    assert bool((found <= largest + 4 * 2.0 ** (1 - halvings) + 1e-12).all())
