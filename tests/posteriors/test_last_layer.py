"""Every structure over the last layer's weights against dense float64 references: logits, evidence, draws."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import bitbayes as bb
import reference
from bitbayes.errors import DataError
from bitbayes.model import Batch
from bitbayes.prior import Prior
from bitbayes.structures.kron import KronGaussian
from head_cases import EVERY, VARIANCES, close, fitted
from reference import STRUCTURES


@pytest.mark.parametrize("case, k, bias", EVERY)
def test_the_covariance_of_logits_is_the_dense_one(case, k, bias):
    bayes, (weights, features, labels) = fitted(case, k, bias)
    x = 3 * torch.randn(5, 3, dtype=torch.float64)
    for prior_variance in VARIANCES:
        bayes.prior_variance = prior_variance
        gaussian = bayes.logits(x)
        sigma = reference.covariance(case, weights, features, labels, prior_variance)
        expected = reference.logits_covariance(sigma, reference.head_features(bayes.model, x), k)
        close(gaussian.covariance, expected)
        close(gaussian.mean, bayes.model(x).detach(), 1e-15)


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("case", STRUCTURES)
def test_differences_of_logits_keep_their_digits_at_large_prior_variances(case, k):
    # The common shift's variance, 1e9, hides what pairs differ by unless it is kept apart.
    bayes, (weights, features, labels) = fitted(case, k, True, 1e9)
    x = torch.randn(4, 3, dtype=torch.float64)
    prob = bayes.predict_proba(x, method="pairwise")
    # The reference projects the shift away from the *weights*, before anything is large.
    sigma = reference.covariance(case, weights, features, labels, 1e9)
    features_x = reference.head_features(bayes.model, x)
    for n, phi in enumerate(features_x):
        gaps = torch.zeros(k, k, dtype=torch.float64)
        for i, j in itertools.product(range(k), range(k)):
            contrast = torch.zeros(k, dtype=torch.float64)
            contrast[i] += 1
            contrast[j] -= 1
            direction = torch.kron(contrast, phi)
            variance = float(direction @ sigma @ direction)
            gaps[i, j] = (bayes.model(x)[n, i] - bayes.model(x)[n, j]) / math.sqrt(
                1 + reference.KAPPA * variance
            )
        expected = torch.softmax(-torch.logsumexp(-gaps, 1), 0).detach()
        # The dense inverse itself is good to cond·eps = 1e9·30·2e-16 of its largest entries.
        torch.testing.assert_close(prob[n], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case, k, bias", [case for case in EVERY if case.values[0] != "isotropic"])
def test_log_evidence_is_the_dense_one(case, k, bias):
    bayes, parts = fitted(case, k, bias)
    for prior_variance in VARIANCES:
        expected = reference.log_evidence(case, *parts, prior_variance)
        actual = bayes.log_evidence(prior_variance)
        assert actual.shape == () and actual.dtype == torch.float64
        assert abs(float(actual - expected)) < 1e-8 * max(1, abs(float(expected)))
        bayes.prior_variance = prior_variance
        assert torch.equal(bayes.log_evidence(), actual)


def test_the_evidence_of_a_float_is_that_of_a_float64_tensor():
    bayes, _ = fitted("full", 3, True)
    assert torch.equal(bayes.log_evidence(0.3), bayes.log_evidence(torch.tensor(0.3, dtype=torch.float64)))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("case", ["full", "kron", "diag"])
def test_log_evidence_is_differentiable_in_the_prior_variance(case, k):
    bayes, parts = fitted(case, k, True)
    ours = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(bayes.log_evidence(ours), ours)
    (expected,) = torch.autograd.grad(reference.log_evidence(case, *parts, theirs), theirs)
    assert abs(float(gradient - expected)) < 1e-8 * abs(float(expected))
    step = 1e-5  # a central difference errs by step² f''' and by eps·f/step: 1e-9 or so each
    difference = (bayes.log_evidence(0.7 + step) - bayes.log_evidence(0.7 - step)) / (2 * step)
    assert abs(float(gradient - difference)) < 1e-6 * abs(float(expected))


def test_log_evidence_takes_a_float32_tensor_of_one_entry():
    bayes, _ = fitted("full", 1, True)
    value = torch.tensor([0.5], requires_grad=True)
    evidence = bayes.log_evidence(value)
    evidence.backward()
    assert torch.equal(evidence.detach(), bayes.log_evidence(0.5)) and value.grad.shape == (1,)


@pytest.mark.parametrize("k, bias", [(1, False), (3, True)])
@pytest.mark.parametrize("case", STRUCTURES)
def test_draws_have_the_posteriors_moments(case, k, bias):
    bayes, (weights, features, labels) = fitted(case, k, bias, 0.5)
    n = 20_000
    draws = bayes.sample(n, generator=torch.Generator().manual_seed(1))
    assert list(draws) == (["head.weight", "head.bias"] if bias else ["head.weight"])
    stacked = torch.cat([draws["head.weight"], *([draws["head.bias"][:, :, None]] if bias else [])], 2)
    flat = stacked.reshape(n, -1)
    sigma = reference.covariance(case, weights, features, labels, 0.5)
    variances = torch.diag(sigma)
    # Standard errors of a Gaussian's empirical mean and covariance; 5 of them: 6e-7 for each entry.
    mean_error = (flat.mean(0) - weights.flatten()).abs() / (variances / n).sqrt()
    assert float(mean_error.max()) < 5
    standard = ((torch.outer(variances, variances) + sigma.square()) / n).sqrt()
    assert float(((torch.cov(flat.T) - sigma).abs() / standard).max()) < 5


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", STRUCTURES)
def test_draws_work_in_functional_call_under_vmap(case, bias):
    bayes, _ = fitted(case, 3, bias)
    x, _ = reference.data(3)
    draws = bayes.sample(6)
    outputs = torch.vmap(lambda weights: functional_call(bayes.model, weights, (x,)))(draws)  # (6, n, 3)
    for i in range(6):
        one = functional_call(bayes.model, {name: value[i] for name, value in draws.items()}, (x,))
        torch.testing.assert_close(outputs[i], one, rtol=0, atol=1e-13)
    assert float(outputs.detach().std(0).min()) > 0


@pytest.mark.parametrize("case", STRUCTURES)
def test_draws_repeat_with_the_same_seed(case):
    bayes, _ = fitted(case, 3, True)
    first, again, other = (
        bayes.sample(4, generator=torch.Generator().manual_seed(seed)) for seed in (7, 7, 8)
    )
    for name in first:
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])


@pytest.mark.parametrize("case", STRUCTURES)
@pytest.mark.parametrize("k", [1, 3])
def test_float32_agrees_with_float64_to_its_digits(case, k):
    torch.manual_seed(3)
    bayes, (_, _, y) = fitted(case, k, True, 10.0)
    x, _ = reference.data(k)
    double = bayes.fit(reference.loader(x, y)).predict_proba(x)
    single = bb.Laplace(bayes.model.float(), structure=case, prior_variance=10.0)
    single = single.fit(reference.loader(x.float(), y)).predict_proba(x.float())
    assert single.dtype == torch.float32
    # Thirty points, five features: sums lose under a hundred of float32's rounding errors of 6e-8.
    torch.testing.assert_close(single.double(), double, rtol=0, atol=6e-6)


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
def test_float32_features_are_summed_in_float64(structure):
    """Eigenvalues a billion times below the largest must be right, because wide priors depend on them."""
    torch.manual_seed(0)
    head = nn.Linear(6, 3)
    # Features that all but lie in a line: deviations of 1e-4 from it, squares of 1e-8.
    features = torch.randn(500, 1) * torch.ones(6) + 1e-4 * torch.randn(500, 6)
    labels = torch.arange(500) % 3
    bayes = bb.Laplace(head, structure=structure).fit([(features, labels)])
    twin = bb.Laplace(copy.deepcopy(head).double(), structure=structure).fit([(features.double(), labels)])
    for variance in (1.0, 1e6, 1e10):
        bayes.prior_variance = twin.prior_variance = variance
        # Float32 predictions of float32 probabilities; the curvature itself adds nothing to that.
        expected = twin.predict_proba(features[:50].double()).float()
        torch.testing.assert_close(bayes.predict_proba(features[:50]), expected, rtol=0, atol=1e-4)


def test_tuning_keeps_some_positions_and_all_other_points():
    assert reference.fitted(3)[0].posterior.most_points is None
    model, x = nn.Linear(3, 4).double(), torch.randn(6, 5, 3).double()
    posterior = bb.Laplace(model).fit([(x, torch.arange(30).reshape(6, 5) % 4)]).posterior
    assert posterior.most_points == 2**13
    many, wide = torch.randn(2, 3, 5).double(), nn.Linear(5, 20_000).double()
    posterior = bb.Laplace(wide, structure="diag").fit([(many, torch.arange(6).reshape(2, 3))]).posterior
    assert posterior.most_points == 2**28 // (8 * (6 + 20_000))


@pytest.mark.parametrize("k, count", [(3, 100), (65, 49)])
def test_many_classes_have_fewer_candidates(k, count):
    candidates = reference.fitted(k)[0].posterior.candidates()
    assert len(candidates) == count and candidates[0] < 1e-5 and candidates[-1] > 1e9


@pytest.mark.parametrize("rows, expected", [(4, [4, 4, 2]), (10, [10]), (30, [10])])
def test_gaussians_come_in_parts_of_so_many_rows(rows, expected):
    bayes, x, _ = reference.fitted(3, n=10)
    parts = list(bayes.posterior.gaussians([Batch(x, None, "the input")], Prior(1.0), rows))
    assert [len(gaussian.mean) for _, gaussian in parts] == expected
    means = torch.cat([gaussian.mean for _, gaussian in parts])
    torch.testing.assert_close(means, bayes.logits(x).mean)


@pytest.mark.parametrize("variance", [1e-6, 1.0, 1e10])
@pytest.mark.parametrize("k", [2, 5, 70])
@pytest.mark.parametrize("case", STRUCTURES)
def test_the_mean_variance_of_a_difference_is_that_of_the_whole_covariance(case, k, variance):
    bayes, x, _ = reference.fitted(k, structure=case)
    ((_, by_prior),) = bayes.posterior.logits_by_prior([Batch(x, None, "the input")])
    whole = by_prior.at(Prior(variance))
    torch.testing.assert_close(
        by_prior.mean_pair_variance(Prior(variance)), whole.scaled_mean_pair_variance(), rtol=1e-11, atol=0
    )
    assert torch.equal(by_prior.scaled_mean, whole.scaled_mean) and torch.equal(by_prior.scale, whole.scale)


def test_tuning_by_mean_field_takes_no_covariance_of_every_candidate(monkeypatch):
    """These are products of n·k·D; the score takes one."""
    bayes, x, y = reference.fitted(70, n=140)
    taken, plain = [], KronGaussian.covariance
    monkeypatch.setattr(
        KronGaussian, "covariance", lambda self, *args: (taken.append(args[1]), plain(self, *args))[1]
    )
    bayes.tune([(x, y)])
    assert len(taken) == 1


def test_only_wide_priors_take_products_in_float64(monkeypatch):
    bayes, x, _ = reference.fitted(3, dtype=torch.float32)
    dtypes = []
    moved = type(bayes.posterior).moved
    monkeypatch.setattr(
        type(bayes.posterior), "moved", lambda self, *place: (dtypes.append(place[1]), moved(self, *place))[1]
    )
    for variance in (1e4, 1e5):
        list(bayes.posterior.gaussians([Batch(x, None, "the input")], Prior(variance), 100))
    assert dtypes == [torch.float32, torch.float64]
    list(bayes.posterior.logits_by_prior([Batch(x, None, "the input")]))
    assert dtypes[-1] == torch.float64


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("case", [*STRUCTURES, "lowrank"])
def test_inputs_that_are_not_finite_are_refused_in_words_by_every_structure(case, value):
    """A Cholesky factor of NaN would raise before the check of the batch is read."""
    bayes, _ = fitted(case, 3, True)
    x = torch.randn(4, 3, dtype=torch.float64)
    wrong = x.clone()
    wrong[2, 1] = value
    for ask in (bayes.predict_proba, bayes.score, bayes.logits):
        with pytest.raises(DataError, match="holds NaN or infinity"):
            ask([wrong])
    with pytest.raises(DataError, match="batch 1 holds NaN or infinity"):
        bayes.predict_proba([x, wrong])
    # The drop-in stands for the model, whose other rows have their outputs.
    plain, found = bayes(x), bayes(wrong)
    torch.testing.assert_close(found[[0, 1, 3]], plain[[0, 1, 3]], rtol=1e-12, atol=1e-12)
