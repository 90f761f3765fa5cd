"""The final region, against plain evaluation of the network beyond alpha and before it."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray_cases import NETWORKS, deltas, deviation, network, region_of
from torch import nn
from torch.nn import functional

from bitbayes.data import digits, digits_lenet
from bitbayes.errors import ArgumentError, DataError, ModelError
from bitbayes.model import find_head
from bitbayes.networks import MLP, LeNet, resnet18
from bitbayes.rays import final_region
from bitbayes.rays.ray_tensor import RayTensor


class Body(nn.Module):
    """A function between two linear layers: (n, 24) → (n, 3)."""

    def __init__(self, function, width):
        super().__init__()
        self.function = function
        self.first, self.head = nn.Linear(24, 24), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.function(self.first(x)))


def image(x):
    return x.reshape(-1, 2, 3, 4)


def sequence(x):
    return x.reshape(-1, 2, 12)


def into_slices(x):
    """In-place operations through views, and a buffer into which values are written."""
    y = x.clone()
    y[:, :5].relu_()
    y.view(-1, 4, 6)[:, 1] *= 2
    buffer = x.new_zeros(len(x), 24)
    buffer[:, 2:] = y[:, :-2]
    buffer[:, 0] = 7.0
    return buffer.add_(y, alpha=0.5)


def in_time(x):
    """Time before batch, as in recurrent networks: the first dimension does not count the inputs."""
    return torch.relu(sequence(x).transpose(0, 1) - 1).transpose(0, 1).flatten(1)


def merged(x):
    """All tokens of all inputs in one long batch."""
    return torch.relu(x.reshape(-1, 6)).reshape(-1, 24)


LINEAR_1D, LINEAR_2D = nn.Conv1d(2, 2, 3, stride=2, padding=1).double(), nn.Conv2d(2, 4, 2, groups=2).double()
MATRIX = torch.randn(24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
FUNCTIONS = {
    "relu": torch.relu,
    "relu in place": lambda x: functional.relu_(x),
    "method": lambda x: x.relu(),
    "leaky relu": lambda x: functional.leaky_relu(x, 0.2),
    "leaky relu in place": lambda x: functional.leaky_relu_(x, 0.2),
    "prelu": lambda x: functional.prelu(x, torch.full((24,), 0.3, dtype=x.dtype)),
    "relu6": functional.relu6,
    "hardtanh": lambda x: functional.hardtanh(x, -2, 3),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp min": lambda x: x.clamp(min=0.5),
    "clamp max": lambda x: x.clamp_max(0.5),
    "abs": torch.abs,
    "maximum": lambda x: torch.maximum(x[:, :12], x[:, 12:]),
    "minimum": lambda x: torch.minimum(x, x.flip(1)),
    "maximum with constant": lambda x: torch.maximum(x, torch.ones(24, dtype=x.dtype)),
    "max over a dimension": lambda x: sequence(x).max(1).values,
    "amax": lambda x: image(x).amax((2, 3)),
    "amax keeping": lambda x: (image(x).amax(1, keepdim=True) + image(x)).flatten(1),
    "max pool 1d": lambda x: functional.max_pool1d(sequence(x), 3, stride=2, padding=1).flatten(1),
    "max pool 2d": lambda x: functional.max_pool2d(image(x), (3, 2), stride=1, padding=1).flatten(1),
    "max pool, ceiling": lambda x: functional.max_pool2d(image(x), 2, ceil_mode=True).flatten(1),
    "max pool, dilated": lambda x: functional.max_pool2d(image(x), 2, stride=1, dilation=(1, 2)).flatten(1),
    "max pool 3d": lambda x: functional.max_pool3d(x.reshape(-1, 1, 2, 3, 4), (2, 3, 2)).flatten(1),
    "adaptive max pool": lambda x: functional.adaptive_max_pool2d(image(x), (1, 2)).flatten(1),
    "avg pool 1d": lambda x: functional.avg_pool1d(sequence(x), 3).relu().flatten(1),
    "avg pool 2d": lambda x: functional.avg_pool2d(image(x), 2, padding=1).relu().flatten(1),
    "adaptive avg pool": lambda x: functional.adaptive_avg_pool2d(image(x).relu(), (2, 3)).flatten(1),
    "adaptive avg pool 1d": lambda x: functional.adaptive_avg_pool1d(sequence(x).relu(), 5).flatten(1),
    "global mean": lambda x: image(x).relu().mean((2, 3)),
    "sum": lambda x: image(x).relu().sum(dim=(1, 2)),
    "conv 1d": lambda x: LINEAR_1D(sequence(x)).relu().flatten(1),
    "grouped conv 2d": lambda x: LINEAR_2D(image(x)).relu().flatten(1),
    "batch norm": lambda x: functional.batch_norm(
        x, torch.arange(24.0).double(), 1 + torch.arange(24.0).double()
    ).relu(),
    "dropout": lambda x: functional.dropout(x, 0.5, training=False).relu(),
    "matmul": lambda x: (x @ MATRIX).relu(),
    "matrix from the left": lambda x: (MATRIX[:12, :12] @ sequence(x).mT).relu().flatten(1),
    "einsum": lambda x: torch.einsum("nst,tu->nsu", sequence(x), MATRIX[:12, :7]).relu().flatten(1),
    "arithmetic": lambda x: ((2 - x) / 3 * torch.arange(24.0).double() - -x + 1).relu(),
    "rows": lambda x: x.permute(1, 0).transpose(0, 1).relu(),
    "cat and stack": lambda x: torch.cat([torch.stack(x.chunk(2, 1), 1).flatten(1), x.relu()], 1).relu(),
    "slices": lambda x: (x[:, 1::2] + x[:, [0, 3, 5]].sum(1, keepdim=True)).relu(),
    "split and unbind": lambda x: sum(part.relu() for part in [*x.split(12, 1), *sequence(x).unbind(1)]),
    "padding": lambda x: functional.pad(image(x), (1, 1, 0, 2), value=-1.0).relu().flatten(1),
    "dtype and device": lambda x: x.to(torch.float64).contiguous().detach().relu(),
    "through views": into_slices,
    "time first": in_time,
    "merged rows": merged,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_operation_as_a_network_does_it(name):
    function = FUNCTIONS[name]
    x = torch.randn(10, 24, dtype=torch.float64)
    model = Body(function, function(torch.randn(2, 24, dtype=torch.float64)).shape[1]).double()
    before = x.clone()
    region = region_of(model, x)
    assert torch.equal(x, before)
    assert region.features.slope.dtype == torch.float64
    for delta in deltas(region.alpha, 8):
        assert deviation(model, x, region, delta).max() < 1e-12


@pytest.mark.parametrize("name", ["relu", "max pool 2d", "hardtanh", "minimum", "batch norm", "conv 1d"])
def test_each_row_has_its_own_alpha(name):
    """The alpha of a row does not depend on the other rows of its batch."""
    model = Body(FUNCTIONS[name], FUNCTIONS[name](torch.randn(2, 24, dtype=torch.float64)).shape[1]).double()
    x = torch.randn(6, 24, dtype=torch.float64)
    together = region_of(model, x).alpha
    alone = torch.cat([region_of(model, row[None].repeat(2, 1)).alpha[:1] for row in x])
    torch.testing.assert_close(together, alone)
    assert len(set(together.tolist())) == 6


@pytest.mark.parametrize("function", [in_time, merged])
def test_where_rows_are_mixed_every_row_gets_the_largest_alpha(function):
    model, x = Body(function, 24).double(), torch.randn(6, 24, dtype=torch.float64)
    rows = torch.cat([region_of(model, row[None]).alpha for row in x])
    torch.testing.assert_close(region_of(model, x).alpha, rows.amax().expand(6))


def test_a_square_batch_is_not_mistaken_for_rows():
    """With as many inputs as tokens, the first dimension after a transpose still counts tokens."""

    def tokens(x):
        return torch.relu(x.reshape(-1, 6, 4).transpose(0, 1) - 1).transpose(0, 1).flatten(1)

    model, x = Body(tokens, 24).double(), torch.randn(6, 24, dtype=torch.float64)
    rows = torch.cat([region_of(model, row[None]).alpha for row in x])
    assert bool((region_of(model, x).alpha >= rows * (1 - 1e-9)).all())


def test_a_thousand_rays_are_affine_beyond_alpha():
    model, x = network("mlp", 3, 1000)
    region = region_of(model, x)
    assert region.alpha.shape == (1000,) and bool((region.alpha > 0).all())
    for delta in deltas(region.alpha, 30):
        assert deviation(model, x, region, delta).max() < 1e-7


@given(
    name=st.sampled_from(list(NETWORKS)),
    k=st.integers(1, 4),
    seed=st.integers(0, 10_000),
)
def test_any_network_is_affine_beyond_alpha(name, k, seed):
    model, x = network(name, k, 20, seed)
    region = region_of(model, x)
    for delta in deltas(region.alpha, 12):
        assert deviation(model, x, region, delta).max() < 1e-7


@given(
    widths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    inputs=st.integers(1, 6),
    seed=st.integers(0, 10_000),
)
def test_alpha_is_the_smallest_on_plain_mlps(widths, inputs, seed):
    """Just before alpha some unit still has another sign. Beyond alpha no sign changes."""
    torch.manual_seed(seed)
    model = MLP((inputs, *widths, 2)).double()
    x = torch.randn(20, inputs, dtype=torch.float64)
    alpha = region_of(model, x).alpha
    final = _signs(model, x * (alpha * 1.0001 + 1e-9)[:, None])
    before = _signs(model, x * (alpha * 0.9999)[:, None])
    late = alpha > 0
    assert bool((final != before).any(1)[late].all())
    assert torch.equal(final, _signs(model, x * (alpha * 1e6 + 1e6)[:, None]))


def test_at_nine_tenths_of_alpha_the_network_still_differs_from_its_final_region():
    model, x = network("mlp", 3, 1000)
    region = region_of(model, x)
    assert bool((deviation(model, x, region, 0.9 * region.alpha) > 1e-9).all())


def _signs(model, x):
    signs = []
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            if isinstance(layer, nn.Linear) and layer is not model[-1]:
                signs.append(x > 0)
    return torch.cat(signs, 1)


@pytest.mark.parametrize(
    "model", [LeNet(), resnet18(width=4), MLP((784, 20, 3))], ids=["lenet", "resnet", "mlp"]
)
def test_the_papers_networks_unchanged_in_float32(model):
    torch.manual_seed(0)
    x = torch.rand(3, *{"Sequential": (3, 16, 16), "LeNet": (1, 28, 28)}.get(type(model).__name__, (784,)))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.bias.normal_()
    model.train()
    state = copy.deepcopy(model.state_dict())
    region = region_of(model, x)
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    exact = copy.deepcopy(model).double().eval()
    for delta in deltas(region.alpha, 4):
        assert deviation(exact, x.double(), region, delta).max() < 1e-7


def test_the_shipped_lenet():
    model, x = digits_lenet(), digits().test_images[:16]
    region = region_of(model, x)
    for delta in deltas(region.alpha, 5):
        assert deviation(model.double(), x.double(), region, delta).max() < 1e-7


def test_without_alpha_the_slopes_are_the_same():
    model, x = network("convnet", 3, 20)
    whole, short = region_of(model.float(), x.float()), region_of(model, x.float(), find_alpha=False)
    assert torch.equal(whole.features.slope, short.features.slope)
    assert torch.equal(whole.logits.slope, short.logits.slope)
    assert bool(short.alpha.isinf().all()) and bool(short.features.intercept.isinf().all())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes_alone_go_through_every_operation(name):
    function = FUNCTIONS[name]
    x = torch.randn(10, 24, dtype=torch.float64)
    model = Body(function, function(torch.randn(2, 24, dtype=torch.float64)).shape[1]).double()
    whole, short = region_of(model, x), region_of(model, x, find_alpha=False)
    assert torch.equal(whole.features.slope, short.features.slope)
    assert torch.equal(whole.logits.slope, short.logits.slope)


# ---- true zeros and rounding


class Cancelling(nn.Module):
    """Features that stop growing exactly: a linear map minus the same map computed in parts."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(50, 30), nn.Linear(30, 2)

    def forward(self, x):
        weight, bias = self.first.weight, self.first.bias
        parts = sum(x[:, i : i + 10] @ weight[:, i : i + 10].T for i in range(0, 50, 10))
        return self.head(torch.relu(self.first(x) - parts + 0.5 * bias))


