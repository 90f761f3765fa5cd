"""Several labels for each input, from `fit` to files: against dense matrices and loops."""

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

import bitbayes as bb
import dense
import reference
import several
import several_tasks
from bitbayes.errors import ArgumentError, DataError, EdgeWarning, FewPointsWarning, ModelError
from bitbayes.fitting import last_layer
from bitbayes.io import checkpoint
from bitbayes.likelihoods import Bernoulli, Multilabel

ONE = {"likelihood": "multilabel"}


def data(model, n=30, inputs=3):
    """Inputs, and labels drawn from the model's own probabilities."""
    x = 2 * torch.randn(n, inputs, dtype=torch.float64)
    return x, torch.rand(n, model.head.out_features) < model(x).sigmoid().detach()


def fitted(k=3, n=30, **options):
    model = reference.network(k)
    x, y = data(model, n)
    return bb.Laplace(model, **ONE, **options).fit(reference.loader(x, y)), x, y


def relu_network(k=3, factor=3.0):
    model = reference.network(k, width=8)
    model.activation = nn.ReLU()
    with torch.no_grad():
        model.head.weight *= factor
    return model


def tuned(k=3, factor=3.0, **options):
    """A sharp network, tuned on labels of a softer one."""
    model = relu_network(k, factor)
    soft = relu_network(k)
    soft.load_state_dict(model.state_dict())
    with torch.no_grad():
        soft.head.weight /= factor
    (x, y), val = data(soft, 200), data(soft, 300)
    bayes = bb.Laplace(model, **ONE, **options).fit([(x, y)])
    return bayes.tune(reference.loader(*val, 50)), val


def total_loss(outputs, labels):
    return functional.binary_cross_entropy_with_logits(outputs, labels.to(outputs), reduction="sum")


def hessian(structure, weights, features, labels):
    """H (kD, kD) by autograd, as the structure approximates it."""
    h = reference.autograd_hessian(lambda w: total_loss(features @ w.T, labels))(weights)
    h = h.reshape(weights.numel(), weights.numel())
    if structure == "diag":
        return torch.diag(torch.diag(h))
    if structure == "isotropic":
        return torch.zeros_like(h)
    if structure == "kron":
        p = (features @ weights.T).sigmoid()
        outputs = torch.diag((p * (1 - p)).sum(0))
        return torch.kron(outputs, features.T @ features) / len(features)
    return h


# ---- the posterior


@pytest.mark.parametrize("structure", reference.STRUCTURES)
@pytest.mark.parametrize("k", [1, 3])
def test_the_covariance_of_the_logits_and_the_evidence_are_those_of_dense_matrices(structure, k):
    bayes, x, y = fitted(k, structure=structure, prior_variance=2.0)
    weights, features = reference.head_weights(bayes.model), reference.head_features(bayes.model, x)
    h = hessian(structure, weights, features, y)
    precision = h + torch.eye(len(h)).double() / 2
    expected = reference.logits_covariance(torch.linalg.inv(precision), features, k)
    found = bayes.logits(x)
    torch.testing.assert_close(found.covariance, expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(found.mean, bayes.model(x).detach())
    if structure != "isotropic":
        fit = -total_loss(features @ weights.T, y)
        complexity = weights.square().sum() / 2 + weights.numel() * math.log(2) + torch.logdet(precision)
        torch.testing.assert_close(bayes.log_evidence(), fit - complexity / 2, rtol=1e-9, atol=0)


@pytest.mark.parametrize("structure", ["full", "diag"])
def test_the_covariance_over_all_layers_is_that_of_dense_matrices(structure):
    model, x, _ = dense.case("mlp")
    y = torch.rand(12, 3) < 0.5
    bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=0.5, **ONE)
    bayes.fit(dense.loader(x, y))
    j = dense.jacobians(model, x)
    p = model(x).sigmoid().detach()
    h = torch.einsum("nkp,nk,nkq->pq", j, p * (1 - p), j)
    h = torch.diag(torch.diag(h)) if structure == "diag" else h
    sigma = torch.linalg.inv(h + 2 * torch.eye(len(h)).double())
    dense.close(bayes.logits(x).covariance, dense.logits_covariance(model, sigma, x))


