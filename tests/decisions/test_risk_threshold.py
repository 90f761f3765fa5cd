"""Thresholds with a guaranteed risk: against plain loops, their promise on populations, and refusals."""

import copy
import json
import math
import pickle
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import nn

import bitbayes as bb
import classifiers
import reference
from bitbayes.decisions.risk_threshold import GRID, RiskThreshold, beginning, checked_loss, decisions
from bitbayes.errors import ArgumentError, DataError, ModelError, NotFittedError, UntunedWarning
from bitbayes.tuned import TunedData

pytestmark = pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
LOSS = ((0.0, 2.0, 0.5), (1.0, 0.0, 0.5), (4.0, 1.0, 0.5), (1.0, 3.0, 0.5))


def population(n, k, seed, noise=0.0):
    """Probabilities and labels: calibrated, or with a share of labels that are drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=generator, dtype=torch.float64)
    p = logits.softmax(1)
    labels = torch.multinomial(p, 1, generator=generator)[:, 0]
    anew = torch.rand(n, generator=generator) < noise
    return p, torch.where(anew, torch.randint(k, (n,), generator=generator), labels)


def tuned_on(n, k, seed, noise=0.0):
    p, y = population(n, k, seed, noise)
    return TunedData.of((), p.amax(1), p.argmax(1) != y)


# ---- plain loops


def fixed_sequence(confidences, wrong, thresholds, first, risk, level):
    """The last threshold that passes from the first on, or None."""
    found = None
    for t in thresholds[first:]:
        accepted = [i for i in range(len(wrong)) if confidences[i] >= t]
        errors = sum(wrong[i] for i in accepted)
        if not accepted or stats.binom.cdf(errors, len(accepted), risk) > 1 - level:
            break
        found = t, len(accepted), errors
    return found


def fallback(confidences, losses, thresholds, p_value, level):
    """Each threshold has an equal share of 1 − level, and the one before hands its own on if it passes."""
    found, before = None, 0.0
    for t in thresholds:
        alpha = before + (1 - level) / len(thresholds)
        accepted = [i for i in range(len(losses)) if confidences[i] >= t]
        total = sum(losses[i] for i in accepted)
        passes = accepted and p_value(total, len(accepted)) <= alpha
        before = alpha if passes else 0.0
        found = (t, len(accepted), total) if passes else found
    return found


def plain_beginning(tuned, n, risk, level):
    p_values = []
    for accepted, errors in zip(tuned.accepted, tuned.errors, strict=True):
        ours = math.floor(n * accepted / tuned.points + 1e-9)
        rate = (errors + 0.5) / (accepted + 1)
        p_values.append(stats.binom.cdf(math.ceil(ours * rate - 1e-12), ours, risk))
    likely = [place for place, p in enumerate(p_values) if p <= (1 - level) / 5]
    return likely[0] if likely else p_values.index(min(p_values))


def agree(expected, found):
    """Whether both are None, or the same threshold with the same counts."""
    if expected is None:
        assert found is None
        return
    assert (float(found), found.accepted) == pytest.approx(expected[:2])
    assert found.errors == pytest.approx(expected[2])


def attempt(*arguments, **named):
    try:
        return RiskThreshold.of(*arguments, **named)
    except DataError:
        return None


@pytest.mark.parametrize("n", [30, 120, 700])
@pytest.mark.parametrize("risk", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_sequence_is_that_of_a_loop(n, risk, level):
    made = 0
    for seed in range(4):
        p, y = population(n, 3, seed, noise=0.02)
        tuned = tuned_on(150, 3, 100 + seed)
        wrong = (p.argmax(1) != y).tolist()
        first = beginning(tuned, n, risk, 1 - level)
        assert first == plain_beginning(tuned, n, risk, level)
        expected = fixed_sequence(p.amax(1).tolist(), wrong, tuned.confidences, first, risk, level)
        found = attempt(p, y, risk=risk, level=level, tuned=tuned)
        agree(expected, found)
        if found is not None:
            made += 1
            bound = stats.beta.ppf(level, found.errors + 1, found.accepted - found.errors)
            assert found.bound == pytest.approx(bound) and found.bound <= risk * (1 + 1e-9)
            assert (found.points, found.risk, found.level, found.loss) == (n, risk, level, None)
            assert found.accepted_share == found.accepted / n
    assert made or n * risk < 40  # the comparison is not of nothing


@pytest.mark.parametrize("n", [150, 900])
@pytest.mark.parametrize("risk", [0.05, 0.3])
@pytest.mark.parametrize("tuned", [None, TunedData(())])
def test_without_tuning_data_the_grid_shares_the_level(n, risk, tuned):
    p, y = population(n, 3, 1)
    wrong = (p.argmax(1) != y).tolist()
    expected = fallback(
        p.amax(1).tolist(), wrong, GRID, lambda errors, m: stats.binom.cdf(errors, m, risk), 0.9
    )
    agree(expected, attempt(p, y, risk=risk, level=0.9, tuned=tuned))
    assert expected is not None or n * risk < 10


@pytest.mark.parametrize("n", [100, 900])
@pytest.mark.parametrize("risk", [0.4, 0.55, 1.0])
def test_costs_are_those_of_a_loop(n, risk):
    p, y = population(n, 4, 1)
    costs, losses = [], []
    for row, label in zip(p.tolist(), y.tolist(), strict=True):
        expected = [sum(row[c] * LOSS[c][a] for c in range(4)) for a in range(3)]
        costs.append(min(expected))
        losses.append(LOSS[label][expected.index(min(expected))] / 4)

    def p_value(total, m):
        a, b = min(total / m, risk / 4), risk / 4
        h = (a * math.log(a / b) if a else 0) + (1 - a) * math.log((1 - a) / (1 - b))
        return min(math.exp(-m * h), math.e * stats.binom.cdf(math.ceil(total - 1e-12), m, b))

    thresholds = [-4 * (1 - each) for each in GRID]
    expected = fallback([-each for each in costs], losses, thresholds, p_value, 0.95)
    found = attempt(p, y, risk=risk, level=0.95, loss=LOSS)
    agree(expected and (*expected[:2], 4 * expected[2]), found)
    if found is not None:
        assert found.loss == LOSS and found.bound <= risk * (1 + 1e-9)
        action, accepted = found.decide(p)
        assert int(accepted.sum()) == found.accepted
        assert found.errors == pytest.approx(
            sum(LOSS[c][a] for c, a in zip(y[accepted], action[accepted], strict=True))
        )
    assert found is not None or n == 100


def test_the_loss_of_mistakes_ranks_as_the_confidence_does():
    p, _ = population(50, 4, 1)
    action, confidence = decisions(p, (1 - torch.eye(4)).tolist())
    assert torch.equal(action, p.argmax(1))
    torch.testing.assert_close(confidence, p.amax(1) - 1)


# ---- the promise, on a population whose risks are known


DRAWS = 400
# Of so many draws with a chance of 5%, more than this are too many with a probability of 1e-4.
MOST = stats.binom.isf(1e-4, DRAWS, 0.05)


def exceeded(p, y, size, risk, loss=None, tuned=None):
    """How many promises there are, and how many of them are broken on the population."""
    action, confidence = decisions(p, loss)
    lost = (action != y).double() if loss is None else torch.tensor(loss, dtype=torch.float64)[y, action]
    made = broken = 0
    for seed in range(DRAWS):
        drawn = torch.randint(len(y), (size,), generator=torch.Generator().manual_seed(seed))
        t = attempt(p[drawn], y[drawn], risk=risk, level=0.95, loss=loss, tuned=tuned)
        if t is not None:
            made += 1
            broken += bool(lost[confidence >= t].mean() > risk)
    return made, broken


@pytest.mark.parametrize(
    "risk, loss, tunes", [(0.1, None, True), (0.2, None, True), (0.2, None, False), (0.45, LOSS, False)]
)
def test_the_risk_is_promised(risk, loss, tunes):
    p, y = population(2000, 4, 0, noise=0.02)
    tuned = tuned_on(200, 4, 1, noise=0.02) if tunes else None
    made, broken = exceeded(p, y, 1000 if loss else 300, risk, loss, tuned)
    assert made > DRAWS / 4 and broken <= MOST


def test_it_is_promised_where_the_confidence_ranks_nothing():
    """One of nine predictions is wrong above every threshold: each promise of 10% is broken."""
    confidence = torch.linspace(1, 0.5, 2000, dtype=torch.float64)
    y = (torch.arange(2000) % 9 == 0).long()
    p = torch.stack([confidence, 1 - confidence], 1)
    tuned = TunedData.of((), confidence[5::10], y[5::10])
    for each in (tuned, None):
        made, broken = exceeded(p, y, 300, 0.1, None, each)
        assert made == broken <= MOST and (made or each is None)


def test_hardly_more_than_the_chance_is_given_away():
    """At one threshold whose risk is just above, the promise is broken almost as often as it may be."""
    y = torch.zeros(1000, dtype=torch.long)
    y[:101] = 1
    p = torch.tensor([[0.9, 0.1]], dtype=torch.float64).expand(1000, 2)
    tuned = TunedData.of((), torch.full((50,), 0.9), torch.zeros(50))
    made, broken = exceeded(p, y, 500, 0.1, None, tuned)
    largest = max(e for e in range(60) if stats.binom.cdf(e, 500, 0.1) <= 0.05)
    chance = stats.binom.cdf(largest, 500, 0.101)
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], DRAWS, chance)
    assert made == broken and low <= broken <= high and low > 0


# ---- Laplace.threshold


@pytest.fixture(scope="module")
def problem():
    bayes, (x, y) = classifiers.trained(3, dtype=torch.float32, n=1500)
    bayes.tune([(x[:200], y[:200])], progress=False)
    return bayes, x[200:], y[200:]


def test_of_a_laplace(problem):
    bayes, x, y = problem
    t = bayes.threshold(reference.loader(x[:700], y[:700], 100), risk=0.1)
    expected = RiskThreshold.of(
        bayes.predict_proba(x[:700]), y[:700], risk=0.1, level=0.95, tuned=bayes._tuned
    )
    assert isinstance(t, float) and t == expected and vars(t) == vars(expected)
    assert float(t) in bayes._tuned.confidences
    accepted = bayes.confidence(x[:700]) >= t
    assert int(accepted.sum()) == t.accepted
    decided = t.decide(bayes.predict_proba(x))
    assert torch.equal(decided.accepted, bayes.confidence(x) >= t)
    assert torch.equal(decided.action, bayes.predict_proba(x).argmax(1))
    assert bayes.threshold([(x, y)], risk=0.1, by="confidence") == bayes.threshold([(x, y)], risk=0.1)
    assert bayes.threshold([(x, y)], risk=0.1, level=0.5) <= bayes.threshold([(x, y)], risk=0.1)
    assert bayes.threshold(x) == bayes.threshold(x, accept=0.95, by="score")
    assert not isinstance(bayes.threshold(x), RiskThreshold)


def test_with_a_score_the_promise_is_about_the_inputs_that_reach_it(problem):
    bayes, x, y = problem
    s = float(bayes.score(x[:700]).quantile(0.3))
    t = bayes.threshold(reference.loader(x[:700], y[:700], 100), risk=0.1, score_threshold=s)
    kept = bayes.score(x[:700]) >= s
    expected = RiskThreshold.of(
        bayes.predict_proba(x[:700])[kept], y[:700][kept], risk=0.1, level=0.95, tuned=bayes._tuned
    )
    assert 400 < int(kept.sum()) < 700  # some are refused, and the test would notice
    assert t == expected and (t.accepted, t.errors, t.bound) == (
        expected.accepted,
        expected.errors,
        expected.bound,
    )
    assert (t.points, t.score_threshold) == (700, s)
    decided = t.decide(*bayes.predict_and_score(x))
    assert torch.equal(decided.accepted, (bayes.confidence(x) >= t) & (bayes.score(x) >= s))
    with pytest.raises(ArgumentError, match="give their scores, too"):
        t.decide(bayes.predict_proba(x))
    with pytest.raises(DataError, match="none of 700 calibration points"):
        bayes.threshold([(x[:700], y[:700])], risk=0.1, score_threshold=1e9)


@pytest.mark.parametrize("option", [{"level": 0.9}, {"loss": torch.eye(3)}, {"score_threshold": 0.0}])
def test_options_of_a_risk_need_one(problem, option):
    bayes, x, y = problem
    with pytest.raises(ArgumentError, match=f"{next(iter(option))}= is of a risk: give risk="):
        bayes.threshold([(x, y)], **option)


@pytest.mark.parametrize("k", [1, 3])
def test_costs_of_a_laplace(k):
    bayes, (x, y) = classifiers.trained(k, n=3000)
    bayes.tune([(x[:200], y[:200])], progress=False)
    loss = torch.tensor([[0.0, 1.0, 0.3], [2.0, 0.0, 0.3], [2.0, 1.0, 0.3]])[: max(k, 2)]
    t = bayes.threshold([(x[200:], y[200:])], risk=0.29, loss=loss)
    expected = RiskThreshold.of(
        bayes.predict_proba(x[200:]), y[200:], risk=0.29, level=0.95, loss=checked_loss(loss, max(k, 2))
    )
    assert t == pytest.approx(expected) and t.accepted == expected.accepted and t.loss == expected.loss


def test_after_load_it_is_the_same(problem, tmp_path):
    bayes, x, y = problem
    bayes.save(tmp_path / "b")
    t = bayes.threshold([(x, y)], risk=0.1)
    again = bb.Laplace.load(tmp_path / "b", bayes.model)
    assert again.threshold([(x, y)], risk=0.1) == t


def test_an_untuned_one_and_an_old_file_use_the_grid():
    bayes, (x, y) = classifiers.trained(3, n=900, prior_variance=1.0)
    assert float(bayes.threshold([(x, y)], risk=0.3)) in GRID
    folder = Path(__file__).parent.parent / "io" / "files" / "posterior_5"
    assert "tuned" in json.loads((folder / "expected.json").read_text())
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.arange(parameter.numel()) * 5 % 7 - 3).reshape(parameter.shape) / 4)
    old = bb.Laplace.load(folder / "tuned.safetensors", model)
    x = torch.randn(400, 2, dtype=torch.float64)
    assert old._tuned is None
    assert float(old.threshold([(x, old.predict_proba(x).argmax(1))], risk=0.1)) in GRID


def test_a_nobody_chose_warning():
    bayes, (x, y) = classifiers.trained(3, n=900)
    with pytest.warns(UntunedWarning):
        bayes.threshold([(x, y)], risk=0.4)


@pytest.mark.parametrize("loss", [None, LOSS])
def test_copies_and_pickles(loss):
    t = RiskThreshold(0.75, risk=0.1, level=0.9, points=20, accepted=15, errors=1.0, bound=0.2, loss=loss)
    for each in (copy.copy(t), copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
        assert type(each) is RiskThreshold and each == t and vars(each) == vars(t)
    assert json.dumps(t) == "0.75" and bb.RiskThreshold is RiskThreshold


# ---- what is refused


def test_where_nothing_can_be_promised_the_error_says_how_many_points_it_takes(problem):
    bayes, x, y = problem
    with pytest.raises(DataError, match=r"risk=0.01, level=0.95 takes at least 299 .* there are 100\."):
        bayes.threshold([(x[:100], y[:100])], risk=0.01)
    p = torch.tensor([[0.9, 0.1]]).expand(1000, 2)
    tuned = TunedData.of((), torch.full((50,), 0.9), torch.zeros(50))
    y = torch.zeros(1000, dtype=torch.long)
    y[:8] = 1  # 0.8% of errors, for a risk of 1%
    with pytest.raises(DataError, match=r"1,000 have a confidence .* errors of 8 in all.*about") as error:
        RiskThreshold.of(p, y, risk=0.01, level=0.95, tuned=tuned)
    points = int(str(error.value).split("about ")[1].split()[0].replace(",", ""))
    assert stats.binom.cdf(round(0.008 * points), points, 0.01) <= 0.05
    assert stats.binom.cdf(round(0.008 * points / 3), points // 3, 0.01) > 0.05
    y[:30] = 1
    with pytest.raises(DataError, match=r"0\.03 for each: more points alone would not help"):
        RiskThreshold.of(p, y, risk=0.01, level=0.95, tuned=tuned)
    with pytest.raises(DataError, match="no calibration point is accepted"):
        RiskThreshold.of(p, y, risk=0.01, level=0.95, tuned=TunedData.of((), torch.ones(9), torch.zeros(9)))


def refusal(*arguments, **named):
    try:
        RiskThreshold.of(*arguments, **named)
    except DataError as error:
        return str(error)
    return ""


def test_it_takes_more_points_than_there_were():
    tuned = tuned_on(100, 3, 1)
    found = [refusal(*population(150, 3, seed), risk=0.1, level=0.95, tuned=tuned) for seed in range(60)]
    numbers = [int(each.split("about ")[1].split()[0].replace(",", "")) for each in found if "about " in each]
    assert numbers and min(numbers) > 150


@pytest.mark.parametrize(
    "options, match",
    [
        ({"accept": 0.9, "risk": 0.1}, "cannot have both"),
        ({"loss": LOSS}, "give risk="),
        ({"accept": 0.9, "loss": LOSS}, "give risk="),
        ({"score_threshold": 0.0}, "give risk="),
        ({"risk": 0.1, "score_threshold": "high"}, "expected a score"),
        ({"risk": 0.1, "score_threshold": math.nan}, "expected a score"),
        ({"risk": 0.1, "by": "score"}, "mistakes are ranked by the confidence"),
        ({"risk": 0.1, "by": "energy"}, "by='energy'"),
        ({"by": "energy"}, "by='energy'"),
        ({"risk": 0}, "between 0 and 1"),
        ({"risk": 1.0}, "between 0 and 1"),
        ({"risk": "5%"}, "between 0 and 1"),
        ({"risk": math.nan}, "between 0 and 1"),
        ({"risk": 0.1, "level": 1}, "level=1"),
        ({"risk": 0.1, "level": 0.0}, "level=0.0"),
        ({"risk": 0.1, "loss": LOSS}, r"shape \(4, 3\): expected \(3, actions\)"),
        ({"risk": 0.1, "loss": [[1.0], [-1.0], [1.0]]}, "finite costs"),
        ({"risk": 0.1, "loss": [[0.0], [0.0], [0.0]]}, "finite costs"),
        ({"risk": 0.1, "loss": [[1.0], [math.inf], [1.0]]}, "finite costs"),
        ({"risk": 0.1, "loss": [[1.0], [1.0, 2.0], [1.0]]}, "matrix of costs"),
        ({"risk": 2.5, "loss": [[1.0], [2.5], [1.0]]}, "between 0 and 2.5, the largest cost"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(problem, options, match):
    class Unread:
        def __iter__(self):
            raise AssertionError("it was read")

    with pytest.raises(ArgumentError, match=match):
        problem[0].threshold(Unread(), **options)


@pytest.mark.parametrize(
    "likelihood, match", [("gaussian", "values"), ("multilabel", "`sets`"), ("preference", "pair")]
)
def test_likelihoods_without_one_answer_are_refused(likelihood, match):
    x = torch.randn(20, 4)
    y = x[:, :1] if likelihood == "gaussian" else (x[:, :1] > 0).long()
    batch = ((x, x.flip(0)), y[:, 0]) if likelihood == "preference" else (x, y)
    bayes = bb.Laplace(nn.Linear(4, 1), likelihood=likelihood, prior_variance=1.0).fit([batch])
    with pytest.raises(ArgumentError, match=match):
        bayes.threshold([batch], risk=0.1)


def test_positions_are_refused():
    x, y = torch.randn(10, 5, 4), torch.randint(3, (10, 5))
    bayes = bb.Laplace(nn.Linear(4, 3), prior_variance=1.0).fit([(x, y)])
    with pytest.raises(ArgumentError, match="positions"):
        bayes.threshold([(x, y)], risk=0.1)


def test_wrong_labels_models_and_states(problem):
    bayes, x, y = problem
    with pytest.raises(DataError, match="labels"):
        bayes.threshold([(x, y + 7)], risk=0.1)
    with pytest.raises(DataError):
        bayes.threshold([], risk=0.1)
    with pytest.raises(NotFittedError):
        bb.Laplace(nn.Linear(4, 3)).threshold([(x, y)], risk=0.1)
    with pytest.raises(ArgumentError, match="4 classes"):
        RiskThreshold(
            -0.5, risk=1.0, level=0.95, points=9, accepted=9, errors=0.0, bound=0.9, loss=LOSS
        ).decide(torch.ones(2, 3) / 3)
    changed, (x, y) = classifiers.trained(3, n=100, prior_variance=1.0)
    with torch.no_grad():
        changed.model[2].bias.add_(1)
    with pytest.raises(ModelError):
        changed.threshold([(x, y)], risk=0.4)


@pytest.mark.parametrize(
    "probabilities, scores, message",
    [
        (torch.ones(3) / 3, torch.zeros(3), r"have shape \(3,\): expected \(n, classes\)"),
        (torch.ones(1, 4, 3) / 3, torch.zeros(1), r"have shape \(1, 4, 3\): expected \(n, classes\)"),
        (torch.ones(4, 3) / 3, torch.zeros(4, 1), r"scores have shape \(4, 1\): expected \(4,\)"),
        (torch.ones(4, 3) / 3, torch.zeros(1), r"scores have shape \(1,\): expected \(4,\)"),
    ],
)
def test_decisions_are_one_for_each_row(probabilities, scores, message):
    numbers = {"risk": 0.1, "level": 0.95, "points": 9, "accepted": 9, "errors": 0, "bound": 0.1}
    with pytest.raises(ArgumentError, match=message):
        RiskThreshold(0.3, **numbers, score_threshold=0.0).decide(probabilities, scores)