def test_slopes_that_cancel_are_exactly_zero():
    model, x = Cancelling().double(), torch.randn(50, 50, dtype=torch.float64)
    region = region_of(model, x)
    assert bool((region.features.slope == 0).all())
    assert region.alpha.max() == 0
    expected = (1.5 * model.first.bias).relu().expand(50, 30)
    torch.testing.assert_close(region.features.intercept, expected)


def test_tiny_weights_are_not_taken_for_rounding():
    """A unit with weights of 1e-14, beside units with weights of 1, is on beyond δ = 1e14."""
    model = MLP((3, 2, 1)).double()
    with torch.no_grad():
        model[0].weight[0] = 1e-14
        model[0].bias.copy_(torch.tensor([-3.0, 0.0]))
    region = region_of(model, torch.ones(2, 3, dtype=torch.float64))
    torch.testing.assert_close(region.alpha, torch.full((2,), 1e14, dtype=torch.float64))
    torch.testing.assert_close(region.features.slope[:, 0], torch.full((2,), 3e-14, dtype=torch.float64))


def test_dead_rays_and_zero_inputs():
    model, _ = network("mlp", 3, 2)
    region = region_of(model, torch.zeros(2, 5, dtype=torch.float64))
    assert bool((region.features.slope == 0).all()) and bool((region.alpha == 0).all())


