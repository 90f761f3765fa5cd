"""The test of a shift: against all orders, scipy, and simulations; its power; what it refuses."""

import itertools
import math
from dataclasses import FrozenInstanceError

import numpy
import pytest
import torch
from scipy import stats
from torch import nn

import bitbayes as bb
import classifiers
import reference
from bitbayes.decisions import shift_test
from bitbayes.decisions.shift_test import ShiftTest, detectable_auroc, exact_tail
from bitbayes.errors import ArgumentError, DataError, ModelError, NotFittedError


def classifier(k=3, n=60, **options):
    bayes, points = classifiers.trained(k, n=n, **options)
    bayes.prior_variance = 1.0
    return bayes, points


def compared(known, new):
    """The result for these scores."""
    return ShiftTest(torch.as_tensor(known).double().sort().values, None).of(torch.as_tensor(new))


def pairs(known, new):
    """How many pairs have the smaller score among the known; how many at most the same, in plain loops."""
    return sum(c < s for s in new for c in known), sum(c <= s for s in new for c in known)


def scipy_p(known, new, **options):
    """In float64: scipy computes in the precision of the scores."""
    known, new = (numpy.asarray(each, dtype=float) for each in (known, new))
    found = stats.mannwhitneyu(new, known, alternative="less", **options)
    return float(found.pvalue)


# ---- the p-value without ties


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 6), (2, 5), (3, 3), (4, 6), (6, 3), (5, 5)])
def test_the_exact_law_is_that_of_all_orders(m, n):
    found = []
    for places in itertools.combinations(range(m + n), m):
        others = [each for each in range(m + n) if each not in places]
        found.append(pairs(others, places)[1])
    for u in range(m * n + 1):
        expected = sum(each <= u for each in found) / math.comb(m + n, m)
        assert exact_tail(m, n, u) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("m", "n"), [(1, 40), (3, 300), (20, 60), (60, 20), (45, 50)])
def test_p_values_without_ties_are_those_of_scipys_exact_test(m, n):
    generator = numpy.random.default_rng(m)
    for shift in (0.0, 0.3, 1.0, 5.0):
        known, new = generator.normal(size=n), generator.normal(size=m) - shift
        found = compared(known, new)
        # Sums of up to mn/2 positive numbers, in two ways.
        assert found.p_value == pytest.approx(scipy_p(known, new, method="exact"), rel=1e-10)
        assert found.auroc == pytest.approx(1 - pairs(known, new)[0] / (m * n), rel=1e-12)
        assert (found.points, found.calibration_points) == (m, n)


@pytest.mark.parametrize(("m", "n"), [(2, 300), (20, 50), (30, 35)])
def test_small_tails_keep_their_digits(m, n):
    """In whole numbers of Python: the count of orders with U = u by the last point of the order."""
    counts = {(i, j): [1] if i == 0 or j == 0 else None for i in range(m + 1) for j in range(n + 1)}
    for i, j in itertools.product(range(1, m + 1), range(1, n + 1)):
        total = [0] * (i * j + 1)
        for u, count in enumerate(counts[i, j - 1]):  # the last is known: no pair more
            total[u] += count
        for u, count in enumerate(counts[i - 1, j]):  # it is new: above all j that are known
            total[u + j] += count
        counts[i, j] = total
    below = list(itertools.accumulate(counts[m, n]))
    for u in range(0, m * n + 1, 7):
        assert exact_tail(m, n, u) == pytest.approx(below[u] / below[-1], rel=1e-13)


