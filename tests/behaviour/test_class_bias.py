"""The class bias: predictions are those of a Gaussian over logits with the mean (f + b)/T."""

import copy
import warnings
from dataclasses import replace

import numpy
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import bitbayes as bb
import dense
import reference
import several
from bitbayes.errors import ArgumentError, EdgeWarning, FewPointsWarning
from bitbayes.tuning.class_bias import best_class_bias
from bitbayes.tuning.costs import Costs
from bitbayes.tuning.points import kept_points
from bitbayes.tuning.request import TuningRequest
from classifiers import drawn, points, relu_mlp, trained
from reference import KAPPA, STRUCTURES

BIASES = {1: (0.7,), 3: (0.9, -0.2, -0.7), 10: tuple(torch.linspace(-1, 1, 10).double().tolist())}
METHODS = {1: ("probit", "quadrature"), **dict.fromkeys((3, 10), ("probit", "pairwise", "meanfield"))}


def numbers(values):
    return torch.tensor(values, dtype=torch.float64)


def with_bias(bayes, temperature=1.0):
    found = copy.copy(bayes)
    bias = BIASES[bayes.posterior.outputs]
    found.settings = replace(bayes.settings, class_bias=bias, temperature=temperature)
    return found


def moved(model, bias):
    """The network with b added to its last bias."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        found[-1].bias += torch.tensor(bias).to(found[-1].bias)
    return found


def expected_of(method, mean, covariance):
    if method == "quadrature":
        p = reference.sigmoid_expectation(float(mean[0]), float(covariance[0, 0]))
        return torch.tensor([1 - p, p], dtype=torch.float64)
    return getattr(reference, method)(mean, covariance)


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize(
    "k, structure", [*((k, structure) for k in (1, 3) for structure in STRUCTURES), (10, "kron")]
)
def test_predictions_are_those_of_dense_matrices(k, structure, temperature):
    bayes, x, y = reference.fitted(k, prior_variance=5.0, structure=structure)
    weights, features = reference.head_weights(bayes.model), reference.head_features(bayes.model, x)
    sigma = reference.covariance(structure, weights, features, y, 5.0)
    covariances = reference.logits_covariance(sigma, features[:6], k)
    means = (features[:6] @ weights.T + numbers(BIASES[k])) / temperature
    bayes = with_bias(bayes, temperature)
    for method in METHODS[k]:
        pairs = zip(means, covariances, strict=True)
        expected = torch.stack([expected_of(method, *each) for each in pairs])
        # What the dense inverses are good to.
        torch.testing.assert_close(bayes.predict_proba(x[:6], method=method), expected, rtol=0, atol=1e-8)
    gaussian = bayes.logits(x[:6])
    torch.testing.assert_close(gaussian.mean, means, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gaussian.covariance, covariances, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("predictive", ["auto", "sampled_networks"])
@pytest.mark.parametrize("name", ["one logit", "mlp"])
def test_over_all_layers_the_mean_alone_moves(name, predictive):
    bayes, model, x, _ = dense.fitted(name, "kron", prior_variance=0.05, predictive=predictive)
    bias = numbers(BIASES[bayes.posterior.outputs])
    found = with_bias(bayes, 0.5)
    torch.testing.assert_close(found.logits(x).covariance, bayes.logits(x).covariance, rtol=0, atol=0)
    own = model(x).detach()
    torch.testing.assert_close(found.logits(x).mean, (own + bias) / 0.5, rtol=1e-12, atol=1e-12)
    draws = found.sample(5, generator=torch.Generator().manual_seed(3))
    total = 0
    for number in range(5):
        each = functional_call(model, {key: part[number] for key, part in draws.items()}, (x,)).detach()
        logits = (own + bias) / 0.5 + (each - own)
        total = total + (logits if logits.shape[1] > 1 else torch.cat([0 * logits, logits], 1)).softmax(1) / 5
    if predictive == "sampled_networks":
        actual = found.predict_proba(x, samples=5, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(actual, total, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k", [1, 3])
def test_everything_but_the_score_follows_the_same_gaussian(layers, k, tmp_path):
    x, y = points(k=k, dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(k, torch.float64), layers=layers, residual=True).fit([(x, y)])
    found = with_bias(bayes, 0.5)
    bayes.temperature = 0.5
    probabilities = found.predict_proba(x)
    assert not torch.allclose(probabilities, bayes.predict_proba(x), atol=1e-2)
    logits = found(x).detach()
    logits = logits if k > 1 else torch.cat([torch.zeros_like(logits), logits], 1)
    torch.testing.assert_close(logits.softmax(1), probabilities, rtol=0, atol=1e-12)
    assert found.evaluate([(x, y)])["nll"] == pytest.approx(bb.metrics.nll(probabilities, y), rel=1e-9)
    torch.testing.assert_close(found.confidence(x), probabilities.amax(1))
    assert not torch.allclose(found.uncertainty(x).entropy, bayes.uncertainty(x).entropy, atol=1e-3)
    assert found.log_evidence() == bayes.log_evidence()
    # An input is no stranger because of how often its class occurs.
    torch.testing.assert_close(found.score(x), bayes.score(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.predict_and_score(x)[1], bayes.score(x), rtol=0, atol=1e-12)
    for name, share in bayes.explain(x).items():
        assert torch.equal(found.explain(x)[name], share)
    # Files, state dicts, and what is shown.
    found.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", found.model)
    other = bb.Laplace(found.model, layers=layers, residual=True)
    other.load_state_dict(found.state_dict())
    for each in (loaded, other):
        assert each.settings == found.settings and torch.equal(each.predict_proba(x), probabilities)
    assert f"class_bias=({BIASES[k][0]:.4g}" in repr(found) and "class_bias" not in repr(bayes)


@pytest.mark.parametrize("k, structure", [(1, "full"), (3, "full"), (3, "kron")])
def test_draws_of_the_head_have_the_bias(k, structure):
    bayes, _, _ = reference.fitted(k, prior_variance=5.0, structure=structure)
    bayes.temperature = 0.5
    draws, moves = (
        each.sample(3, generator=torch.Generator().manual_seed(0)) for each in (bayes, with_bias(bayes, 0.5))
    )
    (weight, bias) = sorted(draws, key=lambda name: -draws[name].dim())
    assert torch.equal(draws[weight], moves[weight])
    expected = draws[bias] + numbers(BIASES[k]) / 0.5
    torch.testing.assert_close(moves[bias], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
@pytest.mark.parametrize("k", [1, 3])
def test_graphs_hold_the_bias(kind, k, tmp_path):
    x, y = points(k=k)
    bayes = with_bias(bb.Laplace(relu_mlp(k), residual=True).fit([(x, y)]), 0.5)
    path = tmp_path / f"bayes.{kind}"
    bayes.export(path, x[:2], score=True)
    if kind == "onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        logits, score = map(torch.tensor, session.run(None, {session.get_inputs()[0].name: x.numpy()}))
    else:
        logits, score = torch.export.load(path).module()(x)
    torch.testing.assert_close(logits, bayes(x), rtol=0, atol=2e-5)
    torch.testing.assert_close(score, bayes.score(x), rtol=0, atol=2e-5)


# ---- far from the data


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k, method", [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "meanfield")])
def test_far_away_it_vanishes_and_certificates_know_it(layers, k, method, residual):
    x, y = points(k=k, dtype=torch.float64)
    options = {"layers": layers, "predictive": method, "residual": residual, "prior_variance": 10.0}
    bayes = bb.Laplace(relu_mlp(k, torch.float64), **options).fit([(x, y)])
    found, x = with_bias(bayes, 0.5), x[:8]
    bayes.temperature = 0.5
    torch.testing.assert_close(found.limit(x).confidence, bayes.limit(x).confidence, rtol=0, atol=1e-12)
    far = found.predict_proba(1e9 * x).amax(1)
    torch.testing.assert_close(far, found.limit(x).confidence, rtol=0, atol=2e-5)
    bound, certificate = found.bound(x), found.certify(x, at_most=0.9)
    assert bool((certificate.limit <= bound + 1e-9).all())
    places = torch.logspace(0, 4, 60).double()
    for place in places:
        beyond = found.predict_proba(x * (place * certificate.alpha)[:, None]).amax(1)
        assert bool((beyond <= certificate.confidence).all())
        if layers == "last" and not residual:
            assert bool((beyond <= bound + 1e-9).all())
        if bool((inside := certificate.beyond.isfinite()).any()):
            rows = x[inside] * (place * certificate.beyond[inside])[:, None]
            assert bool((found.predict_proba(rows).amax(1) <= 0.9 + 1e-9).all())
    if layers == "last" and not residual:  # near the data, too
        for place in torch.linspace(0, 3, 30).double():
            assert bool((found.predict_proba(place * x).amax(1) <= bound + 1e-9).all())


@pytest.mark.parametrize("form", ["tight", "theorem"])
@pytest.mark.parametrize("k, method", [(1, "probit"), (3, "pairwise")])
def test_the_bound_is_that_of_weights_with_another_bias(k, method, form):
    """The tight one is σ(√(μᵀΣ⁻¹μ/κ)) for one logit, μ with b, by dense matrices."""
    bayes, x, y = reference.fitted(k, prior_variance=5.0, structure="full", predictive=method, residual=False)
    weights, features = reference.head_weights(bayes.model), reference.head_features(bayes.model, x)
    sigma = reference.covariance("full", weights, features, y, 5.0)
    found, moves = with_bias(bayes, 0.5).bound(form=form), weights.clone()
    moves[:, -1] += numbers(BIASES[k])
    if k == 1:
        smallest = torch.linalg.eigvalsh(sigma)[0]
        mu = moves[0] / 0.5
        squared = mu @ torch.linalg.solve(sigma, mu) if form == "tight" else mu @ mu / smallest
        assert float(found) == pytest.approx(float((squared / KAPPA).sqrt().sigmoid()), rel=1e-9)
    else:
        assert float(found) > 1 / k and float(found) != float(bayes.bound(form=form))


def test_a_head_without_a_bias_says_what_it_cannot_do():
    x, y = points(dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    bayes = with_bias(bb.Laplace(model, prior_variance=2.0, residual=False).fit([(x, y)]))
    for call in (bayes.bound, lambda: bayes.sample(2)):
        with pytest.raises(ArgumentError, match="this one has none"):
            call()
    gaussian = bayes.logits(x)
    expected = model(x).detach() + numbers(BIASES[3])
    torch.testing.assert_close(gaussian.mean, expected, rtol=1e-12, atol=1e-12)
    assert bayes.certify(x[:3]).confidence.shape == bayes.limit(x[:3]).confidence.shape == (3,)


# ---- choosing it


def costs_of(bayes, x, y, method, weights=None):
    loader = [(x, y)] if weights is None else [(x, y, weights)]
    request = TuningRequest(
        bayes.posterior, None, bayes.settings, method, loader, weighted=weights is not None
    )
    return Costs(
        kept_points(bayes.posterior, request.validation_batches()), bayes.posterior.likelihood, method
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "k, method",
    [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "probit"), (3, "meanfield"), (3, "mc")],
)
def test_the_best_bias_is_that_of_another_optimiser(k, method, weighted):
    """Against SciPy's Nelder and Mead, on the predictions of a `Laplace` with each bias."""
    bayes, (x, y) = trained(k, residual=False, prior_variance=2.0)
    weights = torch.rand(len(x)).double() if weighted else torch.ones(len(x)).double()
    bayes.temperature, log_neutral = 0.8, -0.1
    unit = 0.8 * numpy.exp(0.1)
    found = numbers(
        best_class_bias(
            costs_of(bayes, x, y, method, weights if weighted else None), k, bayes.settings, log_neutral
        )
    )
    if k > 1:
        assert abs(float(found.sum())) < 1e-6

    def cost(beta):
        if method == "mc":
            gaussian = bayes.logits(x)
            mean = gaussian.scaled_mean + torch.tensor(beta * unit / 0.8) / gaussian.scale[:, None]
            generator = torch.Generator().manual_seed(0)
            drop_in = bayes.posterior.likelihood.predict_by_draws(
                replace(gaussian, scaled_mean=mean), 100, generator
            )
            losses = functional.cross_entropy(drop_in, y, reduction="none")
        else:
            other = copy.copy(bayes)
            other.settings = replace(bayes.settings, class_bias=tuple(beta * unit))
            p = other.predict_proba(x, method=method)
            losses = -p.gather(1, y[:, None])[:, 0].log()
        return float(weights @ losses) + 8 * float((beta**2).sum())

    start = found.numpy() / unit
    best = minimize(
        cost, numpy.zeros(k), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-11, "maxiter": 4000}
    )
    assert cost(start) <= best.fun + 1e-6 and numpy.abs(start - best.x).max() < 1e-3


