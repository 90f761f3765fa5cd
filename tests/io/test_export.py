"""The exported graph gives the drop-in's numbers, wherever it runs and however many rows it sees."""

import copy

import numpy
import pytest
import torch
from torch import nn

import bitbayes as bb
import reference
from bitbayes.errors import ArgumentError, FileError, ModelError, NotFittedError

# Some versions of torch warn of their own way of reading tensors, once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")

CASES = {
    "kron": (3, {}),
    "paper": (3, {"curvature": "paper"}),
    "diag": (3, {"structure": "diag"}),
    "isotropic": (3, {"structure": "isotropic"}),
    "probit": (3, {"predictive": "probit"}),
    "bridge": (3, {"predictive": "bridge"}),
    "residual": (3, {"residual": True}),
    "many": (100, {}),
    "one": (1, {}),
    "quadrature": (1, {"predictive": "quadrature"}),
    "meanfield": (3, {"predictive": "meanfield"}),
}


class ConvNet(nn.Module):
    """A network in train mode with dropout and batch norm. One logit is returned without its axis."""

    def __init__(self, outputs):
        super().__init__()
        self.inside = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.drop, self.head = nn.Dropout(), nn.Linear(4 * 9, outputs)

    def forward(self, x):
        logits = self.head(self.drop(self.inside(x).flatten(1)))
        return logits[:, 0] if self.head.out_features == 1 else logits


def fitted(outputs, options):
    torch.manual_seed(0)
    x = torch.rand(140, 1, 8, 8)
    model = ConvNet(outputs).train()
    for _ in range(3):
        model(x)  # the running moments
    y = torch.arange(140) % max(2, outputs)
    return bb.Laplace(model, prior_variance=30.0, **options).fit([(x, y)]), x


