"""The temperature: every prediction is that of a Gaussian over logits with mean/T and the same covariance."""

import math

import pytest
import torch
from torch.func import functional_call

import bitbayes as bb
import dense
import reference
from bitbayes.errors import ArgumentError
from classifiers import points, relu_mlp
from reference import KAPPA, STRUCTURES

COLD, HOT = 0.3, 4.0
METHODS = {
    1: ("probit", "quadrature"),
    **dict.fromkeys((3, 10), ("probit", "pairwise", "meanfield", "bridge")),
}


def quadrature(mean, covariance):
    p = reference.sigmoid_expectation(float(mean[0]), float(covariance[0, 0]))
    return torch.tensor([1 - p, p], dtype=torch.float64)


LOOPS = {
    "probit": reference.probit,
    "pairwise": reference.pairwise,
    "meanfield": reference.meanfield,
    "bridge": reference.bridge,
    "quadrature": quadrature,
}


def last_layer(structure, k):
    """A Laplace, some inputs, and the Gaussian over their logits by dense matrices: means and covariances."""
    bayes, x, y = reference.fitted(k, prior_variance=5.0, structure=structure)
    weights, features = reference.head_weights(bayes.model), reference.head_features(bayes.model, x)
    sigma = reference.covariance(structure, weights, features, y, 5.0)
    covariances = reference.logits_covariance(sigma, features[:6], k)
    return bayes, x[:6], features[:6] @ weights.T, covariances


def all_layers(structure, name):
    bayes, model, x, y = dense.fitted(name, structure, prior_variance=5.0)
    covariances = dense.logits_covariance(model, dense.covariance(structure, model, x, y, 5.0), x[:6])
    return bayes, x[:6], model(x[:6]).detach(), covariances


def compare(bayes, x, means, covariances):
    for temperature in (COLD, HOT):
        bayes.temperature = temperature
        for method in METHODS[means.shape[1]]:
            expected = torch.stack(
                [LOOPS[method](m / temperature, c) for m, c in zip(means, covariances, strict=True)]
            )
            # What the dense inverses are good to; the closed forms themselves are good to 1e-14.
            torch.testing.assert_close(bayes.predict_proba(x, method=method), expected, rtol=0, atol=1e-8)
        gaussian = bayes.logits(x)
        torch.testing.assert_close(gaussian.mean, means / temperature, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gaussian.covariance, covariances, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "k, structure", [*((k, structure) for k in (1, 3) for structure in STRUCTURES), (10, "kron")]
)
def test_predictions_of_the_last_layer_are_those_of_the_mean_divided(k, structure):
    compare(*last_layer(structure, k))


@pytest.mark.parametrize("structure", ["diag", "full"])
@pytest.mark.parametrize("name", ["one logit", "mlp"])
def test_predictions_over_all_layers_are_those_of_the_mean_divided(name, structure):
    compare(*all_layers(structure, name))


