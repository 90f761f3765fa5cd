"""Readers of official files, on small files of the same form."""

import gzip
import io
import pickle
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from bitbayes.errors import ArgumentError, FileError, MissingFileError
from paper.data import load
from paper.data.checksums import MD5
from paper.data.idx import read_idx
from paper.data.sets import DATA_SETS

RNG = np.random.default_rng(0)


@pytest.fixture
def unchecked(monkeypatch):
    """Small files cannot have the official checksums."""
    for files in MD5.values():
        for name in list(files):
            monkeypatch.delitem(files, name)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, zipped, start="t10k", n=7):
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8)
    labels = RNG.integers(0, 10, n, dtype=np.uint8)
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        content = idx(array)
        name = f"{start}-{kind}-ubyte" + (".gz" if zipped else "")
        (folder / name).write_bytes(gzip.compress(content) if zipped else content)
    return images, labels


@pytest.mark.parametrize("place", [".", "MNIST/raw", "mnist"])
@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_as_downloaded_and_as_torchvision_keeps_it(tmp_path, unchecked, place, zipped):
    images, labels = write_mnist(tmp_path / place, zipped)
    read, numbers = load("mnist", "test", tmp_path)
    assert read.dtype == torch.uint8 and numbers.dtype == torch.int64
    assert read.shape == (7, 1, 28, 28)
    assert (read[:, 0].numpy() == images).all() and (numbers.numpy() == labels).all()


def test_emnist_letters_are_turned_and_begin_at_zero(tmp_path, unchecked):
    images, labels = write_mnist(tmp_path / "EMNIST/raw", True, "emnist-letters-test")
    labels[:] = 1
    (tmp_path / "EMNIST/raw/emnist-letters-test-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    read, numbers = load("emnist", "test", tmp_path)
    assert (read[:, 0].numpy() == images.transpose(0, 2, 1)).all()
    assert (numbers == 0).all()


def test_a_file_that_is_not_the_official_one_is_refused(tmp_path):
    write_mnist(tmp_path, True)
    with pytest.raises(FileError, match="its MD5 is"):
        load("mnist", "test", tmp_path)


def test_damaged_idx_files(tmp_path):
    path = tmp_path / "x"
    good = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))
    for content, message in [
        (b"PNG!", "no IDX file"),
        (good[:-1], "says it holds 6"),
        (good[:7], "cut short"),
        (gzip.compress(good)[:-9], r"no IDX file that can be read \(EOFError"),
        (good + b"x", "says it holds 6 entries, but has more"),
        (bytes([0, 0, 8, 200]) + bytes(800), "no IDX file that can be read"),
    ]:
        path.write_bytes(content)
        with pytest.raises(FileError, match=message):
            read_idx(path)


