"""Prediction sets: against plain loops, their coverage, and what is far away or wrong."""

import math
from dataclasses import replace

import numpy
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
import classifiers
import reference
from bitbayes.decisions.conformal import check_coverage, conformal_quantile
from bitbayes.decisions.prediction_sets import PENALTY, PLAIN_RANKS
from bitbayes.errors import ArgumentError, DataError, ModelError, NotFittedError, UntunedWarning
from bitbayes.io import export

METHODS = ("lac", "aps", "raps")
NONE_REFUSED = -math.inf


def classifier(k=4, n=200, **options):
    bayes, points = classifiers.trained(k, n=n, **options)
    bayes.prior_variance = 1.0
    return bayes, points


def new_points(bayes, n, seed):
    torch.manual_seed(seed)
    return classifiers.drawn(bayes.model, n)


def disagreement(p, y, method):
    """How little the class y agrees with the probabilities p of one input: smaller is better."""
    if method == "lac":
        return -p[y]
    rank = sum(other > p[y] for other in p) + 1
    before = sum(other for other in p if other > p[y])
    cost = PENALTY * max(0, rank - PLAIN_RANKS) if method == "raps" else 0.0
    return (before if rank > 1 else -p[y]) + cost


def sets_by_a_loop(calibration, labels, probabilities, coverage, method):
    scores = sorted(disagreement(p, y, method) for p, y in zip(calibration, labels, strict=True))
    exact = check_coverage(coverage)
    largest = scores[math.ceil((len(scores) + 1) * exact) - 1]
    return [[disagreement(p, y, method) <= largest + 1e-12 for y in range(len(p))] for p in probabilities]


@pytest.mark.parametrize("k", [1, 2, 4, 7])
@pytest.mark.parametrize("coverage", [0.6, 0.9, 0.97])
@pytest.mark.parametrize("method", METHODS)
def test_sets_are_those_of_a_loop(k, coverage, method):
    bayes, (x, y) = classifier(k)
    sets = bayes.sets(reference.loader(x, y, 50), coverage, method, threshold=NONE_REFUSED)
    new, _ = new_points(bayes, 100, 1)
    calibration, probabilities = (bayes.predict_proba(each).tolist() for each in (x, new))
    expected = sets_by_a_loop(calibration, y.tolist(), probabilities, coverage, method)
    assert sets(new).tolist() == expected
    assert torch.equal(sets([new[:30], new[30:]]), sets(new))
    assert torch.equal(sets.of(bayes.predict_proba(new)), sets(new))
    assert (sets.method, sets.coverage, sets.threshold, sets.groups) == (method, coverage, None, None)


@pytest.mark.parametrize("method", METHODS)
def test_coverage_follows_the_beta_binomial_law(method):
    """Of m new points, BetaBinomial(m, n + 1 − j, j) are covered for each calibration set."""
    bayes, _ = classifier(4)
    n, m, coverage, draws = 59, 400, 0.9, 40
    j = 6
    law = stats.betabinom(m, n + 1 - j, j)
    total = 0
    for draw in range(draws):
        x, y = new_points(bayes, n + m, draw)
        sets = bayes.sets([(x[:n], y[:n])], coverage, method, threshold=NONE_REFUSED)
        covered = int(sets(x[n:])[torch.arange(m), y[n:]].sum())
        assert law.ppf(1e-6) <= covered <= law.isf(1e-6)
        total += covered
    mean, deviation = m * (n + 1 - j) / (n + 1), math.sqrt(law.var() / draws)
    assert abs(total / draws - mean) < 4 * deviation


