"""Distances from the data and their classes: against plain formulas in float64, far away, at constants."""

import math
from dataclasses import replace

import numpy
import pytest
import sklearn.covariance
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitbayes.precision import prediction_dtype
from bitbayes.residual import ClassDistance, Distance, LevelSums
from reference import (
    class_covariances,
    class_distances,
    residual_distances,
    residual_kernel,
)

CPU = torch.device("cpu")
CONSTANTS = [0.0, 0.1, 0.3, -7.3, 1 / 3, 1e6 + 0.1]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
KINDS = pytest.mark.parametrize("correlated", [True, False], ids=["correlated", "uncorrelated"])


def distance(train, dtype, correlated):
    return Distance.of(LevelSums.of(train, correlated=correlated), CPU, dtype)


def measured(x, train, correlated):
    """The distances of x, in the precision of predictions at x."""
    return distance(train, prediction_dtype(x.dtype), correlated)(x)


def rounding(x, train, correlated):
    """What float32 may lose, (n,): d + 3 roundings, relative to the sizes of what is summed up."""
    sums = LevelSums.of(train, correlated=correlated)
    exact = Distance.of(sums, CPU, torch.float64)
    gaps = (x.double() - sums.mean).abs()
    sizes = gaps @ exact.matrix.abs() if correlated else gaps * exact.matrix
    # The mean loses nothing: it has two parts.
    return (x.shape[1] + 3) * 2.0**-24 * float(exact.unit) * sizes.norm(2 if correlated else 3, dim=1)


def mixed(n=80, d=6):
    """Columns that depend on each other, in units far apart; one never varies, one varies in few points."""
    rows = torch.randn(n, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64)
    rows = rows * torch.logspace(-2, 2, d, dtype=torch.float64) + 5
    rows[:, 1], rows[4:, 2] = 0.3, 5
    return rows


@KINDS
@pytest.mark.parametrize("n", [3, 80, 1000])
def test_they_are_the_formula(n, correlated):
    train, x = mixed(n), 5 + 10 * torch.randn(7, 6, dtype=torch.float64)
    found = measured(x, train, correlated)
    assert found.shape == (7,) and found.dtype == torch.float64
    torch.testing.assert_close(found, residual_distances(x, train, correlated), rtol=1e-11, atol=0)


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
def test_numbers_of_fewer_bits_are_measured_to_the_rounding_of_float32(dtype, correlated):
    train, x = torch.randint(0, 64, (50, 6)).to(dtype), torch.randint(0, 250, (9, 6)).to(dtype)
    train[:, 1] = 7
    found, wanted = measured(x, train, correlated), residual_distances(x, train.double(), correlated)
    assert found.dtype == torch.float64
    assert bool(((found - wanted).abs() <= rounding(x, train, correlated)).all())


@KINDS
def test_a_mean_of_many_deviations_costs_no_digits(correlated):
    """Float32 holds these integers, but their mean only to 5e-4."""
    train = 10_000 + torch.randint(0, 3, (50, 20)).float()
    x = 10_000 + torch.randint(0, 3, (7, 20)).float()
    found, wanted = measured(x, train, correlated), residual_distances(x, train, correlated)
    assert bool(((found - wanted).abs() <= rounding(x, train, correlated)).all())
    assert float((rounding(x, train, correlated) / wanted).max()) < 1e-5


@KINDS
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e12, 1e13, 1e20, 1e36])
def test_no_square_and_no_cube_leaves_float32(size, correlated):
    """Inputs whose cubes are no numbers of float32; small deviations bring x̂ itself out of its range."""
    train = torch.randn(50, 6) * torch.tensor([1e-5, 1.0, 1.0, 1.0, 1.0, 1e3])
    x = size * torch.randn(9, 6)
    found, wanted = measured(x, train, correlated), residual_distances(x, train.double(), correlated)
    assert bool(found.isfinite().all()) and bool(found.pow(3).isfinite().all())
    assert bool(((found - wanted).abs() <= rounding(x, train, correlated)).all())


