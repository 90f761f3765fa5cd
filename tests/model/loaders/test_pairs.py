"""Pairs as loaders have them; tests/behaviour/test_preferences.py has every form with a model."""

import pickle

import pytest
import torch

from bitbayes.errors import DataError, UnusedDataWarning
from bitbayes.model.loaders.pairs import PairAdapter, is_pair, labelled_pair, pair_data

A, B = torch.zeros(3, 2), torch.ones(3, 2)


def test_without_labels_the_first_is_preferred():
    pair, labels = labelled_pair((A, B))
    assert pair == {"chosen": A, "rejected": B} and labels.tolist() == [1, 1, 1]


@pytest.mark.parametrize("batch", [((A, B), [1, 0, 1]), [[A, B], torch.tensor([1, 0, 1])], (A, B, [1, 0, 1])])
def test_labels_are_kept(batch):
    pair, labels = labelled_pair(batch)
    assert pair["chosen"] is A and pair["rejected"] is B and labels.tolist() == [1, 0, 1]


WEIGHTS = torch.rand(3)


@pytest.mark.parametrize(
    "batch, which",
    [
        (((A, B), [1, 0, 1], WEIGHTS), "second"),
        ([[A, B], torch.tensor([1, 0, 1]), "name", WEIGHTS], "second"),
        (({"x_chosen": A, "x_rejected": B}, torch.tensor([1, 0, 1]), WEIGHTS), "second"),
        ((A, B, torch.tensor([1, 0, 1]), WEIGHTS), "third"),
        (({"x": A}, {"x": B}, [1, 0, 1], WEIGHTS), "third"),
        (((A, A), (B, B), torch.tensor([1, 0, 1]), WEIGHTS), "third"),
    ],
)
def test_what_follows_the_labels_is_left_out_with_a_warning(batch, which):
    with pytest.warns(UnusedDataWarning, match=f"the {which} is taken as the labels, and what follows it is"):
        pair, labels = labelled_pair(batch)
    assert labels.tolist() == [1, 0, 1]
    assert pair.keys() == labelled_pair(batch[: 2 if which == "second" else 3])[0].keys()


def test_four_tensors_may_be_two_inputs_of_two_tensors_each():
    with pytest.raises(DataError, match="expected two inputs"):
        labelled_pair((A, A, B, B))


def test_tuples_on_both_sides_are_positional_arguments():
    pair, labels = labelled_pair(((A, B), (B, A)))
    assert pair == {"0_chosen": A, "1_chosen": B, "0_rejected": B, "1_rejected": A} and labels.sum() == 3


def test_a_mapping_has_both_sides_and_maybe_labels():
    batch = {"ids_chosen": A, "ids_rejected": B}
    assert labelled_pair(batch)[0] == batch
    pair, labels = labelled_pair({**batch, "label": [0, 1, 0]})
    assert pair == batch and labels.tolist() == [0, 1, 0]
    with pytest.warns(UnusedDataWarning, match="'margin'"):
        assert labelled_pair({**batch, "margin": A})[0] == batch


@pytest.mark.parametrize(
    "batch",
    [
        ({"ids": A, "labels": A}, {"ids": B, "labels": B}),
        {"ids_chosen": A, "labels_chosen": A, "ids_rejected": B, "labels_rejected": B},
    ],
)
def test_labels_of_tokens_on_both_sides_are_left_out(batch):
    """With them a language model would compute a loss."""
    pair, labels = labelled_pair(batch)
    assert pair == {"ids_chosen": A, "ids_rejected": B} and labels.tolist() == [1, 1, 1]


def test_data_of_a_prediction_are_one_pair_or_a_loader():
    batches = [(A, B)]
    assert pair_data(batches) is batches and pair_data((A, B)) == {"chosen": A, "rejected": B}
    with pytest.raises(DataError, match="between two"):
        pair_data(A)
    assert [is_pair(each) for each in ((A, B), {"x_chosen": A, "x_rejected": B}, {"x": A}, A, batches)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_the_adapter_calls_the_users_first():
    adapter = PairAdapter(sorted_by_name)
    assert pickle.loads(pickle.dumps(adapter))({"b": B, "a": A})[0].keys() == {"chosen", "rejected"}


def sorted_by_name(batch):
    return tuple(batch[name] for name in sorted(batch))