def test_the_most_probable_class_is_in_every_adaptive_set_unless_the_model_is_right_more_often():
    bayes, (x, y) = classifier(4)
    probabilities = bayes.predict_proba(x)
    accuracy = (probabilities.argmax(1) == y).double().mean().item()
    for method in ("aps", "raps"):
        above = bayes.sets([(x, y)], accuracy + 0.03, method, threshold=NONE_REFUSED)(x)
        assert bool(above[torch.arange(len(x)), probabilities.argmax(1)].all())
        below = bayes.sets([(x, y)], accuracy - 0.1, method, threshold=NONE_REFUSED)(x)
        empty = ~below.any(1)
        confidence = probabilities.amax(1)
        assert bool(empty.any()) and confidence[empty].max() < confidence[~empty].min()


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_small_probabilities_keep_their_digits(method):
    """The mass before the last classes is 1 in float32, and still they have an order."""
    p = torch.tensor([[1.0, 1e-9, 1e-12, 1e-15]])
    bayes, (x, y) = classifier(4)
    sets = bayes.sets([(x, y)], 0.9, method, threshold=NONE_REFUSED)
    sizes = [int(replace(sets, quantile=value).of(p).sum()) for value in (1e-8, 1e-10, 1e-13, 1e-16)]
    assert sizes == [1, 2, 3, 4]


# ---- within classes and groups


@pytest.mark.parametrize("method", METHODS)
def test_within_classes_each_class_has_its_own_quantile(method):
    bayes, (x, y) = classifier(3, n=150)
    sets = bayes.sets([(x, y)], 0.9, method, within="class", threshold=NONE_REFUSED)
    p = bayes.predict_proba(x).tolist()
    exact = check_coverage(0.9)
    for each in range(3):
        scores = sorted(disagreement(p[i], each, method) for i in range(len(p)) if y[i] == each)
        largest = scores[math.ceil((len(scores) + 1) * exact) - 1]
        expected = [disagreement(row, each, method) <= largest + 1e-12 for row in p]
        assert sets(x)[:, each].tolist() == expected
    assert sets.quantile.shape == (3,) and sets.groups is None


@pytest.mark.parametrize("kind", [list, numpy.array, tuple])
def test_within_groups_each_group_has_its_own_quantile(kind):
    bayes, (x, y) = classifier(3)
    names = ["hard" if float(row.norm()) < 1 else "easy" for row in x]
    sets = bayes.sets(reference.loader(x, y, 30), 0.9, within=kind(names), threshold=NONE_REFUSED)
    found = sets(x, groups=names)
    for group in ("hard", "easy"):
        rows = torch.tensor([name == group for name in names])
        alone = bayes.sets([(x[rows], y[rows])], 0.9, threshold=NONE_REFUSED)
        assert torch.equal(found[rows], alone(x)[rows])
        place = sets.groups.index(group)
        assert sets.quantile[place].item() == alone.quantile
    parts = sets([x[:50], x[50:]], groups=kind(names))
    assert torch.equal(parts, found)


def test_groups_may_be_a_tensor_of_whole_numbers():
    bayes, (x, y) = classifier(3)
    numbers = torch.arange(len(x)) % 2
    sets = bayes.sets([(x, y)], 0.9, within=numbers)
    assert sets.groups == (0, 1)
    assert sets(x[:3], groups=[1, 0, 1]).shape == (3, 3)


def test_labels_of_groups_that_do_not_fit_are_refused():
    bayes, (x, y) = classifier(3)
    names = ["a", "b"] * 100
    sets = bayes.sets([(x, y)], 0.9, within=names)
    with pytest.raises(ArgumentError, match="calibrated within groups: give groups="):
        sets(x)
    with pytest.raises(ArgumentError, match=r"group 'c' was not among .*'a', 'b'"):
        sets(x[:2], groups=["a", "c"])
    with pytest.raises(ArgumentError, match="groups has 3 labels for 2 inputs"):
        sets(x[:2], groups=["a", "b", "a"])
    with pytest.raises(ArgumentError, match="groups has 1 labels for 2 inputs"):
        sets(x[:2], groups=["a"])
    with pytest.raises(ArgumentError, match="groups= is for sets"):
        bayes.sets([(x, y)])(x, groups=names)
    with pytest.raises(ArgumentError, match="within has 199 labels for 200 calibration points"):
        bayes.sets([(x, y)], within=names[1:])
    with pytest.raises(ArgumentError, match="the label of a group is nan"):
        bayes.sets([(x, y)], within=[math.nan] * 200)
    with pytest.raises(ArgumentError, match="within='clas' is not known, did you mean 'class'"):
        bayes.sets([(x, y)], within="clas")
    with pytest.raises(ArgumentError, match="label of a group for each point, got 3"):
        bayes.sets([(x, y)], within=3)
    shuffled = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    with pytest.raises(ArgumentError, match="the loader shuffles"):
        bayes.sets(shuffled, within=names)
    assert bayes.sets(shuffled, within="class", coverage=0.8).quantile.shape == (3,)