@KINDS
@pytest.mark.parametrize("size", [1.0, 1e10, 1e19, 1e25, 1e36])
def test_gradients_are_finite_far_away(size, correlated):
    """Squares of inputs from 1e19 on leave float32."""
    train = torch.randn(40, 4)
    x = (size * torch.randn(5, 4)).requires_grad_()
    measured(x, train, correlated).log().sum().backward()
    assert bool(x.grad.isfinite().all())
    if size > 1e6:  # log d grows by 1 with the logarithm of the size, up to the mean
        along = (x.grad * x.detach()).sum(1)
        torch.testing.assert_close(along, torch.ones_like(along), rtol=1e-4, atol=0)


@KINDS
def test_they_are_differentiable(correlated):
    train, x = mixed(), (5 + torch.randn(4, 6, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(distance(train, torch.float64, correlated), x)


@KINDS
def test_at_the_mean_they_are_zero_and_have_a_gradient(correlated):
    x = torch.zeros(2, 3, requires_grad=True)
    found = measured(x, torch.cat([torch.ones(10, 3), -torch.ones(10, 3)]), correlated)
    found.pow(3).sum().backward()
    assert found.tolist() == [0.0, 0.0] and not x.grad.any()


@KINDS
def test_coordinates_have_the_distance_as_their_norm(correlated):
    train, x = mixed(), 5 + torch.randn(7, 6, dtype=torch.float64)
    exact = distance(train, torch.float64, correlated)
    here, there = (exact.unit * exact.scaled(exact.gaps(each)) for each in (x, 3 * x))
    torch.testing.assert_close(exact.gaps(x), x - train.mean(0), rtol=1e-12, atol=1e-12)
    expected = residual_distances(x, train, correlated)
    torch.testing.assert_close(here.norm(2 if correlated else 3, dim=1), expected, rtol=1e-11, atol=0)
    assert torch.equal(exact.norm(exact.gaps(x)), exact(x))
    # Slopes have no mean: the coordinates of a difference are the difference of coordinates.
    torch.testing.assert_close(exact.unit * exact.scaled(2 * x), there - here, rtol=1e-9, atol=1e-9)


@KINDS
def test_the_mean_square_and_cube_of_the_data_are_near_one_deviation(correlated):
    """Of many normal points: E d² = tr(S⁻¹S)/d = 1, and E d³ = E|x̂|³/3 = √(8/π)/3/3^¾."""
    train = torch.randn(20_000, 5, dtype=torch.float64)
    found = measured(train, train, correlated)
    if correlated:
        assert float(found.square().mean()) == pytest.approx(1, rel=1e-3)
    else:
        # Each |x̂|³ has a standard deviation below its mean·1.6, and 100,000 of them are averaged.
        assert float(found.pow(3).mean()) == pytest.approx(math.sqrt(8 / math.pi) / 3 / 3**0.75, rel=0.03)


@KINDS
def test_an_autocast_changes_nothing(correlated):
    """A product would be in bfloat16."""
    train, x = torch.randn(60, 8), 3 * torch.randn(9, 8)
    plain = measured(x, train, correlated)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(measured(x, train, correlated), plain)


def test_uncorrelated_ones_have_the_kernel_of_infinitely_many_features_as_their_cube():
    train, x = mixed(), 5 + 10 * torch.randn(7, 6, dtype=torch.float64)
    found = measured(x, train, False).pow(3)
    torch.testing.assert_close(found, residual_kernel(x, train), rtol=1e-12, atol=0)


def test_a_column_of_far_larger_numbers_still_counts():
    """In float32 its weight beside the other column's would be 0."""
    train = torch.randn(50, 2, dtype=torch.float64) * torch.tensor([1e-30, 1e25])
    near, far = (torch.tensor([[0.0, size]]) for size in (1e25, 1e36))
    found = distance(train, torch.float32, False)
    assert 0 < float(found(near)) < float(found(far))


# ---- columns that never vary


def with_constant(value, dtype, n=400, d=8):
    """Numbers of deviation 1, of which the last column is constant."""
    rows = torch.randn(n, d, dtype=torch.float64).to(dtype)
    rows[:, -1] = value
    return rows


def moved(rows, change):
    """The rows with their last column changed, where their precision allows it."""
    rows = rows.clone()
    rows[:, -1] += change
    assert change == 0 or bool((rows[:, -1] != rows[0, -1] - change).all())
    return rows


@KINDS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", CONSTANTS)
def test_a_constant_that_is_rounded_is_near(value, dtype, correlated):
    """By 2⁻⁶ of it, more than bfloat16 rounds by: about one deviation of one column in eight."""
    train = with_constant(value, dtype)
    other = moved(train, float(train[0, -1]) * 2.0**-6)
    before, after = (measured(each, train, correlated) for each in (train, other))
    step = float(other[0, -1] - train[0, -1]) / float(train[0, -1]) * 64 if value else 0.0
    assert step <= 1.25  # a quarter is what bfloat16 may round it by
    if correlated:  # its second moment is 1, as those of all columns are
        assert bool((after.square() - before.square() <= step**2 / 8 + 1e-6).all())
    else:
        assert bool((after.pow(3) - before.pow(3) <= step**3 / 3 / 8 + 1e-6).all())
    assert float(after.mean()) < 1.3 * float(before.mean())


@KINDS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [each for each in CONSTANTS if each])
def test_a_constant_that_has_changed_by_its_size_is_far(value, dtype, correlated):
    """64 deviations of one column in eight: 64/√8 = 22.6, and 64/24^⅓ = 22.2."""
    train = with_constant(value, dtype)
    found = measured(moved(train, float(train[0, -1])), train, correlated)
    assert bool((found > 22).all()) and float(measured(train, train, correlated).max()) < 3


@KINDS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3])
def test_a_small_constant_that_has_changed_by_a_typical_deviation_is_far(value, dtype, correlated):
    """One of 64·1/value deviations, at least 190: 190/√8 = 67 and 190/24^⅓ = 65."""
    train = with_constant(value, dtype)
    assert bool((measured(moved(train, 1.0), train, correlated) > 65).all())


