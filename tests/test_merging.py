"""Posteriors that are merged, or that a part is taken out of: against one fit on the data that are left."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bitbayes as bb
from bitbayes.errors import ArgumentError, DataError, FileError, ModelError
from bitbayes.fitted import Fitted
from bitbayes.residual import LevelSums
from bitbayes.structures import DiagCurvature
from classifiers import points, relu_mlp

# Each sum, relative to its largest number. The rounding errors of float64 are a thousandth of that.
CLOSE = 1e-9
CASES = [
    {"structure": "full"},
    {"structure": "kron"},
    {"structure": "diag"},
    {"structure": "isotropic"},
    {"layers": "all", "structure": "full"},
    {"layers": "all", "structure": "kron"},
    {"layers": "all", "structure": "diag"},
]


def parts(options, k=3, n=90, dtype=torch.float64):
    """A model, inputs and labels, and fits of three parts of them."""
    x, y = points(n, k=k, dtype=dtype)
    x = 1 + x * torch.tensor([1.0, 5.0, 0.1, 1.0], dtype=dtype)
    model = relu_mlp(k, dtype)
    cuts = (slice(0, 20), slice(20, 75), slice(75, n))
    return model, x, y, [bb.Laplace(model, **options).fit([(x[cut], y[cut])]) for cut in cuts]


def assert_same(found, expected, close=CLOSE):
    ours, theirs = found.posterior.fitted, expected.posterior.fitted
    assert ours.count == theirs.count and ours.loss == pytest.approx(theirs.loss, rel=close)
    for name, curvature in theirs.curvature.items():
        for field, tensor in curvature.tensors().items():
            gap = (ours.curvature[name].tensors()[field] - tensor).abs().amax()
            assert gap <= close * tensor.abs().amax(), (name, field)
    assert [*ours.level_sums] == [*theirs.level_sums] and ours.levels == theirs.levels
    for name, sums in theirs.level_sums.items():
        for field, tensor in sums.tensors().items():
            gap = (ours.level_sums[name].tensors()[field] - tensor).abs()
            assert not len(gap.flatten()) or gap.amax() <= close * tensor.abs().amax(), (name, field)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_parts_that_are_merged_and_taken_out(options, k):
    model, x, y, (a, b, c) = parts(options, k)
    whole = bb.merge([a, b, c])
    fitted = lambda *rows: bb.Laplace(model, **options).fit([(x[cut], y[cut]) for cut in rows])  # noqa: E731
    assert_same(whole, fitted(slice(0, 90)))
    assert_same(bb.merge(whole, without=b), fitted(slice(0, 20), slice(75, 90)))
    # Added by `update`, and taken out by fits that have read their points in other batches and another order.
    whole = fitted(slice(20, 75)).update([(x[:20], y[:20])]).update([(x[75:], y[75:])])
    others = [fitted(slice(10, 20), slice(0, 3), slice(3, 10)), fitted(slice(80, 90), slice(75, 80))]
    assert_same(bb.merge(whole, without=others), fitted(slice(20, 75)))
    torch.testing.assert_close(
        bb.merge(whole, without=[a, c]).predict_proba(x), b.predict_proba(x), rtol=0, atol=CLOSE
    )
    assert a.posterior.fitted.count == 20  # the parts stay as they are


def test_files_and_objects(tmp_path):
    model, x, _, (a, b, c) = parts({})
    for name, each in zip("abc", (a, b, c), strict=True):
        each.save(tmp_path / name)
    a.prior_variance, a.temperature = 7.0, 1.5
    mixed = bb.merge([a, str(tmp_path / "b"), tmp_path / "c"])
    files = bb.merge([tmp_path / name for name in "abc"], model=nn.DataParallel(model).eval())
    assert_same(mixed, files, close=0)
    assert (mixed.prior_variance, mixed.temperature, files.prior_variance) == (7.0, 1.5, 1.0)
    assert_same(bb.merge(tmp_path / "a", model=model), a, close=0)
    assert_same(bb.merge([tmp_path / "a", tmp_path / "b"], without=b), a)
    mixed.save(tmp_path / "merged")
    again = bb.Laplace.load(tmp_path / "merged", model)
    assert torch.equal(again.predict_proba(x), mixed.predict_proba(x))


def test_what_cannot_be_merged(tmp_path):
    model, x, y, (a, b, _) = parts({})
    a.save(tmp_path / "a")
    with pytest.raises(ArgumentError, match="all parts are files: give the network"):
        bb.merge([tmp_path / "a"])
    with pytest.raises(ArgumentError, match="there is nothing to merge"):
        bb.merge([])
    with pytest.raises(ArgumentError, match="Linear in the place of a fitted Laplace"):
        bb.merge([a, nn.Linear(1, 1)])
    with pytest.raises(ArgumentError, match="their options differ"):
        bb.merge([a, bb.Laplace(model, structure="diag").fit([(x, y)])])
    plain = bb.Laplace(model, residual=False).fit([(x, y)])
    for pair in ([a, plain], [plain, a]):
        with pytest.raises(ArgumentError, match="their options differ"):
            bb.merge(pair)
    whole = bb.Laplace(model, layers="all").fit([(x, y)])
    model[0].requires_grad_(False)
    with pytest.raises(ArgumentError, match=r"about other layers, 0, 2 and 2\. Freeze the same"):
        bb.merge([whole, bb.Laplace(model, layers="all").fit([(x, y)])])
    model[0].requires_grad_(True)
    other = relu_mlp(3, torch.float64)
    with torch.no_grad():
        other[0].bias += 1
    with pytest.raises(ModelError):
        bb.merge([a, bb.Laplace(other).fit([(x, y)])])
    with pytest.raises(FileError, match="other weights"):
        bb.merge([tmp_path / "a"], model=other)
    with pytest.raises(DataError, match="all 20 points are to be taken out"):
        bb.merge(a, without=a)
    with pytest.raises(DataError, match="all 75 points are to be taken out"):
        bb.merge([a, b], without=[bb.merge([b, a])])
    merged = bb.merge([a, b])
    assert merged.posterior.fitted.count == 75


def test_unlike_curvatures_are_refused():
    model, x, y, (exact, *_) = parts({"layers": "all"})
    drawn, seeded, twice = (
        bb.Laplace(model, layers="all", curvature=each).fit([(x[20:], y[20:])])
        for each in ("fisher", bb.Fisher(seed=1), bb.Fisher(draws=2))
    )
    for pair in ([exact, drawn], [drawn, exact], [drawn, twice]):
        with pytest.raises(ArgumentError, match="their options differ"):
            bb.merge(pair)
        with pytest.raises(ArgumentError, match="their options differ"):
            bb.merge(pair[0], without=pair[1])
    more = bb.Laplace(model, layers="all", curvature="fisher").fit([(x[:20], y[:20])])
    assert bb.merge([more, seeded]).posterior.fitted.count == 90


@pytest.fixture
def _nothing_is_added(monkeypatch):
    """What is refused is refused before anything is computed."""
    monkeypatch.delattr(Fitted, "__add__")
    monkeypatch.delattr(Fitted, "without")


@pytest.mark.usefixtures("_nothing_is_added")
@pytest.mark.parametrize("options", CASES, ids=str)
def test_no_data_count_twice(options, tmp_path):
    model, x, y, (a, b, c) = parts(options)
    a.save(tmp_path / "a")
    order = torch.randperm(20)
    again = bb.Laplace(model, **options).fit([(x[part], y[part]) for part in order.split(3)])
    for other in (a, tmp_path / "a", again):
        with pytest.raises(DataError, match="same 20 points are in part 1 and again in part 3"):
            bb.merge([a, b, other])
    assert bb.merge(a).posterior.fitted.count == 20
    with pytest.raises(DataError, match="15 points are to be taken out that no `fit` or `update`"):
        bb.merge([a, b, c], without=[c, c])


@pytest.mark.usefixtures("_nothing_is_added")
@pytest.mark.parametrize("options", CASES, ids=str)
def test_data_that_are_not_part_of_it_cannot_be_taken_out(options):
    model, x, y, (_, b, _) = parts(options)
    strangers = (x[20:30].flip(1), y[20:30]), (x[20:30], (y[20:30] + 1) % 3), (x[20:30], y[20:30])
    for stranger in strangers:  # other inputs, other labels, and a part of what was added as a whole
        with pytest.raises(DataError, match="10 points are to be taken out that no `fit` or `update`"):
            bb.merge(b, without=bb.Laplace(model, **options).fit([stranger]))


def test_an_update_with_the_same_data_can_be_undone():
    _, x, y, (a, b, _) = parts({})
    alone = bb.Laplace(a.model).fit([(x[:20], y[:20])])
    twice = bb.merge([b, a.update([(x[:20], y[:20])])])
    assert twice.posterior.fitted.count == 95
    assert_same(bb.merge(twice, without=alone), bb.merge([b, alone]))


class Pair(nn.Module):
    """Two outputs, of which one is for the labels."""

    def __init__(self):
        super().__init__()
        self.coarse, self.fine = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        return {"coarse": self.coarse(x), "fine": self.fine(x)}


def test_files_get_the_functions_of_other_parts(tmp_path):
    """A file holds neither output= nor adapt= if these are functions."""
    x, y = points(60)
    model = Pair()
    for output in ("fine", lambda returned: returned["fine"]):
        options = {"output": output, "adapt": lambda batch: (batch["given"], batch["truth"])}
        halves = (slice(0, 30), slice(30, 60))
        first, second = (
            bb.Laplace(model, **options).fit([{"given": x[cut], "truth": y[cut]}]) for cut in halves
        )
        first.save(tmp_path / "first")
        for found in (bb.merge([tmp_path / "first", second]), bb.merge([second, tmp_path / "first"])):
            torch.testing.assert_close(found.predict_proba(x), bb.merge([first, second]).predict_proba(x))


@pytest.mark.parametrize("options", [{}, {"residual": False}, {"structure": "full"}], ids=str)
def test_it_is_refused_where_digits_are_gone(options):
    """Points a million times as large leave nothing of the others in float64."""
    model = nn.Linear(4, 3).double()
    x, y = points(60, dtype=torch.float64)
    large = torch.cat([x[:30] * 1e6, x[30:]])
    with torch.no_grad():
        model.weight *= 1e-6
    whole = bb.Laplace(model, **options).fit([(large[:30], y[:30])]).update([(large[30:], y[30:])])
    with pytest.raises(DataError, match="only rounding errors would be left"):
        bb.merge(whole, without=bb.Laplace(model, **options).fit([(large[:30], y[:30])]))
    # The small ones can be taken out.
    left = bb.merge(whole, without=bb.Laplace(model, **options).fit([(large[30:], y[30:])]))
    assert_same(left, bb.Laplace(model, **options).fit([(large[:30], y[:30])]))


@given(st.floats(-3, 9), st.integers(1, 30))
def test_what_is_not_refused_is_close(exponent, n):
    """Whatever the part's size: either refused, or the sums that are left are right to 1e-9."""
    torch.manual_seed(n)
    small, large = torch.rand(n, 5).double(), 10**exponent * torch.rand(7, 5).double()
    total = DiagCurvature(torch.cat([small, large]).square().sum(0))
    most = bb.merging._max_ratio(nn.Linear(1, 1).double())
    try:
        left = total.without(DiagCurvature(large.square().sum(0)), most)
    except DataError:
        assert exponent > 1  # 1/45,000 of a sum
        return
    torch.testing.assert_close(left.diagonal, small.square().sum(0), rtol=CLOSE, atol=0)