def test_a_gzip_file_is_unpacked_no_further_than_its_header_says(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx(np.arange(6, dtype=np.uint8)) + bytes(1 << 26), 1))
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="says it holds 6 entries, but has more"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def damaged(content, rng):
    """The content with up to 8 bytes changed, and sometimes cut."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 9)):
        changed[rng.integers(len(changed))] = rng.integers(256)
    return bytes(changed[: rng.integers(1, len(changed))] if rng.random() < 0.2 else changed)


def compressed_npz(pixels):
    file = io.BytesIO()
    np.savez_compressed(file, x_uniform=pixels, y_uniform=np.arange(len(pixels), dtype=np.uint8))
    return file.getvalue()


def picture(pixels, kind):
    file = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(pixels).save(file, kind)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")  # Pillow warns of some damage, and reads on
@pytest.mark.parametrize("kind", ["idx.gz", "npz", "tar.gz", "mat", "png", "webp", "gif", "tiff"])
def test_a_damaged_file_is_read_or_raises_a_file_error(tmp_path, unchecked, kind):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 32, 3), dtype=np.uint8)
    if kind == "idx.gz":
        name, path, content = "mnist", "t10k-images-idx3-ubyte.gz", gzip.compress(idx(pixels))
        (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(40, dtype=np.uint8)))
    elif kind == "npz":
        name, path, content = "letters", "letters/az.npz", compressed_npz(pixels)
    elif kind == "tar.gz":
        name, path = "cifar100", "cifar-100-python.tar.gz"
        tar_of(tmp_path / path, {"cifar-100-python/test": cifar_batch(labels="fine_labels")[0]})
        content = (tmp_path / path).read_bytes()
    elif kind == "mat":
        name, path, file = "svhn", "test_32x32.mat", io.BytesIO()
        pytest.importorskip("scipy.io").savemat(file, {"X": pixels[None].repeat(32, 0), "y": np.ones((3, 1))})
        content = file.getvalue()
    else:
        name, path, content = "lsun", f"lsun/0.{kind}", picture(pixels, kind)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    refused = 0
    for _ in range(150):
        (tmp_path / path).write_bytes(damaged(content, rng))
        try:
            load(name, "test", tmp_path)
        except FileError:
            refused += 1
    assert refused > 20


def test_a_header_that_pythons_tokenizer_refuses(tmp_path):
    header = b"{'descr': ('|u1', 'shape': (3,"  # a bracket is open at its end
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    (tmp_path / "letters").mkdir()
    with zipfile.ZipFile(tmp_path / "letters/az.npz", "w") as archive:
        archive.writestr("x_uniform.npy", array)
    with pytest.raises(FileError, match="no packed data set that can be read"):
        load("letters", "test", tmp_path)


def cifar_batch(n=4, labels="labels"):
    pixels = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
    numbers = RNG.integers(0, 10, n).tolist()
    return pickle.dumps({"data": pixels, labels: numbers}, protocol=2), pixels, numbers


def tar_of(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_cifar10_in_a_folder(tmp_path, unchecked):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    parts = [cifar_batch() for _ in range(5)]
    for number, (content, _, _) in enumerate(parts, 1):
        (folder / f"data_batch_{number}").write_bytes(content)
    images, labels = load("cifar10", "train", tmp_path)
    assert (images.numpy().reshape(20, -1) == np.concatenate([pixels for _, pixels, _ in parts])).all()
    assert labels.tolist() == [label for _, _, numbers in parts for label in numbers]
    with pytest.raises(FileError, match="lacks the file 'test_batch'"):
        load("cifar10", "test", tmp_path)


def test_cifar100_in_its_archive(tmp_path, unchecked):
    content, pixels, numbers = cifar_batch(labels="fine_labels")
    tar_of(tmp_path / "cifar-100-python.tar.gz", {"cifar-100-python/test": content})
    images, labels = load("cifar100", "test", tmp_path)
    assert (images.numpy().reshape(4, -1) == pixels).all() and labels.tolist() == numbers
    with pytest.raises(FileError, match="no whole archive"):
        load("cifar100", "train", tmp_path)


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path, unchecked, capsys):
    tar_of(tmp_path / "cifar-100-python.tar.gz", {"cifar-100-python/test": pickle.dumps({"data": Evil()})})
    with pytest.raises(FileError, match="which a batch of images never needs"):
        load("cifar100", "test", tmp_path)
    assert capsys.readouterr().out == ""


def test_svhn(tmp_path, unchecked):
    io_module = pytest.importorskip("scipy.io")
    images = RNG.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
    io_module.savemat(tmp_path / "test_32x32.mat", {"X": images, "y": np.array([[10], [1], [2], [9], [10]])})
    read, labels = load("svhn", "test", tmp_path)
    assert labels.tolist() == [0, 1, 2, 9, 0]
    assert (read.numpy() == images.transpose(3, 2, 0, 1)).all()
    (tmp_path / "train_32x32.mat").write_bytes(b"nothing")
    with pytest.raises(FileError, match="no SVHN file"):
        load("svhn", "train", tmp_path)


def test_a_folder_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for kind, colour, size in (("bedroom", 10, (32, 32)), ("classroom", 200, (48, 40))):
        (tmp_path / "lsun" / kind).mkdir(parents=True)
        image.new("RGB", size, (colour, 0, 0)).save(tmp_path / "lsun" / kind / "0.png")
    images, labels = load("lsun", "test", tmp_path)
    assert images.shape == (2, 3, 32, 32) and labels.tolist() == [0, 1]
    assert images[:, 0].float().mean((1, 2)).tolist() == [10, 200]
    (tmp_path / "lsun" / "bedroom" / "1.png").write_bytes(b"nothing")
    with pytest.raises(FileError, match="no image that can be read"):
        load("lsun", "test", tmp_path)


def webp_shard(path, bits):
    image = pytest.importorskip("PIL.Image")
    stored = RNG.integers(0, 64 if bits == 6 else 256, (3, 32, 32, 3), dtype=np.uint8)
    strips = []
    for part in (stored[:2], stored[2:]):
        file = io.BytesIO()
        image.fromarray(part.reshape(-1, 32, 3)).save(file, "WEBP", lossless=True)
        strips.append(file.getvalue())
    np.savez(
        path,
        webp=np.frombuffer(b"".join(strips), dtype=np.uint8),
        sizes=np.array([len(strip) for strip in strips]),
        labels=np.array([1, 2, 3], dtype=np.uint8),
        bits=np.array(bits),
    )
    return stored


@pytest.mark.parametrize("bits", [6, 8])
def test_packed_colour_shards(tmp_path, bits):
    (tmp_path / "cifar10").mkdir()
    stored = [webp_shard(tmp_path / f"cifar10/train_0{i}.npz", bits) for i in range(2)]
    images, labels = load("cifar10", "train", tmp_path)
    expected = np.concatenate(stored).transpose(0, 3, 1, 2).astype(int)
    if bits == 6:
        expected = np.minimum(4 * expected, 255)
    assert (images.numpy() == expected).all() and labels.tolist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    "wrong",
    [
        {"sizes": np.array([-5, 5])},
        {"sizes": np.array("x")},
        {"bits": np.array(7)},
        {"bits": np.array([8, 8])},
        {"labels": np.zeros((3, 2))},
        {"labels": np.array(["a", "b", "c"])},
        {"webp": np.zeros(3, dtype=np.uint8), "sizes": np.array([3])},
    ],
    ids=str,
)
def test_a_shard_with_a_wrong_part(tmp_path, wrong):
    (tmp_path / "cifar10").mkdir()
    path = tmp_path / "cifar10/train_00.npz"
    webp_shard(path, 8)
    with np.load(path) as arrays:
        parts = {**arrays, **wrong}
    np.savez(path, **parts)
    with pytest.raises(FileError):
        load("cifar10", "train", tmp_path)


def test_packed_grey_sets(tmp_path):
    (tmp_path / "letters").mkdir()
    pixels = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "letters/az.npz", x_uniform=pixels, y_uniform=np.arange(5, dtype=np.uint8))
    images, labels = load("letters", "test", tmp_path)
    assert (images[:, 0].numpy() == pixels).all() and labels.tolist() == [0, 1, 2, 3, 4]
    (tmp_path / "letters/az.npz").write_bytes(b"PK nothing")
    with pytest.raises(FileError, match="no packed data set"):
        load("letters", "test", tmp_path)


def test_a_user_without_the_files_is_told_where_to_get_them(tmp_path):
    with pytest.raises(FileError, match=r"ufldl\.stanford\.edu/housenumbers"):
        load("svhn", "train", tmp_path)
    with pytest.raises(FileError, match="substitute"):
        load("letters", "train", tmp_path)
    with pytest.raises(ArgumentError, match="choose one of 'mnist'"):
        load("imagenet", "train", tmp_path)
    with pytest.raises(ArgumentError, match="split"):
        load("mnist", "validation", tmp_path)


@pytest.mark.parametrize("name", DATA_SETS)
def test_a_folder_whose_name_is_too_long_holds_no_data_set(tmp_path, name):
    with pytest.raises(MissingFileError, match="get it from"):
        load(name, "test", tmp_path / ("n" * 300))
