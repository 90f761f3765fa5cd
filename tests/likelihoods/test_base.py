"""What all likelihoods share: their losses and curvature against autograd, labels, names of predictives."""

import pytest
import torch

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError, DataError
from bitbayes.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Categorical,
    Multilabel,
    closed_form_names,
    likelihood_for,
)
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.model import DeferredChecks
from reference import logit_hessians


def checked(likelihood, labels, shape, where="batch 0"):
    with DeferredChecks() as checks:
        return likelihood.check_labels(labels, shape, where, checks)


def gaussian(n, k, dtype=torch.float64):
    factors = CovarianceFactors(torch.rand(n, k, dtype=dtype), None, torch.zeros(n, dtype=dtype))
    return LogitGaussian(torch.randn(n, k, dtype=dtype), factors, 1 + torch.rand(n, dtype=dtype))


def logits_and_labels(k, n=12, scale=3.0):
    return scale * torch.randn(n, k, dtype=torch.float64), torch.arange(n) % max(k, 2)


@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_losses_are_minus_the_log_probability_of_the_label(k):
    likelihood, (logits, labels) = likelihood_for(k), logits_and_labels(k)
    losses = likelihood.losses(logits, labels)
    expected = [reference.total_loss(f[None], y[None]) for f, y in zip(logits, labels, strict=True)]
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-13, atol=1e-13)
    log_p = likelihood.log_probabilities(logits)
    assert log_p.shape == (12, max(k, 2))
    torch.testing.assert_close(-log_p[torch.arange(12), labels], losses, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(12, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_curvature_is_the_hessian_in_the_logits(k):
    likelihood, (logits, labels) = likelihood_for(k), logits_and_labels(k)
    expected = reference.logit_hessians(logits, labels)  # (n, k, k)
    t = likelihood.differences(k)
    actual = t @ likelihood.curvature(logits) @ t.T  # back from differences: nothing was lost
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-14)
    total = t @ likelihood.total_curvature(logits) @ t.T
    torch.testing.assert_close(total, expected.sum(0), rtol=0, atol=1e-13)
    diagonal = torch.diagonal(expected, dim1=1, dim2=2)
    torch.testing.assert_close(likelihood.diagonal(logits), diagonal, rtol=0, atol=1e-14)


@pytest.mark.parametrize("k", [1, 2, 10])
@pytest.mark.parametrize("size", [1, 30, 800])
def test_the_root_times_its_transpose_is_the_hessian_in_the_logits(k, size):
    logits = torch.randn(20, k, dtype=torch.float64) * size
    root = likelihood_for(k).root(logits)
    assert root.shape == (20, k, max(1, k - 1))
    hessians = logit_hessians(logits, torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(root @ root.mT, hessians, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("k", [1, 3])
def test_drawn_labels_have_the_hessian_on_average(k):
    logits = torch.randn(2, k, dtype=torch.float64).repeat_interleave(100_000, 0)
    drawn = likelihood_for(k).draw(logits, torch.Generator().manual_seed(0))
    outer = (drawn[:, :, None] * drawn[:, None, :]).reshape(2, -1, k, k)
    error = 5 * outer.std(1) / outer.shape[1] ** 0.5  # five standard errors
    hessians = logit_hessians(logits[[0, -1]], torch.zeros(2, dtype=torch.long))
    assert bool(((outer.mean(1) - hessians).abs() <= error).all())


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("size", [0.0, 1e2, 1e4, 1e300])
def test_extreme_logits_have_finite_losses_and_curvature(k, size):
    likelihood = likelihood_for(k)
    logits = torch.zeros(4, k, dtype=torch.float64)
    logits[:, 0] = torch.tensor([size, -size, size / 2, 0], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 1])
    for values in (
        likelihood.losses(logits, labels),
        likelihood.curvature(logits),
        likelihood.diagonal(logits),
        likelihood.total_curvature(logits),
    ):
        assert bool(values.isfinite().all())
    assert bool((likelihood.diagonal(logits) >= 0).all())


def test_labels_come_back_as_class_indices():
    logits = torch.zeros(3, 4)
    for labels in (
        torch.tensor([0, 3, 1]),
        torch.tensor([[0], [3], [1]]),
        torch.tensor([0, 3, 1], dtype=torch.uint8),
    ):
        found = checked(Categorical(), labels, tuple(logits.shape), "batch 0")
        assert found.dtype == torch.long and found.tolist() == [0, 3, 1]
    for labels in (
        torch.tensor([0.0, 1.0, 1.0]),
        torch.tensor([False, True, True]),
        torch.tensor([[0], [1], [1]]),
    ):
        found = checked(Bernoulli(), labels, (len(logits), 1), "batch 0")
        assert found.dtype == torch.long and found.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "likelihood, labels, says",
    [
        (Categorical(), torch.tensor([0, 1, 4]), r"batch 7: .*\[0, 1, 4\].*4 logits.*0 to 3"),
        (Categorical(), torch.tensor([0, 1, -100]), r"batch 7: .*-100"),
        (Categorical(), torch.rand(3), r"batch 7: .*float32.*integers from 0 to 3"),
        (Categorical(), torch.tensor([True, False, True]), r"batch 7: .*bool"),
        (Categorical(), torch.rand(3, 4), r"batch 7: .*shape \(3, 4\)"),
        (Categorical(), torch.tensor([0, 1]), r"batch 7: .*shape \(2,\)"),
        (Categorical(), torch.zeros(3, 4).long(), r"batch 7: .*shape \(3, 4\)"),
        (Bernoulli(), torch.tensor([0, 1, 2]), r"batch 7: .*\[0, 1, 2\].*0 and 1"),
        (Bernoulli(), torch.tensor([0.2, 1, 0]), r"batch 7: .*0 and 1"),
        (Bernoulli(), torch.tensor([1j, 1, 0]), "batch 7: .*"),
    ],
)
def test_wrong_labels_raise_and_are_shown(likelihood, labels, says):
    with pytest.raises(DataError, match=says):
        checked(likelihood, labels, (3, 4 if isinstance(likelihood, Categorical) else 1), "batch 7")


@pytest.mark.parametrize(
    "likelihood, labels, advice",
    [
        (
            Categorical(),
            torch.eye(3, 4),
            r"likelihood='multilabel'\); if they are one-hot, give labels.argmax",
        ),
        (Categorical(), torch.eye(3, 4) > 0, "likelihood='multilabel'"),
        (Categorical(), torch.rand(3), r"For regression, use Laplace\(model, likelihood='gaussian'\)$"),
        (Categorical(), torch.rand(3, 4), r"For regression, use Laplace\(model, likelihood='gaussian'\)$"),
        (Bernoulli(), torch.rand(3), r"For regression, use Laplace\(model, likelihood='gaussian'\)$"),
        (Categorical(), torch.tensor([0, 1, 4]), "0 to 3$"),  # integers: no other likelihood is likely
        (Categorical(), torch.eye(3, 3), "one for each input$"),
        (Multilabel(), torch.rand(3, 4), "needs 0 and 1$"),
    ],
)
def test_labels_that_may_be_for_another_likelihood_are_told_which(likelihood, labels, advice):
    with pytest.raises(DataError, match=advice):
        checked(likelihood, labels, (3, 1 if isinstance(likelihood, Bernoulli) else 4))


def test_one_decision_among_all_classes_is_the_default():
    logits = torch.randn(5, 4).double()
    assert torch.equal(Categorical().log_decisions(logits)[:, 0], Categorical().log_probabilities(logits))
    p = logits.softmax(1)
    assert torch.equal(Categorical().confidence(p), p.amax(1))


@pytest.mark.parametrize("wrong, told", [(255, True), (254, False), (256, False)])
def test_what_to_write_for_the_masked_pixels_of_files_is_told(wrong, told):
    """Files of masks mark pixels to ignore with 255, and `cross_entropy` ignores -100."""
    with pytest.raises(DataError, match=f"{wrong}") as error:
        checked(Categorical(), torch.tensor([0, 1, wrong]), (3, 4))
    assert ("torch.where(labels == 255, -100, labels.long())" in str(error.value)) is told


def test_many_wrong_labels_are_not_all_shown():
    with pytest.raises(DataError, match="and more"):
        checked(Categorical(), torch.arange(50), (50, 4), "batch 0")


def test_the_number_of_outputs_decides_the_likelihood():
    assert likelihood_for(1).name == "bernoulli"
    assert likelihood_for(2).name == likelihood_for(10).name == "categorical"
    outputs = {"categorical": 2, "heteroscedastic": 2}
    assert all(likelihood_for(outputs.get(name, 1), name).name == name for name in LIKELIHOODS)


@pytest.mark.parametrize("outputs, name", [(1, "categorical"), (2, "bernoulli"), (10, "bernoulli")])
def test_a_likelihood_that_does_not_fit_the_outputs_raises(outputs, name):
    with pytest.raises(ArgumentError, match=rf"likelihood='{name}' does not fit a model with {outputs} out"):
        likelihood_for(outputs, name)
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    with pytest.raises(ArgumentError, match=rf"likelihood='{name}' does not fit a model with {outputs} out"):
        bb.Laplace(torch.nn.Linear(3, outputs), likelihood=name).fit([(x, y)])


def test_a_likelihood_that_does_not_exist_raises():
    says = "likelihood='poisson'.*'auto', 'categorical', 'bernoulli'"
    with pytest.raises(ArgumentError, match=says):
        likelihood_for(3, "poisson")
    with pytest.raises(ArgumentError, match=says):
        bb.Laplace(torch.nn.Linear(3, 3), likelihood="poisson")


@pytest.mark.parametrize("k", [1, 3])
def test_a_likelihood_by_its_name_is_the_one_that_auto_finds(k):
    x, y = torch.randn(30, 3, dtype=torch.float64), torch.arange(30) % max(k, 2)
    model = torch.nn.Linear(3, k).double()
    found, named = (
        bb.Laplace(model, prior_variance=2.0, likelihood=name).fit([(x, y)])
        for name in ("auto", likelihood_for(k).name)
    )
    assert named.likelihood == named.posterior.likelihood.name == found.posterior.likelihood.name
    assert torch.equal(found.predict_proba(x), named.predict_proba(x))


def test_names_of_closed_forms_are_those_of_all_likelihoods():
    assert closed_form_names() == ("probit", "pairwise", "meanfield", "bridge", "quadrature", "mean")


@pytest.mark.parametrize(
    "k, pairs, name",
    [
        (1, True, "probit"),
        (1, False, "probit"),
        (2, True, "pairwise"),
        (64, True, "pairwise"),
        (65, True, "meanfield"),
        (3, False, "meanfield"),
    ],
)
def test_auto_is_a_predictive_that_fits(k, pairs, name):
    assert likelihood_for(k).predictive_name("auto", k, has_cross_covariance=pairs) == name


def test_predictives_that_need_a_cross_covariance_raise_without_it():
    for name in ("pairwise", "mc"):
        with pytest.raises(ArgumentError, match=f"method='{name}': "):
            Categorical().predictive_name(name, 3, has_cross_covariance=False)
        assert Categorical().predictive_name(name, 3) == name
    assert Bernoulli().predictive_name("mc", 1, has_cross_covariance=False) == "mc"
    with pytest.raises(ArgumentError, match="method='sum'"):
        Categorical().predictive_name("sum", 3)


@pytest.mark.parametrize("k", [1, 3])
def test_predictions_and_draws_are_probabilities_and_drop_ins_give_them_back(k):
    likelihood, points = likelihood_for(k), gaussian(8, k)
    drawn = likelihood.drawn_probabilities(points, 5, torch.Generator().manual_seed(0))
    assert drawn.shape == (5, 8, max(k, 2))
    torch.testing.assert_close(drawn.sum(2), torch.ones(5, 8, dtype=torch.float64), rtol=0, atol=1e-14)
    found = likelihood.log_probabilities(likelihood.drop_in(drawn.mean(0))).exp()
    torch.testing.assert_close(found, drawn.mean(0), rtol=0, atol=1e-14)
    # They are the probabilities of the Gaussian's own draws, whatever common shift these have.
    again = points.scaled_draws(5, torch.Generator().manual_seed(0)) * points.scale[:, None]
    torch.testing.assert_close(drawn, likelihood.probabilities(again), rtol=0, atol=1e-14)
    shared = likelihood.drawn_probabilities(points, 5, torch.Generator().manual_seed(0), shared=True)
    assert not torch.equal(shared, drawn)


@pytest.mark.parametrize("k", [1, 3])
def test_sample_means_of_0_have_finite_drop_ins(k):
    p = torch.eye(max(k, 2), dtype=torch.float64)
    drop_in = likelihood_for(k).drop_in(p)
    assert bool(drop_in.isfinite().all())
    torch.testing.assert_close(likelihood_for(k).log_probabilities(drop_in).exp(), p, rtol=0, atol=1e-300)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_beyond_all_numbers_have_differences_that_are_finite(k, dtype):
    """Means as large as the dtype allows, without a variance."""
    largest = torch.finfo(dtype).max
    mean = torch.full((2, k), 1.0, dtype=dtype)
    mean[0], mean[1, -1] = -1.0, -1.0
    nothing = CovarianceFactors(torch.zeros(2, k, dtype=dtype), None, torch.zeros(2, dtype=dtype))
    points = LogitGaussian(mean, nothing, torch.full((2,), largest, dtype=dtype))
    likelihood = likelihood_for(k)
    for name in likelihood.closed_forms:
        logits = likelihood.predict(points, name)
        assert bool(logits.isfinite().all()) and bool((logits - logits.flip(0)).isfinite().all()), name


@pytest.mark.parametrize("k", [1, 2, 5])
def test_losses_of_predictions_are_their_log_probabilities(k):
    likelihood, (logits, labels) = likelihood_for(k), logits_and_labels(k)
    expected = -likelihood.log_probabilities(logits)[torch.arange(12), labels]
    torch.testing.assert_close(likelihood.prediction_losses(logits, labels), expected, rtol=1e-13, atol=1e-13)


def test_what_a_likelihood_has_no_answer_to_raises():
    class Bare(Categorical):
        name = "bare"
        far_confidence, far_labels, centre, scaled_centred, largest_probability = (
            getattr(bb.likelihoods.Likelihood, each)
            for each in ("far_confidence", "far_labels", "centre", "scaled_centred", "largest_probability")
        )

    points = gaussian(2, 3)
    for ask in (
        lambda bare: bare.far_confidence(3),
        lambda bare: bare.far_labels(points.mean),
        lambda bare: bare.centre(points.mean),
        lambda bare: bare.scaled_centred(points),
        lambda bare: bare.largest_probability(points.mean, points.mean),
    ):
        with pytest.raises(ArgumentError, match="likelihood='bare' has no"):
            ask(Bare())
