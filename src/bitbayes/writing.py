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
