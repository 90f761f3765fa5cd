"""The rules for operations along rays, against plain evaluation of the network beyond alpha."""

import pytest
import torch
from torch import nn

from bitbayes.errors import ModelError
from bitbayes.rays.ray_tensor import RayTensor
from ray_cases import deltas, deviation, region_of
from ray_operations import FUNCTIONS, AroundFunction, around, image, in_time, merged


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_operation_is_affine_beyond_alpha(name):
    function = FUNCTIONS[name]
    x = torch.randn(10, 24, dtype=torch.float64)
    model = around(function)
    before = x.clone()
    region = region_of(model, x)
    assert torch.equal(x, before)
    assert region.features.slope.dtype == torch.float64
    for delta in deltas(region.alpha, 8):
        assert deviation(model, x, region, delta).max() < 1e-12


@pytest.mark.parametrize(
    "name",
    [
        *("relu", "max pool 2d", "hardtanh", "minimum", "batch norm", "conv 1d"),
        *("class token", "expanded", "numbers written", "split and unbind"),
    ],
)
def test_each_row_has_its_own_alpha(name):
    """The alpha of a row does not depend on the other rows of its batch."""
    model = around(FUNCTIONS[name])
    x = torch.randn(6, 24, dtype=torch.float64)
    together = region_of(model, x).alpha
    alone = torch.cat([region_of(model, row[None].repeat(2, 1)).alpha[:1] for row in x])
    torch.testing.assert_close(together, alone)
    assert len(set(together.tolist())) == 6


@pytest.mark.parametrize("function", [in_time, merged])
def test_where_rows_are_mixed_every_row_gets_the_largest_alpha(function):
    model, x = AroundFunction(function, 24).double(), torch.randn(6, 24, dtype=torch.float64)
    rows = torch.cat([region_of(model, row[None]).alpha for row in x])
    torch.testing.assert_close(region_of(model, x).alpha, rows.amax().expand(6))


def test_inputs_that_are_compared_with_their_mean_share_one_alpha():
    """Every row depends on all inputs, although its shape does not show it."""
    model = around(lambda x: torch.relu(x - x.mean(0, keepdim=True) - 1))
    alpha = region_of(model, torch.randn(6, 24, dtype=torch.float64)).alpha
    assert float(alpha[0]) > 0 and torch.equal(alpha, alpha[:1].expand(6))


def test_rows_beside_others_that_are_mixed_share_one_alpha():
    model = around(lambda x: torch.cat([x, x - x.mean(0, keepdim=True)], 1).sub(1).relu())
    alpha = region_of(model, torch.randn(6, 24, dtype=torch.float64)).alpha
    assert float(alpha[0]) > 0 and torch.equal(alpha, alpha[:1].expand(6))


def test_a_square_batch_is_not_mistaken_for_rows():
    """With as many inputs as tokens, the first dimension after a transpose still counts tokens."""

    def tokens(x):
        return torch.relu(x.reshape(-1, 6, 4).transpose(0, 1) - 1).transpose(0, 1).flatten(1)

    model, x = AroundFunction(tokens, 24).double(), torch.randn(6, 24, dtype=torch.float64)
    rows = torch.cat([region_of(model, row[None]).alpha for row in x])
    assert bool((region_of(model, x).alpha >= rows * (1 - 1e-9)).all())


def test_the_parts_of_one_input_are_not_mistaken_for_rows():
    """With as many inputs as tokens, the first dimension of each input's own part counts its tokens."""

    def each_input(x):
        return torch.stack([torch.relu(part - 1) for part in x.reshape(-1, 6, 4).unbind(0)]).flatten(1)

    model, x = AroundFunction(each_input, 24).double(), torch.randn(6, 24, dtype=torch.float64)
    rows = torch.cat([region_of(model, row[None]).alpha for row in x])
    assert bool((region_of(model, x).alpha >= rows * (1 - 1e-9)).all())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slopes_without_alpha_are_the_same_for_every_operation(name):
    function = FUNCTIONS[name]
    x = torch.randn(10, 24, dtype=torch.float64)
    model = around(function)
    whole, short = region_of(model, x), region_of(model, x, find_alpha=False)
    assert torch.equal(whole.features.slope, short.features.slope)
    assert torch.equal(whole.logits.slope, short.logits.slope)


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
    model = AroundFunction(layer, 24)
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
def test_operations_that_are_not_affine_are_named(function, message):
    x = torch.randn(3, 24)
    model = AroundFunction(function, function(x).shape[1])
    with pytest.raises(ModelError, match=message):
        region_of(model, x)


def test_attention_layers_are_refused_and_named():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(24, 2)

        def forward(self, x):
            x = x.reshape(-1, 6, 4)
            return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))

    with pytest.raises(ModelError, match=r"attention|'b?mm'|softmax"):
        region_of(Attention(), torch.randn(3, 24))


def test_the_repr_of_a_ray_tensor_shows_its_slope():
    assert "slope" in repr(RayTensor.along(torch.ones(1, 1)))
