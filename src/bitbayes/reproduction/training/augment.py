"""Random crops and flips of a whole batch at once, where the batch is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bitbayes.reproduction.training.recipe import Recipe


def augmented(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Half of the images (n, c, h, w), at random, moved (and mirrored) as the recipe says; the rest as is.

    >>> images = torch.ones(4, 1, 8, 8)
    >>> augmented(images, Recipe(crop=2), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 8, 8])
    """
    n, _, height, width = images.shape
    device, most = images.device, recipe.crop
    chosen = torch.rand(n, 1, device=device, generator=generator) < 0.5
    corner = torch.randint(0, 2 * most + 1, (n, 2), device=device, generator=generator)
    corner = torch.where(chosen, corner, most)  # (n, 2): `most` is where the image itself begins
    rows = corner[:, :1] + torch.arange(height, device=device)  # (n, h)
    columns = corner[:, 1:] + torch.arange(width, device=device)  # (n, w)
    if recipe.flip:
        mirrored = chosen & (torch.rand(n, 1, device=device, generator=generator) < 0.5)
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = functional.pad(images, (most, most, most, most), mode=recipe.padding)
    which = torch.arange(n, device=device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]  # (n, h, w, c)
    return moved.permute(0, 3, 1, 2).contiguous()
