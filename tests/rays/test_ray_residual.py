"""The residual along rays: bounds on cells, and the limits and certificates that follow from them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
from bitbayes.rays.ray_gaussian import INFINITE_SCALE
from bitbayes.rays.ray_residual import CubicLevel, EuclideanLevel
from bitbayes.toys import MLP
from ray_cases import (
    CERTIFIED,
    METHODS,
    NETWORKS,
    chosen_residual,
    deltas,
    fine_grid,
    laplace,
    largest_beyond,
)

# ---- the distance of one level on cells of a ray

# Cubes of larger distances are as good as infinite, and those of smaller ones are 0.
LARGEST, SMALLEST = 1e83, 1e-100
LEVELS = {"euclidean": (2, EuclideanLevel.of), "cubic": (3, CubicLevel)}
RAYS = 24


def lines(seed, slope_size, offset_size, dimensions):
    """Slopes and offsets (n, d): on some rays nothing moves, on some the vertex lies far out."""
    torch.manual_seed(seed)
    slope, offset = torch.randn(2, RAYS, dimensions, dtype=torch.float64)
    slope[::5] = 0
    slope[1::5, 0] = 0
    offset[2::5] = -100 * slope[2::5] * slope_size / offset_size  # the ray hits the mean, at δ = 100
    offset[3::5] = -slope[3::5] + 1e-3 * offset[3::5]  # and passes near it
    return slope * slope_size, offset * offset_size


def dense_distance(slope, offset, delta, power):
    """‖slope·δ + offset‖ (n,) by its definition, for δ (n,); in units of its largest part: some overflow."""
    parts = (slope * delta[:, None] + offset).abs()
    unit = parts.amax(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return unit[:, 0] * (parts / unit).pow(power).sum(1).pow(1 / power)


def rounding(slope, offset, delta):
    """The rounding error of a distance (n,): a few units of the last digit of its largest part."""
    parts = slope.abs() * delta[:, None] + offset.abs()
    return 1e-14 * (1 + slope.shape[1]) * parts.amax(1) + SMALLEST


def grid_of(low, high, extra):
    """δ (m, n) from low to high, evenly and by equal ratios, and the nearest ones to `extra` (e, n)."""
    steps = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
    start = low.clamp_min(1e-9)
    even, ratios = low + steps * (high - low), start * (high / start).clamp_min(1) ** steps
    return torch.cat([even, ratios.clamp(low, high), extra.nan_to_num(0.0).clamp(low, high)])


def cube_root(cubes):
    return cubes.clamp_max(LARGEST**3).pow(1 / 3)


@pytest.mark.parametrize("kind", LEVELS)
@given(
    seed=st.integers(0, 10_000),
    # Slopes whose squares, and whose cubes, are 0 in float64, too.
    slope_size=st.sampled_from([1e-200, 1e-160, 1e-120, 1e-30, 1e-6, 1.0, 1e6]),
    offset_size=st.sampled_from([1e-30, 1e-3, 1.0, 1e8]),
    dimensions=st.integers(1, 5),
    start=st.sampled_from([0.0, 1e-12, 0.3, 90.0, 1e7, 1e40]),
    # Up to the δ that stands for infinity.
    length=st.sampled_from([0.0, 1e-9, 1.0, 25.0, 1e9, INFINITE_SCALE]),
)
@example(seed=0, slope_size=1e-200, offset_size=1.0, dimensions=3, start=0.0, length=INFINITE_SCALE)
@example(seed=0, slope_size=1e-160, offset_size=1.0, dimensions=3, start=1.0, length=INFINITE_SCALE)
def test_no_distance_on_a_cell_is_below_its_bound(
    kind, seed, slope_size, offset_size, dimensions, start, length
):
    power, make = LEVELS[kind]
    slope, offset = lines(seed, slope_size, offset_size, dimensions)
    level, row = make(slope, offset), torch.arange(RAYS)
    low = torch.full((RAYS,), start, dtype=torch.float64)
    high = low + length
    assert torch.equal(level.moves, slope.abs().amax(1) > 0)
    for end in (low, high):
        exact = dense_distance(slope, offset, end, power).clamp_max(LARGEST)
        gap = (cube_root(level.cubes(row, end)) - exact).abs()
        assert bool((gap <= rounding(slope, offset, end)).all())
    # Where the distance is least, and where it is relative to δ: the vertices, which may be anywhere.
    size = slope.abs().amax(1)
    unit = slope / size.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    vertex = -(unit * offset).sum(1) / (unit.square().sum(1) * size)
    relative_vertex = -offset.square().sum(1) / (unit * offset).sum(1) / size
    grid = grid_of(low, high, torch.stack([vertex, relative_vertex]))
    found = torch.stack([dense_distance(slope, offset, delta, power) for delta in grid])
    exact = kind == "euclidean" or length == 0  # then the bound is the least distance
    is_bound(level.smallest(row, low, high), found, grid, slope, offset, exact)
    if start > 0:
        inverse = 1 / grid  # (d/δ) is the distance of slope + offset/δ
        is_bound(level.smallest_relative(row, low, high), found * inverse, inverse, offset, slope, exact)


def is_bound(cubes, found, grid, slope, offset, exact):
    """Assert that the roots of the cubes (n,) are at most all that was found (m, n), up to its rounding."""
    least, place = found.min(0)
    noise = rounding(slope, offset, grid.gather(0, place[None])[0])
    assert bool((cube_root(cubes) <= least.clamp_max(LARGEST) + noise).all())
    assert not exact or bool((cube_root(cubes) >= least.clamp_max(LARGEST) - noise).all())


def several_centres(slope, offset, seed, count, spread):
    """Centres (c, d), one of them at the place of a ray, and numbers (c,), some of them above all squares."""
    generator = torch.Generator().manual_seed(seed)
    size = float(offset.abs().max())
    centres = size * spread * torch.randn(count, offset.shape[1], dtype=torch.float64, generator=generator)
    centres[0] = offset[1]
    numbers = (size * spread) ** 2 * torch.rand(count, dtype=torch.float64, generator=generator)
    numbers[::3] *= 20
    numbers[1::3] = 0
    return centres, numbers


def dense_squares(slope, offset, centres, numbers, delta):
    """|slope·δ + offset − c|² − number (n, c), centre by centre."""
    place = slope * delta[:, None] + offset
    return torch.stack(
        [(place - centre).square().sum(1) - number for centre, number in zip(centres, numbers, strict=True)],
        1,
    )


def dense_square(*case):
    """max(0, min over centres), (n,)."""
    return dense_squares(*case).amin(1).clamp_min(0)


def square_rounding(slope, offset, centres, numbers, delta):
    """The rounding error of a square (n,): of the largest parts that it is a difference of."""
    parts = slope.abs() * delta[:, None] + offset.abs() + centres.abs().amax(0)
    return 1e-14 * (1 + slope.shape[1]) * (parts.square().sum(1) + numbers.amax())


@given(
    seed=st.integers(0, 10_000),
    slope_size=st.sampled_from([1e-6, 1.0, 1e3]),
    offset_size=st.sampled_from([1e-3, 1.0, 1e4]),
    dimensions=st.integers(1, 5),
    count=st.integers(1, 7),
    spread=st.sampled_from([1e-3, 1.0, 30.0]),
    start=st.sampled_from([0.0, 1e-6, 0.3, 90.0, 1e7]),
    length=st.sampled_from([0.0, 1e-6, 1.0, 25.0, 1e9]),
)
@example(seed=0, slope_size=1.0, offset_size=1.0, dimensions=3, count=5, spread=1.0, start=0.3, length=25.0)
def test_no_distance_from_several_centres_is_beyond_its_bounds(
    seed, slope_size, offset_size, dimensions, count, spread, start, length
):
    slope, offset = lines(seed, slope_size, offset_size, dimensions)
    centres, numbers = several_centres(slope, offset, seed, count, spread)
    case = slope, offset, centres, numbers
    level, row = EuclideanLevel.of(*case), torch.arange(RAYS)
    assert level.speed.shape == (RAYS, 1) and level.start.shape == level.rest.shape == (RAYS, count)
    assert level.width == count and torch.equal(level.moves, slope.abs().amax(1) > 0)
    low = torch.full((RAYS,), start, dtype=torch.float64)
    high = low + length
    for end in (low, high):
        gap = level.cubes(row, end).pow(2 / 3) - dense_square(*case, end)
        assert bool((gap.abs() <= square_rounding(*case, end)).all())
    # Where the distance from a centre is least, and where it is relative to δ; these may be anywhere.
    speed = slope.square().sum(1)
    extra = []
    for centre, number in zip(centres, numbers, strict=True):
        along = (slope * (offset - centre)).sum(1)
        extra += [-along / speed, -((offset - centre).square().sum(1) - number) / along]
    grid = grid_of(low, high, torch.stack(extra))
    found = torch.stack([dense_square(*case, delta) for delta in grid])
    noise = torch.stack([square_rounding(*case, delta) for delta in grid])
    smallest, largest = (ask(row, low, high).pow(2 / 3) for ask in (level.smallest, level.largest))
    assert bool((smallest <= found + noise).all()) and bool((largest >= found - noise).all())
    # The smallest one is exact: it is that of a vertex or of an end.
    least, place = found.min(0)
    assert bool((smallest >= least - noise.gather(0, place[None])[0]).all())
    # The largest one is at most that from any one centre, which is at an end.
    ends = torch.stack([dense_squares(*case, end) for end in (low, high)]).amax(0)
    most = torch.maximum(*(square_rounding(*case, end) for end in (low, high)))
    assert bool((largest <= ends.clamp_min(0).amin(1) + most).all())
    if count == 1:
        assert bool((largest <= found.amax(0) + most).all())
    if start > 0:
        relative = level.smallest_relative(row, low, high).pow(2 / 3)
        found, noise = found / grid.square(), noise / grid.square()
        least, place = found.min(0)
        assert bool((relative <= found + noise).all())
        assert bool((relative >= least - noise.gather(0, place[None])[0]).all())


def test_numbers_that_exceed_all_squares_make_distances_zero():
    """Near a centre; far away the squares are larger."""
    slope, offset = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[0.0, 2.0]]).double()
    level = EuclideanLevel.of(slope, offset, torch.zeros(1, 2).double(), torch.tensor([5.0]).double())
    assert level.rest.tolist() == [[-1.0]]
    row, delta = torch.zeros(4, dtype=torch.int64), torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    assert level.cubes(row, delta).tolist() == pytest.approx([0.0, 0.0, 0.0, 8**1.5])
    low, high = (torch.tensor([each], dtype=torch.float64) for each in (0.5, 3.0))
    assert (
        float(level.smallest(row[:1], low, high)) == 0 == float(level.smallest_relative(row[:1], low, high))
    )
    assert float(level.largest(row[:1], low, high)) == pytest.approx(8**1.5)
    # (d/δ)² = 1 − 1/δ² rises from 3/4 at 2.
    two, four = (torch.tensor([each], dtype=torch.float64) for each in (2.0, 4.0))
    assert float(level.smallest_relative(row[:1], two, four)) == pytest.approx(0.75**1.5)


def test_coordinates_without_any_direction_are_at_rest():
    """As those of one class alone."""
    none, row = torch.zeros(3, 0, dtype=torch.float64), torch.arange(3)
    level = EuclideanLevel.of(none, none, torch.zeros(1, 0).double(), torch.zeros(1).double())
    low, high = torch.ones(3, dtype=torch.float64), torch.full((3,), 1e300, dtype=torch.float64)
    assert level.moves.tolist() == [False] * 3
    for found in (level.cubes(row, high), *(ask(row, low, high) for ask in (level.smallest, level.largest))):
        assert found.tolist() == [0.0] * 3
    assert level.smallest_relative(row, low, high).tolist() == [0.0] * 3


@pytest.mark.parametrize("kind", LEVELS)
def test_the_largest_distance_on_a_cell_is_at_an_end(kind):
    power, make = LEVELS[kind]
    slope, offset = lines(1, 1.0, 1.0, 3)
    row, low, high = torch.arange(RAYS), *torch.tensor([[0.2], [7.0]]).double().expand(2, RAYS)
    steps = torch.linspace(0, 1, 51, dtype=torch.float64)[:, None]
    found = torch.stack([dense_distance(slope, offset, each, power) for each in low + steps * (high - low)])
    largest = cube_root(make(slope, offset).largest(row, low, high))
    torch.testing.assert_close(largest, found.amax(0), rtol=1e-12, atol=1e-12)


def test_a_level_that_is_far_from_its_mean_keeps_its_digits():
    """‖offset‖² − along² would cancel: a ray that passes its mean at 1e-3, from 1e8 away."""
    slope = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    offset = -1e8 * slope + 1e-3 * torch.tensor([[0.8, -0.6]], dtype=torch.float64)
    level = EuclideanLevel.of(slope, offset)
    nearest = level.smallest(torch.zeros(1, dtype=torch.int64), *torch.tensor([[0.0], [1e9]]).double())
    assert float(nearest) ** (1 / 3) == pytest.approx(1e-3, rel=1e-4)  # of 5e8, 1e-16 is 5e-8


# ---- limits


@pytest.mark.parametrize("k, method", METHODS)
@pytest.mark.parametrize("name", ["mlp"])
def test_the_limit_with_a_residual_is_uniform(name, k, method):
    bayes, x = laplace(name, k, predictive=method, prior_variance=0.01, residual=True)
    bayes.temperature = 0.5
    limit = bayes.limit(x)
    assert bool((limit.confidence == 1 / max(2, k)).all())
    far = bayes.predict_proba(1e9 * x)
    torch.testing.assert_close(far.amax(1), limit.confidence.to(far), rtol=0, atol=1e-3)
    clear = far.amax(1) > limit.confidence + 1e-9
    assert bool((far.argmax(1) == limit.label)[clear].all())


def test_confidence_approaches_its_limit_like_the_inverse_root_of_delta():
    bayes, x = laplace("mlp", 4, prior_variance=0.01, residual=True)
    gaps = torch.stack([bayes.predict_proba(delta * x).amax(1) - 0.25 for delta in (1e8, 1e10)])
    slopes = (gaps[1] / gaps[0]).log10() / 2
    grows = gaps[0] > 1e-8
    assert grows.sum() > 10
    torch.testing.assert_close(slopes[grows], torch.full_like(slopes[grows], -0.5), rtol=0, atol=1e-3)


NAMED = {"mlp": ("2", "4"), "convnet": ("4", "8"), "residual": ("norm", "head")}


@pytest.mark.parametrize(
    "name, k, method", [("mlp", *METHODS[0]), ("convnet", *METHODS[3]), ("residual", *METHODS[5])]
)
def test_the_limit_with_named_levels_is_uniform(name, k, method):
    bayes, x = laplace(name, k, n=20, predictive=method, prior_variance=0.01, residual=NAMED[name])
    limit = bayes.limit(x)
    assert bool((limit.confidence == 1 / max(2, k)).all())
    torch.testing.assert_close(bayes.predict_proba(1e9 * x).amax(1), limit.confidence, rtol=0, atol=1e-3)


@pytest.mark.parametrize("near, beyond", [(1.5, 0.0), (0.0, 5.0), (1.5, 5.0)])
@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("name, k", [("mlp", 1), ("mlp", 3), ("convnet", 3)])
def test_the_limit_of_a_zero_input_is_its_prediction(name, k, layers, near, beyond):
    bayes, x = laplace(name, k, layers=layers, residual=True)
    chosen_residual(bayes, near, beyond, shortest=0.02)
    bayes.temperature = 0.4
    zero = torch.zeros_like(x[:2])
    assert float(sum(bayes.explain(zero).values())[0]) > 0.1, "the test needs a residual that counts there"
    limit, predicted = bayes.limit(zero), bayes.predict_proba(zero).max(1)
    torch.testing.assert_close(limit.confidence, predicted.values)
    assert torch.equal(limit.label, predicted.indices)
    certificate = bayes.certify(zero)
    assert bool((certificate.confidence >= certificate.limit).all())
    assert float((certificate.confidence - certificate.limit).max()) <= 2e-3


def switched_off(k, layers="last"):
    """A network whose ReLUs are all off on positive rays, and such rays: only its input moves there."""
    torch.manual_seed(0)
    model = MLP((3, 6, 6, k)).double()
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs() - 0.1)
    x = torch.randn(60, 3, dtype=torch.float64)
    bayes = bb.Laplace(model, layers=layers, residual=True).fit([(x, torch.arange(60) % max(2, k))])
    assert bayes.known_residual.names == ("input", "2", "head", "classes")
    return bayes, torch.rand(5, 3, dtype=torch.float64) + 0.1


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k, method", [(1, "probit"), (1, "quadrature"), (3, "pairwise"), (3, "meanfield")])
def test_where_no_level_that_counts_moves_the_limit_is_the_prediction_at_rest(k, method, layers):
    bayes, rays = switched_off(k, layers)
    bayes.predictive, bayes.temperature = method, 0.3
    moving = bayes.settings
    levels = {"input": 0.0, "2": 0.4, "head": 0.7, "classes": 0.3}
    bayes.settings = replace(moving, near_variance=2.0, levels=levels)
    limit, certificate = bayes.limit(rays), bayes.certify(rays)
    for delta in (1e2, 1e6, 1e12):
        predicted = bayes.predict_proba(delta * rays).max(1)
        torch.testing.assert_close(limit.confidence, predicted.values)
        assert torch.equal(limit.label, predicted.indices)
    assert bool((limit.confidence > 1 / max(2, k) + 0.01).all()), "the test needs a limit that is not 1/k"
    assert bool((limit.confidence <= bayes.bound(rays)).all())
    assert bool((certificate.confidence >= largest_beyond(bayes, rays, deltas(certificate.alpha, 30))).all())
    assert float((certificate.confidence - certificate.limit).max()) <= 1e-2
    # The input counts beyond the data, or near them: either is enough.
    thresholds = dict.fromkeys(levels, 3.0)
    for counting in (
        replace(bayes.settings, beyond_variance=1e-9, thresholds=thresholds),
        replace(bayes.settings, levels={**levels, "input": 1e-9}),
    ):
        bayes.settings = counting
        assert bool((bayes.limit(rays).confidence == 1 / max(2, k)).all())
        assert bool((bayes.bound(rays) == 1 / max(2, k)).all())


def test_levels_that_do_not_count_at_all_change_nothing():
    bayes, x = laplace("mlp", 3, n=20, residual=True)
    plain, _ = laplace("mlp", 3, n=20, residual=False)
    names = bayes.known_residual.names
    bayes.settings = replace(bayes.settings, levels=dict.fromkeys(names, 0.0))
    torch.testing.assert_close(bayes.limit(x).confidence, plain.limit(x).confidence)
    torch.testing.assert_close(bayes.bound(x), plain.bound(x))
    # Both are at most 1e-3 above the largest confidence.
    torch.testing.assert_close(bayes.certify(x).confidence, plain.certify(x).confidence, rtol=0, atol=1e-3)


@pytest.mark.parametrize("k", [1, 3])
def test_a_model_without_a_level_at_its_input_has_limits(k):
    """Its features at the head are all there is, and stop moving where all its units are off."""
    model = MLP((3, 6, k)).double()
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs() - 0.1)
    x, y = torch.randn(60, 3, dtype=torch.float64), torch.arange(60) % max(2, k)

    class Named(nn.Module):
        """Takes integers, too: the input is no level if it was fitted to these."""

        def __init__(self):
            super().__init__()
            self.inside = model

        def forward(self, x):
            return self.inside(x.double())

    bayes = bb.Laplace(Named(), residual=True).fit([((3 * x).long(), y)])
    assert bayes.known_residual.names == ("inside.0", "head", "classes")
    bayes.settings = replace(bayes.settings, levels={"inside.0": 0.0, "head": 1.0, "classes": 0.5})
    rays = torch.rand(5, 3, dtype=torch.float64) + 0.1
    assert bool((bayes.limit(-rays).confidence == 1 / max(2, k)).all())
    rest = bayes.limit(rays).confidence
    assert bool((rest > 1 / max(2, k) + 1e-3).all()) and bool((rest <= bayes.bound()).all())
    torch.testing.assert_close(rest, bayes.predict_proba((1000 * rays).long()).amax(1))


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k", [1, 3])
def test_where_only_the_distance_from_classes_counts_the_limit_is_uniform(k, layers):
    """Features that move, move away from all classes."""
    options = {"layers": layers, "prior_variance": 0.01, "residual": True, "predicted": True}
    bayes, x = laplace("mlp", k, n=60, **options)
    names = bayes.known_residual.names
    bayes.settings = replace(bayes.settings, levels={name: float(name == "classes") for name in names})
    with torch.no_grad():
        assert float(bayes.known_residual.distances(1e6 * x)[:, -1].min()) > 1e3
    limit = bayes.limit(x)
    assert bool((limit.confidence == 1 / max(2, k)).all())
    torch.testing.assert_close(bayes.predict_proba(1e9 * x).amax(1), limit.confidence, rtol=0, atol=1e-3)
    certificate = bayes.certify(x[:10])
    top = largest_beyond(bayes, x[:10], deltas(certificate.alpha, 60))
    assert bool((certificate.confidence >= top).all())


# ---- certificates


@pytest.mark.parametrize("near, beyond", [(1e-3, 0.0), (0.0, 3.0), (0.5, 3.0)])
@pytest.mark.parametrize("k, method", CERTIFIED)
def test_certificates_with_a_residual_hold_and_are_tight(k, method, near, beyond):
    bayes, x = laplace("mlp", k, n=20, predictive=method, prior_variance=0.5, residual=True)
    chosen_residual(bayes, near, beyond)
    bayes.temperature = 1.5 if beyond else 1.0
    certificate = bayes.certify(x)
    top = largest_beyond(bayes, x, fine_grid(certificate.alpha, 400))
    gap = certificate.confidence - torch.maximum(top, certificate.limit)
    assert gap.min() >= 0
    assert gap.max() <= (1e-4 if k == 1 else 0.01)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_certificates_with_a_residual_hold_on_every_kind_of_network(name, k, layers):
    bayes, x = laplace(name, k, n=20, layers=layers, residual=True)
    chosen_residual(bayes, 0.3, 4.0)
    certificate = bayes.certify(x)
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())
    assert bool((certificate.limit == 1 / max(2, k)).all())


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("predicted", [False, True], ids=["any labels", "predicted labels"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", ["mlp", "convnet"])
def test_certificates_of_what_tune_chooses_hold(name, k, predicted):
    bayes, x = laplace(name, k, n=60, predicted=predicted)
    bayes.tune([(2 * x, torch.arange(60) % max(2, k))])
    assert bayes.near_variance > 0 and bayes.beyond_variance > 0
    certificate = bayes.certify(x)
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 60))).all())
    # Beyond the final region confidence is mostly that of chance already.
    assert bool((certificate.confidence < 1).all())


@given(
    name=st.sampled_from(list(NETWORKS)),
    k=st.integers(1, 3),
    layers=st.sampled_from(["last", "all"]),
    near=st.sampled_from([0.0, 1e-6, 1e-2, 1.0, 1e3]),
    beyond=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    temperature=st.floats(1e-2, 1e2),
    named=st.booleans(),
    n=st.sampled_from([6, 30]),
    predicted=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_certificates_with_hidden_levels_hold_on_any_network(
    name, k, layers, near, beyond, temperature, named, n, predicted, seed
):
    residual = NAMED.get(name, True) if named else True
    options = {"layers": layers, "prior_variance": 0.1, "residual": residual, "predicted": predicted}
    bayes, x = laplace(name, k, n=n, seed=seed, **options)
    x = x[:6]
    chosen_residual(bayes, near, beyond, seed)
    bayes.temperature = temperature
    certificate = bayes.certify(x)
    top = torch.maximum(largest_beyond(bayes, x, deltas(certificate.alpha, 12)), certificate.limit)
    assert bool((certificate.confidence >= top).all())


@pytest.mark.parametrize("factor", [1e-60, 1.0, 1e60])
@pytest.mark.parametrize("k", [1, 3])
def test_tiny_and_huge_features_have_certificates(k, factor):
    """Distances are in units of the data, so that the size of the features changes no limit."""
    torch.manual_seed(0)
    model, x = MLP((5, 12, 8, k), last_bias=False).double(), torch.randn(10, 5, dtype=torch.float64)
    with torch.no_grad():
        model[2].weight *= factor
        model[2].bias *= factor
        model[4].weight /= factor
    bayes = bb.Laplace(model, prior_variance=factor**-2, residual=True)
    certificate = bayes.fit([(x, torch.arange(10) % max(k, 2))]).certify(x)
    assert bool((certificate.confidence >= largest_beyond(bayes, x, deltas(certificate.alpha, 30))).all())
    assert bool((certificate.limit == 1 / max(k, 2)).all())
