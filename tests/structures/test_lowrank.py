"""The structure for many classes: that of "kron" where the rank suffices, and how close where it does not."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError, ModelError, SketchWarning
from bitbayes.structures import lowrank
from curvatures import of_probabilities, probabilities, smallest_eigenvalue

VARIANCES = (1e-4, 0.3, 30.0, 83_000.0, 1e10)


def both(k, bias=True, n=30, **options):
    """The structure and "kron", fitted to the same data, and the data."""
    model, (x, y) = reference.network(k, bias), reference.data(k, n)
    made = [bb.Laplace(model, structure=name, **options) for name in ("lowrank", "kron")]
    return *(each.fit(reference.loader(x, y)) for each in made), x, y


def curvature_of(bayes):
    (curvature,) = bayes.posterior.fitted.curvature.values()
    return curvature


@pytest.mark.parametrize("prior_variance", VARIANCES)
@pytest.mark.parametrize("k, bias", [(2, True), (3, False), (40, True)])
def test_where_the_rank_suffices_it_is_the_kronecker_structure(k, bias, prior_variance):
    ours, kron, x, _ = both(k, bias, prior_variance=prior_variance)
    assert curvature_of(ours).relative_error == 0
    found, expected = ours.logits(x), kron.logits(x)
    centred = [each.scaled_centred()[1] for each in (found, expected)]
    torch.testing.assert_close(*centred, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.variances(), expected.variances(), rtol=1e-9, atol=0)
    pairs = [each.scaled_mean_pair_variance() for each in (found, expected)]
    torch.testing.assert_close(*pairs, rtol=1e-9, atol=0)
    for method in ("meanfield", "probit", "bridge"):
        probs = [each.predict_proba(x, method=method) for each in (ours, kron)]
        torch.testing.assert_close(*probs, rtol=0, atol=1e-9)
    torch.testing.assert_close(ours.score(x), kron.score(x), rtol=1e-9, atol=0)


def test_its_variances_are_those_of_the_dense_posterior():
    bayes, _, x, y = both(5, prior_variance=2.0)
    weights, features = reference.head_weights(bayes.model), reference.head_features(bayes.model, x)
    sigma = reference.covariance("kron", weights, features, y, 2.0)
    dense = reference.logits_covariance(sigma, features, 5).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(bayes.logits(x).variances(), dense, rtol=1e-8, atol=0)


@pytest.mark.parametrize("prior_variance", VARIANCES)
def test_the_evidence_and_its_derivative_are_those_of_the_kronecker_structure(prior_variance):
    ours, kron, _, _ = both(10)
    gradients = []
    for bayes in (ours, kron):
        value = torch.tensor(prior_variance, dtype=torch.float64, requires_grad=True)
        evidence = bayes.log_evidence(value)
        gradients.append(torch.autograd.grad(evidence, value)[0])
    torch.testing.assert_close(ours.log_evidence(prior_variance), kron.log_evidence(prior_variance))
    # The derivative of a polynomial through points a quarter apart has fewer digits than the polynomial.
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=0)
    assert ours.tune(objective="evidence").prior_variance == kron.tune(objective="evidence").prior_variance


@pytest.mark.parametrize("form", ["tight", "theorem"])
@pytest.mark.parametrize("method", ["meanfield", "probit"])
def test_bounds_limits_and_certificates_are_those_of_the_kronecker_structure(method, form):
    ours, kron, x, _ = both(6, prior_variance=3.0, predictive=method)
    ours.model.activation = kron.model.activation = nn.ReLU()
    data = reference.loader(x, torch.arange(len(x)) % 6)
    ours, kron = ours.fit(data), kron.fit(data)
    torch.testing.assert_close(ours.bound(form=form), kron.bound(form=form), rtol=1e-9, atol=0)
    torch.testing.assert_close(ours.limit(x).confidence, kron.limit(x).confidence, rtol=1e-8, atol=0)
    found, expected = ours.certify(x[:5]), kron.certify(x[:5])
    torch.testing.assert_close(found.confidence, expected.confidence, rtol=1e-8, atol=0)


def test_tuning_chooses_the_numbers_of_the_kronecker_structure():
    ours, kron, x, y = both(12, n=60, predictive="meanfield")
    data = reference.loader(x, y)
    for each in (ours, kron):
        each.tune(data)
    assert ours.prior_variance == kron.prior_variance
    assert math.isclose(ours.temperature, kron.temperature, rel_tol=1e-6)


def test_draws_have_the_posteriors_moments():
    bayes, _, x, y = both(3, prior_variance=0.5)
    n = 20_000
    draws = bayes.sample(n, generator=torch.Generator().manual_seed(1))
    flat = torch.cat([draws["head.weight"], draws["head.bias"][:, :, None]], 2).reshape(n, -1)
    weights = reference.head_weights(bayes.model)
    sigma = reference.covariance("kron", weights, reference.head_features(bayes.model, x), y, 0.5)
    variances = torch.diag(sigma)
    # Five standard errors of an entry of the empirical mean, and of the empirical covariance.
    assert float(((flat.mean(0) - weights.flatten()).abs() / (variances / n).sqrt()).max()) < 5
    standard = ((torch.outer(variances, variances) + sigma.square()) / n).sqrt()
    assert float(((torch.cov(flat.T) - sigma).abs() / standard).max()) < 5


def test_float32_agrees_with_float64_to_its_digits():
    double, _, x, y = both(20, prior_variance=1e6)
    expected = double.score(x), double.predict_proba(x)
    single = bb.Laplace(double.model.float(), structure="lowrank", prior_variance=1e6)
    single = single.fit(reference.loader(x.float(), y))
    torch.testing.assert_close(single.predict_proba(x.float()).double(), expected[1], rtol=0, atol=6e-6)
    torch.testing.assert_close(single.score(x.float()).double(), expected[0], rtol=1e-5, atol=0)


def test_update_is_a_fit_on_both_and_leaves_the_first_as_it_was():
    bayes, kron, x, _ = both(10, prior_variance=2.0)
    before = {name: value.clone() for name, value in curvature_of(bayes).tensors().items()}
    first = curvature_of(bayes)
    more = reference.loader(*reference.data(10, 40))
    bayes.update(more), kron.update(more)
    assert all(torch.equal(value, first.tensors()[name]) for name, value in before.items())
    torch.testing.assert_close(bayes.score(x), kron.score(x), rtol=1e-9, atol=0)


def test_a_saved_posterior_predicts_the_same(tmp_path):
    bayes, _, x, _ = both(10, prior_variance=2.0)
    bayes.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(tmp_path / "bayes.safetensors", bayes.model)
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert again.structure == "lowrank"


@pytest.mark.parametrize("method", ["meanfield", "probit"])
def test_an_exported_graph_predicts_the_same(tmp_path, method):
    bayes, _, x, _ = both(10, prior_variance=2.0, predictive=method)
    bayes.export(tmp_path / "bayes.pt2", x[:2])
    graph = torch.export.load(tmp_path / "bayes.pt2").module()
    torch.testing.assert_close(graph(x).softmax(1), bayes.predict_proba(x), rtol=0, atol=1e-12)


def test_onnxruntime_gives_the_same_numbers(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    bayes, x, _ = reference.fitted(10, dtype=torch.float32, structure="lowrank", prior_variance=2.0)
    bayes.export(tmp_path / "bayes.onnx", x[:2])
    session = onnxruntime.InferenceSession(tmp_path / "bayes.onnx")
    (found,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found).softmax(1), bayes.predict_proba(x), rtol=0, atol=1e-6)


@torch.inference_mode()
def predicted_in_inference_mode(bayes, x):
    return bayes.predict_proba(x)


def test_the_drop_in_is_differentiable_after_predictions_in_inference_mode():
    bayes, _, x, _ = both(10, prior_variance=2.0)
    predicted_in_inference_mode(bayes, x)
    x = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(bayes, (x[:2],))


@settings(deadline=None)
@given(
    n=st.integers(1, 60),
    k=st.integers(2, 12),
    rank=st.integers(1, 6),
    block=st.integers(1, 25),
    gain=st.floats(0, 6),
    seed=st.integers(0, 1000),
)
def test_what_the_sketch_loses_lies_within_its_estimate(n, k, rank, block, gain, seed):
    p = probabilities(n, k, gain, seed)
    kept = of_probabilities(p, rank, block)
    centred = p - p.mean(0)
    lost = centred.T @ centred - kept.directions.T @ kept.directions
    rounding = 1e-12 * n
    assert smallest_eigenvalue(lost) > -rounding
    assert smallest_eigenvalue(torch.diag(kept.error) - lost) > -rounding
    assert float(kept.directions.sum(1).abs().max()) < rounding
    if min(n, k) - 1 <= len(kept.directions):
        assert kept.relative_error == 0


def test_twins_are_covered_by_the_estimate_and_warned_of(monkeypatch):
    """Of two classes that are always confused only the sum is certain, and a few directions keep few such."""
    monkeypatch.setattr(lowrank, "RANK", 8)
    torch.manual_seed(0)
    centres = 3 * torch.randn(20, 10).double()
    head = nn.Linear(10, 40, bias=False).double()
    head.weight.data = centres.repeat_interleave(2, 0)
    place = torch.arange(300) % 20
    data = [(centres[place] + torch.randn(300, 10), 2 * place)]
    bayes = bb.Laplace(head, structure="lowrank", prior_variance=100.0, residual=False).fit(data)
    kept, p = curvature_of(bayes), head(data[0][0]).detach().softmax(1)
    spread = p - p.mean(0)
    lost = (spread.T @ spread - kept.directions.T @ kept.directions) / kept.sums.outer(kept.sums).sqrt()
    assert 0.9 < float(torch.linalg.eigvalsh(lost).max()) <= kept.relative_error
    with pytest.warns(SketchWarning, match="8 directions.*'kron' or 'diag'"):
        ours = bayes.logits(data[0][0]).scaled_centred()[1]
    kron = bb.Laplace(head, structure="kron", prior_variance=100.0, residual=False).fit(data)
    ratios = ours / kron.logits(data[0][0]).scaled_centred()[1]
    assert float(ratios.median()) < 0.1  # which is what the warning is about


def test_a_confident_network_is_warned_of_although_the_estimate_is_small():
    """Little of diag(Σₙ pₙ) is lost, and much of B, which is less than that."""
    torch.manual_seed(0)
    head = nn.Linear(5, 200).double()
    head.weight.data *= 100
    x = torch.randn(300, 5, dtype=torch.float64)
    data = [(x, head(x).argmax(1))]
    bayes = bb.Laplace(head, structure="lowrank", prior_variance=100.0, residual=False).fit(data)
    assert curvature_of(bayes).relative_error < 0.25
    new = 2 * torch.randn(20, 5, dtype=torch.float64)
    with pytest.warns(SketchWarning, match="64 directions"):
        ours = bayes.logits(new).scaled_centred()[1]
    kron = bb.Laplace(head, structure="kron", prior_variance=100.0, residual=False).fit(data)
    assert float((ours / kron.logits(new).scaled_centred()[1]).min()) < 0.4


@pytest.mark.parametrize("scale", [2.0, 4.0, 6.0])
@pytest.mark.parametrize("kind", ["pairs", "uneven"])
def test_without_a_warning_scores_and_probabilities_are_those_of_kron(kind, scale):
    """Heads of 300 classes, one more confident than the other, at a wide prior, where a loss matters most."""
    k, d, generator = 300, 32, torch.Generator().manual_seed(0)
    centres = torch.randn(k, d, generator=generator, dtype=torch.float64)
    frequencies = torch.ones(k).double() if kind == "pairs" else 1 / torch.arange(1.0, k + 1).double()
    if kind == "pairs":
        centres = centres[::2].repeat_interleave(2, 0) + 0.15 * centres
    y = torch.multinomial(frequencies, 1500, replacement=True, generator=generator)
    x = centres[y] / d**0.5 + 0.1 * torch.randn(1500, d, generator=generator, dtype=torch.float64)
    head = nn.Linear(d, k).double()
    head.weight.data, head.bias.data = scale * centres / d**0.5, (frequencies / frequencies.sum()).log()
    ours, kron = (
        bb.Laplace(head, structure=each, prior_variance=1e4, residual=False).fit([(x, y)])
        for each in ("lowrank", "kron")
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        score, found = ours.score(x[:300]), ours.predict_proba(x[:300], method="meanfield")
    gap = (score - kron.score(x[:300])).abs().max()
    distance = (found - kron.predict_proba(x[:300], method="meanfield")).abs().max()
    assert bool(seen) == (scale > 2)
    assert seen or (gap < 0.02 and distance < 1e-4)


def test_the_estimate_of_merged_parts_is_that_of_both():
    p = probabilities(120, 30)
    first, second = of_probabilities(p[:60], 5), of_probabilities(p[60:], 5)
    total = first + second
    assert bool((total.error >= first.error + second.error).all())
    first.add_(second)
    assert all(torch.equal(value, total.tensors()[name]) for name, value in first.tensors().items())
    with pytest.raises(ArgumentError, match="no data can be taken out"):
        total.without(second, 1e6)


def test_classes_that_are_never_predicted_are_as_uncertain_as_the_prior():
    model = nn.Linear(3, 6).double()
    with torch.no_grad():
        model.weight[4:], model.bias[4:] = 0, -2000.0
    x, y = torch.randn(50, 3).double(), torch.arange(50) % 4
    bayes = bb.Laplace(model, structure="lowrank", prior_variance=1e6).fit([(x, y)])
    squared_norms = 1 + x.square().sum(1, keepdim=True)  # with the bias
    found = bayes.logits(x).variances()[:, 4:]
    torch.testing.assert_close(found, 1e6 * squared_norms.expand(-1, 2), rtol=1e-12, atol=0)


class LargestTensor(TorchDispatchMode):
    """Remembers the number of entries of the largest tensor that was made."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // 8)
        return made


