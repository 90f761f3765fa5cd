"""The sums of a pass at the levels of the residual: those of all batches, and which levels are left out."""

import copy
import sys

import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError
from bitbayes.fitting import last_layer
from bitbayes.fitting.level_totals import LevelTotals
from bitbayes.likelihoods import LIKELIHOODS, Categorical
from bitbayes.model import Batch, private_copy, run_levels
from bitbayes.options import Options
from bitbayes.residual import LevelSums, sums
from bitbayes.toys import MLP
from reference import loader

X, Y = torch.randn(30, 4, dtype=torch.float64), torch.arange(30) % 3


def model():
    torch.manual_seed(0)
    return MLP((4, 6, 5, 3)).double()


def totals(network, inputs, before=(), head=None, **options):
    return LevelTotals.of(Options(**options), private_copy(network), inputs, head, dict(before))


def level_sums(network, batches, **options):
    return bb.Laplace(network, **options).fit(batches).posterior.fitted.level_sums


def plain(network, x):
    """The features before each layer of the MLP, by a loop."""
    rows = [x]
    for layer in network:
        x = layer(x).detach()
        if isinstance(layer, nn.ReLU):
            rows.append(x)
    return dict(zip(("input", "2", "head"), rows, strict=True))


def sums_of(features, labels=Y, classes=3):
    """The sums of all features at once; those of the head have the means of their classes."""
    return {
        name: LevelSums.of(rows, correlated=True, labels=labels, classes=classes if name == "head" else 0)
        for name, rows in features.items()
    }


def assert_same(found, expected, close=1e-12):
    """To `close` of the largest number of each tensor."""
    assert [*found] == [*expected]
    for name, each in expected.items():
        for field, value in each.tensors().items():
            ours = found[name].tensors()[field]
            assert ours.shape == value.shape, (name, field)
            if value.numel():
                assert float((ours - value).abs().max()) <= close * float(value.abs().max()), (name, field)


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("batch", [1, 7, 30])
def test_they_are_those_of_all_features_at_once(layers, batch):
    network = model()
    assert_same(level_sums(network, loader(X, Y, batch), layers=layers), sums_of(plain(network, X)))


@pytest.mark.parametrize("size", [1, 8 * 4 * 8, 10**9])
def test_they_do_not_depend_on_how_many_features_wait(size, monkeypatch):
    network = model()
    expected = level_sums(network, [(X, Y)])
    monkeypatch.setattr(last_layer, "FIT_BYTES", size)
    assert_same(level_sums(network, loader(X, Y)), expected)


def test_one_product_serves_many_batches(monkeypatch):
    rows, plain_of = [], LevelSums.of.__func__
    counted = classmethod(
        lambda cls, each, **options: rows.append(each.shape) or plain_of(cls, each, **options)
    )
    monkeypatch.setattr(LevelSums, "of", counted)
    level_sums(model(), loader(X, Y, 10))
    assert rows == [(30, 4), (30, 6), (30, 5)]


def test_inputs_do_not_wait_for_more_than_a_few(monkeypatch):
    """For 80 numbers: two batches of 10 rows of 4, and one more at the end."""
    rows, plain_of = [], LevelSums.of.__func__
    counted = classmethod(
        lambda cls, each, **options: rows.append(each.shape) or plain_of(cls, each, **options)
    )
    monkeypatch.setattr(LevelSums, "of", counted)
    monkeypatch.setattr("bitbayes.fitting.level_totals.STEP_NUMBERS", 80)
    level_sums(model(), loader(X, Y, 10))
    assert rows == [(20, 4), (10, 4), (30, 6), (30, 5)]


def test_a_fit_takes_one_pass_and_changes_nothing_of_the_model():
    network = model().train()
    before, passes = copy.deepcopy(network.state_dict()), []
    network[2].register_forward_hook(lambda *_: passes.append(1))
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in network.modules()]
    with_it = bb.Laplace(network).fit(loader(X, Y, 10))
    count = len(passes)
    without = bb.Laplace(network, residual=False).fit(loader(X, Y, 10))
    assert count == len(passes) - count + 1  # one more of the first rows, to find the levels
    assert network.training and all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert hooks == [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in network.modules()]
    assert with_it.posterior.fitted.loss == without.posterior.fitted.loss
    # It is off until tuned. Its sums give the second moments of "kron", which are rounded in another way.
    torch.testing.assert_close(with_it.predict_proba(X), without.predict_proba(X), rtol=1e-12, atol=0)


