"""Certificates: no confidence beyond alpha exceeds them, and they are not much above the largest one."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
from bitbayes.closed_forms import KAPPA
from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.rays import certificates, limit
from bitbayes.rays.certificates import Ratio
from bitbayes.rays.ray_gaussian import INFINITE_SCALE, RayGaussian
from bitbayes.rays.ray_residual import CubicLevel, EuclideanLevel, RayResidual
from bitbayes.settings import Settings
from ray_cases import CERTIFIED, NETWORKS, STRUCTURES, deltas, fine_grid, laplace, largest_beyond


@pytest.mark.parametrize("structure, temperature", [("full", 1.0), ("kron", 0.3)])
@pytest.mark.parametrize("k, method", CERTIFIED)
def test_no_confidence_exceeds_a_certificate_and_certificates_are_tight(structure, temperature, k, method):
    bayes, x = laplace("mlp", k, n=20, structure=structure, predictive=method, prior_variance=2.0)
    bayes.temperature = temperature
    certificate = bayes.certify(x)
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 100))
    gap = certificate.confidence - torch.maximum(top, certificate.limit)
    assert gap.min() >= 0
    assert gap.max() <= (1e-4 if k == 1 else 0.01)
    torch.testing.assert_close(certificate.limit, bayes.limit(x).confidence)


def test_a_thousand_rays_have_certificates():
    for k in (1, 3):
        bayes, x = laplace("mlp", k, n=1000, prior_variance=5.0)
        certificate = bayes.certify(x)
        assert [value.shape for value in certificate[:3]] == [(1000,)] * 3
        assert bool((certificate.confidence >= certificate.limit).all())
        assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())


@given(
    name=st.sampled_from(list(NETWORKS)),
    case=st.sampled_from(CERTIFIED),
    structure=st.sampled_from(STRUCTURES),
    prior_variance=st.floats(1e-4, 1e4),
    temperature=st.floats(1e-2, 1e2),
    seed=st.integers(0, 10_000),
)
def test_no_confidence_exceeds_a_certificate_on_any_network(
    name, case, structure, prior_variance, temperature, seed
):
    k, method = case
    options = {"structure": structure, "predictive": method, "prior_variance": prior_variance}
    bayes, x = laplace(name, k, n=10, seed=seed, **options)
    bayes.temperature = temperature
    certificate = bayes.certify(x)
    top = torch.maximum(largest_beyond(bayes, x, deltas(certificate.alpha, 25)), certificate.limit)
    assert bool((certificate.confidence >= top).all())
    assert bool((certificate.confidence <= torch.maximum(bayes.bound(), top) + 2e-3).all())


def test_the_certificate_can_lie_above_the_limit():
    """With biases the confidence may have a maximum beyond alpha: the certificate includes it."""
    bayes, x = laplace("mlp", 1, n=300, prior_variance=0.5)
    certificate = bayes.certify(x)
    higher = certificate.confidence > certificate.limit + 0.01
    assert bool(higher.any())
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 200))
    assert (certificate.confidence - torch.maximum(top, certificate.limit)).max() < 1e-4


def test_linear_models_are_certified_for_every_delta():
    x = torch.randn(30, 2, dtype=torch.float64)
    bayes = bb.Laplace(torch.nn.Linear(2, 3).double()).fit([(x, torch.arange(30) % 3)])
    certificate = bayes.certify(x)
    assert bool((certificate.alpha == 0).all())
    grid = torch.cat([torch.zeros(1), torch.logspace(-6, 9, 300)]).double()[:, None].expand(-1, 30)
    gap = certificate.confidence - largest_beyond(bayes, x, grid)
    assert gap.min() >= 0 and gap.max() < 0.01


def largest_on_a_grid(ratio, low, high):
    for _ in range(2):  # then between the neighbours of the best
        grid = torch.linspace(low, high, 2001, dtype=torch.float64)
        best = int(ratio.at(grid).argmax())
        low, high = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 2000)])
    return float(ratio.at(grid).max())


@given(st.lists(st.floats(-5, 5), min_size=5, max_size=5), st.floats(0, 1), st.floats(0, 1))
@example([0.0, 3.0, 3.0, -3.0, 0.0], 0.0, 1.0)
def test_the_range_of_a_ratio_is_that_of_a_fine_grid(numbers, one, other):
    """The denominator may be any positive quadratic."""
    n0, n1, a, b, c = (torch.tensor([value], dtype=torch.float64) for value in numbers)
    d0, d1, d01 = a.square() + 0.1, b.square() + c.square() + 0.1, a * b
    ratio, mirrored = Ratio(n0, n1, d0, d01, d1), Ratio(-n0, -n1, d0, d01, d1)
    low, high = sorted((one, other))
    smallest, largest = ratio.range(*torch.tensor([[low], [high]], dtype=torch.float64))
    # With d ≥ 0.05, |n| ≤ 5 and d″ ≤ 200, |z″| is below 1e5, and steps of 5e-7 miss 1e-8 of a peak at most.
    assert -1e-12 <= float(largest) - largest_on_a_grid(ratio, low, high) <= 1e-8
    assert -1e-12 <= -float(smallest) - largest_on_a_grid(mirrored, low, high) <= 1e-8


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("residual", [False, True])
def test_a_certificate_does_not_depend_on_the_size_of_x(layers, residual):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.arange(10) % 3
    bayes = bb.Laplace(model, layers=layers, residual=residual).fit([(x, y)])
    here = bayes.certify(x)
    for size in (1e-8, 1e8):
        there = bayes.certify(size * x)
        torch.testing.assert_close(there.alpha * size, here.alpha, rtol=1e-9, atol=0)
        torch.testing.assert_close(there.limit, here.limit, rtol=0, atol=1e-9)
        # The cells differ, but both bounds are within 1e-3 of the largest confidence.
        torch.testing.assert_close(there.confidence, here.confidence, rtol=0, atol=1e-3)


RAYS, DIMENSIONS = 400, 3


METHODS = [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "probit"), (3, "meanfield")]


# Two levels, both of which count near the data and beyond them.
SETTINGS = Settings(
    near_variance=0.7,
    beyond_variance=0.4,
    levels={"euclidean": 0.3, "cubic": 0.2},
    thresholds={"euclidean": 1.1, "cubic": 2.0},
)


def residual_lines():
    """Slopes and offsets (n, d) of the Euclidean level, and of the cubic one; not all of them move."""
    torch.manual_seed(3)
    found = torch.randn(2, 2, RAYS, DIMENSIONS, dtype=torch.float64)
    found[:, 1] *= 2
    found[:, 0, :, 0] = 0  # in one dimension
    found[0, 0, ::5] = 0  # on one level
    found[:, 0, ::20] = 0  # on both
    return found


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
    euclidean, cubic = residual_lines()
    return ray._replace(residual=RayResidual((EuclideanLevel.of(*euclidean), CubicLevel(*cubic)), SETTINGS))


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
    delta, total = ray.delta(torch.arange(RAYS), u)[:, None], 0.0
    for (slope, offset), name, power in zip(residual_lines(), SETTINGS.levels, (2, 3), strict=True):
        cubes = (slope * delta + offset).norm(power, dim=1) ** 3
        total = total + SETTINGS.near_variance * SETTINGS.levels[name] * cubes
        beyond = (cubes / SETTINGS.thresholds[name] ** 3 - 1).clamp_min(0)
        total = total + SETTINGS.beyond_variance * beyond
    return total / ray.at(u).scale ** 2


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
    steep = Settings(beyond_variance=0.5, levels={"input": 0.0}, thresholds={"input": 1.0})
    residual = RayResidual((CubicLevel(one[:, None], 0 * one[:, None]),), steep)
    return RayGaussian(one, lambda _: gaussian, one, one, lambda _, u: 1 / u, residual)


def test_the_surest_class_may_have_a_smaller_mean_than_another():
    """Its own z < 0 then grows with the residual, while all other |z| shrink."""
    ray, one = uncertain_leader(), torch.ones(1, dtype=torch.float64)
    bound = cell_bound(ray, "pairwise")(torch.zeros(1, dtype=torch.long), 0.5 * one, one)
    extra = 0.5 * (2.0**3 - 1)  # at u = 0.5; none at u = 1
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
    grows &= ray.residual.moves
    assert int(grows.sum()) > 200
    assert bool((below[grows] > 0.5 * added(ray, high)[grows]).all()) and bool((above >= below).all())


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
