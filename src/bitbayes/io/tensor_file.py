"""Safetensors files with a digest in their header, so that a changed file is recognised.

The header has one text, JSON whose first entry is the digest: the SHA-256 of all bytes of the file, those of
the header too. Its own 64 characters count as zeros. Several texts would be written in a random order, and
files of the same content would differ. Older files have the digest in a text of its own, which comes first.
"""

import hashlib
import re
import struct
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from bitbayes.errors import FileError
from bitbayes.io.atomic_write import read_bytes, write_bytes
from bitbayes.io.strict_json import parse_json

DIGEST_KEY = "sha256"
BLANK = "0" * 64
# In the first text of the header, in which quotes are escaped; or the first text itself.
DIGEST = re.compile(rb'\{"__metadata__":\{"[^"\\]+":"(?:\{\\"sha256\\":\\")?([0-9a-f]{64})')


# What to do about a damaged file that `save` wrote.
SAVE_AGAIN = "take another copy of it, or fit again and save again"


class TensorFile(NamedTuple):
    """What a safetensors file holds."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    digest: str  # of the bytes that were read
    checked: bool  # False if the file holds no digest, and so may have been changed

    def require_digest(self, path: str | PathLike[str]) -> None:
        """Raise if the file, which was written with a digest, has none."""
        if not self.checked:
            raise FileError(f"{path} is damaged: it has lost its digest; {SAVE_AGAIN}")


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Write a safetensors file with its digest atomically, and return the digest; see `encoded`."""
    pieces = encoded(tensors, metadata)
    write_bytes(path, *pieces)
    return bytes(pieces[1]).decode()


def encoded(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes | memoryview, ...]:
    """The bytes of a safetensors file, in three pieces: those before the digest, the digest, and the others.

    Args:
        tensors: the tensors by name, on any device.
        metadata: the name of the header's text, and the text: a JSON object.
    """
    ((name, text),) = metadata.items()
    text = f'{{"{DIGEST_KEY}":"{BLANK}",{text[1:]}'
    contents = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    content = save(contents, {name: text})
    place = _find_digest(content)
    assert place is not None  # it was just written
    digest, view = _digest(content, place), memoryview(content)  # a view, because a copy may be large
    return view[: place.start(1)], digest.encode(), view[place.end(1) :]


def read_tensors(path: Path, advice: str) -> TensorFile:
    """Read a safetensors file once, check its digest, and only then take it apart; see `decoded`."""
    return decoded(read_bytes(path), path, advice)


def decoded(content: bytes, path: str | PathLike[str], advice: str) -> TensorFile:
    """What the bytes of a safetensors file hold. Their digest is checked before they are taken apart.

    Args:
        content: the bytes.
        path: where they are from, for errors.
        advice: what to do if they are damaged, for errors.
    """
    place = _find_digest(content)
    digest = _digest(content, place)
    if place is not None and place[1] != digest.encode():
        raise FileError(f"{path} is damaged: its bytes are not those that were written; {advice}")
    try:
        tensors = load(content)
        metadata = parse_json(_header(content)).get("__metadata__", {})
    except Exception as error:  # of many types, if there was no digest to stop the parsers
        raise FileError(f"{path} is damaged, truncated or no safetensors file; {advice}") from error
    metadata.pop(DIGEST_KEY, None)
    return TensorFile(tensors, metadata, digest, place is not None)


def _header(content: bytes) -> bytes:
    """Return the JSON before the tensors. The first eight bytes say how long it is."""
    if len(content) < 8:
        return b""
    (size,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + size]


def _find_digest(content: bytes) -> re.Match[bytes] | None:
    """Return the digest with its place, or None if the header has none."""
    return DIGEST.match(content, 8, 8 + len(_header(content)))


def _digest(content: bytes, place: re.Match[bytes] | None) -> str:
    """Return the SHA-256 of the file, with zeros at the digest's own place."""
    if place is None:
        return _sha256(content)
    view = memoryview(content)
    return _sha256(view[: place.start(1)], BLANK.encode(), view[place.end(1) :])


def _sha256(*pieces: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
