"""A folder of image files: one class, or one class for each folder in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bitbayes.errors import FileError

ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm", ".gif", ".tif", ".tiff"}


def read_folder(folder: Path, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, size, size) uint8 and labels (n,), in the order of the names.

    The label is the number of the folder an image lies in, in alphabetical order, as torchvision's
    ImageFolder has it. Images of another size are resized bilinearly. Needs Pillow: the extra `data`.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError(f"reading the images in {folder} needs Pillow: install bitbayes[data]") from error
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
    if not paths:
        raise FileError(f"{folder} holds no image: looked for {', '.join(sorted(ENDINGS))}")
    classes = {parent: number for number, parent in enumerate(sorted({path.parent for path in paths}))}
    images = []
    for path in paths:
        try:
            with Image.open(path) as image:
                colour = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
                images.append(np.asarray(colour).transpose(2, 0, 1))
        except OSError as error:
            raise FileError(f"{path} is no image that can be read: {error}") from error
    return np.stack(images), np.array([classes[path.parent] for path in paths], dtype=np.int64)
