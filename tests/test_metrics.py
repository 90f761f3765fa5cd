"""Metrics against scikit-learn, torchmetrics, and loops that follow the definitions."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score, roc_curve
from torchmetrics.functional.classification import multiclass_calibration_error

from bitbayes import metrics
from bitbayes.errors import ArgumentError, DataError
from bitbayes.regression import Prediction

# n terms of size ≤ 10 summed in float64 lose at most n · 10 · 2⁻⁵³, which is 1e-12 for n = 1,000.
EXACT = 1e-12


def case(n=500, k=4, seed=0, sharpness=3.0):
    """Probabilities of an overconfident classifier: labels are drawn from flatter ones."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((0.5 * logits).softmax(-1), 1, generator=generator)[:, 0]
    return logits.softmax(-1), labels


def scores(*confidences):
    """Two-class probabilities with these confidences."""
    top = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([top, 1 - top], -1)


# --- against outside libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [2, 4, 10])
def test_accuracy_nll_and_brier_agree_with_scikit_learn(k):
    probs, labels = case(k=k)
    classes = list(range(k))
    assert metrics.accuracy(probs, labels) == accuracy_score(labels, probs.argmax(-1))
    assert metrics.nll(probs, labels) == pytest.approx(log_loss(labels, probs, labels=classes), abs=EXACT)
    oracle = brier_score_loss(labels, probs, labels=classes, scale_by_half=False)
    assert metrics.brier(probs, labels) == pytest.approx(oracle, abs=EXACT)


@pytest.mark.parametrize("bins", [1, 7, 15, 100])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("norm, ours", [("l1", metrics.ece), ("max", metrics.mce)])
def test_calibration_errors_agree_with_torchmetrics(bins, k, norm, ours):
    probs, labels = case(k=k)
    assert probs.max() < 1
    oracle = multiclass_calibration_error(probs, labels, k, n_bins=bins, norm=norm).item()
    # torchmetrics keeps bin sums in float32: n · 2⁻²⁴ per bin, relative to a bin's own count, is 500 · 6e-8.
    assert ours(probs, labels, bins=bins) == pytest.approx(oracle, abs=500 * 2**-24)


def area_and_curve(probs_in, probs_out):
    score = torch.cat([probs_in, probs_out]).max(-1).values.numpy()
    positive = [1] * len(probs_in) + [0] * len(probs_out)
    false, true, _ = roc_curve(positive, score, drop_intermediate=False)
    # 20 · tpr · n ≥ 19 · n in whole numbers: the curve's own rates are rounded.
    kept = (true * len(probs_in)).round()
    return roc_auc_score(positive, score), false[(20 * kept >= 19 * len(probs_in)).argmax()]


confidences = st.lists(st.integers(8, 16).map(lambda i: i / 16), min_size=1, max_size=45)


@given(confidences, confidences)
def test_auroc_and_fpr95_agree_with_scikit_learn_with_many_ties(inside, outside):
    probs_in, probs_out = scores(*inside), scores(*outside)
    area, false_positives = area_and_curve(probs_in, probs_out)
    assert metrics.auroc(probs_in, probs_out) == pytest.approx(area, abs=EXACT)
    assert metrics.fpr95(probs_in, probs_out) == pytest.approx(false_positives, abs=EXACT)


@pytest.mark.parametrize("n", [1, 19, 20, 21, 40, 300])
def test_auroc_and_fpr95_agree_with_scikit_learn_without_ties(n):
    probs_in, _ = case(n=n, seed=1, sharpness=3.0)
    probs_out, _ = case(n=200, seed=2, sharpness=1.0)
    area, false_positives = area_and_curve(probs_in, probs_out)
    assert metrics.auroc(probs_in, probs_out) == pytest.approx(area, abs=EXACT)
    assert metrics.fpr95(probs_in, probs_out) == pytest.approx(false_positives, abs=EXACT)


