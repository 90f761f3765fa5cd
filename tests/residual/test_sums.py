"""The sums of a level: against plain sums over all rows and classes; the deviations and correlations."""

import math
from dataclasses import replace

import numpy
import pytest
import sklearn.covariance
import torch

from bitbayes.errors import DataError
from bitbayes.residual import LevelSums, is_finite, sums
from reference import residual_correlations, residual_deviations

CONSTANTS = [0.0, 0.1, 0.3, -7.3, 1 / 3, 1e6 + 0.1]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
KINDS = pytest.mark.parametrize("correlated", [True, False], ids=["correlated", "uncorrelated"])


def exact(rows):
    """A mean and central sums of all rows, by numpy, of numbers that are no larger than their spread."""
    rows = rows.numpy()
    gaps = rows - rows.mean(0)
    powers = [(gaps**power).sum(0) for power in (2, 3, 4)]
    return [rows.mean(0), *powers, gaps.T @ gaps]


def eighths(n, d=3, size=1.0):
    """Numbers that a mean of 1e9 can be added to, and taken off, without rounding."""
    return (8 * size * torch.randn(n, d, dtype=torch.float64)).round() / 8


def assert_sums(found, rows, centre=0.0):
    """The sums are those of rows + centre, up to the rounding of a mean of that size."""
    names, largest = ("mean", "squares", "cubes", "fourths", "products"), float(rows.abs().max())
    assert float(found.count) == len(rows)
    # Sums of n numbers of rounding 1.1e-16 each; and means of two parts, each known to half of its last bit.
    rounding = 2e-16 * (len(rows) + 10)
    shift = 4 * numpy.spacing(centre) if centre else 0.0
    sizes = {"mean": largest} | {
        name: len(rows) * (2 * largest) ** power for name, power in zip(names[1:], (2, 3, 4, 2), strict=True)
    }
    for name, wanted in zip(names, exact(rows), strict=True):
        value = getattr(found, name) - (centre if name == "mean" else 0)
        assert value.dtype == torch.float64
        gap = float((value - torch.from_numpy(wanted)).abs().max())
        # Each power of a gap changes by power·shift/largest of its size.
        assert gap <= sizes[name] * (rounding + 4 * shift / largest), name


@pytest.mark.parametrize("centre", [0.0, 3.0, 1e9])
def test_they_are_those_of_all_rows(centre):
    rows = eighths(40)
    assert_sums(LevelSums.of(rows + centre, correlated=True), rows, centre)


@pytest.mark.parametrize("sizes", [(20, 5), (1, 24), (24, 1), (1, 1, 1), (3, 1, 9, 2)], ids=str)
@pytest.mark.parametrize("centre", [0.0, 3.0, 1e9])
def test_they_add(centre, sizes):
    parts = [eighths(n, size=1.0 + i) for i, n in enumerate(sizes)]
    first, *rest = (LevelSums.of(part + centre, correlated=True) for part in parts)
    assert_sums(sum(rest, start=first), torch.cat(parts), centre)


@pytest.mark.parametrize("centre", [0.0, 3.0, 1e9])
def test_a_part_is_taken_out(centre):
    rows = eighths(60)
    whole, part = (LevelSums.of(each + centre, correlated=True) for each in (rows, rows[:25]))
    assert_sums(whole.without(part, max_ratio=1e6), rows[25:], centre)


def test_without_correlations_there_are_no_products():
    rows = eighths(30)
    with_them, without = (LevelSums.of(rows, correlated=each) for each in (True, False))
    assert with_them.correlated and not without.correlated and without.products.shape == (0, 0)
    for name in ("count", "mean", "squares", "cubes", "fourths"):
        assert torch.equal(getattr(with_them, name), getattr(without, name))
    both = without + without
    assert both.products.shape == (0, 0) and float(both.count) == 60
    assert both.without(without, 10.0).products.shape == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_rows_of_few_bits_are_summed_up_in_float64(dtype):
    rows = torch.randint(0, 256, (300, 4)).to(dtype)
    found, wanted = (LevelSums.of(each, correlated=True) for each in (rows, rows.double()))
    del (same := wanted.tensors())["rounding"]
    assert all(torch.equal(found.tensors()[name], each) for name, each in same.items())


