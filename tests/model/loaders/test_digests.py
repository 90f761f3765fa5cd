"""The digest of data: of every bit of them, and of no order."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitbayes.model import Batch, DataDigest
from bitbayes.model.loaders import digests

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def digest(*batches):
    """Of several batches, (inputs, labels) each."""
    found = DataDigest()
    for x, y in batches:
        found.add(Batch(x, y, "batch"))
    return int(found) % 2**64


def cut(x, rows):
    """Some rows of inputs; what has no rows stays."""
    if isinstance(x, dict):
        return {name: cut(each, rows) for name, each in x.items()}
    if isinstance(x, list):
        return [x[row] for row in rows]
    return x[rows] if x.dim() else x


def kinds_of_inputs(n):
    numbers = torch.arange(6.0 * n).reshape(n, 2, 3).sin()
    ids = torch.arange(5 * n).reshape(n, 5) % 7
    return {
        "a tensor": numbers,
        "not contiguous": numbers.mT,
        "sparse": numbers.flatten(1).round().to_sparse(),
        "ids": {"input_ids": ids, "attention_mask": ids > 2},
        "by place": {0: numbers, 1: ids},
        "with a scalar": {"x": numbers, "scale": torch.tensor(2.0)},
        "texts": {"texts": [f"text {row}" for row in range(n)]},
    }


@pytest.mark.parametrize("name", kinds_of_inputs(1))
@pytest.mark.parametrize("positions", [(), (1,), (4,)])
def test_batches_in_any_order_have_the_digest_of_all_points(name, positions):
    n = 11
    x, y = kinds_of_inputs(n)[name], torch.arange(n) % 3
    y = y.reshape(n, *[1] * len(positions)).expand(n, *positions)
    if name == "sparse":
        assert digest((x, y)) == digest((x.to_dense(), y))
        return
    order = [3, 1, 4, 0, 5, 9, 2, 6, 10, 8, 7]
    for parts in ([order[:4], order[4:10], order[10:]], [[row] for row in order]):
        assert digest(*((cut(x, rows), y[rows]) for rows in parts)) == digest((x, y))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_entry_counts(dtype):
    torch.manual_seed(0)
    x, y = torch.randint(0, 2, (6, 5)).to(dtype), torch.arange(6) % 3
    found = {digest((x, y))}
    for row in range(6):
        for column in range(5):
            other = x.clone()
            other[row, column] = 1 - other[row, column] if dtype != torch.bool else ~other[row, column]
            found.add(digest((other, y)))
        other = y.clone()
        other[row] += 1
        found.add(digest((x, other)))
    # Labels of other points, a point twice, one fewer, other places.
    found |= {digest((x, y.flip(0))), digest((x, y), (x[:1], y[:1])), digest((x[1:], y[1:]))}
    found |= {digest((x.flip(1), y)), digest((torch.cat([x, x], 1), y))}
    assert len(found) == 1 + 6 * 5 + 6 + 5


@given(st.sets(st.tuples(*[st.integers(0, 3)] * 4), min_size=2, max_size=30))
def test_points_of_few_values_have_digests_of_their_own(rows):
    """Round numbers end with many zero bits, in float64 most of all."""
    rows, labels = torch.tensor(sorted(rows)), torch.zeros(1, dtype=torch.int64)
    for dtype in (torch.float64, torch.float32, torch.int64):
        assert len({digest((row[None].to(dtype), labels)) for row in rows}) == len(rows)


def test_what_differs_beside_the_rows_counts():
    y = torch.arange(4) % 2
    x = torch.ones(4, 2)
    several = [{"x": x, "scale": torch.tensor(each)} for each in (1.0, 2.0)]
    several += [{"x": x, "nodes": each} for each in (torch.zeros(9, 2), torch.ones(9, 2))]
    several += [{"x": x, "texts": [*each]} for each in ("abcd", "abce")]
    several += [{"x": x, "mode": each} for each in ("a", "b", None)]
    assert len({digest((each, y)) for each in several}) == len(several)


def test_what_is_inside_of_lists_and_mappings_counts():
    y, x = torch.arange(3), torch.randn(3, 4, 2)
    same = [[{"seqs": [*rows]}, {"more": {"a": [*rows], "b": None}}] for rows in (x, x.clone(), x + 1)]
    for first, again, other in zip(*same, strict=True):
        assert digest((first, y)) == digest((again, y)) != digest((other, y))
    for value in (torch.tensor(True), torch.ones(2).bfloat16(), torch.eye(2).to_sparse()):
        assert digest(({"x": x, "value": [value]}, y)) == digest(({"x": x, "value": [value.clone()]}, y))


def test_objects_that_are_not_known_make_data_unlike_any_other():
    """Data that may differ are never refused as the same."""
    y, inputs = torch.arange(4), {"x": torch.ones(4, 2), "what": object()}
    assert digest((inputs, y)) != digest((inputs, y))


def test_labels_are_read_at_once():
    x, y, buffer = torch.randn(6, 2), torch.arange(6), torch.empty(3).long()
    found = DataDigest()
    for rows in (slice(3), slice(3, 6)):
        found.add(Batch(x[rows], buffer.copy_(y[rows]), "batch"))
    assert int(found) % 2**64 == digest((x, y))


def test_the_table_of_factors_does_not_grow_with_the_number_of_widths():
    found = DataDigest()
    for width in range(1, 200):
        found.add(Batch(torch.zeros(1, width), torch.zeros(1).long(), "batch"))
    (table,) = found._factors.values()
    assert len(table) < 4 * 202


def test_points_without_a_label_do_not_count():
    x, y = torch.randn(5, 3), torch.arange(15).reshape(5, 3)
    y[:2, 1:] = -100
    whole = digest((x[1:], y[1:]))
    y[0] = -100
    assert digest((x, y)) == whole


def test_it_does_not_depend_on_how_much_is_computed_at_once(monkeypatch):
    x, y = torch.randn(20, 7), torch.arange(20)
    whole = digest((x, y))
    for numbers in (1, 15, 2**30):
        monkeypatch.setattr(digests, "NUMBERS_AT_ONCE", numbers)
        assert digest((x, y)) == whole


def test_it_does_not_depend_on_how_many_batches_wait(monkeypatch):
    x, y = torch.randn(20, 7), torch.arange(20)
    batches = [(x[:3], y[:3]), (x[3:9], y[3:9].int()), (x[9:12], y[9:12, None]), (x[12:], y[12:])]
    found = digest(*batches)
    monkeypatch.setattr(digests, "MOST_WAITING", 1)
    assert digest(*batches) == found


def test_it_is_what_it_was():
    """Files hold it: another version must find the same. By plain integers, as the module says."""

    def mixed(number):
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            number = (number ^ number >> 32) * factor % 2**64
        return number ^ number >> 32

    x, y = torch.tensor([[3, 5], [2, 7]], dtype=torch.int32), torch.tensor([1, 0], dtype=torch.int32)
    numbers = torch.cat([y[:, None], x], 1).tolist()
    points = [sum(mixed(place) * each for place, each in enumerate(row, 1)) for row in numbers]
    assert digest((x, y)) == sum(mixed(each % 2**64) for each in points) % 2**64


def test_weights_are_part_of_the_data_unless_they_are_one():
    x, y = torch.randn(4, 3), torch.arange(4)

    def weighted(*weights):
        found = DataDigest()
        found.add(Batch(x, y, "batch", weights=torch.tensor(weights, dtype=torch.float64)))
        return int(found) % 2**64

    assert weighted(1, 1, 1, 1) == digest((x, y))
    others = [weighted(2, 1, 1, 1), weighted(1, 2, 1, 1), weighted(1, 1, 1, 0), weighted(1, 1, 1, 1 + 1e-15)]
    assert len({*others, digest((x, y))}) == 5
