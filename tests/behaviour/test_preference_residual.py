"""The residual of preferences: v(a) + v(b) for a pair, v(x) for a reward, against plain float64 formulas."""

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import bitbayes as bb
import reference
import several
from bitbayes.errors import DataError
from bitbayes.residual import Distance, LevelSums

# Relative: sums over 60 rows and inverses of matrices with a condition below 1e4, in float64.
DIGITS = {"rtol": 1e-9, "atol": 1e-11}
CPU, DOUBLE = torch.device("cpu"), torch.float64


def data(n=30, dtype=DOUBLE):
    """Inputs a and b of n pairs, which are not alike, and labels: 1 where a is preferred."""
    return 2 * torch.randn(n, 3, dtype=dtype) + 1, torch.randn(n, 3, dtype=dtype), torch.arange(n) % 2


def loader(a, b, y, batch=7):
    return [((a[i : i + batch], b[i : i + batch]), y[i : i + batch]) for i in range(0, len(y), batch)]


def laplace(model, **options):
    return bb.Laplace(model, likelihood="preference", **{"prior_variance": 0.7, "residual": True, **options})


def case(n=30, **options):
    model, pairs = reference.network(1), data(n)
    return laplace(model, **options).fit(loader(*pairs)), *pairs


class Dense:
    """v(x) of one input: the distances at the input and at the head, from the rows of both sides."""

    def __init__(self, bayes, a, b):
        self.model, self.settings = bayes.model, bayes.settings
        rows = zip(*(self.rows(each) for each in (a, b)), strict=True)
        self.data = [torch.cat(sides) for sides in rows]
        sums = bayes.known_residual.sums
        self.distances = [bayes.known_residual.distance(name, CPU, DOUBLE) for name in sums]
        for name, own in zip(sums, self.data, strict=True):
            torch.testing.assert_close(sums[name].mean, own.mean(0), **DIGITS)
            torch.testing.assert_close(sums[name].products / len(own), own.T.cov(correction=0), **DIGITS)
            assert float(sums[name].count) == len(own) == 2 * len(a)

    def rows(self, x):
        with torch.no_grad():
            return x, self.model.activation(self.model.hidden(x))

    def variance(self, x):
        total, settings = torch.zeros(len(x), dtype=DOUBLE), self.settings
        names = ["input", "head"]
        for name, distance, own in zip(names, self.distances, self.rows(x), strict=True):
            cubes = distance(own) ** 3
            weight = settings.levels[name] if settings.levels else 1 / len(names)
            total += settings.near_variance * weight * cubes
            if settings.thresholds:
                beyond = cubes / settings.thresholds[name] ** 3 - 1
                total += settings.beyond_variance * beyond.clamp_min(0)
        return total


@pytest.mark.parametrize("structure", ["full", "kron", "diag"])
def test_the_variance_of_a_reward_grows_by_v_and_that_of_a_difference_by_both(structure):
    bayes, a, b, y = case(structure=structure)
    assert bayes.known_residual.names == ("input", "head")
    plain = laplace(bayes.model, residual=False, structure=structure).fit(loader(a, b, y))
    dense = Dense(bayes, a, b)
    own = {"levels": {"input": 0.3, "head": 0.1}, "thresholds": {"input": 1.5, "head": 1.2}}
    for numbers in ({}, {"near_variance": 0.4, "beyond_variance": 3.0, **own}):
        bayes.settings = dense.settings = replace(bayes.settings, **numbers)
        v, w = dense.variance(a), dense.variance(b)
        single, difference = plain.reward(a).deviation ** 2, plain.reward(a, b).deviation ** 2
        torch.testing.assert_close(bayes.reward(a).deviation ** 2, single + v, **DIGITS)
        torch.testing.assert_close(bayes.reward(a, b).deviation ** 2, difference + v + w, **DIGITS)
        mean = plain.reward(a, b).mean
        assert torch.equal(bayes.reward(a, b).mean, mean)
        z = mean / (1 + reference.KAPPA * (difference + v + w)).sqrt()
        expected = torch.stack([(-z).sigmoid(), z.sigmoid()], 1)
        for pairs in ((a, b), loader(a, b, y, batch=4)):
            torch.testing.assert_close(bayes.predict_proba(pairs), expected, **DIGITS)
        for parts, total in ((bayes.explain((a, b)), v + w), (bayes.explain(a), v)):
            assert list(parts) == ["input", "head"]
            torch.testing.assert_close(sum(parts.values()), total, **DIGITS)