@KINDS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_column_of_zeros_is_measured_like_one_that_varies(dtype, correlated):
    """The others have deviation 1, or 3^¼, so that 64 of them are as far as a constant twice its size."""
    train = with_constant(0.0, dtype)
    found = measured(moved(train, 64 * (1 if correlated else 3**0.25)), train, correlated)
    assert bool((found > 20).all()) and bool((found < 26).all())


@KINDS
@pytest.mark.parametrize("value", CONSTANTS)
def test_constants_of_many_rows_are_the_formula_too(value, correlated):
    """Means of 20,000 equal numbers are off by a thousand roundings if these are summed up."""
    few = with_constant(value, torch.float64, n=400)
    many = few.repeat(50, 1)
    x = moved(few, float(few[0, -1]) / 2 + 0.1)
    torch.testing.assert_close(
        measured(x, many, correlated), residual_distances(x, many, correlated), rtol=1e-11, atol=0
    )


# ---- columns that are rarely active


def with_rare(active, n=20_000, d=20, value=4.0):
    """Normal columns, and one that is `value` in the first rows and 0 in all others."""
    rows = torch.randn(n, d, dtype=torch.float64)
    rows[:, -1] = torch.where(torch.arange(n) < active, value, 0.0)
    return rows


def test_a_column_that_is_active_in_one_of_a_thousand_points_is_not_far_when_it_is():
    """It adds 30 to the sum of 20 squares, for a mean square of 2.5 and not of 1,000/20."""
    train = with_rare(20)
    found = measured(train[:20], train, True)
    torch.testing.assert_close(found, residual_distances(train[:20], train, True), rtol=1e-11, atol=0)
    assert float(found.square().mean()) == pytest.approx((19 + 30) / 20, rel=0.15)  # of 380 squares
    assert float(measured(train[20:], train, True).square().mean()) == pytest.approx(19 / 20, rel=0.01)
    # Where it is twice as large as ever before, it counts four times as much.
    twice = train[:20] + torch.eye(20, dtype=torch.float64)[-1] * 4.0
    assert float(measured(twice, train, True).square().mean()) == pytest.approx((19 + 120) / 20, rel=0.1)


