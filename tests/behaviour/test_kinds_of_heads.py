"""Heads as people have them: picked, averaged, pooled, convolutions, adapters; and those that are refused."""

import copy
import math
import re

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import bitbayes as bb
import head_reference
from bitbayes.errors import DataError, ModelError
from bitbayes.model import find_head
from classifiers import points, relu_mlp

HEAD = ["head.weight", "head.bias"]


class Picked(nn.Module):
    """Every token is scored, and the last one that is no padding (0) counts, as in GPT-2's classifiers."""

    def __init__(self, k=3, squeezed=False, after=None):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5), nn.Linear(5, k)
        self.squeezed, self.after = squeezed, after

    def forward(self, ids):
        scores = self.head(self.words(ids).cumsum(1).tanh())
        if self.after is not None:
            return self.after(scores)
        picked = scores[torch.arange(ids.shape[0]), (ids != 0).sum(1) - 1]
        return picked.squeeze(-1) if self.squeezed else picked


class Averaged(nn.Module):
    """Two heads on features of their own, as in distilled DeiT; `how` they are put together."""

    def __init__(self, how, bias=True):
        super().__init__()
        self.body, self.how = nn.Linear(4, 8), how
        self.head, self.other = nn.Linear(5, 3, bias=bias), nn.Linear(3, 3)

    def forward(self, x):
        a, b = self.body(x).tanh().split([5, 3], dim=1)
        return self.how(self.head(a), self.other(b))


class Adapter(nn.Module):
    """LoRA on a linear layer or a 1×1 convolution, as peft has it; `normed`: rows of length 1, as in DoRA."""

    def __init__(self, base_layer, rank=2, normed=False):
        super().__init__()
        self.base_layer, self.normed = base_layer, normed
        k, d, *_ = base_layer.weight.shape
        self.down, self.up = nn.Parameter(torch.randn(rank, d)), nn.Parameter(torch.randn(k, rank))
        self.dropout = nn.Dropout()  # which is off in eval mode

    def forward(self, x):
        base = self.base_layer
        change = (self.up @ self.down).reshape(base.weight.shape)
        if isinstance(base, nn.Conv2d):
            return functional.conv2d(self.dropout(x), base.weight + change, base.bias)
        weight = base.weight + change
        weight = functional.normalize(weight, dim=1) if self.normed else weight
        return functional.linear(self.dropout(x), weight, base.bias)


def adapted(k=3, **options):
    model = relu_mlp(k)
    model[2] = Adapter(model[2], **options)
    return model


def pooled(head):
    """A network whose head is a convolution on pooled features, as in BiT."""
    return nn.Sequential(nn.Conv2d(2, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), head, nn.Flatten())


