"""The search for the candidate of least cost, on grids of different spacing."""

import itertools
import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bitbayes.errors import DataError
from bitbayes.prior import variance_grid
from bitbayes.tuning.search import COARSE_NATS, largest_within, search

COUNTS = (25, 55, 100)
# Costs of t = log σ₀² with one minimum, at t = 0: as steep on both sides, flat on one side, and narrow.
COSTS = {
    "square": lambda t: t * t,
    "steep to the left": lambda t: math.exp(-0.7 * t) + 0.7 * t,
    "flat to the right": lambda t: math.log1p(math.exp(-t)) + 0.5 * t + (0 if t < 0 else -0.45 * t),
    "a step of one nat": lambda t: -1 / math.cosh(t / 2) ** 2 + 1e-9 * t * t,
}


class Asked:
    """Costs by a function, and the candidates it was asked for."""

    def __init__(self, cost):
        self.cost, self.candidates, self.calls = cost, [], 0

    def __call__(self, candidates):
        self.calls += 1
        self.candidates += candidates
        return torch.tensor([self.cost(each) for each in candidates], dtype=torch.float64)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("count", COUNTS)
@given(centre=st.floats(math.log(1e-8), math.log(1e12)))
def test_the_search_finds_the_minimum_and_asks_for_no_candidate_twice(count, name, centre):
    """The centre may also lie beyond the grid: then the first or the last candidate is the best."""
    grid = variance_grid(count)
    asked = Asked(lambda value: COSTS[name](math.log(value) - centre))
    found = search(grid, asked)
    costs = [asked.cost(value) for value in grid]
    assert asked.cost(found) == min(costs)
    assert len(set(asked.candidates)) == len(asked.candidates) and set(asked.candidates) <= set(grid)
    assert asked.calls <= 2


@pytest.mark.parametrize("count, most", [(25, 25), (55, 30), (100, 33)])
def test_fine_grids_are_looked_at_in_part(count, most):
    for centre in range(-13, 24):
        asked = Asked(lambda value, centre=centre: (math.log(value) - centre) ** 2)
        search(variance_grid(count), asked)
        assert len(asked.candidates) <= most


@pytest.mark.parametrize("count", COUNTS)
@given(centre=st.floats(math.log(1e-6), math.log(1e10)), other=st.floats(4, 30), left=st.booleans())
def test_the_search_is_not_misled_by_a_second_minimum_that_is_worse(count, centre, other, left):
    """The coarse candidates are at most 1.54 nats apart, so one of them has a cost below 0.77² = 0.6."""
    second = centre - other if left else centre + other

    def cost(value):
        t = math.log(value)
        return min((t - centre) ** 2, (t - second) ** 2 + 1)

    grid = variance_grid(count)
    assert cost(search(grid, Asked(cost))) == min(cost(value) for value in grid)


@pytest.mark.parametrize("smallest, largest", [(1e-8, 1e4), (1.0, 1.5), (1e-6, 1e30)])
@pytest.mark.parametrize("count", [2, 3, 7, 55])
def test_the_search_takes_grids_of_any_range(count, smallest, largest):
    grid = variance_grid(count, smallest, largest)
    for best in grid:
        asked = Asked(lambda value, best=best: abs(math.log(value / best)))
        assert search(grid, asked) == best
        assert len(set(asked.candidates)) == len(asked.candidates)


@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("steep", ["left", "right"])
def test_the_search_asks_for_every_neighbour_of_the_best_coarse_candidate_and_for_no_other(step, steep):
    """A cost that is steep on one side has its best coarse candidate on the other, up to step − 1 away."""
    grid = [math.exp(COARSE_NATS / step * i) for i in range(20)]
    coarse = {*range(0, 20, step), 19}
    for best in range(20):
        slopes = (1000, 1) if steep == "left" else (1, 1000)
        asked = Asked(lambda value, best=best, slopes=slopes: slope_cost(grid, value, best, slopes))
        assert search(grid, asked) == grid[best]
        centre = min(coarse, key=lambda i, best=best, slopes=slopes: slope_cost(grid, grid[i], best, slopes))
        near = {i for i in range(20) if abs(i - centre) < step}
        assert {grid.index(each) for each in asked.candidates} == coarse | near


