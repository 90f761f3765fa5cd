"""Predictions: which predictive is taken, draws against their own standard error, and the drop-in."""

import math

import pytest
import torch
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError
from classifiers import points, relu_mlp
from reference import STRUCTURES

METHODS = {
    1: ("probit", "quadrature", "mc"),
    2: ("probit", "pairwise", "meanfield", "bridge", "mc"),
    3: ("probit", "pairwise", "meanfield", "bridge", "mc"),
}
DROP_INS = [(2, "kron"), *((k, structure) for k in (1, 3) for structure in STRUCTURES)]


def fitted(structure, k, prior_variance, **options):
    bayes, x, _ = reference.fitted(k, structure=structure, prior_variance=prior_variance, **options)
    return bayes, x


@pytest.mark.parametrize("k, method", [(1, "probit"), (2, "pairwise"), (64, "pairwise"), (65, "meanfield")])
def test_auto_is_probit_for_one_logit_pairwise_for_few_and_meanfield_for_many(k, method):
    bayes, x = fitted("auto", k, 5.0)
    assert torch.equal(bayes.predict_proba(x), bayes.predict_proba(x, method=method))


@pytest.mark.parametrize("k", [1, 3])
def test_predictive_is_the_default_method(k):
    method = METHODS[k][1]
    chosen, x = fitted("kron", k, 5.0, predictive="probit")
    assert torch.equal(chosen.predict_proba(x), chosen.predict_proba(x, method="probit"))
    assert not torch.equal(chosen.predict_proba(x), chosen.predict_proba(x, method=method))


@pytest.mark.parametrize(
    "k, method, right",
    [
        (1, "pairwise", "'probit', 'quadrature', 'mc'"),
        (1, "bridge", "'probit', 'quadrature', 'mc'"),
        (2, "quadrature", "'probit', 'pairwise', 'meanfield', 'bridge', 'mc'"),
        (3, "quadrature", "'probit', 'pairwise', 'meanfield', 'bridge', 'mc'"),
    ],
)
def test_a_method_that_does_not_fit_the_number_of_logits_raises(k, method, right):
    bayes, x = fitted("auto", k, 1.0)
    with pytest.raises(ArgumentError, match=rf"{method}.*{k} logit.*{right}"):
        bayes.predict_proba(x, method=method)
    with pytest.raises(ArgumentError, match=rf"{method}.*{k} logit.*{right}"):
        fitted("auto", k, 1.0, predictive=method)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("method", ["probit", "pairwise", "meanfield", "bridge"])
