"""Scores, thresholds, uncertainties and evaluations, against loops over points and draws in float64."""

import math
import posixpath
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError, DataError, NotFittedError
from bitbayes.likelihoods import likelihood_for
from bitbayes.logits import CovarianceFactors, LogitGaussian
from bitbayes.uncertainty import uncertainty_of_draws
from classifiers import points, relu_mlp
from reference import KAPPA, STRUCTURES


@pytest.fixture(params=[1, 3], ids=["one-logit", "three-logits"])
def k(request):
    return request.param


def score_of_one(mean, covariance):
    """log Σ exp of the probit logits of one point: mean (k,), covariance (k, k)."""
    k = len(mean)
    if k == 1:
        z = float(mean[0]) / math.sqrt(1 + KAPPA * float(covariance[0, 0]))
        return math.log(math.exp(z / 2) + math.exp(-z / 2))
    projection = torch.eye(k, dtype=torch.float64) - 1 / k
    m, c = projection @ mean, projection @ covariance @ projection
    return math.log(sum(math.exp(float(m[i]) / math.sqrt(1 + KAPPA * float(c[i, i]))) for i in range(k)))


def uncertainty_of_one(draws):
    """Entropies and mutual information of probabilities (s, k), all > 0, and their variances, by loops."""
    rows, k = draws.tolist(), draws.shape[1]
    mean = [sum(row[i] for row in rows) / len(rows) for i in range(k)]
    entropy = -sum(p * math.log(p) for p in mean)
    expected = -sum(p * math.log(p) for row in rows for p in row) / len(rows)
    information = sum(row[i] * math.log(row[i] / mean[i]) for row in rows for i in range(k)) / len(rows)
    variance = [sum((row[i] - mean[i]) ** 2 for row in rows) / len(rows) for i in range(k)]
    return entropy, expected, information, variance


