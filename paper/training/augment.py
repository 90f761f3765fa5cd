"""Random crops and flips of a whole batch at once, on the device of the batch."""

import torch
from torch import Tensor
from torch.nn import functional

from paper.training.recipe import Recipe


def augmented(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """Return the images (n, c, h, w), with about half of them shifted (and mirrored) as the recipe says.

    Args:
        images: (n, c, h, w).
        recipe: its `crop`, `padding` and `flip` count here.
        generator: on the device of the images.

    >>> images = torch.ones(4, 1, 8, 8)
    >>> augmented(images, Recipe(crop=2), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 8, 8])
    """
    n, _, height, width = images.shape
    device, crop = images.device, recipe.crop
    chosen = torch.rand(n, 1, device=device, generator=generator) < 0.5
    corner = torch.randint(0, 2 * crop + 1, (n, 2), device=device, generator=generator)
    corner = torch.where(chosen, corner, crop)  # (n, 2): the unshifted image begins at `crop`
    rows = corner[:, :1] + torch.arange(height, device=device)  # (n, h)
    columns = corner[:, 1:] + torch.arange(width, device=device)  # (n, w)
    if recipe.flip:
        mirrored = chosen & (torch.rand(n, 1, device=device, generator=generator) < 0.5)
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = functional.pad(images, (crop, crop, crop, crop), mode=recipe.padding)
    image = torch.arange(n, device=device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]  # (n, h, w, c)
    return moved.permute(0, 3, 1, 2).contiguous()