def test_few_rows_at_a_time_give_the_same(monkeypatch):
    rows = eighths(37, 4)
    monkeypatch.setattr(sums, "STEP_NUMBERS", 20)  # five rows
    taken, plain = [], LevelSums._of.__func__
    count = classmethod(lambda cls, part, *rest: taken.append(len(part)) or plain(cls, part, *rest))
    monkeypatch.setattr(LevelSums, "_of", count)
    assert_sums(LevelSums.of(rows, correlated=True), rows)
    assert taken == [5] * 7 + [2]


def test_rows_of_other_widths_do_not_add():
    with pytest.raises(DataError, match=r"inputs of 2 and of 4 numbers.*residual=False"):
        LevelSums.of(torch.ones(3, 2), correlated=True) + LevelSums.of(torch.ones(3, 4), correlated=True)


def test_what_is_not_part_of_it_is_not_taken_out():
    rows = torch.randn(60, 4).double()
    whole = LevelSums.of(rows, correlated=True)
    for other, ratio in ((2 * rows[:25], 1e6), (rows[:59], 10)):
        with pytest.raises(DataError, match="cannot be taken out"):
            whole.without(LevelSums.of(other, correlated=True), max_ratio=ratio)


def signs(n, size):
    return size * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)[:, None]


@pytest.mark.parametrize(
    "left",
    [
        signs(2, 100.0),  # two of 1002 points
        torch.cat([signs(2, 3.0), torch.zeros(40, 1, dtype=torch.float64)]),  # 18 of 1018 squares
        signs(200, 0.35),  # 3 of 1003 fourth powers
    ],
    ids=["points", "squares", "fourth powers"],
)
def test_no_sum_is_taken_out_of_but_a_rest(left):
    part = signs(1000, 1.0)
    whole, theirs = (LevelSums.of(each, correlated=False) for each in (torch.cat([part, left]), part))
    whole.without(theirs, max_ratio=1000)
    with pytest.raises(DataError, match="cannot be taken out"):
        whole.without(theirs, max_ratio=50)


@pytest.mark.parametrize("value", CONSTANTS)
@pytest.mark.parametrize("size", [7, 13, 27])
def test_what_is_left_of_a_column_of_one_number_does_not_vary(size, value):
    """Nor does it go with another column, where means are off by a rounding, as on another machine."""
    rows = 1e6 * torch.randn(40, 2, dtype=torch.float64)
    rows[:, 1] = value
    parts = [LevelSums.of(each, correlated=True) for each in rows.split(size)]
    first = parts[0].mean + torch.tensor([0.0, numpy.spacing(value)])
    left = sum(parts[1:], parts[0]).without(replace(parts[0], mean=first), 1e6)
    assert left.varies().tolist() == [True, False]
    assert [float(left.squares[1]), float(left.fourths[1]), *left.products[1].tolist()] == [0.0] * 4


def test_numbers_whose_fourth_powers_overflow_are_found():
    rows = torch.randn(9, 2).double()
    assert is_finite(LevelSums.of(1e70 * rows, correlated=True))
    assert not is_finite(LevelSums.of(1e80 * rows, correlated=True))


# ---- the means of classes


def classified(rows, labels, classes, centre=0.0):
    return LevelSums.of(rows + centre, correlated=True, labels=labels, classes=classes)


def assert_classes(found, rows, labels, classes, centre=0.0):
    """Counts and means are those of rows + centre, class by class; 0 where a class has no points."""
    counts = [int((labels == label).sum()) for label in range(classes)]
    assert found.has_classes and found.class_counts.tolist() == counts
    assert found.class_means.shape == (classes, rows.shape[1]) and found.class_means.dtype == torch.float64
    # As in `assert_sums`: a sum of n numbers, and means that are known to half of their last bit.
    rounding = 2e-16 * (len(rows) + 10) * float(rows.abs().max())
    shift = 4 * numpy.spacing(centre) if centre else 0.0
    for label, count in enumerate(counts):
        mean = found.class_means[label].numpy()
        if not count:
            assert not mean.any()
            continue
        wanted = rows[labels == label].numpy().mean(0)
        assert numpy.abs(mean - centre - wanted).max() <= rounding + shift, label


