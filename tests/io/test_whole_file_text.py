import os
from pathlib import Path

import pytest

from bitbayes.errors import FileError
from bitbayes.io.whole_file import check_writable, write_text


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    for text in ("δ first", "second"):
        write_text(path, text)
        assert path.read_text("utf-8") == text
    assert os.listdir(tmp_path) == ["page.html"]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "a lone surrogate \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["page.html"]


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no directory"):
        check_writable(tmp_path / "nowhere" / "page.html")
    with pytest.raises(FileError, match="is a directory"):
        check_writable(tmp_path)