def test_no_matrix_of_classes_by_classes_is_ever_made(monkeypatch):
    monkeypatch.setattr(lowrank, "RANK", 4)
    k = 3000
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, k)).double()
    x, y = torch.randn(40, 3).double(), torch.arange(40)
    with LargestTensor() as seen:
        bayes = bb.Laplace(model, structure="lowrank", prior_variance=2.0).fit(reference.loader(x, y))
        bayes.predict_proba(x), bayes.score(x), bayes(x), bayes.log_evidence()
        bayes.tune(reference.loader(x, y)), bayes.evaluate(reference.loader(x, y))
        bayes.near_variance = bayes.beyond_variance = 0.0
        bayes.bound(form="theorem"), bayes.limit(x[:3]), bayes.sample(2)
    assert seen.numbers < 400 * k  # the table; k² would be eight times that


@pytest.mark.parametrize(
    "ask",
    [
        lambda bayes, x: bayes.predict_proba(x, method="pairwise"),
        lambda bayes, x: bayes.predict_proba(x, method="mc"),
        lambda bayes, x: bayes.uncertainty(x),
        lambda bayes, x: bayes.logits(x).covariance,
    ],
)
def test_what_needs_covariances_of_logits_says_what_to_do(ask):
    bayes, _, x, _ = both(5)
    with pytest.raises(
        ArgumentError, match=r"'lowrank' knows the variances.*'meanfield', 'probit' or 'bridge'"
    ):
        ask(bayes, x)


def test_a_predictive_of_pairs_is_refused_before_the_pass():
    with pytest.raises(ArgumentError, match=r"method='mc'.*'meanfield'"):
        both(5, predictive="mc")


def test_one_logit_is_refused():
    with pytest.raises(ModelError, match="for many classes: use structure='full'"):
        reference.fitted(1, structure="lowrank")
