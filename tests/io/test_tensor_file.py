"""Safetensors files with a digest: whatever is changed in them is noticed."""

import hashlib
import json
import random
import struct

import pytest
import torch
from safetensors.torch import load_file, save, save_file

import bitbayes as bb
from bitbayes.errors import FileError
from bitbayes.io.tensor_file import read_tensors, write_tensors
from reference import fitted


@pytest.fixture
def saved(tmp_path):
    """A fitted Laplace, its inputs, and its file."""
    bayes, x, _ = fitted()
    bayes.save(tmp_path / "bayes.safetensors")
    return bayes, x, tmp_path / "bayes.safetensors"


def header(path):
    """The JSON that safetensors keeps before its tensors."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size])


def test_the_same_posterior_gives_the_same_bytes(saved):
    bayes, _, path = saved
    before = path.read_bytes()
    for _ in range(8):
        bayes.save(path)
        assert path.read_bytes() == before


def refuses(path, model, match):
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(FileError, match=match):
        bb.Laplace.load(path, model)
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, -1, -8])
def test_truncated_files_are_refused(saved, keep):
    bayes, _, path = saved
    path.write_bytes(path.read_bytes()[:keep])
    refuses(path, bayes.model, "is damaged")


def test_a_longer_file_is_refused(saved):
    bayes, _, path = saved
    path.write_bytes(path.read_bytes() + b"more")
    refuses(path, bayes.model, "damaged")


@pytest.mark.parametrize("place", [0.3, 0.6, 0.9])
def test_a_damaged_tensor_is_noticed(saved, place):
    bayes, _, path = saved
    raw = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", raw[:8])
    position = 8 + size + int(place * (len(raw) - 8 - size))
    raw[position] ^= 0xFF
    path.write_bytes(bytes(raw))
    refuses(path, bayes.model, "damaged")


def rewrite(path, change, write=write_tensors):
    """Write the file again with its tensors under a changed header, and with a digest that is right."""
    told = json.loads(header(path)["__metadata__"]["bitbayes"])
    tensors = load_file(path)
    change(told, tensors)
    write(path, tensors, {"bitbayes": json.dumps(told)})


def without_digest(path, tensors, metadata):
    """Write a file as earlier versions did."""
    save_file(tensors, path, metadata)


def test_a_file_that_has_lost_its_digest_is_refused(saved):
    bayes, _, path = saved
    rewrite(path, lambda told, tensors: None, without_digest)
    refuses(path, bayes.model, "lost its digest")


def test_a_change_of_any_byte_is_noticed(saved):
    """In the lengths, names, dtypes, shapes and numbers of the header, in the digest, and in the tensors."""
    bayes, _, path = saved
    raw, generator = path.read_bytes(), random.Random(0)
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(FileError, match=r"bayes\.safetensors"):
            bb.Laplace.load(path, bayes.model)


@pytest.mark.parametrize(
    "before, after",
    [(b'"temperature\\": 1.0', b'"temperature\\": 9.0'), (b'"F64"', b'"I64"')],
)
def test_a_changed_header_is_noticed(saved, before, after):
    bayes, _, path = saved
    raw = path.read_bytes()
    assert before in raw
    path.write_bytes(raw.replace(before, after))
    refuses(path, bayes.model, "is damaged: its bytes are not those that were written; take another copy")


def test_the_digest_is_the_sha256_of_the_file_with_zeros_in_its_place(saved):
    _, _, path = saved
    raw, digest = path.read_bytes(), json.loads(header(path)["__metadata__"]["bitbayes"])["sha256"]
    assert raw.count(digest.encode()) == 1
    assert hashlib.sha256(raw.replace(digest.encode(), b"0" * 64)).hexdigest() == digest


def test_a_digest_inside_of_a_text_or_a_name_is_not_taken_for_that_of_the_file(tmp_path):
    text = '"sha256":"' + 64 * "1" + '"'
    tensors = {text: torch.ones(2), "sha256": torch.ones(3)}
    entries = {"quoted": text, "sha256 ": 64 * "1", "zeros": 64 * "0"}
    write_tensors(tmp_path / "file", tensors, {"bitbayes": json.dumps(entries)})
    file = read_tensors(tmp_path / "file", "")
    assert file.checked and file.tensors.keys() == tensors.keys()
    assert json.loads(file.metadata["bitbayes"]) == {"sha256": file.digest, **entries}


def test_files_with_the_digest_in_a_text_of_its_own_are_read_and_checked(tmp_path):
    """As they were written before: the digest's text comes first."""
    path, text = tmp_path / "file", '{"loss":0.5}'
    raw = save({"a": torch.ones(3)})
    start = json.dumps(
        {"__metadata__": {"sha256": 64 * "0", "bitbayes": text}, **header_of(raw)}, separators=(",", ":")
    ).encode()
    start += b" " * (-len(start) % 8)
    content = struct.pack("<Q", len(start)) + start + raw[8 + struct.unpack("<Q", raw[:8])[0] :]
    digest = hashlib.sha256(content).hexdigest()
    path.write_bytes(content.replace(64 * b"0", digest.encode(), 1))
    file = read_tensors(path, "")
    assert file.checked and file.digest == digest and file.metadata == {"bitbayes": text}
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    with pytest.raises(FileError, match="damaged"):
        read_tensors(path, "")


def header_of(raw):
    return json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
