"""The floor of the calibration error against all possible labels, and a loop over drawn ones."""

import itertools
import math

import pytest
import torch

from bitbayes import metrics
from bitbayes.errors import ArgumentError, DataError
from metric_cases import EXACT, case, scores


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_is_that_over_all_labels(weighted):
    probs = scores(0.51, 0.55, 0.7, 0.72, 0.9, 0.95, 1.0)
    weights = torch.tensor([1.0, 2.0, 3.0, 1.0, 0.0, 2.0, 1.0]) if weighted else None
    values, chances = [], []
    for labels in itertools.product((0, 1), repeat=7):
        chances.append(math.prod(row[label] for row, label in zip(probs.tolist(), labels, strict=True)))
        values.append(metrics.ece(probs, torch.tensor(labels), weights=weights))
    assert sum(chances) == pytest.approx(1, abs=EXACT)
    mean = sum(c * v for c, v in zip(chances, values, strict=True))
    deviation = math.sqrt(sum(c * (v - mean) ** 2 for c, v in zip(chances, values, strict=True)))
    draws = 40_000
    floor = metrics.calibration_floor(probs, draws=draws, weights=weights)
    assert floor.mean == pytest.approx(mean, abs=4 * deviation / math.sqrt(draws))
    # The share of labels below each end, exactly, within four deviations of that of the draws.
    off = 4 * math.sqrt(0.025 * 0.975 / draws)
    below = sum(c for c, v in zip(chances, values, strict=True) if v < floor.low - EXACT)
    above = sum(c for c, v in zip(chances, values, strict=True) if v > floor.high + EXACT)
    assert below < 0.025 + off and above < 0.025 + off
    at_most_low = sum(c for c, v in zip(chances, values, strict=True) if v < floor.low + EXACT)
    at_least_high = sum(c for c, v in zip(chances, values, strict=True) if v > floor.high - EXACT)
    assert at_most_low > 0.025 - off and at_least_high > 0.025 - off


def test_labels_drawn_from_the_probabilities_have_such_errors():
    probs, _ = case(n=300, k=5, sharpness=1.0)
    generator = torch.Generator().manual_seed(1)
    errors = torch.tensor(
        [metrics.ece(probs, torch.multinomial(probs, 1, generator=generator)[:, 0]) for _ in range(400)]
    )
    floor = metrics.calibration_floor(probs)
    # Both means are of draws: 400 and 1,000.
    assert floor.mean == pytest.approx(
        errors.mean().item(), abs=4 * errors.std().item() * math.sqrt(1 / 400 + 1 / 1000)
    )
    outside = ((errors < floor.low) | (errors > floor.high)).double().mean().item()
    assert 0.01 < outside < 0.1  # 5%, within four deviations of 400 draws and those of the ends
    assert floor.low < floor.mean < floor.high


def test_the_floor_tells_a_calibrated_model_from_an_overconfident_one():
    probs, labels = case(n=500, k=4)  # labels are of flatter probabilities
    assert metrics.ece(probs, labels) > metrics.calibration_floor(probs).high


def test_more_points_have_a_lower_floor():
    few, many = (metrics.calibration_floor(scores(0.75).expand(n, 2)).mean for n in (100, 10_000))
    # E|z − nc|/n of a binomial is √(2c(1 − c)/(πn)), but for a share of about 1/n.
    assert few == pytest.approx(math.sqrt(2 * 0.1875 / (math.pi * 100)), rel=0.1)
    assert many == pytest.approx(few / 10, rel=0.15)


def test_the_seed_alone_decides():
    probs, _ = case(n=50)
    torch.manual_seed(1)
    first = metrics.calibration_floor(probs)
    before = torch.get_rng_state()
    assert metrics.calibration_floor(probs) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert metrics.calibration_floor(probs, seed=1) != first


def test_confidences_of_one_have_no_error():
    assert metrics.calibration_floor(scores(1.0, 0.0, 1.0)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("draws", [0, -1, 2.5, None])
def test_bad_draws_raise(draws):
    with pytest.raises(ArgumentError, match=f"draws={draws!r}"):
        metrics.calibration_floor(scores(0.5), draws=draws)


def test_a_seed_is_a_whole_number():
    with pytest.raises(ArgumentError, match="seed='a': give a whole number"):
        metrics.calibration_floor(scores(0.5), seed="a")


def test_bad_arguments_raise():
    with pytest.raises(ArgumentError, match="bins=0"):
        metrics.calibration_floor(scores(0.5), 0)
    with pytest.raises(DataError, match="< 0"):
        metrics.calibration_floor(torch.tensor([[-1.0, 2.0]]))
    with pytest.raises(DataError, match="weights"):
        metrics.calibration_floor(scores(0.5), weights=torch.ones(2))


def test_there_are_15_bins_and_1000_draws():
    probs, _ = case()
    found = metrics.calibration_floor(probs)
    assert found == metrics.calibration_floor(probs, 15, seed=0, draws=1000)
    assert found != metrics.calibration_floor(probs, 16, seed=0, draws=1000)