def test_a_column_that_is_active_in_one_of_ten_points_has_its_standard_deviation():
    """Active, it is (1 − p)v/√(p(1 − p))/v = 3 deviations away, with p = 1/10."""
    train = with_rare(2000)
    x = torch.cat([train[:, :-1].mean(0), train[:1, -1]])[None]
    assert float(measured(x, train, True).square()) == pytest.approx(9 / 20, rel=0.01)


def test_of_plain_columns_they_are_the_mahalanobis_distance():
    """Of numpy, by the covariance that is shrunk as found; and nearly that of scikit-learn, without it."""
    n, d = 20_000, 3
    train = (
        torch.randn(n, d, dtype=torch.float64)
        @ torch.tensor([[1.0, 0.9, 0.0], [0.0, 1.0, -0.8], [0.0, 0.0, 1.0]], dtype=torch.float64)
        * torch.tensor([1e-3, 1.0, 1e4])
    )
    x = 3 * train[:9] + 1
    correlations = numpy.corrcoef(train.T.numpy())
    share = 1 - float(LevelSums.of(train, correlated=True).correlations()[0, 1]) / correlations[0, 1]
    assert 1e-5 < share < 1e-3
    deviations = train.numpy().std(0)
    shrunk = (1 - share) * correlations + share * numpy.eye(d)
    inverse = numpy.linalg.inv(shrunk * numpy.outer(deviations, deviations))
    gaps, found = (x - train.mean(0)).numpy(), measured(x, train, True)
    wanted = torch.from_numpy(numpy.sqrt(numpy.einsum("ni,ij,nj->n", gaps, inverse, gaps) / d))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=0)
    plain = sklearn.covariance.EmpiricalCovariance().fit(train.numpy()).mahalanobis(x.numpy())
    # The smallest eigenvalue changes by at most share/smallest of itself, and the distance by half of that.
    loss = share / float(numpy.linalg.eigvalsh(correlations)[0])
    torch.testing.assert_close(found, torch.from_numpy(numpy.sqrt(plain / d)), rtol=loss, atol=0)


def test_one_plain_column_is_measured_in_standard_deviations():
    train = 3 + 7 * torch.randn(500, 1, dtype=torch.float64)
    found, x = measured(train, train, True), train.numpy()
    expected = torch.from_numpy(numpy.abs(x - x.mean())[:, 0] / x.std())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


# ---- distances from the classes

# Of each case: the labels in use, the features, and the points of each label. The first is used by k points,
# the second by twice as many, and so on, if sizes differ.
CLASSES = {
    "two": (2, 5, 100, False),
    "five": (5, 8, 60, False),
    "as many as features": (5, 5, 60, False),
    "more than features": (7, 4, 50, False),
    "a hundred": (100, 20, 20, False),
    "unequal sizes": (5, 8, 20, True),
    "one feature": (3, 1, 60, False),
}


def classes_of(k, d, count, unequal, spread=1.5):
    """Rows of classes with a covariance in common, whose means are `spread` deviations from each other."""
    labels = torch.cat([torch.full((count * (1 + label * unequal),), label) for label in range(k)])
    mix = torch.eye(d, dtype=torch.float64) + 0.3 * torch.randn(d, d, dtype=torch.float64)
    means = spread * torch.randn(k, d, dtype=torch.float64)
    rows = (means[labels] + torch.randn(len(labels), d, dtype=torch.float64)) @ mix
    order = torch.randperm(len(labels))
    return rows[order] * torch.logspace(-2, 2, d, dtype=torch.float64) + 5, labels[order]


def class_distance(train, labels, dtype=torch.float64, classes=None):
    """With the classes up to the largest label, or with more."""
    classes = classes or int(labels.max()) + 1
    sums = LevelSums.of(train, correlated=True, labels=labels, classes=classes)
    return ClassDistance.of_classes(sums, CPU, dtype)


def around(train, n=25, size=2.0):
    """Points of the training data that are moved by `size` deviations of it, and the first as they are."""
    moves = size * train.std(0) * torch.randn(n, train.shape[1], dtype=torch.float64)
    return torch.cat([train[:n], train[:n] + moves])