def test_the_kronecker_covariance_over_all_layers_knows_no_temperature():
    bayes, _, x, _ = dense.fitted("mlp", "kron", prior_variance=5.0)
    before = bayes.logits(x)
    bayes.temperature = COLD
    after = bayes.logits(x)
    assert torch.equal(after.covariance, before.covariance)
    torch.testing.assert_close(after.mean, before.mean / COLD, rtol=1e-14, atol=0)
    expected = torch.stack(
        [reference.pairwise(m, c) for m, c in zip(before.mean / COLD, before.covariance, strict=True)]
    )
    torch.testing.assert_close(bayes.predict_proba(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_monte_carlo_draws_about_the_mean_divided(k):
    bayes, x, means, covariances = last_layer("full", k)
    bayes.temperature, samples = COLD, 4_000
    actual = bayes.predict_proba(x, method="mc", samples=samples, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    for n, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(k))
        noise = torch.randn(10 * samples, k, dtype=torch.float64, generator=generator)
        draws = mean / COLD + noise @ root.T
        draws = (draws if k > 1 else torch.cat([torch.zeros_like(draws), draws], 1)).softmax(1)
        # Of a difference of two averages; 5 of them: 6e-7 for each number.
        standard = draws.std(0) * math.sqrt(1 / samples + 1 / (10 * samples))
        assert bool(((actual[n] - draws.mean(0)).abs() < 5 * standard).all())


@pytest.mark.parametrize("temperature", [1.0, COLD, HOT])
@pytest.mark.parametrize("k, structure", [(1, "full"), (3, "full"), (3, "kron"), (3, "diag"), (10, "kron")])
def test_the_average_over_drawn_heads_is_that_of_monte_carlo(k, structure, temperature):
    bayes, x, _ = reference.fitted(k, prior_variance=5.0, structure=structure, residual=False)
    bayes.temperature, samples = temperature, 4_000
    expected = bayes.predict_proba(
        x, method="mc", samples=samples, generator=torch.Generator().manual_seed(1)
    )
    draws = bayes.sample(samples, generator=torch.Generator().manual_seed(2))
    logits = torch.vmap(lambda weights: functional_call(bayes.model, weights, (x,)))(draws).detach()
    drawn = (logits if k > 1 else torch.cat([torch.zeros_like(logits), logits], 2)).softmax(2)  # (s, n, k)
    # Of a difference of two such averages; 5 of them: 6e-7 for each number.
    standard = drawn.std(0) * math.sqrt(2 / samples)
    assert bool(((drawn.mean(0) - expected).abs() < 5 * standard).all())


@pytest.mark.parametrize("name", ["one logit", "mlp"])
@pytest.mark.parametrize("temperature", [1.0, 2.0, COLD, HOT])
def test_drawn_networks_keep_their_distance_from_the_divided_mean(name, temperature):
    """f becomes f*/T + (f − f*): averaged over explicitly drawn networks."""
    bayes, model, x, _ = dense.fitted(name, "kron", prior_variance=0.05, predictive="sampled_networks")
    bayes.temperature = temperature
    draws = bayes.sample(7, generator=torch.Generator().manual_seed(3))
    own, total = model(x).detach(), 0
    for number in range(7):
        drawn = functional_call(model, {key: each[number] for key, each in draws.items()}, (x,)).detach()
        logits = own / temperature + (drawn - own)
        total = total + (logits if logits.shape[1] > 1 else torch.cat([0 * logits, logits], 1)).softmax(1) / 7
    actual = bayes.predict_proba(x, samples=7, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(actual, total, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "layers, predictive", [("last", "auto"), ("all", "auto"), ("all", "sampled_networks")]
)
@pytest.mark.parametrize("k", [1, 3])
def test_everything_else_follows_the_same_gaussian(layers, predictive, k):
    """The drop-in, `evaluate`, `score`, `uncertainty` and `sample`; the evidence does not know it.

    Over all layers `sample` draws around the trained weights at any temperature.
    """
    x, y = points(k=k, dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(k, torch.float64), layers=layers, predictive=predictive).fit([(x, y)])
    before = bayes.sample(3, generator=torch.Generator().manual_seed(0)), bayes.log_evidence()
    bayes.temperature = COLD
    torch.manual_seed(5)
    probabilities = bayes.predict_proba(x)
    torch.manual_seed(5)
    logits = bayes(x).detach()
    logits = logits if k > 1 else torch.cat([torch.zeros_like(logits), logits], 1)
    torch.testing.assert_close(logits.softmax(1), probabilities, rtol=0, atol=1e-12)
    torch.manual_seed(5)
    found = bayes.evaluate([(x, y)])
    assert found["nll"] == pytest.approx(bb.metrics.nll(probabilities, y), rel=1e-9)

    gaussian, projection = bayes.logits(x), torch.eye(k, dtype=torch.float64) - (1 / k if k > 1 else 0)
    torch.testing.assert_close(gaussian.mean, bayes.model(x).detach() / COLD, rtol=1e-12, atol=1e-12)
    centred = gaussian.mean @ projection
    variances = (projection @ gaussian.covariance @ projection).diagonal(dim1=1, dim2=2)
    z = centred / (1 + KAPPA * variances).sqrt()
    expected = (z if k > 1 else torch.cat([-z, z], 1) / 2).logsumexp(1)
    torch.testing.assert_close(bayes.score(x), expected, rtol=1e-9, atol=1e-9)
    assert found["aurc"] == pytest.approx(
        bb.metrics.aurc(probabilities.amax(1), probabilities.argmax(1) == y), abs=1e-12
    )

    cold = bayes.uncertainty(x).entropy.mean()
    bayes.temperature = HOT
    assert bayes.uncertainty(x).entropy.mean() > cold
    after = bayes.sample(3, generator=torch.Generator().manual_seed(0)), bayes.log_evidence()
    assert before[1] == after[1]
    for name, draws in before[0].items():
        shift = bayes.model.get_parameter(name).detach() * (1 / HOT - 1) if layers == "last" else 0.0
        torch.testing.assert_close(after[0][name], draws + shift, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "layers, residual, k", [("last", False, 1), ("last", True, 3), ("all", False, 3), ("all", True, 1)]
)
def test_a_temperature_of_one_changes_no_bit(layers, residual, k):
    x, y = points(k=k)
    bayes = bb.Laplace(relu_mlp(k), layers=layers, residual=residual).fit([(x, y)])
    before = bayes.predict_proba(x), bayes.logits(x).covariance, bayes.score(x), bayes(x), bayes.bound(x)
    bayes.temperature = HOT
    assert not torch.equal(bayes.predict_proba(x), before[0])
    bayes.temperature = 1
    after = bayes.predict_proba(x), bayes.logits(x).covariance, bayes.score(x), bayes(x), bayes.bound(x)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k", [1, 3])
def test_extreme_temperatures_and_inputs_stay_finite_and_normalised(layers, k):
    x, y = points(k=k)
    bayes = bb.Laplace(relu_mlp(k), layers=layers).fit([(x, y)])
    methods = (*METHODS[k], "mc", *(["sampled_networks"] if layers == "all" else []))
    for bayes.temperature in (1e-3, 1e3):
        for scale in (0, 1, 1e10, 1e20, 1e36):
            for bayes.predictive in methods:
                probabilities = bayes.predict_proba(scale * x)
                assert bool(probabilities.isfinite().all()), (bayes, scale)
                torch.testing.assert_close(probabilities.sum(1), torch.ones(len(x)), rtol=0, atol=1e-5)
                assert bool(bayes(scale * x).isfinite().all()), (bayes, scale)
            assert bool(bayes.score(scale * x).isfinite().all()), (bayes, scale)


@pytest.mark.parametrize("method", ["pairwise", "meanfield", "sampled_networks"])
def test_a_tiny_temperature_keeps_the_networks_class_far_away(method):
    """Where f*/T overflows, the class of the largest f* is still the most probable one, or one of several."""
    x, y = points(k=3)
    bayes = bb.Laplace(relu_mlp(3), layers="all", predictive=method, prior_variance=1e-6).fit([(x, y)])
    bayes.temperature = 1e-3
    far = 1e36 * x
    probabilities = bayes.predict_proba(far)
    own = probabilities.gather(1, bayes.model(far).argmax(1, keepdim=True))[:, 0]
    torch.testing.assert_close(own, probabilities.amax(1), rtol=0, atol=1e-6)


def test_the_temperature_is_shown_and_checked():
    bayes, x, _ = reference.fitted(3)
    assert bayes.temperature == 1.0 and "temperature=1," in repr(bayes)
    bayes.temperature = 2.5
    assert "temperature=2.5," in repr(bayes)
    before = bayes.predict_proba(x)
    for wrong in (0, -1.0, math.nan, math.inf, None, "hot"):
        with pytest.raises(ArgumentError, match=r"temperature=.*positive"):
            bayes.temperature = wrong
    assert bayes.temperature == 2.5 and torch.equal(bayes.predict_proba(x), before)