def test_the_distances_are_those_of_correlated_columns():
    """By the plain formula, with the shrinkage of the sums."""
    bayes, a, b, _ = case()
    dense = Dense(bayes, a, b)
    for distance, own in zip(dense.distances, dense.data, strict=True):
        sums = LevelSums.of(own, correlated=True)
        unit = (own - own.mean(0)) / sums.deviations()
        squares = ((unit @ torch.linalg.inv(sums.correlations())) * unit).sum(1) / own.shape[1]
        torch.testing.assert_close(distance(own), squares.sqrt(), **DIGITS)
        torch.testing.assert_close(Distance.of(sums, CPU, DOUBLE)(own), distance(own), **DIGITS)


def test_far_away_both_deviations_grow_and_nothing_is_preferred():
    bayes, a, b, _ = case()
    for near, far in ((1e2, 1e4), (1e4, 1e6)):
        for inputs in ((a,), (a, b)):
            ratio = bayes.reward(*(far * each for each in inputs)).deviation
            ratio = ratio / bayes.reward(*(near * each for each in inputs)).deviation
            assert bool((ratio > 100).all())  # like δ^{3/2}: by 1000
    probabilities = bayes.predict_proba((1e6 * a, 1e6 * b))
    torch.testing.assert_close(probabilities, torch.full_like(probabilities, 0.5), rtol=0, atol=1e-6)


def test_it_is_used_once_tune_has_chosen_its_numbers():
    bayes, a, b, y = case(n=400, residual="auto")
    assert "off until tuned" in repr(
        bayes.__class__(bayes.model, likelihood="preference").fit(loader(a, b, y))
    )
    with torch.no_grad():
        y = (bayes.model(a) - bayes.model(b) + torch.randn(400, 1) > 0)[:, 0].long()
    bayes.tune(loader(a, b, y))
    settings, residual = bayes.settings, bayes.known_residual
    assert settings.near_variance > 0 and settings.beyond_variance > 0 and settings.class_spread is None
    # The edges are those of single inputs.
    dense = Dense(bayes, a, b)
    for name, distance, own in zip(residual.names, dense.distances, dense.data, strict=True):
        edge = max(float(distance(own).quantile(0.99)), 1)
        assert settings.thresholds[name] == pytest.approx(2 * (1 + 4 / math.sqrt(400)) * edge, rel=1e-9)
    # At the edge of both inputs the logits are divided by 3 at most: 1 + κ·2w ≤ 9.
    assert 1 + 2 * reference.KAPPA * settings.near_variance <= 9
    passed = bb.PassedPoints.of(bayes, loader(a, b, y))
    probabilities, scores = passed.predict(passed.tune())
    torch.testing.assert_close(probabilities, bayes.predict_proba((a, b)), **DIGITS)
    torch.testing.assert_close(scores, bayes.score((a, b)), **DIGITS)
    assert bool((bayes.score((9 * a, b)) < bayes.score((a, b))).all())
    plain = laplace(bayes.model, residual=False).fit(loader(a, b, y)).tune(loader(a, b, y))
    measures = [each.evaluate(loader(a, b, y))["nll"] for each in (bayes, plain)]
    assert measures[0] < 1.02 * measures[1]


def test_the_score_takes_the_input_that_is_further_away():
    settings = bb.Settings(
        near_variance=1.0, levels={"x": 1.0}, score_centre=0.0, score_spread=1.0, score_edge=2.0
    )
    energy, distances = torch.zeros(3), torch.tensor([[1.0, 2.0], [2.0, 1.0], [2.0, 2.0]]).double()
    found = settings.score(energy, distances[:, :, None])
    torch.testing.assert_close(found, settings.score(energy, torch.full((3, 1), 2.0).double()))


def test_updates_merges_files_and_copies_keep_it(tmp_path):
    bayes, a, b, y = case(n=80)
    parts = [((a[:30], b[:30]), y[:30])], [((a[30:], b[30:]), y[30:])]
    updated = laplace(bayes.model).fit(parts[0]).update(parts[1])
    one, other = (laplace(bayes.model).fit(each) for each in parts)
    merged = bb.merge([one, other])
    again = laplace(bayes.model).fit(loader(a, b, y), checkpoint=tmp_path)
    for found in (updated, merged, again):
        torch.testing.assert_close(found.reward(a).deviation, bayes.reward(a).deviation, **DIGITS)
        torch.testing.assert_close(found.reward(a, b).deviation, bayes.reward(a, b).deviation, **DIGITS)
    bayes.tune([((a, b), y)])
    bayes.save(tmp_path / "bayes.safetensors")
    loaded, state = bb.Laplace.load(tmp_path / "bayes.safetensors", bayes.model), laplace(bayes.model)
    state.load_state_dict(bayes.state_dict())
    for each in (loaded, state, copy.deepcopy(bayes)):
        assert each.settings == bayes.settings and each.settings.has_residual
        assert torch.equal(each.reward(a, b).deviation, bayes.reward(a, b).deviation)
        assert torch.equal(each.predict_proba((a, b)), bayes.predict_proba((a, b)))