@given(st.floats(-1, 1), st.floats(-6, 6))
def test_sums_of_levels_that_are_taken_out(spread, shift):
    torch.manual_seed(0)
    a, b = torch.randn(40, 3).double(), shift + 10**spread * torch.randn(15, 3).double()
    a[:, 2] = b[:, 2] = 0.1  # never varies, and its mean is rounded
    whole, part, rest = (LevelSums.of(each, correlated=True) for each in (torch.cat([a, b]), b, a))
    left = whole.without(part, 45_000)
    for name, tensor in rest.tensors().items():
        torch.testing.assert_close(left.tensors()[name], tensor, rtol=CLOSE, atol=1e-11)
    assert not left.squares[2] and not left.fourths[2] and not left.products[2].any()
    assert left.varies().tolist() == [True, True, False]
    torch.testing.assert_close(left.correlations(), rest.correlations(), rtol=CLOSE, atol=1e-11)


def test_a_column_that_varies_only_in_what_is_taken_out_is_refused():
    a, b = torch.randn(40, 2).double(), torch.randn(15, 2).double()
    a[:, 1] = 0.3
    with pytest.raises(DataError, match="only rounding errors would be left"):
        LevelSums.of(torch.cat([a, b]), correlated=True).without(LevelSums.of(b, correlated=True), 45_000)


def test_a_float32_model():
    """Its features are rounded to 24 bits, other ones in each batch, so less is asked for."""
    model, x, y, (_, b, _) = parts({}, dtype=torch.float32)
    whole = (
        bb.Laplace(model).fit([(x[75:], y[75:])]).update([(x[:20], y[:20])]).update([(x[20:75], y[20:75])])
    )
    others = [
        bb.Laplace(model).fit([*zip(x[cut].split(7), y[cut].split(7), strict=True)])
        for cut in (slice(20), slice(75, 90))
    ]
    assert_same(bb.merge(whole, without=others), b, close=1e-3)
