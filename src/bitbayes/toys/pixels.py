"""The one conversion from stored pixels to what a network takes."""

import torch
from torch import Tensor


def scale_pixels(images: Tensor) -> Tensor:
    """Convert pixels 0..255 in uint8 to float32 in [0, 1]. Floating-point images are returned as they are.

    >>> scale_pixels(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    >>> scale_pixels(torch.tensor([0.0, 255.0]))
    tensor([  0., 255.])
    """
    return images.float() / 255 if images.dtype == torch.uint8 else images