# ---- score


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_the_score_is_its_formula_point_by_point(outputs, structure):
    bayes, x, _ = reference.fitted(outputs, structure=structure)
    for bayes.prior_variance in (1e-3, 5.0, 1e4):
        gaussian = bayes.logits(x)
        found = [score_of_one(m, c) for m, c in zip(gaussian.mean, gaussian.covariance, strict=True)]
        expected = torch.tensor(found, dtype=torch.float64)
        # The loop subtracts entries of the size of the prior variance: it is good to 1e4·2e-16·1e2.
        torch.testing.assert_close(bayes.score(x), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("predictive", ["pairwise", "bridge", "mc"])
def test_the_score_is_that_of_the_gaussian_whatever_the_predictive(predictive):
    bayes, x, _ = reference.fitted(3)
    expected = bayes.score(x)
    bayes.predictive = predictive
    assert torch.equal(bayes.score(x), expected)


def test_the_score_over_all_layers_is_that_of_the_linearised_network():
    x, y = points(dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(dtype=torch.float64), layers="all", predictive="sampled_networks").fit(
        [(x, y)]
    )
    gaussian = bayes.logits(x)
    expected = [score_of_one(m, c) for m, c in zip(gaussian.mean, gaussian.covariance, strict=True)]
    torch.testing.assert_close(bayes.score(x), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


def test_the_residual_lowers_the_score_far_away(k):
    x, y = points(k=k)
    plain = bb.Laplace(relu_mlp(k), prior_variance=1e-4).fit([(x, y)])
    wide = bb.Laplace(relu_mlp(k), prior_variance=1e-4, residual=True).fit([(x, y)])
    # Deviations outgrow means like √1000 = 32: the logits, all but 0, leave log k, or log 2 for one logit.
    assert float((wide.score(1000 * x) - math.log(max(k, 2))).max()) < 0.5
    assert float(plain.score(1000 * x).mean()) > 5


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_loader_with_or_without_labels_has_the_scores_of_its_points(k, layers):
    x, y = points(k=k)
    bayes = bb.Laplace(relu_mlp(k), layers=layers).fit([(x, y)])
    scores = bayes.score(x)
    assert scores.shape == (40,)
    for loader in (reference.loader(x, y), list(x.split(9)), iter(x.split(9))):
        # Rows are the same, matrix products of other sizes round differently.
        torch.testing.assert_close(bayes.score(loader), scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "dtype, expected",
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_scores_and_uncertainties_are_in_the_models_precision_at_least_float32(dtype, expected):
    x, y = points()
    bayes = bb.Laplace(relu_mlp(dtype=dtype)).fit([(x.to(dtype), y)])
    found = bayes.score(x.to(dtype)), *bayes.uncertainty(x.to(dtype))
    assert {each.dtype for each in found} == {expected}


@pytest.mark.parametrize("layers, structure", [("last", "kron"), ("last", "full"), ("all", "kron")])
def test_scores_and_uncertainties_are_finite_everywhere(k, layers, structure):
    x, y = points(k=k)
    # Weights below 1/2 keep a network of 1e36 below the largest float.
    bayes = bb.Laplace(relu_mlp(k), layers=layers, structure=structure).fit([(x, y)])
    far = torch.cat([scale * (x / x.abs().max()) for scale in (0.0, 1e-30, 1.0, 1e10, 1e19, 1e30, 1e36)])
    largest = math.log(max(k, 2)) + 1e-6
    for bayes.prior_variance in (1e-12, 1.0, 1e12):
        entropy, expected, information, variance = bayes.uncertainty(far)
        assert bool(bayes.score(far).isfinite().all())
        for each in (entropy, expected, information):
            assert bool((each >= 0).all()) and bool((each <= largest).all())
        assert variance.shape == (len(far), max(k, 2))
        assert bool((variance >= 0).all()) and bool((variance <= 0.25 + 1e-6).all())


def test_a_mean_near_the_largest_float_has_a_finite_score():
    # Centred, these means are beyond the largest float.
    mean = torch.tensor([[3e38, -3e38, -3e38]])
    factors = CovarianceFactors(torch.zeros(1, 3), None, torch.zeros(1))
    found = likelihood_for(3).score(LogitGaussian(mean, factors, torch.ones(1)))
    assert bool(found.isfinite().all()) and float(found) > 1e38


def test_autocast_changes_no_arithmetic_on_the_gaussian(k):
    x, y = points(k=k)
    gaussian = bb.Laplace(relu_mlp(k), structure="full").fit([(x, y)]).logits(x)
    likelihood = likelihood_for(k)

    def both():
        seeded = torch.Generator().manual_seed(0)
        draws = likelihood.drawn_probabilities(gaussian, 50, seeded, shared=True)
        return likelihood.score(gaussian), *likelihood.uncertainty(draws)

    plain = both()
    with torch.autocast("cpu", torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(both(), plain, strict=True))


# ---- threshold


@pytest.mark.parametrize("accept", [0.01, 0.5, 0.95, 1.0])
def test_the_threshold_is_the_largest_score_that_accepts_the_share(k, accept):
    x, y = points(k=k)
    bayes = bb.Laplace(relu_mlp(k)).fit([(x, y)])
    loader = reference.loader(x, y)
    scores = bayes.score(loader)
    t = bayes.threshold(loader, accept=accept)
    assert isinstance(t, float)
    enough = [s for s in scores.tolist() if int((scores >= s).sum()) >= accept * 40]
    assert t == max(enough)
    assert bayes.threshold([x for x, _ in loader], accept=accept) == t


def test_the_threshold_is_for_95_percent_unless_told():
    bayes, x, _ = reference.fitted(3, n=100)
    assert int((bayes.score(x) >= bayes.threshold(x)).sum()) == 95


@pytest.mark.parametrize("accept", [0, 1.5, -1, math.nan, "most"])
def test_a_share_that_is_none_raises_before_the_data_are_read(accept):
    bayes, x, y = reference.fitted(3)
    read = []
    loader = (read.append(batch) or batch for batch in reference.loader(x, y))
    with pytest.raises(ArgumentError, match=f"accept={accept!r}"):
        bayes.threshold(loader, accept=accept)
    assert read == []


def test_an_empty_loader_raises():
    bayes, _, _ = reference.fitted(3)
    for use in (bayes.score, bayes.threshold, bayes.uncertainty, bayes.evaluate):
        with pytest.raises(DataError, match="the loader is empty"):
            use([])


def test_all_of_it_needs_a_fit_first(k):
    bayes, (x, y) = bb.Laplace(reference.network(k)), reference.data(k)
    for use in (bayes.score, bayes.threshold, bayes.uncertainty):
        with pytest.raises(NotFittedError, match="fit"):
            use(x)
    with pytest.raises(NotFittedError, match="fit"):
        bayes.evaluate([(x, y)])


# ---- uncertainty


@given(st.lists(st.lists(st.floats(-8, 8), min_size=3, max_size=3), min_size=1, max_size=5))
def test_uncertainties_are_loops_over_draws(logits):
    draws = torch.tensor(logits, dtype=torch.float64).softmax(1)
    found = uncertainty_of_draws(draws[:, None])
    entropy, expected, information, variance = uncertainty_of_one(draws)
    assert float(found.entropy) == pytest.approx(entropy, abs=1e-13)
    assert float(found.expected_entropy) == pytest.approx(expected, abs=1e-13)
    assert float(found.mutual_information) == pytest.approx(information, abs=1e-13)
    assert found.variance[0].tolist() == pytest.approx(variance, abs=1e-13)
    assert float(found.mutual_information) == pytest.approx(entropy - expected, abs=1e-13)


def test_draws_of_probability_0_have_no_part_in_an_entropy():
    draws = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]]])
    found = uncertainty_of_draws(draws)
    assert float(found.entropy) == float(found.mutual_information) == pytest.approx(math.log(2), abs=1e-6)
    assert float(found.expected_entropy) == 0.0
    assert found.variance.tolist() == [[0.25, 0.25, 0.0]]


