"""Features and logits of each batch, and its shape."""

import pytest
import torch
from torch import nn

from bitbayes.errors import DataError, EmptyLoaderError
from bitbayes.model import (
    Batch,
    DeferredChecks,
    FeatureBatch,
    FeaturePasses,
    Level,
    Observer,
    find_head,
    forward,
    private_copy,
)

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_splitting_a_batch_of_features_splits_its_features_and_logits(rows):
    features, logits = torch.randn(5, 7), torch.randn(5, 3)
    whole = FeatureBatch({"x": X, "flag": True}, Y, "batch 3", features, logits)
    parts = list(whole.split(rows))
    assert [len(part) for part in parts] == [len(each) for each in Y.split(rows)]
    assert all(type(part) is FeatureBatch and part.name == "batch 3" for part in parts)
    assert torch.equal(torch.cat([part.features for part in parts]), features)
    assert torch.equal(torch.cat([part.logits for part in parts]), logits)
    assert torch.equal(torch.cat([part.inputs["x"] for part in parts]), X)
    assert torch.equal(torch.cat([part.labels for part in parts]), Y)


def test_the_outputs_of_a_shared_layer_are_told_apart():
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    x = torch.randn(4, 3)
    features, logits, _ = forward(model, find_head(model, x), x)
    torch.testing.assert_close(features, layer(x).relu(), rtol=0, atol=0)
    torch.testing.assert_close(logits, model(x), rtol=0, atol=0)


@pytest.mark.parametrize("shape", ["column", "flat"])
def test_forward_gives_features_logits_and_the_models_shape(shape):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            y = self.head(self.hidden(x).tanh())
            return y if shape == "column" else y.squeeze(-1)

    model, x = Model(), torch.randn(5, 3)
    for inputs in (x, x[:1]):
        head = find_head(model, inputs)
        features, logits, size = forward(model, head, inputs)
        assert head.name == "head" and size == tuple(model(inputs).shape)
        torch.testing.assert_close(features, model.hidden(inputs).tanh(), rtol=0, atol=0)
        torch.testing.assert_close(logits, model(inputs).reshape(-1, 1), rtol=0, atol=0)


def test_users_own_hooks_keep_working():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = torch.randn(4, 3)
    features, logits, _ = forward(model, find_head(model, x), x)
    torch.testing.assert_close(logits, features @ model[2].weight.T + model[2].bias)


def test_some_points_keep_their_labels_features_and_distances():
    features, logits, distances = torch.randn(5, 7), torch.randn(5, 3), torch.rand(5, 2)
    whole = FeatureBatch(X, Y, "batch 3", features, logits, distances=distances)
    some = whole.select(torch.tensor([3, 1]))
    assert some.labels.tolist() == [3, 1] and torch.equal(some.distances, distances[[3, 1]])
    assert torch.equal(some.features, features[[3, 1]]) and torch.equal(some.logits, logits[[3, 1]])
    plain = FeatureBatch(X, None, "the input", features, logits).select(Y > 1)
    assert plain.labels is None and plain.distances is None and len(plain) == 3
    parts = list(whole.split(2))
    assert torch.equal(torch.cat([part.distances for part in parts]), distances)


def test_an_observer_sees_the_levels_of_the_same_pass():
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
    calls, seen = [], []
    model.register_forward_hook(lambda *_: calls.append(1))

    def observe(rows):
        seen.extend(rows)
        return torch.stack([each.sum(1) for each in rows], 1)

    observer = Observer((Level("0", "0", -1), Level("head", "2", -1)), observe)
    with DeferredChecks() as checks:
        passes = FeaturePasses(private_copy(model), find_head(private_copy(model), X), checks)
        calls.clear()
        waiting = passes.run(Batch(X, Y, "batch 0", observer=observer))
    assert not seen and waiting.distances is None
    found = waiting.observed()
    assert len(calls) == 1 and torch.equal(seen[0], X) and torch.equal(seen[1], found.features)
    assert found.observer is None and found.rows == () and not seen[1].requires_grad
    assert torch.equal(found.distances, torch.stack([X.sum(1), found.features.sum(1)], 1))


