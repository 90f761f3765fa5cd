"""Risk and coverage against loops over all orders of ties."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
