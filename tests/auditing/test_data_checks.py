"""Copies across sets, missing classes, and labels that moved: found where they are, and nowhere else."""

import pytest
import torch
from torch import Tensor

from bitbayes.auditing.data_checks import InputHashes, count_copies, find_shift
from bitbayes.model import row_count


def hashes(*batches: object) -> list[Tensor]:
    found = InputHashes()
    for batch in batches:
        found.add(batch, row_count(batch))  # type: ignore[arg-type]
    return found.parts


@pytest.mark.parametrize("kind", ["tensor", "mapping", "ids", "images"])
def test_copies_are_counted_however_they_are_batched(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, 4, 4, generator=generator)
    ids = torch.randint(100, (50, 7), generator=generator)
    whole = {"tensor": x.flatten(1), "images": x, "ids": ids, "mapping": {"ids": ids, "x": x.flatten(1)}}[
        kind
    ]

    def rows(which: object) -> object:
        if isinstance(whole, dict):
            return {name: each[which] for name, each in whole.items()}  # type: ignore[index]
        return whole[which]  # type: ignore[index]

    train = hashes(rows(slice(0, 30)), rows(slice(30, 40)))
    validation = hashes(rows([45, 3, 41]), rows([39]), rows([3]))
    assert count_copies(validation, train) == 3  # 3 twice, and 39
    assert count_copies(train, validation) == 2


def test_the_order_of_numbers_and_of_names_counts() -> None:
    x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 1.0]])
    assert count_copies(hashes(x), hashes(y)) == 0
    assert count_copies(hashes({"a": x, "b": y}), hashes({"a": y, "b": x})) == 0
    assert count_copies(hashes({"a": x, "b": y}), hashes({"b": y, "a": x})) == 1


def test_a_set_that_was_not_read_has_no_copies() -> None:
    assert count_copies([], hashes(torch.ones(2, 2))) == count_copies(hashes(torch.ones(2, 2)), []) == 0


def answers(labels: Tensor, classes: int, accuracy: float, seed: int = 0) -> Tensor:
    """Predictions that are right with that probability, and otherwise random."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.rand(len(labels), generator=generator) < accuracy
    return torch.where(right, labels, torch.randint(classes, labels.shape, generator=generator))


@pytest.mark.parametrize("by", [1, -1, 3])
def test_a_shift_of_all_labels_is_found(by: int) -> None:
    truth = torch.arange(1000) % 10
    shift = find_shift(answers(truth, 10, 0.9), (truth - by) % 10, 10)
    assert shift is not None and shift.by == by % 10
    assert shift.accuracy < 0.05 and shift.other_accuracy > 0.85
    assert shift.moved == [[y, (y + by) % 10] for y in range(10)]


def test_two_classes_that_changed_places_are_found() -> None:
    truth = torch.arange(1000) % 10
    swapped = torch.where(truth == 3, 5, torch.where(truth == 5, 3, truth))
    predicted = answers(truth, 10, 0.95)
    shift = find_shift(predicted, swapped, 10)
    assert shift is not None and shift.by is None and shift.moved == [[3, 5], [5, 3]]
    assert shift.accuracy == pytest.approx(float((predicted == swapped).double().mean()))
    assert shift.other_accuracy == pytest.approx(float((predicted == truth).double().mean()))
    both = find_shift(answers(truth % 2, 2, 0.95), 1 - truth % 2, 2)
    assert both is not None and both.moved == [[0, 1], [1, 0]]


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 0.99])
def test_a_network_that_guesses_or_errs_is_not_taken_for_a_shift(classes: int, accuracy: float) -> None:
    for seed in range(20):
        labels = torch.arange(30 * classes) % classes
        assert find_shift(answers(labels, classes, accuracy, seed), labels, classes) is None


def test_a_network_that_mistakes_one_class_for_another_is_no_permutation() -> None:
    labels = torch.arange(400) % 4
    predicted = torch.where(labels == 2, 3, labels)  # every 2 is called 3, and so is every 3
    assert find_shift(predicted, labels, 4) is None


def test_a_few_points_and_ignored_labels_say_nothing() -> None:
    labels = torch.arange(9) % 3
    assert find_shift((labels + 1) % 3, labels, 3) is None
    labels = torch.full((100,), -100)
    assert find_shift(torch.zeros(100, dtype=torch.int64), labels, 3) is None
