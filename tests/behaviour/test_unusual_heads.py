"""Heads that are tied, weight-normed, not linear, not called, or that overflow."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations

import bitbayes as bb
from bitbayes.errors import DataError, ModelError
from classifiers import points, relu_mlp


class Cosine(nn.Linear):
    def forward(self, x):
        return 10 * functional.linear(
            functional.normalize(x, dim=1), functional.normalize(self.weight, dim=1)
        )


def test_a_head_that_is_not_linear_is_refused():
    x, y = points()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Cosine(8, 3, bias=False))
    with pytest.raises(ModelError, match=r"'2' \(Cosine\) does not compute"):
        bb.Laplace(model).fit([(x, y)])
    hooked = relu_mlp()
    hooked[2].register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(ModelError, match="does not compute"):
        bb.Laplace(hooked).fit([(x, y)])


class FloatOutput(nn.Linear):
    def forward(self, x):
        return super().forward(x).float()


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast", "upcast"])
def test_a_linear_head_in_coarse_arithmetic_is_accepted(offset, kind):
    """Large features whose products cancel leave few digits, or none, in float32 and bfloat16."""
    torch.manual_seed(0)
    head = (FloatOutput if kind == "upcast" else nn.Linear)(256, 3)
    head.weight.data -= head.weight.data.mean(1, keepdim=True)
    x, y = torch.randn(30, 256) + offset, torch.arange(30) % 3
    if kind in ("bfloat16", "upcast"):
        head, x = head.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        bayes = bb.Laplace(head).fit([(x, y)])
    assert bool(bayes.predict_proba(x).isfinite().all())


def test_a_head_that_overflows_is_named_in_the_error():
    x, y = points()
    model = relu_mlp()
    nn.init.constant_(model[0].weight, 1e19)
    nn.init.constant_(model[2].weight, 1e20)
    with pytest.raises(DataError, match="overflows"):
        bb.Laplace(model).fit([(x.abs(), y)])


def test_a_weight_normed_head_has_the_evidence_and_predictions_of_its_weight():
    """Draws of the weight are refused, because the weight is made of other parameters."""
    x, y = points()
    plain = relu_mlp()
    normed = copy.deepcopy(plain)
    parametrizations.weight_norm(normed[2])
    first, second = (bb.Laplace(model).fit([(x, y)]) for model in (plain, normed))
    assert float(first.log_evidence()) == pytest.approx(float(second.log_evidence()), abs=1e-4)
    torch.testing.assert_close(first.predict_proba(x), second.predict_proba(x), rtol=0, atol=1e-5)
    with pytest.raises(ModelError, match="remove_parametrizations"):
        second.sample(2)


class Tied(nn.Module):
    """A network whose output layer shares its weight with the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 6), nn.Linear(6, 5, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.embed(ids).sum(1)))


def test_draws_of_a_head_that_is_tied_to_an_embedding_have_its_covariance():
    torch.manual_seed(0)
    ids, y = torch.randint(5, (60, 3)), torch.arange(60) % 5
    model = Tied().double()
    bayes = bb.Laplace(model).fit([(ids, y)])
    draws = bayes.sample(4000, generator=torch.Generator().manual_seed(0))
    logits = torch.vmap(lambda p: functional_call(model, p, (ids[:1],), tie_weights=False))(draws)[:, 0]
    gap = torch.tensor([1.0, -1, 0, 0, 0], dtype=torch.float64)
    logits, expected = logits.detach(), gap @ bayes.logits(ids[:1]).covariance[0].detach() @ gap
    # The standard error of a variance from 4,000 draws is 1/√2000 of it; four standard errors.
    assert float((logits @ gap).var()) == pytest.approx(float(expected), rel=4 / math.sqrt(2000))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


def test_a_head_that_is_not_called_raises():
    x, y = points()
    x = x.abs()
    bayes = bb.Laplace(TwoHeads()).fit([(x, y)])
    with pytest.raises(ModelError, match="did not call its linear layer 'a'"):
        bayes.predict_proba(-x)
