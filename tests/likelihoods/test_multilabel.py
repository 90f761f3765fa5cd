"""Several labels: curvature against autograd, integrals against scipy, and one label is a Bernoulli."""

import math

import pytest
import torch
from torch.nn import functional

import reference
from bitbayes.errors import ArgumentError, DataError
from bitbayes.likelihoods import Bernoulli, Multilabel
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import DeferredChecks
from bitbayes.uncertainty import uncertainty_of_draws

LIKELIHOOD, ONE = Multilabel(), Bernoulli()


def total_loss(outputs, labels):
    return functional.binary_cross_entropy_with_logits(outputs, labels.to(outputs), reduction="sum")


def outputs_and_labels(k, n=12, size=3.0):
    outputs = size * torch.randn(n, k, dtype=torch.float64)
    return outputs, torch.rand(n, k) < 0.5


def gaussian(n, k, spread=1.0):
    """A Gaussian in units of its scale, with covariances, and the same means and variances in units of 1."""
    mean, root = 3 * torch.randn(n, k).double(), spread * torch.randn(n, k, k).double()
    scale = 1 + torch.rand(n).double()
    factors = CovarianceFactors(torch.ones(n, k).double(), root, torch.zeros(n).double())
    variances = root.square().sum(2) * scale[:, None] ** 2
    return LogitGaussian(mean, factors, scale), mean * scale[:, None], variances


