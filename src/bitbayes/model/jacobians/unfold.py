"""The inputs of a matrix layer as columns a, so that its output is W a at each position.

If the layer has a bias, the last entry of each column is 1.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def unfolded(module: nn.Module, inputs: Tensor, *, weight: bool, bias: bool) -> Tensor:
    """a (n, groups, i, T): one column for each of the T positions, in each group of channels.

    `weight`, `bias`: which of the two parameters the columns are for.
    """
    if isinstance(module, nn.Linear):
        return _unfold_linear(inputs, weight=weight, bias=bias)
    assert isinstance(module, (nn.Conv1d, nn.Conv2d))
    return _unfold_convolution(module, inputs, weight=weight, bias=bias)


def _unfold_linear(inputs: Tensor, *, weight: bool, bias: bool) -> Tensor:
    rows = inputs.flatten(1, -2) if inputs.dim() > 2 else inputs[:, None]  # (n, T, i)
    columns = [rows] if weight else []
    if bias:
        columns.append(torch.ones_like(rows[..., :1]))
    return torch.cat(columns, dim=2).mT[:, None] if len(columns) > 1 else columns[0].mT[:, None]


def _unfold_convolution(module: nn.Conv1d | nn.Conv2d, inputs: Tensor, *, weight: bool, bias: bool) -> Tensor:
    windows = _windows(module, inputs)  # (n, channels, height, width, kernel height, kernel width)
    n, channels, height, width, *kernel = windows.shape
    groups = module.groups
    inside = (channels // groups, *kernel)
    rows = inside[0] * inside[1] * inside[2] if weight else 0
    # The patches are written once, into this tensor. Points and positions are its last axes: so whole lines
    # of an image are copied at a time, and Σ aaᵀ over points and positions is one product of matrices.
    patches = inputs.new_empty(groups, rows + bias, n, height, width)
    if weight:
        grouped = windows.reshape(n, groups, inside[0], *windows.shape[2:]).permute(1, 2, 5, 6, 0, 3, 4)
        patches[:, :rows].view(groups, *inside, n, height, width).copy_(grouped)
    if bias:
        patches[:, rows] = 1
    return patches.flatten(3).permute(2, 0, 1, 3)


def _windows(module: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """All patches, (n, channels, height, width, kernel height, kernel width), a view of the padded inputs."""
    sides = len(module.kernel_size)
    pads = [
        side
        for axis in reversed(range(sides))
        for side in _padding_sides(module.padding, module.kernel_size[axis], module.dilation[axis], axis)
    ]
    if any(pads):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = functional.pad(inputs, pads, mode=mode)
    for axis in range(sides):
        dilation = module.dilation[axis]
        reach = dilation * (module.kernel_size[axis] - 1) + 1
        inputs = inputs.unfold(2 + axis, reach, module.stride[axis])[..., ::dilation]
    if sides == 1:  # an image of height 1
        return inputs[:, :, None, :, None, :]
    return inputs


def _padding_sides(padding: str | tuple[int, ...], kernel: int, dilation: int, axis: int) -> tuple[int, int]:
    """How many entries are padded before and after, along one axis."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        total = dilation * (kernel - 1)
        return total // 2, total - total // 2
    return int(padding[axis]), int(padding[axis])
