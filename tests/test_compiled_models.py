"""Models that `torch.compile` made, and a compiled Laplace."""

import pytest
import torch

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