@pytest.mark.parametrize("centre", [0.0, 3.0, 1e9])
def test_classes_have_their_own_means(centre):
    """Of classes of any size, two of which have no points: one between the others, and the last."""
    rows, labels = eighths(40), torch.tensor([0, 0, 0, 1, 3, 3, 4, 3]).repeat(5)
    found = classified(rows, labels, 6, centre)
    assert_classes(found, rows, labels, 6, centre)
    plain = LevelSums.of(rows + centre, correlated=True)
    assert not plain.has_classes and plain.class_counts.shape == (0,) and plain.class_means.shape == (0, 0)
    for name in ("count", "mean", "squares", "cubes", "fourths", "products", "rounding"):
        assert torch.equal(getattr(found, name), getattr(plain, name))


@pytest.mark.parametrize("sizes", [(20, 5), (1, 24), (24, 1), (1, 1, 1), (3, 1, 9, 2)], ids=str)
@pytest.mark.parametrize("centre", [0.0, 3.0, 1e9])
def test_classes_add_in_any_split(centre, sizes):
    rows = torch.cat([eighths(n, size=1.0 + i) for i, n in enumerate(sizes)])
    labels = torch.arange(len(rows)) ** 2 % 5  # 0, 1 and 4
    first, *rest = (
        classified(*each, 5, centre) for each in zip(rows.split(sizes), labels.split(sizes), strict=True)
    )
    assert_classes(sum(rest, start=first), rows, labels, 5, centre)
    assert_sums(sum(rest, start=first), rows, centre)


@pytest.mark.parametrize("centre", [0.0, 1e9])
def test_classes_that_only_one_part_has_add(centre):
    """Far from all others; and a class that no part has."""
    rows, labels = eighths(30), torch.tensor([0] * 10 + [1] * 10 + [3] * 10)
    rows[10:20] += 1000
    parts = [classified(*each, 4, centre) for each in zip(rows.split(10), labels.split(10), strict=True)]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        found = sum((parts[i] for i in order[1:]), start=parts[order[0]])
        assert_classes(found, rows, labels, 4, centre)


