"""Every closed form against a loop over points in float64, or an integral."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
import reference
from bitbayes import closed_forms
from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.prior import Prior
from reference import KAPPA, STRUCTURES

LOOPS = {
    "probit": reference.probit,
    "pairwise": reference.pairwise,
    "meanfield": reference.meanfield,
    "bridge": reference.bridge,
}


def fitted(structure, k, prior_variance, **options):
    bayes, x, _ = reference.fitted(k, structure=structure, prior_variance=prior_variance, **options)
    return bayes, x


def one_logit(mean, variance):
    """A Gaussian over one logit, n points: mean (n,), variance (n,)."""
    mean, variance = (
        torch.as_tensor(value, dtype=torch.float64).reshape(-1, 1) for value in (mean, variance)
    )
    ones = torch.ones_like(mean[:, 0])
    return LogitGaussian(mean, CovarianceFactors(variance, None, torch.zeros_like(ones)), ones)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_closed_forms_equal_a_loop_over_points(k, structure):
    bayes, x = fitted(structure, k, 1.0)
    x = x[:6]
    for prior_variance in (1e-3, 5.0, 83_000.0):
        bayes.prior_variance = prior_variance
        gaussian = bayes.logits(x)
        for method in LOOPS if k > 1 else ["probit"]:
            points = zip(gaussian.mean, gaussian.covariance, strict=True)
            expected = torch.stack([LOOPS[method](m, c) for m, c in points])
            # The loop subtracts entries of the size of the prior variance: it is good to 1e5·2e-16·1e2.
            found = bayes.predict_proba(x, method=method)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_pairwise_with_many_classes_is_its_formula(structure):
    # Many classes may be handled in other ways than few.
    bayes, x = fitted(structure, 70, 5.0)
    gaussian = bayes.logits(x[:2])
    expected = [reference.pairwise(m, c) for m, c in zip(gaussian.mean, gaussian.covariance, strict=True)]
    actual = bayes.predict_proba(x[:2], method="pairwise")
    torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_all_ways_to_take_the_pairs_have_the_same_sums(structure):
    """Few classes, many, and those of an exported graph, in blocks of which the last is not full."""
    bayes, x = fitted(structure, 70, 5.0)
    gaussian = bayes.posterior.forward(x, Prior(5.0), None).gaussian.plus_independent(
        torch.rand(len(x)).double()
    )
    few = closed_forms._few_pairs(gaussian, 30.0)
    for other in (closed_forms._many_pairs, closed_forms._pairs_in_blocks):
        torch.testing.assert_close(other(gaussian, 30.0), few, rtol=1e-12, atol=0)


@given(
    k=st.integers(2, 80),
    prior_variance=st.floats(1e-6, 1e10),
    temperature=st.floats(1e-3, 1e3),
    scale=st.sampled_from([1.0, 1e3, 1e12, 1e30]),
    structure=st.sampled_from(["kron", "diag", "isotropic"]),
    seed=st.integers(0, 10_000),
)
def test_meanfield_keeps_the_networks_class(k, prior_variance, temperature, scale, structure, seed):
    torch.manual_seed(seed)
    model = reference.network(k, dtype=torch.float32)
    x, y = reference.data(k, dtype=torch.float32)
    options = {"structure": structure, "predictive": "meanfield", "prior_variance": prior_variance}
    bayes = bb.Laplace(model, **options).fit([(x, y)])
    bayes.temperature = temperature
    with torch.no_grad():
        logits = model(scale * x)
    own = bayes(scale * x).detach()
    # Among the drop-in's logits the class of the largest mean is the largest, or equal to it after rounding.
    chosen = own.gather(1, logits.argmax(1, keepdim=True))[:, 0]
    assert bool((chosen >= own.amax(1) - 1e-5 * own.abs().amax(1)).all())
    probabilities = bayes.predict_proba(scale * x)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(x)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_meanfield_of_two_classes_is_pairwise(structure):
    bayes, x = fitted(structure, 2, 5.0)
    bayes.temperature = 0.4
    for scale in (1, 1e6):
        both = [bayes.predict_proba(scale * x, method=method) for method in ("meanfield", "pairwise")]
        torch.testing.assert_close(*both, rtol=0, atol=1e-13)


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_meanfield_with_many_classes_is_its_formula_and_finite(structure):
    bayes, x = fitted(structure, 70, 5.0)
    gaussian = bayes.logits(x[:2])
    expected = [reference.meanfield(m, c) for m, c in zip(gaussian.mean, gaussian.covariance, strict=True)]
    torch.testing.assert_close(bayes.predict_proba(x[:2]), torch.stack(expected), rtol=0, atol=1e-12)
    bayes, x = fitted(structure, 1000, 5.0, dtype=torch.float32)
    for scale in (1, 1e10, 1e36):
        probabilities = bayes.predict_proba(scale * x)
        assert probabilities.shape == (30, 1000) and bool(probabilities.isfinite().all())
        torch.testing.assert_close(probabilities.sum(1), torch.ones(30), rtol=0, atol=1e-5)


MEANS = (0.0, 1e-9, 0.3, 1.0, 5.0, 30.0, 200.0, 1e4, 1e6)


VARIANCES = (0.0, 1e-12, 1e-6, 1e-2, 0.5, 1.0, 1.0000001, 2.0, 10.0, 1e3, 1e6, 1e9, 1e12)


def test_quadrature_is_the_integral_over_a_wide_range():
    grid = [(sign * mean, variance) for mean in MEANS for variance in VARIANCES for sign in (1, -1)]
    actual = closed_forms.quadrature(one_logit(*zip(*grid, strict=True))).sigmoid()[:, 0]
    expected = torch.tensor([reference.sigmoid_expectation(*point) for point in grid], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def test_quadrature_keeps_its_digits_on_both_sides_of_where_it_changes_its_rule():
    """At v = 1/4 and 4 either rule is wrong by exp(−2π²) = 3e-9 in the other's place."""
    grid = [(mean, variance / 8) for mean in (0.0, 0.3, -0.8, 1.3, -2.1, 4.0) for variance in range(2, 33)]
    actual = closed_forms.quadrature(one_logit(*zip(*grid, strict=True))).sigmoid()[:, 0]
    expected = torch.tensor([reference.sigmoid_expectation(*point) for point in grid], dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


@given(mean=st.floats(-1e6, 1e6), log_variance=st.floats(-12, 12))
@example(mean=-8.0, log_variance=0.0)
@example(mean=3.0, log_variance=1e-9)
@example(mean=1.1e-15, log_variance=1.1e-15)
def test_quadrature_is_the_integral_anywhere(mean, log_variance):
    variance = 10**log_variance
    actual = float(closed_forms.quadrature(one_logit(mean, variance)).sigmoid())
    assert abs(actual - reference.sigmoid_expectation(mean, variance)) < 1e-10


@given(standardised=st.floats(-6, 6), log_variance=st.floats(-12, 12))
def test_quadrature_is_the_integral_where_the_answer_is_neither_0_nor_1(standardised, log_variance):
    variance = 10**log_variance
    mean = standardised * math.sqrt(1 + variance)
    actual = float(closed_forms.quadrature(one_logit(mean, variance)).sigmoid())
    assert abs(actual - reference.sigmoid_expectation(mean, variance)) < 1e-10


def test_quadrature_of_a_fitted_laplace_is_the_integral():
    bayes, x = fitted("full", 1, 7.0)
    gaussian = bayes.logits(x)
    expected = [
        reference.sigmoid_expectation(float(m), float(v))
        for m, v in zip(gaussian.mean[:, 0], gaussian.covariance[:, 0, 0], strict=True)
    ]
    actual = bayes.predict_proba(x, method="quadrature")
    torch.testing.assert_close(actual[:, 1], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_the_gradient_of_quadrature_at_a_mean_of_zero():
    torch.manual_seed(0)
    x, y = torch.randn(30, 2).double(), torch.arange(30) % 2
    head = nn.Linear(2, 1, bias=False).double()
    bayes = bb.Laplace(head, predictive="quadrature").fit([(x, y)])
    # Across the weights the mean is 0, and a step along them changes it.
    w = head.weight.detach()[0]
    at = torch.stack([-w[1], w[0]])[None].requires_grad_()
    (gradient,) = torch.autograd.grad(bayes(at).sum(), at)
    step = 1e-5 * w
    with torch.no_grad():
        expected = (bayes(at + step) - bayes(at - step)).sum() / 2e-5
    assert float(gradient[0] @ w) == pytest.approx(float(expected), rel=1e-6)


def plain_log_p(method, mean, weights, factor, largest):
    """log p (n, k) of a closed form in float64 by formulas that neither overflow nor underflow."""
    k = mean.shape[1]
    pairs = torch.einsum("nr,ijr->nij", weights, (factor[:, None] - factor[None]).square())
    if method == "pairwise":
        z = (mean[:, :, None] - mean[:, None, :]) / (1 + KAPPA * pairs).sqrt()
        return (-torch.logsumexp(-z.clamp(-largest, largest), 2)).log_softmax(1)
    mean = mean - mean.mean(1, keepdim=True)
    own = weights @ (factor - factor.mean(0)).square().T
    if method == "probit":
        return (mean / (1 + KAPPA * own).sqrt()).log_softmax(1)
    if method == "meanfield":
        average = pairs.sum((1, 2), keepdim=True)[:, 0] / (k * (k - 1))
        return (mean / (1 + KAPPA * average).sqrt()).log_softmax(1)
    shrink = (own.mean(1, keepdim=True) / math.sqrt(k / 2)).clamp_min(1)
    mean, own = mean / shrink.sqrt(), own / shrink
    product = mean + torch.logsumexp(-mean, 1, keepdim=True) - 2 * math.log(k)
    if k > 2:
        product = torch.logaddexp(product, torch.tensor(math.log(1 - 2 / k), dtype=torch.float64))
    return (product - own.log()).log_softmax(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [1.0, 60.0, 1e4])
@pytest.mark.parametrize("k", [2, 3, 10, closed_forms.FEW_CLASSES + 1])
def test_gradients_are_those_of_plain_formulas_however_far_logits_are_apart(k, apart, dtype):
    """In mean and variances; narrow and wide Gaussians."""
    torch.manual_seed(0)
    n, r = 40, k - 1
    mean = apart * (torch.rand(n, k, dtype=torch.float64) - 0.5)
    weights = 10 ** torch.linspace(-6, 2, n, dtype=torch.float64)[:, None] * (
        0.1 + torch.rand(n, r, dtype=torch.float64)
    )
    factor, weigh = torch.randn(k, r, dtype=torch.float64), torch.randn(n, k, dtype=torch.float64)
    mean, weights, factor = (each.to(dtype) for each in (mean, weights, factor))
    largest = math.log(torch.finfo(dtype).max) - math.log(k) - 1

    for method in LOOPS:
        found = [each.clone().requires_grad_() for each in (mean, weights)]
        ones = torch.ones(n, dtype=dtype)
        gaussian = LogitGaussian(found[0], CovarianceFactors(found[1], factor, torch.zeros_like(ones)), ones)
        log_p = likelihood_for(k).predict(gaussian, method).log_softmax(1)
        actual = torch.autograd.grad((log_p * weigh.to(dtype)).sum(), found)

        plain = [each.double().clone().requires_grad_() for each in (mean, weights)]
        expected_log_p = plain_log_p(method, *plain, factor.double(), largest)
        expected = torch.autograd.grad((expected_log_p * weigh).sum(), plain)

        # An exponential of z is good to z·eps: some of these, as a gradient is a sum of terms that cancel.
        # In the logarithm of the variances, whose terms are of the size of those in the mean times that.
        error = 20 * max(1.0, float(expected_log_p.detach().abs().max())) * torch.finfo(dtype).eps
        torch.testing.assert_close(log_p.detach().double(), expected_log_p.detach(), rtol=error, atol=error)
        for got, wanted, unit in zip(actual, expected, (torch.ones_like(mean), weights), strict=True):
            got, wanted = got * unit, wanted * unit
            assert bool(got.isfinite().all())
            assert bool(((got - wanted).abs() <= error * (wanted.abs().amax(1, keepdim=True) + 1)).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("apart", [1.0, 60.0, 1e4])
def test_gradients_of_one_logit_are_those_of_the_integral(apart, dtype):
    """`probit` by its formula; `quadrature` by a trapezoidal rule with ten times the knots.

    Beyond log p of the smallest number both stay as they are, and the gradient is 0.
    """
    mean = apart * torch.linspace(-1, 1, 41, dtype=dtype)
    variance = (10 ** torch.linspace(-6, 2, 41, dtype=torch.float64)).to(dtype)[torch.randperm(41)]

    def gradients(function, dtype):
        given = [each.detach().to(dtype).requires_grad_() for each in (mean, variance)]
        return torch.autograd.grad(function(*given).sum(), given)

    def closed(method):
        def drop_in(mean, variance):
            factors = CovarianceFactors(variance[:, None], None, torch.zeros_like(mean))
            gaussian = LogitGaussian(mean[:, None], factors, torch.ones_like(mean))
            return likelihood_for(1).predict(gaussian, method)

        return drop_in

    def probit(mean, variance):
        return mean / (1 + KAPPA * variance).sqrt()

    def integral(mean, variance):
        t = torch.linspace(-38, 38, 8001, dtype=torch.float64)
        weights = (-t.square() / 2).exp()
        weights = weights / weights.sum()
        f = mean[:, None] + variance.sqrt()[:, None] * t
        p, q = (f.sigmoid() * weights).sum(1), ((-f).sigmoid() * weights).sum(1)
        smallest = torch.finfo(dtype).tiny
        return p.clamp_min(smallest).log() - q.clamp_min(smallest).log()

    assert all(bool(each.isfinite().all()) for each in gradients(closed("quadrature"), dtype))
    for found, expected in (
        (gradients(closed("probit"), dtype), gradients(probit, torch.float64)),
        # Of p itself, which the rule has to 1e-10: not of its logarithm.
        (
            gradients(lambda *given: closed("quadrature")(*given).sigmoid(), dtype),
            gradients(lambda *given: integral(*given).sigmoid(), torch.float64),
        ),
    ):
        for got, wanted, unit in zip(found, expected, (1, variance), strict=True):
            # A few roundings of logits of this size, where p is neither 0 nor 1.
            error = 100 * torch.finfo(dtype).eps * min(apart, 40.0) + 1e-9
            torch.testing.assert_close(got.double() * unit, wanted * unit, rtol=error, atol=error)
