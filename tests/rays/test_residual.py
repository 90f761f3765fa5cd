"""The ReLU-GP residual: its formula, its joining, tuning, files, and what it does at infinity."""

import pytest
import torch
from ray_cases import CERTIFIED, METHODS, NETWORKS, deltas, fine_grid, laplace, largest_beyond, network

import bitbayes as bb
from bitbayes import metrics
from bitbayes.data import digits, digits_lenet, validation_split
from bitbayes.errors import ArgumentError, DataError
from bitbayes.networks import MLP
from bitbayes.residual import InputMoments, as_rows


def kernel(x, train):
    """1/D Σ |x̂|³/3, plainly."""
    train, x = train.double().flatten(1), x.double().flatten(1)
    mean, variance = train.mean(0), train.var(0, correction=0)
    standard = (x - mean) / torch.where(variance > variance.mean(), variance, variance.mean()).sqrt()
    return (standard.abs() ** 3 / 3).sum(1) / x.shape[1]


def test_kernel():
    train = 5 + torch.randn(50, 2, 3) * torch.tensor([0.0, 1.0, 3.0])
    x = 10 * torch.randn(7, 2, 3)
    root = InputMoments.of(as_rows(train)).root_kernel(as_rows(x))
    torch.testing.assert_close(root.square(), kernel(x, train), rtol=1e-12, atol=0)


def test_moments_add_far_from_zero():
    a, b = 1e9 + torch.randn(20, 3, dtype=torch.float64), 1e9 + torch.randn(5, 3, dtype=torch.float64)
    both, joined = InputMoments.of(a) + InputMoments.of(b), InputMoments.of(torch.cat([a, b]))
    torch.testing.assert_close(both.mean, joined.mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(both.squares, joined.squares, rtol=1e-6, atol=0)


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "isotropic"])
def test_covariance_grows_by_an_isotropic_part(structure):
    plain, x = laplace("mlp", 3, structure=structure, prior_variance=2.0)
    bayes, _ = laplace("mlp", 3, structure=structure, prior_variance=2.0, residual=True)
    bayes.residual_variance, bayes.residual_threshold = 0.7, 0.2
    x = 3 * x
    extra = 0.7 * (kernel(x, x * 2 / 3) - 0.2).clamp_min(0)
    assert 0 < (extra > 0).sum() < len(x)
    expected = plain.logits(x).covariance + extra[:, None, None] * torch.eye(3)
    torch.testing.assert_close(bayes.logits(x).covariance, expected.to(x.dtype), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bayes.logits(x).mean, plain.logits(x).mean)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_every_way_to_predict_is_the_same(layers):
    bayes, x = laplace("mlp", 3, layers=layers, residual=True)
    probs = bayes.predict_proba(2 * x)
    loader = [(part, torch.zeros(len(part))) for part in torch.split(2 * x, 7)]
    torch.testing.assert_close(bayes.predict_proba(loader), probs)
    torch.testing.assert_close(bayes(2 * x).softmax(1), probs)
    sampled = bayes.predict_proba(2 * x, method="mc", samples=20_000)
    torch.testing.assert_close(sampled, probs, rtol=0, atol=0.05)


def test_the_drop_in_is_differentiable():
    bayes, x = laplace("mlp", 3, residual=True)
    x = (3 * x[:4]).double().requires_grad_()
    bayes.model.double()
    bayes.residual_threshold = 0.1
    assert torch.autograd.gradcheck(lambda x: bayes(x).softmax(1), x, atol=1e-4)


@pytest.mark.parametrize("k, method", METHODS)
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_limit_is_one_of_k(name, k, method):
    bayes, x = laplace(name, k, predictive=method, prior_variance=0.01, residual=True)
    limit = bayes.limit(x)
    assert bool((limit.confidence == 1 / max(2, k)).all())
    far = bayes.predict_proba(1e9 * x)
    torch.testing.assert_close(far.amax(1), limit.confidence.to(far), rtol=0, atol=1e-3)
    clear = far.amax(1) > limit.confidence + 1e-9
    assert bool((far.argmax(1) == limit.label)[clear].all())


def test_the_gap_closes_like_the_root():
    bayes, x = laplace("mlp", 4, prior_variance=0.01, residual=True)
    gaps = torch.stack([bayes.predict_proba(delta * x).amax(1) - 0.25 for delta in (1e8, 1e10)])
    slopes = (gaps[1] / gaps[0]).log10() / 2
    grows = gaps[0] > 1e-8
    assert grows.sum() > 10
    torch.testing.assert_close(slopes[grows], torch.full_like(slopes[grows], -0.5), rtol=0, atol=1e-3)


def test_a_ray_that_is_a_point():
    bayes, x = laplace("mlp", 3, residual=True)
    zero = torch.zeros_like(x[:1])
    torch.testing.assert_close(bayes.limit(zero).confidence, bayes.predict_proba(zero).amax(1))
    certificate = bayes.certify(zero)
    assert 0 <= certificate.confidence - certificate.limit <= 2e-3