def assert_same_squares(found, wanted, tolerance=1e-10):
    """To this much of the largest: a square of a distance is a difference of sums."""
    assert found.shape == wanted.shape and found.dtype == torch.float64
    gap = float((found.square() - wanted.square()).abs().max())
    assert gap <= tolerance * float(wanted.square().max())


@pytest.mark.parametrize("case", CLASSES)
def test_distances_from_classes_are_the_formula(case):
    train, labels = classes_of(*CLASSES[case])
    x = around(train)
    wanted = class_distances(x, train, labels)
    assert bool((wanted == 0).any()) and bool((wanted > 1).any())
    assert_same_squares(class_distance(train, labels)(x), wanted)


@pytest.mark.parametrize("classes", [6, 40])
def test_classes_without_points_do_not_count(classes):
    """Whether they are between the others or after them."""
    train, labels = classes_of(3, 6, 60, True)
    spread = torch.tensor([0, 3, 5])[labels]
    found = class_distance(train, spread, classes=classes)
    assert found.centres.shape == (3, 2)
    x = around(train)
    assert_same_squares(found(x), class_distances(x, train, labels))
    assert torch.equal(found(x), class_distance(train, labels)(x))


@pytest.mark.parametrize("classes", [1, 4])
def test_of_one_class_all_distances_are_zero(classes):
    train = torch.randn(50, 4, dtype=torch.float64)
    labels = torch.full((50,), classes - 1)
    x = (100 * torch.randn(7, 4, dtype=torch.float64)).requires_grad_()
    exact = class_distance(train, labels)
    found = exact(x)
    assert found.tolist() == [0.0] * 7 == class_distances(x.detach(), train, labels).tolist()
    found.sum().backward()
    assert not x.grad.any()
    ends = exact.reach(x.detach(), exact.norm(x.detach()))
    assert [each.tolist() for each in ends] == [[0.0] * 7] * 2


def test_classes_add_to_the_same_distance():
    train, labels = classes_of(*CLASSES["five"])
    parts = zip(train.split(37), labels.split(37), strict=True)
    first, *rest = (LevelSums.of(x, correlated=True, labels=y, classes=5) for x, y in parts)
    found = ClassDistance.of_classes(sum(rest, start=first), CPU, torch.float64)
    x = around(train)
    assert_same_squares(found(x), class_distances(x, train, labels))


def test_what_lies_in_directions_in_which_classes_do_not_differ_does_not_count():
    """v with (μ_c − μ)ᵀ(W + B)⁻¹v = 0 for all classes, whatever its size."""
    train, labels = classes_of(3, 6, 60, False)
    means = torch.stack([train[labels == label].mean(0) for label in range(3)]) - train.mean(0)
    normals = torch.linalg.solve(class_covariances(train, labels)[1], means.T)  # (d, 3)
    across = torch.linalg.svd(normals.T)[2][2:]  # (4, d), orthogonal to all of them
    x, exact = around(train), class_distance(train, labels)
    moved = x + torch.randn(len(x), 4, dtype=torch.float64) @ across
    assert float(Distance.of(LevelSums.of(train, correlated=True), CPU, torch.float64)(moved).max()) > 5
    assert_same_squares(exact(moved), exact(x), 1e-8)  # the rounding of far larger numbers


def test_of_two_plain_classes_on_a_line_they_are_known():
    """Means ±m and variance 1 within: S = 1 + m², so that R = (x − m)² − x²/(1 + m²) for x > 0."""
    m, noise = 3.0, torch.randn(1000, 1, dtype=torch.float64)
    noise = (noise - noise.mean()) / noise.std(correction=0)
    train, labels = torch.cat([noise + m, noise - m]), torch.arange(2000) // 1000
    x = torch.tensor([[0.0], [1.0], [3.0], [-7.0], [100.0]], dtype=torch.float64)
    squares = [(abs(float(each)) - m) ** 2 - float(each) ** 2 / (1 + m**2) for each in x]
    expected = torch.tensor([math.sqrt(max(0, each)) for each in squares], dtype=torch.float64)
    assert squares[2] < 0 < min(squares[0], squares[1], squares[3])
    assert_same_squares(class_distance(train, labels)(x), expected, 1e-12)


