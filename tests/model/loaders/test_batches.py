"""Batches of loaders: pairs, mappings and tensors, and parts."""

import json
from dataclasses import asdict

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
from bitbayes.errors import DataError, UnusedDataWarning
from bitbayes.model import (
    Batch,
    check_loader,
    input_batches,
    labelled_batch,
    labelled_batches,
    model_device,
    row_count,
)
from bitbayes.model.loaders.batches import InputForm

CPU = torch.device("cpu")


class Anything(nn.Module):
    """It takes any arguments."""

    def forward(self, *args, **kwargs):
        return args, kwargs


ANY = Anything()

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


def parts(loader):
    return [(each.inputs.tolist(), each.labels.tolist()) for each in labelled_batches(loader, ANY)]


EXPECTED = [(X[:3].tolist(), Y[:3].tolist()), (X[3:].tolist(), Y[3:].tolist())]


@pytest.mark.parametrize(
    "loader",
    [
        [(X[:3], Y[:3]), (X[3:], Y[3:])],
        [[X[:3], Y[:3]], [X[3:], Y[3:]]],
        iter([(X[:3], Y[:3]), (X[3:], Y[3:])]),
        DataLoader(TensorDataset(X, Y), batch_size=3),
    ],
    ids=["tuples", "lists", "iterator", "DataLoader"],
)
def test_pairs_of_every_kind_of_loader(loader):
    assert parts(loader) == EXPECTED


@pytest.mark.parametrize("key", ["labels", "label"])
def test_labels_are_taken_out_of_mappings(key):
    (batch,) = labelled_batches([{"input_ids": X, "attention_mask": X + 1, key: Y}], ANY)
    assert set(batch.inputs) == {"input_ids", "attention_mask"} and torch.equal(batch.labels, Y)


def test_mappings_may_stand_in_pairs_with_labels():
    (batch,) = labelled_batches([({"input_ids": X, "note": "kept"}, Y)], ANY)
    assert batch.inputs["note"] == "kept" and torch.equal(batch.labels, Y)


def test_errors_count_batches_from_zero():
    with pytest.raises(DataError, match="batch 1 is a list of"):
        list(labelled_batches([(X, Y), [X]], ANY))
    with pytest.raises(DataError, match="empty"):
        list(labelled_batches([], ANY))


def test_a_mapping_without_labels_is_refused_with_its_keys_names_and_places_alike():
    with pytest.raises(DataError, match=r"keys \[0, 'a', 'b'\]: 'labels' is missing"):
        list(labelled_batches([{"b": X, 0: X, "a": X}], ANY))


def test_a_warning_of_what_is_left_out_points_to_the_line_of_the_caller():
    with pytest.warns(UnusedDataWarning, match="what follows it is left out") as warned:
        list(labelled_batches([(X, Y, "names")], ANY))
    assert [each.filename for each in warned] == [__file__]


@pytest.mark.parametrize("batch, told", [((X, X, X), True), ((X, "a"), False), ((X,), False), (X, False)])
def test_how_to_give_several_inputs_is_told_only_where_there_are_more_than_two_parts(batch, told):
    with pytest.raises(DataError, match="expected a pair of tensors") as error:
        list(labelled_batches([batch], ANY))
    assert ("several inputs of a model are ((x1, x2), labels)" in str(error.value)) is told


@pytest.mark.parametrize(
    "data, count",
    [
        (X, 1),
        ({"x": X}, 1),
        ([X, X], 2),
        ([(X, Y), (X, Y)], 2),
        ([(X, Y.tolist()), (X, Y.numpy())], 2),
        ([{"x": X, "label": Y.tolist()}], 1),
        ([[X], [X]], 2),
        ([(X, Y[:, None].bool())], 1),
        ([(X, (Y > 2).float())], 1),  # labels of one logit
        (((X, Y), (X, Y)), 2),
        (DataLoader(TensorDataset(X), batch_size=5), 1),
        (DataLoader(TensorDataset(X, Y), batch_size=5), 1),
        (DataLoader(X, batch_size=5), 1),
        ((each for each in [X, X]), 2),
        (iter([X]), 1),
        ([({"x": X}, Y)], 1),
        ({"x": X, "labels": Y}, 1),
        ([{"x": X, "labels": Y}], 1),
    ],
)
def test_batches_of_inputs_without_labels(data, count):
    batches = list(input_batches(data, ANY))
    assert len(batches) == count
    for number, batch in enumerate(batches):
        inputs = batch.inputs
        assert set(inputs) == {"x"} if isinstance(inputs, dict) else torch.equal(inputs, X)
        assert batch.labels is None
        assert batch.name == ("the input" if isinstance(data, (torch.Tensor, dict)) else f"batch {number}")


