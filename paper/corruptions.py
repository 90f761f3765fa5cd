"""Corrupted images: twelve of the corruptions of CIFAR-10-C in five severities, in batches, on any device.

The parameters are those that were published with CIFAR-10-C (Hendrycks and Dietterich, 2019). The images are
made by torch. So details, such as random numbers and edges, differ from those of the published files.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """Return the images (n, c, h, w), floats in [0, 1], corrupted, in [0, 1].

    Args:
        images: square images.
        name: one of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: of the random numbers, which are drawn on the images' device.

    >>> gray = torch.full((2, 3, 32, 32), 0.5)
    >>> all(corrupt(gray, name, 5).shape == gray.shape for name in CORRUPTIONS)
    True
    """
    change, parameters = CORRUPTIONS[name]
    generator = torch.Generator(images.device).manual_seed(seed)
    return change(images, parameters[severity - 1], generator).clamp(0, 1)


def _gaussian_noise(x: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    return x + deviation * _normal(x, generator)


def _shot_noise(x: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    return torch.poisson(x * photons, generator=generator) / photons


def _impulse_noise(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A share of all values becomes 0 or 1."""
    drawn = torch.rand(x.shape, generator=generator, device=x.device)
    return torch.where(drawn < share / 2, 0.0, torch.where(drawn < share, 1.0, x))


def _speckle_noise(x: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    return x + deviation * x * _normal(x, generator)


def _gaussian_blur(x: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    kernel = _gaussian(math.ceil(4 * deviation), deviation)
    return _filtered(x, kernel[:, None] * kernel)


def _defocus_blur(x: Tensor, parameters: tuple[float, float], generator: torch.Generator) -> Tensor:
    """A disk of this radius, itself blurred by a Gaussian of this deviation."""
    radius, blur = parameters
    place = torch.arange(-8.0, 9.0)
    disk = (place[:, None].square() + place.square() <= radius**2).float()
    kernel = _gaussian(1, blur)
    blurred = functional.conv2d(disk[None, None], (kernel[:, None] * kernel)[None, None], padding=1)[0, 0]
    return _filtered(x, blurred / blurred.sum())


def _motion_blur(x: Tensor, parameters: tuple[int, float], generator: torch.Generator) -> Tensor:
    """Half a Gaussian along a line, at an angle of −45 to 45 degrees that each image draws."""
    radius, deviation = parameters
    angle = (torch.rand(len(x), generator=generator, device=x.device) - 0.5) * (math.pi / 2)
    direction = torch.stack([angle.cos(), angle.sin()], dim=1) * (2 / x.shape[-1])  # a pixel, of width 2/w
    steps = torch.arange(2 * radius + 1, dtype=x.dtype)
    weights = torch.exp(-steps.square() / (2 * deviation**2))
    grid = _identity_grid(x)
    total = torch.zeros_like(x)
    for step, weight in zip(steps.tolist(), (weights / weights.sum()).tolist(), strict=True):
        total += weight * _sampled(x, grid - step * direction[:, None, None, :])
    return total


def _zoom_blur(x: Tensor, largest: float, generator: torch.Generator) -> Tensor:
    """The mean of the image and of its enlargements, by 0, 1, 2, … per cent."""
    factors = torch.arange(1.0, largest, 0.01).tolist()
    grid = _identity_grid(x)
    return (x + sum(_sampled(x, grid / each) for each in factors)) / (len(factors) + 1)


def _fog(x: Tensor, parameters: tuple[float, float], generator: torch.Generator) -> Tensor:
    """A cloud of random heights (`_plasma`), with the range of the image kept."""
    thickness, decay = parameters
    largest = x.amax((1, 2, 3), keepdim=True)
    return (x + thickness * _plasma(x, decay, generator)) * largest / (largest + thickness)


def _brightness(x: Tensor, more: float, generator: torch.Generator) -> Tensor:
    """The value of each pixel, its largest channel, is raised; hue and saturation stay."""
    value = x.amax(1, keepdim=True)
    raised = (value + more).clamp_max(1)
    return torch.where(value > 0, x / value.clamp_min(1e-8) * raised, raised)


def _contrast(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def _pixelate(x: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    size = int(x.shape[-1] * factor)
    small = functional.interpolate(x, size=(size, size), mode="area")
    return functional.interpolate(small, size=x.shape[-2:], mode="nearest-exact")


# By name: the function, and its parameters from severity 1 to 5.
CORRUPTIONS: dict[str, tuple[Callable[..., Tensor], tuple[object, ...]]] = {
    "gaussian noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle noise": (_speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian blur": (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "defocus blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "fog": (_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
}


def _normal(x: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)


def _gaussian(reach: int, deviation: float) -> Tensor:
    """A Gaussian kernel of 2·reach + 1 numbers that add up to 1."""
    place = torch.arange(-reach, reach + 1.0)
    kernel = torch.exp(-place.square() / (2 * deviation**2))
    return kernel / kernel.sum()


def _filtered(x: Tensor, kernel: Tensor) -> Tensor:
    """Each channel convolved with a square kernel; the image is mirrored at its edges."""
    reach, channels = kernel.shape[-1] // 2, x.shape[1]
    padded = functional.pad(x, [reach] * 4, mode="reflect" if reach < min(x.shape[2:]) else "replicate")
    return functional.conv2d(padded, kernel.to(x).expand(channels, 1, -1, -1), groups=channels)


def _identity_grid(x: Tensor) -> Tensor:
    """The positions of all pixels, (n, h, w, 2), as `grid_sample` takes them."""
    identity = torch.eye(2, 3, dtype=x.dtype, device=x.device).expand(len(x), -1, -1)
    return functional.affine_grid(identity, list(x.shape), align_corners=False)


def _sampled(x: Tensor, grid: Tensor) -> Tensor:
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _plasma(x: Tensor, decay: float, generator: torch.Generator) -> Tensor:
    """Random heights (n, 1, h, w) in [0, 1] by midpoint displacement on a torus, a power of 2 wide."""
    size = 2 ** math.ceil(math.log2(x.shape[-1]))
    heights = torch.zeros(len(x), size, size, dtype=x.dtype, device=x.device)
    step, wobble = size, 1.0

    def noise(like: Tensor) -> Tensor:
        drawn = torch.rand(like.shape, generator=generator, dtype=x.dtype, device=x.device)
        return like + wobble * (2 * drawn - 1)

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        right, below = corners.roll(-1, 2), corners.roll(-1, 1)
        centres = noise((corners + right + below + right.roll(-1, 1)) / 4)
        heights[:, half::step, half::step] = centres
        above, left = centres.roll(1, 1), centres.roll(1, 2)
        heights[:, ::step, half::step] = noise((corners + right + centres + above) / 4)
        heights[:, half::step, ::step] = noise((corners + below + centres + left) / 4)
        step, wobble = half, wobble / decay
    heights = heights[:, : x.shape[-2], : x.shape[-1]]
    low, high = (each[:, None, None] for each in (heights.amin((1, 2)), heights.amax((1, 2))))
    return ((heights - low) / (high - low))[:, None]