def class_rounding(x, train, labels):
    """What float32 may lose of the square of the distance, (n,).

    Coordinates s lose e, which is d + 3 roundings of what is summed up, so that |s − c|² loses
    2|s − c||e| + |e|². The least of all centres loses no more than the one that loses most.
    """
    exact = class_distance(train, labels)
    gaps = x.double() - exact.mean
    lost = (x.shape[1] + 3) * 2.0**-24 * (gaps.abs() @ exact.matrix.abs()).norm(dim=1)
    sizes = torch.cdist(gaps @ exact.matrix, exact.centres).amax(1)
    return (2 * sizes * lost + lost.square()) * exact.unit.square()


@pytest.mark.parametrize("case", ["two", "five", "more than features", "unequal sizes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distances_from_classes_are_known_to_the_rounding_of_float32(dtype, case):
    """Bfloat16 is measured in float32: it is the same formula, of rounded numbers."""
    train, labels = classes_of(*CLASSES[case])
    train = (train - 5) / train.std(0)  # bfloat16 has no digits for a mean of many deviations
    train, x = train.to(dtype), around(train).to(dtype)
    found = class_distance(train, labels, prediction_dtype(dtype))(x)
    wanted = class_distances(x, train, labels)
    assert found.dtype == torch.float64
    lost = class_rounding(x, train.double(), labels)
    assert bool(((found.square() - wanted.square()).abs() <= lost).all())
    if dtype == torch.float32:
        assert float(lost.max()) < 1e-3 * float(wanted.square().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e12, 1e20, 1e36])
def test_distances_from_classes_are_finite_far_away(size, dtype):
    train, labels = classes_of(4, 6, 50, False)
    train = train.to(dtype)
    x = (size * torch.randn(9, 6, dtype=torch.float64)).to(dtype).requires_grad_()
    found = class_distance(train, labels, dtype)(x)
    assert bool(found.isfinite().all()) and bool(found.pow(3).isfinite().all())
    lost = class_rounding(x.detach(), train.double(), labels)
    gap = (found.square() - class_distances(x.detach(), train, labels).square()).abs()
    assert bool((gap <= lost).all())
    found.clamp_min(1e-9).log().sum().backward()
    assert bool(x.grad.isfinite().all())
    if size > 1e6:  # log d grows by 1 with the logarithm of the size, up to the means
        along = (x.grad * x.detach()).sum(1)
        torch.testing.assert_close(along, torch.ones_like(along), rtol=1e-3, atol=0)


def test_distances_from_classes_are_differentiable():
    train, labels = classes_of(4, 5, 50, False)
    exact, x = class_distance(train, labels), around(train)
    far = x[exact(x) > 0.3][:6].clone().requires_grad_()
    assert len(far) == 6 and torch.autograd.gradcheck(exact, far)
    near = x[exact(x) == 0][:6].clone().requires_grad_()
    found = exact(near)
    found.sum().backward()
    assert len(near) == 6 and not found.any() and not near.grad.any()


def test_at_the_means_of_classes_they_are_zero():
    """There R = −(μ_c − μ)ᵀS⁻¹(μ_c − μ)."""
    train, labels = classes_of(5, 8, 60, True)
    means = torch.stack([train[labels == label].mean(0) for label in range(5)])
    assert class_distance(train, labels)(means).tolist() == [0.0] * 5


def test_columns_in_other_units_have_the_same_distances_from_classes():
    train, labels = classes_of(4, 6, 50, False)
    units = torch.logspace(-9, 9, 6, dtype=torch.float64)
    x = around(train)
    found = class_distance(train * units, labels)(x * units)
    assert_same_squares(found, class_distance(train, labels)(x))


def test_a_mean_of_many_deviations_costs_distances_from_classes_no_digits():
    """Float32 holds these integers, but their means only to 5e-4."""
    labels = torch.arange(300) % 3
    train = (10_000 + torch.randint(0, 3, (300, 6)) + 2 * labels[:, None]).float()
    x = (10_000 + torch.randint(0, 9, (7, 6))).float()
    found, wanted = class_distance(train, labels, torch.float32)(x), class_distances(x, train, labels)
    lost = class_rounding(x, train.double(), labels)
    assert bool(((found.square() - wanted.square()).abs() <= lost).all())
    assert float(lost.max()) < 1e-4 * float(wanted.square().max())


def test_constant_and_rare_columns_count_for_classes_as_for_the_data():
    train, labels = classes_of(4, 6, 300, False)
    train[:, 1], train[:, 4] = 0.3, 0.0
    train[:20, 4] = 2.0
    x = around(train)
    assert_same_squares(class_distance(train, labels)(x), class_distances(x, train, labels))


def test_an_autocast_changes_nothing_of_the_distance_from_classes():
    train, labels = classes_of(4, 6, 50, False)
    x, exact = around(train).float(), class_distance(train, labels, torch.float32)
    plain = exact(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(exact(x), plain)


# ---- how far features within a radius may be


@pytest.mark.parametrize("kind", ["correlated", "uncorrelated", "classes"])
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 9),
    d=st.integers(1, 6),
    size=st.sampled_from([0.0, 1e-3, 0.3, 3.0, 1e4]),
    radius=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 30.0, 1e5]),
)
def test_every_point_within_a_radius_has_its_distance_within_the_ends(kind, seed, k, d, size, radius):
    torch.manual_seed(seed)
    train, labels = classes_of(k, d, 30, False, spread=1.0)
    exact = class_distance(train, labels) if kind == "classes" else None
    exact = exact or distance(train, torch.float64, kind == "correlated")
    middle = train.mean(0) + size * train.std(0) * torch.randn(5, d, dtype=torch.float64)
    moves = torch.randn(40, 5, d, dtype=torch.float64) * train.std(0)
    sizes = exact.norm(moves.reshape(-1, d)).reshape(40, 5, 1)
    shares = torch.rand(40, 5, 1, dtype=torch.float64) ** 0.3
    shares[:20] = 1  # at the radius itself
    moves = moves * torch.where(sizes > 0, radius * shares / sizes, 1.0)
    radii = torch.full((5,), radius, dtype=torch.float64)
    least, largest = exact.reach(middle, radii)
    found = torch.stack([exact(middle + each) for each in moves])
    # The square of the distance from a class is a difference of sums, so that squares are compared: up to
    # roundings of the features and of these.
    sizes = replace(exact, matrix=exact.matrix.abs()).norm(middle.abs() + moves.abs().amax(0)) + radius
    noise = 1e-14 * sizes.square()
    if kind == "classes":
        noise = noise + 1e-14 * exact.offsets.amax() * exact.unit.square()
    assert bool((found.square() >= least.square() - noise).all())
    assert bool((found.square() <= largest.square() + noise).all())
    assert bool((least >= 0).all()) and bool((least <= largest).all())
    if radius == 0:
        assert bool(((largest.square() - least.square()) <= noise).all())


