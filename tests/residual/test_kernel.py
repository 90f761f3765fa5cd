"""The residual at the inputs: its kernel, moments, predictions and files."""

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError
from bitbayes.networks import MLP
from bitbayes.residual import InputMoments, as_rows
from ray_cases import laplace, network


def plain_kernel(x, train):
    """1/D Σ |x̂|³/3 in float64, from the mean and the variances of the training data."""
    train, x = train.double().flatten(1), x.double().flatten(1)
    mean, variance = train.mean(0), train.var(0, correction=0)
    standard = (x - mean) / torch.where(variance > variance.mean(), variance, variance.mean()).sqrt()
    return (standard.abs() ** 3 / 3).sum(1) / x.shape[1]


def test_the_kernel_is_its_formula():
    train = 5 + torch.randn(50, 2, 3) * torch.tensor([0.0, 1.0, 3.0])
    x = 10 * torch.randn(7, 2, 3)
    root = InputMoments.of(as_rows(train)).root_kernel(as_rows(x))
    torch.testing.assert_close(root.square(), plain_kernel(x, train), rtol=1e-12, atol=0)


def test_moments_add_far_from_zero():
    a, b = 1e9 + torch.randn(20, 3, dtype=torch.float64), 1e9 + torch.randn(5, 3, dtype=torch.float64)
    both, joined = InputMoments.of(a) + InputMoments.of(b), InputMoments.of(torch.cat([a, b]))
    torch.testing.assert_close(both.mean, joined.mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(both.squares, joined.squares, rtol=1e-6, atol=0)


@pytest.mark.parametrize("structure", ["full", "kron", "diag", "isotropic"])
def test_the_residual_adds_an_isotropic_part_to_the_covariance(structure):
    plain, x = laplace("mlp", 3, structure=structure, prior_variance=2.0)
    bayes, _ = laplace("mlp", 3, structure=structure, prior_variance=2.0, residual=True)
    bayes.residual_variance, bayes.residual_threshold = 0.7, 0.2
    x = 3 * x
    extra = 0.7 * (plain_kernel(x, x * 2 / 3) - 0.2).clamp_min(0)
    assert 0 < (extra > 0).sum() < len(x)
    expected = plain.logits(x).covariance + extra[:, None, None] * torch.eye(3)
    torch.testing.assert_close(bayes.logits(x).covariance, expected.to(x.dtype), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bayes.logits(x).mean, plain.logits(x).mean)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_loaders_drop_in_and_samples_agree_with_the_prediction(layers):
    bayes, x = laplace("mlp", 3, layers=layers, residual=True)
    probs = bayes.predict_proba(2 * x)
    loader = [(part, torch.zeros(len(part))) for part in torch.split(2 * x, 7)]
    torch.testing.assert_close(bayes.predict_proba(loader), probs)
    torch.testing.assert_close(bayes(2 * x).softmax(1), probs)
    sampled = bayes.predict_proba(2 * x, method="mc", samples=20_000)
    torch.testing.assert_close(sampled, probs, rtol=0, atol=0.05)


def test_the_drop_in_with_a_residual_is_differentiable():
    bayes, x = laplace("mlp", 3, residual=True)
    x = (3 * x[:4]).double().requires_grad_()
    bayes.model.double()
    bayes.residual_threshold = 0.1
    assert torch.autograd.gradcheck(lambda x: bayes(x).softmax(1), x, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_predictions_up_to_1e36_times_the_inputs_are_uniform(layers, dtype):
    model = MLP((2, 20, 3)).to(dtype)
    x = torch.randn(30, 2, dtype=dtype)
    bayes = bb.Laplace(model, layers=layers, residual=True).fit([(x, torch.arange(30) % 3)])
    bayes.residual_variance = 1e8
    for delta in (1e10, 1e20, 1e30, 1e36):
        probs = bayes.predict_proba(delta * x)
        torch.testing.assert_close(probs, torch.full_like(probs, 1 / 3), rtol=0, atol=1e-5)


def test_fit_and_update_give_one_fit_and_files_keep_the_residual(tmp_path):
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


def test_inputs_and_options_without_a_residual_raise():
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


class InPlace(torch.nn.Module):
    """Changes its own input, as preprocessing inside a model may."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.head(x.mul_(0.5))


def test_the_kernel_is_that_of_the_input_before_the_model_changes_it():
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    bayes = bb.Laplace(InPlace(), residual=True)
    # The first rows are looked at before the pass: a batch of its own is not changed by that.
    bayes.fit([(x[:2].clone(), y[:2]), (x[2:].clone(), y[2:])])
    moments = bayes._posterior.fitted.input_moments
    expected = torch.cat([x[:2] / 2, x[2:]]).double().mean(0)
    torch.testing.assert_close(moments.mean, expected, rtol=1e-6, atol=1e-6)
    bayes.residual_variance = 3.0
    expected = moments.root_kernel(as_rows(x)).square()
    more = bayes.logits(x.clone()).covariance
    bayes.residual_variance = 1e-30
    found = (more - bayes.logits(x.clone()).covariance).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(found.double(), 3 * expected[:, None].expand(-1, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_inputs_of_another_size_or_kind_are_refused_before_the_model_runs(layers):
    x, y = torch.randn(30, 2), torch.arange(30) % 3
    bayes = bb.Laplace(torch.nn.Linear(2, 3), layers=layers, residual=True).fit([(x, y)])
    for ask in (bayes.predict_proba, bayes.logits, lambda outliers: bayes.tune([(x, y)], outliers=outliers)):
        with pytest.raises(DataError, match="an input of 5 numbers"):
            ask(torch.ones(4, 5))
        with pytest.raises(ArgumentError, match=r"int64.*residual=False"):
            ask(torch.ones(4, 2, dtype=torch.int64))
