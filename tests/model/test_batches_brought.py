"""Batches that users bring: labels left in a mapping, one label for all, no rows, flags beside tensors."""

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import DataError
from bitbayes.model import PreviewedLoader, items, row_count
from bitbayes.model.batches import batches

CPU = torch.device("cpu")
X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


class Named(nn.Module):
    """Called by the name of its input, and by no other."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 5)

    def forward(self, input_ids):
        return self.head(input_ids)


@pytest.mark.parametrize("key", ["labels", "label"])
def test_a_mapping_given_directly_gives_up_its_labels(key):
    (inputs,) = items({"input_ids": X, key: Y}, CPU)
    assert set(inputs) == {"input_ids"}


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_batch_as_it_was_fitted_can_be_predicted(layers):
    batch = {"input_ids": X, "labels": Y}
    bayes = bb.Laplace(Named(), layers=layers).fit([batch])
    assert torch.equal(bayes.predict_proba(batch), bayes.predict_proba({"input_ids": X}))


@pytest.mark.parametrize(
    "batch", [(X[:1], Y[0]), {"input_ids": X[:1], "labels": Y[0]}], ids=["pair", "mapping"]
)
@pytest.mark.parametrize("layers", ["last", "all"])
def test_one_number_is_no_label_for_each_row(batch, layers):
    with pytest.raises(DataError, match=r"batch 0 has labels of shape \(\).*\(n,\)"):
        bb.Laplace(Named(), layers=layers).fit([batch])
    with pytest.raises(DataError, match=r"batch 1 has labels of shape \(\)"):
        list(batches([(X, Y), batch], CPU))


@pytest.mark.parametrize("batch", [(X[:0], Y[:0]), (X[:0], Y), ({"input_ids": X[:0]}, Y[:0])])
@pytest.mark.parametrize("layers", ["last", "all"])
def test_an_empty_batch_is_said_to_be_empty(batch, layers):
    with pytest.raises(DataError, match="batch 0 is empty"):
        bb.Laplace(Named(), layers=layers).fit([batch, (X, Y)])
    with pytest.raises(DataError, match="batch 0 is empty"):
        PreviewedLoader([batch], CPU)
    with pytest.raises(DataError, match="batch 1 is empty"):
        list(batches([(X, Y), batch], CPU))


@pytest.mark.parametrize("first", [None, True, "note", torch.tensor(3.0)])
def test_the_first_tensor_with_rows_counts_them(first):
    assert row_count({"first": first, "input_ids": X}) == 5


def test_an_input_without_rows_is_refused():
    for inputs, says in ((torch.tensor(3.0), r"shape \(\)"), ({"note": "a", "flag": True}, "'note', 'flag'")):
        with pytest.raises(DataError, match=says):
            row_count(inputs)
