"""Losses and their curvature at the logits, against autograd."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from bitbayes.errors import DataError
from bitbayes.likelihoods import Bernoulli, Categorical, likelihood_for
from reference import logit_hessians


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


@pytest.mark.parametrize("k", [2, 3, 10, 50])
def test_contrasts_are_orthonormal_and_blind_to_a_common_shift(k):
    t = Categorical().differences(k)
    assert t.shape == (k, k - 1) and t.dtype == torch.float64
    torch.testing.assert_close(t.T @ t, torch.eye(k - 1, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(t.sum(0), torch.zeros(k - 1, dtype=torch.float64), rtol=0, atol=1e-14)


def test_one_logit_is_its_own_contrast():
    assert torch.equal(Bernoulli().differences(1), torch.ones(1, 1, dtype=torch.float64))


@given(st.floats(-700, 700))
def test_one_logits_curvature_keeps_its_digits_where_p_is_almost_1(f):
    logits = torch.tensor([[f]], dtype=torch.float64)
    expected = math.exp(-abs(f)) / (1 + math.exp(-abs(f))) ** 2
    assert float(Bernoulli().curvature(logits)) == pytest.approx(expected, rel=1e-12, abs=0)


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


@given(st.integers(0, 1000), st.sampled_from([2, 3, 10]))
def test_curvature_is_never_negative(seed, k):
    torch.manual_seed(seed)
    logits, _ = logits_and_labels(k, scale=30.0)
    assert float(torch.linalg.eigvalsh(Categorical().curvature(logits)).min()) > -1e-15


def test_labels_come_back_as_class_indices():
    logits = torch.zeros(3, 4)
    for labels in (
        torch.tensor([0, 3, 1]),
        torch.tensor([[0], [3], [1]]),
        torch.tensor([0, 3, 1], dtype=torch.uint8),
    ):
        checked = Categorical().check(labels, tuple(logits.shape), "batch 0")
        assert checked.dtype == torch.long and checked.tolist() == [0, 3, 1]
    for labels in (
        torch.tensor([0.0, 1.0, 1.0]),
        torch.tensor([False, True, True]),
        torch.tensor([[0], [1], [1]]),
    ):
        checked = Bernoulli().check(labels, (len(logits), 1), "batch 0")
        assert checked.dtype == torch.long and checked.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "likelihood, labels, says",
    [
        (Categorical(), torch.tensor([0, 1, 4]), r"batch 7: .*\[0, 1, 4\].*4 logits.*0 to 3"),
        (Categorical(), torch.tensor([0, 1, -100]), r"batch 7: .*-100"),
        (Categorical(), torch.rand(3, 4), r"batch 7: .*float32"),
        (Categorical(), torch.tensor([0, 1]), r"batch 7: .*shape \(2,\)"),
        (Categorical(), torch.zeros(3, 4).long(), r"batch 7: .*shape \(3, 4\)"),
        (Bernoulli(), torch.tensor([0, 1, 2]), r"batch 7: .*\[0, 1, 2\].*0 and 1"),
        (Bernoulli(), torch.tensor([0.2, 1, 0]), r"batch 7: .*0 and 1"),
        (Bernoulli(), torch.tensor([1j, 1, 0]), "batch 7: .*"),
    ],
)
def test_wrong_labels_raise_and_are_shown(likelihood, labels, says):
    with pytest.raises(DataError, match=says):
        likelihood.check(labels, (3, 4 if isinstance(likelihood, Categorical) else 1), "batch 7")


def test_many_wrong_labels_are_not_all_shown():
    with pytest.raises(DataError, match="and more"):
        Categorical().check(torch.arange(50), (50, 4), "batch 0")


def test_the_number_of_outputs_decides_the_likelihood():
    assert likelihood_for(1).name == "bernoulli"
    assert likelihood_for(2).name == likelihood_for(10).name == "categorical"


@pytest.mark.parametrize("k", [1, 2, 3, 10])
@pytest.mark.parametrize("size", [1, 30, 800])
def test_the_root_times_its_transpose_is_the_hessian_in_the_logits(k, size):
    logits = torch.randn(20, k, dtype=torch.float64) * size
    root = likelihood_for(k).root(logits)
    assert root.shape == (20, k, max(1, k - 1))
    hessians = logit_hessians(logits, torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(root @ root.mT, hessians, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("size", [1, 30])
def test_the_root_keeps_its_digits_where_a_class_is_almost_certain(size):
    logits = torch.randn(20, 5, dtype=torch.float64) * size
    p = logits.softmax(1)
    others = torch.stack([p[:, [j for j in range(5) if j != i]].sum(1) for i in range(5)], dim=1)
    diagonal = Categorical().root(logits).square().sum(2)
    torch.testing.assert_close(diagonal, p * others, rtol=1e-13, atol=0)


@pytest.mark.parametrize("k", [1, 3])
def test_drawn_labels_have_the_hessian_on_average(k):
    logits = torch.randn(2, k, dtype=torch.float64).repeat_interleave(100_000, 0)
    drawn = likelihood_for(k).draw(logits, torch.Generator().manual_seed(0))
    outer = (drawn[:, :, None] * drawn[:, None, :]).reshape(2, -1, k, k)
    error = 5 * outer.std(1) / outer.shape[1] ** 0.5  # five standard errors
    hessians = logit_hessians(logits[[0, -1]], torch.zeros(2, dtype=torch.long))
    assert bool(((outer.mean(1) - hessians).abs() <= error).all())
