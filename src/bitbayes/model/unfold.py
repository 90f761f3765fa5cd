"""A matrix layer's input as it meets the weights: one column for each position, the bias's 1 last."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def unfolded(module: nn.Module, inputs: Tensor, *, weight: bool, bias: bool) -> Tensor:
    """a (n, groups, i, T): what the layer's rows are multiplied with, at each of its T positions.

    `weight`, `bias`: which of the two is wanted; the bias's input is 1.
    """
    if isinstance(module, nn.Linear):
        return _linear(inputs, weight=weight, bias=bias)
    assert isinstance(module, (nn.Conv1d, nn.Conv2d))
    return _convolution(module, inputs, weight=weight, bias=bias)


def _linear(inputs: Tensor, *, weight: bool, bias: bool) -> Tensor:
    rows = inputs.flatten(1, -2) if inputs.dim() > 2 else inputs[:, None]  # (n, T, i)
    ones = torch.ones_like(rows[..., :1])
    columns = [rows] if weight else []
    if bias:
        columns.append(ones)
    return torch.cat(columns, dim=2).mT[:, None] if len(columns) > 1 else columns[0].mT[:, None]


def _convolution(module: nn.Conv1d | nn.Conv2d, inputs: Tensor, *, weight: bool, bias: bool) -> Tensor:
    windows = _windows(module, inputs)  # (n, channels, height, width, kernel height, kernel width)
    n, channels, height, width, *kernel = windows.shape
    groups = module.groups
    inside = (channels // groups, *kernel)
    rows = inside[0] * inside[1] * inside[2] if weight else 0
    # Filled in place, positions along the last axis: the copy that unfolds is the only one, it moves whole
    # lines of the picture, and Σ aaᵀ over points and positions is one product of matrices.
    patches = inputs.new_empty(groups, rows + bias, n, height, width)
    if weight:
        grouped = windows.reshape(n, groups, inside[0], *windows.shape[2:]).permute(1, 2, 5, 6, 0, 3, 4)
        patches[:, :rows].view(groups, *inside, n, height, width).copy_(grouped)
    if bias:
        patches[:, rows] = 1
    return patches.flatten(3).permute(2, 0, 1, 3)


def _windows(module: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Every patch that the kernel sees, (n, channels, height, width, kernel height, kernel width), a view."""
    sides = len(module.kernel_size)
    pads = [
        side
        for axis in reversed(range(sides))
        for side in _padding(module.padding, module.kernel_size[axis], module.dilation[axis], axis)
    ]
    if any(pads):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = functional.pad(inputs, pads, mode=mode)
    for axis in range(sides):
        dilation = module.dilation[axis]
        reach = dilation * (module.kernel_size[axis] - 1) + 1
        inputs = inputs.unfold(2 + axis, reach, module.stride[axis])[..., ::dilation]
    if sides == 1:  # a picture of height 1
        return inputs[:, :, None, :, None, :]
    return inputs


def _padding(padding: str | tuple[int, ...], kernel: int, dilation: int, axis: int) -> tuple[int, int]:
    """Zeros (or what takes their place) before and after, along one axis."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        total = dilation * (kernel - 1)
        return total // 2, total - total // 2
    return int(padding[axis]), int(padding[axis])