def _fit_and_tune(rank, size):
    torch.manual_seed(0)
    model, (a, b, y) = reference.network(1), data(80)
    bayes = laplace(model).fit([((a[rank:60:size], b[rank:60:size]), y[rank:60:size])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bayes.tune([((a[60 + rank :: size], b[60 + rank :: size]), y[60 + rank :: size])])
    return bayes.reward(a, b).deviation


def test_processes_find_what_one_finds():
    (alone,) = several.run(1, _fit_and_tune)
    for deviation in several.run(2, _fit_and_tune):
        torch.testing.assert_close(deviation, alone, rtol=1e-6, atol=0)


class Tokens(nn.Module):
    """A reward model of tokens, which averages those that the mask counts."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hidden, self.score = nn.Embedding(20, 5), nn.Linear(5, 4), nn.Linear(4, 1)

    def forward(self, input_ids, attention_mask):
        weights = attention_mask.to(self.embedding.weight)[:, :, None]
        hidden = self.hidden(self.embedding(input_ids)).relu()
        return self.score((hidden * weights).sum(1) / weights.sum(1))


def texts(n, length):
    lengths = torch.randint(1, length, (n,))
    lengths[0] = length
    mask = (torch.arange(length) < lengths[:, None]).long()
    return {"input_ids": torch.randint(20, (n, length)) * mask, "attention_mask": mask}


def test_tokens_of_two_lengths_have_the_levels_behind_their_input():
    torch.manual_seed(0)
    model, first, second = Tokens().double(), texts(40, 9), texts(40, 5)
    bayes = laplace(model).fit([((first, second), torch.arange(40) % 2)])
    assert bayes.known_residual.names == ("hidden", "head")
    with torch.no_grad():
        rows = [
            (model.embedding(each["input_ids"]) * each["attention_mask"][:, :, None]).sum(1)
            / each["attention_mask"].sum(1)[:, None]
            for each in (first, second)
        ]
    sums = bayes.known_residual.sums["hidden"]
    torch.testing.assert_close(sums.mean, torch.cat(rows).mean(0), **DIGITS)
    parts, one, other = (bayes.explain(each) for each in ((first, second), first, second))
    for name in parts:
        torch.testing.assert_close(parts[name], one[name] + other[name], **DIGITS)
    distance = bayes.known_residual.distance("hidden", CPU, DOUBLE)
    torch.testing.assert_close(one["hidden"], distance(rows[0]) ** 3 / 2, **DIGITS)


def test_inputs_of_two_sizes_have_no_level_of_their_own():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.score = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.score(self.hidden(x).relu().mean(1))

    model, y = Summed().double(), torch.arange(20) % 2
    pairs = [((torch.randn(20, 6, 3).double(), torch.randn(20, 2, 3).double()), y)]
    assert laplace(model, residual="auto").fit(pairs).known_residual.names == ("head",)
    with pytest.raises(DataError, match="needs all of one size"):
        laplace(model).fit(pairs)


def test_a_model_that_is_one_linear_layer_has_the_input_alone():
    (a, b, y), model = data(), nn.Linear(3, 1).double()
    bayes = laplace(model).fit(loader(a, b, y))
    assert bayes.known_residual.names == ("input",)
    v = bayes.known_residual.distance("input", CPU, DOUBLE)(a) ** 3
    torch.testing.assert_close(bayes.explain(a)["input"], v, **DIGITS)


def test_levels_between_may_be_named():
    a, b, y = data()
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    bayes = laplace(model, residual=("2",)).fit(loader(a, b, y))
    assert bayes.known_residual.names == ("input", "2", "head")
    with torch.no_grad():
        own = model[:2](torch.cat([a, b]))
    torch.testing.assert_close(bayes.known_residual.sums["2"].mean, own.mean(0), **DIGITS)
    assert bayes.explain((a, b)).keys() == bayes.explain(a).keys() == {"input", "2", "head"}
