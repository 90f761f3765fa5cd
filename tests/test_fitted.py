"""What a fit learns: sums that add, and that a part can be taken out of."""

import copy
from dataclasses import replace

import pytest
import torch

import bitbayes as bb
from bitbayes.errors import DataError, ModelError
from bitbayes.fitted import DataEntry, remaining
from classifiers import points, relu_mlp


def sums(model, x, y, **options):
    return bb.Laplace(model, **options).fit([(x, y)]).posterior.fitted


def assert_close(found, expected):
    assert found.count == expected.count
    assert found.loss == pytest.approx(expected.loss, rel=1e-9)
    for name, curvature in expected.curvature.items():
        for part, tensor in curvature.tensors().items():
            ours = found.curvature[name].tensors()[part]
            torch.testing.assert_close(ours, tensor, rtol=1e-8, atol=1e-8 * float(tensor.abs().max()))
    assert [*found.level_sums] == [*expected.level_sums] == ["input", "head"]
    for name, each in expected.level_sums.items():
        for part, tensor in each.tensors().items():
            ours = found.level_sums[name].tensors()[part]
            largest = float(tensor.abs().max()) if tensor.numel() else 0.0
            torch.testing.assert_close(ours, tensor, rtol=0, atol=1e-9 * largest)


@pytest.mark.parametrize("options", [{}, {"structure": "full"}, {"layers": "all", "structure": "diag"}])
def test_sums_add_and_can_be_taken_apart(options):
    model, (x, y) = relu_mlp(dtype=torch.float64), points(dtype=torch.float64)
    first, second, whole = (
        sums(model, x[part], y[part], **options) for part in (slice(25), slice(25, None), slice(None))
    )
    assert_close(first + second, whole)
    assert_close((second + first).without(second, 1e6), first)
    assert first.count == 25  # what was added is as it was


def test_a_laplace_predicts_with_sums_that_are_set():
    model, (x, y) = relu_mlp(), points()
    bayes = bb.Laplace(model, prior_variance=2.0).fit([(x[:20], y[:20])])
    other = bb.Laplace(model, prior_variance=2.0).fit([(x, y)])
    bayes.set_fitted(other.posterior.fitted)
    assert torch.equal(bayes.predict_proba(x), other.predict_proba(x))
    assert bayes.known_residual is not None
    fresh = bb.Laplace(model, prior_variance=2.0)
    fresh.set_fitted(other.posterior.fitted)
    assert torch.equal(fresh.predict_proba(x), other.predict_proba(x))


def test_sums_of_other_levels_are_neither_added_nor_taken_out():
    model, (x, y) = relu_mlp(), points()
    part = sums(model, x[:20], y[:20])
    whole = sums(model, x[20:], y[20:]) + part
    fewer, less = (replace(each, level_sums={"head": each.level_sums["head"]}) for each in (whole, part))
    with pytest.raises(DataError, match="not all of 4 finite numbers, as those of `fit` are"):
        whole + less
    with pytest.raises(DataError, match="these inputs are not all finite"):
        less + whole
    for one, other in ((whole, less), (fewer, part)):
        with pytest.raises(DataError, match="fitted without the residual of the whole, or with another"):
            one.without(other, 1e6)


def test_sums_of_other_weights_are_refused():
    model, (x, y) = relu_mlp(), points()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].weight += 1
    ours, theirs = sums(model, x, y), sums(other, x, y)
    for use in (lambda: ours + theirs, lambda: ours.without(theirs, 1e6)):
        with pytest.raises(ModelError, match="changed since `fit`"):
            use()


def test_as_many_points_as_there_are_cannot_be_taken_out():
    model, (x, y) = relu_mlp(), points()
    ours = sums(model, x, y)
    with pytest.raises(DataError, match=f"all {len(x)} points are to be taken out: none is left"):
        ours.without(ours, 1e6)


def test_entries_say_which_data_were_added():
    model, (x, y) = relu_mlp(), points()
    first, second, whole = (
        sums(model, x[rows], y[rows]) for rows in (slice(20), slice(20, None), slice(None))
    )
    both = first + second
    assert both.entries == (*first.entries, *second.entries) and both.count == whole.count == len(x)
    assert whole.entries == (DataEntry.joined(both.entries),)
    assert remaining(both.entries, first.entries) == second.entries
    for part in (whole.entries, first.entries * 2, (replace(*first.entries, count=21),)):
        with pytest.raises(DataError, match="taken out that no `fit` or `update` here has added"):
            remaining(both.entries, part)


def test_the_summary_tells_fits_apart():
    model, (x, y) = relu_mlp(), points()
    ours, theirs = sums(model, x, y), sums(model, x, (y + 1) % 3)
    assert ours.count == theirs.count and ours.summary() != theirs.summary()
    assert ours.summary().startswith(f"{len(x)} points with a loss of ")
