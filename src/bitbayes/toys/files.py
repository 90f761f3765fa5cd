"""Read the files that come with the package."""

import hashlib
import json
from pathlib import Path

from bitbayes.errors import FileError

EMBEDDED_FOLDER = Path(__file__).parent / "embedded"


def read_embedded(name: str) -> bytes:
    """Return the bytes of an embedded file. Raise unless its SHA-256 is the one in `embedded.json`.

    A safetensors file has no checksum of its own, so a flipped bit in the weights would go unnoticed.

    >>> len(read_embedded("lenet.safetensors")) > 6_000_000
    True
    >>> read_embedded("cifar10.npz")
    Traceback (most recent call last):
    ...
    bitbayes.errors.FileError: the embedded file 'cifar10.npz' cannot be read (...): reinstall bitbayes
    """
    try:
        expected = json.loads((EMBEDDED_FOLDER / "embedded.json").read_text(encoding="utf-8"))["sha256"][name]
        content = (EMBEDDED_FOLDER / name).read_bytes()
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
