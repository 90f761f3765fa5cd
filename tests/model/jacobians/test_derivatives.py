"""Derivatives layer by layer against `torch.func`; differentiating leaves the model as it was."""

import pytest
import torch

from bitbayes.model import differentiate, find_layers, verify_layers
from dense import NETWORKS, case, found_jacobian, jacobians


@pytest.mark.parametrize("name", NETWORKS)
def test_derivatives_are_those_of_torch_func(name):
    model, x, _ = case(name)
    k, layers = verify_layers(model, find_layers(model), x)
    assert k == model(x).shape[1]
    assert all(layer.kind != "other" for layer in layers)
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


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
