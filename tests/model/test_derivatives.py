"""Derivatives layer by layer against `torch.func`; differentiating leaves the model as it was."""

import pytest
import torch
from torch import nn

from bitbayes.model import differentiate, find_layers, verify_layers
from dense import NETWORKS, case, found_jacobian, jacobians


@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_torch_func(name):
    model, x, _ = case(name)
    k, layers = verify_layers(model, find_layers(model), x)
    assert k == model(x).shape[1]
    assert all(layer.kind != "other" for layer in layers)
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"padding": 2},
        {"padding": "same", "dilation": 2},
        {"padding": "valid"},
        {"padding": (2, 1), "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "replicate", "groups": 2},
        {"padding": 1, "padding_mode": "circular", "stride": (1, 3), "groups": 4},
        {"bias": False, "dilation": (2, 1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_derivatives_of_convolutions_are_those_of_torch_func(kind, options):
    if kind is nn.Conv1d:
        options = {key: value[1] if isinstance(value, tuple) else value for key, value in options.items()}
    shape = (7,) if kind is nn.Conv1d else (7, 6)
    model = nn.Sequential(kind(4, 4, 3, **options), nn.Flatten(), nn.LazyLinear(2)).double()
    x = torch.randn(3, 4, *shape, dtype=torch.float64)
    model(x)
    torch.testing.assert_close(
        found_jacobian(model, find_layers(model), x), jacobians(model, x), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize(
    "norm, shape",
    [
        (nn.BatchNorm1d(4, eps=0.5), (4, 3)),
        (nn.BatchNorm2d(4, eps=0.5), (4, 3, 2)),
        (nn.GroupNorm(2, 4, eps=0.5), (4, 3)),
        (nn.LayerNorm(3, eps=0.5), (4, 3)),
        (nn.LayerNorm((4, 3), eps=0.5), (4, 3)),
    ],
    ids=str,
)
def test_derivatives_of_norms_take_the_norms_own_eps(norm, shape):
    model = nn.Sequential(norm, nn.Flatten(), nn.LazyLinear(2)).double().eval()
    x = torch.randn(3, *shape, dtype=torch.float64)
    model(x)
    torch.testing.assert_close(
        found_jacobian(model, find_layers(model), x), jacobians(model, x), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("name", ["convnet", "sequence"])
def test_frozen_parameters_have_no_derivatives(name, frozen):
    model, x, _ = case(name)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not key.endswith(frozen))
    layers = find_layers(model)
    assert not any(key.endswith(frozen) for layer in layers for key in layer.names)
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("fails", [False, True])
def test_differentiating_leaves_parameters_gradients_and_hooks_as_they_were(fails):
    model, x, _ = case("residual")
    model.stem.bias.requires_grad_(False)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = {name: (p.clone(), p.requires_grad, p) for name, p in model.named_parameters()}
    layers = find_layers(model)

    def directions(logits):
        if fails:
            raise RuntimeError("no")
        return torch.ones_like(logits)[:, :, None]

    if fails:
        with pytest.raises(RuntimeError, match="no"):
            differentiate(model, layers, x, directions)
    else:
        differentiate(model, layers, x, directions)
    for name, parameter in model.named_parameters():
        value, flag, same = before[name]
        assert parameter is same and parameter.requires_grad == flag and torch.equal(parameter, value)
        assert torch.equal(parameter.grad, torch.ones_like(parameter))
    assert all(not module._forward_hooks for module in model.modules())


def test_derivatives_are_computed_under_inference_mode():
    model, x, _ = case("convnet")
    with torch.inference_mode():
        inside = found_jacobian(model, find_layers(model), x * 1)
    torch.testing.assert_close(inside, jacobians(model, x), rtol=1e-10, atol=1e-12)
