import hashlib
import json
import shutil

import pytest

from bitbayes.errors import FileError
from bitbayes.toys import digits, digits_lenet, files

ABOUT = json.loads((files.EMBEDDED_FOLDER / "embedded.json").read_text(encoding="utf-8"))
READERS = {
    "mnist.npz": digits,
    "fashion_mnist.npz": digits,
    "letters.npz": digits,
    "lenet.safetensors": digits_lenet,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    copy = shutil.copytree(files.EMBEDDED_FOLDER, tmp_path / "embedded")
    monkeypatch.setattr(files, "EMBEDDED_FOLDER", copy)
    return copy


def test_every_data_file_has_its_checksum():
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files.EMBEDDED_FOLDER.iterdir()
        if path.suffix in {".npz", ".safetensors"}
    }
    assert found == ABOUT["sha256"]
    assert found.keys() == READERS.keys()


def test_the_files_stay_small():
    assert sum(path.stat().st_size for path in files.EMBEDDED_FOLDER.iterdir()) < 10e6


@pytest.mark.parametrize("name, reader", READERS.items())
def test_one_flipped_bit_is_noticed(folder, name, reader):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(FileError, match=f"'{name}' is damaged"):
        reader()


@pytest.mark.parametrize("name, reader", READERS.items())
def test_a_missing_file_is_noticed(folder, name, reader):
    (folder / name).unlink()
    with pytest.raises(FileError, match=f"'{name}' cannot be read"):
        reader()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": {}}'])
def test_damaged_checksums_are_noticed(folder, text):
    (folder / "embedded.json").write_text(text)
    with pytest.raises(FileError, match="cannot be read"):
        digits()