@pytest.mark.parametrize(
    "k, options", [(1, {}), (3, {}), (3, {"predictive": "meanfield"}), (3, {"layers": "all"})]
)
def test_a_shift_of_the_networks_bias_is_found(k, options):
    """Many points, of which half are for tuning: the NLL is that of the network without the shift."""
    shift = numbers({1: (1.5,), 3: (1.5, 0.0, -1.5)}[k])
    bayes, _ = trained(k, **options)
    x, y = drawn(bayes.model, 4000)
    straight = bb.Laplace(bayes.model, **options).fit([(x, y)]).tune([(x[:2000], y[:2000])])
    model = moved(bayes.model, shift.tolist())
    bent = bb.Laplace(model, **options).fit([(x, y)]).tune([(x[:2000], y[:2000])])
    found = copy.copy(bent).tune([(x[:2000], y[:2000])], class_bias=True)
    assert bent.settings.class_bias is None
    bias = numbers(found.settings.class_bias)
    torch.testing.assert_close(bias, -shift, rtol=0, atol=0.3)
    before, after, goal = (each.evaluate([(x[2000:], y[2000:])])["nll"] for each in (bent, found, straight))
    assert after < goal + 0.1 * (before - goal)
    assert found.temperature == pytest.approx(straight.temperature, rel=0.1)