def test_kron_over_all_layers_has_the_sums_of_every_layer():
    """B = Σ JᵀΛJ at the head's outputs, which is Σ Λ, and A = Σ φ̃φ̃ᵀ."""
    model = reference.network(3)
    x, y = data(model)
    bayes = bb.Laplace(model, layers="all", prior_variance=1.0, **ONE).fit(reference.loader(x, y))
    found, p = bayes.posterior.fitted.curvature["head"], model(x).sigmoid().detach()
    torch.testing.assert_close(found.outputs[0], torch.diag((p * (1 - p)).sum(0)))
    features = reference.head_features(model, x)
    torch.testing.assert_close(found.inputs[0], features.T @ features)


def test_labels_of_any_type_give_the_same_fit():
    bayes, x, y = fitted(prior_variance=1.0)
    for labels in (y.long(), y.double(), y.to(torch.uint8)):
        again = bb.Laplace(bayes.model, prior_variance=1.0, **ONE).fit(reference.loader(x, labels))
        assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


@pytest.mark.parametrize(
    "options", [{}, {"structure": "full"}, {"structure": "diag"}, {"layers": "all"}], ids=str
)
def test_parts_add_up_to_the_whole(options):
    whole, x, y = fitted(prior_variance=1.0, **options)
    first, second = (
        bb.Laplace(whole.model, prior_variance=1.0, **options, **ONE).fit([(x[rows], y[rows])])
        for rows in (slice(11), slice(11, 30))
    )
    both = bb.merge([first, second])
    updated = first.update([(x[11:], y[11:])])
    for bayes in (both, updated):
        torch.testing.assert_close(bayes.predict_proba(x), whole.predict_proba(x), rtol=1e-10, atol=0)
        torch.testing.assert_close(bayes.log_evidence(), whole.log_evidence())
    less = bb.merge(both, without=second)
    again = bb.Laplace(whole.model, prior_variance=1.0, **options, **ONE).fit([(x[:11], y[:11])])
    torch.testing.assert_close(less.predict_proba(x), again.predict_proba(x), rtol=1e-8, atol=0)
    with pytest.raises(DataError, match=r"twice|already"):
        bb.merge([both, second])


def test_several_processes_find_what_one_finds():
    (expected,) = several.run(1, several_tasks.several_labels)
    for found in several.run(2, several_tasks.several_labels):
        for own, one in zip(found, expected, strict=True):
            torch.testing.assert_close(own, one, rtol=1e-9, atol=1e-12)


def test_an_interrupted_fit_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "PAUSE", 0.0)
    monkeypatch.setattr(last_layer, "FIT_BYTES", 16)  # every batch is summed up at once
    whole, x, y = fitted(prior_variance=1.0)
    batches = reference.loader(x, y)

    class Interrupted(list):
        def __iter__(self):
            yield from batches[:3]
            raise KeyboardInterrupt

    fresh = bb.Laplace(whole.model, prior_variance=1.0, **ONE)
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(Interrupted(batches), checkpoint=tmp_path)
    assert list(tmp_path.iterdir())
    fresh.fit(batches, checkpoint=tmp_path)
    assert torch.equal(fresh.predict_proba(x), whole.predict_proba(x))
    assert torch.equal(fresh.log_evidence(), whole.log_evidence())


# ---- one label is a Bernoulli


@pytest.mark.parametrize("residual", [False, True])
def test_one_label_is_the_bernoulli_likelihood(residual, monkeypatch):
    # The Bernoulli's residual measures the distance from its classes, too, and a label is none.
    monkeypatch.setattr(Bernoulli, "labels_are_classes", False)
    model = relu_network(1, 3.0)
    (x, y), val = data(model, 200), data(model, 300)
    several_labels, one = (
        bb.Laplace(model, likelihood=name, structure="full", residual=residual).fit([(x, y)]).tune([val])
        for name in ("multilabel", "bernoulli")
    )
    assert several_labels.prior_variance == one.prior_variance
    assert several_labels.temperature == pytest.approx(one.temperature, rel=1e-9)
    far = torch.cat([x, 30 * x])
    assert several_labels.predict_proba(far).shape == (400, 1)
    pairs = [
        (several_labels.predict_proba(far), one.predict_proba(far)[:, 1:]),
        (several_labels(far), one(far)),
        (several_labels.confidence(far), one.confidence(far)),
        (several_labels.score(far), one.score(far)),
        (several_labels.log_evidence(), one.log_evidence()),
        (several_labels.limit(x).confidence[:, 0], one.limit(x).confidence),
        *zip(several_labels.uncertainty(far)[:3], one.uncertainty(far)[:3], strict=True),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)
    ours, theirs = (each.evaluate([val]) for each in (several_labels, one))
    for name in ("accuracy", "nll", "mmc", "aurc"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-9)
    assert 2 * ours["brier"] == pytest.approx(theirs["brier"], rel=1e-9)  # that of both classes
    for objective in ("nll", "ood", "evidence"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EdgeWarning)
            several_labels.tune([val], objective=objective), one.tune([val], objective=objective)
        assert several_labels.prior_variance == one.prior_variance