# ---- operations without a rule


@pytest.mark.parametrize(
    "layer, operation",
    [
        (nn.Softmax(1), "softmax"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.Tanh(), "tanh"),
        (nn.GELU(), "gelu"),
        (nn.LayerNorm(24), "layer_norm"),
        (nn.GroupNorm(2, 24), "group_norm"),
        (nn.BatchNorm1d(24, track_running_stats=False), "batch_norm"),
    ],
)
def test_unknown_operations_are_named(layer, operation):
    model = Body(layer, 24)
    with pytest.raises(ModelError, match=f"'{operation}"):
        region_of(model, torch.randn(3, 24))


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda x: x * x, "'mul' multiplies"),
        (lambda x: 1 / x, "'(div|reciprocal)"),
        (lambda x: torch.einsum("ni,nj->nij", x, x).flatten(1), "'b?m(m|ul)' multiplies"),
        (
            lambda x: torch.nn.functional.adaptive_max_pool2d(image(x), (2, 2)).flatten(1),
            "adaptive_max_pool2d",
        ),
        (lambda x: torch.zeros(len(x), 24).copy_(x), "'copy_' writes into a plain tensor"),
        (lambda x: x.long().float(), "'to_copy' turns values into"),
        (lambda x: x if x.sum() > 0 else -x, "'gt"),
    ],
)
def test_what_is_not_affine_is_named(function, message):
    x = torch.randn(3, 24)
    model = Body(function, function(x).shape[1])
    with pytest.raises(ModelError, match=message):
        region_of(model, x)


def test_attention_is_named():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(24, 2)

        def forward(self, x):
            x = x.reshape(-1, 6, 4)
            return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))

    with pytest.raises(ModelError, match=r"attention|'b?mm'|softmax"):
        region_of(Attention(), torch.randn(3, 24))


def test_inputs_without_a_ray():
    model, x = network("mlp", 3, 2)
    cases = ((x.long(), ArgumentError), ({"x": x}, ArgumentError), (x / 0, DataError), (x[:0], DataError))
    for bad, error in cases:
        with pytest.raises(error):
            final_region(model, find_head(model, x), bad)


def test_it_prints():
    assert "slope" in repr(RayTensor.along(torch.ones(1, 1)))
