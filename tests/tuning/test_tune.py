"""Tuning against a brute-force loop over candidates, each predicted from scratch."""

import dataclasses
import math
import warnings

import numpy
import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
import reference
from bitbayes import metrics
from bitbayes.errors import DataError, EdgeWarning
from bitbayes.prior import variance_grid
from bitbayes.toys import digits, digits_lenet, validation_split
from classifiers import points, trained
from dense import fitted, loader


def objective(bayes, value, x, y, outliers=None, weight=0.25, penalty="entropy"):
    """The objective of one prior variance, computed from predicted probabilities."""
    before, bayes.prior_variance = bayes.prior_variance, value
    p = bayes.predict_proba(x)
    cost = -p[torch.arange(len(y)), y].log().mean()
    if outliers is not None:
        log_p = bayes.predict_proba(outliers).log()
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        cross_entropy = -log_p.mean(1).mean()  # to the uniform vector: every class has weight 1/k
        cost = cost + (-weight * entropy if penalty == "entropy" else weight * cross_entropy)
    bayes.prior_variance = before
    return float(cost)


def is_best(bayes, cost):
    """Assert that the tuned value lies within a step of the best candidate, and costs no more."""
    grid = variance_grid(100)
    costs = [cost(value) for value in grid]
    index = min(range(len(grid)), key=costs.__getitem__)
    assert 0 < index < len(grid) - 1, "the test needs an optimum inside the range"
    assert grid[index - 1] < bayes.prior_variance < grid[index + 1]
    assert cost(bayes.prior_variance) <= min(costs) + 1e-13 * abs(min(costs))  # rounding


def inputs_seen(model):
    """A list that collects every input that `model` is called with from now on."""
    seen = []
    model.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    return seen


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "isotropic"])
@pytest.mark.parametrize("k", [1, 3])
def test_nll_finds_the_brute_force_optimum(k, structure):
    bayes, (x, y) = trained(k, structure=structure)
    assert bayes.tune(reference.loader(x, y), objective="nll") is bayes
    is_best(bayes, lambda value: objective(bayes, value, x, y))


@pytest.mark.parametrize("as_loader", [True, False])
@pytest.mark.parametrize("penalty", ["entropy", "uniform"])
@pytest.mark.parametrize("k", [1, 3])
def test_ood_finds_the_brute_force_optimum(k, penalty, as_loader):
    bayes, (x, y) = trained(k)
    outliers = 6 * torch.randn(45, 2, dtype=torch.float64)
    given = list(outliers.split(20)) if as_loader else outliers
    bayes.tune(reference.loader(x, y), objective="ood", outliers=given, penalty=penalty)
    is_best(bayes, lambda value: objective(bayes, value, x, y, outliers, penalty=penalty))


def test_outliers_may_come_with_labels():
    bayes, (x, y) = trained(3)
    outliers = 6 * torch.randn(45, 2, dtype=torch.float64)
    plain = bayes.tune(reference.loader(x, y), objective="ood", outliers=outliers).prior_variance
    labelled = bayes.tune(
        reference.loader(x, y), objective="ood", outliers=reference.loader(outliers, torch.zeros(45))
    )
    assert labelled.prior_variance == pytest.approx(plain, rel=1e-9)


@pytest.mark.parametrize("k", [1, 3])
def test_a_larger_weight_of_outliers_gives_a_larger_prior_variance(k):
    bayes, (x, y) = trained(k)
    outliers = 6 * torch.randn(45, 2, dtype=torch.float64)
    light = bayes.tune(reference.loader(x, y), objective="ood", outliers=outliers, weight=0.01).prior_variance
    is_best(bayes, lambda value: objective(bayes, value, x, y, outliers, weight=0.01))
    assert (
        bayes.tune(reference.loader(x, y), objective="ood", outliers=outliers, weight=0.5).prior_variance
        > light
    )
    none = bayes.tune(reference.loader(x, y), objective="ood", outliers=outliers, weight=0).prior_variance
    assert none == bayes.tune(reference.loader(x, y), objective="nll").prior_variance


