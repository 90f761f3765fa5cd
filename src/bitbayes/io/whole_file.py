"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from bitbayes.errors import FileError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what becomes the file `path` at the end; a failure leaves the old file as it was.

    Its mode is that of any new file, by the umask.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole(Path(folder) / "notes") as part:
    ...         _ = part.write_text("δ → ∞", encoding="utf-8")
    ...     os.listdir(folder)
    ['notes']
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        part = Path(folder) / path.name
        part.touch()
        mode = stat.S_IMODE(part.stat().st_mode)
        yield part
        part.chmod(mode)  # safetensors makes a file of its own, for the owner's eyes only
        os.replace(part, path)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file, and its folder where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        contents = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(contents, part, metadata=metadata)


def check_writable(path: Path) -> None:
    """Raise if no file can be written at `path`: worth knowing before an hour of work, not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a directory: give the name of a file")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no directory {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"cannot write {path}: the directory {path.parent} is not writable")


def write_text(path: Path, text: str) -> None:
    """Write `text` as the file `path`; a failure leaves the old file as it was."""
    check_writable(path)
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
