"""Networks that mix the rows of a batch are refused, and random ones are warned of; all others pass."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from bitbayes.errors import ModelError, RandomModelWarning
from bitbayes.model import SideEffects, SomeRows, check_rows, private_copy
from bitbayes.model.running.private_copy import STREAM
from classifiers import points


class Net(nn.Module):
    """A linear layer, something between, and a head."""

    def __init__(self, between, width=8):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3)
        self.between = between

    def forward(self, x, scale=None):
        z = self.between(self, self.body(x).relu())
        return self.head(z if scale is None else z * scale)


def check(model, inputs):
    n = len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)
    return check_rows(private_copy(model, SideEffects.any_of(model)), SomeRows.of(inputs, n))


def in_training_mode(self, z):
    return functional.batch_norm(z, None, None, training=True)


MIXING = {
    "centred": lambda self, z: z - z.mean(0),
    "softmax over rows": lambda self, z: z * z.softmax(0),
    "neighbours": lambda self, z: z + z.roll(1, 0),
    "the first row": lambda self, z: z - z[:1],
    "sums": lambda self, z: z.cumsum(0),
    "batch statistics": in_training_mode,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MIXING)
def test_networks_that_mix_rows_are_refused(name, dtype):
    model, x = Net(MIXING[name]).to(dtype), points(40, dtype=dtype)[0]
    with pytest.raises(ModelError, match=r"depends on the other rows.*differs by up to"):
        check(model, x)
    with pytest.raises(ModelError, match="depends on the other rows"):
        check(model, {"x": x, "scale": torch.ones((), dtype=dtype)})


ALONE = {
    "plain": lambda self, z: z,
    "over features": lambda self, z: z - z.mean(1, keepdim=True),
    "batch norm": lambda self, z: self.norm(z),
    "large features": lambda self, z: 1e4 * z,
    "in place": lambda self, z: z.mul_(2),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ALONE)
def test_other_networks_pass(name, dtype):
    torch.manual_seed(1)
    model, x = Net(ALONE[name], width=64).to(dtype), points(40, dtype=dtype)[0]
    if dtype == torch.float16 and name == "large features":
        model.head.weight.data /= 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs in (x, x[:2], x[:1], {"x": x}, {"x": x, "scale": torch.ones(64, dtype=dtype)}):
            assert check(model, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_deep_networks_round_within_the_tolerance(dtype):
    for seed in range(5):
        torch.manual_seed(seed)
        layers = [each for _ in range(30) for each in (nn.Linear(100, 100), nn.LayerNorm(100), nn.GELU())]
        model = nn.Sequential(nn.Linear(4, 100), *layers, nn.Linear(100, 3)).to(dtype)
        assert check(model, points(40, dtype=dtype)[0])


def test_networks_that_are_random_are_warned_of():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    model = Net(lambda self, z: functional.dropout(z, training=True))
    with pytest.warns(RandomModelWarning, match="two runs"):
        assert not check(model, points()[0])
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


def test_only_networks_that_draw_keep_random_numbers_of_their_own():
    for between, draws in ((ALONE["plain"], False), (lambda self, z: z + 0 * torch.rand(()), True)):
        model = Net(between)
        network = private_copy(model, SideEffects.any_of(model))
        assert check_rows(network, SomeRows.of(points()[0], len(points()[0])))
        assert (STREAM in network.__dict__) == draws


def test_one_row_that_jumps_by_rounding_is_no_mixing():
    """A step at a number that a row hits exactly: with another batch size it may fall to the other side."""
    calls = []

    def jump(self, z):
        calls.append(len(z))
        return z + 100.0 * (len(z) == 1 and calls.count(1) == 2)  # the second of four single rows

    assert check(Net(jump), points()[0])


def test_models_that_do_not_take_few_rows_are_not_checked():
    def eight(self, z):
        return z.reshape(-1, 8, 8).flatten(0, 1) - z.mean(0)

    assert check(Net(eight), points()[0])


def test_rows_are_spread_over_the_batch():
    assert SomeRows.of(torch.arange(10)[:, None], 10).inputs.flatten().tolist() == [0, 3, 6, 9]
    assert SomeRows.of(torch.arange(2)[:, None], 2).inputs.flatten().tolist() == [0, 1]
    assert SomeRows.of({"texts": ["a", "b"]}, 2).count == 0


def test_tensors_that_point_at_rows_of_others_are_not_cut():
    """Edges of a graph: cut, its nodes would be fewer than the edges say."""
    graph = {"x": torch.rand(12, 4), "edges": torch.randint(0, 12, (2, 30)), "batch": torch.arange(12) % 3}
    assert SomeRows.of(graph, 3).count == SomeRows.of(graph, 12).count == 0
    same = {"x": torch.rand(12, 4), "scale": torch.tensor(2.0)}
    assert SomeRows.of(same, 12).count == 4


@pytest.mark.filterwarnings("ignore:.*quant:DeprecationWarning", "ignore:.*quant:UserWarning")
def test_dynamically_quantised_networks_pass():
    """The step of their activations depends on the whole batch."""
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("no quantised kernels")
    assert check(torch.ao.quantization.quantize_dynamic(model, {nn.Linear}), points()[0])
