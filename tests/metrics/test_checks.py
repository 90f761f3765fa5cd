"""What the measures take, and what not."""

import math

import pytest
import torch

from bitbayes import metrics
from bitbayes.errors import ArgumentError, DataError
from metric_cases import EXACT, case, scores

WITH_LABELS = [metrics.accuracy, metrics.ece, metrics.mce, metrics.brier, metrics.nll]
WITH_LABELS += [metrics.debiased_rmsce, metrics.smooth_ece, metrics.classwise_ece]
OF_OTHER_KINDS = [metrics.reliability, metrics.ece_per_class, metrics.brier_decomposition]
ALONE = [metrics.mmc, metrics.entropy]
PAIRS = [metrics.auroc, metrics.fpr95]


def calls(probs, labels):
    """Every metric on these arguments. Metrics of two sets get the same probabilities twice."""
    yield from ((lambda f=f: f(probs, labels)) for f in [*WITH_LABELS, *OF_OTHER_KINDS])
    yield from ((lambda f=f: f(probs)) for f in ALONE)
    yield from ((lambda f=f: f(probs, scores(0.5))) for f in PAIRS)
    yield from ((lambda f=f: f(scores(0.5), probs)) for f in PAIRS)


def test_every_metric_gives_a_python_float_and_no_gradient():
    probs, labels = case(n=20)
    probs.requires_grad_()
    results = (
        [f(probs, labels) for f in WITH_LABELS] + [f(probs) for f in ALONE] + [f(probs, probs) for f in PAIRS]
    )
    assert [type(r) for r in results] == [float] * 12


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("k", [2, 10, 1000])
@pytest.mark.parametrize("through_logarithm", [False, True])
def test_softmax_outputs_of_any_dtype_are_accepted(dtype, k, through_logarithm):
    logits = 3 * torch.randn(200, k, generator=torch.Generator().manual_seed(0))
    for scale in (0.0, 1.0, 10.0):  # from uniform, where the entropy is largest, to nearly one-hot
        rows = (scale * logits).to(dtype)
        probs = rows.log_softmax(-1).exp() if through_logarithm else rows.softmax(-1)
        assert probs.dtype == dtype
        exact = probs.double().max(-1).values.mean().item()
        assert metrics.mmc(probs) == pytest.approx(exact, abs=EXACT)
        if dtype == torch.float32:
            assert metrics.mmc(probs.double()) == pytest.approx(exact, abs=EXACT)