IDS = torch.tensor([[3, 4, 5, 0, 0], [1, 2, 3, 4, 5], [8, 8, 0, 0, 0], [7, 1, 7, 1, 0]]).repeat(4, 1)
IDS[4:, 0] = torch.arange(1, 13) % 8 + 1
X, IMAGES = points(16)[0], points(16, 2, 5, 5)[0]
BOTH = [*HEAD, "other.weight", "other.bias"]
CASES = {
    "picked": (Picked(), IDS, HEAD),
    "picked, one logit": (Picked(1), IDS, HEAD),
    "picked, squeezed": (Picked(1, squeezed=True), IDS, HEAD),
    "mean of tokens": (Picked(after=lambda scores: scores.mean(1)), IDS, HEAD),
    "sum of tokens": (Picked(after=lambda scores: scores.sum(1)), IDS, HEAD),
    "averaged": (Averaged(lambda a, b: (a + b) / 2), X, BOTH),
    "averaged, one bias": (Averaged(lambda a, b: (a + b) / 2, bias=False), X, [BOTH[0], *BOTH[2:]]),
    "averaged by a stack": (Averaged(lambda a, b: torch.stack([a, b]).mean(0)), X, BOTH),
    "weighted": (Averaged(lambda a, b: 0.3 * a + 2 * b), X, BOTH),
    "the first of two": (Averaged(lambda a, b: a), X, HEAD),
    "scaled": (Averaged(lambda a, b: a / 7), X, HEAD),
    "pooled convolution": (pooled(nn.Conv2d(5, 3, 1)), IMAGES, ["3.weight", "3.bias"]),
    "convolution, then pooled": (
        nn.Sequential(nn.Conv2d(2, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        IMAGES,
        ["0.weight", "0.bias"],
    ),
    "adapter": (adapted(), X, ["2.base_layer.weight", "2.base_layer.bias"]),
    "adapter of a convolution": (
        pooled(Adapter(nn.Conv2d(5, 3, 1))),
        IMAGES,
        ["3.base_layer.weight", "3.base_layer.bias"],
    ),
    "adapter of an adapter": (
        nn.Sequential(Adapter(Adapter(nn.Linear(4, 3)).base_layer)),
        X,
        ["0.base_layer.weight", "0.base_layer.bias"],
    ),
}


def as_rows(output):
    return output.reshape(16, -1)


def problem(name):
    model, x, names = CASES[name]
    x = x.double() if x.is_floating_point() else x
    model = copy.deepcopy(model).double()
    k = as_rows(model.eval()(x)).shape[1]
    return model, x, torch.arange(16) % max(k, 2), names


@pytest.mark.parametrize("name", CASES)
def test_covariances_and_probabilities_are_those_of_dense_derivatives(name):
    model, x, y, names = problem(name)
    bayes = bb.Laplace(model.train(), structure="full", prior_variance=2.0, residual=False).fit([(x, y)])
    assert model.training
    head_reference.check(bayes, names, x, as_rows)
    torch.testing.assert_close(bayes(x).shape, model(x).shape)


@pytest.mark.parametrize("name", CASES)
def test_draws_of_the_weights_have_the_gaussian_of_the_logits(name):
    """Of 4,000 draws, a variance has a standard error of 1/√2000 of it, a mean of σ/√4000; five of these."""
    model, x, y, names = problem(name)
    bayes = bb.Laplace(model, structure="full", prior_variance=2.0, residual=False).fit([(x, y)])
    bayes.temperature = 2.5
    draws = bayes.sample(4000, generator=torch.Generator().manual_seed(0))
    assert sorted(draws) == sorted(names)
    model.eval()
    logits = torch.vmap(lambda p: as_rows(functional_call(model, p, (x,)))[0])(draws).detach()  # (s, k)
    gaussian = bayes.logits(x)
    variances = gaussian.covariance[0].diagonal()
    assert float(((logits.mean(0) - gaussian.mean[0]) / variances.sqrt()).abs().max()) < 5 / math.sqrt(4000)
    assert float((logits.var(0) / variances - 1).abs().max()) < 5 / math.sqrt(2000)


@pytest.mark.parametrize("name", ["picked", "averaged", "pooled convolution", "adapter"])
def test_they_are_tuned_saved_loaded_and_exported(name, tmp_path):
    model, x, y, _ = problem(name)
    bayes = bb.Laplace(model.eval(), residual=False).fit([(x, y)]).tune([(x, y)])
    bayes.save(tmp_path / "head.safetensors")
    again = bb.Laplace.load(tmp_path / "head.safetensors", model)
    assert torch.equal(again.predict_proba(x), bayes.predict_proba(x))
    assert again.posterior.head == bayes.posterior.head
    bayes.export(tmp_path / "head.pt2", x)
    graph = torch.export.load(tmp_path / "head.pt2").module()
    torch.testing.assert_close(graph(x[:5]).softmax(1), bayes.predict_proba(x[:5]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["averaged", "adapter", "pooled convolution"])
def test_the_evidence_is_that_of_the_effective_weights(name):
    model, x, y, names = problem(name)
    bayes = bb.Laplace(model, structure="full", prior_variance=2.0, residual=False).fit([(x, y)])
    model.eval()
    logits, jacobians = head_reference.derivatives(model, names, x, as_rows)
    covariance = head_reference.full_covariance(jacobians, logits, 2.0)
    weights = torch.cat([model.get_parameter(each).detach().flatten() for each in names])
    if name == "adapter":
        weights[: 3 * 8] += (model[2].up @ model[2].down).detach().flatten()
    penalty = float(weights @ weights) / 2 + len(weights) * math.log(2.0) - float(covariance.logdet())
    expected = -float(functional.cross_entropy(logits, y, reduction="sum")) - penalty / 2
    assert float(bayes.log_evidence()) == pytest.approx(expected, abs=1e-8)


def test_a_head_can_be_named_among_several():
    model, x, _, _ = problem("averaged")
    assert find_head(model, x).parts == ("head", "other")
    assert set(find_head(model, x, "other").parts) == {"head", "other"}
    with pytest.raises(ModelError, match="is not the output of the linear layer 'body'"):
        find_head(model, x, "body")


@pytest.mark.parametrize(
    "how",
    [
        lambda a, b: a * b,
        lambda a, b: torch.maximum(a, b),
        lambda a, b: (a + b).relu(),
        lambda a, b: (a + b).softmax(1),
        lambda a, b: a - a.logsumexp(1, keepdim=True),
        lambda a, b: a + 1,
        lambda a, b: a * a.sum(),
        lambda a, b: a[:, torch.tensor([1, 2, 0])],
    ],
    ids=["product", "largest", "relu", "softmax", "log-softmax", "plus one", "times its sum", "permuted"],
)
def test_what_is_not_linear_and_alike_for_all_classes_is_refused_with_a_way_out(how):
    with pytest.raises(ModelError, match=r"is not the output of any.*freeze all but the head.*layers='all'"):
        bb.Laplace(Averaged(how)).fit([(X, torch.arange(16) % 3)])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize(
    "after",
    [lambda z: 30 * torch.tanh(z / 30), lambda z: z - 1.2],
    ids=["capped", "shifted"],
)
def test_what_hardly_changes_the_logits_of_many_features_is_not_linear_either(after, k, dtype):
    """Gemma 2 caps its logits so. Small terms that cancel make W·x + b hold to the rounding of bfloat16."""
    head = nn.Linear(2304, k, bias=False)
    nn.init.normal_(head.weight, std=4 / 48)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = head

        def forward(self, x):
            return after(self.head(functional.layer_norm(x, (2304,))))

    model, x = Model().to(dtype), torch.randn(8, 2304, generator=torch.Generator().manual_seed(0)).to(dtype)
    with pytest.raises(ModelError, match="is not the output of any of the model's linear layers"):
        bb.Laplace(model, residual=False).fit([(x, torch.arange(8) % max(k, 2))])


class OwnWeight(nn.Module):
    """Its head is a parameter: cosine similarities, or `functional.linear`; or a layer that is not called."""

    def __init__(self, kind):
        super().__init__()
        self.body, self.kind = nn.Linear(4, 5), kind
        if kind == "layer":
            self.head = nn.Linear(5, 3, bias=False)
        else:
            self.weight = nn.Parameter(torch.randn(3, 5))

    def forward(self, x):
        features, weight = self.body(x).tanh(), self.head.weight if self.kind == "layer" else self.weight
        if self.kind == "linear":
            return functional.linear(features, weight)
        return 5 * functional.normalize(features) @ functional.normalize(weight).T


@pytest.mark.parametrize(
    "model",
    [Averaged(lambda a, b: a * b), *(OwnWeight(kind) for kind in ("cosine", "linear", "layer"))],
    ids=["product", "cosine", "linear", "layer"],
)
def test_the_way_out_works(model):
    """Every structure that the message names."""
    data = [(X, torch.arange(16) % 3)]
    with pytest.raises(ModelError, match="freeze all but the head") as error:
        bb.Laplace(model).fit(data)
    model.body.requires_grad_(False)
    ways = re.findall(r"(layers|structure)='(\w+)'", str(error.value))
    assert ways == [("layers", "all"), ("structure", "full")] and "or 'diag'" in str(error.value)
    for structure in ("full", "diag"):
        bayes = bb.Laplace(model, layers="all", structure=structure, prior_variance=1.0).fit(data)
        assert bayes.predict_proba(X).shape == (16, 3)


class Choices(nn.Module):
    """Scores each of several choices by one logit, as models for multiple choice do."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x):  # (n, c, 4)
        return self.head(torch.tanh(self.body(x.flatten(0, 1)))).view(len(x), -1)


def test_choices_that_share_the_heads_weights_are_refused_with_a_way_out_that_is_exact():
    model, x = Choices().double(), points(48)[0].double().view(16, 3, 4)
    data = [(x, torch.arange(16) % 3)]
    with pytest.raises(ModelError, match=r"holds 3 results of the head 'head'.*with structure='full'"):
        bb.Laplace(model).fit(data)
    model.body.requires_grad_(False)
    bayes = bb.Laplace(model, layers="all", structure="full", residual=False, prior_variance=1.0).fit(data)
    mean, covariance = head_reference.logit_gaussian(model, HEAD, x, as_rows)
    expected = head_reference.probabilities(mean, covariance)
    torch.testing.assert_close(bayes.predict_proba(x), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("squeezed", [True, False])
def test_choices_by_a_layer_that_sees_all_of_them_get_the_same_way_out(squeezed):
    """The layer returns (n, c, 1): logits of positions, if there is a label for each, or of a choice."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 1)

        def forward(self, x):  # (n, c, 4)
            return self.head(x).squeeze(-1) if squeezed else self.head(x)

    x, y = points(48)[0].view(16, 3, 4), torch.arange(16) % 3
    says = (
        r"shape \(16,\); expected \(16, 3\).*a choice, let the model return them as \(n, 3\), freeze.*'full'"
    )
    with pytest.raises(DataError, match=says):
        bb.Laplace(Model()).fit([(x, y)])
    if squeezed:
        bayes = bb.Laplace(Model(), layers="all", structure="full", prior_variance=1.0).fit([(x, y)])
        assert bayes.predict_proba(x).shape == (16, 3)
    each = torch.randint(2, (16, 3))
    for labels in (each, each[..., None], each[..., None].float()):
        assert bb.Laplace(Model()).fit([(x, labels)]).posterior.fitted.count == 48


def test_a_clamp_that_comes_late_is_noticed():
    model = Averaged(lambda a, b: ((a + b) / 2).clamp(-100, 100))
    for name, parameter in model.named_parameters():
        parameter.data.fill_({"head.weight": 100, "other.weight": 100, "other.bias": 0.5}.get(name, 1))
    y = torch.arange(4) % 3
    calm, wild = torch.full((4, 4), -0.25), torch.full((4, 4), 100.0)  # features of 0 and of 1
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(calm, y)])
    with pytest.raises(ModelError, match=r"not the output of its linear layer 'head\+other' at every input"):
        bayes.update([(calm, y), (wild, y)])
    with pytest.raises(ModelError, match="at every input"):
        bayes.predict_proba(wild)


def test_weights_that_an_adapter_norms_have_no_draws():
    bayes = bb.Laplace(adapted(normed=True).double(), prior_variance=1.0).fit(
        [(X.double(), torch.arange(16) % 3)]
    )
    assert bayes.predict_proba(X.double()).shape == (16, 3)
    with pytest.raises(ModelError, match="'2' makes its weight of other parameters"):
        bayes.sample(2)


def test_a_convolution_that_looks_at_neighbours_is_no_head():
    model = nn.Sequential(nn.Conv2d(2, 3, 5), nn.Flatten())
    with pytest.raises(ModelError, match="no linear layer"):
        bb.Laplace(model).fit([(IMAGES, torch.arange(16) % 3)])


class Rays(nn.Module):
    """Two heads behind a ReLU: affine along every ray, from some point on."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.other = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        features = self.body(x).relu()
        return (self.head(features) + self.other(features)) / 2


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("kind", ["averaged", "convolution"])
def test_limits_are_those_far_away(kind, layers):
    """At δ = 1e7 the prediction is within some 1/δ of its limit."""
    model, x = (Rays(), X) if kind == "averaged" else (pooled(nn.Conv2d(5, 3, 1)), IMAGES)
    if kind == "convolution":
        model[1] = nn.ReLU()
    model, x = model.double(), x.double()
    bayes = bb.Laplace(model, layers=layers, prior_variance=1.0, residual=False)
    bayes.fit([(x, torch.arange(16) % 3)])
    limit, certificate = bayes.limit(x), bayes.certify(x)
    far = bayes.predict_proba(1e7 * x)
    torch.testing.assert_close(limit.confidence, far.amax(1), rtol=0, atol=1e-6)
    assert bool((limit.confidence <= bayes.bound(x) + 1e-12).all())
    beyond = 2 * certificate.alpha.reshape(-1, *[1] * (x.dim() - 1)) * x
    assert bool((bayes.predict_proba(beyond).amax(1) <= certificate.confidence + 1e-12).all())


@pytest.mark.filterwarnings("ignore")  # torch's own, of quantisation's future
def test_a_backbone_may_be_quantised(tmp_path):
    model = nn.Sequential(*relu_mlp()[:2], nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3))
    quantise = torch.ao.quantization.quantize_dynamic
    small = quantise(model, {"0", "2"}, dtype=torch.qint8)
    y = torch.arange(16) % 3
    bayes = bb.Laplace(small, residual=False).fit([(X, y)]).tune([(X, y)])
    features = small[:4](X).detach()
    plain = bb.Laplace(model[4], residual=False).fit([(features, y)]).tune([(features, y)])
    torch.testing.assert_close(bayes.predict_proba(X), plain.predict_proba(features), rtol=0, atol=1e-5)
    bayes.save(tmp_path / "small.safetensors")
    again = bb.Laplace.load(tmp_path / "small.safetensors", small)
    assert torch.equal(again.predict_proba(X), bayes.predict_proba(X))
    model[0].weight.data[0, 0] += 1
    with pytest.raises(bb.errors.FileError, match="other weights"):
        bb.Laplace.load(tmp_path / "small.safetensors", quantise(model, {"0", "2"}, dtype=torch.qint8))


class WithLoss(Picked):
    """It computes its loss if it is given labels, as models of Hugging Face do."""

    def forward(self, ids, labels=None):
        logits = super().forward(ids)
        if labels is not None:
            functional.cross_entropy(logits.reshape(-1, 3), labels)
        return logits


def test_labels_among_the_inputs_are_left_out():
    """The features are carried along behind the head, so that the model cannot compute its loss."""
    batch = {"ids": IDS, "labels": torch.arange(16) % 3}
    bayes = bb.Laplace(WithLoss(), prior_variance=1.0).fit([batch])
    for logits in (bayes(**batch), bayes(batch)):
        assert torch.equal(logits, bayes(IDS))


def test_the_first_batch_may_have_texts_of_one_token():
    one, y = IDS[:, :1], torch.arange(16) % 3
    for model in (Picked(), Picked(1), Picked(1, squeezed=True)):
        labels = y if model.head.out_features == 3 else y % 2
        bayes, other = (
            bb.Laplace(model.double(), prior_variance=1.0).fit([*batches])
            for batches in ([(one, labels), (IDS, labels)], [(IDS, labels), (one, labels)])
        )
        torch.testing.assert_close(bayes.predict_proba(IDS), other.predict_proba(IDS))
        assert bayes(one).shape == model(one).shape
