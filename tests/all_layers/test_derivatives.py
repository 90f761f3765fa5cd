"""Derivatives layer by layer against `torch.func`, and what must not happen to the model on the way."""

import pytest
import torch
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.likelihood import likelihood_for
from bitbayes.model import differentiate, find_layers, memory, points_at_once, verify_layers
from dense import NETWORKS, case, found_jacobian, jacobians
from reference import logit_hessians


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
def test_every_convolution(kind, options):
    if kind is nn.Conv1d:
        options = {key: value[1] if isinstance(value, tuple) else value for key, value in options.items()}
    shape = (7,) if kind is nn.Conv1d else (7, 6)
    model = nn.Sequential(kind(4, 4, 3, **options), nn.Flatten(), nn.LazyLinear(2)).double()
    x = torch.randn(3, 4, *shape, dtype=torch.float64)
    model(x)
    torch.testing.assert_close(
        found_jacobian(model, find_layers(model), x), jacobians(model, x), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("name", ["convnet", "sequence"])
def test_frozen_parameters_are_left_out(name, frozen):
    model, x, _ = case(name)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(not key.endswith(frozen))
    layers = find_layers(model)
    assert not any(key.endswith(frozen) for layer in layers for key in layer.names)
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


def test_a_layer_whose_weight_is_used_elsewhere_is_found_out():
    class Sly(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.second(self.first(x) @ self.first.weight)

    model = Sly().double()
    x = torch.randn(4, 3).double()
    _, layers = verify_layers(model, find_layers(model), x)
    assert [layer.kind for layer in layers] == ["other", "matrix", "other"]
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


def test_a_batch_that_does_not_come_first_is_found_out():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):  # (n, 2, 3)
            return self.head(self.inside(x.transpose(0, 1)).tanh().mean(0))

    model = Turned().double()
    x = torch.randn(5, 2, 3).double()
    _, layers = verify_layers(model, find_layers(model), x)
    assert [layer.kind for layer in layers] == ["other", "matrix"]
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


def test_tied_weights_are_one_parameter():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2)).double()
    model[2].weight = model[0].weight
    x = torch.randn(4, 3).double()
    _, layers = verify_layers(model, find_layers(model), x)
    assert [layer.kind for layer in layers] == ["other", "matrix", "matrix"]
    torch.testing.assert_close(found_jacobian(model, layers, x), jacobians(model, x), rtol=1e-10, atol=1e-12)


def test_points_that_see_each_other_are_refused():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(x - x.mean(0))

    model = Centred()
    with pytest.raises(ModelError, match="depends on the other points"):
        verify_layers(model, find_layers(model), torch.randn(4, 3))
    with pytest.raises(ModelError, match=r"'1' .*running statistics"):
        find_layers(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False)))


def test_memory_is_counted_in_modules_with_keywords_and_with_tuples(monkeypatch):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(3, 3)

        def forward(self, *, states):
            return self.inside(states), None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.block(states=x)[0])

    model = Model()
    numbers = (2 + 4) * 3 + (2 + 4) * 2 + 2 * 2  # inside, head, and the model itself
    monkeypatch.setattr(memory, "CPU_PASS_BYTES", 10 * 4 * numbers)
    assert points_at_once(model, find_layers(model), torch.randn(5, 3), directions=4) == 10


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails):
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


def test_under_inference_mode():
    model, x, _ = case("convnet")
    with torch.inference_mode():
        inside = found_jacobian(model, find_layers(model), x * 1)
    torch.testing.assert_close(inside, jacobians(model, x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3, 10])
@pytest.mark.parametrize("size", [1, 30, 800])
def test_the_root_of_the_losss_curvature(k, size):
    logits = torch.randn(20, k, dtype=torch.float64) * size
    root = likelihood_for(k).root(logits)
    assert root.shape == (20, k, max(1, k - 1))
    hessians = logit_hessians(logits, torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(root @ root.mT, hessians, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("k", [1, 3])
def test_drawn_labels_have_the_losss_curvature_on_average(k):
    logits = torch.randn(2, k, dtype=torch.float64).repeat_interleave(100_000, 0)
    drawn = likelihood_for(k).draw(logits, torch.Generator().manual_seed(0))
    outer = (drawn[:, :, None] * drawn[:, None, :]).reshape(2, -1, k, k)
    error = 5 * outer.std(1) / outer.shape[1] ** 0.5  # five standard errors
    hessians = logit_hessians(logits[[0, -1]], torch.zeros(2, dtype=torch.long))
    assert bool(((outer.mean(1) - hessians).abs() <= error).all())