@pytest.mark.parametrize("n", [1, 19, 99, 199, 5000])
def test_the_p_value_of_one_input_is_its_rank(n):
    known = torch.randn(n, generator=torch.Generator().manual_seed(n)).double().sort().values
    for place in {0, min(9, n - 1), n // 2, n - 1}:
        for score in (known[place] - 1e-9, known[place], known[place] + 1e-9):
            expected = (1 + int((known <= score).sum())) / (n + 1)
            assert compared(known, score[None]).p_value == pytest.approx(expected, rel=1e-12)
    if n == 199:  # an alarm at 5% is not lost to rounding
        assert compared(known, known[8:9]).p_value == 0.05


# ---- ties, and many points


@pytest.mark.parametrize(
    "values", [(0, 0, 0, 1, 1, 2, 3, 3), (0, 1, 1, 1, 1, 1, 2, 2), (0, 0, 1, 2, 3, 4, 5)]
)
@pytest.mark.parametrize("m", [1, 2, 3, 4])
def test_ties_give_no_alarm_too_many_in_all_orders(values, m):
    """Of all ways to take the batch from these values, at most the share p has such a p-value or less."""
    values, found = [float(each) for each in values], []
    for places in itertools.combinations(range(len(values)), m):
        new = [values[each] for each in places]
        known = [values[each] for each in range(len(values)) if each not in places]
        result = compared(known, new)
        below, at_most = pairs(known, new)
        assert result.p_value == exact_tail(m, len(known), at_most)
        assert result.auroc == pytest.approx(1 - (below + at_most) / (2 * len(known) * m), rel=1e-14)
        found.append(result.p_value)
    for p in set(found):
        assert sum(each <= p for each in found) / len(found) <= p * (1 + 1e-12)


@pytest.mark.parametrize("levels", [1, 2, 5, 40])
@pytest.mark.parametrize(("m", "n"), [(21, 30), (60, 400), (500, 90)])
def test_ties_of_many_points_are_corrected_as_scipys(levels, m, n):
    generator = numpy.random.default_rng(levels)
    for shift in (0, 1):
        known = generator.integers(levels, size=n).astype(float)
        new = generator.integers(levels, size=m) - shift * (generator.random(m) < 0.3)
        found = compared(known, new.astype(float)).p_value
        if levels == 1 and shift == 0:
            assert found == 1.0  # no order says anything; scipy's is NaN
        else:
            expected = scipy_p(known, new, method="asymptotic", use_continuity=True)
            assert found == pytest.approx(expected, rel=1e-9)


def test_few_points_with_equal_scores_give_no_alarm():
    assert compared([0.5] * 100, [0.5] * 5).p_value == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize(("m", "n"), [(21, 21), (20, 1000), (100, 1600), (256, 256)])
def test_the_normal_law_is_close_to_the_exact_one_where_it_begins(m, n, monkeypatch):
    """The next term of the expansion is κ/24·(z³ − 3z)·φ(z), and |z³ − 3z|·φ(z) is at most 0.56."""
    kurtosis = 1.2 * (m * m + n * n + m * n + m + n) / (m * n * (m + n + 1))
    generator = numpy.random.default_rng(0)
    known = generator.normal(size=n)
    deviation = math.sqrt((m + n + 1) / (12 * m * n))
    largest = 0.0
    for z in numpy.linspace(-4, 4, 17):
        shift = math.sqrt(2) * stats.norm.ppf(numpy.clip(0.5 + z * deviation, 0.01, 0.99))
        new = generator.normal(size=m) - shift
        monkeypatch.setattr(shift_test, "EXACT_STEPS", 2**24)
        exact = compared(known, new).p_value
        monkeypatch.setattr(shift_test, "EXACT_STEPS", 0)
        normal = compared(known, new).p_value
        assert normal != exact
        assert normal == pytest.approx(scipy_p(known, new, method="asymptotic"), rel=1e-9)
        largest = max(largest, abs(normal - exact))
    assert largest < 1.5 * 0.56 * kurtosis / 24
    assert largest < 0.0025


def test_the_exact_law_ends_where_it_says():
    known, new = torch.randn(257).sort().values, torch.randn(256)
    assert compared(known[:256], new).p_value == exact_tail(256, 256, pairs(known[:256], new)[1].item())
    assert compared(known, new).p_value == pytest.approx(scipy_p(known, new, method="asymptotic"), rel=1e-9)
    # One tie: exact up to 20 points, midranks above.
    few, more = torch.cat([known[:1], new[:19]]), torch.cat([known[:1], new[:20]])
    assert compared(known, few).p_value == exact_tail(20, 257, pairs(known, few)[1].item())
    assert compared(known, more).p_value == pytest.approx(scipy_p(known, more, method="asymptotic"), rel=1e-9)


# ---- false alarms and power, by simulation


@pytest.mark.parametrize(("m", "n"), [(1, 99), (1, 30), (5, 40), (20, 200), (60, 60)])
def test_false_alarms_are_as_many_as_the_level_allows(m, n):
    """The largest attainable p ≤ 5% is the probability of an alarm. Rounded scores have ties."""
    draws, generator = 3000, torch.Generator().manual_seed(m + n)
    level = max(p for u in range(m * n) if (p := exact_tail(m, n, u)) <= 0.05)
    alarms = tied = 0
    for _ in range(draws):
        known, new = (torch.randn(each, generator=generator).exp() for each in (n, m))
        alarms += compared(known, new).p_value <= 0.05
        tied += compared(known.round(decimals=1), new.round(decimals=1)).p_value <= 0.05
    law = stats.binom(draws, level)
    assert law.ppf(1e-5) <= alarms <= law.isf(1e-5)
    assert tied <= stats.binom(draws, 0.052).isf(1e-5)  # the normal law adds up to 0.002


def test_false_alarms_of_a_posterior():
    bayes, _ = classifier(3)
    torch.manual_seed(0)
    x, _ = classifiers.drawn(bayes.model, 400 * 60)
    scores = bayes.score(x).view(400, 60)
    alarms = sum(compared(row[:50], row[50:]).p_value <= 0.05 for row in scores)
    assert stats.binom(400, 0.05).ppf(1e-5) <= alarms <= stats.binom(400, 0.05).isf(1e-5)


@pytest.mark.parametrize(("m", "n"), [(20, 200), (50, 200), (100, 300), (500, 200), (30, 30)])
def test_the_power_at_the_detectable_auroc_is_80_percent(m, n):
    """Scores of both are normal, apart by √2·Φ⁻¹(AUROC). Noether's formula holds for large m and n."""
    draws, generator = 1500, numpy.random.default_rng(m)
    shift = math.sqrt(2) * stats.norm.ppf(detectable_auroc(m, n))
    found = [compared(generator.normal(size=n), generator.normal(size=m) - shift) for _ in range(draws)]
    power = numpy.mean([each.p_value <= 0.05 for each in found])
    error = 4 * math.sqrt(0.8 * 0.2 / draws)
    assert 0.78 - error < power < 0.83 + error
    auroc = numpy.mean([each.auroc for each in found])
    assert abs(auroc - detectable_auroc(m, n)) < 4 * numpy.std([e.auroc for e in found]) / math.sqrt(draws)


@pytest.mark.parametrize(("m", "n"), [(2, 100), (5, 200), (10, 50)])
def test_with_few_points_the_power_is_above_80_percent(m, n):
    generator = numpy.random.default_rng(m)
    shift = math.sqrt(2) * stats.norm.ppf(min(detectable_auroc(m, n), 1 - 1e-9))
    alarms = [
        compared(generator.normal(size=n), generator.normal(size=m) - shift).p_value <= 0.05
        for _ in range(800)
    ]
    assert numpy.mean(alarms) > 0.8


def test_the_detectable_auroc_is_noethers():
    """N = (z₀.₉₅ + z₀.₈)²/(12·c·(1 − c)·(AUROC − ½)²), c the share of the batch; N + 1 in the variance."""
    for m, n in ((20, 200), (50, 1000), (300, 300)):
        z = stats.norm.ppf(0.95) + stats.norm.ppf(0.8)
        c = m / (m + n)
        total = z**2 / (12 * c * (1 - c) * (detectable_auroc(m, n) - 0.5) ** 2)
        assert total == pytest.approx((m + n) ** 2 / (m + n + 1), rel=1e-12)


def test_it_is_infinite_exactly_where_no_alarm_is_possible():
    for m, n in itertools.product(range(1, 25), repeat=2):
        smallest = compared(torch.arange(n).double(), torch.full((m,), -1.0)).p_value
        assert smallest == pytest.approx(1 / math.comb(m + n, m), rel=1e-12)
        assert (smallest <= 0.05) == (detectable_auroc(m, n) <= 1)
    assert detectable_auroc(10**6, 10**6) < 0.502


# ---- the call


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_batch_is_compared_by_its_scores(k):
    bayes, (x, y) = classifier(k, n=90)
    test = bayes.shift_test(reference.loader(x[:60], y[:60], 25))
    assert torch.equal(test.scores, bayes.score(x[:60]).sort().values)
    found = test(x[60:])
    expected = scipy_p(bayes.score(x[:60]), bayes.score(x[60:]), method="exact")
    assert found.p_value == pytest.approx(expected, rel=1e-10)
    for same in (bayes.shift_test(x[:60]), bayes.shift_test([x[:30], x[30:60]])):
        assert same([x[60:70], x[70:]]) == found
    assert test.of(bayes.score(x[60:])) == found
    labelled = bayes.shift_test([(x[:60], torch.full((60,), -7))])  # labels are ignored
    assert labelled([(x[60:], y[60:])]) == found
    with pytest.raises(FrozenInstanceError):
        found.p_value = 1.0


def test_what_is_less_like_the_data_raises_an_alarm_and_what_is_more_like_them_does_not():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(900, 6), torch.arange(900) % 4
    bayes = bb.Laplace(model).fit([(x[:300], y[:300])]).tune([(x[300:600], y[300:600])])
    test = bayes.shift_test(x[600:800])
    for factor in (10.0, 1e3, 1e30):  # there all scores are equal
        far = test(factor * x[800:820])
        assert far.auroc == 1.0
        assert far.p_value == pytest.approx(1 / math.comb(220, 20), rel=1e-12)
    likest = x[800:][bayes.score(x[800:]).topk(20).indices]
    assert test(likest).p_value > 0.99 and test(likest).auroc < 0.2


def test_every_likelihood_with_a_score_has_the_test():
    x = torch.randn(200, 2)
    cases = {
        "gaussian": (nn.Linear(2, 3), torch.randn(200, 3)),
        "heteroscedastic": (nn.Linear(2, 2), torch.randn(200, 1)),
        "multilabel": (nn.Linear(2, 3), torch.randint(2, (200, 3))),
        "bernoulli": (nn.Linear(2, 1), torch.arange(200) % 2),
    }
    for name, (model, y) in cases.items():
        bayes = bb.Laplace(model, likelihood=name, prior_variance=1.0).fit([(x[:100], y[:100])])
        found = bayes.shift_test([(x[100:150], y[100:150])])([(x[150:], y[150:])])
        expected = scipy_p(bayes.score(x[100:150]), bayes.score(x[150:]), method="exact")
        assert found.p_value == pytest.approx(expected, rel=1e-10), name
    pairs = bb.Laplace(nn.Linear(2, 1), likelihood="preference", prior_variance=1.0).fit([(x, x.flip(0))])
    found = pairs.shift_test([(x[:50], x[50:100])])([(x[100:110], x[110:120])])
    assert (found.points, found.calibration_points) == (10, 50)


def test_what_is_wrong_is_named():
    bayes, (x, _) = classifier()
    test = bayes.shift_test(x)
    bad = x.clone()
    bad[3, 0] = math.nan
    for use in (bayes.shift_test, test):
        with pytest.raises(DataError, match="the input holds NaN or infinity"):
            use(bad)
        with pytest.raises(DataError, match="one row: use x"):
            use(x[0])
        with pytest.raises(DataError, match="the loader is empty"):
            use([])
    for scores in (torch.zeros(0), torch.zeros(2, 2), torch.tensor([0.0, math.nan])):
        with pytest.raises(DataError, match="expected one number for each point"):
            test.of(scores)
    positions = bb.Laplace(nn.Conv2d(1, 3, 1), prior_variance=1.0)
    images, labels = torch.rand(8, 1, 4, 4), torch.randint(3, (8, 4, 4))
    with pytest.raises(ArgumentError, match="the output has positions"):
        positions.fit([(images, labels)]).shift_test(images)
    with pytest.raises(NotFittedError):
        bb.Laplace(nn.Linear(2, 3)).shift_test(x)


def test_the_test_keeps_the_settings_that_it_was_calibrated_with():
    bayes, (x, _) = classifier()
    test = bayes.shift_test(x[:40])
    before = test(x[40:])
    bayes.prior_variance = 100.0
    assert test(x[40:]) == before
    assert repr(test) == "ShiftTest()"
    with torch.no_grad():
        bayes.model[2].weight.mul_(2)
    with pytest.raises(ModelError, match="changed"):
        test(x)
