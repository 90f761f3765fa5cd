"""Models that take several inputs: by name, by place, and in pairs with their labels."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bitbayes as bb
from bitbayes.errors import DataError
from bitbayes.model import input_batches, labelled_batches

# The same whatever other tests have drawn: for some data the best prior variance is a matter of rounding.
GENERATOR = torch.Generator().manual_seed(0)
A, B = torch.randn(12, 3, generator=GENERATOR), torch.randn(12, 2, generator=GENERATOR)
Y = torch.arange(12) % 3
SCALE = torch.linspace(1, 2, 12)[:, None]


class Pair(nn.Module):
    """It takes two inputs, and a third by name."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, a, b, scale=None):
        features = self.body(torch.cat([a, b], 1)).tanh()
        return self.head(features if scale is None else features * scale)


class Batches(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return (A[i], B[i]), Y[i]


LOADERS = {
    "pairs of tuples": [((A[:5], B[:5]), Y[:5]), ((A[5:], B[5:]), Y[5:])],
    "pairs of lists": [([A, B], Y)],
    "a DataLoader": DataLoader(Batches(), batch_size=5),
    "places": [{0: A, 1: B, "labels": Y}],
    "places in a pair": [({0: A, 1: B}, Y)],
    "names": [{"a": A, "b": B, "labels": Y}],
    "a place and a name": [{0: A, "b": B, "labels": Y}],
}


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("name", LOADERS)
def test_all_ways_to_give_two_inputs_are_the_same(name, layers):
    model = Pair()
    options = {"layers": layers, "structure": "diag", "residual": False}
    joined = nn.Sequential(model.body, nn.Tanh(), model.head)
    x = torch.cat([A, B], 1)
    plain = bb.Laplace(joined, **options).fit([(x, Y)]).tune([(x, Y)])
    bayes = bb.Laplace(model, **options).fit(LOADERS[name]).tune(LOADERS[name])
    assert bayes.prior_variance == pytest.approx(plain.prior_variance, rel=1e-3)
    expected = plain.predict_proba(x)
    for given in (LOADERS[name], {0: A, 1: B}, {"a": A, "b": B}, [((A, B),)], [{0: A, 1: B}]):
        torch.testing.assert_close(bayes.predict_proba(given), expected, rtol=0, atol=1e-5)
    for logits in (bayes(A, B), bayes(A, b=B), bayes(a=A, b=B), bayes({0: A, 1: B}), bayes({"a": A, "b": B})):
        torch.testing.assert_close(logits.softmax(1), expected, rtol=0, atol=1e-5)
    assert bayes.evaluate(LOADERS[name]) == pytest.approx(plain.evaluate([(x, Y)]), abs=1e-4)
    assert bayes.threshold(LOADERS[name]) == pytest.approx(plain.threshold(x), abs=1e-4)


def test_a_third_input_by_its_name():
    model = Pair()
    bayes = bb.Laplace(model, prior_variance=1.0).fit([({0: A, 1: B, "scale": SCALE}, Y)])
    given = {0: A, 1: B, "scale": SCALE}
    torch.testing.assert_close(bayes.logits(given).mean, model(A, B, scale=SCALE), rtol=0, atol=1e-6)
    probs = bayes.predict_proba(given)
    torch.testing.assert_close(bayes(A, B, scale=SCALE).softmax(1), probs, rtol=0, atol=1e-6)
    assert float((bayes.predict_proba({0: A, 1: B}) - probs).abs().max()) > 1e-3


class Either(nn.Module):
    """It takes one of two inputs, in the place of either of them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, a=None, b=None):
        return self.head(a if b is None else -b)


def test_a_place_may_be_left_empty():
    bayes = bb.Laplace(Either(), prior_variance=1.0, residual=False).fit([({0: A}, Y)])
    torch.testing.assert_close(bayes(None, A), bayes(-A))
    torch.testing.assert_close(bayes(None, b=A), bayes(-A))


def test_the_residual_looks_at_all_inputs():
    bayes = bb.Laplace(Pair(), residual=True, prior_variance=1.0).fit([((A, B), Y)])
    for far in ({0: 1e4 * A, 1: B}, {0: A, 1: 1e4 * B}):
        probs = bayes.predict_proba(far)
        torch.testing.assert_close(probs, torch.full_like(probs, 1 / 3), rtol=0, atol=1e-2)


def test_inputs_by_place_are_exported(tmp_path):
    bayes = bb.Laplace(Pair().eval(), prior_variance=1.0, residual=False).fit([((A, B), Y)])
    bayes.export(tmp_path / "pair.pt2", {0: A[:2], 1: B[:2]})
    graph = torch.export.load(tmp_path / "pair.pt2").module()
    torch.testing.assert_close(
        graph({0: A, 1: B}).softmax(1), bayes.predict_proba({0: A, 1: B}), rtol=0, atol=1e-6
    )


def test_a_pair_of_inputs_becomes_places():
    (batch,) = labelled_batches([((A, B), Y)], nn.Identity())
    assert list(batch.inputs) == [0, 1] and torch.equal(batch.labels, Y)
    (batch,) = input_batches([((A, B), Y)], nn.Identity())
    assert list(batch.inputs) == [0, 1] and batch.labels is None


@pytest.mark.parametrize(
    "data, says",
    [
        ([(A, B, Y)], r"several inputs of a model are \(\(x1, x2\), labels\)"),
        ([((A, B), (Y, Y))], "expected a pair of tensors"),
        ([((A, "name"), Y)], "expected a pair of tensors"),
        ([((), Y)], "expected a pair of tensors"),
        ([{1: A, "labels": Y}], r"the places \[1\]: expected \[0\]"),
        ([{0: A, 2: B, "labels": Y}], r"the places \[0, 2\]: expected \[0, 1\]"),
        ([{0: A, "b": B}], r"keys \[0, 'b'\]: 'labels' is missing"),
        (DataLoader(TensorDataset(A, B, Y), batch_size=4), r"are \(\(x1, x2\), labels\)"),
    ],
)
def test_what_is_ambiguous_or_incomplete_is_refused(data, says):
    with pytest.raises(DataError, match=says):
        bb.Laplace(Pair()).fit(data)


@pytest.mark.parametrize("data", [(A, B), [(A, B)], [(A, B, Y)], [((A, B), (A, B))], [((A, B), B)]])
def test_predictions_refuse_what_may_be_labels_or_batches(data):
    bayes = bb.Laplace(Pair(), prior_variance=1.0).fit([((A, B), Y)])
    with pytest.raises(DataError, match=r"\{0: x1, 1: x2\}"):
        bayes.predict_proba(data)