def test_a_closed_form_is_that_of_the_logits_whichever_layers_are_uncertain(method, layers):
    bayes, x = fitted("kron", 3, 5.0, layers=layers)
    gaussian = bayes.logits(x)
    points = zip(gaussian.mean.double(), gaussian.covariance.double(), strict=True)
    expected = torch.stack([getattr(reference, method)(*each) for each in points])
    torch.testing.assert_close(bayes.predict_proba(x, method=method), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("batch", [7, 3])
def test_every_position_of_an_output_is_predicted_like_a_point_of_its_own(batch):
    x, y = torch.randn(7, 5, 3, dtype=torch.float64), torch.arange(35).reshape(7, 5) % 4
    model = reference.network(4)
    tokens = bb.Laplace(model, prior_variance=2.0).fit([(x, y)])
    rows = bb.Laplace(model, prior_variance=2.0).fit([(x.flatten(0, 1), y.flatten())])
    found = tokens.predict_proba(list(x.split(batch)))
    expected = rows.predict_proba(x.flatten(0, 1)).reshape(7, 5, 4)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_predict_proba_takes_loaders_with_and_without_labels():
    bayes, x = fitted("auto", 3, 5.0)
    whole = bayes.predict_proba(x)
    plain = list(torch.split(x, 7))
    for loader in (
        plain,
        iter(plain),
        reference.loader(x, torch.zeros(len(x)), 7),
        [[part] for part in plain],
    ):
        torch.testing.assert_close(bayes.predict_proba(loader), whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("k", METHODS)
def test_no_points_give_no_rows(k):
    bayes, x = fitted("auto", k, 5.0)
    for method in METHODS[k]:
        assert bayes.predict_proba(x[:0], method=method).shape == (0, max(k, 2))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_predictions_in_chunks_are_the_same(structure, monkeypatch):
    bayes, x = fitted(structure, 10, 5.0)
    whole = {method: bayes.predict_proba(x, method=method) for method in METHODS[3][:-1]}
    monkeypatch.setattr("bitbayes.predicting.NUMBERS_PER_PREDICTION", 3 * 10 * 100)
    assert len(list(bayes._predictor().gaussians(bayes._predictor().batches(x)))) == 10
    for method, expected in whole.items():
        torch.testing.assert_close(bayes.predict_proba(x, method=method), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("samples, rows", [(100, [30]), (1000, [4, 4, 4, 4, 4, 4, 4, 2])])
def test_no_more_numbers_are_drawn_at_once_than_fit_into_memory(samples, rows, monkeypatch):
    bayes, x = fitted("kron", 3, 5.0)
    monkeypatch.setattr("bitbayes.predicting.NUMBERS_PER_PREDICTION", 4 * 3 * 1000)
    predictor = bayes._predictor()
    parts = predictor.predict(predictor.batches(x), predictor.predictive("mc", samples))
    assert [len(batch) for batch, _ in parts] == rows


def test_full_covariances_made_a_few_points_at_a_time_are_the_same(monkeypatch):
    x, _ = points(dtype=torch.float64)
    model = relu_mlp(dtype=torch.float64)
    y = model(x).argmax(1)  # the model's own labels: with random labels the optimum would be flat
    y[::7] = 0
    bayes = bb.Laplace(model, structure="full").fit([(x, y)])
    whole, tuned = (
        bayes.predict_proba(x),
        bayes.tune([(x, y)], objective="ood", outliers=3 * x).prior_variance,
    )
    bayes.prior_variance = 1.0
    monkeypatch.setattr("bitbayes.posteriors.last_layer.FULL_NUMBERS", 7 * 18 * 2)
    torch.testing.assert_close(bayes.predict_proba(x), whole, rtol=0, atol=1e-6)
    assert bayes.tune([(x, y)], objective="ood", outliers=3 * x).prior_variance == pytest.approx(tuned)


# ---- draws


@pytest.mark.parametrize("k, structure", [*((3, each) for each in STRUCTURES), (1, "full"), (10, "kron")])
def test_monte_carlo_is_the_expectation_within_its_standard_error(k, structure):
    bayes, x = fitted(structure, k, 20.0)
    x, samples = x[:3], 4_000
    actual = bayes.predict_proba(x, method="mc", samples=samples, generator=torch.Generator().manual_seed(1))
    gaussian, generator = bayes.logits(x), torch.Generator().manual_seed(2)
    for n, (mean, covariance) in enumerate(zip(gaussian.mean, gaussian.covariance, strict=True)):
        root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(k))
        draws = mean + torch.randn(10 * samples, k, dtype=torch.float64, generator=generator) @ root.T
        if k == 1:
            draws = torch.cat([torch.zeros_like(draws), draws], 1)
        draws = draws.softmax(1)
        # Of a difference of two averages; 5 of them: 6e-7 for each number.
        standard = draws.std(0) * math.sqrt(1 / samples + 1 / (10 * samples))
        assert bool(((actual[n] - draws.mean(0)).abs() < 5 * standard).all())


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("k", [1, 3])
def test_monte_carlo_draws_anew_for_every_row(k, structure):
    bayes, x = fitted(structure, k, 20.0)
    rows = 4_000
    p = bayes.predict_proba(x[:1].expand(rows, -1), method="mc", samples=1)[:, 0]
    centred = (p - p.mean()) / p.std(correction=0)
    # Correlations of independent neighbours have a standard error of 1/√rows.
    for lag in (1, 2, 7):
        assert abs(float((centred[lag:] * centred[:-lag]).mean())) < 5 / math.sqrt(rows)


@pytest.mark.parametrize("k", [1, 3])
def test_monte_carlo_repeats_with_the_same_seed(k):
    bayes, x = fitted("auto", k, 20.0)
    first, again, other = (
        bayes.predict_proba(x, method="mc", generator=torch.Generator().manual_seed(seed))
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("k", [1, 3])
def test_monte_carlo_takes_100_samples_unless_told(k):
    bayes, x = fitted("auto", k, 20.0)
    default, hundred, more = (
        bayes.predict_proba(x, method="mc", samples=samples, generator=torch.Generator().manual_seed(3))
        for samples in (None, 100, 101)
    )
    assert torch.equal(default, hundred) and not torch.equal(default, more)


# ---- the drop-in


class Flat(nn.Module):
    """One logit as (n,)."""

    def __init__(self):
        super().__init__()
        self.inner = reference.network(1)

    def forward(self, x):
        return self.inner(x)[:, 0]


@pytest.mark.parametrize("k, structure", DROP_INS)
def test_softmax_of_the_drop_in_is_the_prediction(k, structure):
    bayes, x = fitted(structure, k, 5.0)
    for bayes.predictive in METHODS[k]:
        torch.manual_seed(5)
        logits = bayes(x)
        torch.manual_seed(5)
        probabilities = bayes.predict_proba(x)
        assert logits.shape == (len(x), k)
        p = logits.softmax(1) if k > 1 else torch.cat([(-logits).sigmoid(), logits.sigmoid()], 1)
        torch.testing.assert_close(p.detach(), probabilities, rtol=0, atol=1e-14)
        ones = torch.ones(len(x), dtype=torch.float64)
        torch.testing.assert_close(probabilities.sum(1), ones, rtol=0, atol=1e-14)


def test_the_drop_in_has_the_models_own_shape():
    model = Flat()
    bayes, x = fitted("auto", 1, 5.0, model=model)
    assert bayes(x).shape == model(x).shape == (len(x),)
    assert bayes(x[:1]).shape == (1,)
    torch.testing.assert_close(bayes(x).sigmoid().detach(), bayes.predict_proba(x)[:, 1], rtol=0, atol=1e-14)
    assert bayes.predict_proba(x).shape == (len(x), 2)


@pytest.mark.parametrize("k, structure", DROP_INS)
def test_gradients_flow_through_the_drop_in_and_are_right(k, structure):
    bayes, x = fitted(structure, k, 5.0)
    x = x[:3].clone().requires_grad_()

    def drop_in(x):
        torch.manual_seed(5)
        return bayes(x)

    for bayes.predictive in METHODS[k]:
        assert torch.autograd.gradcheck(drop_in, x)
    assert all(parameter.grad is None for parameter in bayes.model.parameters())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("k, structure", DROP_INS)
def test_gradients_are_finite_far_away_and_at_zero(k, structure, bias):
    x, y = reference.data(k, dtype=torch.float32)
    bayes = bb.Laplace(nn.Linear(3, k, bias=bias), structure=structure, prior_variance=5.0).fit([(x, y)])
    for bayes.predictive in METHODS[k]:
        for scale in (0, 1, 1e10, 1e25):
            far = (scale * x).requires_grad_()
            bayes(far).sum().backward()
            assert bool(far.grad.isfinite().all()), (bayes.predictive, scale)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_drop_in_can_be_differentiated_where_the_network_is_certain(layers, dtype):
    torch.manual_seed(0)
    x, y = torch.randn(60, 4, dtype=dtype), torch.arange(60) % 3
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)
    for factor in (100.0, 10_000.0):
        with torch.no_grad():
            model[2].weight.copy_(factor * torch.randn(3, 8))
        bayes = bb.Laplace(model, layers=layers, prior_variance=1e-6, residual=False).fit([(x, y)])
        inputs = x.clone().requires_grad_()
        logits = bayes(inputs)
        gaps = logits.detach().amax(1) - logits.detach().amin(1)
        assert float(gaps.max()) > (44 if dtype == torch.float32 else 350)  # whose square overflows
        (gradient,) = torch.autograd.grad(logits.log_softmax(1)[:, 0].sum(), inputs)
        assert bool(gradient.isfinite().all())
