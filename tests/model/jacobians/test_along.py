"""Derivatives along directions in the parameters, each way, against the dense Jacobian."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import dense
from bitbayes.errors import ModelError
from bitbayes.model import private_copy, working_way
from bitbayes.model.jacobians.along import WAYS, forward_mode, forward_mode_plain_attention, reverse_mode
from bitbayes.model.running.private_copy import SideEffects
from dense import close


def directions(model, count=3):
    return {name: torch.randn(count, *each.shape).to(each) for name, each in dense.parameters(model).items()}


def expected(model, x, along):
    """J δ (s, n, k)."""
    flat = torch.cat([each.flatten(1) for each in along.values()], dim=1)  # (s, P)
    return torch.einsum("nkp,sp->snk", dense.jacobians(model, x), flat)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", dense.NETWORKS)
def test_each_way_gives_the_product_with_the_dense_jacobian(name, way):
    model, x, _ = dense.case(name)
    along = directions(model)
    close(way(private_copy(model), x, along), expected(model, x, along), 1e-10)


class Attention(nn.Module):
    """One fused attention, whose gradient torch can only take once, and backwards."""

    def __init__(self):
        super().__init__()
        self.inside, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x):
        q, k, v = self.inside(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.head(mixed.transpose(1, 2).flatten(2).mean(1))


class Counting(nn.Module):
    """Buffers that each call changes; the output does not depend on them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        logits = self.head(x).tanh()
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * logits.mean(0))
        return logits


class Constant(nn.Module):
    """A factor that depends on the weights, but is a constant for backward passes."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        features = self.first(x)
        with torch.no_grad():
            size = self.first(x).norm(dim=1, keepdim=True)
        return self.head(features / size)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0][:, -1])


@pytest.mark.parametrize(
    "make, shape, wanted",
    [
        (lambda: dense.mlp(3), (5, 4), forward_mode),
        (Counting, (5, 4), forward_mode),
        (Attention, (5, 6, 4), forward_mode_plain_attention),
        (Constant, (5, 4), reverse_mode),
    ],
    ids=["mlp", "counting", "attention", "constant"],
)
def test_the_first_way_that_agrees_with_a_backward_pass_is_taken(make, shape, wanted):
    model, x = make().double().eval(), torch.randn(*shape, dtype=torch.float64)
    network = lambda: private_copy(model, SideEffects.any_of(model))  # noqa: E731
    before = {name: each.clone() for name, each in model.state_dict().items()}
    along = directions(model)
    way = working_way(network, x[:2], along)
    assert way is wanted
    jacobian = dense.autograd_jacobian(model, x[:, None])
    if isinstance(model, Counting):
        model.load_state_dict(before)
    flat = torch.cat([each.flatten(1) for each in along.values()], dim=1)
    close(way(network(), x, along), torch.einsum("nkp,sp->snk", jacobian, flat), 1e-10)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_recurrent_cells_are_differentiated_by_some_way():
    """Which one depends on the kernels that torch has for them."""
    model, x = Recurrent().double(), torch.randn(5, 6, 4, dtype=torch.float64)
    along = directions(model)
    way = working_way(lambda: private_copy(model), x, along)
    close(way(private_copy(model), x, along), expected(model, x, along), 1e-10)


class Once(torch.autograd.Function):
    """Has a derivative backwards, which has none itself."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * gradient


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return Once.apply(self.head(x))


def test_a_model_without_any_way_is_refused_and_the_error_says_what_to_do():
    model, x = Custom(), torch.randn(5, 4)
    with pytest.raises(ModelError, match=r"along draws of its weights.*covariance='exact'"):
        working_way(lambda: private_copy(model), x, directions(model))


def test_derivatives_of_half_precision_are_taken_in_float32():
    model, x, _ = dense.case("convnet", dtype=torch.bfloat16)
    along = {name: each.float() for name, each in directions(model).items()}
    found = forward_mode(private_copy(model), x, along)
    assert found.dtype == torch.float32
    exact = model.double()
    wide = {name: each.double() for name, each in along.items()}
    close(found.double(), expected(exact, x.double(), wide), 1e-4)


def test_inference_mode_changes_nothing():
    model, x, _ = dense.case("convnet")
    along = directions(model)
    with torch.inference_mode():
        for way in WAYS:
            close(way(private_copy(model), x + 0, along), way(private_copy(model), x, along), 1e-12)
