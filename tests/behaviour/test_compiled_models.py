"""Models that `torch.compile` made, a compiled Laplace, and data-parallel models."""

import threading

import pytest
import torch
from torch import nn

import bitbayes as bb
from classifiers import points, relu_mlp


def test_a_compiled_model_has_a_residual_at_hidden_layers():
    x, y = points()
    bayes = bb.Laplace(torch.compile(relu_mlp(), backend="eager"), residual=("2",)).fit([(x, y)])
    assert bool(bayes.predict_proba(x).isfinite().all())


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_compiled_model_predicts_and_saves_as_its_plain_network(layers, tmp_path):
    x, y = points()
    model = relu_mlp()
    compiled = torch.compile(model, backend="eager")
    compiled(x)  # compiled now: hooks that are set later may not be called
    bayes = bb.Laplace(compiled, layers=layers).fit([(x, y)])
    assert torch.equal(
        bayes.predict_proba(x), bb.Laplace(model, layers=layers).fit([(x, y)]).predict_proba(x)
    )
    bayes.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(tmp_path / "bayes.safetensors", compiled)
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


def test_a_laplace_can_be_compiled():
    x, y = points()
    bayes = bb.Laplace(relu_mlp()).fit([(x, y)])
    compiled = torch.compile(bayes, backend="eager")  # a warning would be an error here
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), bayes(x), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's own compiler
def test_a_laplace_that_is_compiled_to_machine_code_has_the_same_residual():
    """Of a product and `add(…, alpha=2)` it made a product and a sum."""
    x, y = points()
    bayes = bb.Laplace(relu_mlp()).fit([(x, y)]).tune([(x, y)])
    assert bayes.settings.near_variance > 0
    with torch.no_grad():
        expected = bayes(3 * x)
        try:
            found = torch.compile(bayes)(3 * x)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            pytest.skip(f"no compiler here: {error}")
    torch.testing.assert_close(found.softmax(1), expected.softmax(1), rtol=0, atol=1e-5)


class Around(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(x)


def compiled_in_place():
    model = Around(relu_mlp())
    model.body.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: Around(torch.compile(relu_mlp(), backend="eager")),
        compiled_in_place,
        pytest.param(
            lambda: Around(ElsewhereParallel(relu_mlp())),
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="it would move its network there"),
        ),
    ],
)
@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_head_inside_a_compiled_or_data_parallel_part_is_found(make, layers):
    x, y = points()
    found = bb.Laplace(make(), layers=layers).fit([(x, y)]).predict_proba(x)
    plain = bb.Laplace(Around(relu_mlp()), layers=layers).fit([(x, y)]).predict_proba(x)
    assert torch.equal(found, plain)


def test_a_part_can_be_compiled_after_the_fit():
    x, y = points()
    model = Around(relu_mlp())
    bayes = bb.Laplace(model).fit([(x, y)])
    expected = bayes.predict_proba(x)
    model.body.compile(backend="eager")
    assert torch.equal(bayes.predict_proba(x), expected)


class ElsewhereParallel(nn.DataParallel):
    """Runs its network in another thread, as on several devices."""

    def forward(self, x):
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append(self.module(x)))
        thread.start()
        thread.join()
        return outputs[0]


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_data_parallel_model_predicts_and_saves_as_its_plain_network(layers, tmp_path):
    x, y = points()
    model = relu_mlp()
    bayes = bb.Laplace(ElsewhereParallel(model), layers=layers).fit([(x, y)])
    plain = bb.Laplace(model, layers=layers).fit([(x, y)])
    assert torch.equal(bayes.predict_proba(x), plain.predict_proba(x))
    bayes.save(tmp_path / "bayes.safetensors")
    again = bb.Laplace.load(
        tmp_path / "bayes.safetensors", torch.compile(ElsewhereParallel(model), backend="eager")
    )
    assert torch.equal(again.predict_proba(x), plain.predict_proba(x))
