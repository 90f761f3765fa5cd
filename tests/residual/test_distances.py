"""Distances from the data: against plain formulas in float64, in every precision, far away, at constants."""

import math

import pytest
import torch

from bitbayes.precision import prediction_dtype
from bitbayes.residual import Distance, LevelSums, coordinates, norm_power
from reference import residual_distances, residual_kernel

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
    return (x.shape[1] + 3) * 2.0**-24 * float(exact.unit) * sizes.norm(norm_power(sums), dim=1)


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
    sums = LevelSums.of(train, correlated=correlated)
    assert norm_power(sums) == (2.0 if correlated else 3.0)
    found = coordinates(sums, x, centred=True).norm(norm_power(sums), dim=1)
    torch.testing.assert_close(found, residual_distances(x, train, correlated), rtol=1e-11, atol=0)
    # Slopes have no mean: the coordinates of a difference are the difference of coordinates.
    here, there = (coordinates(sums, each, centred=True) for each in (x, 3 * x))
    torch.testing.assert_close(coordinates(sums, 2 * x, centred=False), there - here, rtol=1e-9, atol=1e-9)


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
    if correlated:  # its second moment is 1, and is shrunk towards the others' 1/√3, or with them to 1
        assert bool((after.square() - before.square() <= math.sqrt(3) * step**2 / 8 + 1e-6).all())
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
    """The others have deviation 3^¼, so that 64 of them are as far as a constant twice its size."""
    train = with_constant(0.0, dtype)
    found = measured(moved(train, 64 * 3**0.25), train, correlated)
    assert bool((found > 20).all()) and bool((found < 40).all())


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