MASK = torch.ones(5, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    "data, says",
    [
        ((X, MASK), r"the input is a tuple of \(Tensor \(5, 2\) float32, Tensor \(5, 2\) int64\)"),
        ((X, Y), "the input is a tuple"),
        ((X,), "the input is a tuple"),
        (({"x": X}, Y), "the input is a tuple"),
        ([X, Y], r"batch 1 is a tensor of torch.int64 with 1 dim.*batch 0 is a tensor of torch.float32"),
        ([X, MASK], "batch 1 is a tensor of torch.int64.*belong together"),
        ([X, {"x": X}], "batch 1 is a mapping, and batch 0 is a tensor"),
        ([(X, MASK)], r"batch 0 is a tuple of .*Tensor \(5, 2\) int64\): the second cannot be labels"),
        ([(X, Y), [X, MASK]], "batch 1 is a list of"),
        ([(X, X[:, 0])], "the second cannot be labels"),  # floats other than 0 and 1
        ([(X, Y[:4])], "the second cannot be labels"),
        ([(X, torch.tensor(1))], "the second cannot be labels"),
        ([(X, Y.to(torch.complex64))], "the second cannot be labels"),
        ([(X, [1.5] * 5)], r"list\): the second cannot be labels"),
        ([(X, [[1], [2, 3], [4], [5], [6]])], r"list\): the second cannot be labels"),
        ([({"x": X}, MASK)], "the second cannot be labels"),
        ([(X, MASK, Y)], r"batch 0 is a tuple of \(Tensor.*, Tensor.*, Tensor.*\): expected inputs, or"),
        ([(X, Y, Y)], "expected inputs, or"),
        ([()], "expected inputs, or"),
    ],
)
def test_what_may_be_several_inputs_is_never_taken_for_labels_or_batches(data, says):
    with pytest.raises(DataError, match=says) as error:
        list(input_batches(data, ANY))
    assert "{'input_ids': ids, 'attention_mask': mask}" in str(error.value)


def test_sequences_of_several_lengths_are_batches_of_one_loader():
    lengths = [batch.inputs.shape[1] for batch in input_batches([MASK, MASK[:, :1]], ANY)]
    assert lengths == [2, 1]


def test_a_message_shows_only_the_first_of_many_parts():
    with pytest.raises(DataError, match=r"Tensor \(1, 2\) float32, …\)"):
        list(input_batches(X.split(1), ANY))


