"""What a candidate costs on a point and on an outlier."""

import math

import pytest
import torch

from bitbayes.errors import ArgumentError
from bitbayes.likelihoods import likelihood_for
from bitbayes.tuning import check_objective, objective_for


def cost_of(name, k, weight=0.25, penalty="entropy"):
    return objective_for(name, likelihood_for(k), weight, penalty)


@pytest.mark.parametrize("name", ["nll", "ood"])
def test_the_cost_of_a_point_is_minus_the_logarithm_of_its_labels_probability(name):
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]).double()
    found = cost_of(name, 3).data_cost(p.log() + 5, torch.tensor([0, 1]))
    torch.testing.assert_close(found, -torch.tensor([0.7, 0.1]).double().log())
    logit = torch.tensor([[math.log(4.0)]]).double()  # p = 0.8
    for label, probability in ((1, 0.8), (0, 0.2)):
        found = cost_of(name, 1).data_cost(logit, torch.tensor([label]))
        assert float(found) == pytest.approx(-math.log(probability))


@pytest.mark.parametrize("k, p", [(3, [0.7, 0.2, 0.1]), (1, [0.3, 0.7])])
def test_the_cost_of_an_outlier_is_its_penalty(k, p):
    probabilities = torch.tensor([p]).double()
    logits = probabilities.log() if k > 1 else (probabilities[:, 1:] / probabilities[:, :1]).log()
    entropy = -sum(each * math.log(each) for each in p)
    assert float(cost_of("ood", k).outlier_cost(logits)) == pytest.approx(-entropy)
    cross_entropy = -sum(math.log(each) for each in p) / len(p)
    assert float(cost_of("ood", k, penalty="uniform").outlier_cost(logits)) == pytest.approx(cross_entropy)


def test_only_the_papers_objective_looks_at_outliers():
    assert cost_of("ood", 3, 0.5).outlier_weight == 0.5
    assert cost_of("nll", 3, 0.5).outlier_weight == 0.0


@pytest.mark.parametrize(
    "name, weight, penalty, says",
    [
        ("best", 0.25, "entropy", "objective='best'"),
        ("ood", 0.25, "none", "penalty='none'"),
        ("ood", -1, "entropy", "weight=-1"),
        ("ood", math.nan, "entropy", "weight=nan"),
        ("ood", "much", "entropy", "weight='much'"),
    ],
)
def test_values_that_do_not_exist_are_refused(name, weight, penalty, says):
    with pytest.raises(ArgumentError, match=says):
        check_objective(name, weight, penalty)
    for known in ("calibrated", "ood", "nll", "evidence"):
        check_objective(known, 0, "uniform")
