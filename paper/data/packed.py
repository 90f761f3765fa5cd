"""Read packed data sets: grey images as plain .npz, colour images as .npz shards of lossless WebP strips.

A strip is a column of 32 × 32 images. A shard holds `webp` (the bytes of all strips), `sizes` (the number of
bytes of each strip), `labels` and `bits`. With 8 bits, pixels are exact. With 6 bits, a pixel x was stored as
q = (x + 2) >> 2 and is read as min(4q, 255), which is off by at most 2.
"""

import io
from pathlib import Path

import numpy as np

from bitbayes.errors import FileError
from paper.data.files import damage_as_file_error

# By data set and split: the file, and the names of the images and the labels in it.
GREY_FILES = {
    ("mnist", "train"): ("mnist.npz", "x_train", "y_train"),
    ("mnist", "test"): ("mnist.npz", "x_test", "y_test"),
    ("fashion_mnist", "test"): ("test.npz", "x_test", "y_test"),
    ("letters", "train"): ("vowels.npz", "x", "y"),
    ("letters", "test"): ("az.npz", "x_uniform", "y_uniform"),
}


def find_packed(name: str, split: str, root: Path) -> list[Path]:
    """Return the files of a packed set, in order. The list is empty if there are none."""
    if (name, split) in GREY_FILES:
        path = root / name / GREY_FILES[name, split][0]
        return [path] if path.is_file() else []
    return sorted((root / name).glob(f"{split}_*.npz"))


def read_packed(name: str, split: str, paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 1, 28, 28) or (n, 3, 32, 32) in uint8 and labels (n,) in int64."""
    if (name, split) not in GREY_FILES:
        parts = []
        for path in paths:
            with damage_as_file_error(path, "packed data set"):
                parts.append(_read_shard(path))
        images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
        return images, labels
    _, image_name, label_name = GREY_FILES[name, split]
    with damage_as_file_error(paths[0], "packed data set"):
        arrays = _read_arrays(paths[0], (image_name, label_name))
        return arrays[image_name][:, None].astype(np.uint8), arrays[label_name].astype(np.int64)


def _read_shard(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        from PIL import Image
    except ImportError as error:
        raise FileError(f"reading {path} needs Pillow, for WebP: install bitbayes[paper]") from error
    shard = _read_arrays(path, ("webp", "sizes", "labels", "bits"))
    ends = np.cumsum(shard["sizes"].astype(np.int64))
    content = shard["webp"].tobytes()
    if not len(ends) or ends[-1] != len(content) or shard["bits"].item() not in (6, 8):
        raise FileError(f"{path} is damaged: its strips do not fill it, or are not of 6 or 8 bits")
    strips = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        strip = np.asarray(Image.open(io.BytesIO(content[start:end])).convert("RGB"))
        strips.append(strip.reshape(-1, 32, 32, 3))
    images = np.concatenate(strips).transpose(0, 3, 1, 2)  # (n, 3, 32, 32)
    if shard["bits"].item() == 6:
        images = np.minimum(images.astype(np.int32) * 4, 255).astype(np.uint8)
    return np.ascontiguousarray(images), shard["labels"].astype(np.int64)


def _read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in names}
