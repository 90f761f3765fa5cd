"""Where the classes and the positions are in a model's output."""

import pytest
import torch

from bitbayes.errors import DataError
from bitbayes.model import IGNORED, Batch, Layout
from bitbayes.model.head.layout import position_labels, refuse_copied_labels

# Layout, the shape of an output, the number of classes, and how an entry [input, class, *position] is found.
LAYOUTS = {
    "rows": (Layout(), (4, 3), 3, lambda f, i, c: f[i, c]),
    "one logit without its axis": (Layout(), (4,), 1, lambda f, i, c: f[i]),
    "tokens": (Layout(True, 2), (4, 5, 3), 3, lambda f, i, c, t: f[i, t, c]),
    "tokens, from the end": (Layout(True, -1), (4, 5, 3), 3, lambda f, i, c, t: f[i, t, c]),
    "pixels": (Layout(True, 1), (4, 3, 2, 5), 3, lambda f, i, c, h, w: f[i, c, h, w]),
    "one logit of pixels": (Layout(True, 1, True), (4, 2, 5), 1, lambda f, i, c, h, w: f[i, h, w]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_in_the_order_of_inputs_and_positions_and_come_back(name):
    layout, shape, k, entry = LAYOUTS[name]
    output = torch.randn(shape)
    sizes = layout.position_sizes(shape)
    points = output.numel() // k
    rows = layout.flatten(output, points, k)
    assert rows.shape == (points, k)
    places = torch.cartesian_prod(*map(torch.arange, (4, *sizes))).reshape(points, -1)
    for row, (i, *place) in zip(rows, places.tolist(), strict=True):
        assert row.tolist() == [float(entry(output, i, c, *place)) for c in range(k)]
    assert torch.equal(layout.output(rows, shape), output)


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_are_assembled_to_what_the_whole_gives(name):
    layout, shape, k, _ = LAYOUTS[name]
    sizes, points = layout.position_sizes(shape), torch.Size(shape).numel() // k
    made = torch.arange(2.0 * points).reshape(points, 2)
    halves = made.split(points // 2)
    whole = layout.assemble((sizes, part) for part in halves)
    if not layout.positions:
        assert torch.equal(whole, made)
        return
    expected = made.reshape(4, *sizes, 2).movedim(-1, layout.axis)
    assert torch.equal(whole, expected)
    scores = layout.assemble((sizes, part[:, 0]) for part in halves)
    assert torch.equal(scores, made[:, 0].reshape(4, *sizes))


def test_parts_of_other_sizes_are_refused():
    with pytest.raises(DataError, match=r"\(5,\) and \(4,\) positions"):
        Layout(True, 2).assemble([((5,), torch.zeros(5, 2)), ((4,), torch.zeros(4, 2))])


def test_values_of_inputs_are_repeated_for_their_positions():
    values = torch.tensor([1.0, 2.0])
    assert Layout(True, 1).for_points(values, 6).tolist() == [1, 1, 1, 2, 2, 2]
    rows = torch.tensor([[1.0, 10], [2, 20]])
    assert Layout(True, 1).for_points(rows, 4).tolist() == [[1, 10], [1, 10], [2, 20], [2, 20]]
    assert Layout(True, 1).for_points(values, 2) is values and Layout().for_points(values, 6) is values


def test_a_layout_comes_back_from_json():
    layout = Layout(True, -1, True)
    assert Layout.read({"positions": True, "axis": -1, "squeezed": True}) == layout


def test_labels_of_positions_become_rows():
    labels = torch.arange(6).reshape(2, 3)
    assert position_labels(labels, 2, (3,), 5, "batch 0").tolist() == list(range(6))
    assert position_labels(labels[:, None], 2, (3,), 5, "batch 0").tolist() == list(range(6))
    assert position_labels(labels[..., None], 2, (3,), 1, "batch 0").tolist() == list(range(6))
    assert position_labels(labels.to(torch.uint8), 2, (3,), 5, "batch 0").dtype == torch.int64
    with pytest.raises(DataError, match=r"batch 7: the labels have shape \(2, 3\); expected \(2, 4\)"):
        position_labels(labels, 2, (4,), 5, "batch 7")


@pytest.mark.parametrize(
    "labels, sizes, k, told",
    [
        (torch.zeros(2), (4,), 1, True),
        (torch.zeros(2, 3), (4,), 1, False),
        (torch.zeros(2), (4,), 5, False),
        (torch.zeros(2), (4, 4), 1, False),
    ],
)
def test_one_label_for_several_single_logits_may_be_that_of_a_choice(labels, sizes, k, told):
    with pytest.raises(DataError, match="one for each position") as error:
        position_labels(labels, 2, sizes, k, "batch 0")
    assert ("If the 4 logits of an input are those of a choice" in str(error.value)) is told


@pytest.mark.parametrize("mapping", [False, True])
def test_labels_that_are_the_token_ids_are_refused(mapping):
    ids = torch.randint(9, (2, 5))

    def batch(labels):
        return Batch({"input_ids": ids} if mapping else ids, labels, "batch 0")

    padded = ids.clone()
    padded[:, 3:] = IGNORED
    for labels in (ids.clone(), padded):
        with pytest.raises(DataError, match="the labels are the token ids themselves"):
            refuse_copied_labels(batch(labels))
    shifted = torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)], 1)
    shifted[0, 0] = ids[0, 0] + 1
    for labels in (shifted, None, ids[:, 0], torch.full_like(ids, IGNORED)):
        refuse_copied_labels(batch(labels))