@given(confidences, confidences)
def test_auroc_and_fpr95_of_scores_agree_with_scikit_learn(inside, outside):
    # Scores of any sign and size, with ties: 0.5, …, 1 become −1000, …, 1000.
    inside, outside = (4000 * torch.tensor(each) - 3000 for each in (inside, outside))
    score, positive = torch.cat([inside, outside]), [1] * len(inside) + [0] * len(outside)
    assert metrics.auroc(inside, outside) == pytest.approx(roc_auc_score(positive, score), abs=EXACT)
    kept = sorted(inside.tolist(), reverse=True)[: math.ceil(19 * len(inside) / 20)]
    expected = sum(each >= kept[-1] for each in outside.tolist()) / len(outside)
    assert metrics.fpr95(inside, outside) == pytest.approx(expected, abs=EXACT)


def risks_over_all_orders(score, correct):
    """The risk at each coverage, averaged over all orders of the points in which no score rises."""
    orders = [
        order
        for order in itertools.permutations(range(len(score)))
        if all(score[a] >= score[b] for a, b in itertools.pairwise(order))
    ]
    return [
        sum(sum(not correct[j] for j in order[:i]) / i for order in orders) / len(orders)
        for i in range(1, len(score) + 1)
    ]


@given(st.lists(st.tuples(st.integers(-2, 2).map(float), st.booleans()), min_size=1, max_size=6))
def test_risk_coverage_is_the_average_over_all_orders_of_ties(points):
    score, correct = zip(*points, strict=True)
    expected = risks_over_all_orders(score, correct)
    curve = metrics.risk_coverage(torch.tensor(score), torch.tensor(correct))
    assert curve.risk.tolist() == pytest.approx(expected, abs=EXACT)
    assert curve.coverage.tolist() == pytest.approx([(i + 1) / len(points) for i in range(len(points))])
    area = metrics.aurc(torch.tensor(score), torch.tensor(correct))
    assert area == pytest.approx(sum(expected) / len(points), abs=EXACT)


def test_risk_coverage_of_many_points_is_a_loop():
    generator = torch.Generator().manual_seed(0)
    score = torch.randn(300, generator=generator)
    correct = torch.rand(300, generator=generator) < score.sigmoid()
    # O(n²): for each point the errors among those that score at least as much.
    risks = [float((~correct[score >= t]).double().mean()) for t in score.sort(descending=True).values]
    assert len(set(score.tolist())) == 300 and 0 < sum(risks) < 150
    assert metrics.risk_coverage(score, correct).risk.tolist() == pytest.approx(risks, abs=EXACT)
    assert metrics.aurc(score, correct) == pytest.approx(sum(risks) / 300, abs=EXACT)


@given(confidences, st.integers(1, 100))
def test_the_threshold_is_the_largest_that_accepts_the_share(values, percent):
    t = metrics.threshold(torch.tensor(values), accept=percent / 100)
    enough = [
        each for each in values if 100 * sum(other >= each for other in values) >= percent * len(values)
    ]
    assert t == max(enough)


# --- cases worked by hand ----------------------------------------------------------------------------------


def test_auroc_is_1_for_separated_scores_and_0_for_reversed_ones():
    low, high = scores(0.5, 0.6), scores(0.7, 0.8, 0.9)
    assert metrics.auroc(high, low) == 1.0
    assert metrics.auroc(low, high) == 0.0
    assert metrics.auroc(low, low) == 0.5


def test_fpr95_keeps_exactly_19_of_20_and_counts_ties_at_the_threshold():
    inside = scores(0.55, 0.6, *[0.9] * 18)  # the 19th largest is 0.6
    assert metrics.fpr95(inside, scores(0.55, 0.59, 0.6, 0.61)) == 0.5
    inside = scores(0.55, *[0.9] * 18)  # of 19 points, 18 are only 94.7 %: all must be kept
    assert metrics.fpr95(inside, scores(0.54, 0.55, 0.6, 0.61)) == 0.75


def test_the_threshold_accepts_no_more_than_the_share_as_it_is_written():
    # In floating point 0.07 · 100 is 7.000000000000001, and 8 points would be accepted.
    assert metrics.threshold(torch.arange(100.0), accept=0.07) == 93.0
    assert metrics.threshold(torch.arange(100.0), accept=1) == 0.0


def test_infinite_scores_have_an_order():
    inside, outside = torch.tensor([math.inf, 0.0]), torch.tensor([-math.inf, 1.0])
    assert metrics.auroc(inside, outside) == 0.75
    assert metrics.aurc(inside, torch.tensor([True, False])) == 0.25