class Masked(nn.Module):
    """It takes ids and a mask, without which it gives something else."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.head((self.words(input_ids) * mask[..., None]).sum(1))


@pytest.mark.parametrize("kind", ["last", "all", "temperature"])
def test_a_mask_is_never_dropped(kind):
    torch.manual_seed(0)
    ids, mask, model = torch.randint(7, (6, 5)), torch.randint(2, (6, 5)), Masked()
    inputs = {"input_ids": ids, "attention_mask": mask}
    y = model(**inputs).argmax(1)
    y[0] = (y[0] + 1) % 3  # right but for one
    if kind == "temperature":
        bayes = bb.TemperatureScaling(model)
    else:
        bayes = bb.Laplace(model, layers=kind, structure="diag", prior_variance=1.0)
    bayes.fit([{**inputs, "labels": y}])
    assert bayes.predict_proba([inputs, inputs]).shape == (12, 3)
    for wrong in ((ids, mask), [(ids, mask)], [(ids, mask, y)], DataLoader(TensorDataset(ids, mask))):
        with pytest.raises(DataError, match="attention_mask"):
            bayes.predict_proba(wrong)
        with pytest.raises(DataError):
            bayes.fit(wrong)
        if kind == "temperature":
            continue
        with pytest.raises(DataError, match="attention_mask"):
            bayes.tune([{**inputs, "labels": y}], objective="ood", outliers=wrong)
        with pytest.raises(DataError, match=r"noise.*attention_mask"):
            bayes.evaluate([{**inputs, "labels": y}], outliers={"noise": wrong})


def test_a_tuple_of_outliers_is_refused_before_the_validation_data_are_gone_through():
    bayes = bb.Laplace(Named(), prior_variance=1.0).fit([(X, Y)])

    def validation():
        raise AssertionError("the validation data were gone through")
        yield

    with pytest.raises(DataError, match="the input is a tuple"):
        bayes.tune(validation(), objective="ood", outliers=(X, X))


def test_inputs_of_other_types_are_refused():
    for data, says in ((3, "int"), ([3], "batch 0 is a int"), ([("a", "b")], r"\(str, str\)"), ([], "empty")):
        with pytest.raises(DataError, match=says):
            list(input_batches(data, ANY))


def test_tensors_and_mappings_are_no_loaders():
    for wrong in (X, {"x": X}, "data", 3, None):
        with pytest.raises(DataError, match=type(wrong).__name__):
            check_loader(wrong)
    loader = [(X, Y)]
    assert check_loader(loader) is loader


def test_the_device_of_a_model_is_that_of_its_first_parameter():
    assert model_device(torch.nn.Linear(2, 2)) == CPU
    assert model_device(torch.nn.ReLU()) == CPU
    assert model_device(torch.nn.Linear(2, 2, device="meta")).type == "meta"


@pytest.mark.parametrize("rows", [1, 2, 5, 100])
def test_splitting_keeps_rows_of_inputs_and_labels_together(rows):
    mask = torch.ones(3, 3)  # for all points: it has no row for each
    batch = Batch({"x": X, "mask": mask, "flag": True}, Y, "batch 7")
    parts = list(batch.split(rows))
    assert [len(part) for part in parts] == [len(each) for each in torch.split(Y, rows)]
    assert torch.equal(torch.cat([part.inputs["x"] for part in parts]), X)
    assert torch.equal(torch.cat([part.labels for part in parts]), Y)
    assert all(torch.equal(part.inputs["mask"], mask) and part.inputs["flag"] for part in parts)
    assert {part.name for part in parts} == {"batch 7"}


@pytest.mark.parametrize("rows", [5, 6, 100])
def test_a_batch_that_is_small_enough_is_its_only_part(rows):
    batch = Batch(X, Y, "batch 0")
    assert [part is batch for part in batch.split(rows)] == [True]


def test_splitting_a_tensor_without_labels():
    parts = list(Batch(X, None, "the input").split(2))
    assert [part.inputs.tolist() for part in parts] == [X[:2].tolist(), X[2:4].tolist(), X[4:].tolist()]
    assert all(part.labels is None and part.name == "the input" for part in parts)


def test_values_without_a_row_for_each_point_are_in_every_part():
    inputs = {"x": X, "scale": torch.tensor(3.0), "row": torch.ones(1, 2), "none": None, "word": "abcde"}
    for part in Batch(inputs, Y, "batch 0").split(2):
        assert float(part.inputs["scale"]) == 3.0 and part.inputs["row"].shape == (1, 2)
        assert part.inputs["none"] is None and part.inputs["word"] == "abcde"


class Named(nn.Module):
    """A network whose input is called `input_ids`."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 5)

    def forward(self, input_ids):
        return self.head(input_ids)