def test_too_few_points_are_refused_and_named():
    bayes, (x, y) = classifier(3)
    with pytest.raises(DataError, match=r"coverage=0.95 takes 19 .* there are 18: give 1 more"):
        bayes.sets([(x[:18], y[:18])])
    few = torch.cat([(y != 2).nonzero()[:, 0], (y == 2).nonzero()[:5, 0]])
    with pytest.raises(DataError, match=r"19 calibration points of each class: class 2 has 5, 14 too few\."):
        bayes.sets([(x[few], y[few])], within="class")
    none = (y != 2).nonzero()[:, 0]
    with pytest.raises(DataError, match="class 2 has 0, 19 too few"):
        bayes.sets([(x[none], y[none])], within="class")
    names = ["a"] * 188 + ["b"] * 12
    with pytest.raises(DataError, match="of each group: group 'b' has 12, 7 too few"):
        bayes.sets([(x, y)], within=names)
    with pytest.raises(DataError, match="; and 90 others"):
        bayes.sets([(x, y)], within=[each // 2 for each in range(200)])


# ---- several labels


def several_labels(n=120, k=5):
    torch.manual_seed(0)
    model = nn.Linear(4, k).double()
    bayes = bb.Laplace(model, likelihood="multilabel", prior_variance=1.0)
    x = 2 * torch.randn(2 * n, 4, dtype=torch.float64)
    y = torch.rand(2 * n, k) < model(x).sigmoid() ** 2
    return bayes.fit([(x[:n], y[:n])]), x[n:], y[n:]


def share_missed(found, labels):
    """The mean share of true labels that are not in the set; 0 for a point without labels."""
    shares = [
        sum(has and not given for given, has in zip(row, own, strict=True)) / max(1, sum(own))
        for row, own in zip(found.tolist(), labels.tolist(), strict=True)
    ]
    return sum(shares) / len(shares)


@pytest.mark.parametrize("coverage", [0.8, 0.95])
def test_several_labels_miss_as_many_as_are_allowed(coverage):
    bayes, x, y = several_labels()
    n = len(x)
    sets = bayes.sets([(x, y)], coverage, threshold=NONE_REFUSED)
    found = sets(x)
    assert (n * share_missed(found, y) + 1) / (n + 1) <= 1 - coverage
    assert torch.equal(found, bayes.predict_proba(x) >= sets.quantile)
    more = bayes.predict_proba(x)[y]
    larger = more[more > sets.quantile].min()  # the next threshold would miss too many
    assert (n * share_missed(bayes.predict_proba(x) >= larger, y) + 1) / (n + 1) > 1 - coverage


def test_several_labels_keep_their_promise_on_average():
    bayes, _, _ = several_labels()
    missed = []
    for draw in range(200):
        torch.manual_seed(draw)
        x = 2 * torch.randn(80, 4, dtype=torch.float64)
        y = torch.rand(80, 5) < bayes.model(x).sigmoid() ** 2
        sets = bayes.sets([(x[:40], y[:40])], 0.9, threshold=NONE_REFUSED)
        missed.append(share_missed(sets(x[40:]), y[40:]))
    mean, error = numpy.mean(missed), numpy.std(missed) / math.sqrt(len(missed))
    assert 0.1 - 1 / 41 - 4 * error < mean < 0.1 + 4 * error  # a point loses at most 1


def test_within_the_classes_of_several_labels_each_label_is_found():
    bayes, x, y = several_labels(400)
    sets = bayes.sets([(x, y)], 0.9, within="class", threshold=NONE_REFUSED)
    p = bayes.predict_proba(x)
    exact = check_coverage(0.9)
    expected = [conformal_quantile(p[:, each][y[:, each]], exact) for each in range(5)]
    assert torch.equal(sets.quantile, torch.stack(expected))
    groups = ["a", "b"] * 200
    grouped = bayes.sets([(x, y)], 0.9, within=groups)
    alone = bayes.sets([(x[::2], y[::2])], 0.9)
    assert grouped.quantile[0].item() == alone.quantile


def test_several_labels_take_one_method_and_some_labels():
    bayes, x, y = several_labels()
    with pytest.raises(ArgumentError, match="several labels need method='lac'"):
        bayes.sets([(x, y)], method="aps")
    with pytest.raises(DataError, match="no calibration point has a label"):
        bayes.sets([(x, torch.zeros_like(y))])


# ---- what is refused


def test_a_refused_input_gets_the_full_set_and_others_keep_theirs():
    bayes, (x, y) = classifier(4)
    for method in METHODS:
        plain = bayes.sets([(x, y)], 0.9, method, threshold=NONE_REFUSED)
        middle = bayes.score(x).median().item()
        refusing = bayes.sets([(x, y)], 0.9, method, threshold=middle)
        refused = bayes.score(x) < middle
        assert refusing.threshold == middle and refusing.quantile == plain.quantile
        assert bool(refusing(x)[refused].all())
        assert torch.equal(refusing(x)[~refused], plain(x)[~refused])


def test_by_default_one_in_a_hundred_calibration_points_is_refused():
    bayes, (x, y) = classifier(4)
    sets = bayes.sets([(x, y)])
    assert sets.threshold == bayes.threshold(x, accept=0.99)
    assert int((bayes.score(x) < sets.threshold).sum()) == 2
    few = bayes.sets([(x[:19], y[:19])])
    assert few.threshold == bayes.score(x[:19]).min().item()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factor", [10.0, 1e3, 1e30])
def test_far_away_the_set_is_full(method, factor):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = torch.randn(900, 6), torch.arange(900) % 4
    parts = [(x[start : start + 300], y[start : start + 300]) for start in (0, 300, 600)]
    bayes = bb.Laplace(model).fit(parts[:1]).tune(parts[1:2])
    sets = bayes.sets(parts[2:], method=method)
    assert bool(sets(factor * x).all())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_inputs_that_are_not_finite_are_refused(value):
    bayes, (x, y) = classifier(4)
    bad = x.clone()
    bad[3, 0] = value
    with pytest.raises(DataError, match="batch 0 holds NaN or infinity"):
        bayes.sets([(bad, y)])
    sets = bayes.sets([(x, y)])
    with pytest.raises(DataError, match="the input holds NaN or infinity"):
        sets(bad)
    with pytest.raises(DataError, match="one row: use x"):
        sets(x[0])


# ---- arguments, models and settings


def test_wrong_arguments_are_refused_before_the_data_are_read():
    bayes, (x, y) = classifier(4)

    def unread():
        raise AssertionError("the loader was read")
        yield

    with pytest.raises(ArgumentError, match="coverage=1: expected"):
        bayes.sets(unread(), 1)
    with pytest.raises(ArgumentError, match="method='las' is not known, did you mean 'lac'"):
        bayes.sets(unread(), method="las")
    for threshold in (math.nan, math.inf, "low"):
        with pytest.raises(ArgumentError, match=r"threshold=.*expected a score"):
            bayes.sets(unread(), threshold=threshold)
    with pytest.raises(DataError, match="expected a loader"):
        bayes.sets(x)
    with pytest.raises(DataError, match=r"batch 0: the labels are .* from 0 to 3"):
        bayes.sets([(x, y + 1)])
    with pytest.raises(DataError, match="batch 0"):
        bayes.sets([(x, y[:, None].repeat(1, 2))])


def test_models_without_sets_say_so():
    regression = bb.Laplace(nn.Linear(2, 1), likelihood="gaussian", prior_variance=1.0)
    x = torch.randn(40, 2)
    with pytest.raises(ArgumentError, match="use `conformal_interval`"):
        regression.fit([(x, x[:, :1])]).sets([(x, x[:, :1])])
    pairs = bb.Laplace(nn.Linear(2, 1), likelihood="preference", prior_variance=1.0).fit([(x, x + 1)])
    with pytest.raises(ArgumentError, match="which input comes first in a pair"):
        pairs.sets([(x, x + 1)])
    positions = bb.Laplace(nn.Conv2d(1, 3, 1), prior_variance=1.0)
    images, labels = torch.rand(8, 1, 4, 4), torch.randint(3, (8, 4, 4))
    with pytest.raises(ArgumentError, match="the output has positions"):
        positions.fit([(images, labels)]).sets([(images, labels)])
    with pytest.raises(NotFittedError):
        bb.Laplace(nn.Linear(2, 3)).sets([(x, torch.arange(40) % 3)])


def test_sets_keep_the_settings_that_they_were_calibrated_with():
    bayes, (x, y) = classifier(4)
    sets = bayes.sets([(x, y)])
    before = sets(x)
    bayes.temperature, bayes.predictive = 7.0, "probit"
    assert torch.equal(sets(x), before)
    with torch.no_grad():
        bayes.model[2].weight.mul_(2)
    with pytest.raises(ModelError, match="changed"):
        sets(x)


def test_an_untuned_posterior_warns():
    bayes, (x, y) = classifiers.trained(3, n=60)
    with pytest.warns(UntunedWarning):
        bayes.sets([(x, y)])


def test_the_text_shows_numbers_and_no_model():
    bayes, (x, y) = classifier(3)
    text = repr(bayes.sets([(x, y)]))
    assert text.startswith("PredictionSets(method='lac', coverage=0.95, quantile=0.") and len(text) < 200


@pytest.mark.parametrize("predictive", ["mc", "sampled_networks"])
def test_drawn_predictives_have_sets(predictive):
    bayes, (x, y) = classifier(3, n=60, layers="all", predictive=predictive, residual=False)
    sets = bayes.sets([(x, y)], 0.9, threshold=NONE_REFUSED)
    covered = sets(x)[torch.arange(60), y].float().mean()
    assert covered > 0.75
    if predictive == "sampled_networks":  # the networks are those of the calibration
        assert torch.equal(sets(x), sets(x))


class SetsOf(nn.Module):
    """The sets as a part of a graph."""

    def __init__(self, bayes, sets):
        super().__init__()
        self.model, self.sets = bayes.model, sets

    def forward(self, x):
        return self.sets.of(x["probabilities"], x["accepted"])


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("within", [None, "class"])
@pytest.mark.parametrize("method", METHODS)
def test_the_operations_become_a_graph(method, within, tmp_path):
    bayes, (x, y) = classifier(4)
    sets = bayes.sets([(x, y)], 0.9, method, within)
    inputs = {"probabilities": bayes.predict_proba(x), "accepted": bayes.score(x) >= sets.threshold}
    example = {name: value[:5] for name, value in inputs.items()}
    graph = export.Graph(SetsOf(bayes, sets), ("sets",))
    export.write(graph, tmp_path / "sets.pt2", example)
    assert torch.equal(torch.export.load(tmp_path / "sets.pt2").module()(inputs), sets(x))
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    export.write(graph, tmp_path / "sets.onnx", example)
    session = runtime.InferenceSession(str(tmp_path / "sets.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    assert torch.equal(torch.tensor(found), sets(x))


def test_sets_of_probabilities_are_one_for_each_row():
    bayes, (x, y) = classifier()
    sets, p = bayes.sets([(x + 0.1, y)], 0.9), torch.full((5, 4), 0.25)
    with pytest.raises(ArgumentError, match=r"have shape \(4,\): expected \(n, classes\)"):
        sets.of(p[0])
    for accepted in (torch.ones(5, 1, dtype=torch.bool), torch.ones(5)):
        with pytest.raises(ArgumentError, match="expected one boolean for each input"):
            sets.of(p, accepted)
