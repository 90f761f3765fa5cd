"""Loaders as people have them: what a batch means, wherever a loader is taken."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import bitbayes as bb
from bitbayes.errors import DataError, UnusedDataWarning
from classifiers import points

X, Y = points()
N = len(X)
PATHS = [f"{i}.png" for i in range(N)]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x).tanh())


class WithLengths(Network):
    def forward(self, x, lengths=None):
        return super().forward(x)


# What a loader yields, and whether something of it is left out.
FORMS = {
    "lists of labels": ((X, Y.tolist()), False),
    "arrays of labels": ((X, Y.numpy()), False),
    "labels of other integers": ((X, Y.numpy().astype(np.int8)), False),
    "float64": ((X.double(), Y), False),
    "image and label": ({"image": X, "label": Y}, False),
    "an image in float64, and a list": ({"image": X.double(), "label": Y.tolist()}, False),
    "paths behind": ((X, Y, PATHS), True),
    "a mapping behind": ((X, Y, {"path": PATHS, "id": Y}), True),
    "indices behind": ((X, Y, torch.arange(N)), True),
    "columns behind": ((X, Y, torch.zeros(N, 3)), True),
    "paths": ({"x": X, "labels": Y, "path": PATHS}, True),
    "ids": ({"x": X, "labels": Y, "id": torch.arange(N)}, True),
    "image, label, path and id": ({"image": X, "label": Y, "path": PATHS, "id": torch.arange(N)}, True),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_plain_is_taken_wherever_a_loader_is(name):
    batch, something_left = FORMS[name]
    other = bb.Laplace(Network()).fit([(X, Y)]).tune([(X, Y)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bayes = bb.Laplace(Network()).fit([batch])
    assert [each.category for each in caught] == [UnusedDataWarning] * something_left
    assert all(each.filename == __file__ for each in caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnusedDataWarning)
        assert bayes.tune([batch]).settings == other.settings
        assert bayes.evaluate([batch], outliers={"same": [batch]}) == other.evaluate(
            [(X, Y)], outliers={"same": X}
        )
        for use in ("predict_proba", "score", "confidence"):
            assert torch.equal(getattr(bayes, use)([batch]), getattr(other, use)(X))
        assert bayes.threshold([batch]) == other.threshold(X)
        scaled = bb.TemperatureScaling(Network()).fit([batch])
        assert torch.equal(scaled.predict_proba([batch]), scaled.predict_proba(X))


def test_a_loader_gives_one_notice():
    batches = [(X[:20], Y[:20], PATHS[:20]), (X[20:], Y[20:], PATHS[20:])]
    with pytest.warns(UnusedDataWarning, match=r"batch 0 is a tuple of .*, list\).*left out") as caught:
        bayes = bb.Laplace(Network()).fit(batches)
    assert len(caught) == 1 and bayes.posterior.fitted.count == N


@pytest.mark.parametrize(
    "batch, model, says",
    [
        ((X, Y, Y), WithLengths(), r"several inputs of a model are \(\(x1, x2\), labels\).*adapt="),
        ((X, X, Y), WithLengths(), r"several inputs.*adapt="),
        ((X, PATHS, Y), Network(), r"Tensor .*, list, Tensor.*adapt="),
        ({"x": X, "target": Y}, Network(), r"\['target', 'x'\]: 'labels' is missing.*adapt="),
        ({"a": X, "b": X, "labels": Y}, Network(), r"keys \['a', 'b'\], and the model takes \['x'\].*adapt="),
        ((X, PATHS), Network(), r"Tensor .*, list\)"),
    ],
)
def test_what_is_not_plain_is_refused_with_the_remedy(batch, model, says):
    with pytest.raises(DataError, match=says):
        bb.Laplace(model).fit([batch])


def test_a_batch_whose_second_and_third_part_may_be_labels_of_positions_is_refused():
    ids = torch.randint(5, (4, 6))
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    with pytest.raises(DataError, match="adapt="):
        bb.Laplace(model).fit([(ids, torch.ones_like(ids), ids % 2)])


class Keywords(Network):
    """It hands its arguments on, so that a wrong one is noticed inside."""

    def forward(self, **inputs):
        return super().forward(**inputs)


def test_a_call_that_fails_names_the_keys_and_the_remedy():
    with pytest.raises(DataError, match=r"called with the keys \['image'\]: .*unexpected.*'image'.*adapt="):
        bb.Laplace(Keywords()).fit([{"image": X, "labels": Y}])
    bayes = bb.Laplace(Network(), prior_variance=1.0).fit([(X, Y)])
    with pytest.raises(DataError, match=r"called with the keys \['x', 'path'\]: .*'path'"):
        bayes(x=X, path=PATHS)

    class Two(Network):
        def forward(self, x, y):
            return super().forward(x + y)

    with pytest.raises(DataError, match=r"called with one tensor: .*missing 1 required positional.*'y'"):
        bb.Laplace(Two()).fit([(X, Y)])


@pytest.mark.parametrize("options", [{}, {"residual": False}, {"layers": "all"}])
@pytest.mark.parametrize("tuned", [False, True])
def test_one_row_without_a_batch_says_what_to_do(options, tuned):
    images = X.reshape(N, 1, 2, 2)
    convolution = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 3))
    for model, x in ((Network(), X), (convolution, images)):
        bayes = bb.Laplace(model, prior_variance=1.0, **options).fit([(x, Y)])
        if tuned:
            bayes.tune([(x, Y)])
        for use in (bayes.predict_proba, bayes.score, bayes.logits):
            with pytest.raises(DataError, match=r"which is one row: use x\[None\]"):
                use(x[0])
        assert torch.allclose(bayes.predict_proba(x[0][None]), bayes.predict_proba(x)[:1], atol=1e-6)


def test_one_row_in_the_place_of_the_models_input_says_what_to_do():
    bayes = bb.Laplace(Network()).fit([(X, Y)]).tune([(X, Y)])
    with pytest.raises(DataError, match=r"one row: use x\[None\]"):
        bayes(X[0])