@pytest.mark.parametrize("threshold", [0.0, 5.0])
@pytest.mark.parametrize("k, method", CERTIFIED)
def test_certificates_are_never_broken_and_tight(k, method, threshold):
    bayes, x = laplace("mlp", k, n=30, predictive=method, prior_variance=0.5, residual=True)
    bayes.residual_variance, bayes.residual_threshold = 1e-3, threshold
    certificate = bayes.certify(x)
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 150))
    gap = certificate.confidence - torch.maximum(top, certificate.limit)
    assert gap.min() >= 0
    assert gap.max() <= (1e-4 if k == 1 else 0.01)


@pytest.mark.parametrize("name", NETWORKS)
def test_certificates_on_every_kind_of_network(name):
    bayes, x = laplace(name, 3, n=20, residual=True)
    certificate = bayes.certify(x)
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())
    assert bool((certificate.limit == 1 / 3).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_no_overflow(layers, dtype):
    model = MLP((2, 20, 3)).to(dtype)
    x = torch.randn(30, 2, dtype=dtype)
    bayes = bb.Laplace(model, layers=layers, residual=True).fit([(x, torch.arange(30) % 3)])
    bayes.residual_variance = 1e8
    for delta in (1e10, 1e20, 1e30, 1e36):
        probs = bayes.predict_proba(delta * x)
        torch.testing.assert_close(probs, torch.full_like(probs, 1 / 3), rtol=0, atol=1e-5)


def test_update_is_one_fit_and_files_keep_all(tmp_path):
    model, x = network("mlp", 3, 40)
    y = torch.arange(40) % 3
    whole = bb.Laplace(model, residual=True).fit([(x, y)])
    parts = bb.Laplace(model, residual=True).fit([(x[:13], y[:13])]).update([(x[13:], y[13:])])
    torch.testing.assert_close(parts.predict_proba(5 * x), whole.predict_proba(5 * x))
    whole.residual_variance, whole.residual_threshold = 0.3, 2.0
    whole.save(tmp_path / "bayes.safetensors")
    loaded = bb.Laplace.load(tmp_path / "bayes.safetensors", model)
    assert (loaded.residual_variance, loaded.residual_threshold) == (0.3, 2.0)
    torch.testing.assert_close(loaded.predict_proba(5 * x), whole.predict_proba(5 * x), rtol=0, atol=0)


def test_inputs_for_which_it_means_nothing():
    bayes = bb.Laplace(torch.nn.Linear(2, 2), residual=True)
    with pytest.raises(ArgumentError, match="int64"):
        bayes.fit([(torch.ones(4, 2, dtype=torch.int64), torch.zeros(4).long())])
    with pytest.raises(ArgumentError, match="mapping"):
        bayes.fit([{"x": torch.ones(4, 2), "labels": torch.zeros(4).long()}])
    with pytest.raises(ArgumentError, match="weights"):
        bb.Laplace(torch.nn.Linear(2, 2), layers="all", predictive="weights", residual=True)
    with pytest.raises(ArgumentError, match="expected True, False"):
        bb.Laplace(torch.nn.Linear(2, 2), residual="yes")
    with pytest.raises(DataError, match="one size"):
        InputMoments.of(torch.ones(3, 2)) + InputMoments.of(torch.ones(3, 4))


def test_an_independent_variance_leaves_a_diagonal_diagonal():
    bayes, x = laplace("mlp", 3, structure="diag")
    gaussian = bayes.logits(x)
    wide = gaussian.plus_independent(torch.full((len(x),), 1.5**0.5, dtype=torch.float64))
    more = (wide.covariance - gaussian.covariance).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(more, torch.full_like(more, 1.5))


@pytest.fixture(scope="module")
def embedded():
    data = digits()
    validation, test = validation_split(data.test_images, data.test_labels, 1000, 0)
    train = (data.train_images, data.train_labels)
    plain, bayes = (bb.Laplace(digits_lenet(), residual=each).fit([train]) for each in (False, True))
    return plain, bayes, train[0], validation, test


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("objective", ["nll", "ood"])
def test_on_the_embedded_digits(embedded, objective):
    plain, bayes, train, validation, (images, labels) = embedded
    plain.tune([validation], objective=objective)
    bayes.tune([validation], objective=objective)
    before, after = plain.predict_proba(images), bayes.predict_proba(images)
    assert abs(metrics.accuracy(after, labels) - metrics.accuracy(before, labels)) <= 0.001
    assert metrics.nll(after, labels) <= 1.01 * metrics.nll(before, labels)
    assert metrics.mmc(bayes.predict_proba(100 * images)) < 0.3
    assert metrics.mmc(bayes.predict_proba(2000 * images)) < 0.15
    threshold = kernel(validation[0], train).quantile(0.99)
    assert bayes.residual_threshold == pytest.approx(float(threshold), rel=1e-6)


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_the_half_percent_rule(embedded):
    plain, bayes, _, (images, labels), _ = embedded
    batches = list(zip(torch.split(images, 300), torch.split(labels, 300), strict=True))
    bayes.tune(batches, objective="nll")
    plain.prior_variance = bayes.prior_variance
    base = metrics.nll(plain.predict_proba(images), labels)
    assert metrics.nll(bayes.predict_proba(images), labels) <= 1.005 * base * (1 + 1e-5)
    bayes.residual_variance *= 10 ** (1 / 6.9)  # beyond the next candidate
    assert metrics.nll(bayes.predict_proba(images), labels) > 1.005 * base