@pytest.mark.parametrize("k", [1, 3])
def test_ood_without_outliers_draws_uniform_noise(k):
    bayes, (x, y) = trained(k)
    seen = inputs_seen(bayes.model)
    bayes.tune(reference.loader(x, y, 25), objective="ood")
    assert [len(batch) for batch in seen] == [3, 25, 25, 10, 25, 25, 10]  # the first are made up
    torch.testing.assert_close(torch.cat(seen[1:4]), x)
    noise = torch.cat(seen[4:])
    low, high = float(x.min()), float(x.max())
    assert low <= float(noise.min()) and float(noise.max()) <= high
    # Uniform: mean and variance within 5 standard errors of (high + low)/2 and (high − low)²/12.
    unit = (noise - low) / (high - low)
    n = unit.numel()
    assert abs(float(unit.mean()) - 1 / 2) < 5 * math.sqrt(1 / 12 / n)
    assert abs(float(unit.var()) - 1 / 12) < 5 * math.sqrt((1 / 80 - 1 / 144) / n)
    is_best(bayes, lambda value: objective(bayes, value, x, y, noise))


@pytest.mark.parametrize("method", ["auto", "mc"])
@pytest.mark.parametrize("k", [1, 3])
def test_tuning_twice_gives_the_same_variance(k, method):
    bayes, (x, y) = trained(k, predictive=method)
    first = bayes.tune(reference.loader(x, y)).prior_variance
    torch.manual_seed(123)
    bayes.prior_variance = 3.0
    assert bayes.tune(reference.loader(x, y)).prior_variance == first


def test_tuning_leaves_the_global_random_state_alone():
    bayes, (x, y) = trained(3, predictive="mc")
    before = torch.get_rng_state()
    bayes.tune(reference.loader(x, y))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
@pytest.mark.parametrize("k", [1, 3])
def test_evidence_finds_the_brute_force_optimum_without_data(k, structure):
    bayes, _ = trained(k, structure=structure)
    seen = inputs_seen(bayes.model)
    bayes.tune(objective="evidence")
    assert seen == []
    is_best(bayes, lambda value: -float(bayes.log_evidence(value)))


@pytest.mark.parametrize("k", [1, 3])
def test_tuning_takes_one_forward_pass_over_its_data(k):
    bayes, (x, y) = trained(k)
    seen = inputs_seen(bayes.model)
    bayes.tune(reference.loader(x, y, 25), objective="nll")
    assert [len(batch) for batch in seen] == [3, 25, 25, 10]  # the first are made up
    seen.clear()
    bayes.tune(reference.loader(x, y, 25), objective="ood", outliers=3 * x)
    assert sum(len(batch) for batch in seen[1:]) == 120
    seen.clear()
    once = (batch for batch in reference.loader(x, y, 25))
    bayes.tune(once, objective="ood", outliers=(3 * part for part in x.split(20)))
    assert [len(batch) for batch in seen] == [3, 25, 25, 10, 20, 20, 20]


def test_batch_sizes_do_not_change_the_tuned_variance(monkeypatch):
    bayes, (x, y) = trained(3)
    whole = bayes.tune([(x, y)], objective="ood", outliers=4 * x).prior_variance
    monkeypatch.setattr("bitbayes.posteriors.last_layer.STEP_NUMBERS", 3 * 10)
    parts = bayes.tune(
        reference.loader(x, y, 7), objective="ood", outliers=list((4 * x).split(9))
    ).prior_variance
    assert parts == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("k", [1, 3])