def test_an_average_of_100_draws_added_one_by_one_in_float32_is_accepted():
    total = torch.zeros(2000, 10)
    for seed in range(100):
        total += torch.randn(2000, 10, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    metrics.mmc(total / 100)


@pytest.mark.parametrize("dtype, off", [(torch.bfloat16, 0.05), (torch.float32, 1e-4), (torch.float64, 1e-4)])
def test_rows_that_do_not_sum_to_one_raise(dtype, off):
    for wrong in (0.5 + off, 0.5 - off):
        for call in calls(torch.tensor([[0.5, 0.5], [0.5, wrong]], dtype=dtype), torch.tensor([0, 1])):
            with pytest.raises(DataError, match="sum to one"):
                call()


@pytest.mark.parametrize(
    "probs, message",
    [
        (torch.empty(0, 2), r"shape \(0, 2\)"),
        (torch.tensor([0.5, 0.5]), r"shape \(2,\)"),
        (torch.ones(2, 1), r"shape \(2, 1\).*torch.stack"),
        (torch.ones(1, 2, 2) / 2, r"shape \(1, 2, 2\)"),
        (torch.tensor([[1, 0], [0, 1]]), "floating-point.*int64"),
        ([[0.5, 0.5]], "floating-point.*list"),
        (torch.tensor([[0.5, 0.5], [math.nan, 0.5]]), "NaN or infinity in 1 of 2 rows"),
        (torch.tensor([[0.5, 0.5], [math.inf, 0.5]]), "NaN or infinity in 1 of 2 rows"),
        (torch.tensor([[0.5, 0.5], [1.5, -0.5]]), "-0.5 < 0"),
    ],
)
def test_bad_probabilities_raise(probs, message):
    for call in calls(probs, torch.tensor([0, 1])):
        with pytest.raises(DataError, match=message):
            call()


@pytest.mark.parametrize(
    "labels, message",
    [
        (torch.tensor([0.0, 1.0]), "whole numbers.*float32"),
        ([0, 1], "whole numbers.*list"),
        (torch.tensor([0]), r"shape \(1,\), but probs has 2 rows"),
        (torch.tensor([[0], [1]]), r"shape \(2, 1\)"),
        (torch.tensor([0, 2]), "from 0 to 2, but probs has 2 classes"),
        (torch.tensor([-1, 1]), "from -1 to 1"),
    ],
)
def test_bad_labels_raise(labels, message):
    for f in [*WITH_LABELS, *OF_OTHER_KINDS]:
        with pytest.raises(DataError, match=message):
            f(scores(0.5, 0.75), labels)


def test_small_integer_and_boolean_labels_are_accepted():
    probs = scores(0.9, 0.8)
    for dtype in (torch.uint8, torch.int32, torch.bool):
        assert metrics.accuracy(probs, torch.tensor([0, 1]).to(dtype)) == 0.5
        assert metrics.brier(probs, torch.tensor([0, 1]).to(dtype)) == pytest.approx(0.65, abs=EXACT)


@pytest.mark.parametrize("accept", [0, -0.5, 1.01, math.nan, "0.9", None])
def test_a_share_outside_0_to_1_raises(accept):
    with pytest.raises(ArgumentError, match=f"accept={accept!r}"):
        metrics.threshold(torch.ones(3), accept=accept)


@pytest.mark.parametrize(
    "score, message",
    [
        (torch.empty(0), r"shape \(0,\)"),
        (torch.ones(2, 3), r"shape \(2, 3\)"),
        (torch.tensor([1, 2]), "floating-point.*int64"),
        ([0.5, 0.5], "floating-point.*list"),
        (torch.tensor([0.5, math.nan]), "NaN in 1 of 2"),
    ],
)
def test_bad_scores_raise(score, message):
    for call in (metrics.threshold, lambda s: metrics.aurc(s, torch.ones(2, dtype=torch.bool))):
        with pytest.raises(DataError, match=message):
            call(score)


def test_nan_among_scores_raises_for_outliers_too():
    for f in PAIRS:
        with pytest.raises(DataError, match="probs_out holds NaN in 1 of 1"):
            f(torch.ones(2), torch.tensor([math.nan]))


EXTREMES = {
    "all right": (scores(1.0, 1.0, 0.9), torch.tensor([0, 0, 0])),
    "all wrong": (scores(1.0, 1.0, 0.9), torch.tensor([1, 1, 1])),
    "certain of the second": (scores(0.0, 0.0), torch.tensor([1, 0])),
    "one point": (scores(0.7), torch.tensor([0])),
    "one class": (torch.tensor([[0.2, 0.3, 0.5]] * 4), torch.tensor([1, 1, 1, 1])),
    "undecided": (torch.full((3, 2), 0.5), torch.tensor([0, 1, 1])),
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_measures_of_calibration_are_finite_and_in_range_at_the_extremes(name, dtype):
    probs, labels = EXTREMES[name]
    probs = probs.to(dtype)
    ones = torch.ones(len(labels))
    for weights in (None, ones, 0.1 * ones):
        for f in (metrics.debiased_rmsce, metrics.smooth_ece, metrics.classwise_ece):
            assert 0 <= f(probs, labels, weights=weights) <= 1 + 1e-15, f.__name__
        parts = metrics.brier_decomposition(probs, labels, weights=weights)
        assert min(parts[:2]) >= 0
        # A row of half precision need not sum to one: the largest score is a little above 2.
        assert sum(parts) == pytest.approx(metrics.brier(probs, labels, weights=weights), abs=EXACT)
        floor = metrics.calibration_floor(probs, draws=50, weights=weights)
        assert 0 <= floor.low <= floor.mean <= floor.high <= 1 or floor.mean == pytest.approx(floor.low)
        assert 0 <= metrics.augrc(probs.max(1).values, probs.argmax(1) == labels, weights=weights) <= 0.5
    if name == "all right" and dtype == torch.float64:
        assert metrics.smooth_ece(probs[:2], labels[:2]) == metrics.debiased_rmsce(probs[:2], labels[:2]) == 0
    if name == "all wrong":
        assert metrics.smooth_ece(probs[:2], labels[:2]) == pytest.approx(1, abs=EXACT)
        assert metrics.debiased_rmsce(probs[:2], labels[:2]) == 1


def test_half_precision_is_computed_in_float64():
    top = torch.tensor([0.9, 0.8, 0.6, 0.7], dtype=torch.float16)
    probs = torch.stack([top, 1 - top], -1)  # without rounding: both are multiples of 2⁻¹¹
    labels = torch.tensor([0, 1, 0, 0])
    for f in (metrics.debiased_rmsce, metrics.smooth_ece, metrics.classwise_ece, metrics.brier_decomposition):
        assert f(probs, labels) == f(probs.double(), labels)
    assert metrics.calibration_floor(probs) == metrics.calibration_floor(probs.double())
