"""Inputs as a reader can see them: images as PNG, other inputs as their first numbers."""

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LARGEST_SIDE = 72  # in pixels; larger images are made smaller
SMALLEST_SIDE = 6  # of an image; anything smaller counts as a small table
MOST_VALUES = 6


def as_image(row: Any) -> str | None:
    """Return an input (1 or 3, h, w) or (h, w) as a PNG in a data URI, or None if it has another shape.

    Its smallest number is black and its largest white, because its normalisation is unknown.

    >>> as_image(torch.rand(3, 32, 32))[:22]
    'data:image/png;base64,'
    >>> as_image(torch.rand(7)) is None
    True
    """
    if not isinstance(row, Tensor) or not row.is_floating_point() or row.dim() not in (2, 3):
        return None
    pixels = row.detach().cpu().double()
    pixels = pixels[None] if pixels.dim() == 2 else pixels  # (c, h, w)
    if pixels.shape[0] not in (1, 3) or min(pixels.shape[1:]) < SMALLEST_SIDE:
        return None
    pixels = pixels.nan_to_num()
    pixels = pixels - pixels.min()
    pixels = pixels / pixels.max().clamp_min(torch.finfo(torch.float64).tiny)
    height, width = pixels.shape[1:]
    shrink = max(height, width) / LARGEST_SIDE
    if shrink > 1:
        size = max(1, round(height / shrink)), max(1, round(width / shrink))
        pixels = torch.nn.functional.interpolate(pixels[None], size=size, mode="area")[0]
    png = _encode_png((255 * pixels).round().to(torch.uint8).permute(1, 2, 0))
    return "data:image/png;base64," + base64.b64encode(png).decode()


def first_values(row: Any) -> tuple[list[float], int]:
    """Return the first numbers of an input, and how many it has. For a mapping they are of its first tensor.

    >>> first_values({"ids": torch.tensor([7, 8, 9])})
    ([7.0, 8.0, 9.0], 3)
    """
    while isinstance(row, Mapping):
        row = next(iter(row.values()), torch.zeros(0))
    numbers = torch.as_tensor(row).flatten()
    return numbers[:MOST_VALUES].double().nan_to_num().tolist(), numbers.numel()


def _encode_png(pixels: Tensor) -> bytes:
    """Return a PNG of (h, w, 1 or 3) bytes. Doing this here saves loading a library for images."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in pixels)  # 0: the row is not filtered

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows, 9)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
