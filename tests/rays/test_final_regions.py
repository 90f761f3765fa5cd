"""The final region, against plain evaluation of the network beyond alpha and before it."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bitbayes.errors import ArgumentError, DataError
from bitbayes.model import find_head
from bitbayes.rays import final_region
from bitbayes.rays.final_regions import unit_rays
from bitbayes.toys import MLP, LeNet, digits, digits_lenet
from paper.resnet import resnet18
from ray_cases import NETWORKS, deltas, deviation, network, region_of


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
    final = unit_signs(model, x * (alpha * 1.0001 + 1e-9)[:, None])
    before = unit_signs(model, x * (alpha * 0.9999)[:, None])
    late = alpha > 0
    assert bool((final != before).any(1)[late].all())
    assert torch.equal(final, unit_signs(model, x * (alpha * 1e6 + 1e6)[:, None]))


def test_at_nine_tenths_of_alpha_the_network_still_differs_from_its_final_region():
    model, x = network("mlp", 3, 1000)
    region = region_of(model, x)
    assert bool((deviation(model, x, region, 0.9 * region.alpha) > 1e-9).all())


def unit_signs(model, x):
    """Which hidden units are on at x, (n, units)."""
    signs = []
    with torch.no_grad():
        for layer in model:
            x = layer(x)
            if isinstance(layer, nn.Linear) and layer is not model[-1]:
                signs.append(x > 0)
    return torch.cat(signs, 1)


@pytest.mark.parametrize(
    "make, shape",
    [(LeNet, (1, 28, 28)), (lambda: resnet18(width=4), (3, 16, 16)), (lambda: MLP((784, 20, 3)), (784,))],
    ids=["lenet", "resnet", "mlp"],
)
def test_the_papers_networks_in_float32_stay_unchanged_and_are_affine_beyond_alpha(make, shape):
    model, x = make(), torch.rand(3, *shape)
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


def test_the_shipped_lenet_is_affine_beyond_alpha():
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


def test_the_ray_of_a_zero_input_has_slope_and_alpha_zero():
    model, _ = network("mlp", 3, 2)
    region = region_of(model, torch.zeros(2, 5, dtype=torch.float64))
    assert bool((region.features.slope == 0).all()) and bool((region.alpha == 0).all())


def test_inputs_that_are_integers_mappings_infinite_or_empty_raise():
    model, x = network("mlp", 3, 2)
    cases = ((x.long(), ArgumentError), ({"x": x}, ArgumentError), (x / 0, DataError), (x[:0], DataError))
    for bad, error in cases:
        with pytest.raises(error):
            final_region(model, find_head(model, x), bad)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_slopes_that_cancel_are_zero_whatever_their_sign(sign):
    """0.1 + 0.2 − 0.3 is 6e-17 in float64: with a bias of 1 a unit would switch at δ = 2e16."""
    model = nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        model[0].weight[0] = torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64)
        model[0].bias.fill_(1.0)
    region = region_of(model, torch.full((1, 3), sign, dtype=torch.float64))
    assert float(region.features.slope) == 0 and float(region.features.intercept) == 1
    assert float(region.alpha) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_the_largest_number_of_a_unit_ray_is_between_one_and_two(shape, dtype):
    x = torch.randn(6, *shape, dtype=dtype) * torch.tensor([1e-30, 1e-3, 1, 7, 1e5, 0]).to(dtype).reshape(
        -1, *[1] * len(shape)
    )
    unit, size = unit_rays(x)
    largest = unit.reshape(6, -1).abs().amax(1)
    assert bool((largest[:5] >= 1).all()) and bool((largest[:5] < 2).all())
    assert torch.equal(size.log2().frac(), torch.zeros(6).double())  # so that nothing is rounded
    assert torch.equal((unit.double() * size.reshape(-1, *[1] * len(shape))).to(dtype), x)
    assert not unit[5].any() and size[5] == 1


def test_unit_rays_reach_over_all_numbers_of_float64():
    unit, size = unit_rays(torch.tensor([[1e300, 3.0], [1e-300, 0.0]], dtype=torch.float64))
    assert bool((unit.amax(1) >= 1).all()) and bool((unit.amax(1) < 2).all())
    assert (unit * size[:, None]).tolist() == [[1e300, 3.0], [1e-300, 0.0]]
