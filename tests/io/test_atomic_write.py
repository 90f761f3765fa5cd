"""Files are written whole or not at all; what is no plain writable file is refused and left alone."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import reference
from bitbayes.errors import FileError
from bitbayes.io import atomic_write
from bitbayes.io.atomic_write import check_writable, make_folder, read_bytes, write_bytes, write_text


def save(path):
    bayes, _, _ = reference.fitted()
    bayes.save(path)


def raises(error):
    def function(*_, **__):
        raise error

    return function


@pytest.fixture
def umask():
    """A function that sets the umask, which is restored after the test."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
@pytest.mark.parametrize("write", [save, lambda path: write_text(path, "text")])
def test_the_permissions_of_a_new_file_follow_the_umask(tmp_path, umask, write, mask):
    umask(mask)
    write(tmp_path / "file.safetensors")
    files = list(tmp_path.iterdir())
    assert tmp_path / "file.safetensors" in files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666 & ~mask}
    assert all(file.is_file() and file.stem == "file" for file in files)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_replaced_file_keeps_its_permissions(tmp_path, mode):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_nobody_may_read_a_private_file_while_it_is_written(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    modes, sync = [], os.fsync

    def look(descriptor):
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    write_text(path, "new")
    assert modes[0] == 0o600


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, there, step, error):
    path = tmp_path / "file"
    if there:
        path.write_text("old")
    monkeypatch.setattr(os, step, raises(error))
    full = isinstance(error, OSError)
    told = "file: No space left on device; make room" if full else None
    with pytest.raises(FileError if full else KeyboardInterrupt, match=told):
        write_text(path, "new")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"] * there


def test_the_bytes_are_on_the_disk_before_the_name_and_then_the_name(tmp_path, monkeypatch):
    """Otherwise a crash of the machine could leave the new name on an empty file."""
    path, steps = tmp_path / "file", []
    sync, replace = os.fsync, os.replace

    def note_sync(descriptor):
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else os.fstat(descriptor).st_size)
        sync(descriptor)

    def note_replace(*names):
        steps.append("replace")
        replace(*names)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    write_bytes(path, b"12", memoryview(b"345"))
    assert steps == [5, "replace", "folder"]
    assert path.read_bytes() == b"12345"


def test_a_folder_that_cannot_be_synced_is_no_failure(tmp_path, monkeypatch):
    sync = os.fsync

    def only_files(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "file", tmp_path / "link"
    link.symlink_to("real/file")
    for text in ("first", "second"):  # the target does not exist at first
        write_text(link, text)
        assert link.is_symlink() and not target.is_symlink()
        assert target.read_text() == text
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(FileError, match=r"link: .*symbolic links"):
        write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()


def test_what_is_no_regular_file_is_refused_and_stays(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        for path in (pipe, link, tmp_path / "socket"):
            with pytest.raises(FileError, match=rf"{path.name}: it is no regular file"):
                write_text(path, "new")
    assert stat.S_ISFIFO(pipe.stat().st_mode) and link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "socket"]
    for path in (pipe, tmp_path):
        with pytest.raises(FileError, match="no file"):
            read_bytes(path)


def test_a_read_only_file_is_refused_and_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(FileError, match="it is read-only; delete it, or choose another name"):
        write_text(path, "new")
    assert path.read_text() == "old" and stat.S_IMODE(path.stat().st_mode) == 0o444


@pytest.mark.parametrize(
    "name, match",
    [
        ("n" * 300, "File name too long; choose a shorter name"),
        ("a\0b", "null byte"),
        ("\ud800", "surrogate"),
    ],
)
def test_names_that_no_file_can_have_are_refused(tmp_path, name, match):
    for function in (check_writable, read_bytes, make_folder):
        with pytest.raises(FileError, match=match):
            function(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_the_longest_possible_name_is_written(tmp_path):
    path = tmp_path / ("ö" * 127)  # 254 bytes of 255
    write_text(path, "new")
    assert path.read_text() == "new" and len(os.listdir(tmp_path)) == 1


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="there is no folder"):
        check_writable(tmp_path / "file" / "page.html")
    with pytest.raises(FileError, match="cannot make the folder"):
        make_folder(tmp_path / "file")


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FileError, match="is not writable; choose another"):
        check_writable(tmp_path / "file")
    monkeypatch.undo()
    monkeypatch.setattr(os, "open", raises(OSError(errno.EROFS, "Read-only file system")))
    with pytest.raises(FileError, match="file: Read-only file system; choose a folder"):
        write_text(tmp_path / "file", "new")