def test_confidence_of_exactly_one_is_in_the_top_bin():
    # Top bin: confidences 1, 1, 1 and 0.95 of which two are right: |0.5 − 0.9875|. Another bin: 0.55, wrong.
    probs = scores(1.0, 1.0, 1.0, 0.95, 0.55)
    labels = torch.tensor([0, 0, 1, 1, 1])
    per_bin = metrics.reliability(probs, labels)
    assert per_bin.count.tolist() == [0] * 8 + [1] + [0] * 5 + [4]
    assert per_bin.confidence[14].item() == pytest.approx(3.95 / 4, abs=EXACT)
    assert per_bin.accuracy[14].item() == 0.5
    assert metrics.ece(probs, labels) == pytest.approx((4 * (3.95 / 4 - 0.5) + 0.55) / 5, abs=EXACT)
    assert metrics.mce(probs, labels) == pytest.approx(0.55, abs=EXACT)
    assert metrics.ece(scores(1.0, 1.0), torch.tensor([0, 0])) == 0.0
    assert metrics.mce(scores(1.0, 1.0), torch.tensor([1, 1])) == 1.0


def test_a_rounding_error_above_one_is_in_the_top_bin_too():
    probs = torch.tensor([[1.0 + 2**-23, 0.0]])
    assert metrics.reliability(probs, torch.tensor([0])).count.tolist() == [0] * 14 + [1]


@pytest.mark.parametrize("bins", [2, 10, 15, 100])
def test_each_bin_holds_its_left_edge(bins):
    edges = [b / bins for b in range(bins) if b / bins >= 0.5]
    per_bin = metrics.reliability(scores(*edges), torch.zeros(len(edges), dtype=torch.long), bins=bins)
    assert per_bin.count.tolist() == [0] * (bins - len(edges)) + [1] * len(edges)
    assert per_bin.confidence[-len(edges) :].tolist() == edges
    assert per_bin.confidence[: -len(edges)].isnan().all()
    assert per_bin.accuracy[: -len(edges)].isnan().all()


def test_mmc_and_entropy_are_their_definitions():
    probs, _ = case(n=50)
    rows = probs.tolist()
    assert metrics.mmc(probs) == pytest.approx(sum(max(row) for row in rows) / 50, abs=EXACT)
    entropy = -sum(p * math.log(p) for row in rows for p in row) / 50
    assert metrics.entropy(probs) == pytest.approx(entropy, abs=EXACT)
    uniform = torch.full((3, 10), 0.1, dtype=torch.float64)
    assert metrics.entropy(uniform) == pytest.approx(math.log(10), abs=EXACT)
    assert metrics.entropy(torch.eye(3)) == 0.0


@pytest.mark.parametrize(
    "dtype, nats",
    [(torch.float64, 708.4), (torch.float32, 87.3), (torch.bfloat16, 87.3), (torch.float16, 87.3)],
)
def test_nll_of_an_impossible_label_is_large_and_finite(dtype, nats):
    probs = torch.tensor([[1.0, 0.0]], dtype=dtype)
    assert metrics.nll(probs, torch.tensor([1])) == pytest.approx(nats, abs=0.05)


def test_nll_uses_a_float16_probability_below_the_smallest_normal_one():
    probs = torch.tensor([[1.0, 2.0**-20]], dtype=torch.float16)
    assert metrics.nll(probs, torch.tensor([1])) == pytest.approx(20 * math.log(2), abs=EXACT)


def test_sums_are_taken_in_float64():
    # float32 has no number within 1e-9 of this mean.
    probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    exact = sum(p for p, _ in probs.tolist()) / 3
    assert abs(torch.tensor(exact).item() - exact) > 1e-9
    assert metrics.mmc(probs) == pytest.approx(exact, abs=EXACT)


# --- what is taken, and what is not ------------------------------------------------------------------------

WITH_LABELS = [metrics.accuracy, metrics.ece, metrics.mce, metrics.brier, metrics.nll]
ALONE = [metrics.mmc, metrics.entropy]
PAIRS = [metrics.auroc, metrics.fpr95]


def calls(probs, labels):
    """Every metric on these arguments. Metrics of two sets get the same probabilities twice."""
    yield from ((lambda f=f: f(probs, labels)) for f in [*WITH_LABELS, metrics.reliability])
    yield from ((lambda f=f: f(probs)) for f in ALONE)
    yield from ((lambda f=f: f(probs, scores(0.5))) for f in PAIRS)
    yield from ((lambda f=f: f(scores(0.5), probs)) for f in PAIRS)


