"""Operations of networks that are affine piece by piece, each as a function of (n, 24)."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

from bitbayes.rays.rules import RULES, rule


class Signs(nn.Module):
    """|x|, by an operation that has no rule."""

    def forward(self, x):
        return x * torch.sign(x.detach())


def network_of_signs():
    """From (n, 3) to two logits, in float64."""
    return nn.Sequential(nn.Linear(3, 5), Signs(), nn.Linear(5, 2)).double()


@contextmanager
def rule_of_the_sign():
    """In this block `torch.sign` has a rule at infinity, where the sign is that of the slope."""
    before = dict(RULES)
    try:

        @rule("sign")
        def sign(func, ray):
            negative = ray.ray_pass.settle_signs(ray.slope, ray.intercept, ray.by_row)
            return torch.where(negative, -1.0, 1.0).to(ray.dtype)

        yield
    finally:
        RULES.clear()
        RULES.update(before)


class AroundFunction(nn.Module):
    """A function between two linear layers, from (n, 24) to (n, 3)."""

    def __init__(self, function, width):
        super().__init__()
        self.function = function
        self.first, self.head = nn.Linear(24, 24), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.function(self.first(x)))


def around(function):
    """The function between two linear layers of the right widths, in float64."""
    width = function(torch.randn(2, 24, dtype=torch.float64)).shape[1]
    return AroundFunction(function, width).double()


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


def with_numbers(x):
    """Plain numbers that are written over some columns, and over all of a tensor."""
    y = x.clone()
    y[:, :3] = torch.arange(3.0, dtype=x.dtype)
    level = torch.zeros_like(x).copy_(torch.arange(24.0, dtype=x.dtype))
    return (y - level).relu()


def in_time(x):
    """Time before batch, as in recurrent networks: the first dimension does not count the inputs."""
    return torch.relu(sequence(x).transpose(0, 1) - 1).transpose(0, 1).flatten(1)


def merged(x):
    """The tokens of all inputs become rows of one long batch."""
    return torch.relu(x.reshape(-1, 6)).reshape(-1, 24)


def with_token(x):
    """A class token before the patches, as in vision transformers."""
    token = torch.arange(4.0, dtype=torch.float64).reshape(1, 1, 4) - 2
    return torch.cat([token.expand(len(x), -1, -1), x.reshape(-1, 6, 4)], 1).relu().flatten(1)


def repeated(x):
    """A value that all patches get, without a copy."""
    patches = x.reshape(-1, 6, 4)
    return torch.cat([patches[:, :1].expand(-1, 6, -1), patches], 2).relu().flatten(1)


MATRIX = torch.randn(24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


FUNCTIONS = {
    "relu": torch.relu,
    "relu in place": lambda x: functional.relu_(x),
    "method": lambda x: x.relu(),
    "leaky relu": lambda x: functional.leaky_relu(x, 0.2),
    "leaky relu as it comes": functional.leaky_relu,
    "leaky relu in place": lambda x: functional.leaky_relu_(x, 0.2),
    "prelu": lambda x: functional.prelu(x, torch.full((24,), 0.3, dtype=x.dtype)),
    "relu6": functional.relu6,
    "hardtanh": lambda x: functional.hardtanh(x, -2, 3),
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp to numbers that are not exact": lambda x: x.clamp(-0.1, 0.3).relu() - x.clamp(max=0.7),
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
    "conv 1d": lambda x: (
        functional.conv1d(sequence(x), MATRIX[:2, :6].reshape(2, 2, 3), MATRIX[2, :2], stride=2, padding=1)
        .relu()
        .flatten(1)
    ),
    "grouped conv 2d": lambda x: (
        functional.conv2d(image(x), MATRIX[:4, :4].reshape(4, 1, 2, 2), MATRIX[4, :4], groups=2)
        .relu()
        .flatten(1)
    ),
    "batch norm": lambda x: functional.batch_norm(
        x, torch.arange(24.0).double(), 1 + torch.arange(24.0).double()
    ).relu(),
    "dropout": lambda x: functional.dropout(x, 0.5, training=False).relu(),
    "matmul": lambda x: (x @ MATRIX).relu(),
    "addmm": lambda x: torch.addmm(MATRIX[0], x, MATRIX, beta=2, alpha=0.5).relu(),
    "matrix from the left": lambda x: (MATRIX[:12, :12] @ sequence(x).mT).relu().flatten(1),
    "einsum": lambda x: torch.einsum("nst,tu->nsu", sequence(x), MATRIX[:12, :7]).relu().flatten(1),
    "arithmetic": lambda x: ((2 - x) / 3 * torch.arange(24.0).double() - -x + 1).relu(),
    "signs": lambda x: (-x * -2 / -3).sub(x.neg() / 2, alpha=3).relu().add(x.abs().neg_().mul_(-1), alpha=-2),
    "signs of numbers": lambda x: (
        torch.rsub(x, 2, alpha=3).relu() + torch.add(x, 1, alpha=-3).relu() - x.sub(2, alpha=-3).relu()
    ),
    "signs of products": lambda x: torch.addmm(x, x.relu(), MATRIX, beta=-2, alpha=-0.5).relu(),
    "rows": lambda x: x.permute(1, 0).transpose(0, 1).relu(),
    "cat and stack": lambda x: torch.cat([torch.stack(x.chunk(2, 1), 1).flatten(1), x.relu()], 1).relu(),
    "slices": lambda x: (x[:, 1::2] + x[:, [0, 3, 5]].sum(1, keepdim=True)).relu(),
    "sum of nothing": lambda x: (x + x[:, :0].sum(1, keepdim=True)).relu(),
    "split and unbind": lambda x: sum(part.relu() for part in [*x.split(12, 1), *sequence(x).unbind(1)]),
    "padding": lambda x: functional.pad(image(x), (1, 1, 0, 2), value=-1.0).relu().flatten(1),
    "padded rows": lambda x: functional.pad(x, (0, 0, 1, 0)).relu()[1:],
    "numbers written": with_numbers,
    "made indices": lambda x: x[:, x.new_zeros(3, dtype=torch.long)].relu(),
    "dtype and device": lambda x: x.to(torch.float64).contiguous().detach().relu(),
    "through views": into_slices,
    "time first": in_time,
    "merged rows": merged,
    "class token": with_token,
    "expanded": repeated,
}
