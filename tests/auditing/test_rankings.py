import pytest
import torch

from bitbayes import metrics
from bitbayes.auditing.findings import HISTOGRAM_BINS, KEPT_SHARES, USUAL_SHARE
from bitbayes.auditing.predictions import Ranked, Rated
from bitbayes.auditing.rankings import rank_outliers, rank_test

BY = {"plain": "confidence"}


def test_what_gets_through_is_what_the_threshold_lets_through() -> None:
    probs, outside = torch.randn(300, 4).mul(3).softmax(1), torch.randn(90, 4).softmax(1).amax(1)
    on_test = {"plain": Rated(probs, probs.amax(1)), "bitbayes": Rated(probs, torch.randn(300))}
    others = {"plain": Ranked(outside, outside), "bitbayes": Ranked(outside, torch.randn(90) - 2)}
    rankings = rank_test(on_test, [others], {"plain": "confidence", "bitbayes": "score"})
    assert [ranking.by for ranking in rankings.values()] == ["confidence", "score"]
    for method, ranking in rankings.items():
        inside, scores = on_test[method].scores, others[method].scores
        passing = rank_outliers(ranking, scores)
        for place, share in enumerate(KEPT_SHARES):
            threshold = metrics.threshold(inside, accept=share)
            assert ranking.threshold[place] == threshold
            assert passing.share[place] == pytest.approx((scores >= threshold).double().mean().item())
        assert passing.share[KEPT_SHARES.index(USUAL_SHARE)] == pytest.approx(metrics.fpr95(inside, scores))
        assert (sum(ranking.histogram), sum(passing.histogram)) == (300, 90)
        assert len(ranking.histogram) == HISTOGRAM_BINS
        assert all(a >= b for a, b in zip(ranking.position, ranking.position[1:], strict=False))
        assert 0 <= ranking.position[-1] <= ranking.position[0] <= 1


def test_confidences_of_exactly_one_have_a_place() -> None:
    sure = torch.ones(50)
    rankings = rank_test({"plain": Rated(torch.ones(50, 1), sure)}, [{"plain": Ranked(sure, sure)}], BY)
    assert rank_outliers(rankings["plain"], sure).share == [1.0] * len(KEPT_SHARES)
    assert sum(rankings["plain"].histogram) == 50
