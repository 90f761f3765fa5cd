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


def all_logits(f):
    return torch.eye(f.shape[1]).expand(len(f), -1, -1)


def test_the_largest_derivative_of_each_point_is_that_of_its_factors():
    """max |g| · max |a|, a with the 1 of the bias; of one linear layer g is a unit vector."""
    x = torch.randn(6, 4, dtype=torch.float64) * torch.tensor([0.1, 1, 10, 100, 0, 3]).double()[:, None]
    layer = torch.nn.Linear(4, 3).double()
    _, (record,) = differentiate(layer, find_layers(layer), x, all_logits)
    torch.testing.assert_close(record.largest(), x.abs().amax(1).clamp_min(1))
    model, x, _ = case("convnet")
    _, records = differentiate(model, find_layers(model), x, all_logits)
    assert {each.layer.kind for each in records} == {"matrix", "norm"}
    for each in records:
        dense = each.jacobian().dense().abs().amax((1, 2))
        if each.layer.kind == "norm":
            torch.testing.assert_close(each.largest(), dense)
        else:  # no more than one such product for each position
            positions = each.jacobian().gradients.shape[-1]
            assert bool((dense <= each.largest() * positions * (1 + 1e-9)).all())


@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_derivatives_are_scaled_point_by_point(name):
    model, x, _ = case(name, n=3)
    factor = torch.tensor([2.0, 1e-3, 1e5]).double()
    for each in differentiate(model, find_layers(model), x, all_logits)[1]:
        expected = factor[:, None, None] * each.jacobian().dense()
        torch.testing.assert_close(each.jacobian(factor).dense(), expected, rtol=1e-12, atol=0)


class Idle(torch.nn.Module):
    """A network that calls a layer on whose output no logit depends."""

    def __init__(self):
        super().__init__()
        self.idle, self.head = torch.nn.Linear(4, 5), torch.nn.Linear(4, 3)

    def forward(self, x):
        self.idle(x)
        return self.head(x)


def test_a_layer_without_effect_has_derivatives_of_zero():
    model, x = Idle().double(), torch.randn(7, 4, dtype=torch.float64)
    found = found_jacobian(model, find_layers(model), x)
    assert found.shape == (7, 3, 25 + 15) and not found[:, :, :25].any() and bool(found[:, :, 25:].any())
    torch.testing.assert_close(found, jacobians(model, x))