def test_small_mutual_information_keeps_its_digits_in_float32():
    # Logits that differ by 1e-3 have about 1e-7 of it, as little as the rounding of an entropy.
    draws = (1e-3 * torch.randn(100, 50, 4)).softmax(2)
    found = uncertainty_of_draws(draws).mutual_information.double()
    exact = torch.tensor([uncertainty_of_one(each)[2] for each in draws.double().unbind(1)]).double()
    assert float(exact.max()) < 1e-6
    # Gaps p − p̄ of 1e-3·p̄ are exact to 6e-8·p̄, a relative 6e-5; so is their square, twice.
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=0)


def test_equal_draws_have_no_mutual_information_and_never_less():
    # Their mean is rounded, by some ε of float32: what is left are its squares, of either sign.
    found = uncertainty_of_draws(torch.randn(1, 2000, 5).softmax(2).repeat(100, 1, 1)).mutual_information
    assert bool((found >= 0).all()) and bool((found < 100 * torch.finfo(torch.float32).eps ** 2).all())


@pytest.mark.parametrize(
    "layers, structure",
    [*(("last", each) for each in STRUCTURES), *(("all", each) for each in ("full", "kron", "diag"))],
)
def test_uncertainties_are_those_of_the_gaussian_within_their_standard_errors(k, layers, structure):
    x, y = points(k=k, dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(k, torch.float64), layers=layers, structure=structure, prior_variance=5.0)
    bayes.fit([(x, y)])
    x, samples = x[:3], 4_000
    found = bayes.uncertainty(x, samples=samples)
    gaussian, generator = bayes.logits(x), torch.Generator().manual_seed(2)
    for n, (mean, covariance) in enumerate(zip(gaussian.mean, gaussian.covariance, strict=True)):
        root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(k))
        draws = mean + torch.randn(10 * samples, k, dtype=torch.float64, generator=generator) @ root.T
        p = (torch.cat([torch.zeros_like(draws), draws], 1) if k == 1 else draws).softmax(1)
        average = p.mean(0)
        # To first order each number is a mean over draws of one of these.
        terms = {
            "entropy": -(p * average.log()).sum(1),
            "expected_entropy": -(p * p.log()).sum(1),
            "mutual_information": (p * (p / average).log()).sum(1),
            "variance": (p - average).square(),
        }
        for name, term in terms.items():
            # Of a difference of two averages; 5 of them: 6e-7 for each number.
            standard = term.std(0) * math.sqrt(1 / samples + 1 / (10 * samples))
            gap = (getattr(found, name)[n] - term.mean(0)).abs()
            assert bool((gap < 5 * standard).all()), name