# ---- tuning


def test_tuning_finds_a_temperature_that_softens_sharp_labels():
    bayes, val = tuned(residual=False)
    plain = bayes.model(val[0]).sigmoid().detach()
    assert bayes.temperature > 1.5
    found = bayes.evaluate([val])
    assert found["nll"] < bb.metrics.label_nll(plain, val[1])
    assert found["ece"] < bb.metrics.label_ece(plain, val[1])


def test_the_objective_nll_is_that_of_a_loop():
    bayes, (x, y) = tuned(residual=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        chosen, losses = bayes.tune([(x, y)], objective="nll").prior_variance, {}
    for value in bayes.posterior.candidates():
        bayes.prior_variance = value
        p, total = bayes.predict_proba(x), 0.0
        for row, own in zip(p.tolist(), y.tolist(), strict=True):
            total -= sum(math.log(each if true else 1 - each) for each, true in zip(row, own, strict=True))
        losses[value] = total / len(x)
    assert losses[chosen] <= min(losses.values()) * (1 + 1e-6)


@pytest.mark.parametrize("method", ["probit", "quadrature"])
def test_calibrated_finds_the_temperature_of_least_cost(method):
    """The NLL and the weak prior on T, as docs/prior.md has them, at the prior variance that was chosen."""
    bayes, (x, y) = tuned(residual=False, predictive=method)
    gaussian, chosen = bayes.logits(x), bayes.temperature
    variances = gaussian.variances()
    shrinkage = (1 + reference.KAPPA * variances.median(1).values).log().median() / 2

    def cost(temperature):
        bayes.temperature = temperature
        p = bayes.predict_proba(x)
        ratio = math.log(temperature) + float(shrinkage)
        weak = (ratio / (0.15 if ratio < 0 else 0.35)) ** 2 / 2 / len(x)
        return float(functional.binary_cross_entropy(p, y.double(), reduction="none").sum(1).mean()) + weak

    least = min(cost(chosen * math.exp(step / 50)) for step in range(-50, 51))
    assert cost(chosen) <= least + 2e-3 * abs(least)


def test_outliers_of_tuning_may_have_labels_and_lose_their_confidence():
    bayes, (x, y) = tuned()
    before = bayes.confidence(5 * x).mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        for penalty in ("entropy", "uniform"):
            bayes.tune([(x, y)], objective="ood", outliers=[(5 * x, y.double())], penalty=penalty, weight=1.0)
    assert bayes.confidence(5 * x).mean() <= before


def test_few_points_are_counted_as_wrong_if_one_of_their_labels_is():
    bayes, x, y = fitted()
    wrong = int(((bayes.model(x[:10]) > 0) != y[:10]).any(1).sum())
    with pytest.warns(FewPointsWarning, match="there are 10 validation points, of which"):
        bayes.tune([(x[:10], y[:10])])
    p = bayes.predict_proba(x[:10])
    assert int(((p > 0.5) != y[:10]).any(1).sum()) == wrong


# ---- predictions


@pytest.mark.parametrize("method", ["probit", "quadrature", "mc"])
def test_predictions_are_those_of_each_label_alone(method):
    bayes, x, _ = fitted(prior_variance=4.0)
    gaussian = bayes.logits(x)
    generator = torch.Generator().manual_seed(0)
    samples = {"samples": 20_000, "generator": generator} if method == "mc" else {}
    found = bayes.predict_proba(x, method=method, **samples)
    expected = [
        [reference.sigmoid_expectation(float(m), float(v)) for m, v in zip(*row, strict=True)]
        for row in zip(gaussian.mean, gaussian.variances(), strict=True)
    ]
    expected = torch.tensor(expected, dtype=torch.float64)
    tolerance = {"probit": 0.02, "quadrature": 1e-9, "mc": 5 * 0.5 / math.sqrt(20_000)}[method]
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    assert found.shape == (30, 3) and not torch.allclose(found.sum(1), torch.ones(30).double())


def test_drawn_networks_give_the_average_of_their_probabilities():
    bayes, x, _ = fitted(layers="all", structure="full", prior_variance=0.1, residual=False)
    found = bayes.predict_proba(
        x, method="sampled_networks", samples=4000, generator=torch.Generator().manual_seed(0)
    )
    draws = bayes.sample(4000, generator=torch.Generator().manual_seed(0))
    run = torch.vmap(lambda weights: torch.func.functional_call(bayes.model, weights, (x,)))
    torch.testing.assert_close(found, run(draws).sigmoid().mean(0))


def test_loaders_with_labels_are_taken_everywhere():
    bayes, (x, y) = tuned()
    for labels in (y, y.long(), y.double()):
        loader = reference.loader(x, labels, 64)
        torch.testing.assert_close(bayes.predict_proba(loader), bayes.predict_proba(x))
        assert bayes.threshold(loader, accept=0.9) == pytest.approx(bayes.threshold(x, accept=0.9))
        probabilities, scores = bayes.predict_and_score(loader)
        torch.testing.assert_close(probabilities, bayes.predict_proba(x))
        torch.testing.assert_close(scores, bayes.score(x))
    t = bayes.threshold(x, accept=0.75, by="confidence")
    assert int((bayes.confidence(x) >= t).sum()) == 225


def test_the_confidence_and_the_uncertainty_are_those_of_all_labels():
    bayes, (x, _) = tuned()
    p = bayes.predict_proba(x)
    torch.testing.assert_close(bayes.confidence(x), torch.maximum(p, 1 - p).prod(1))
    parts = bayes.uncertainty(x, samples=2000)
    torch.testing.assert_close(parts.entropy, parts.expected_entropy + parts.mutual_information)
    q = bayes.predict_proba(x, method="quadrature")
    entropy = (torch.special.entr(q) + torch.special.entr(1 - q)).sum(1)
    assert float((parts.entropy - entropy).abs().max()) < 0.15  # of 2,000 draws
    assert parts.variance.shape == (300, 3)


def test_far_away_every_label_is_as_likely_as_not():
    bayes, (x, _) = tuned()
    far = 1e12 * x
    torch.testing.assert_close(
        bayes.predict_proba(far), torch.full((300, 3), 0.5).double(), rtol=0, atol=1e-4
    )
    assert float(bayes.score(30 * x).max()) < float(bayes.score(x).median())
    limit = bayes.limit(x)
    assert limit.confidence.shape == limit.label.shape == (300, 3)
    assert bool((limit.confidence == 0.5).all())


@pytest.mark.parametrize("method", ["probit", "quadrature"])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_limits_without_a_residual_are_those_of_each_label(method, layers):
    model = relu_network()
    x, y = data(model, 50)
    bayes = bb.Laplace(model, layers=layers, residual=False, predictive=method, prior_variance=1.0, **ONE)
    bayes.fit([(x, y)])
    limit, far = bayes.limit(x[:10]), bayes.predict_proba(1e9 * x[:10])
    torch.testing.assert_close(limit.confidence, torch.maximum(far, 1 - far), rtol=0, atol=1e-6)
    assert torch.equal(limit.label, (far > 0.5).long())


def one_label(model, number):
    """The same network with the logit of one label alone."""
    one = relu_network(1)
    head = {f"head.{name}": value[number : number + 1] for name, value in model.head.state_dict().items()}
    one.load_state_dict({**model.state_dict(), **head})
    return one


@pytest.mark.parametrize("method", ["probit", "quadrature"])
@pytest.mark.parametrize("structure", ["full", "diag"])
def test_bounds_and_certificates_are_those_of_each_label_by_itself(method, structure):
    """The curvature has no entries between labels, so each label has the posterior of a Bernoulli."""
    model = relu_network()
    x, y = data(model, 60)
    options = {"structure": structure, "predictive": method, "prior_variance": 2.0, "residual": False}
    several_labels = bb.Laplace(model, **ONE, **options).fit([(x, y)])
    several_labels.temperature = 0.7
    rays = x[:12]
    at_most = 0.5 * (1 + float(several_labels.limit(rays).confidence.median()))
    found = several_labels.certify(rays, at_most=at_most)
    assert found.alpha.shape == (12,)
    assert found.limit.shape == found.confidence.shape == found.beyond.shape == (12, 3)
    for number in range(3):
        one = bb.Laplace(one_label(model, number), **options).fit([(x, y[:, number])])
        one.temperature = 0.7
        expected = one.certify(rays, at_most=at_most)
        torch.testing.assert_close(found.alpha, expected.alpha)
        for each, own in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(each[:, number], own, rtol=1e-7, atol=1e-9)
        for form in ("tight", "theorem"):
            ours, theirs = several_labels.bound(form=form)[number], one.bound(form=form)
            if form == "tight":
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
            else:  # the smallest eigenvalue of all labels' covariances
                assert float(ours) >= float(theirs) - 1e-12


@pytest.mark.parametrize("layers", ["last", "all"])
def test_no_label_exceeds_its_bound_or_its_certificate(layers):
    model = relu_network()
    x, y = data(model, 60)
    bayes = bb.Laplace(model, layers=layers, prior_variance=5.0, residual=False, **ONE).fit([(x, y)])
    rays = x[:8]
    certificate = bayes.certify(rays)
    bound = bayes.bound(rays)
    assert bound.shape == ((3,) if layers == "last" else (8, 3))
    assert bool((certificate.limit <= certificate.confidence).all())
    assert bool((certificate.limit <= bound + 1e-9).all())
    assert bool((bound <= bayes.bound(rays, form="theorem") + 1e-12).all())
    for factor in (1.001, 1.1, 2.0, 10.0, 1e3, 1e6):
        p = bayes.predict_proba(rays * factor * certificate.alpha.clamp_min(1e-2)[:, None])
        assert bool((torch.maximum(p, 1 - p) <= certificate.confidence + 1e-9).all())
    at_zero = bayes.bound(torch.zeros(2, 3, dtype=torch.float64), form="theorem")
    assert layers == "last" or bool((at_zero == 1).all())


@pytest.mark.parametrize("layers", ["last", "all"])
def test_beyond_holds_for_each_label_with_the_residual(layers):
    bayes, (x, _) = tuned(layers=layers)
    rays = x[:6]
    certificate = bayes.certify(rays, at_most=0.7)
    assert bool((certificate.limit == 0.5).all()) and bool((bayes.bound(rays) == 0.5).all())
    assert bool(certificate.beyond.isfinite().all())
    if layers == "last":
        assert bool((certificate.beyond < certificate.alpha[:, None]).any())
    for number in range(3):
        for factor in (1.0, 1.1, 2.0, 10.0, 1e3):
            p = bayes.predict_proba(rays * factor * certificate.beyond[:, number, None])[:, number]
            assert float(torch.maximum(p, 1 - p).max()) <= 0.7 + 1e-9


@pytest.mark.filterwarnings("ignore::bitbayes.errors.FewPointsWarning")
def test_evaluate_measures_labels_and_outliers():
    bayes, (x, y) = tuned()
    p, scores = bayes.predict_and_score(x)
    found = bayes.evaluate(reference.loader(x, y, 64), outliers={"far": [(30 * x, y)]})
    expected = bb.metrics.of_labels(p, y, torch.maximum(p, 1 - p).prod(1))
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert found["far/auroc"] == pytest.approx(bb.metrics.auroc(scores, bayes.score(30 * x)))
    assert found["far/mmc"] == pytest.approx(bb.metrics.label_mmc(bayes.predict_proba(30 * x)))
    assert bayes.evaluate([(x, y)], outliers={"far": 30 * x}, by="confidence")["far/auroc"] > 0.5
    t = bayes.label_thresholds(reference.loader(x, y, 64), recall=0.9)
    torch.testing.assert_close(t, bb.metrics.label_thresholds(p, y, recall=0.9))


# ---- files


def test_files_and_state_dicts_keep_all(tmp_path):
    bayes, (x, _) = tuned()
    bayes.save(tmp_path / "labels.safetensors")
    again = bb.Laplace.load(tmp_path / "labels.safetensors", bayes.model)
    other = bb.Laplace(bayes.model, **ONE)
    other.load_state_dict(bayes.state_dict())
    for found in (again, other):
        assert found.likelihood == "multilabel" and "3 labels" in repr(found)
        assert torch.equal(found.predict_proba(x), bayes.predict_proba(x))
        assert torch.equal(found.score(x), bayes.score(x))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("method", ["probit", "quadrature"])
def test_exported_graphs_give_the_same_probabilities_and_confidences(tmp_path, method):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = relu_network().float()
    x, y = (each.float() for each in data(relu_network(), 200))
    bayes = bb.Laplace(model, predictive=method, **ONE).fit([(x, y)]).tune([(x, y)])
    probabilities, confidence = bayes.predict_proba(x), bayes.confidence(x)
    bayes.export(tmp_path / "labels.onnx", x[:2], score="confidence")
    session = runtime.InferenceSession(tmp_path / "labels.onnx")
    logits, ranks = map(torch.from_numpy, session.run(None, {"x": x.numpy()}))
    torch.testing.assert_close(logits.sigmoid(), probabilities, rtol=0, atol=1e-5)
    torch.testing.assert_close(ranks, confidence, rtol=0, atol=1e-5)
    bayes.export(tmp_path / "labels.pt2", x[:2], score=True)
    logits, scores = torch.export.load(tmp_path / "labels.pt2").module()(x)
    torch.testing.assert_close(logits.sigmoid(), probabilities, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores, bayes.score(x), rtol=1e-4, atol=1e-4)


def test_points_that_were_passed_once_are_tuned_as_by_tune():
    bayes, (x, y) = tuned()
    passed = bb.PassedPoints.of(bayes, [(x, y)])
    settings = passed.tune()
    bayes.tune([(x, y)])
    assert settings.temperature == pytest.approx(bayes.temperature)
    probabilities, scores = passed.predict(bayes.settings)
    torch.testing.assert_close(probabilities, bayes.predict_proba(x))
    torch.testing.assert_close(scores, bayes.score(x))


# ---- what there is not


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x)


