"""Far inputs and extreme priors give finite, normalised predictions, or an error that says why."""

import copy
import functools
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError, BitbayesError, DataError
from classifiers import points, relu_mlp
from reference import STRUCTURES

METHODS = {
    1: ("probit", "quadrature", "mc"),
    **dict.fromkeys((2, 3, 10), ("probit", "pairwise", "meanfield", "bridge", "mc")),
}


# Every structure, and every number of logits for which formulas differ.
FEW = [(structure, k) for structure in STRUCTURES for k in (1, 3)]
EVERY = [*FEW, ("kron", 2), ("kron", 10)]
SCALES = (0.0, 1e-40, 1e-30, 1e-6, 1.0, 1e6, 1e15, 1e19, 1e20, 1e25, 1e30, 1e33, 1e36)
PRIORS = (1e-12, 1e-3, 1.0, 1e3, 1e12)


def training(k):
    torch.manual_seed(100 + k)
    return reference.data(k, dtype=torch.float32)


def fitted(structure, k, bias=True, deep=True, training_scale=1.0):
    """A fitted Laplace in float32, which the test may change, and the random state stays as it was.

    Weights are below one, so that an input of 1e36 stays below 1e38 in every layer.
    """
    with torch.random.fork_rng(devices=[]):
        return copy.deepcopy(fitted_once(structure, k, bias, deep, training_scale))


@functools.cache
def fitted_once(structure, k, bias, deep, training_scale):
    torch.manual_seed(k)
    model = nn.Linear(3, k, bias=bias)
    if deep:
        model = nn.Sequential(nn.Linear(3, 4, bias=bias), nn.ReLU(), nn.Linear(4, k, bias=bias))
    x, y = training(k)
    return bb.Laplace(model, structure=structure).fit([(training_scale * x, y)])


def check(bayes, x, method, k):
    """Assert that predictions are finite and normalised, and those of the drop-in too."""
    with torch.no_grad():
        assert bool(bayes.model(x).isfinite().all()), "the test's own network overflows"
    p = bayes.predict_proba(x, method=method)
    assert p.dtype == torch.float32 and p.shape == (len(x), max(k, 2))
    assert bool(p.isfinite().all()) and bool((p >= 0).all()) and bool((p <= 1).all())
    # A sum of k numbers below one, each rounded a few times.
    rounding = 4 * max(k, 2) * torch.finfo(torch.float32).eps
    assert float((p.double().sum(1) - 1).abs().max()) <= rounding
    bayes.predictive = method
    with torch.no_grad():
        logits = bayes(x)
    assert logits.shape == (len(x), k) and bool(logits.isfinite().all())
    honest = logits.softmax(1) if k > 1 else logits.sigmoid()
    assert bool(honest.isfinite().all())


@pytest.mark.parametrize("structure, k", EVERY)
def test_probabilities_are_finite_and_normalised_everywhere(structure, k):
    torch.manual_seed(9)
    x = torch.randn(5, 3)
    x = x / x.abs().max()
    every = torch.cat([scale * x for scale in SCALES])
    for bias, deep in ((True, True), (False, True), (True, False), (False, False)):
        bayes = fitted(structure, k, bias, deep)
        for bayes.prior_variance in PRIORS:
            for method in METHODS[k]:
                check(bayes, every, method, k)


@given(
    structure=st.sampled_from(STRUCTURES),
    k=st.sampled_from(list(METHODS)),
    data=st.data(),
    log_scale=st.floats(-45, 36),
    log_prior=st.floats(-12, 12),
    direction=st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3),
)
@settings(max_examples=100)
def test_probabilities_are_finite_and_normalised_anywhere(
    structure, k, data, log_scale, log_prior, direction
):
    method = data.draw(st.sampled_from(METHODS[k]))
    bayes = fitted(structure, k)
    bayes.prior_variance = 10**log_prior
    check(bayes, (torch.tensor([direction], dtype=torch.float64) * 10**log_scale).float(), method, k)


@pytest.mark.parametrize("structure, k", EVERY)
def test_small_temperatures_and_priors_give_finite_predictions(structure, k):
    """Here a mean, divided by the temperature and by its deviation, exceeds the largest float."""
    bayes, (x, _) = fitted(structure, k), training(k)
    bayes.prior_variance = bayes.temperature = 1e-30
    for scale in (1.0, 1e10, 1e20):
        for method in METHODS[k]:
            check(bayes, scale * x, method, k)


