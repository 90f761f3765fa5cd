"""A full disk: it raises, the file that was there stays whole, and nothing else is left."""

import errno
import io
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import bitbayes as bb
from auditing.round_numbers import make_audit
from bitbayes.errors import FileError
from bitbayes.io import checkpoint
from classifiers import points, relu_mlp

FULL = "No space left on device; make room on the disk, or choose another folder"
# Enough for each file below.
SIZE = 2**23


class FullFile(io.FileIO):
    """A file of which only a half can be written."""

    def write(self, data):
        super().write(bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")


@dataclass
class FakeDisk:
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    opened = Path.open

    def fill(self):
        def full(path, mode="r", **named):
            return FullFile(path, mode) if "+" in mode else FakeDisk.opened(path, mode, **named)

        self.monkeypatch.setattr(Path, "open", full)

    def make_room(self):
        self.monkeypatch.setattr(Path, "open", FakeDisk.opened)


@dataclass
class SmallDisk:
    folder: Path

    def fill(self):
        with (self.folder / "ballast").open("wb", buffering=0) as file:
            for size in (2**16, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def make_room(self):
        (self.folder / "ballast").unlink()


@pytest.fixture(params=["fake", "tmpfs"])
def disk(request, tmp_path, monkeypatch):
    if request.param == "fake":
        yield FakeDisk(tmp_path, monkeypatch)
        return
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(tmp_path)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield SmallDisk(tmp_path)
    subprocess.run(["umount", str(tmp_path)], check=True)


def fitted():
    return bb.Laplace(relu_mlp(), prior_variance=1.0).fit([points()])


WAYS = {
    "bayes.safetensors": lambda path: fitted().save(path),
    "temperature.safetensors": lambda path: bb.TemperatureScaling(relu_mlp()).fit([points()]).save(path),
    "report.html": lambda path: make_audit().save(path),
    "bayes.pt2": lambda path: fitted().export(path, points()[0]),
    "bayes.onnx": lambda path: fitted().export(path, points()[0]),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "pt2" in name or "onnx" in name else ()) for name in WAYS],
)
def test_the_old_file_stays_whole(disk, name):
    if name.endswith("onnx"):
        pytest.importorskip("onnxscript")
    path, write = disk.folder / name, WAYS[name]
    path.write_text("old")
    disk.fill()
    before = sorted(disk.folder.iterdir())
    with pytest.raises(FileError, match=f"cannot write {path}: {FULL}"):
        write(path)
    assert path.read_text() == "old" and sorted(disk.folder.iterdir()) == before
    disk.make_room()
    write(path)
    assert path.stat().st_size > 100


def test_the_old_checkpoint_stays_whole(disk, monkeypatch):
    """What was summed up before the disk was full is not lost: the fit goes on from there."""
    for name in ("SECONDS", "PAUSE"):
        monkeypatch.setattr(checkpoint, name, 0.0)
    x, y = points(60)
    batches = [(x[rows], y[rows]) for rows in torch.arange(60).split(10)]

    def fit(loader):
        return bb.Laplace(relu_mlp(), layers="all").fit(loader, checkpoint=disk.folder)

    class Interrupted(list):
        def __iter__(self):
            yield from batches[:3]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(Interrupted())
    (path,) = disk.folder.iterdir()
    old = path.read_bytes()
    disk.fill()
    before = sorted(disk.folder.iterdir())
    with pytest.raises(FileError, match=FULL):
        fit(batches)
    assert path.read_bytes() == old and sorted(disk.folder.iterdir()) == before
    disk.make_room()
    found, expected = fit(batches), bb.Laplace(relu_mlp(), layers="all").fit(batches)
    assert torch.equal(found.logits(x).covariance, expected.logits(x).covariance)
    assert found.posterior.fitted.entries == expected.posterior.fitted.entries
