"""SVHN's cropped digits, train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bitbayes.errors import FileError
from bitbayes.reproduction.data.checksums import verified


def read_svhn(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and labels (n,), in which 0 is the digit 0 (the file says 10).

    Needs scipy, which reads MATLAB's files: the extra `data`.
    """
    try:
        from scipy.io import loadmat  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise FileError(f"reading {path} needs scipy: install bitbayes[data]") from error
    verified(path, "svhn")
    try:
        content = loadmat(path)
        images, labels = content["X"], content["y"]  # (32, 32, 3, n), (n, 1)
    except Exception as error:  # scipy has its own error for each way a file can be damaged
        raise FileError(f"{path} is no SVHN file of cropped digits: {error!r}") from error
    images = np.ascontiguousarray(images.transpose(3, 2, 0, 1)).astype(np.uint8)
    return images, labels.reshape(-1).astype(np.int64) % 10