@pytest.mark.parametrize("structure, k", EVERY)
def test_logits_near_the_largest_float_give_finite_predictions(structure, k):
    # The sum of two of them overflows, though none of them does.
    bayes = fitted(structure, k, True, False)
    bayes.prior_variance = 1.0
    x = torch.randn(8, 3)
    with torch.no_grad():
        # Divided first: 2e38 divided by a maximum below 0.58 would be infinite.
        largest = torch.maximum(bayes.model(x).abs().amax(1, keepdim=True), x.abs().amax(1, keepdim=True))
        x = 2e38 * (x / largest)
    for method in METHODS[k]:
        check(bayes, x, method, k)


@pytest.mark.parametrize("structure, k", EVERY)
def test_large_logits_of_small_features_give_finite_predictions(structure, k):
    torch.manual_seed(0)
    model = nn.Linear(3, k)
    with torch.no_grad():
        model.weight *= 1e37
    x, y = reference.data(k, dtype=torch.float32)
    bayes = bb.Laplace(model, structure=structure).fit([(x, y)])
    for method in METHODS[k]:
        check(bayes, x, method, k)


@pytest.mark.parametrize("training_scale", [1e-25, 1e10, 1e20, 1e30])
@pytest.mark.parametrize("structure, k", FEW)
def test_training_data_of_any_size_give_finite_predictions_or_an_error(structure, k, training_scale):
    # Squares of the features overflow float32 from 1e19 on, though the network itself does not: either that
    # does no harm, or `fit` says what to do about it.
    refusal = ""
    try:
        bayes = fitted(structure, k, True, False, training_scale)
    except BitbayesError as error:
        refusal = str(error)
    if refusal:
        assert training_scale >= 1e19 and "float64" in refusal
        return
    bayes.prior_variance = 1.0
    x, _ = training(k)
    for scale in (0.0, 1.0, training_scale):
        check(bayes, scale * x, METHODS[k][0], k)