def test_an_observer_that_keeps_nothing_leaves_no_distances():
    model = nn.Linear(2, 3)
    with DeferredChecks() as checks:
        passes = FeaturePasses(model, find_head(model, X), checks)
        found = passes.run(Batch(X, Y, "batch 0", observer=Observer((), lambda rows: None))).observed()
    assert found.distances is None and found.observer is None


@pytest.mark.parametrize("labelled", [True, False])
def test_joined_batches_are_observed_as_each_of_them(labelled):
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))

    def observer(x):
        observe = lambda seen: torch.stack([each.sum(-1) if each.dim() > 1 else each for each in seen], 1)  # noqa: E731
        return Observer((Level("head", "2", -1),), observe, (x[:, 0],))

    with DeferredChecks() as checks:
        passes = FeaturePasses(private_copy(model), find_head(private_copy(model), X), checks)
        parts = [
            passes.run(Batch(X[rows], Y[rows] if labelled else None, "batch", observer=observer(X[rows])))
            for rows in (slice(0, 1), slice(1, 3))
        ]
    whole, each = FeatureBatch.joined(parts).observed(), [part.observed() for part in parts]
    assert len(whole) == 3 and (whole.labels is None) != labelled
    for name in ("features", "logits", "distances") + ("labels",) * labelled:
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in each])), name
    assert FeatureBatch.joined(parts[:1]) is parts[0]


@torch.no_grad()
def test_all_positions_of_an_input_share_its_distances():
    model, tokens = nn.Linear(2, 3), torch.randn(4, 5, 2)
    labels, distances = torch.full((4, 5), -100), torch.rand(4, 2)
    labels[1, 2], labels[1, 3], labels[3, 0] = 2, 0, 1
    observer = Observer((), lambda rows: distances)
    with DeferredChecks() as checks:
        passes = FeaturePasses(model, find_head(model, tokens), checks)
        some = passes.run(Batch(tokens, labels, "batch 0", observer=observer))
        every = passes.run(Batch(tokens, None, "batch 0", observer=observer))
    assert torch.equal(some.distances, distances[[1, 1, 3]])
    assert torch.equal(every.distances, distances.repeat_interleave(5, 0))


def test_a_batch_that_is_not_finite_is_refused_by_its_name():
    model = nn.Sequential(nn.Linear(2, 3))
    head = find_head(model, X)
    with pytest.raises(DataError, match="batch 7 holds NaN or infinity"), DeferredChecks() as checks:
        FeaturePasses(model, head, checks).run(Batch(X * torch.nan, Y, "batch 7"))


@torch.no_grad()
def test_logits_that_overflow_are_refused_where_the_features_do_not():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    head = find_head(model, X)
    model[1].weight.fill_(3e38)
    with pytest.raises(DataError, match="batch 7: the network overflows"), DeferredChecks() as checks:
        FeaturePasses(model, head, checks).run(Batch(X, Y, "batch 7"))


@torch.no_grad()
def test_positions_without_labels_are_left_out_and_all_of_them_refused():
    model, tokens = nn.Linear(2, 3), torch.randn(4, 5, 2)
    head, labels = find_head(model, tokens), torch.full((4, 5), -100)
    with DeferredChecks() as checks:
        passes = FeaturePasses(model, head, checks)
        assert passes.run(Batch(tokens, labels, "batch 0")) is None
        with pytest.raises(EmptyLoaderError, match="no position has a label"):
            passes.refuse_no_points()
        labels[1, 2] = 2
        points = passes.run(Batch(tokens, labels, "batch 1"))
        assert points.labels.tolist() == [2] and torch.equal(points.logits[0], model(tokens[1, 2]))
        passes.refuse_no_points()  # there is one now