def test_a_model_that_works_in_place_is_fitted_as_without_a_residual():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x):
            return self.head(self.first(x.mul_(0.5)).relu_())

    network = InPlace()
    fits = [
        bb.Laplace(network, residual=each).fit([(X.clone(), Y)]).posterior.fitted for each in ("auto", False)
    ]
    loss = nn.functional.cross_entropy(network(X.clone()).detach(), Y, reduction="sum")
    assert fits[0].loss == fits[1].loss == pytest.approx(float(loss), rel=1e-13)
    features = {"input": X, "head": network.first(X / 2).relu().detach()}
    assert_same(fits[0].level_sums, sums_of(features))


def test_wide_features_and_images_have_no_correlations(monkeypatch):
    monkeypatch.setattr("bitbayes.fitting.level_totals.LARGEST_WIDTH", 5)
    found = level_sums(model(), [(X, Y)])
    assert [name for name, each in found.items() if each.correlated] == ["input", "head"] and len(found) == 3
    images = level_sums(nn.Sequential(nn.Flatten(), model()), [(X.reshape(30, 1, 2, 2), Y)])
    assert not images["input"].correlated


def test_without_a_residual_there_are_none():
    found = totals(model(), X, residual=False)
    batch = Batch(X, Y, "batch 0")
    assert found.levels == () and found.attach(batch) is batch and found.sums == {}
    assert level_sums(model(), [(X, Y)], residual=False) == {}


# ---- what is left out


def pooled():
    """A network for images of any size, whose levels are of channels."""
    torch.manual_seed(0)
    first, second, third = (nn.Conv2d(i, i + 1, 3, padding=1) for i in (1, 2, 3))
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third, pool, nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("order", [(4, 4, 5), (5, 4, 4), (4, 5, 4)])
def test_inputs_that_are_not_of_one_size_have_no_level_of_their_own(layers, order):
    batches = [(torch.rand(6, 1, size, size), torch.arange(6) % 3) for size in order]
    found = level_sums(pooled(), batches, layers=layers)
    assert [*found] == ["4", "head"] and [float(each.count) for each in found.values()] == [18, 18]
    with pytest.raises(DataError, match=r"inputs of (16|25) and of (16|25) numbers"):
        level_sums(pooled(), batches, layers=layers, residual=True)