def test_classes_of_a_few_rows_at_a_time_are_the_same(monkeypatch):
    rows, labels = eighths(37, 4), torch.arange(37) % 5
    monkeypatch.setattr(sums, "STEP_NUMBERS", 20)  # five rows
    assert_classes(classified(rows, labels, 5), rows, labels, 5)
    assert_classes(classified(rows, labels.sort().values, 5), rows, labels.sort().values, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_classes_of_few_bits_have_means_in_float64(dtype):
    rows, labels = torch.randint(0, 256, (300, 4)).to(dtype), torch.arange(300) % 7
    found = LevelSums.of(rows, correlated=True, labels=labels, classes=7)
    assert_classes(found, rows.double(), labels, 7)


@pytest.mark.parametrize("centre", [0.0, 3.0, 1e9])
def test_classes_of_a_part_are_taken_out(centre):
    """One of which has no other points, and one of which no points are taken out."""
    rows, labels = eighths(60), torch.arange(60) % 3
    labels[:10], labels[50:] = 3, 4
    whole, part = (classified(rows[:n], labels[:n], 6, centre) for n in (60, 25))
    left = whole.without(part, max_ratio=1e6)
    assert_classes(left, rows[25:], labels[25:], 6, centre)
    assert_sums(left, rows[25:], centre)


def test_all_but_a_rest_of_a_class_may_be_taken_out():
    """20 of 1,020 points of a class are left, while half of all points are: numbers of points are exact."""
    rows, labels = eighths(2040), torch.cat([torch.zeros(1020), torch.ones(1020)]).long()
    whole, part = (classified(rows[each], labels[each], 2) for each in (slice(0, None), slice(0, 1000)))
    assert_classes(whole.without(part, max_ratio=10), rows[1000:], labels[1000:], 2)


def test_points_of_a_class_that_were_not_fitted_are_not_taken_out():
    """The same rows, with other labels: more of one class than there are."""
    rows, labels = eighths(60), torch.cat([torch.zeros(5), torch.ones(55)]).long()
    part = classified(rows[:10], torch.zeros(10, dtype=torch.int64), 2)
    with pytest.raises(DataError, match="cannot be taken out"):
        classified(rows, labels, 2).without(part, max_ratio=1e6)


@pytest.mark.parametrize("labels, classes", [(None, 3), (torch.arange(9) % 3, 0)])
def test_without_labels_or_classes_there_are_no_means_of_classes(labels, classes):
    found = LevelSums.of(eighths(9), correlated=True, labels=labels, classes=classes)
    assert not found.has_classes
    both = found + found
    assert both.class_counts.shape == (0,) and both.class_means.shape == (0, 0)
    assert both.without(found, 10.0).class_means.shape == (0, 0)


# ---- columns that never vary


@pytest.mark.parametrize("n", [3, 1000, 10_000, 300_000])
@pytest.mark.parametrize("value", CONSTANTS)
def test_a_column_of_one_number_does_not_vary(value, n):
    """Their plain mean is off by some hundred roundings from 10,000 rows on."""
    rows = torch.randn(n, 2, dtype=torch.float64)
    rows[:, 1] = value
    found = LevelSums.of(rows, correlated=False)
    assert found.varies().tolist() == [True, False]
    parts = [LevelSums.of(part, correlated=False) for part in rows.split(max(1, n // 100))]
    assert sum(parts[1:], parts[0]).varies().tolist() == [True, False]


@pytest.mark.parametrize("value", CONSTANTS)
def test_a_column_that_moves_in_its_last_digits_varies(value):
    """By 1e-12 of it: more than the rounding of a mean, and all that float64 data may differ by."""
    rows = torch.full((50, 1), value, dtype=torch.float64)
    rows[:25] += 1e-12 * (abs(value) or 1.0)
    assert LevelSums.of(rows, correlated=False).varies().tolist() == [True]


@pytest.mark.parametrize("way", ["one batch", "batches", "without a part"])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("value", [each for each in CONSTANTS if each < 6e4])
def test_features_that_are_rounded_in_another_way_in_each_batch_do_not_vary(value, dtype, way):
    """A network multiplies batches of other sizes in other orders: by a rounding or two from each other."""
    rows = torch.randn(400, 3, dtype=torch.float64).to(dtype)
    rows[:, 1] = value
    rows[:150, 1] *= 1 + torch.finfo(dtype).eps
    rows[250:, 1] *= 1 - torch.finfo(dtype).eps
    sums = [LevelSums.of(part, correlated=True) for part in rows.split([400] if way == "one batch" else 50)]
    found = sum(sums[1:], sums[0])
    if way == "without a part":
        found = found.without(sums[-1], max_ratio=100)
    assert len({*rows[:, 1].tolist()}) == (3 if value else 1)
    assert found.varies().tolist() == [True, False, True]
    expected = abs(float(rows[200, 1])) / 64 or float(found.deviations()[[0, 2]].min())
    # The mean of what is left has other roundings than the constant.
    assert float(found.deviations()[1]) == pytest.approx(expected, rel=2 * torch.finfo(dtype).eps)


def test_the_rounding_of_a_sum_is_the_largest_of_its_parts():
    kinds = torch.float64, torch.float32, torch.bfloat16, torch.uint8
    precise, single, brain, whole = (
        LevelSums.of(torch.ones(3, 2).to(each), correlated=False) for each in kinds
    )
    assert float(precise.rounding) == float(whole.rounding) == 2.0**-52
    assert float((precise + single).rounding) == float((single + whole).rounding) == 2.0**-23
    assert float((single + brain + precise).without(precise, 100).rounding) == 2.0**-7


@KINDS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", CONSTANTS)
def test_a_column_of_one_number_has_its_64th_as_deviation(value, dtype, correlated):
    rows = torch.randn(500, 4, dtype=torch.float64).to(dtype)
    rows[:, 2] = value
    found = LevelSums.of(rows, correlated=correlated).deviations()
    others = found[[0, 1, 3]].median()
    expected = abs(float(rows[0, 2])) / 64 or float(others)
    assert float(found[2]) == pytest.approx(expected, rel=1e-14)
    torch.testing.assert_close(found, residual_deviations(rows, correlated), rtol=1e-13, atol=0)


@KINDS
@pytest.mark.parametrize("at_zero", [1.0, 0.25, 2.0**-6])
def test_a_column_of_zeros_has_a_share_of_the_median_deviation(at_zero, correlated):
    rows = torch.randn(500, 5, dtype=torch.float64) * torch.tensor([1.0, 0.0, 3.0, 9.0, 0.0])
    rows[:, 4] = -0.7
    found, plain = (LevelSums.of(rows, correlated=correlated).deviations(*each) for each in ((at_zero,), ()))
    torch.testing.assert_close(found, residual_deviations(rows, correlated, at_zero), rtol=1e-13, atol=0)
    assert float(found[1]) == at_zero * float(plain[2]) and float(found[4]) == 0.7 / 64
    assert torch.equal(found[[0, 2, 3, 4]], plain[[0, 2, 3, 4]])


def test_where_nothing_varies_every_deviation_is_known():
    found = LevelSums.of(torch.tensor([[0.0, -3.2]], dtype=torch.float64).repeat(4, 1), correlated=True)
    assert found.deviations().tolist() == [1.0, 3.2 / 64]
    assert found.deviations(0.5).tolist() == [0.5, 3.2 / 64]
    torch.testing.assert_close(found.correlations(), torch.eye(2, dtype=torch.float64), rtol=0, atol=0)


# ---- deviations and correlations


@KINDS
def test_deviations_do_not_depend_on_units(correlated):
    """Each column times its own factor; one of them is not 0 in 12 of 600 points."""
    train = torch.randn(600, 5, dtype=torch.float64)
    train[:, 4] = 0
    train[:12, 4] = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(6)
    units = torch.tensor([1e-8, 1.0, 1e3, 1e9, 1e-5], dtype=torch.float64)
    found = LevelSums.of(train * units, correlated=correlated).deviations()
    plain = LevelSums.of(train, correlated=correlated).deviations()
    torch.testing.assert_close(found, plain * units, rtol=1e-12, atol=0)
    torch.testing.assert_close(found, residual_deviations(train * units, correlated), rtol=1e-12, atol=0)


def test_with_correlations_they_are_the_standard_deviations_of_plain_columns():
    """Columns of a kurtosis of less than 30: a normal one, one of two values, and one that is often 0."""
    train = torch.randn(600, 3, dtype=torch.float64)
    train[:, 1], train[:, 2] = train[:, 1].sign(), train[:, 2].relu()
    found = LevelSums.of(train, correlated=True).deviations()
    torch.testing.assert_close(found, train.std(0, correction=0), rtol=1e-13, atol=0)


@pytest.mark.parametrize("active, rare", [(12, True), (30, True), (32, False), (100, False), (988, True)])
def test_with_correlations_a_rare_column_has_a_thirtieth_of_the_square_of_its_size(active, rare):
    """Of 1,000 points, with the share p at v: the variance is q = p(1 − p) of v², the fourth q(1 − 3q) of v⁴.

    So the ratio of the two over 30 is larger than the variance for q < 1/33.
    """
    train = torch.randn(1000, 2, dtype=torch.float64)
    train[:, 1] = 0
    train[:active, 1] = 7.0
    q = active / 1000 * (1 - active / 1000)
    assert rare == (q < 1 / 33)
    found = float(LevelSums.of(train, correlated=True).deviations()[1])
    assert found == pytest.approx(7 * math.sqrt((1 - 3 * q) / 30 if rare else q), rel=1e-12)


def test_the_excess_of_a_rare_column_is_variance_of_its_own():
    """So the diagonal is 1, and what goes with other columns is in units of the larger deviation."""
    train = torch.randn(1000, 3, dtype=torch.float64)
    train[:, 1] += train[:, 0]
    train[:, 2] = torch.where(torch.arange(1000) < 15, train[:, 0].abs() + 3, 0.0)
    sums = LevelSums.of(train, correlated=True)
    found, deviations = sums.correlations(), sums.deviations()
    assert float(deviations[2]) > 1.2 * float(train[:, 2].std(correction=0))
    assert found.diagonal().tolist() == pytest.approx([1.0] * 3, rel=1e-15)
    own = torch.from_numpy(numpy.cov(train.T.numpy(), ddof=0)) / torch.outer(deviations, deviations)
    kept = found[0, 1] / own[0, 1]  # 1 minus the share of the shrinkage
    assert 0 < float(kept) < 1
    for i, j in ((0, 2), (1, 2)):
        assert float(found[i, j] / own[i, j]) == pytest.approx(float(kept), rel=1e-10)


@KINDS
def test_columns_that_vary_in_few_points_have_the_floor_of_all(correlated):
    train = torch.randn(600, 3, dtype=torch.float64)
    train[:, 1:] = 0
    train[:3, 1], train[:3, 2] = 1e-3, 1e3  # three points are too few to know
    found = LevelSums.of(train, correlated=correlated).deviations()
    floor = float(train.var(0, correction=0).mean().sqrt())
    squares, fourths = (
        1e3**power * (3 * (1 - 3 / 600) ** power + 597 * (3 / 600) ** power) / 600 for power in (2, 4)
    )
    own = math.sqrt(fourths / squares / 30) if correlated else fourths**0.25
    assert float(found[1]) == pytest.approx(floor, rel=1e-12)
    assert float(found[2]) == pytest.approx(max(own, floor), rel=1e-12) and own > floor


def mixed(n, d):
    """Correlated columns in units of their own, one of which never varies."""
    rows = torch.randn(n, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64)
    rows = rows * torch.logspace(-3, 3, d, dtype=torch.float64) + 5
    rows[:, d // 2] = 0.3
    return rows


@pytest.mark.parametrize("n, d", [(5, 1), (4, 3), (200, 3), (8, 20), (400, 20)])
def test_correlations_are_those_of_a_plain_loop(n, d):
    rows = mixed(n, d)
    found = LevelSums.of(rows, correlated=True).correlations()
    torch.testing.assert_close(found, residual_correlations(rows), rtol=1e-11, atol=1e-13)


def test_they_are_shrunk_as_by_scikit_learn():
    """It leaves out 2/d of the formula, so that the shares differ by as much, relative to themselves."""
    n, d = 300, 100
    rows = torch.randn(n, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64)
    found = LevelSums.of(rows, correlated=True)
    standard = ((rows - rows.mean(0)) / found.deviations()).numpy()
    _, share = sklearn.covariance.oas(standard, assume_centered=True)
    moments = torch.from_numpy(standard.T @ standard / n)
    away, left = ((each - torch.eye(d)).norm() for each in (moments, found.correlations()))
    ours = float(1 - left / away)
    assert 0.05 < share < 0.95
    assert ours == pytest.approx(share, rel=2 / d + 2 / (d * n)) and ours != share


def test_columns_in_other_units_have_the_same_correlations():
    rows = mixed(100, 6)
    units = torch.logspace(-6, 6, 6, dtype=torch.float64)
    one, other = (LevelSums.of(each, correlated=True).correlations() for each in (rows, rows * units))
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_independent_columns_of_many_points_are_hardly_shrunk_and_never_less_than_a_bit():
    """Two columns of one number each time: their directions would have no length at all."""
    rows = torch.randn(200_000, 1, dtype=torch.float64).repeat(1, 2)
    values = torch.linalg.eigvalsh(LevelSums.of(rows, correlated=True).correlations())
    assert values.tolist() == pytest.approx([1e-4, 2 - 1e-4], rel=1e-6)


@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("size", [40, 3])
def test_weights_count_rows_as_often(correlated, size):
    """Whole weights are repeated rows, for all sums, and parts with no weight at all add nothing."""
    rows, labels, weights = eighths(40), torch.arange(40) % 4, torch.arange(40) % 3
    weights[:6] = 0
    options = {"correlated": correlated, "classes": 4}
    parts = zip(*(torch.split(each, size) for each in (rows, labels, weights)), strict=True)
    first, *others = (LevelSums.of(x, labels=y, weights=w.double(), **options) for x, y, w in parts)
    found = sum(others, first)
    wanted = LevelSums.of(
        rows.repeat_interleave(weights, 0), labels=labels.repeat_interleave(weights), **options
    )
    for name, tensor in wanted.tensors().items():
        torch.testing.assert_close(found.tensors()[name], tensor, rtol=1e-12, atol=1e-11)