def test_errors_of_files_that_cannot_be_written_give_the_reason(tmp_path):
    with pytest.raises(FileError, match="there is no folder"):
        check_writable(tmp_path / "nowhere" / "page.html")
    with pytest.raises(FileError, match="is a folder"):
        check_writable(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from bitbayes.io.atomic_write import write_bytes
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_bytes(Path(sys.argv[1]), b"new")
"""


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    (tmp_path / ".bitbayes-of-another-file.part").touch()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_text() == "old" and len(os.listdir(tmp_path)) == 3
    write_text(path, "newer")
    assert path.read_text() == "newer"
    assert sorted(os.listdir(tmp_path)) == [".bitbayes-of-another-file.part", "file"]


def test_what_another_writer_is_writing_is_not_removed(tmp_path, monkeypatch):
    path, replace = tmp_path / "file", os.replace

    def write_between(*names):
        monkeypatch.setattr(os, "replace", replace)
        write_text(path, "in between")
        assert path.read_text() == "in between"
        replace(*names)

    monkeypatch.setattr(os, "replace", write_between)
    write_text(path, "last")
    assert path.read_text() == "last" and os.listdir(tmp_path) == ["file"]


def test_a_writer_whose_file_is_removed_before_it_is_locked_makes_another(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    def too_late(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        (stray,) = tmp_path.iterdir()
        stray.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new" and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("module", [None, "no locks"])
def test_systems_without_locks_write_too(tmp_path, monkeypatch, module):
    if module is None:
        monkeypatch.setattr(atomic_write, "fcntl", None)
    else:
        monkeypatch.setattr(atomic_write.fcntl, "flock", raises(OSError(errno.ENOLCK, "No locks available")))
    for text in ("first", "second"):
        write_text(tmp_path / "file", text)
        assert (tmp_path / "file").read_text() == text and os.listdir(tmp_path) == ["file"]


def test_a_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "δ old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "a lone surrogate \ud800")
    assert path.read_text("utf-8") == "δ old"
    assert os.listdir(tmp_path) == ["page.html"]


# No file may have more than 1,000 bytes. As on a full disk, the process is told in the middle of a write.
FULL_DISK = """
import resource, sys, torch
from pathlib import Path
import bitbayes as bb
from bitbayes.errors import FileError
from bitbayes.io.atomic_write import write_text

folder = Path(sys.argv[1])
x, y = torch.randn(40, 20), torch.arange(40) % 3
bayes = bb.Laplace(torch.nn.Linear(20, 3)).fit([(x, y)])
ways = {
    "bayes.safetensors": bayes.save,
    "bayes.pt2": lambda path: bayes.export(path, x),
    "bayes.onnx": lambda path: bayes.export(path, x),
    "page.html": lambda path: write_text(path, 5000 * "text"),
}
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for name, write in ways.items():
    (folder / name).write_text("old")
    try:
        write(folder / name)
    except FileError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_full_disk_raises_and_leaves_the_old_files(tmp_path):
    pytest.importorskip("onnxscript")
    names = ["bayes.onnx", "bayes.pt2", "bayes.safetensors", "page.html"]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    told = sorted(run.stdout.splitlines())
    assert told == [
        f"cannot write {tmp_path / name}: File too large; choose a folder without such a limit"
        for name in names
    ]
    assert {path.name: path.read_text() for path in Path(tmp_path).iterdir()} == dict.fromkeys(names, "old")


def test_a_folder_that_takes_no_files_is_noticed_before_the_work(tmp_path, monkeypatch):
    """The modes allow it, as those of /proc and of some network drives do."""
    monkeypatch.setattr(atomic_write.os, "open", raises(PermissionError(errno.EACCES, "Permission denied")))
    for use in (check_writable, lambda path: write_text(path, "text")):
        with pytest.raises(FileError, match="Permission denied; choose a file and a folder"):
            use(tmp_path / "page.html")
    monkeypatch.undo()
    assert check_writable(tmp_path / "page.html") == tmp_path / "page.html"
    assert not list(tmp_path.iterdir())


def test_save_looks_at_the_path_before_it_hashes_the_model(tmp_path, monkeypatch):
    bayes, _, _ = reference.fitted()
    monkeypatch.setattr("bitbayes.laplace.fingerprint", raises(AssertionError("the model was hashed")))
    with pytest.raises(FileError, match="there is no folder"):
        bayes.save(tmp_path / "nowhere" / "bayes.safetensors")