@pytest.mark.parametrize("key", ["labels", "label"])
def test_labels_are_taken_out_of_a_mapping_given_directly(key):
    (batch,) = input_batches({"input_ids": X, key: Y}, ANY)
    assert set(batch.inputs) == {"input_ids"}


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_batch_with_labels_can_be_predicted(layers):
    batch = {"input_ids": X, "labels": Y}
    bayes = bb.Laplace(Named(), layers=layers).fit([batch])
    assert torch.equal(bayes.predict_proba(batch), bayes.predict_proba({"input_ids": X}))


@pytest.mark.parametrize(
    "batch", [(X[:1], Y[0]), {"input_ids": X[:1], "labels": Y[0]}], ids=["pair", "mapping"]
)
@pytest.mark.parametrize("layers", ["last", "all"])
def test_labels_of_shape_scalar_raise(batch, layers):
    with pytest.raises(DataError, match=r"batch 0 has labels of shape \(\).*\(n,\)"):
        bb.Laplace(Named(), layers=layers).fit([batch])
    with pytest.raises(DataError, match=r"batch 1 has labels of shape \(\)"):
        list(labelled_batches([(X, Y), batch], ANY))


@pytest.mark.parametrize("batch", [(X[:0], Y[:0]), (X[:0], Y), ({"input_ids": X[:0]}, Y[:0])])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_an_empty_batch_raises(batch, layers):
    with pytest.raises(DataError, match="batch 0 is empty"):
        bb.Laplace(Named(), layers=layers).fit([batch, (X, Y)])
    with pytest.raises(DataError, match="batch 1 is empty"):
        list(labelled_batches([(X, Y), batch], ANY))


@pytest.mark.parametrize("first", [None, True, "note", torch.tensor(3.0)])
def test_the_first_tensor_with_rows_counts_them(first):
    assert row_count({"first": first, "input_ids": X}) == 5


def test_an_input_without_rows_is_refused():
    for inputs, says in ((torch.tensor(3.0), r"shape \(\)"), ({"note": "a", "flag": True}, "'note', 'flag'")):
        with pytest.raises(DataError, match=says):
            row_count(inputs)


@pytest.mark.parametrize("names", [["a.png"] * 5, ("a.png",) * 5, None])
def test_names_beside_the_inputs_are_left_out(names):
    (batch,) = input_batches([(X, names)], ANY)
    assert torch.equal(batch.inputs, X) and batch.labels is None


@pytest.mark.parametrize("inputs", [X, torch.zeros(3), {"b": X, "a": X}, {1: X, 0: X}])
def test_the_form_of_inputs_is_the_same_after_a_file(inputs):
    form = InputForm.of(inputs)
    assert InputForm.read(json.loads(json.dumps(asdict(form)))) == form
    assert InputForm.read(None) == InputForm()


def test_one_row_is_known_by_the_form_of_the_inputs():
    form = InputForm.of(torch.zeros(5, 2))
    form.refuse_one_row(torch.zeros(2, 2))
    with pytest.raises(DataError, match=r"shape \(2,\), which is one row: use x\[None\]"):
        form.refuse_one_row(torch.zeros(2))
    InputForm.of({"x": X}).refuse_one_row(torch.zeros(2))


@pytest.mark.parametrize("weights", [[0, 1, 2, 3, 4], Y, Y.numpy()])
@pytest.mark.parametrize("mapping", [True, False])
def test_weights_are_the_third_part_or_under_their_key(weights, mapping):
    given = {"a": X, "labels": Y, "weight": weights} if mapping else (X, Y, weights)
    batch = labelled_batch(given, 0, ANY, weighted=True)
    assert batch.weights.tolist() == [0, 1, 2, 3, 4] and batch.weights.dtype == torch.float64
    assert batch.labels.tolist() == Y.tolist()
    assert [each.weights.tolist() for each in batch.split(3)] == [[0, 1, 2], [3, 4]]
    assert not mapping or [*batch.inputs] == ["a"]


def test_what_follows_the_weights_is_left_out_with_a_warning():
    with pytest.warns(UnusedDataWarning):
        batch = labelled_batch((X, Y, Y, ["a", "b", "c", "d", "e"]), 0, ANY, weighted=True)
    assert batch.weights.tolist() == Y.tolist()