def test_what_several_labels_do_not_have_raises_and_says_so():
    bayes, x, y = fitted(prior_variance=1.0)
    loader = [(x, y)]
    mc = bb.Laplace(relu_network(), predictive="mc", **ONE).fit(loader)
    for error, message, call in [
        (ArgumentError, "'mc' has no bound", lambda: mc.bound()),
        (ArgumentError, "'mc' has no certificate", lambda: mc.certify(x)),
        (ArgumentError, "use structure='kron' for", lambda: fitted(structure="lowrank")),
        (ArgumentError, "'pairwise' does not fit", lambda: fitted(predictive="pairwise")),
        (ArgumentError, "no values: use `predict_proba`", lambda: bayes.predict(x)),
        (ArgumentError, "no noise variance", lambda: bb.Laplace(bayes.model, noise_variance=1.0, **ONE)),
        (DataError, r"shape \(30,\); expected \(30, 3\)", lambda: bayes.update([(x, y[:, 0])])),
        (DataError, r"\[0, 2\]; likelihood='multilabel'", lambda: bayes.update([(x, y + y.long())])),
        (DataError, "needs 0 and 1", lambda: bayes.tune([(x, y / 2)])),
        (DataError, "needs 0 and 1", lambda: bayes.evaluate([(x, y / 2)])),
        (DataError, "needs 0 and 1", lambda: bayes.label_thresholds([(x, y / 2)])),
        (
            ArgumentError,
            "give one of them",
            lambda: bayes.label_thresholds(loader, precision=0.9, recall=0.9),
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
    ids = torch.randn(5, 6, 4)
    with pytest.raises(ModelError, match="one row of outputs for each input"):
        bb.Laplace(Tokens(), **ONE).fit([(ids, torch.zeros(5, 6, 3))])


def test_thresholds_of_labels_need_labels():
    bayes, x, y = reference.fitted(3, prior_variance=1.0)
    with pytest.raises(
        ArgumentError, match="this is for likelihood='multilabel', and `threshold` for scores"
    ):
        bayes.label_thresholds([(x, y)])


def test_labels_of_another_likelihood_are_told_which():
    model = reference.network(3)
    x, y = data(model)
    with pytest.raises(
        DataError, match=r"likelihood='multilabel'\); if they are one-hot, give labels.argmax"
    ):
        bb.Laplace(model).fit([(x, y)])
    with pytest.raises(DataError, match=r"For regression, use Laplace\(model, likelihood='gaussian'\)"):
        bb.Laplace(model).fit([(x, x[:, 0])])
    with pytest.raises(DataError, match=r"For regression, use Laplace\(model, likelihood='gaussian'\)"):
        bb.Laplace(reference.network(1)).fit([(x, x[:, 0])])


def test_many_labels_have_the_kronecker_structure():
    model = nn.Linear(2, 4200)
    x = torch.randn(6, 2)
    bayes = bb.Laplace(model, prior_variance=1.0, **ONE).fit([(x, torch.rand(6, 4200) < 0.1)])
    assert "structure='kron' (auto)" in repr(bayes)
    assert bayes.predict_proba(x).shape == (6, 4200) and Multilabel().takes(4200)