def onnx(path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path)

    def run(**inputs):
        (logits,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        assert logits.dtype == numpy.float32
        return torch.from_numpy(logits)

    return run


def assert_close(found, expected):
    """Assert equality to float32's rounding, because two runtimes sum in different orders."""
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_onnxruntime_gives_the_same_numbers(case, tmp_path):
    pytest.importorskip("onnxscript")
    bayes, x = fitted(*CASES[case])
    bayes.export(tmp_path / "bayes.onnx", x[:3])
    assert bayes.model.training and bayes.model.drop.training
    assert [path.name for path in tmp_path.iterdir()] == ["bayes.onnx"]
    run = onnx(tmp_path / "bayes.onnx")
    with torch.no_grad():
        for inputs in (x[:1], x[:2], x[:7], 100 * x[:9]):
            assert_close(run(x=inputs), bayes(inputs))
        far = 1e6 * x[:5]
        assert_close(run(x=far).reshape(5, -1).softmax(1), bayes(far).reshape(5, -1).softmax(1))
    # Softmax of the graph's output is the honest probability.
    if CASES[case][0] > 1:
        torch.testing.assert_close(run(x=x).softmax(1), bayes.predict_proba(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", [*CASES, "full"])
def test_torch_export_gives_the_same_numbers(case, tmp_path):
    bayes, x = fitted(*CASES.get(case, (3, {"structure": "full"})))
    bayes.export(tmp_path / "bayes.pt2", x[:1])  # a single row is no constant
    graph = torch.export.load(tmp_path / "bayes.pt2").module()
    with torch.no_grad():
        for inputs in (x[:1], x[:7], 1e6 * x[:5]):
            assert_close(graph(inputs), bayes(inputs))


def graph_of(bayes, path, example):
    """The exported graph, as a function of inputs."""
    bayes.export(path, example)
    if path.suffix == ".onnx":
        run = onnx(path)
        return lambda x: run(x=x)
    return torch.export.load(path).module()


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
@pytest.mark.parametrize("k, method", [(1, "probit"), (3, "pairwise"), (3, "meanfield")])
def test_graphs_hold_the_temperature_and_the_residual(kind, k, method, tmp_path):
    """Against float64 and dense matrices: mean/T, and the residual's variance on the diagonal."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = reference.network(k, dtype=torch.float32)
    x, y = reference.data(k, dtype=torch.float32)
    bayes = bb.Laplace(model, structure="kron", predictive=method).fit([(x, y)]).tune([(x, y)])
    assert bayes.residual_variance > 0
    bayes.prior_variance, bayes.temperature = 5.0, 0.4
    inputs = torch.cat([x[:4], 3 * x[:4], 20 * x[:4]])
    exact = copy.deepcopy(model).double()
    weights, inside = reference.head_weights(exact), reference.head_features(exact, x.double())
    features = reference.head_features(exact, inputs.double())
    sigma = reference.covariance("kron", weights, inside, y, 5.0, True)
    beyond = (reference.residual_kernel(inputs, x) - bayes.residual_threshold).clamp_min(0)
    assert 0 < int((beyond > 0).sum()) < len(inputs)
    covariances = reference.logits_covariance(sigma, features, k)
    covariances += bayes.residual_variance * beyond[:, None, None] * torch.eye(k)
    loop = getattr(reference, method)
    means = features @ weights.T / 0.4
    expected = torch.stack([loop(m, c) for m, c in zip(means, covariances, strict=True)])
    found = graph_of(bayes, tmp_path / f"bayes.{kind}", x[:2])(inputs).detach()
    found = found.softmax(1) if k > 1 else torch.cat([(-found).sigmoid(), found.sigmoid()], 1)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)  # float32


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask):
        words = self.embed(input_ids) * attention_mask[:, :, None]
        return {"logits": self.head(words.sum(1) / attention_mask.sum(1, keepdim=True))}


def test_inputs_in_a_mapping_keep_their_names(tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    batch = {"input_ids": torch.randint(20, (30, 5)), "attention_mask": torch.ones(30, 5)}
    bayes = bb.Laplace(Text()).fit([batch | {"labels": torch.arange(30) % 3}])
    bayes.export(tmp_path / "text.onnx", batch)
    with torch.no_grad():
        few = {name: value[:4] for name, value in batch.items()}
        assert_close(onnx(tmp_path / "text.onnx")(**few), bayes(few))


class Flagged(nn.Module):
    """It takes a flag, a mask shared by all rows, and a scale beside its rows."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, a, mask, scale, flag):
        return self.head(a * mask * scale if flag else a)


@pytest.mark.parametrize("rows", [1, 5])
def test_inputs_that_have_no_row_for_each_point_are_exported(rows, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(12, 4)
    beside = {"mask": torch.tensor([1.0, 0, 1, 1]), "scale": torch.tensor(2.0), "flag": True}
    bayes = bb.Laplace(Flagged()).fit([{"a": x, **beside, "labels": torch.arange(12) % 3}])
    bayes.export(tmp_path / "bayes.pt2", {"a": x[:rows], **beside, "labels": torch.arange(rows)})
    graph = torch.export.load(tmp_path / "bayes.pt2").module()
    with torch.no_grad():
        assert_close(graph({"a": x[:7], **beside}), bayes({"a": x[:7], **beside}))


def test_a_residual_at_hidden_layers_is_exported(tmp_path):
    pytest.importorskip("onnxscript")
    bayes, x = fitted(3, {"residual": ("head",)})
    bayes.export(tmp_path / "bayes.onnx", x[:2])
    with torch.no_grad():
        for inputs in (x[:7], 100 * x[:5]):
            assert_close(onnx(tmp_path / "bayes.onnx")(x=inputs), bayes(inputs))


def test_an_autocast_around_the_export_is_not_in_the_graph(tmp_path):
    bayes, x = fitted(3, {})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bayes.export(tmp_path / "bayes.pt2", x[:2])
    with torch.no_grad():
        assert_close(torch.export.load(tmp_path / "bayes.pt2").module()(x), bayes(x))


def test_the_graph_keeps_the_prior_variance_it_was_exported_with(tmp_path):
    bayes, x = fitted(3, {})
    before = bayes(x).detach()
    bayes.export(tmp_path / "bayes.pt2", x)
    bayes.prior_variance = 0.01
    graph = torch.export.load(tmp_path / "bayes.pt2").module()
    assert_close(graph(x).detach(), before)
    assert (bayes(x) - before).abs().max() > 0.01


def test_predictives_and_posteriors_that_cannot_be_exported_raise(tmp_path):
    bayes, x = fitted(3, {})
    with pytest.raises(NotFittedError):
        bb.Laplace(bayes.model).export(tmp_path / "bayes.pt2", x)
    with pytest.raises(ArgumentError, match=r"ends in '.onnx'"):
        bayes.export(tmp_path / "bayes.txt", x)
    for example in (x[:0], x.numpy(), [x]):
        with pytest.raises(ArgumentError, match="example is"):
            bayes.export(tmp_path / "bayes.pt2", example)
    with pytest.raises(FileError, match="no folder"):
        bayes.export(tmp_path / "nowhere" / "bayes.pt2", x)
    with pytest.raises(ArgumentError, match="closed form"):
        fitted(3, {"predictive": "mc"})[0].export(tmp_path / "bayes.pt2", x)
    y = torch.arange(140) % 3
    every = bb.Laplace(copy.deepcopy(bayes.model), layers="all").fit([(x, y)])
    with pytest.raises(ArgumentError, match="layers='all'"):
        every.export(tmp_path / "bayes.pt2", x)
    assert not list(tmp_path.iterdir())


def test_a_structure_without_an_onnx_operation_raises(tmp_path):
    pytest.importorskip("onnxscript")
    bayes, x = fitted(3, {"structure": "full"})
    with pytest.raises(ModelError, match=r"cholesky.*Export to '.pt2'"):
        bayes.export(tmp_path / "bayes.onnx", x)
    assert not list(tmp_path.iterdir())
    assert bool(bayes.predict_proba(x).isfinite().all())


class DependsOnValues(nn.Module):
    """A network whose forward depends on the values of its input, which a trace does not have."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x if float(x.detach().sum()) > 0 else -x)


def test_a_model_that_cannot_be_traced_raises(tmp_path):
    x = torch.rand(12, 4)
    bayes = bb.Laplace(DependsOnValues()).fit([(x, torch.arange(12) % 3)])
    with pytest.raises(ModelError, match="cannot trace this model"):
        bayes.export(tmp_path / "bayes.pt2", x)
    assert not list(tmp_path.iterdir())


def test_a_trace_before_the_first_prediction_raises_and_changes_nothing():
    """The decomposition must not be kept from a trace, in which it holds no numbers."""
    bayes, x = fitted(3, {})
    with pytest.raises(Exception, match="must have predicted"):
        torch.export.export(bayes, (x[:2],), strict=False)
    assert bool(bayes.predict_proba(x).isfinite().all())
    torch.export.export(bayes, (x[:2],), strict=False)
