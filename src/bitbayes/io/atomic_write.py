"""Write files atomically: after a failure or a crash there is the old file or the new one, never a part.

The bytes are written to a temporary file beside the target and flushed to the disk. Then the temporary file
is renamed to the target. Every problem with a file raises a `FileError`. `read_bytes` reads a file.
"""

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitbayes.errors import FileError

try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be deleted, and so needs no lock
    fcntl = None  # type: ignore[assignment]

ADVICE = {
    errno.ENOSPC: "make room on the disk, or choose another folder",
    errno.EDQUOT: "make room on the disk, or choose another folder",
    errno.EFBIG: "choose a folder without such a limit",
    errno.EACCES: "choose a file and a folder that you have the rights for",
    errno.EPERM: "choose a file and a folder that you have the rights for",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def read_bytes(path: Path) -> bytes:
    """Return the bytes of the file. It is read once, so later changes to the file do not matter."""
    with _as_file_error("read", path):
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileError(f"cannot read {path}: it is a folder or a device, and no file")
        return path.read_bytes()


def write_text(path: Path, text: str) -> None:
    """Write `text` to the file `path` in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, *pieces: bytes | memoryview) -> None:
    """Write the pieces, one after the other, to the file `path`. A failure leaves the old file as it was.

    A file that is replaced keeps its permissions. A link stays a link, and the file it points to is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "notes", b"one, ", b"two")
    ...     os.listdir(folder), (Path(folder) / "notes").read_bytes()
    (['notes'], b'one, two')
    """
    target = _target(path)
    with _as_file_error("write", path):
        _remove_strays(target)
        with _temporary_file(target) as part:
            mode = _mode(target)
            if mode is not None:
                part.chmod(stat.S_IMODE(mode))
            with part.open("r+b") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
    _sync_folder(target.parent)


def check_writable(path: Path) -> Path:
    """Raise `FileError` if no file can be written at `path`. Call it before long work, not after it.

    Returns:
        The file that will be written: `path`, or what it links to.
    """
    target = _target(path)
    # Some folders take no files, whatever their modes say: /proc, or a drive of another machine.
    with _as_file_error("write", path), _temporary_file(target):
        return target


def _target(path: Path) -> Path:
    """The file that is written for `path`; raises if its name or the modes of file and folder forbid it."""
    with _as_file_error("write", path):
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        folder, mode = target.parent, _mode(target)
        if mode is not None and stat.S_ISDIR(mode):
            raise FileError(f"cannot write {path}: it is a folder; give the name of a file")
        if mode is not None and not stat.S_ISREG(mode):
            raise FileError(f"cannot write {path}: it is no regular file but a device, a pipe or a socket")
        # A superuser may write to a file whatever its mode says, but whoever set the mode meant it.
        if mode is not None and not (mode & 0o222 and os.access(target, os.W_OK)):
            raise FileError(f"cannot write {path}: it is read-only; delete it, or choose another name")
        if not folder.is_dir():
            raise FileError(f"cannot write {path}: there is no folder {folder}; make it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise FileError(f"cannot write {path}: the folder {folder} is not writable; choose another")
        return target


def remove(path: Path) -> None:
    """Remove a file that is no longer needed. If that is not possible, it stays."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make the folder and those above it, if they do not exist."""
    with _as_file_error("make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def _as_file_error(action: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `FileError` with the path, the reason and advice."""
    try:
        yield
    except FileNotFoundError as error:
        if action != "read":
            raise FileError(
                f"cannot {action} {path}: its folder has gone, or takes no files; make it again, or choose "
                "another"
            ) from error
        raise FileError(f"there is no file {path}: give the path of one") from error
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "choose another path")
        raise FileError(f"cannot {action} {path}: {error.strerror or error}; {advice}") from error
    except ValueError as error:  # a NUL or a lone surrogate in the name
        raise FileError(f"cannot {action} {str(path)!r}: {error}; choose another name") from error


def _mode(path: Path) -> int | None:
    """Return the file type and the permissions of `path`, or None if it does not exist."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _prefix(target: Path) -> str:
    """Return the start of the names of temporary files for `target`. Its length is fixed."""
    return f".bitbayes-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}-"


@contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """Make an empty, locked file beside `target`. At the end it is deleted, unless it was renamed."""
    part, lock = _new_locked_file(target)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def _new_locked_file(target: Path) -> tuple[Path, int | None]:
    """Return the path of a new temporary file and the descriptor that holds its lock (None: no locks)."""
    while True:
        part = target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}.part")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # the umask applies
        if fcntl is None:
            os.close(descriptor)
            return part, None
        with suppress(OSError):  # a file system without locks: `_remove_strays` removes nothing there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return part, descriptor
        os.close(descriptor)  # another writer removed it as a stray one before it was locked


def _remove_strays(target: Path) -> None:
    """Remove temporary files for `target` whose writers were killed."""
    for stray in target.parent.glob(f"{_prefix(target)}*.part"):
        with suppress(OSError):  # its writer is running and holds the lock, or the file was just removed
            if fcntl is None:
                stray.unlink()
                continue
            descriptor = os.open(stray, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                stray.unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Flush the file's new name to the disk. If that is not possible, the file is complete all the same."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
