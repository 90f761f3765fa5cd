"""Features that never vary in the training data, at every level: small changes are near, large ones far.

A column of the input, a hidden unit and a feature of the head are constant, and no logit depends on them. So
the prediction changes by the residual alone.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import bitbayes as bb

CONSTANTS = [0.0, 0.1, 0.3, -7.3, 1 / 3, 1e6 + 0.1]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
LEVELS = ["input", "3", "head"]
NAMES = [*LEVELS, "classes"]  # whose distance has the head's constants, but no weight here
COLUMNS, POINTS = 6, 120


def network(value, dtype):
    """Unit 0 of both hidden layers is the last column of the input, up to its sign; no other unit sees it."""
    torch.manual_seed(0)
    first, second, head = nn.Linear(COLUMNS, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    layers = nn.Flatten(), first, nn.ReLU(), second, nn.BatchNorm1d(8), nn.ReLU(), head
    with torch.no_grad():
        for layer, place in ((first, COLUMNS - 1), (second, 0), (head, 0)):
            layer.weight[:, place] = 0
        for layer, place, weight in ((first, COLUMNS - 1, math.copysign(1.0, value)), (second, 0, 1.0)):
            layer.weight[0] = 0
            layer.weight[0, place], layer.bias[0] = weight, 0
        head.weight *= 40  # confident at the data
    return nn.Sequential(*layers).to(dtype).eval()


def data(value, dtype, pixels):
    """Inputs whose last column is the constant, as vectors or as images, and labels."""
    x = torch.randn(POINTS, COLUMNS, generator=torch.Generator().manual_seed(1)).to(dtype)
    x[:, -1] = value
    return x[:, None, None] if pixels else x, torch.arange(POINTS) % 3


def in_one_batch(bayes, x, y):
    return bayes.fit([(x, y)])


def in_odd_batches(bayes, x, y):
    sizes = [1, 7, 50, 13, 2, 31, 16]
    return bayes.fit([*zip(x.split(sizes), y.split(sizes), strict=True)])


def by_updates(bayes, x, y):
    bayes.fit([(x[:7], y[:7])])
    for rows in (slice(7, 8), slice(8, 61), slice(61, POINTS)):
        bayes.update([(x[rows], y[rows])])
    return bayes


def parts(bayes, x, y, sizes):
    pairs = zip(x.split(sizes), y.split(sizes), strict=True)
    return [bb.Laplace(bayes.model, residual=bayes.residual).fit([each]) for each in pairs]


def merged(bayes, x, y):
    return bb.merge(parts(bayes, x, y, [1, 40, 79]))


def without_a_part(bayes, x, y):
    more = torch.cat([x, x[:35].flip(0)]), torch.cat([y, y[:35].flip(0)])
    whole = parts(bayes, *more, [1, 40, 79, 35])
    return bb.merge(whole, without=whole[-1])


WAYS = [in_one_batch, in_odd_batches, by_updates, merged, without_a_part]


def fitted(way, value, dtype, pixels):
    """Fitted to the data in this way, with the residual at the input, at a hidden level and at the head."""
    x, y = data(value, dtype, pixels)
    bayes = way(bb.Laplace(network(value, dtype), residual=["3"], prior_variance=1e-4), x, y)
    sums = bayes.posterior.fitted.level_sums
    assert [*sums] == LEVELS and sums["input"].correlated == (not pixels)
    return bayes, x


def at_level(bayes, level):
    """With a residual at one level alone: half of a logit's variance at a deviation, and more far away."""
    shares = {each: float(each == level) for each in NAMES}
    bayes.settings = replace(
        bayes.settings,
        near_variance=0.5,
        beyond_variance=10.0,
        levels=shares,
        thresholds={each: 6.0 if each == level else 1e30 for each in NAMES},
    )
    return bayes


def moved(x, change):
    x = x.clone()
    x[..., -1] += change
    return x


@pytest.mark.parametrize("pixels", [False, True], ids=["vectors", "images"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", CONSTANTS)
def test_a_small_change_is_near_and_a_large_one_far_at_every_level(value, dtype, way, pixels):
    bayes, x = fitted(way, value, dtype, pixels)
    size = abs(float(x[0].flatten()[-1]))
    for level in LEVELS:
        at_level(bayes, level)
        plain = bayes.predict_proba(x)
        for change in (0.0, size * 2.0**-20, size * 2.0**-7, -size * 2.0**-6, size * 2.0**-6):
            near = bayes.predict_proba(moved(x, change))
            # One deviation of one feature in six or eight.
            assert float((near - plain).abs().max()) < 0.05 and torch.equal(near.argmax(1), plain.argmax(1))
        # A column of zeros is measured in the deviations of the others, which are about 1.
        far = bayes.predict_proba(moved(x, size or 64.0))
        assert float(plain.amax(1).mean()) > 0.6 and float((far - 1 / 3).abs().max()) < 0.1


@pytest.mark.parametrize("seed", [0, 3])
def test_hidden_units_that_each_batch_rounds_in_another_way_are_constant(seed):
    """Eight units see 150 constants alone: batches of 2 and of 500 sum them up in another order."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(300, 64), nn.ReLU(), nn.Linear(64, 3))
    with torch.no_grad():
        model[0].weight[:8, :150] = 0
        model[0].weight[8:, 150:] = 0
        model[2].weight *= 10
        model[2].weight[:, :8] = 0
    x = torch.randn(1000, 300)
    x[:, 150:] = 0.1
    sizes = [2] * 250 + [500]
    batches = [*zip(x.split(sizes), (torch.arange(1000) % 3).split(sizes), strict=True)]
    bayes = bb.Laplace(model, prior_variance=1e-3).fit(batches)
    bayes.settings = replace(
        bayes.settings, near_variance=0.5, levels={"input": 0.0, "head": 1.0, "classes": 0.0}
    )
    near = x[:200].clone()
    near[:, 150:] *= 1 + 2.0**-9
    before, after = bayes.predict_proba(x[:200]), bayes.predict_proba(near)
    assert float((after - before).abs().max()) < 0.01 and torch.equal(after.argmax(1), before.argmax(1))
