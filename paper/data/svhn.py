"""Read SVHN's cropped digits, train_32x32.mat and test_32x32.mat."""

from pathlib import Path

import numpy as np

from bitbayes.errors import FileError
from paper.data.checksums import verify_checksum
from paper.data.files import damage_as_file_error


def read_svhn(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 3, 32, 32) in uint8 and labels (n,). The digit 0, which the file calls 10, has label 0.

    This needs scipy (the extra `paper`), which reads MATLAB files.
    """
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise FileError(f"reading {path} needs scipy: install bitbayes[paper]") from error
    verify_checksum(path, "svhn")
    with damage_as_file_error(path, "SVHN file of cropped digits"):
        content = loadmat(path)
        images, labels = content["X"], content["y"]  # (32, 32, 3, n), (n, 1)
        images = np.ascontiguousarray(images.transpose(3, 2, 0, 1)).astype(np.uint8)
        return images, labels.reshape(-1).astype(np.int64) % 10