class Stretched(nn.Module):
    """A layer whose input has as many features as the image has columns."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(1, 1), nn.Linear(2, 3)
        self.lines = self.Lines()

    class Lines(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 1))

        def forward(self, x):  # (n, t)
            return x.mean(1, keepdim=True) @ self.weight.T

    def forward(self, x):  # (n, t, 1)
        return self.head(self.lines(self.first(x)[:, :, 0]))


@pytest.mark.parametrize("size", [1, 10**9])
@pytest.mark.parametrize("order", [(4, 4, 5), (5, 4, 4), (4, 5, 4)])
def test_features_that_are_not_of_one_size_are_no_level(order, size, monkeypatch):
    """Whether they are noticed while they wait, or beside what was summed up before."""
    monkeypatch.setattr(last_layer, "FIT_BYTES", size)
    network, y = Stretched(), torch.arange(6) % 3
    same = level_sums(network, [(torch.rand(6, 4, 1), y)])
    assert [*same] == ["input", "lines", "head"] and len(same["lines"].mean) == 4
    batches = [(torch.rand(6, length, 1), y) for length in order]
    bayes = bb.Laplace(network).fit(batches)
    assert [*bayes.posterior.fitted.level_sums] == ["head"]
    assert [each.name for each in bayes.posterior.fitted.levels] == ["head"]
    assert bayes.known_residual.names == ("head", "classes")
    assert bayes.known_residual.distances(batches[0][0]).shape == (6, 2)
    with pytest.raises(DataError, match=r"inputs of (4|5) and of (4|5) numbers"):
        level_sums(network, batches, residual=True)


def test_what_an_earlier_pass_has_left_out_stays_so():
    known = LevelSums.of(plain(model(), X)["2"], correlated=True)
    found = totals(model(), X[:2], {"2": known})
    assert [each.name for each in found.levels] == ["2"] and not found.input_is_level
    found.add_run(Batch(X, Y, "batch 0"), model(), Y)
    assert [*found.sums] == ["2"] and float(found.sums["2"].count) == 60
    whole = totals(model(), X[:2])
    assert [each.name for each in whole.levels] == ["2", "head"] and whole.input_is_level


def test_inputs_without_a_distance_are_refused_where_there_is_no_level_either():
    ids = torch.ones(4, 2, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"inputs of torch.int64: use residual=False"):
        totals(nn.Flatten(), ids, residual=True)
    assert totals(nn.Flatten(), ids).levels == ()


# ---- how they are used


def test_batches_are_observed_while_the_model_runs():
    network = model()
    found = totals(network, X[:2])
    batch = found.attach(Batch(X, Y, "batch 0"))
    assert [each.name for each in batch.observer.levels] == ["2", "head"]
    assert batch.observer.look(run_levels(private_copy(network), found.levels, X)) is None
    assert not found.sums and not found.waiting[0][0].requires_grad
    added = found.add_waiting()
    assert [*found.sums] == ["input", "2", "head"] and found.waiting == []
    assert_same({"head": added}, {"head": found.sums["head"]}, 0)
    assert found.add_waiting() is None  # nothing waits


@pytest.mark.parametrize("steps", [1, 4, 50])
def test_rows_are_summed_up_a_few_at_a_time(steps, monkeypatch):
    expected = level_sums(model(), [(X, Y)])
    monkeypatch.setattr(sums, "STEP_NUMBERS", steps)
    assert_same(level_sums(model(), [(X, Y)]), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_of_fewer_bits_has_its_sums_in_float64(dtype):
    network = model().to(dtype)
    found = level_sums(network, [(X.to(dtype), Y)])
    for name, rows in plain(network, X.to(dtype)).items():
        expected = LevelSums.of(rows.double(), correlated=True)
        # Features of another product may differ in their last bit.
        error = 8 * torch.finfo(dtype).eps * float(rows.abs().max())
        torch.testing.assert_close(found[name].mean, expected.mean, rtol=0, atol=error)
        assert all(value.dtype == torch.float64 for value in found[name].tensors().values())


# ---- the means of classes

# Of classes of other sizes, and one without points.
LABELS = torch.tensor([0, 0, 0, 2, 2, 0, 3, 2, 0, 0]).repeat(3)


def wider(k=4):
    torch.manual_seed(0)
    return MLP((4, 6, 5, k)).double()


def batches_of(sizes, labels=LABELS):
    return list(zip(X.split(sizes), labels.split(sizes), strict=True))


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("sizes", [[30], [1] * 30, [7, 1, 12, 10], [3, 3, 3, 21]], ids=str)
def test_the_means_of_classes_are_those_of_all_features_at_once(layers, sizes):
    network = wider()
    found = level_sums(network, batches_of(sizes), layers=layers)
    features = plain(network, X)
    assert_same(found, sums_of(features, LABELS, 4))
    assert found["head"].class_counts.tolist() == [18.0, 0.0, 9.0, 3.0]
    for label in (0, 2, 3):
        mean = features["head"][label == LABELS].mean(0)
        torch.testing.assert_close(found["head"].class_means[label], mean, rtol=1e-12, atol=1e-12)
    assert not any(found[name].has_classes for name in ("input", "2"))


@pytest.mark.parametrize("size", [1, 8 * 4 * 8, 10**9])
def test_the_means_of_classes_do_not_depend_on_how_many_features_wait(size, monkeypatch):
    expected = level_sums(wider(), [(X, LABELS)])
    monkeypatch.setattr(last_layer, "FIT_BYTES", size)
    assert_same(level_sums(wider(), batches_of([7, 1, 12, 10])), expected)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.float32, torch.bool])
def test_labels_of_one_logit_are_two_classes(kind):
    """Of any type that the likelihood takes; also as a column."""
    network, labels = wider(1), torch.arange(30) % 3 == 0
    expected = sums_of(plain(network, X), labels.long(), 2)
    for given in (labels.to(kind), labels.to(kind)[:, None]):
        assert_same(level_sums(network, [(X, given)]), expected)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_updates_add_the_means_of_classes(layers):
    network = wider()
    bayes = bb.Laplace(network, layers=layers).fit([(X[:11], LABELS[:11])])
    bayes.update([(X[11:20], LABELS[11:20]), (X[20:], LABELS[20:])])
    assert_same(bayes.posterior.fitted.level_sums, sums_of(plain(network, X), LABELS, 4))


def test_a_pass_that_is_resumed_goes_on_with_the_means_of_classes():
    """A checkpoint has sums: of a class that comes later, and of one that does not come again."""
    network = wider()
    order = LABELS.sort().indices
    x, labels = X[order], LABELS[order]
    parts = []
    for rows in (slice(0, 13), slice(13, 30)):
        found = totals(network, x[:2], parts[-1] if parts else ())
        found.expect_classes(4)
        found.add_run(Batch(x[rows], labels[rows], "batch 0"), private_copy(network), labels[rows])
        parts.append(found.sums)
    assert parts[0]["head"].class_counts.tolist() == [13.0, 0.0, 0.0, 0.0]
    assert_same(parts[1], sums_of(plain(network, x), labels, 4))


class Everywhere(nn.Module):
    """Logits at every position of a sequence, of features that are averaged at the head."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.first(x).relu()).transpose(1, 2)


