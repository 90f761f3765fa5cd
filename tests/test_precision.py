"""Autocast, half precision and float32 against float64."""

import copy

import pytest
import torch
from torch import nn

import bitbayes as bb
import dense
import reference
from classifiers import points, relu_mlp
from dense import close, loader
from reference import STRUCTURES


@pytest.mark.parametrize("layers", ["last", "all"])
def test_autocast_changes_the_model_and_nothing_else(layers):
    x, y = points()
    model = relu_mlp()
    options = {"layers": layers, "prior_variance": 100.0}
    expected = bb.Laplace(model, **options).fit([(x, y)]).predict_proba(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bayes = bb.Laplace(model, **options).fit([(x, y)])
        probs, logits = bayes.predict_proba(x), bayes(x)
    assert probs.dtype == logits.dtype == torch.float32
    assert torch.allclose(probs.sum(1), torch.ones(40), atol=1e-6)
    # The model's features and logits are rounded to 8 bits; nothing else is.
    assert (probs - expected).abs().max() < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_half_precision_networks_have_float32_covariances(structure, dtype):
    model, x, y = dense.case("convnet", dtype=torch.float32)
    model = model.to(dtype)
    exact = copy.deepcopy(model).double()
    low = bb.Laplace(model, layers="all", structure=structure).fit(loader(x.to(dtype), y))
    high = bb.Laplace(exact, layers="all", structure=structure).fit(loader(x.to(dtype).double(), y))
    gaussian = low.logits(x.to(dtype))
    assert (
        gaussian.mean.dtype
        == gaussian.covariance.dtype
        == low.predict_proba(x.to(dtype)).dtype
        == torch.float32
    )
    close(
        gaussian.covariance.double(), high.logits(x.to(dtype).double()).covariance, 1e-3
    )  # float32 derivatives
    assert all(each.dtype == dtype for each in low.sample(2).values())
    assert low.predict_proba(x.to(dtype), method="sampled_networks").isfinite().all()


def test_float32_covariances_over_all_layers_are_those_of_float64():
    model, x, y = dense.case("residual", dtype=torch.float32)
    low = bb.Laplace(model, layers="all").fit(loader(x, y)).logits(x)
    high = (
        bb.Laplace(copy.deepcopy(model).double(), layers="all").fit(loader(x.double(), y)).logits(x.double())
    )
    close(low.covariance.double(), high.covariance, 1e-4)


@pytest.fixture(params=[1, 3], ids=["one-logit", "three-logits"])
def k(request):
    return request.param


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(
    "dtype, result",
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_results_have_the_models_dtype_but_at_least_float32(k, structure, dtype, result):
    model = reference.network(k, dtype=dtype)
    x, y = reference.data(k, dtype=dtype)
    bayes = bb.Laplace(model, structure=structure).fit(reference.loader(x, y))
    gaussian = bayes.logits(x)
    for tensor in (bayes.predict_proba(x), bayes(x), gaussian.mean, gaussian.covariance):
        assert tensor.dtype == result and bool(tensor.isfinite().all())
    assert all(draws.dtype == dtype for draws in bayes.sample(2).values())
    # In float64 these features and logits give the same covariance, to float32's digits.
    exact = copy.deepcopy(model).double()
    features = nn.Sequential(model.hidden, model.activation)(x).detach().double()
    head = bb.Laplace(nn.Sequential(exact.head), structure=structure).fit([(features, y)])
    if dtype != torch.bfloat16:  # whose logits are rounded to three digits
        torch.testing.assert_close(
            gaussian.covariance.double(), head.logits(features).covariance, rtol=2e-5, atol=2e-6
        )
    else:
        torch.testing.assert_close(
            gaussian.covariance.double(), head.logits(features).covariance, rtol=0.05, atol=0.02
        )


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_prediction_in_inference_mode_leaves_the_drop_in_differentiable(layers):
    x, y = points()
    bayes = bb.Laplace(relu_mlp(), layers=layers).fit([(x, y)])
    with torch.inference_mode():
        bayes.predict_proba(x)
    leaf = x.clone().requires_grad_()
    bayes(leaf).sum().backward()
    assert torch.isfinite(leaf.grad).all()