@KINDS
def test_the_ends_of_a_distance_are_reached(correlated):
    """Along the gap itself, towards the mean and away from it."""
    train, middle = mixed(), 5 + 10 * torch.randn(7, 6, dtype=torch.float64)
    exact = distance(train, torch.float64, correlated)
    radius = exact(middle) * torch.linspace(0.1, 0.9, 7, dtype=torch.float64)
    gaps = exact.gaps(middle) * (radius / exact(middle))[:, None]
    for end, x in zip(exact.reach(middle, radius), (middle - gaps, middle + gaps), strict=True):
        torch.testing.assert_close(exact(x), end, rtol=1e-11, atol=0)
    least, _ = exact.reach(middle, 2 * exact(middle))
    assert least.tolist() == [0.0] * 7


def test_the_ends_of_a_distance_from_classes_are_reached_where_one_class_is_nearest():
    """On a line, beyond all classes: d² = w(x − c)² − number, with x moved by the radius."""
    train, labels = classes_of(2, 1, 200, False)
    exact = class_distance(train, labels)
    middle = train.mean(0) + 50 * train.std(0) * torch.ones(1, 1, dtype=torch.float64)
    step = 5 * train.std(0)[None]
    for end, x in zip(exact.reach(middle, exact.norm(step)), (middle - step, middle + step), strict=True):
        torch.testing.assert_close(exact(x), end, rtol=1e-10, atol=0)
