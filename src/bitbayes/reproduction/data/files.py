"""Reads an embedded file and checks that it is the one the package was made with."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from bitbayes.errors import FileError

FOLDER = Path(__file__).parent / "embedded"


def read(name: str) -> bytes:
    """Return the bytes of an embedded file whose SHA-256 is the one written in `embedded.json`.

    The checksum is what notices a flipped bit in the weights: safetensors itself has none.

    >>> len(read("lenet.safetensors")) > 6_000_000
    True
    >>> read("cifar10.npz")
    Traceback (most recent call last):
    ...
    bitbayes.errors.FileError: the embedded file 'cifar10.npz' cannot be read (...): reinstall bitbayes
    """
    try:
        expected = json.loads((FOLDER / "embedded.json").read_text(encoding="utf-8"))["sha256"][name]
        content = (FOLDER / name).read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FileError(
            f"the embedded file {name!r} cannot be read ({reason}): reinstall bitbayes"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise FileError(
            f"the embedded file {name!r} is damaged: its SHA-256 is {found}, "
            f"but should be {expected}: reinstall bitbayes"
        )
    return content
