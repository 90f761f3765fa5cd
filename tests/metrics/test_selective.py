"""Risk and coverage against loops over all orders of ties."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from bitbayes import metrics
from bitbayes.errors import DataError
from metric_cases import EXACT


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


def answers(n=200, seed=0, distinct=7):
    """Scores with ties, whether predictions are right, and weights, of which some are 0."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(distinct, (n,), generator=generator).double()
    correct = torch.rand(n, generator=generator) < (score / distinct + 0.2)
    return score, correct, torch.randint(4, (n,), generator=generator).double()


@given(st.lists(st.tuples(st.integers(-2, 2).map(float), st.booleans()), min_size=1, max_size=6))
def test_augrc_is_the_area_under_straight_lines_averaged_over_all_orders_of_ties(points):
    score, correct = zip(*points, strict=True)
    n, risks = len(points), risks_over_all_orders(score, correct)
    heights = [0, *(risk * (i + 1) / n for i, risk in enumerate(risks))]
    expected = sum((a + b) / 2 for a, b in itertools.pairwise(heights)) / n
    assert metrics.augrc(torch.tensor(score), torch.tensor(correct)) == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("distinct", [2, 7, 10**6])
def test_augrc_follows_from_the_error_rate_and_the_auroc_of_failures(distinct):
    score, correct, weights = answers(distinct=distinct)
    e = 1 - correct.double().mean().item()
    area = roc_auc_score(correct, score)
    assert 0.1 < e < 0.9 and 0.5 < area < 0.95
    expected = e * (1 - e) * (1 - area) + e**2 / 2
    assert metrics.augrc(score, correct) == pytest.approx(expected, abs=EXACT)
    e = float(weights @ (~correct).double() / weights.sum())
    area = roc_auc_score(correct, score, sample_weight=weights)
    expected = e * (1 - e) * (1 - area) + e**2 / 2
    assert metrics.augrc(score, correct, weights=weights) == pytest.approx(expected, abs=EXACT)


def test_a_weight_counts_like_repeated_points():
    score, correct, weights = answers()
    times = weights.long()
    for area in (metrics.aurc, metrics.augrc):
        repeated = area(score.repeat_interleave(times), correct.repeat_interleave(times))
        assert area(score, correct, weights=weights) == pytest.approx(repeated, abs=EXACT)
        assert area(score, correct) != pytest.approx(repeated, abs=1e-4)


def test_scores_without_weight_and_small_weights_have_an_area():
    score, correct = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([True, False, False])
    weights = torch.tensor([1.0, 0.0, 1.0])
    for area in (metrics.aurc, metrics.augrc):
        expected = area(score[[0, 2]], correct[[0, 2]])
        assert area(score, correct, weights=weights) == pytest.approx(expected, abs=EXACT)
        small = area(score, torch.zeros(3, dtype=torch.bool), weights=0.5 * weights)
        assert small == pytest.approx(1 if area is metrics.aurc else 0.5, abs=EXACT)


def test_large_weights_have_an_area():
    score, correct, weights = answers()
    for area in (metrics.aurc, metrics.augrc):
        expected = area(score, correct, weights=1e12 * weights)
        assert area(score, correct, weights=1e300 * weights) == pytest.approx(expected, abs=1e-9)


def test_augrc_is_between_those_of_the_best_and_of_the_worst_order():
    correct = torch.tensor([True, True, True, False])
    scores = torch.arange(4.0)
    assert metrics.augrc(-scores, correct) == 1 / 32  # e²/2
    assert metrics.augrc(scores, correct) == 1 / 4 - 1 / 32
    assert metrics.augrc(torch.ones(4), correct) == 1 / 8  # e/2
    assert metrics.augrc(scores, ~torch.zeros(4, dtype=torch.bool)) == 0
    assert metrics.augrc(scores, torch.zeros(4, dtype=torch.bool)) == 1 / 2


@pytest.mark.parametrize("area", [metrics.aurc, metrics.augrc])
def test_areas_take_one_boolean_for_each_score_with_weights_too(area):
    for weights in (None, torch.ones(2)):
        with pytest.raises(DataError, match="float32"):
            area(torch.ones(2), torch.ones(2), weights=weights)
