"""Write files so that a failure leaves no incomplete file."""

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
    """Yield a temporary path. What is written there becomes the file `path` at the end.

    A failure leaves the old file as it was. The new file gets the usual permissions, as the umask says.

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
        part.chmod(mode)  # safetensors makes a new file that only its owner may read
        os.replace(part, path)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file. Its folder is created if it does not exist.

    Args:
        path: the file.
        tensors: the tensors by name, on any device.
        metadata: text that is stored in the header of the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        contents = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(contents, part, metadata=metadata)


def check_writable(path: Path) -> None:
    """Raise `FileError` if no file can be written at `path`. Call it before long work, not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"cannot write {path}: the folder {path.parent} is not writable")


def write_text(path: Path, text: str) -> None:
    """Write `text` to the file `path` in UTF-8. A failure leaves the old file as it was."""
    check_writable(path)
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