def test_labels_of_several_get_one_each():
    torch.manual_seed(0)
    model = relu_mlp(3, torch.float64)
    x = torch.randn(3000, 4).double()
    shift = torch.tensor([1.0, 0.0, -1.0]).double()
    with torch.no_grad():
        y = torch.bernoulli((2 * model(x) - shift).sigmoid()).long()
    bayes = bb.Laplace(model, likelihood="multilabel").fit([(x, y)])
    found = copy.copy(bayes).tune([(x, y)], class_bias=True)
    bias = numbers(found.settings.class_bias) / found.temperature
    assert len(bias) == 3 and bool((bias[:-1] > bias[1:]).logical_not().all())
    assert found.evaluate([(x, y)])["nll"] < bayes.tune([(x, y)]).evaluate([(x, y)])["nll"] - 0.05


@pytest.mark.parametrize("count", [1, 5, 20])
def test_with_few_points_it_stays_near_zero_and_never_costs_much(count):
    bayes, _ = trained(3)
    x, y = drawn(bayes.model, 3000)
    passed, ratios = bb.PassedPoints.of(bayes, [(x, y)]), []
    for seed in range(10):
        few = passed.select(torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:count])
        plain, biased = (few.tune(class_bias=each) for each in (False, True))
        # |∂NLL/∂β| ≤ 1 for each point, and the prior pulls back with 16β.
        most = count / 16 * biased.temperature * 1.5
        assert max(map(abs, biased.class_bias)) <= most
        ratios.append([bb.metrics.nll(passed.predict(each)[0], y) for each in (plain, biased)])
    plain, biased = numpy.array(ratios).T
    assert (biased / plain).mean() <= 1.01 and (biased / plain).max() <= 1.05