def checked(labels, shape):
    with DeferredChecks() as checks:
        return LIKELIHOOD.check_labels(labels, shape, "batch 7", checks)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_losses_are_sums_over_the_labels(k):
    outputs, labels = outputs_and_labels(k)
    expected = torch.stack([total_loss(f, y) for f, y in zip(outputs, labels, strict=True)])
    for given in (labels, labels.long(), labels.double()):
        found = LIKELIHOOD.losses(outputs, checked(given, (12, k)))
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    log_p = LIKELIHOOD.log_probabilities(outputs)
    torch.testing.assert_close(log_p.exp(), outputs.sigmoid(), rtol=1e-13, atol=0)
    chosen = LIKELIHOOD.log_decisions(outputs).gather(2, labels.long()[:, :, None])[:, :, 0]
    torch.testing.assert_close(-chosen.sum(1), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_curvature_and_root_are_the_hessian_in_the_logits(k):
    outputs, labels = outputs_and_labels(k)
    expected = torch.vmap(reference.autograd_hessian(total_loss))(outputs, labels.double())
    assert torch.equal(LIKELIHOOD.differences(k), torch.eye(k, dtype=torch.float64))
    root = LIKELIHOOD.root(outputs)
    for found in (LIKELIHOOD.curvature(outputs), root @ root.mT):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-15)
    torch.testing.assert_close(LIKELIHOOD.diagonal(outputs), expected.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(LIKELIHOOD.total_curvature(outputs), expected.sum(0))


def test_drawn_labels_have_the_hessian_on_average():
    outputs = torch.randn(2, 3, dtype=torch.float64).repeat_interleave(100_000, 0)
    drawn = LIKELIHOOD.draw(outputs, torch.Generator().manual_seed(0))
    outer = (drawn[:, :, None] * drawn[:, None, :]).reshape(2, -1, 3, 3)
    error = 5 * outer.std(1) / outer.shape[1] ** 0.5  # five standard errors
    expected = LIKELIHOOD.curvature(outputs[[0, -1]])
    assert bool(((outer.mean(1) - expected).abs() <= error).all())


@pytest.mark.parametrize("size", [0.0, 1e2, 1e4, 1e300])
def test_extreme_logits_have_finite_losses_and_curvature(size):
    outputs = torch.tensor([[size, -size], [-size, size / 2]], dtype=torch.float64)
    labels = torch.tensor([[0, 1], [1, 0]])
    for values in (
        LIKELIHOOD.losses(outputs, labels),
        LIKELIHOOD.curvature(outputs),
        LIKELIHOOD.drop_in(LIKELIHOOD.probabilities(outputs)),
    ):
        assert bool(values.isfinite().all())
    assert bool((LIKELIHOOD.diagonal(outputs) >= 0).all())


@pytest.mark.parametrize("spread", [0.1, 1.0, 20.0])
def test_closed_forms_are_those_of_each_logit_alone(spread):
    points, means, variances = gaussian(6, 3, spread)
    integrals = LIKELIHOOD.log_probabilities(LIKELIHOOD.predict(points, "quadrature")).exp()
    expected = [
        [reference.sigmoid_expectation(float(m), float(v)) for m, v in zip(*row, strict=True)]
        for row in zip(means, variances, strict=True)
    ]
    torch.testing.assert_close(integrals, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    probits = LIKELIHOOD.predict(points, "probit")
    torch.testing.assert_close(probits, means / (1 + reference.KAPPA * variances).sqrt())
    drawn = LIKELIHOOD.predict_by_draws(points, 100_000, torch.Generator().manual_seed(0)).sigmoid()
    assert float((drawn - integrals).abs().max()) < 5 * 0.5 / math.sqrt(100_000)  # five standard errors


def test_a_predictive_of_classes_is_refused():
    with pytest.raises(ArgumentError, match=r"'pairwise' does not fit 3 logit.*'probit', 'quadrature', 'mc'"):
        LIKELIHOOD.predictive_name("pairwise", 3)


def test_probabilities_of_0_and_1_have_finite_drop_ins_that_give_them_back():
    p = torch.tensor([[0.0, 1.0, 0.25]], dtype=torch.float64)
    drop_in = LIKELIHOOD.drop_in(p)
    assert bool(drop_in.isfinite().all())
    torch.testing.assert_close(LIKELIHOOD.log_probabilities(drop_in).exp(), p, rtol=0, atol=1e-15)


def test_the_confidence_is_the_probability_that_all_labels_are_right():
    p = torch.tensor([[0.9, 0.2, 0.5], [1.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(LIKELIHOOD.confidence(p), torch.tensor([0.36, 1.0], dtype=torch.float64))


def test_the_score_is_the_sum_of_the_labels_energies():
    points, means, variances = gaussian(5, 3)
    z = means / (1 + reference.KAPPA * variances).sqrt()
    expected = [sum(math.log(math.exp(f / 2) + math.exp(-f / 2)) for f in row) for row in z.tolist()]
    torch.testing.assert_close(LIKELIHOOD.score(points), torch.tensor(expected, dtype=torch.float64))


def test_the_uncertainty_is_the_sum_of_that_of_the_labels():
    draws = torch.rand(7, 4, 3).double()
    found = LIKELIHOOD.uncertainty(draws)
    alone = [uncertainty_of_draws(torch.stack([1 - own, own], 2)) for own in draws.unbind(2)]
    for name in ("entropy", "expected_entropy", "mutual_information"):
        torch.testing.assert_close(getattr(found, name), sum(getattr(each, name) for each in alone))
    torch.testing.assert_close(found.variance, draws.var(0, correction=0))
    torch.testing.assert_close(found.entropy, found.expected_entropy + found.mutual_information)


def test_margins_and_their_variances_are_medians_over_the_labels():
    points, means, variances = gaussian(6, 3)
    middle = means.abs().sort(1).values[:, 1]
    assert torch.equal(LIKELIHOOD.margins(means), middle)
    found = LIKELIHOOD.scaled_margin_variance(points) * points.scale.square()
    torch.testing.assert_close(found, variances.sort(1).values[:, 1])


def test_far_away_each_label_is_as_likely_as_not():
    assert LIKELIHOOD.far_confidence(3) == 0.5
    assert LIKELIHOOD.far_labels(torch.tensor([[-2.0, 3.0]])).tolist() == [[0, 1]]


def test_one_label_is_a_bernoulli():
    (outputs, labels), (points, means, _) = outputs_and_labels(1), gaussian(12, 1)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    pairs = [
        (LIKELIHOOD.losses(outputs, labels.long()), ONE.losses(outputs, labels.long()[:, 0])),
        (LIKELIHOOD.curvature(outputs), ONE.curvature(outputs)),
        (LIKELIHOOD.total_curvature(outputs), ONE.total_curvature(outputs)),
        (LIKELIHOOD.root(outputs), ONE.root(outputs)),
        (LIKELIHOOD.draw(outputs, generators[0]), ONE.draw(outputs, generators[1])),
        (LIKELIHOOD.probabilities(outputs), ONE.probabilities(outputs)[:, 1:]),
        (LIKELIHOOD.log_probabilities(outputs), ONE.log_probabilities(outputs)[:, 1:]),
        (LIKELIHOOD.log_decisions(outputs), ONE.log_decisions(outputs)),
        (LIKELIHOOD.score(points), ONE.score(points)),
        (LIKELIHOOD.margins(means), ONE.margins(means)),
        (LIKELIHOOD.scaled_margin_variance(points), ONE.scaled_margin_variance(points)),
        *((LIKELIHOOD.predict(points, name), ONE.predict(points, name)) for name in ONE.closed_forms),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    "labels, says",
    [
        (torch.tensor([[0, 2], [1, 0]]), r"batch 7: .*\[0, 1, 2\].*needs 0 and 1"),
        (torch.tensor([[0.5, 0], [1, 0]]), r"batch 7: .*0\.5.*needs 0 and 1"),
        (torch.tensor([[math.nan, 0], [1, 0]]), "batch 7: .*nan.*needs 0 and 1"),
        (torch.tensor([[1j, 0], [1, 0]]), "batch 7: .*complex"),
        (torch.tensor([0, 1]), r"batch 7: .*shape \(2,\); expected \(2, 2\), one for each output"),
        (torch.tensor([[0, 1, 1], [1, 0, 0]]), r"batch 7: .*shape \(2, 3\); expected \(2, 2\)"),
    ],
)
def test_wrong_labels_raise_and_are_shown(labels, says):
    with pytest.raises(DataError, match=says):
        checked(labels, (2, 2))


def test_labels_of_one_output_may_lack_its_axis():
    assert checked(torch.tensor([0, 1]), (2, 1)).tolist() == [[0], [1]]
