"""Tuning over all layers: against exact covariances, and in one pass."""

import math

import pytest
import torch
from bitbayes.posteriors.all_layers import NODES, interpolation

import bitbayes as bb
import dense
from bitbayes.errors import EdgeWarning
from bitbayes.model import Batch
from bitbayes.prior import Prior
from dense import fitted, loader


def test_the_interpolation_between_priors_is_within_two_percent():
    nodes = tuple(math.log(1e-8) + i * math.log(1e12) / (NODES - 1) for i in range(NODES))
    h = torch.logspace(-6, 11, 200, dtype=torch.float64)
    at_nodes = torch.stack([(h + math.exp(-node)).rsqrt() for node in nodes])  # (q, h)
    worst = []
    for step in range(400):
        at = nodes[0] + (nodes[-1] - nodes[0]) * step / 399
        exact = (h + math.exp(-at)).rsqrt()
        worst.append(float((interpolation(nodes, at) @ at_nodes / exact - 1).abs().max()))
    assert max(worst) < 0.02 and max(worst[50:-50]) < 0.006


def test_families_of_parts_join_to_that_of_all_points_and_have_its_rows():
    bayes, _, x, _ = fitted("mlp", "kron", n=12)
    parts = [Batch(part, None, "") for part in (x, x[:5], x[5:])]
    whole, *others = (family for _, family in bayes.posterior.logits_by_prior(parts))
    joined, chosen = type(whole).joined(others), whole.rows(torch.tensor([7, 0]))
    expected = whole.at(Prior(0.3))
    assert len(joined) == 12 and len(chosen) == 2
    for family, rows in ((joined, slice(None)), (chosen, [7, 0])):
        dense.close(family.at(Prior(0.3)).mean, expected.mean[rows], 1e-12)
        dense.close(family.at(Prior(0.3)).covariance, expected.covariance[rows], 1e-12)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("objective", ["nll", "ood"])
def test_tuning_over_all_layers_finds_the_optimum_of_exact_covariances(structure, objective):
    model, x, _ = dense.case("mlp", 60)
    model[4].weight.data *= 80  # sure of itself, and wrong in a quarter of the cases
    labels = torch.where(torch.arange(60) % 4 == 0, torch.arange(60) % 3, model(x).argmax(1))
    bayes = bb.Laplace(model, layers="all", structure=structure).fit(loader(x, labels))
    outliers = torch.randn(20, 4, dtype=torch.float64)
    bayes.tune(loader(x, labels), objective=objective, outliers=outliers, weight=0.25)

    def cost(value):
        bayes.prior_variance = value
        loss = bb.metrics.nll(bayes.predict_proba(x), labels)
        p = bayes.predict_proba(outliers)
        entropy = -(p * p.log()).sum(1).mean()
        return float(loss - (0.25 * entropy if objective == "ood" else 0))

    chosen = bayes.prior_variance
    grid = bayes.posterior.candidates()
    costs = [cost(value) for value in grid]
    spread = max(costs) - min(costs)
    assert 1 < costs.index(min(costs)) < len(costs) - 1
    assert cost(chosen) <= min(costs) + 1e-3 * spread


def test_tuning_with_the_predictive_weights():
    bayes, _, x, _ = fitted("mlp", "kron", n=40, predictive="sampled_networks")
    bayes.tune(objective="evidence")
    best = bayes.prior_variance
    assert float(bayes.log_evidence(best)) > max(float(bayes.log_evidence(best * f)) for f in (0.6, 1.7))
    with pytest.warns(EdgeWarning):  # the labels are the network's own: the more certain the better
        bayes.tune(loader(x, bayes.model(x).argmax(1)), objective="nll")
    assert bayes(x).shape == (40, 3) and bool(bayes.predict_proba(x).isfinite().all())


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_tuning_over_all_layers_goes_through_the_data_once():
    bayes, model, x, _ = fitted("mlp", "kron", n=20)
    calls = []
    handle = model[0].register_forward_hook(lambda *_: calls.append(1))
    bayes.predict_proba(x)  # looks at the memory it needs, once
    calls.clear()
    bayes.tune([(x, torch.randint(0, 3, (20,)))], objective="ood", outliers=x)
    handle.remove()
    assert len(calls) == 2


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("residual", [False, True])
def test_autocast_does_not_reach_the_comparison_of_candidates(residual):
    model, x, y = dense.case("mlp", n=30, dtype=torch.float32)

    def tuned():
        bayes = bb.Laplace(model, layers="all", residual=residual).fit([(x, y)])
        return bayes.tune([(x, y)], objective="ood", outliers=3 * x)

    plain = tuned()
    with torch.autocast("cpu", torch.bfloat16):
        cast = tuned()
    assert cast.prior_variance == pytest.approx(plain.prior_variance, rel=1e-6)