def slope_cost(grid, value, best, slopes):
    away = grid.index(value) - best
    return max(-away * slopes[0], away * slopes[1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_candidates_without_a_finite_cost_are_passed_over(bad):
    grid = variance_grid(100)
    cost = Asked(lambda value: bad if value > 10 else (math.log(value) - 5) ** 2)
    assert search(grid, cost) == max(value for value in grid if value <= 10)
    with pytest.raises(DataError, match="finite cost"):
        search(grid, Asked(lambda value: bad))


@given(
    centre=st.floats(math.log(1e-5), math.log(1e9)), equal=st.floats(1e-6, 3), count=st.sampled_from(COUNTS)
)
def test_of_candidates_that_are_equal_the_middle_one_is_taken(centre, equal, count):
    """Among those that were looked at: the coarse ones, and the neighbours of the best."""
    asked = Asked(lambda value: (math.log(value) - centre) ** 2)
    found = search(variance_grid(count), asked, equal=equal)
    limit = min(map(asked.cost, asked.candidates)) + equal
    within = sorted(math.log(each) for each in asked.candidates if asked.cost(each) <= limit)
    middle = (within[0] + within[-1]) / 2
    assert abs(math.log(found) - middle) <= min(abs(each - middle) for each in within) + 1e-9


def test_the_largest_candidate_within_a_limit():
    grid = [0.0, 1.0, 2.0, 3.0]
    costs = torch.tensor([0.30, 0.31, 0.40, math.nan], dtype=torch.float64)
    assert largest_within(grid, costs, 0.31) == 1.0
    assert largest_within(grid, costs, 0.4) == 2.0  # NaN is within no limit
    assert largest_within(grid, costs, 0.1) == 0.0
    assert largest_within(grid[:3], costs[:3], 0.4) == largest_within(grid[:3], costs[:3], 9.0) == 2.0
    # Costs may rise and fall again: the largest that is within counts, not the last before the first beyond.
    again = torch.tensor([0.3, 0.9, 0.2, 0.9], dtype=torch.float64)
    assert largest_within(grid, again, 0.2) == 2.0
    assert largest_within(grid, again, 0.3) == pytest.approx(2 + 0.1 / 0.7, rel=1e-15)


@given(
    costs=st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    steps=st.lists(st.floats(1e-3, 1e3), min_size=9, max_size=9),
    limit=st.floats(0.1, 10),
)
def test_the_largest_value_within_a_limit_is_where_the_line_of_costs_crosses_it(costs, steps, limit):
    """Against a walk from the right, along straight lines between candidates."""
    grid = [0.0, *itertools.accumulate(steps)][: len(costs)]
    found = largest_within(grid, torch.tensor(costs, dtype=torch.float64), limit)
    if all(each > limit for each in costs):
        assert found == grid[0]
        return
    assert grid[0] <= found <= grid[-1]
    # Just beyond it costs more, as do all candidates that are larger; at it, it costs the limit, or less at
    # the last one.
    cost = float(numpy.interp(found, grid, costs))
    assert all(each > limit for value, each in zip(grid, costs, strict=True) if value > found)
    assert cost <= limit * (1 + 1e-9) + 1e-9
    assert found == grid[-1] or cost == pytest.approx(limit, rel=1e-6)


@pytest.mark.parametrize("beyond", [math.inf, math.nan])
def test_where_the_next_candidate_has_no_finite_cost_there_is_no_line_to_it(beyond):
    costs = torch.tensor([0.1, 0.2, beyond], dtype=torch.float64)
    assert largest_within([0.0, 1.0, 5.0], costs, 0.25) == 1.0
    assert largest_within([0.0, 1.0, 5.0], costs, 0.15) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("side", ["wide", "narrow"])
def test_where_all_beyond_are_equal_the_choice_is_not_the_last(side):
    """As where the data determine the weights: no wider prior changes anything, so that no warning is due."""
    grid = variance_grid(100)
    asked = Asked(lambda value: max(0.0, 3 - value) if side == "wide" else max(0.0, value - 3))
    found = search(grid, asked, equal=1e-9)
    assert grid[0] < found < grid[-1] and asked.cost(found) == 0
