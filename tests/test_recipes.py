"""The recipes of docs/architecture.md, tried: what is added works everywhere, with no other change."""

import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import bitbayes as bb
import reference
from bitbayes import predictive
from bitbayes.errors import ArgumentError, EdgeWarning, ModelError
from bitbayes.logits import CovarianceFactors
from bitbayes.rays.rules import RULES, rule
from bitbayes.structures import CURVATURES, Curvature, WeightGaussian
from bitbayes.tuning import objectives

# ---- a structure: one number for all weights, the mean of the Hessian's diagonal


@dataclass(frozen=True)
class ScalarCurvature(Curvature):
    structure = "scalar"
    trace: Tensor

    @classmethod
    def of_features(cls, features, logits, likelihood):
        return cls((likelihood.diagonal(logits.double()).sum(1) * features.double().square().sum(1)).sum())

    def head_gaussian(self, head, differences, *, paper):
        return ScalarGaussian((self.trace / (head.outputs * head.width)).expand(head.outputs, head.width))


@dataclass(frozen=True)
class ScalarGaussian(WeightGaussian):
    values: Tensor

    def precisions(self, tau):
        return self.values + tau

    def to_weights(self, coordinates):
        return coordinates

    def coordinates(self, features):
        return features.square()

    def covariance(self, coordinates, tau):
        variances = coordinates @ self.precisions(tau).reciprocal().to(coordinates).T
        return CovarianceFactors(variances, None, torch.zeros_like(variances[:, 0]))


@pytest.mark.parametrize("k", [1, 3])
def test_a_structure(k, monkeypatch, tmp_path):
    monkeypatch.setitem(CURVATURES, "scalar", ScalarCurvature)
    bayes, x, y = reference.fitted(k, structure="scalar", model=relu_network(k))
    weights, features = (
        reference.head_weights(bayes.model),
        bayes.model.activation(bayes.model.hidden(x)).detach(),
    )
    features = torch.cat([features, torch.ones(len(x), 1)], 1)
    mean = reference.hessian(weights, features, y).diagonal().mean()
    variances = features.square().sum(1) / (mean + 1)
    torch.testing.assert_close(bayes.logits(x).covariance[:, 0, 0], variances, rtol=1e-9, atol=0)
    parts = bb.Laplace(bayes.model, structure="scalar").fit([(x[:7], y[:7])]).update([(x[7:], y[7:])])
    torch.testing.assert_close(parts.predict_proba(x), bayes.predict_proba(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        bayes.tune([(x, y)], objective="ood", outliers=3 * x).tune(objective="evidence")
    assert float(bayes.log_evidence()) >= float(bayes.log_evidence(1.0))
    assert bayes.limit(x).confidence.max() <= bayes.bound() + 1e-9
    assert (bayes.certify(x).confidence >= bayes.limit(x).confidence - 1e-9).all()
    assert {name: tuple(each.shape[1:]) for name, each in bayes.sample(2).items()} == {
        "head.weight": (k, 4),
        "head.bias": (k,),
    }
    bayes.save(tmp_path / "scalar.safetensors")
    again = bb.Laplace.load(tmp_path / "scalar.safetensors", bayes.model)
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))


def relu_network(k):
    model = reference.network(k)
    model.activation = nn.ReLU()
    return model


# ---- a predictive: the network's own probabilities, as if nothing were uncertain


def test_a_predictive(monkeypatch, tmp_path):
    monkeypatch.setitem(predictive.MANY_LOGITS, "mode", lambda gaussian: gaussian.mean.log_softmax(1))
    bayes, x, y = reference.fitted(3, predictive="mode")
    torch.testing.assert_close(bayes.predict_proba(x), bayes.model(x).detach().softmax(1))
    torch.testing.assert_close(bayes(x).softmax(1), bayes.model(x).softmax(1))
    with pytest.warns(EdgeWarning, match="prior variance"):  # it makes no difference
        bayes.tune([(x, y)], objective="ood")
    bayes.save(tmp_path / "mode.safetensors")
    assert bb.Laplace.load(tmp_path / "mode.safetensors", bayes.model).predictive == "mode"
    with pytest.raises(ArgumentError, match=r"'mode'.*1 logit"):
        reference.fitted(1)[0].predict_proba(x, method="mode")


# ---- a tuning objective: the share of wrong labels


@dataclass(frozen=True)
class ZeroOne:
    likelihood: object
    outlier_weight: float = 0.0
    joint = False

    def data_cost(self, logits, labels):
        return (self.likelihood.log_probabilities(logits).argmax(1) != labels).double()

    def outlier_cost(self, logits):
        raise NotImplementedError


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
def test_a_tuning_objective(monkeypatch):
    made = lambda likelihood, weight, penalty: ZeroOne(likelihood)  # noqa: E731
    monkeypatch.setitem(objectives.OBJECTIVES, "errors", made)
    bayes, x, y = reference.fitted(3)
    bayes.tune([(x, y)], objective="errors")
    chosen, errors = bayes.prior_variance, {}
    for value in bayes.posterior.candidates():
        bayes.prior_variance = value
        errors[value] = int((bayes.predict_proba(x).argmax(1) != y).sum())
    # The search looks at a third of the candidates, and this cost has steps: one point more is possible.
    assert errors[chosen] <= min(errors.values()) + 1


# ---- a rule at infinity: the sign of a value slope·δ + intercept, which is that of the slope in the end


def test_a_rule_at_infinity(monkeypatch):
    class Signs(nn.Module):
        def forward(self, x):
            return x * torch.sign(x.detach())  # |x|

    model = nn.Sequential(nn.Linear(3, 5), Signs(), nn.Linear(5, 2)).double()
    x, y = torch.randn(20, 3).double(), torch.arange(20) % 2
    bayes = bb.Laplace(model).fit([(x, y)])
    with pytest.raises(ModelError, match="'sign'"):
        bayes.limit(x)
    before = dict(RULES)
    try:

        @rule("sign")
        def sign(func, ray):
            negative = ray.ray_pass.settle_signs(ray.slope, ray.intercept, ray.by_row)
            return torch.where(negative, -1.0, 1.0).to(ray.dtype)

        limit = bayes.limit(x)
        far = bayes.predict_proba(1e9 * x).max(1)
        torch.testing.assert_close(limit.confidence, far.values, rtol=0, atol=1e-6)
    finally:
        RULES.clear()
        RULES.update(before)