def test_an_optimum_on_the_edge_warns(k):
    bayes, (x, _) = trained(k)
    with torch.no_grad():
        right = bayes.model(x).argmax(1) if k > 1 else (bayes.model(x)[:, 0] > 0).long()
    with pytest.warns(EdgeWarning, match=r"1e-06, is the smallest of those tried: .* plain network"):
        bayes.tune([(x, right)], objective="nll")
    assert bayes.prior_variance == variance_grid(100)[0]
    with pytest.warns(EdgeWarning, match=r"1e\+10, is the largest of those tried: .* as uncertain as any"):
        bayes.tune([(x, (right + 1) % max(k, 2))], objective="nll")
    assert bayes.prior_variance == pytest.approx(1e10)


@pytest.mark.parametrize("objective", ["nll", "ood", "evidence"])
@pytest.mark.parametrize("residual", [False, True])
def test_the_edge_warning_points_at_the_callers_line(objective, residual):
    x, y = points()
    head = nn.Linear(4, 3)
    if objective == "evidence":  # weights of 0 have the largest evidence at the smallest variance
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    bayes = bb.Laplace(head, residual=residual).fit([(x, y)])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        bayes.tune([(x, head(x).argmax(1))], outliers=x, weight=numpy.float32(0), objective=objective)
    assert heard and all(each.category is EdgeWarning for each in heard)
    assert {each.filename for each in heard} == {__file__}


@pytest.mark.parametrize("outliers, says", [(5, "got int"), (torch.ones(3, 2).numpy(), "torch.from_numpy")])
def test_outliers_that_are_none_are_refused_before_the_validation_data_are_read(outliers, says):
    bayes, _ = trained(3)

    def never():
        raise AssertionError("the validation data were read")
        yield

    with pytest.raises(DataError, match=says):
        bayes.tune(never(), objective="ood", outliers=outliers)


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


def test_tuning_with_sampled_networks():
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
    assert len(calls) == 3  # once for the outputs at inputs that are made up


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


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("residual", [False, "auto"])
@pytest.mark.parametrize("objective", ["nll", "ood", "evidence"])
def test_all_but_calibrated_choose_the_prior_variance_alone(objective, residual):
    bayes, (x, y) = trained(3, residual=residual)
    before = bayes.tune([(x, y)]).settings
    bayes.prior_variance = 123.0
    bayes.tune([(x, y)], objective=objective)
    assert bayes.prior_variance != 123.0
    assert dataclasses.replace(bayes.settings, prior_variance=before.prior_variance) == before
    assert bayes.settings.has_residual == (residual == "auto") and bayes.temperature != 1


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", ["nll", "ood"])
def test_the_prior_variance_is_chosen_beside_the_temperature_and_the_residual_in_use(name, k):
    bayes, (x, y) = trained(k, residual=True)
    outliers = 6 * torch.randn(45, 2, dtype=torch.float64) if name == "ood" else None
    bayes.temperature, bayes.near_variance = 0.6, 0.3
    bayes.tune(reference.loader(x, y), objective=name, outliers=outliers)
    is_best(bayes, lambda value: objective(bayes, value, x, y, outliers))


@pytest.fixture(scope="module")
def embedded():
    data = digits()
    validation, test = validation_split(data.test_images[:1000], data.test_labels[:1000], 500, 0)
    train = (data.train_images[:1000], data.train_labels[:1000])
    plain, bayes = (bb.Laplace(digits_lenet(), residual=each).fit([train]) for each in (False, "auto"))
    bayes.tune([validation])
    return plain, bayes, validation, test


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("objective", ["nll", "ood"])
@pytest.mark.slow
def test_tuning_on_the_embedded_digits_keeps_accuracy_and_lowers_far_confidence(embedded, objective):
    plain, bayes, validation, (images, labels) = embedded
    plain.tune([validation], objective=objective)
    bayes.tune([validation], objective=objective)
    before, after = plain.predict_proba(images), bayes.predict_proba(images)
    assert abs(metrics.accuracy(after, labels) - metrics.accuracy(before, labels)) <= 0.001
    assert metrics.mmc(bayes.predict_proba(100 * images)) < 0.3
    assert metrics.mmc(bayes.predict_proba(2000 * images)) < 0.15