def test_uncertainties_by_sampled_networks_are_those_of_drawn_networks(k):
    x, y = points(k=k, dtype=torch.float64)
    model = relu_mlp(k, torch.float64)
    bayes = bb.Laplace(model, layers="all", predictive="sampled_networks", prior_variance=0.1).fit([(x, y)])
    seeded = {"generator": torch.Generator().manual_seed(3)}
    draws = bayes.sample(7, generator=torch.Generator().manual_seed(3))
    logits = torch.stack(
        [functional_call(model, {name: each[s] for name, each in draws.items()}, (x,)) for s in range(7)]
    ).detach()
    p = (torch.cat([torch.zeros_like(logits), logits], 2) if k == 1 else logits).softmax(2)
    found = bayes.uncertainty(x, samples=7, **seeded)
    for n in range(len(x)):
        expected = uncertainty_of_one(p[:, n])
        for actual, each in zip(found, expected, strict=True):
            torch.testing.assert_close(actual[n], torch.tensor(each, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("predictive", ["auto", "sampled_networks"])
def test_what_is_found_for_a_row_depends_on_no_other_row_and_no_call(k, predictive, monkeypatch):
    x, y = points(k=k, dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(k, torch.float64), layers="all", predictive=predictive).fit([(x, y)])
    whole = bayes.uncertainty(x)
    monkeypatch.setattr("bitbayes.predicting.NUMBERS_PER_PREDICTION", 300 * k)  # three rows at a time
    for same in (
        bayes.uncertainty(x),
        bayes.uncertainty(reference.loader(x, y)),
        [each.flip(0) for each in bayes.uncertainty(x.flip(0))],
        bayes.uncertainty(x, generator=torch.Generator().manual_seed(0)),
    ):
        for a, b in zip(whole, same, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_another_generator_gives_other_draws_and_nothing_global_is_touched(k):
    bayes, x, _ = reference.fitted(k)
    before = torch.get_rng_state()
    first = bayes.uncertainty(x)
    assert torch.equal(torch.get_rng_state(), before)
    generator = torch.Generator().manual_seed(5)
    second, third = bayes.uncertainty(x, generator=generator), bayes.uncertainty(x, generator=generator)
    for a, b in ((first, second), (second, third)):
        assert not torch.equal(a.mutual_information, b.mutual_information)


def test_there_are_100_draws_or_20_networks_unless_told():
    x, y = points()
    for predictive, default in (("auto", 100), ("sampled_networks", 20)):
        bayes = bb.Laplace(relu_mlp(), layers="all", predictive=predictive).fit([(x, y)])
        found, told, more = (bayes.uncertainty(x, samples=s).entropy for s in (None, default, default + 1))
        assert torch.equal(found, told) and not torch.equal(found, more)


@pytest.mark.parametrize("samples", [0, -3, 2.5, "many"])
def test_a_number_of_draws_that_is_none_raises(samples):
    bayes, x, _ = reference.fitted(3)
    with pytest.raises(ArgumentError, match=f"samples={samples!r}"):
        bayes.uncertainty(x, samples=samples)


# ---- evaluate


@pytest.mark.parametrize("predictive", ["auto", "probit"])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_an_evaluation_holds_the_metrics_of_predictions_and_scores(k, layers, predictive):
    x, y = points(k=k, dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(k, torch.float64), layers=layers, predictive=predictive).fit([(x, y)])
    sets = {"near": x + 1, "far": list((100 * x).split(15)), "labelled": reference.loader(-x, y)}
    found = bayes.evaluate(reference.loader(x, y), outliers=sets)
    probs, scores = bayes.predict_proba(x), bayes.score(x)
    expected = {name: getattr(bb.metrics, name)(probs, y) for name in ("accuracy", "nll", "ece", "brier")}
    expected["mmc"] = bb.metrics.mmc(probs)
    expected["aurc"] = bb.metrics.aurc(probs.amax(1), probs.argmax(1) == y)
    for name, data in sets.items():
        expected[f"{name}/auroc"] = bb.metrics.auroc(scores, bayes.score(data))
        expected[f"{name}/fpr95"] = bb.metrics.fpr95(scores, bayes.score(data))
        expected[f"{name}/mmc"] = bb.metrics.mmc(bayes.predict_proba(data))
    assert list(found) == list(expected) and {type(value) for value in found.values()} == {float}
    assert found == pytest.approx(expected, abs=1e-12)


NAMES = [
    "CIFAR-10",
    "far away",
    "far/away",
    "../up",
    "/",
    "a//b",
    "5 digits",
    "数字",
    "字母",
    "x" * 300,
    "",
    "\n",
]


def evaluated(names):
    x, y = points(dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(dtype=torch.float64)).fit([(x, y)])
    return bayes.evaluate([(x, y)], outliers={name: (i + 2) * x for i, name in enumerate(names)})


def test_keys_have_the_names_as_they_were_given():
    names = ["2x", *NAMES]
    measures = "auroc", "fpr95", "mmc"
    assert [*evaluated(names)][6:] == [f"{name}/{each}" for name in names for each in measures]


def test_log_names_make_keys_that_loggers_take():
    """By the rules that MLflow and Weights & Biases publish."""
    found = evaluated(bb.metrics.log_names(NAMES))
    assert len(found) == 6 + 3 * len(NAMES) and {type(value) for value in found.values()} == {float}
    for key in found:
        assert len(key) <= 250 and posixpath.normpath(key) == key and not key.startswith(("/", ".."))
        assert all(re.fullmatch(r"[_a-zA-Z][_a-zA-Z0-9]*", part) for part in key.split("/"))
    assert [key for key in found if key.endswith("/mmc")][:3] == [
        "CIFAR_10/mmc",
        "far_away/mmc",
        "far_away_2/mmc",
    ]


def test_mlflow_logs_an_evaluation_with_such_names():
    validation = pytest.importorskip("mlflow.utils.validation", reason="MLflow is not installed")
    for number, (key, value) in enumerate(evaluated(bb.metrics.log_names(NAMES)).items()):
        validation._validate_metric(key, value, 0, number)


def test_an_evaluation_by_drawn_networks_is_seeded_as_predictions_are():
    x, y = points(dtype=torch.float64)
    bayes = bb.Laplace(relu_mlp(dtype=torch.float64), layers="all", predictive="sampled_networks").fit(
        [(x, y)]
    )
    torch.manual_seed(4)
    found = bayes.evaluate(reference.loader(x, y))
    torch.manual_seed(4)
    probs = bayes.predict_proba(x)
    assert found["nll"] == pytest.approx(bb.metrics.nll(probs, y), abs=1e-12)
    assert found["aurc"] == bb.metrics.aurc(probs.amax(1), probs.argmax(1) == y)


def test_an_evaluation_is_one_forward_pass_a_batch(k):
    model, (x, y) = reference.network(k), reference.data(k)
    bayes = bb.Laplace(model).fit([(x, y)])
    rows = []
    model.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    bayes.evaluate(iter(reference.loader(x, y, 8)), outliers={"far": 10 * x})
    assert rows == [3, 8, 8, 8, 6, 30]  # the first are made up: is the model what it was?


def test_an_evaluation_takes_mappings_and_labels_of_every_form(k):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = relu_mlp(k, torch.float64)

        def forward(self, pixels):
            return {"logits": self.inner(pixels)}

    x, y = points(k=k, dtype=torch.float64)
    expected = (
        bb.Laplace(relu_mlp(k, torch.float64)).fit([(x, y)]).evaluate([(x, y)], outliers={"far": 9 * x})
    )
    bayes = bb.Laplace(Keywords()).fit([{"pixels": x, "labels": y}])
    forms = (y[:, None], y.int()) if k > 1 else (y[:, None], y.bool(), y.float())
    for labels in forms:
        found = bayes.evaluate([{"pixels": x, "labels": labels}], outliers={"far": {"pixels": 9 * x}})
        assert found == pytest.approx(expected, abs=1e-12)


def test_an_evaluation_has_the_residual_in_it():
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), residual=True).fit([(x, y)])
    found = bayes.evaluate([(x, y)], outliers={"far": 1e6 * x})
    assert found["far/mmc"] == pytest.approx(1 / 3, abs=0.01)
    assert found["mmc"] == pytest.approx(bb.metrics.mmc(bayes.predict_proba(x)), abs=1e-6)


@pytest.mark.parametrize(
    "outliers, error, message",
    [
        (torch.zeros(3, 3), ArgumentError, "outliers is a Tensor.*mapping"),
        ([("far", torch.zeros(3, 3))], ArgumentError, "outliers is a list.*mapping"),
        ({"good": torch.zeros(3, 3), "bad": 7}, DataError, "outliers 'bad'.*got int"),
    ],
)
def test_outliers_that_are_none_raise_before_the_data_are_read(outliers, error, message):
    bayes, x, y = reference.fitted(3)
    read = []
    loader = (read.append(batch) or batch for batch in reference.loader(x, y))
    with pytest.raises(error, match=message):
        bayes.evaluate(loader, outliers=outliers)
    assert read == []


@pytest.mark.parametrize(
    "bad, message", [([], "empty"), (torch.full((2, 3), math.nan).double(), "holds NaN")]
)
def test_an_error_says_in_which_outliers_it_was_found(bad, message):
    bayes, x, y = reference.fitted(3)
    with pytest.raises(DataError, match=f"outliers 'letters': .*{message}"):
        bayes.evaluate([(x, y)], outliers={"noise": x + 1, "letters": bad})


@pytest.mark.parametrize("layers", ["last", "all"])
def test_labels_of_other_classes_raise(layers):
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), layers=layers).fit([(x, y)])
    with pytest.raises(DataError, match="batch 1: the labels are"):
        bayes.evaluate([(x, y), (x, y + 1)])
    with pytest.raises(DataError, match=r"expected \(40,\)"):
        bayes.evaluate([(x, y[:-1])])
    with pytest.raises(DataError, match="loader"):
        bayes.evaluate(x)