@pytest.mark.parametrize("structure, k", FEW)
def test_large_training_data_in_float64(structure, k):
    x, y = training(k)
    x = 1e30 * x.double()
    p = bb.Laplace(nn.Linear(3, k).double(), structure=structure).fit([(x, y)]).predict_proba(x)
    assert bool(p.isfinite().all())
    torch.testing.assert_close(p.sum(1), torch.ones(len(x), dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("structure, k", FEW)
def test_the_limit_is_reached_and_stays(structure, k):
    # Without biases z(δ) = aδ/√(1 + κqδ²): from 1e10 on it is constant to float32's last digit.
    bayes = fitted(structure, k, False)
    bayes.prior_variance = 3.0
    x = torch.randn(6, 3)
    for method in METHODS[k][:-1]:
        limits = [bayes.predict_proba(scale * x, method=method) for scale in (1e10, 1e20, 1e30, 1e36)]
        for limit in limits[1:]:
            torch.testing.assert_close(limit, limits[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("structure, k", EVERY)
def test_float32_predictions_far_away_are_those_of_float64(structure, k):
    # Where float64 has a hundred decades to spare, up to the largest numbers that float32 has.
    bayes = fitted(structure, k, True, False)
    bayes.prior_variance = 3.0
    x = torch.randn(6, 3)
    x = x / x.abs().amax(1, keepdim=True)
    exact = bb.Laplace(copy.deepcopy(bayes.model).double(), structure=structure, prior_variance=3.0)
    data, labels = training(k)
    exact.fit([(data.double(), labels)])
    for scale in (1e3, 1e12, 1e25, 1e36, 1.5e38):
        for method in METHODS[k][:-1]:
            actual = bayes.predict_proba(scale * x, method=method)
            expected = exact.predict_proba((scale * x).double(), method=method)
            # Thirty points, four features, logits up to a hundred: under two hundred rounding errors of 6e-8.
            torch.testing.assert_close(actual.double(), expected, rtol=0, atol=1.2e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Identity])
def test_inputs_that_are_not_finite_raise(activation, value):
    # A ReLU or a tanh may turn an infinity into an ordinary number: it is the input that counts.
    model = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight.abs_()
    x, y = reference.data(3, dtype=torch.float32)
    bayes = bb.Laplace(model).fit([(x, y)])
    for row in ([value] * 3, [0.0, value, 0.0]):
        bad = x.clone()
        bad[3] = torch.tensor(row)
        with pytest.raises(DataError, match="the input holds NaN or infinity"):
            bayes.predict_proba(bad)
        with pytest.raises(DataError, match="batch 0 holds NaN or infinity"):
            bayes.predict_proba(list(bad.split(7)))


@pytest.mark.parametrize("k", [1, 3])
def test_a_network_that_overflows_raises(k):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, k))
    with torch.no_grad():
        model[0].weight.fill_(100.0)
    x, y = reference.data(k, dtype=torch.float32)
    bayes = bb.Laplace(model).fit([(x, y)])
    with pytest.raises(BitbayesError, match=r"overflows.*float32"):
        bayes.predict_proba(torch.full((2, 3), 1e38))
    fine = bayes.predict_proba(x)
    assert bool(fine.isfinite().all())


@pytest.mark.parametrize("k", [1, 3])
def test_a_head_that_overflows_raises(k):
    model = nn.Linear(3, k)
    with torch.no_grad():
        model.weight.fill_(10.0)
    x, y = reference.data(k, dtype=torch.float32)
    bayes = bb.Laplace(model).fit([(x, y)])
    with pytest.raises(BitbayesError, match="overflows"):
        bayes.predict_proba(torch.full((2, 3), 1e38))


def test_finite_features_whose_sum_overflows_are_fine():
    bayes = fitted("kron", 3, True, False)
    with torch.no_grad():
        x = torch.full((50, 3), 1e38)
    check(bayes, x, "pairwise", 3)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_the_evidence_is_finite(structure, k):
    bayes = fitted(structure, k)
    assert all(bool(bayes.log_evidence(prior_variance).isfinite()) for prior_variance in PRIORS)


@pytest.mark.parametrize("case", ["full", "kron", "diag"])
def test_certain_networks_have_a_posterior(case):
    # Probabilities of exactly 0 and 1: no curvature at all, the prior is all there is.
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight *= 1e4
    x, y = reference.data(3, dtype=torch.float32)
    bayes = bb.Laplace(model, structure=case, prior_variance=2.0).fit([(x, y)])
    check(bayes, x, "pairwise", 3)
    assert bool(bayes.logits(x).covariance.isfinite().all())


@example(n=1)
@example(n=2)
@given(n=st.integers(1, 40))
@settings(max_examples=10)
def test_predictions_with_fewer_points_than_features_are_finite(n):
    # H has rank n at most: the eigenvalues that are zero come out as ±1e-17.
    torch.manual_seed(n)
    for structure in STRUCTURES:
        bayes = bb.Laplace(nn.Linear(20, 3), prior_variance=1e12, structure=structure)
        x = torch.randn(n, 20)
        bayes.fit([(x, torch.arange(n) % 3)])
        for method in METHODS[3]:
            check(bayes, torch.cat([x, torch.randn(3, 20)]), method, 3)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("structure", ["kron", "full", "diag", "isotropic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prior_variances_from_1e_minus_300_to_1e300_give_finite_predictions(k, structure, dtype):
    """With two points, most directions of the weights have no data and keep the prior's variance."""
    x, y = points(dtype=dtype)
    bayes = bb.Laplace(relu_mlp(k, dtype), structure=structure).fit([(x[:2], y[:2])])
    methods = ("probit", "quadrature", "mc") if k == 1 else ("pairwise", "probit", "bridge", "mc")
    for variance in (1e-300, 1e-50, 1e20, 1e39, 1e50, 1e200, 1e300):
        bayes.prior_variance = variance
        for method in methods:
            probs = bayes.predict_proba(x, method=method)
            torch.testing.assert_close(probs.sum(1), torch.ones(40, dtype=dtype), rtol=0, atol=1e-5)
        assert all(bool(each.isfinite().all()) for each in bayes.sample(2).values())
    with pytest.raises(ArgumentError, match="prior_variance"):
        bayes.prior_variance = 10**400
