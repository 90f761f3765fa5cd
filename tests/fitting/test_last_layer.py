"""One forward pass: features wait until they are worth a product, and the sums are those of all points."""

import pytest
import torch

import bitbayes as bb
import reference
from bitbayes.fitting import last_layer
from bitbayes.model import find_head
from bitbayes.structures import CURVATURES

X, Y = torch.arange(10.0).reshape(5, 2), torch.arange(5)


@pytest.mark.parametrize("size", [1, 8 * 4 * 8, 10**9])
@pytest.mark.parametrize("residual", ["auto", False])
@pytest.mark.parametrize("structure", reference.STRUCTURES)
def test_sums_do_not_depend_on_how_many_features_wait(structure, residual, size, monkeypatch):
    """With a residual, "kron" takes the second moments from its sums, and makes no product of its own."""
    expected, x, y = reference.fitted(3, structure=structure, residual=False)
    monkeypatch.setattr(last_layer, "FIT_BYTES", size)
    products, sums = [], []
    kind = CURVATURES[structure]
    plain, of_moments = kind.of_features.__func__, kind.of_moments.__func__

    def counted(cls, features, logits, likelihood):
        products.append(len(features))
        return plain(cls, features, logits, likelihood)

    def counted_moments(cls, moments, logits, likelihood):
        sums.append(len(logits))
        return of_moments(cls, moments, logits, likelihood)

    monkeypatch.setattr(kind, "of_features", classmethod(counted))
    monkeypatch.setattr(kind, "of_moments", classmethod(counted_moments))
    found = bb.Laplace(expected.model, structure=structure, residual=residual).fit(reference.loader(x, y))
    together = {1: [7, 7, 7, 7, 2], 8 * 4 * 8: [14, 14, 2], 10**9: [30]}[size]
    assert products == ([] if structure == "kron" and residual else together)
    assert sums == (together if structure == "kron" or residual else [])
    ours, theirs = found.posterior.fitted, expected.posterior.fitted
    assert ours.count == theirs.count == 30 and ours.loss == pytest.approx(theirs.loss, rel=1e-14)
    (ours,), (theirs,) = ours.curvature.values(), theirs.curvature.values()
    for name, value in theirs.tensors().items():
        torch.testing.assert_close(ours.tensors()[name], value, rtol=1e-12, atol=1e-14)


def test_points_that_have_waited_are_joined_in_their_order():
    head = find_head(torch.nn.Linear(2, 5), X)
    waiting = [(X[:3], X[:3] + 1, Y[:3]), (X[3:], X[3:] + 1, Y[3:])]
    ((features, logits, labels),) = last_layer._joined(waiting, head, 1)
    assert torch.equal(features, X) and torch.equal(logits, X + 1) and torch.equal(labels, Y)
    assert list(last_layer._joined([], head, 1)) == []


@pytest.mark.parametrize("bias", [True, False])
def test_the_squared_norm_and_the_loss_are_those_of_the_head(bias):
    bayes, x, y = reference.fitted(3, bias)
    fitted, weights = bayes.posterior.fitted, reference.head_weights(bayes.model)
    assert fitted.squared_norms == {"head": pytest.approx(float(weights.square().sum()), rel=1e-14)}
    loss = reference.total_loss(bayes.model(x).detach(), y)
    assert fitted.loss == pytest.approx(float(loss), rel=1e-13)
