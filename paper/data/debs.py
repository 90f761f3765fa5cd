"""Read files from a Debian package, without installing it."""

import io
import tarfile
from pathlib import Path

from paper.data.files import damage_as_file_error

MAGIC, HEADER = b"!<arch>\n", 60


def read_deb(path: Path, folder: str) -> dict[str, bytes]:
    """Return the contents of the files in a folder of the package, by name. Links are left out.

    A package is an `ar` archive of members: a header of 60 bytes with the name in the first 16 and the size
    in 10 from the 48th on, then the content, which is padded to an even length. The member with the files is
    `data.tar`, with the suffix of its compression.

    Args:
        path: of the package.
        folder: where the package would put them, as "usr/share/wordnet".
    """
    with damage_as_file_error(path, "Debian package"):
        with tarfile.open(fileobj=io.BytesIO(_member(path.read_bytes(), b"data.tar"))) as archive:
            found = {}
            for member in archive:
                place = Path(member.name)  # which begins with "./"
                if member.isreg() and str(place.parent) == folder:
                    file = archive.extractfile(member)
                    assert file is not None
                    found[place.name] = file.read()
        if not found:
            raise KeyError(folder)
        return found


def _member(content: bytes, start: bytes) -> bytes:
    """Return the first member of an `ar` archive whose name begins so."""
    if not content.startswith(MAGIC):
        raise ValueError(f"it begins with {content[:8]!r}")
    place = len(MAGIC)
    while place + HEADER <= len(content):
        name, size = content[place : place + 16], int(content[place + 48 : place + 58])
        place += HEADER
        if name.startswith(start):
            return content[place : place + size]
        place += size + size % 2
    raise ValueError(f"it has no member {start.decode()}")