def test_every_metric_gives_a_python_float_and_no_gradient():
    probs, labels = case(n=20)
    probs.requires_grad_()
    results = (
        [f(probs, labels) for f in WITH_LABELS] + [f(probs) for f in ALONE] + [f(probs, probs) for f in PAIRS]
    )
    assert [type(r) for r in results] == [float] * 9


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
    for f in [*WITH_LABELS, metrics.reliability]:
        with pytest.raises(DataError, match=message):
            f(scores(0.5, 0.75), labels)


def test_small_integer_and_boolean_labels_are_accepted():
    probs = scores(0.9, 0.8)
    for dtype in (torch.uint8, torch.int32, torch.bool):
        assert metrics.accuracy(probs, torch.tensor([0, 1]).to(dtype)) == 0.5
        assert metrics.brier(probs, torch.tensor([0, 1]).to(dtype)) == pytest.approx(0.65, abs=EXACT)


@pytest.mark.parametrize("bins", [0, -1, 2.5])
def test_bad_bins_raise(bins):
    for f in (metrics.reliability, metrics.ece, metrics.mce):
        with pytest.raises(ArgumentError, match="bins="):
            f(scores(0.5), torch.tensor([0]), bins=bins)


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


@pytest.mark.parametrize(
    "correct, message",
    [
        (torch.ones(2), r"torch.float32 \(2,\)"),
        (torch.ones(3, dtype=torch.bool), r"torch.bool \(3,\).*shape \(2,\)"),
        ([True, False], "list"),
    ],
)
def test_anything_but_one_boolean_a_score_raises(correct, message):
    with pytest.raises(DataError, match=message):
        metrics.risk_coverage(torch.ones(2), correct)


def values(n=50, k=2):
    mean, deviation = torch.randn(n, k).double(), 0.5 + torch.rand(n, k).double()
    return mean, deviation, mean + deviation * torch.randn(n, k).double()


def test_measures_of_values_are_those_of_scipy_and_of_integrals():
    mean, deviation, targets = values()
    assert metrics.rmse(mean, targets) == pytest.approx(float(((mean - targets) ** 2).mean() ** 0.5))
    expected = -stats.norm.logpdf(targets, mean, deviation).mean()
    assert metrics.gaussian_nll(mean, deviation, targets) == pytest.approx(expected, rel=1e-12)
    found, one = (
        metrics.crps(mean[:1, :1], deviation[:1, :1], targets[:1, :1]),
        (float(each[0, 0]) for each in (mean, deviation, targets)),
    )
    m, s, y = one
    # CRPS = ∫ (F(t) − [t ≥ y])² dt
    below = integrate.quad(lambda t: stats.norm.cdf(t, m, s) ** 2, m - 40 * s, y)[0]
    above = integrate.quad(lambda t: stats.norm.sf(t, m, s) ** 2, y, m + 40 * s)[0]
    assert found == pytest.approx(below + above, rel=1e-7)


def test_coverage_and_quantiles_of_values_are_shares():
    mean, deviation, targets = values(4000, 1)
    interval = Prediction(mean, deviation.square(), torch.zeros_like(mean)).interval(0.8)
    share = float(((interval[..., 0] <= targets) & (targets <= interval[..., 1])).double().mean())
    assert metrics.interval_coverage(interval, targets) == share == pytest.approx(0.8, abs=0.035)
    levels = [i / 20 for i in range(1, 20)]
    below = [float((targets.numpy() <= stats.norm.ppf(q, mean, deviation)).mean()) - q for q in levels]
    expected = sum(map(abs, below)) / 19
    assert metrics.quantile_error(mean, deviation, targets) == pytest.approx(expected, abs=1e-12)
    assert expected < 0.04 < metrics.quantile_error(mean, 3 * deviation, targets)


def test_values_that_do_not_belong_together_are_refused():
    mean, deviation, targets = values()
    for wrong in (
        (mean[:1], deviation, targets),
        (mean, deviation[:, 0], targets),
        (mean, -deviation, targets),
    ):
        with pytest.raises(ArgumentError):
            metrics.crps(*wrong)
