"""Files are written whole or not at all, with the permissions that the umask allows."""

import os
import stat

import pytest
import torch
from torch import nn

import reference
from bitbayes.errors import FileError
from bitbayes.io.whole_file import check_writable, whole, write_tensors, write_text
from bitbayes.training import Recipe, trained


def save(path):
    bayes, _, _ = reference.fitted()
    bayes.save(path)


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def train(path):
    """Train a network and save its weights at `path`, with their description beside it."""
    x, y = torch.rand(8, 1, 4, 4), torch.arange(8) % 3
    trained(path.parent, path.stem, network, x, y, recipe=Recipe(epochs=1))


def fail(path, error):
    with whole(path) as part:
        part.write_text("half")
        raise error


@pytest.fixture
def umask():
    """A function that sets the umask, which is restored after the test."""
    before = os.umask(0)
    os.umask(before)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
@pytest.mark.parametrize("write", [save, train, lambda path: write_text(path, "text")])
def test_the_permissions_of_a_file_follow_the_umask(tmp_path, umask, write, mask):
    umask(mask)
    write(tmp_path / "file.safetensors")
    files = list(tmp_path.iterdir())
    assert tmp_path / "file.safetensors" in files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666 & ~mask}
    assert all(file.is_file() and file.stem == "file" for file in files)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path, there, error):
    path = tmp_path / "file"
    if there:
        path.write_text("old")
    with pytest.raises(error):
        fail(path, error)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"] * there


def test_a_file_is_not_visible_before_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with whole(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_tensors_that_cannot_be_written_leave_no_file(tmp_path):
    shared = torch.ones(2)
    with pytest.raises(RuntimeError, match="share memory"):
        write_tensors(tmp_path / "new" / "file", {"a": shared, "b": shared}, {})
    assert os.listdir(tmp_path / "new") == []


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "page.html"
    for text in ("δ first", "second"):
        write_text(path, text)
        assert path.read_text("utf-8") == text
    assert os.listdir(tmp_path) == ["page.html"]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "a lone surrogate \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_errors_of_files_that_cannot_be_written_give_the_reason(tmp_path):
    with pytest.raises(FileError, match="there is no folder"):
        check_writable(tmp_path / "nowhere" / "page.html")
    with pytest.raises(FileError, match="is a folder"):
        check_writable(tmp_path)
