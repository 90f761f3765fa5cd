"""Weights of examples: a point with the weight w counts as w points, in every sum and mean."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import bitbayes as bb
import dense
import several
from bitbayes.callbacks import fit_and_tune
from bitbayes.errors import (
    ArgumentError,
    DataError,
    EmptyLoaderError,
    FileError,
    UnusedDataWarning,
)

# Labels are drawn at random, and so is what they say about the prior.
pytestmark = pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")

STRUCTURES = ("full", "kron", "diag", "isotropic")
# The number of outputs of each likelihood.
LIKELIHOODS = {"categorical": 3, "bernoulli": 1, "gaussian": 2, "heteroscedastic": 2, "multilabel": 3}
# Sums of weights and of repeated rows are added in another order.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def network(k):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, k)).double()


def data(likelihood, n=40):
    """Inputs, labels, and integer weights of which some are 0."""
    x, k = torch.randn(n, 4).double(), LIKELIHOODS[likelihood]
    y = torch.randint(0, max(k, 2), (n,))
    if likelihood in ("gaussian", "heteroscedastic"):
        y = torch.randn(n, 1 if likelihood == "heteroscedastic" else k).double()
    elif likelihood == "multilabel":
        y = torch.randint(0, 2, (n, k))
    weights = torch.randint(0, 4, (n,))
    weights[:3] = torch.tensor([0, 1, 3])
    return x, y, weights


def batches(*columns, size=7):
    return list(zip(*(torch.split(each, size) for each in columns), strict=True))


def repeated(x, y, weights):
    return x.repeat_interleave(weights, 0), y.repeat_interleave(weights, 0)


def laplace(model, likelihood, **options):
    return bb.Laplace(model, likelihood=likelihood, prior_variance=2.0, **options)


def assert_same(found, wanted, x):
    """The same sums, evidence and predictions."""
    mine, theirs = found.posterior.fitted, wanted.posterior.fitted
    for name, curvature in theirs.curvature.items():
        for part, tensor in curvature.tensors().items():
            torch.testing.assert_close(mine.curvature[name].tensors()[part], tensor, **CLOSE)
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-10)
    assert mine.total_weight == pytest.approx(theirs.total_weight, rel=1e-12)
    assert mine.squared_errors == pytest.approx(theirs.squared_errors, rel=1e-10)
    for name, sums in theirs.level_sums.items():
        for part, tensor in sums.tensors().items():
            size = max(1.0, float(tensor.abs().max())) if tensor.numel() else 1.0
            torch.testing.assert_close(
                mine.level_sums[name].tensors()[part], tensor, rtol=1e-9, atol=1e-11 * size
            )
    if found.structure != "isotropic":
        torch.testing.assert_close(found.log_evidence(), wanted.log_evidence(), **CLOSE)
    if mine.likelihood.has_noise:
        assert found.noise_variance == pytest.approx(wanted.noise_variance, rel=1e-10)
    gaussian, other = found.logits(x), wanted.logits(x)
    torch.testing.assert_close(gaussian.covariance, other.covariance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("size", [40, 7, 1])
def test_integer_weights_are_repeated_rows(structure, likelihood, size):
    model, (x, y, weights) = network(LIKELIHOODS[likelihood]), data(likelihood)
    options = {"structure": structure, "residual": True}
    found = laplace(model, likelihood, **options).fit(batches(x, y, weights, size=size), weighted=True)
    wanted = laplace(model, likelihood, **options).fit(batches(*repeated(x, y, weights)))
    assert_same(found, wanted, 3 * x)


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian", "multilabel"])
@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_over_all_layers_too(structure, likelihood):
    model, (x, y, weights) = network(LIKELIHOODS[likelihood]), data(likelihood)
    options = {"structure": structure, "layers": "all"}
    found = laplace(model, likelihood, **options).fit(batches(x, y, weights), weighted=True)
    wanted = laplace(model, likelihood, **options).fit(batches(*repeated(x, y, weights)))
    assert_same(found, wanted, 3 * x)


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_convolutions_and_norms_over_all_layers(structure):
    model = dense.convnet().double().eval()
    x, y, weights = torch.randn(20, 1, 6, 6).double(), torch.arange(20) % 3, torch.arange(20) % 4
    options = {"structure": structure, "layers": "all", "residual": False}
    found = laplace(model, "auto", **options).fit(batches(x, y, weights), weighted=True)
    wanted = laplace(model, "auto", **options).fit(batches(*repeated(x, y, weights)))
    assert_same(found, wanted, x)


def test_the_curvature_is_that_of_a_loop_over_points():
    """H = Σ w Λ ⊗ φ̃φ̃ᵀ with weights that are no integers."""
    model, (x, y, _) = network(3), data("categorical")
    weights = torch.rand(len(x)).double()
    found = laplace(model, "categorical", structure="full").fit(batches(x, y, weights), weighted=True)
    with torch.no_grad():
        features, p = model[:2](x), model(x).softmax(1)
        losses = functional.cross_entropy(model(x), y, reduction="none")
    hessian = torch.zeros(18, 18).double()
    for phi, own, weight in zip(features, p, weights, strict=True):
        full = torch.cat([phi, phi.new_ones(1)])
        hessian += weight * torch.kron(own.diag() - own.outer(own), full.outer(full))
    covariance = (hessian + torch.eye(18) / 2).inverse()
    row = torch.cat([features[0], torch.ones(1)]).double()
    j = torch.kron(torch.eye(3).double(), row[None])
    torch.testing.assert_close(found.logits(x[:1]).covariance[0], j @ covariance @ j.T, rtol=1e-9, atol=1e-12)
    assert found.posterior.fitted.loss == pytest.approx(float(weights @ losses), rel=1e-12)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_update_and_merge_add_weighted_points(structure):
    x, y, weights = data("gaussian")
    model, first, second = network(2), slice(0, 25), slice(25, 40)
    wanted = laplace(model, "gaussian", structure=structure).fit(batches(*repeated(x, y, weights)))

    def part(rows):
        made = laplace(model, "gaussian", structure=structure)
        return made.fit(batches(x[rows], y[rows], weights[rows]), weighted=True)

    updated = part(first).update(batches(x[second], y[second], weights[second]), weighted=True)
    mixed = part(first).update(batches(*repeated(x[second], y[second], weights[second])))
    merged = bb.merge([part(first), part(second)])
    for found in (updated, mixed, merged):
        assert_same(found, wanted, x)
    if structure == "isotropic":
        return
    left = bb.merge(merged, without=part(second))
    expected = part(first)
    assert left.posterior.fitted.total_weight == expected.posterior.fitted.total_weight
    torch.testing.assert_close(
        left.logits(x).covariance, expected.logits(x).covariance, rtol=1e-8, atol=1e-11
    )


def test_points_with_fractions_of_weights_can_be_taken_out():
    """Sums of weights of a class are rounded, and 0.1 + 0.2 − 0.2 − 0.1 is not 0."""
    x, _, _ = data("categorical")
    y, weights = torch.zeros(40).long(), torch.full((40,), 0.1).double()
    y[20:] = 1 + torch.arange(20) % 2
    model, rows = network(3), (slice(0, 20), slice(20, 40))
    parts = [
        laplace(model, "categorical", structure="kron", residual=True).fit(
            batches(x[own], y[own], weights[own]), weighted=True
        )
        for own in rows
    ]
    left = bb.merge(bb.merge(parts), without=parts[1])
    assert left.posterior.fitted.level_sums["head"].class_counts[1:].tolist() == [0, 0]
    torch.testing.assert_close(
        left.logits(x).covariance, parts[0].logits(x).covariance, rtol=1e-8, atol=1e-11
    )


@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_weights_of_zero_leave_points_out(structure):
    x, y, _ = data("categorical")
    weights, model = torch.ones(40), network(3)
    weights[5:12] = 0
    kept = weights > 0
    found = laplace(model, "auto", structure=structure).fit(batches(x, y, weights), weighted=True)
    assert_same(found, laplace(model, "auto", structure=structure).fit(batches(x[kept], y[kept])), x)


def test_weights_of_one_are_no_weights_and_others_are_other_data():
    x, y, weights = data("categorical")
    model = network(3)
    plain = laplace(model, "auto").fit(batches(x, y))
    ones = laplace(model, "auto").fit(batches(x, y, torch.ones(40)), weighted=True)
    other = laplace(model, "auto").fit(batches(x, y, weights), weighted=True)
    again = laplace(model, "auto").fit(batches(x, y, weights.double(), size=9), weighted=True)
    entries = [each.posterior.fitted.entries for each in (plain, ones, other, again)]
    assert entries[0] == entries[1] != entries[2] == entries[3]
    with pytest.raises(DataError, match="count twice"):
        bb.merge([other, again])


def test_mappings_and_adapters_may_have_weights():
    x, y, weights = data("categorical")
    model = network(3)
    wanted = laplace(model, "auto").fit(batches(x, y, weights), weighted=True)
    mapping = [{"x": x, "labels": y, "weight": weights.tolist()}]

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = model

        def forward(self, x):
            return self.inside(x)

    found = laplace(Named(), "auto").fit(mapping, weighted=True)
    torch.testing.assert_close(found.logits(x).covariance, wanted.logits(x).covariance, rtol=1e-9, atol=1e-12)
    adapted = laplace(model, "auto", adapt=lambda batch: (batch["a"], batch["b"], batch["c"]))
    assert_same(adapted.fit([{"a": x, "b": y, "c": weights}], weighted=True), wanted, x)


def test_all_positions_of_an_input_have_its_weight():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y, weights = torch.randn(12, 6, 4).double(), torch.randint(0, 3, (12, 6)), torch.arange(12) % 3
    y[:, 4] = -100
    found = laplace(model, "auto").fit(batches(x, y, weights, size=5), weighted=True)
    wanted = laplace(model, "auto").fit(batches(*repeated(x, y, weights), size=5))
    assert_same(found, wanted, x)
    found.tune(batches(x, y, weights, size=5), weighted=True, objective="nll")
    wanted.tune(batches(*repeated(x, y, weights), size=5), objective="nll")
    assert found.prior_variance == wanted.prior_variance


def joint_fit(rank, size, likelihood):
    """Each process has a share with weights; the second share may be all of weight 0."""
    torch.manual_seed(0)
    model, (x, y, weights) = network(LIKELIHOODS[likelihood]), data(likelihood)
    rows = slice(rank * 25, 25 + rank * 15) if size > 1 else slice(None)
    bayes = laplace(model, likelihood, structure="kron")
    bayes.fit(batches(x[rows], y[rows], weights[rows]), weighted=True)
    bayes.tune(batches(x[rows], y[rows], weights[rows]), weighted=True)
    fitted = bayes.posterior.fitted
    tensors = fitted.curvature["2"].tensors()
    return tensors, fitted.total_weight, fitted.entries, fitted.squared_errors, bayes.settings


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_two_processes_add_their_weighted_shares(likelihood):
    alone = joint_fit(0, 1, likelihood)
    for tensors, weight, entries, errors, settings in several.run(2, joint_fit, likelihood):
        for name, each in tensors.items():
            torch.testing.assert_close(each, alone[0][name], **CLOSE)
        assert (weight, entries) == alone[1:3]
        assert errors == pytest.approx(alone[3], rel=1e-10)
        assert settings.prior_variance == alone[4].prior_variance
        assert settings.temperature == pytest.approx(alone[4].temperature, rel=1e-6)


# ---- tuning


def assert_same_settings(found, wanted):
    mine, theirs = found.as_json(), wanted.as_json()
    for name, value in theirs.items():
        assert mine[name] == (None if value is None else pytest.approx(value, rel=1e-8, abs=1e-12)), name


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("objective", ["calibrated", "nll"])
def test_tuning_with_integer_weights_is_tuning_with_repeated_rows(objective, layers):
    """All numbers: those of the residual and the score are medians, quantiles and deviations."""
    x, y, weights = data("categorical", n=80)
    model = network(3)
    found, wanted = (laplace(model, "auto", layers=layers).fit([(x, y)]) for _ in range(2))
    found.tune(batches(x, y, weights), objective=objective, weighted=True)
    wanted.tune(batches(*repeated(x, y, weights)), objective=objective)
    assert_same_settings(found.settings, wanted.settings)


def test_the_weighted_nll_is_that_of_a_loop():
    """The prior of "nll" has the least Σ w·NLL of all candidates."""
    x, y, weights = data("categorical", n=80)
    model = network(3)
    with torch.no_grad():
        model[2].weight *= 5
        y = torch.distributions.Categorical(logits=model(x) / 3).sample()
    bayes = laplace(model, "auto", structure="kron", residual=False).fit([(x, y)])
    weights = weights.double().square()
    candidates = bayes.posterior.candidates()
    losses = []
    for value in candidates:
        bayes.prior_variance = value
        log_p = bayes.predict_proba(x).log()
        losses.append(sum(float(-w * row[label]) for w, row, label in zip(weights, log_p, y, strict=True)))
    bayes.tune(batches(x, y, weights), objective="nll", weighted=True)
    assert losses[candidates.index(bayes.prior_variance)] <= min(losses) + 1e-9


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_validation_points_without_weight_are_left_out(likelihood):
    x, y, weights = data(likelihood, n=80)
    model, weights = network(LIKELIHOODS[likelihood]), (weights > 0).double()
    kept = weights > 0
    found, wanted = (laplace(model, likelihood, structure="kron").fit([(x, y)]) for _ in range(2))
    found.tune(batches(x, y, weights), weighted=True)
    wanted.tune(batches(x[kept], y[kept]))
    mine, theirs = (each.settings.as_json() for each in (found, wanted))
    for name, value in theirs.items():
        assert mine[name] == (None if value is None else pytest.approx(value, rel=1e-6)), name


def test_the_noise_variance_is_a_weighted_mean():
    """σ² = Σ w (y − f)²/(1 + r) / (Σ w + 1), and one further point for the training data."""
    x, y, weights = data("gaussian", n=80)
    weights = weights.double() / 3
    bayes = laplace(network(2), "gaussian", residual=False).fit(batches(x, y, weights), weighted=True)
    training = torch.tensor(bayes.noise_variance, dtype=torch.float64)
    errors = (y - bayes.predict(x).mean).square()
    torch.testing.assert_close(training, weights @ errors / weights.sum(), **CLOSE)
    bayes.tune(batches(x, y, weights), weighted=True)
    predicted = bayes.predict(x)
    spread = 1 + predicted.variance / predicted.noise_variance
    expected = (weights @ (errors / spread) + training) / (weights.sum() + 1)
    torch.testing.assert_close(
        torch.tensor(bayes.noise_variance, dtype=torch.float64), expected, rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian", "heteroscedastic", "multilabel"])
def test_so_is_tuning_of_other_likelihoods(likelihood):
    x, y, weights = data(likelihood, n=80)
    model = network(LIKELIHOODS[likelihood])
    found, wanted = (laplace(model, likelihood, structure="kron").fit([(x, y)]) for _ in range(2))
    found.tune(batches(x, y, weights), weighted=True)
    wanted.tune(batches(*repeated(x, y, weights)))
    assert_same_settings(found.settings, wanted.settings)


def test_points_that_passed_once_keep_their_weights():
    x, y, weights = data("categorical", n=80)
    bayes = laplace(network(3), "auto").fit([(x, y)])
    found = bb.PassedPoints.of(bayes, batches(x, y, weights), weighted=True)
    wanted = bb.PassedPoints.of(bayes, batches(*repeated(x, y, weights)))
    assert len(found) == int((weights > 0).sum()) and len(wanted) == int(weights.sum())
    assert_same_settings(found.tune(), wanted.tune())
    some = torch.arange(10)
    few = repeated(some, some, weights[weights > 0][:10])[0]
    rows = (weights > 0).nonzero()[:10, 0]
    again = bb.PassedPoints.of(bayes, [(x[rows][few], y[rows][few])])
    assert_same_settings(found.select(some).tune(), again.tune())


# ---- measuring


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli"])
def test_measures_with_integer_weights_are_those_of_repeated_rows(likelihood):
    x, y, weights = data(likelihood, n=80)
    bayes = laplace(network(LIKELIHOODS[likelihood]), likelihood, residual=True).fit([(x, y)])
    # Some inputs twice, with other labels: equal scores.
    x[60:] = x[:20]
    sets = {"far": 2 * x, "near": x[:30] + 0.1}
    for by in ("score", "confidence"):
        found = bayes.evaluate(batches(x, y, weights), outliers=sets, by=by, weighted=True)
        wanted = bayes.evaluate(batches(*repeated(x, y, weights)), outliers=sets, by=by)
        assert found == pytest.approx(wanted, abs=1e-10)
        # No weights are weights of 1, and only their ratios matter, but for "aurc".
        ones = bayes.evaluate(batches(x, y, torch.ones(80)), outliers=sets, by=by, weighted=True)
        assert ones == pytest.approx(bayes.evaluate(batches(x, y), outliers=sets, by=by), abs=1e-10)
        scaled = bayes.evaluate(batches(x, y, weights.double() / 7), outliers=sets, by=by, weighted=True)
        del scaled["aurc"], found["aurc"]
        assert scaled == pytest.approx(found, abs=1e-10)


@pytest.mark.parametrize("likelihood", ["gaussian", "multilabel"])
def test_other_measures_have_no_weights(likelihood):
    x, y, weights = data(likelihood)
    bayes = laplace(network(LIKELIHOODS[likelihood]), likelihood).fit([(x, y)])
    with pytest.raises(ArgumentError, match="weighted=True, likelihood="):
        bayes.evaluate([(x, y, weights)], weighted=True)


@pytest.mark.parametrize("wrong", [torch.ones(3), torch.zeros(2), torch.tensor([1.0, -1.0]), [1.0, 1.0]])
def test_wrong_weights_of_a_measure_are_told(wrong):
    with pytest.raises(DataError, match="weights"):
        bb.metrics.accuracy(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), weights=wrong)


# ---- training


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_training_with_integer_weights_is_training_with_repeated_rows(likelihood):
    """In one batch for each epoch, where both have the same gradients."""
    (x, y, weights), model = data(likelihood), network(LIKELIHOODS[likelihood])
    results = []
    for loader, weighted in (([(x, y, weights)], True), ([repeated(x, y, weights)], False)):
        own = copy.deepcopy(model)
        adam = torch.optim.Adam(own.parameters(), lr=0.01)
        options = {"epochs": 6, "burn_in": 2, "every": 2, "likelihood": likelihood}
        results.append(bb.train_by_evidence(own, loader, adam, weighted=weighted, **options))
    found, wanted = results
    assert found.losses == pytest.approx(wanted.losses, rel=1e-8)
    assert found.evidences == pytest.approx(wanted.evidences, rel=1e-8)
    assert found.prior_variance == pytest.approx(wanted.prior_variance, rel=1e-8)
    for mine, theirs in zip(found.laplace.model.parameters(), wanted.laplace.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-8)


def test_the_step_of_the_callbacks_takes_weights():
    x, y, weights = data("categorical", n=80)
    model = network(3)
    found = fit_and_tune(model, {}, [(x, y, weights)], [(x, y, weights)], weighted=True)
    wanted = fit_and_tune(model, {}, [repeated(x, y, weights)], [repeated(x, y, weights)])
    assert_same_settings(found.settings, wanted.settings)


# ---- files


def test_files_and_checkpoints_keep_the_weights(tmp_path):
    x, y, weights = data("gaussian")
    weights = weights / 7
    model = network(2)
    bayes = laplace(model, "gaussian").fit(batches(x, y, weights), weighted=True)
    bayes.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    assert loaded.posterior.fitted.total_weight == bayes.posterior.fitted.total_weight
    assert loaded.log_evidence() == bayes.log_evidence() and loaded.noise_variance == bayes.noise_variance
    restored = laplace(copy.deepcopy(model), "gaussian")
    restored.load_state_dict(bayes.state_dict())
    assert restored.log_evidence() == bayes.log_evidence()


def interrupted(loader, after):
    """A list of batches that fails when it is first gone through."""

    class Loader(list):
        def __iter__(self):
            for number, batch in enumerate(super().__iter__()):
                if number == after:
                    raise KeyboardInterrupt
                yield batch

    return Loader(loader)


def test_an_interrupted_fit_keeps_its_weights(tmp_path, monkeypatch):
    monkeypatch.setattr("bitbayes.io.checkpoint.SECONDS", 0)
    monkeypatch.setattr("bitbayes.io.checkpoint.PAUSE", 0)
    monkeypatch.setattr("bitbayes.fitting.last_layer.FIT_BYTES", 1)
    x, y, weights = data("gaussian")
    weights, model = weights / 7, network(2)
    parts = batches(x, y, weights)
    with pytest.raises(KeyboardInterrupt):
        laplace(model, "gaussian").fit(interrupted(parts, 3), weighted=True, checkpoint=tmp_path)
    with pytest.raises(FileError, match="weighted=True"):
        laplace(model, "gaussian").fit(parts, checkpoint=tmp_path)
    found = laplace(model, "gaussian").fit(parts, weighted=True, checkpoint=tmp_path)
    assert_same(found, laplace(model, "gaussian").fit(parts, weighted=True), x)


# ---- mistakes


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("method", ["fit", "update", "tune"])
@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (torch.tensor([1.0, -0.5, 1, 1]), "a weight is -0.5"),
        (torch.tensor([1.0, math.nan, 1, 1]), "a weight is nan"),
        (torch.tensor([1.0, math.inf, 1, 1]), "a weight is inf"),
        (torch.ones(4, 1), r"shape \(4, 1\)"),
        (torch.ones(3), r"shape \(3,\)"),
        (torch.ones(4) + 0j, "real numbers"),
        (["a", "b", "c", "d"], "the weights are list"),
        (torch.zeros(4), "all weights are 0"),
    ],
)
def test_wrong_weights_change_nothing(weights, words, method, layers):
    x, y = torch.randn(4, 4).double(), torch.arange(4) % 3
    bayes = laplace(network(3), "auto", layers=layers).fit([(x, y)])
    before, settings = bayes.posterior, bayes.settings
    with pytest.raises(DataError, match=words):
        getattr(bayes, method)([(x, y, weights)], weighted=True)
    assert bayes.posterior is before and bayes.settings == settings


@pytest.mark.parametrize("method", ["fit", "update", "tune"])
def test_batches_without_weights_are_told(method):
    x, y = torch.randn(4, 4).double(), torch.arange(4) % 3
    bayes = laplace(network(3), "auto").fit([(x, y)])
    for batch in ((x, y), {"x": x, "labels": y}, [x], x):
        with pytest.raises(DataError, match="weighted=True needs the weight of each point"):
            getattr(bayes, method)([batch], weighted=True)


def test_without_weighted_a_third_part_is_left_out():
    x, y, weights = data("categorical")
    model = network(3)
    with pytest.warns(UnusedDataWarning, match="left"):
        found = laplace(model, "auto").fit([(x, y, weights)])
    assert_same(found, laplace(model, "auto").fit([(x, y)]), x)


def test_a_sketch_takes_no_weights():
    x, y, weights = data("categorical")
    with pytest.raises(ArgumentError, match="weighted=True does not fit structure='lowrank'"):
        laplace(network(3), "auto", structure="lowrank").fit([(x, y, weights)], weighted=True)


def test_pairs_take_no_weights():
    x, _, weights = data("categorical")
    bayes = bb.Laplace(network(1), likelihood="preference")
    with pytest.raises(DataError, match="not for pairs"):
        bayes.fit([((x[:20], x[20:]), torch.ones(20).long(), weights[:20])], weighted=True)


def test_weights_of_zero_in_every_batch_but_one():
    """Sums over points without weight are sums over none, and divide by nothing."""
    x, y, _ = data("categorical")
    weights = torch.zeros(40)
    weights[20:] = 1
    model = network(3)
    found = laplace(model, "auto", residual=True).fit(batches(x, y, weights, size=4), weighted=True)
    assert_same(found, laplace(model, "auto", residual=True).fit(batches(x[20:], y[20:])), x)
    with pytest.raises(EmptyLoaderError):
        found.update(batches(x, y, torch.zeros(40)), weighted=True)