def test_positions_have_no_means_of_classes():
    x, y = torch.randn(12, 6, 4), torch.arange(72).reshape(12, 6) % 3
    found = level_sums(Everywhere(), [(x, y)])
    assert "head" in found and not any(each.has_classes for each in found.values())


@pytest.mark.parametrize("layers", ["last", "all"])
def test_labels_that_are_no_classes_have_no_means(layers, monkeypatch):
    class Levels(Categorical):
        name = "levels"
        labels_are_classes = False

    monkeypatch.setitem(LIKELIHOODS, "levels", Levels())
    found = level_sums(model(), [(X, Y)], likelihood="levels", layers=layers)
    assert_same(found, sums_of(plain(model(), X), classes=0))


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("most", [3, 4])
def test_there_are_no_means_of_more_classes_than_are_kept(layers, most, monkeypatch):
    monkeypatch.setattr("bitbayes.fitting.level_totals.LARGEST_CLASSES", most)
    found = level_sums(wider(), [(X, LABELS)], layers=layers)
    assert found["head"].has_classes == (most == 4)
    plain_sums = sums_of(plain(wider(), X), LABELS, 4 if most == 4 else 0)
    assert_same(found, plain_sums)


def test_features_that_are_too_wide_for_correlations_have_no_means_of_classes(monkeypatch):
    monkeypatch.setattr("bitbayes.fitting.level_totals.LARGEST_WIDTH", 4)
    found = level_sums(wider(), [(X, LABELS)])
    assert not found["head"].correlated and not found["head"].has_classes


def test_labels_that_are_not_valid_are_refused_as_without_a_residual():
    """They are checked later than they are used."""
    for residual in ("auto", False):
        for wrong in (-1, -100, 4, 10**9):
            labels = LABELS.clone()
            labels[7] = wrong
            with pytest.raises(DataError, match=r"the labels are .*expected|from 0"):
                bb.Laplace(wider(), residual=residual).fit([(X, labels)])


def test_the_work_for_a_batch_does_not_grow_with_the_batches_that_wait():
    def calls_per_batch(count):
        """Python's calls for a batch, of functions and of methods in C; `count` batches wait in the end."""
        batches, found = [torch.zeros(1, 3) for _ in range(count)], 0

        def counted(frame, event, argument):
            nonlocal found
            found += event in ("call", "c_call")

        levels = LevelTotals(nn.Identity(), input_is_level=True)
        sys.setprofile(counted)
        try:
            for each in batches:
                levels.attach(Batch(each, None, "a batch"))
        finally:
            sys.setprofile(None)
        assert len(levels.waiting_inputs) == count
        return found / count

    assert calls_per_batch(400) < 1.1 * calls_per_batch(100)
