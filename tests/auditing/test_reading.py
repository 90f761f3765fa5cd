"""Loaders, arrays and mappings as sets of an audit, and errors that name the set and the batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bitbayes.auditing.reading import Form, LabelledSet, OutlierInputs
from bitbayes.errors import DataError

X = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(600) % 3


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X.numpy(), Y.numpy()),
        (X.numpy()[::-1][::-1], Y.tolist()),
        (X, Y, ["a path"] * 600),
        [(X[:300], Y[:300]), (X[300:], Y[300:])],
        [[X.numpy()[:300], Y.numpy()[:300], "meta"], [X[300:], Y[300:], "meta"]],
    ],
)
def test_arrays_and_loaders_give_the_same_points(data: Any) -> None:
    batches = list(LabelledSet("test", data, None).batches())
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), X)  # type: ignore[arg-type]
    assert torch.equal(torch.cat([batch.labels for batch in batches]), Y)  # type: ignore[arg-type]
    assert [batch.name for batch in batches] == [f"batch {i}" for i in range(len(batches))]


def test_a_mapping_keeps_its_metadata() -> None:
    data = {"x": X.numpy(), "id": np.arange(600), "labels": Y.numpy()}
    (first, *_) = LabelledSet("test", data, None).batches()
    assert set(first.inputs) == {"x", "id"} and len(first) == len(first.inputs["id"]) == 256
    named = [{"x": X, "path": ["a"] * 600, "label": Y}]
    (only,) = LabelledSet("test", named, None).batches()
    assert only.inputs["path"] == ["a"] * 600


def test_the_form_is_that_of_the_inputs() -> None:
    assert LabelledSet("test", (X, Y), None).form() == Form()
    assert LabelledSet("test", (X.numpy(), Y), None).form() == Form(arrays=True)
    assert LabelledSet("test", [((X, X), Y)], None).form() == Form(places=True)
    assert LabelledSet("test", [{"x": X.numpy(), "labels": Y}], None).form() == Form(arrays=True)


@pytest.mark.parametrize(
    "data, message",
    [
        ((X, torch.zeros(600)), r"^'test': the label of all 600 inputs is 0: an audit needs inputs of two"),
        (
            (X, X[:, 0]),
            r"^'test', batch 0: a label is .*`evaluate.*`bb.plots",
        ),
        ([(X, Y), (X, Y.float() * torch.nan)], r"^'test', batch 1: a label is NaN"),
        ([(X, Y), (X, Y - 5)], r"^'test', batch 1: a label is -5: classes are 0, 1"),
        ([(X, Y), (X, Y[:7])], r"^'test': batch 1 has 600 inputs and labels of shape \(7,\)"),
        ((X, Y[:7]), r"^'test': 600 inputs and labels of shape \(7,\)"),
        ([(X, Y), (X, np.array(["a"] * 600))], r"^'test', batch 1: an array holds <U1: give numbers"),
        ([], r"^'test': the loader is empty"),
        (iter([(X, Y)]), r"^'test' is a list_iterator, which can be read only once"),
    ],
)
def test_what_is_wrong_is_named_with_set_and_batch(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(LabelledSet("test", data, None).batches())


def test_a_loader_that_raises_is_named() -> None:
    def batches() -> Any:
        yield X, Y
        raise OSError("the disk is gone")

    class Loader:
        def __iter__(self) -> Any:
            return batches()

    with pytest.raises(DataError, match=r"^'train', batch 1: the loader raised OSError: the disk is gone"):
        list(LabelledSet("train", Loader(), nn.Linear(2, 2)))


@pytest.mark.parametrize(
    "data", [X, X.numpy(), (X, Y), [X[:300], X[300:]], [(X.numpy(), Y, "meta")], [(X, ["a path"] * 600)]]
)
def test_outliers_may_have_labels_or_not(data: Any) -> None:
    parts = [batch.inputs for batch in OutlierInputs(data, None).batches()]
    assert torch.equal(torch.cat(parts), X)  # type: ignore[arg-type]


SITES = ["north", "south"] * 300


@pytest.mark.parametrize(
    "data",
    [
        (X, Y, SITES),
        (X.numpy(), Y.numpy(), np.array(SITES)),
        (X, Y, {"site": SITES, "year": [1] * 600}),
        {"x": X, "site": SITES, "labels": Y},
        {"x": X.numpy(), "site": np.array(SITES), "labels": Y.numpy()},
        [(X[:400], Y[:400], {"site": SITES[:400]}), (X[400:], Y[400:], {"site": SITES[400:]})],
        [
            {"x": X[:400], "site": SITES[:400], "labels": Y[:400]},
            {"x": X[400:], "site": SITES[400:], "labels": Y[400:]},
        ],
    ],
)
def test_a_column_is_read_with_its_inputs(data: Any) -> None:
    for network in (None, nn.Linear(2, 3)):
        if network is not None and isinstance(data, (dict, list)):
            continue
        read = LabelledSet("test", data, network, "site")
        for _ in range(2):  # anew in each pass
            labels = torch.cat([batch.labels for batch in read.batches()])  # type: ignore[misc]
            assert read.values == SITES and torch.equal(labels, Y)


def test_numbers_in_a_column_are_written_as_texts() -> None:
    read = LabelledSet("test", (X, Y, torch.arange(600) % 2), None, "site")
    assert list(read.batches()) and set(read.values) == {"0", "1"}
    read = LabelledSet("test", (X, Y, [0.5, 2.0] * 300), None, "site")
    assert list(read.batches()) and set(read.values) == {"0.5", "2"}


def test_a_table_of_pandas_may_hold_the_column() -> None:
    pandas = pytest.importorskip("pandas")
    read = LabelledSet("test", (X, Y, pandas.DataFrame({"site": SITES})), None, "site")
    assert list(read.batches()) and read.values == SITES
    with pytest.raises(DataError, match="there is no column 'town': the third part has 'site'"):
        LabelledSet("test", (X, Y, pandas.DataFrame({"site": SITES})), None, "town")


@pytest.mark.parametrize(
    "data, message",
    [
        ((X, Y), r"^'test': there is no column 'site': give mappings"),
        ({"x": X, "labels": Y}, r"^'test', batch 0: there is no column 'site': the data have 'x', 'labels'"),
        ((X, Y, SITES[:7]), r"^'test': the column 'site' has 7 values for 600 inputs"),
        (
            [(X, Y, {"site": SITES}), (X, Y, {"site": SITES[:7]})],
            r"^'test', batch 1: the column 'site' has 7",
        ),
        ((X, Y, X), r"^'test': the column 'site' has shape \(600, 2\): give one value for each input"),
        ((X, Y, {"site": 3}), r"^'test': the column 'site' is a int: give one value for each input"),
        ((X, ["a"] * 600), r"^'test': the labels are texts: give the numbers of the classes"),
    ],
)
def test_a_column_that_will_not_do_is_named(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(LabelledSet("test", data, None, "site" if "texts" not in message else None).batches())


LETTERS = [f"letter {i}" for i in range(600)]
LABELS = [f"label {int(y)}" for y in Y]


@pytest.mark.parametrize(
    "data, names",
    [
        (X, [None] * 600),
        ((X, LETTERS), LETTERS),
        ((X.numpy(), np.array(LETTERS)), LETTERS),
        ((X, Y), LABELS),
        ({"x": X, "labels": Y}, LABELS),
        ([(X[:400], LETTERS[:400]), (X[400:], LETTERS[400:])], LETTERS),
        ([(X[:400], Y[:400]), X[400:]], LABELS[:400] + [None] * 200),
        ([(X, Y.float())], [None] * 600),
    ],
)
def test_outliers_may_have_names(data: Any, names: list[str | None]) -> None:
    read = OutlierInputs(data, None)
    for _ in range(2):
        assert sum(len(batch) for batch in read.batches()) == 600
        assert read.names == names
