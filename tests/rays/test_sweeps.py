"""From which δ on confidence stays below a number: it does, and that δ is near the smallest one."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError
from bitbayes.rays import ApproximateCertificate
from ray_cases import CERTIFIED, NETWORKS, chosen_residual, laplace, largest_beyond
from ray_operations import network_of_signs, rule_of_the_sign

pytestmark = pytest.mark.filterwarnings(
    "ignore::bitbayes.errors.EdgeWarning", "ignore::bitbayes.errors.FewPointsWarning"
)


@cache
def moons(k=2):
    """A tuned MLP on two moons, in float64, and inputs."""
    torch.manual_seed(0)
    (x, y), (more, labels) = (bb.toys.two_moons(200, noise=0.2, seed=seed) for seed in (1, 2))
    x, more, model = x.double(), more.double(), bb.toys.MLP((2, 20, 20, k)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        outputs = model(x)
        if k == 1:
            nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.double()).backward()
        else:
            nn.functional.cross_entropy(outputs, y).backward()
        optimiser.step()
    return bb.Laplace(model).fit([(x, y)]).tune([(more, labels)]), more[::10]


def further(start, count, up_to=1e9):
    """δ from start on, (2·count, n): some close to it, and some far out."""
    steps = torch.linspace(0, 1, count, dtype=torch.float64)[:, None]
    start = start.clamp_min(1e-6)
    return torch.cat([start * (1 + 9 * steps), start * (up_to / start).clamp_min(1) ** steps])


def last_crossing(bayes, x, at_most, grid):
    """The last δ of the grid (m,) at which the confidence is above a number, (n,), 0 if it nowhere is."""
    points = grid.reshape(-1, *[1] * x.dim()) * x  # (m, n, …)
    above = bayes.predict_proba(points.flatten(0, 1)).amax(1).reshape(len(grid), len(x)) > at_most
    return (above * grid[:, None]).amax(0)


def holds(bayes, x, at_most, count=40):
    """Assert that no confidence beyond exceeds the number, and return the certificate."""
    certificate = bayes.certify(x, at_most=at_most)
    proven = certificate.beyond.isfinite()
    assert certificate.beyond.dtype == torch.float64 and certificate.beyond.shape == (len(x),)
    assert torch.equal(proven, proven & (certificate.limit <= at_most))
    if bool(proven.any()):
        grid = further(certificate.beyond[proven], count)
        assert float(largest_beyond(bayes, x[proven], grid).max()) <= at_most + 1e-7
    return certificate


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("at_most", [0.55, 0.7, 0.9])
def test_on_two_moons_it_is_close_to_the_last_crossing(k, at_most):
    bayes, x = moons(k)
    certificate = holds(bayes, x, at_most)
    true = last_crossing(bayes, x, at_most, torch.logspace(-2, 4, 3000, dtype=torch.float64))
    assert bool((true > 0).any()) and bool(certificate.beyond.isfinite().all())
    ratio = (certificate.beyond / true)[true > 0]
    assert float(ratio.max()) <= 1.02
    if at_most == 0.9:
        assert bool((certificate.beyond < certificate.alpha).all())


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_it_holds_for_what_tune_chooses_on_every_kind_of_network(name, k, layers):
    bayes, x = laplace(name, k, n=40, layers=layers)
    bayes.tune([(2 * x, torch.arange(40) % max(2, k))])
    assert bayes.settings.has_residual
    for at_most in (0.4, 0.55, 0.8):
        certificate = holds(bayes, x[:10], at_most)
        below = at_most > 1 / max(2, k)
        assert bool((certificate.beyond.isfinite() == below).all())


@pytest.mark.slow
@given(
    name=st.sampled_from(list(NETWORKS)),
    case=st.sampled_from(CERTIFIED),
    layers=st.sampled_from(["last", "all"]),
    near=st.sampled_from([1e-3, 1.0]),
    beyond=st.sampled_from([0.0, 3.0]),
    temperature=st.sampled_from([0.1, 1.0]),
    at_most=st.floats(0.2, 0.99),
    seed=st.integers(0, 10_000),
)
def test_it_holds_on_any_network(name, case, layers, near, beyond, temperature, at_most, seed):
    k, method = case
    bayes, x = laplace(name, k, n=4, seed=seed, layers=layers, predictive=method, residual=True)
    chosen_residual(bayes, near, beyond, seed)
    bayes.temperature = temperature
    holds(bayes, x, at_most, count=15)


@pytest.mark.parametrize("method", ["pairwise", "probit", "meanfield"])
def test_it_is_close_for_a_network_with_max_pooling_and_batch_norm(method):
    bayes, x = laplace("convnet", 4, n=30, predictive=method, prior_variance=0.5, residual=True)
    chosen_residual(bayes, 0.3, 3.0)
    certificate = holds(bayes, x, 0.4)
    true = last_crossing(bayes, x, 0.4, torch.logspace(-2, 3, 1000, dtype=torch.float64))
    ratio = (certificate.beyond / true)[true > 0]
    print(f"{method}: {ratio.median():.4f} times the last crossing, at most {ratio.max():.4f}")
    assert len(ratio) > 10 and float(ratio.max()) <= 1.05


def test_without_a_residual_nothing_is_proven_below_alpha():
    bayes, x = laplace("mlp", 3, n=20, residual=False, prior_variance=5.0)
    limit = bayes.limit(x).confidence
    at_most = float(limit.median())
    certificate = holds(bayes, x, at_most)
    proven = certificate.beyond.isfinite()
    assert bool((proven == (limit < at_most - 1e-8)).all()) and bool(proven.any())
    assert bool((certificate.beyond >= certificate.alpha).all())
    assert bool((certificate.beyond[proven] == certificate.alpha[proven]).any())


@pytest.mark.parametrize("residual", [True, False])
def test_numbers_that_are_always_or_never_exceeded(residual):
    bayes, x = laplace("mlp", 3, n=5, residual=residual)
    for at_most in (1, 1.0, 2.5):
        assert bayes.certify(x, at_most=at_most).beyond.tolist() == [0.0] * 5
    assert bool((bayes.certify(x, at_most=0.33).beyond == torch.inf).all())
    assert bayes.certify(x).beyond is None


@pytest.mark.parametrize("k", [1, 3])
def test_a_zero_input_is_a_point(k):
    bayes, x = laplace("mlp", k, n=5, residual=True)
    x[0] = 0
    confidence = float(bayes.predict_proba(x[:1]).amax())
    assert float(holds(bayes, x, confidence + 1e-3).beyond[0]) == 0
    assert float(holds(bayes, x, confidence - 1e-3).beyond[0]) == torch.inf


def test_it_reaches_0_where_no_input_is_too_confident():
    bayes, x = laplace("mlp", 3, n=5, residual=True)
    top = largest_beyond(bayes, x, further(torch.zeros(5).double(), 300))
    assert bayes.certify(x, at_most=float(top.max()) + 0.02).beyond.tolist() == [0.0] * 5


def test_it_does_not_depend_on_where_on_its_ray_x_lies():
    bayes, x = moons()
    once, twice = (bayes.certify(each, at_most=0.6) for each in (x, 8 * x))
    torch.testing.assert_close(twice.beyond, once.beyond / 8)
    torch.testing.assert_close(bayes.certify(x).confidence, once.confidence)


def test_it_is_approximate_with_a_tolerance():
    bayes, x = moons()
    assert type(bayes.certify(x, at_most=0.6, tolerance=0.01)) is ApproximateCertificate


def test_networks_without_rules_on_cells_have_certificates_beyond_alpha():
    x = torch.randn(20, 3, dtype=torch.float64)
    bayes = bb.Laplace(network_of_signs(), residual=True).fit([(x, torch.arange(20) % 2)])
    with rule_of_the_sign():
        certificate = holds(bayes, x, 0.9)
    assert bool((certificate.beyond >= certificate.alpha).all())


def test_networks_that_mix_rows_have_certificates_beyond_alpha():
    class Turned(nn.Module):
        def forward(self, x):
            return torch.relu(x.T).T

    model = nn.Sequential(nn.Linear(3, 5), Turned(), nn.Linear(5, 2)).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    bayes = bb.Laplace(model, residual=True).fit([(x, torch.arange(20) % 2)])
    certificate = holds(bayes, x, 0.9)
    assert bool((certificate.beyond == certificate.alpha).all())


@pytest.mark.parametrize("at_most", [0, -1.0, float("nan"), "half", [0.5, 0.6]])
def test_numbers_that_are_no_confidence_are_refused(at_most):
    bayes, x = laplace("mlp", 3, n=5)
    with pytest.raises(ArgumentError, match="at_most="):
        bayes.certify(x, at_most=at_most)


def test_a_few_cells_prove_less(monkeypatch):
    bayes, x = moons()
    best = bayes.certify(x, at_most=0.6)
    monkeypatch.setattr("bitbayes.rays.sweeps.MAX_CELLS", 5)
    assert bool((holds(bayes, x, 0.6).beyond >= best.beyond).all())


def test_levels_that_do_not_count_prove_nothing_by_themselves():
    bayes, x = laplace("mlp", 3, n=20, residual=True, prior_variance=5.0)
    bayes.settings = replace(bayes.settings, levels=dict.fromkeys(bayes.known_residual.names, 0.0))
    holds(bayes, x, float(bayes.limit(x).confidence.median()))
