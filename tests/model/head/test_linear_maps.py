"""Whether something is W·x + b of given weights, also where these are large."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bitbayes.model.head import linear_maps
from bitbayes.model.head.linear_maps import (
    computes,
    equal_values,
    is_batch,
    rows_of,
    sizes,
    weight_and_bias,
    weight_matrix,
)


def weights_and_points(k, bias=True):
    torch.manual_seed(k)
    weight, x = torch.randn(k, 5), torch.randn(4, 5)
    b = torch.randn(k) if bias else None
    return weight, b, x, torch.nn.functional.linear(x, weight, b)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("numbers", [1, 15, 10**6])  # one output at once, three, all
def test_one_wrong_output_is_noticed_wherever_it_is(bias, numbers, monkeypatch):
    monkeypatch.setattr(linear_maps, "CHECKED_NUMBERS", numbers)
    weight, b, x, result = weights_and_points(10, bias)
    assert bool(computes(weight, b, x, result))
    for output in range(10):
        wrong = result.clone()
        wrong[2, output] += 1.0
        assert not bool(computes(weight, b, x, wrong))


class Largest(TorchDispatchMode):
    """The size of the largest tensor in float64 that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.dtype == torch.float64:
            self.numbers = max(self.numbers, made.numel())
        return made


def test_a_check_of_many_outputs_makes_no_tensor_of_their_size(monkeypatch):
    monkeypatch.setattr(linear_maps, "CHECKED_NUMBERS", 100)
    arguments = weights_and_points(1000)
    with Largest() as largest:
        assert bool(computes(*arguments))
    assert 0 < largest.numbers <= 100


def test_rows_are_the_positions_of_each_input():
    x = torch.randn(4, 3)
    assert rows_of(x, -1) is x
    tokens, pixels = torch.randn(4, 5, 3), torch.randn(4, 3, 5, 6)
    assert torch.equal(rows_of(tokens, -1), tokens.reshape(20, 3))
    assert torch.equal(rows_of(pixels, 1), pixels.permute(0, 2, 3, 1).reshape(120, 3))
    assert torch.equal(rows_of(pixels[:, :, :1, :1], 1), pixels[:, :, 0, 0])


@pytest.mark.parametrize("bias", [True, False])
def test_sizes_and_batches_of_linear_layers_and_convolutions(bias):
    linear, conv = torch.nn.Linear(3, 2, bias=bias), torch.nn.Conv2d(3, 2, 1, bias=bias)
    assert sizes(linear) == sizes(conv) == (3, 2, bias)
    assert is_batch(linear, torch.zeros(4, 3)) and not is_batch(linear, torch.zeros(3))
    assert is_batch(conv, torch.zeros(4, 3, 5, 5)) and not is_batch(conv, torch.zeros(3, 5, 5))


def test_equal_values_are_those_in_the_same_order_whatever_the_shapes():
    a = torch.arange(12.0).reshape(3, 4)
    a[1, 2] = torch.nan
    for same in (a, a.clone(), a.flatten(), a.reshape(4, 3), a.double()):
        assert bool(equal_values(a, same))
    changed = a.clone()
    changed[2, 3] += 1
    for other in (a.T, changed, a[:2], a.nan_to_num()):
        assert not bool(equal_values(a, other))
    numbers = torch.arange(8.0)
    assert not bool(equal_values(numbers[::2], numbers[:4]))  # which begin at the same address


class Adapter(torch.nn.Module):
    """W + BA in place of a layer's own W, as LoRA adds it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.down, self.up = torch.randn(2, 3), torch.randn(4, 2)

    def forward(self, x):
        more = (x.movedim(1, -1) @ self.down.T @ self.up.T).movedim(-1, 1)
        return self.base_layer(x) + more


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_the_weight_of_an_adapter_is_that_of_what_it_computes(kind, bias):
    base = torch.nn.Linear(3, 4, bias=bias) if kind == "linear" else torch.nn.Conv2d(3, 4, 1, bias=bias)
    module = Adapter(base)
    expected = base.weight.flatten(1) + module.up @ module.down
    weight, found = weight_and_bias(module)
    torch.testing.assert_close(weight, expected.detach(), rtol=1e-5, atol=1e-6)
    assert found is None if not bias else torch.allclose(found, base.bias)
    columns = [expected, base.bias[:, None]] if bias else [expected]
    torch.testing.assert_close(weight_matrix(module), torch.cat(columns, 1).detach(), rtol=1e-5, atol=1e-6)
