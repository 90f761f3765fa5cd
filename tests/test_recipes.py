"""The recipes of docs/architecture.md, carried out: what is added works everywhere, with no other change."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import bitbayes as bb
import reference
from bitbayes.closed_forms import KAPPA, safe_log
from bitbayes.errors import ArgumentError, DataError, EdgeWarning, ModelError
from bitbayes.likelihoods import LIKELIHOODS, Categorical, Likelihood
from bitbayes.logits import CovarianceFactors
from bitbayes.structures import CURVATURES, Curvature, WeightGaussian
from bitbayes.tuning import objectives
from ray_operations import network_of_signs, rule_of_the_sign

# ---- a structure: one number for all weights, the mean of the Hessian's diagonal


@dataclass(frozen=True)
class ScalarCurvature(Curvature):
    structure = "scalar"
    trace: Tensor

    @classmethod
    def of_features(cls, features, logits, likelihood):
        return cls((likelihood.diagonal(logits.double()).sum(1) * features.double().square().sum(1)).sum())

    def head_gaussian(self, head, differences):
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
    monkeypatch.setitem(Categorical.closed_forms, "mode", lambda gaussian: gaussian.mean.log_softmax(1))
    bayes, x, y = reference.fitted(3, predictive="mode")
    torch.testing.assert_close(bayes.predict_proba(x), bayes.model(x).detach().softmax(1))
    torch.testing.assert_close(bayes(x).softmax(1), bayes.model(x).softmax(1))
    with pytest.warns(EdgeWarning, match="prior variance"):  # it makes no difference
        bayes.tune([(x, y)], objective="ood")
    bayes.save(tmp_path / "mode.safetensors")
    assert bb.Laplace.load(tmp_path / "mode.safetensors", bayes.model).predictive == "mode"
    with pytest.raises(ArgumentError, match=r"'mode'.*1 logit"):
        reference.fitted(1)[0].predict_proba(x, method="mode")


# ---- a likelihood: three ordered classes by one logit f and two fixed cuts, P(y ≤ j) = σ(bⱼ − f)

CUTS = torch.tensor([-1.0, 1.5])


class Ordinal(Likelihood):
    """Cumulative logits. Its only closed form is "probit", which gives log p, (n, 3)."""

    name = "ordinal"
    has_drop_in = False  # no single logit has the averaged probabilities of three classes
    has_temperature = False  # f/T would move against the cuts

    @staticmethod
    def closed_form(gaussian):
        cuts = CUTS.to(gaussian.scale) / gaussian.scale[:, None]
        spread = gaussian.floor[:, None] + KAPPA * gaussian.scaled_variances()
        return safe_log(steps(((cuts - gaussian.scaled_mean) * spread.rsqrt()).sigmoid()))

    closed_forms: ClassVar = {"probit": closed_form}

    def takes(self, outputs):
        return outputs == 1

    def classes(self, outputs):
        return 3

    def valid_labels(self, labels, k):
        inside = labels.long().clamp(0, 2)
        return inside, (inside == labels).all(), "expected 0, 1 or 2"

    def losses(self, outputs, labels):
        return -safe_log(self.probabilities(outputs)).gather(1, labels[:, None])[:, 0]

    def differences(self, k, device=None):
        return torch.ones(1, 1, dtype=torch.float64, device=device)

    def curvature(self, outputs):
        """The Fisher information Σⱼ pⱼ gⱼ², gⱼ the derivative of log pⱼ."""
        return (self.probabilities(outputs) * self._slopes(outputs).square()).sum(1)[:, None, None]

    def _slopes(self, outputs):
        """d log pⱼ/df = σ(bⱼ − f) + σ(bⱼ₋₁ − f) − 1, (n, 3)."""
        below = (CUTS.to(outputs) - outputs).sigmoid()
        ends = torch.zeros_like(outputs), torch.ones_like(outputs)
        return torch.cat([below, ends[1]], 1) + torch.cat([ends[0], below], 1) - 1

    def diagonal(self, outputs):
        return self.curvature(outputs)[:, :, 0]

    def root(self, outputs):
        return self.curvature(outputs).sqrt()

    def draw(self, outputs, generator):
        labels = torch.multinomial(self.probabilities(outputs), 1, generator=generator)
        return self._slopes(outputs).gather(1, labels)

    def default_predictive(self, outputs, has_cross_covariance):
        return "probit"

    def log_probabilities(self, drop_in):
        return drop_in.log_softmax(1)

    def prediction_losses(self, drop_in, labels):
        return -drop_in.log_softmax(1).gather(1, labels[:, None])[:, 0]

    def probabilities(self, outputs):
        return steps((CUTS.to(outputs) - outputs).sigmoid())

    def drop_in(self, probabilities):
        return safe_log(probabilities)

    def score(self, gaussian):
        return -gaussian.variances()[:, 0]

    def margins(self, mean):
        return (mean - CUTS.to(mean)).abs().amin(1)

    def scaled_margin_variance(self, gaussian):
        return gaussian.scaled_variances()[:, 0]

    def far_confidence(self, outputs):
        return 1 / 2  # between the first and the last class

    def far_labels(self, mean):
        return 2 * (mean[:, 0] > 0).long()


def steps(cumulative):
    """The probabilities of the classes, from those of all classes up to each but the last."""
    ends = torch.zeros_like(cumulative[..., :1]), torch.ones_like(cumulative[..., :1])
    return torch.cat([cumulative, ends[1]], -1) - torch.cat([ends[0], cumulative], -1)


@pytest.fixture
def ordinal(monkeypatch):
    """A network with one output and data of three ordered classes; the likelihood is known by its name."""
    monkeypatch.setitem(LIKELIHOODS, "ordinal", Ordinal())
    torch.manual_seed(0)
    x = torch.randn(300, 3).double()
    y = torch.bucketize(2 * x[:, 0] + torch.randn(300).double() / 2, CUTS.double())
    return relu_network(1), x, y


def test_the_curvature_of_the_likelihood_is_that_of_autograd():
    outputs = torch.linspace(-4, 4, 9).double()[:, None]
    likelihood, expected = Ordinal(), torch.zeros(9).double()
    for label in range(3):
        labels = torch.full((9,), label)
        hessian = torch.autograd.functional.hessian(
            lambda f, y=labels: likelihood.losses(f, y).sum(), outputs
        )
        p = likelihood.probabilities(outputs)[:, label]
        expected += p * hessian.reshape(9, 9).diagonal()
    torch.testing.assert_close(likelihood.curvature(outputs)[:, 0, 0], expected)
    drawn = likelihood.draw(outputs.repeat(20_000, 1), torch.Generator().manual_seed(0)).square()
    torch.testing.assert_close(drawn.reshape(-1, 9).mean(0), expected, rtol=0.05, atol=1e-3)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_a_likelihood(ordinal, tmp_path, layers):
    model, x, y = ordinal
    bayes = bb.Laplace(model, likelihood="ordinal", layers=layers, structure="full").fit([(x[:200], y[:200])])
    features = model.activation(model.hidden(x[:200])).detach()
    features = torch.cat([features, torch.ones(200, 1)], 1)
    weights = Ordinal().curvature(model(x[:200]).detach())[:, 0, 0]
    expected = (features * weights[:, None]).T @ features
    hessian = next(iter(bayes.posterior.fitted.curvature.values())).hessian
    torch.testing.assert_close(hessian[-5:, -5:] if layers == "all" else hessian, expected)

    bayes.tune([(x[200:], y[200:])])
    assert bayes.temperature == 1 and bayes.settings.has_residual
    probabilities = bayes.predict_proba(x)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(300).double())
    sampled = bayes.predict_proba(x, method="mc", samples=20_000, generator=torch.Generator().manual_seed(0))
    assert (probabilities - sampled).abs().max() < 0.02  # the probit's own error
    assert bayes.evaluate([(x, y)])["nll"] < bb.metrics.nll(torch.full((300, 3), 1 / 3), y)
    parts = bayes.uncertainty(x)
    torch.testing.assert_close(parts.entropy, parts.expected_entropy + parts.mutual_information)
    assert torch.equal(bayes.confidence(x), probabilities.amax(1))
    assert bayes.score(x).mean() > bayes.score(10 * x).mean()
    for objective in ("ood", "nll", "evidence"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EdgeWarning)
            bayes.tune([(x[200:], y[200:])], objective=objective)

    bayes.save(tmp_path / "ordinal.safetensors")
    again = bb.Laplace.load(tmp_path / "ordinal.safetensors", model)
    assert again.likelihood == "ordinal" and torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert "3 classes" in repr(again)

    plain = bb.Laplace(model, likelihood="ordinal", layers=layers, residual=False).fit([(x, y)])
    limit, far = plain.limit(x), plain.predict_proba(1e9 * x).max(1)
    torch.testing.assert_close(limit.confidence, far.values, rtol=0, atol=1e-6)
    assert torch.equal(limit.label, far.indices)
    assert (bayes.limit(x).confidence == 1 / 2).all()


def test_what_a_likelihood_has_no_answer_to_raises(ordinal, tmp_path):
    model, x, y = ordinal
    bayes = bb.Laplace(model, likelihood="ordinal", prior_variance=1.0).fit([(x, y)])
    for call, message in [
        (lambda: bayes(x), "no drop-in logits: use `predict_proba`"),
        (lambda: bayes.export(tmp_path / "graph.pt2", x), "no drop-in logits"),
        (lambda: bayes.bound(), "'probit' has no bound"),
        (lambda: bayes.certify(x), "'probit' has no certificate"),
        (lambda: bayes.predict_proba(x, method="pairwise"), "'pairwise' does not fit"),
        (lambda: setattr(bayes, "temperature", 2.0), "no temperature"),
        (lambda: bb.Laplace(nn.Linear(3, 3).double(), likelihood="ordinal").fit([(x, y)]), "does not fit"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
    with pytest.raises(DataError, match="expected 0, 1 or 2"):
        bayes.update([(x, y + 1)])


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


def test_a_rule_at_infinity():
    x, y = torch.randn(20, 3).double(), torch.arange(20) % 2
    bayes = bb.Laplace(network_of_signs()).fit([(x, y)])
    with pytest.raises(ModelError, match="'sign'"):
        bayes.limit(x)
    with rule_of_the_sign():
        limit = bayes.limit(x)
        far = bayes.predict_proba(1e9 * x).max(1)
        torch.testing.assert_close(limit.confidence, far.values, rtol=0, atol=1e-6)