def test_integer_weights_are_repeated_rows():
    bayes, (x, y) = trained(3, n=80)
    weights = torch.arange(80) % 3
    found, wanted = copy.copy(bayes), copy.copy(bayes)
    found.tune([(x, y, weights)], weighted=True, class_bias=True)
    wanted.tune([(x.repeat_interleave(weights, 0), y.repeat_interleave(weights, 0))], class_bias=True)
    assert found.settings.class_bias == pytest.approx(wanted.settings.class_bias, abs=1e-6)


def joint(rank, size):
    with bb.process_group(None):  # each fits by itself
        bayes, (x, y) = trained(3, n=90)
    rows = slice(rank * 50, 50 + rank * 40) if size > 1 else slice(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        return bayes.tune([(x[rows], y[rows])], class_bias=True).settings


def test_processes_choose_it_together():
    alone, (one, other) = joint(0, 1), several.run(2, joint)
    assert one == other
    assert one.class_bias == pytest.approx(alone.class_bias, abs=1e-6)


def test_inference_mode_and_other_objectives():
    bayes, (x, y) = trained(3, n=80)
    wanted = copy.copy(bayes).tune([(x, y)], class_bias=True).settings
    with torch.inference_mode():
        found = copy.copy(bayes).tune([(x, y)], class_bias=True)
    assert found.settings == wanted
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        kept = copy.copy(found).tune([(x, y)], objective="nll")
    assert kept.settings.class_bias == wanted.class_bias
    assert copy.copy(found).tune([(x, y)]).settings.class_bias is None


@pytest.mark.parametrize("objective", ["nll", "ood", "evidence"])
def test_only_the_default_objective_chooses_it(objective):
    bayes, (x, y) = trained(3)
    before = bayes.settings
    with pytest.raises(ArgumentError, match="class_bias=True needs"):
        bayes.tune([(x, y)], objective=objective, class_bias=True)
    assert bayes.settings == before


@pytest.mark.parametrize("likelihood", ["gaussian", "heteroscedastic", "preference"])
def test_values_and_preferences_have_none(likelihood):
    torch.manual_seed(0)
    k = 2 if likelihood == "heteroscedastic" else 1
    x, model = torch.randn(40, 4).double(), relu_mlp(k, torch.float64)
    y = torch.randn(40, 1).double()
    loader = [((x, -x), torch.arange(40) % 2)] if likelihood == "preference" else [(x, y)]
    bayes = bb.Laplace(model, likelihood=likelihood).fit(loader)
    before = bayes.settings
    with pytest.raises(ArgumentError, match="no classes that could each get a bias"):
        bayes.tune(loader, class_bias=True)
    with pytest.raises(ArgumentError, match="no classes that could each get a bias"):
        bayes.settings = replace(before, class_bias=(1.0,) * k)
    assert bayes.settings == before


@pytest.mark.parametrize("wrong", [(1.0,), (1.0, 2.0), (1.0,) * 4])
def test_its_length_is_checked(wrong):
    bayes, _ = trained(3)
    with pytest.raises(ArgumentError, match="expected one for each of 3"):
        bayes.settings = replace(bayes.settings, class_bias=wrong)


@pytest.mark.parametrize("wrong", ["abc", 1.0, (), (1.0, float("nan")), ("a",), torch.ones(2, 2)])
def test_only_numbers_are_a_bias(wrong):
    with pytest.raises(ArgumentError, match="class_bias="):
        bb.Settings(class_bias=wrong)


def test_a_few_points_still_warn():
    bayes, (x, y) = trained(3)
    with pytest.warns(FewPointsWarning):
        bayes.tune([(x[:9], y[:9])], class_bias=True)
