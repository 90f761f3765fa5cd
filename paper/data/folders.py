"""Read a folder of image files."""

from pathlib import Path

import numpy as np

from bitbayes.errors import FileError
from paper.data.files import damage_as_file_error

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".ppm", ".pgm", ".gif", ".tif", ".tiff"}

SIDE_PIXELS = 32


def read_folder(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 3, 32, 32) in uint8 and labels (n,), in the order of the file names.

    An image's label is the number of the folder that holds it, in alphabetical order, as in torchvision's
    ImageFolder. Images of another size are resized bilinearly. This needs Pillow (the extra `paper`).
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError(f"reading the images in {folder} needs Pillow: install bitbayes[paper]") from error
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise FileError(f"{folder} holds no image: looked for {', '.join(sorted(IMAGE_SUFFIXES))}")
    classes = {parent: number for number, parent in enumerate(sorted({path.parent for path in paths}))}
    images = []
    for path in paths:
        with damage_as_file_error(path, "image"), Image.open(path) as image:
            colour = image.convert("RGB").resize((SIDE_PIXELS, SIDE_PIXELS), Image.Resampling.BILINEAR)
            images.append(np.asarray(colour).transpose(2, 0, 1))
    return np.stack(images), np.array([classes[path.parent] for path in paths], dtype=np.int64)
