"""The exported graph gives the drop-in's numbers, wherever it runs and however many rows it sees."""

import copy
import dataclasses
import json
import warnings

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

import bitbayes as bb
import ray_cases
import reference
from bitbayes.errors import ArgumentError, EdgeWarning, FileError, ModelError, NotFittedError
from bitbayes.io import onnx_file
from bitbayes.io.atomic_write import write_bytes

# Some versions of torch warn of their own way of reading tensors, once in a process.
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")

CASES = {
    "kron": (3, {}),
    "diag": (3, {"structure": "diag"}),
    "isotropic": (3, {"structure": "isotropic"}),
    "probit": (3, {"predictive": "probit"}),
    "bridge": (3, {"predictive": "bridge"}),
    "residual": (3, {"residual": True}),
    "many": (100, {}),
    "one": (1, {}),
    "quadrature": (1, {"predictive": "quadrature"}),
    "meanfield": (3, {"predictive": "meanfield"}),
    "full": (3, {"structure": "full"}),
    "full, meanfield": (3, {"structure": "full", "predictive": "meanfield"}),
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


@pytest.mark.parametrize("case", ["kron", "residual", "one", "full"])
def test_torch_export_gives_the_same_numbers(case, tmp_path):
    bayes, x = fitted(*CASES[case])
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
@pytest.mark.parametrize(
    "k, method, structure",
    [(1, "probit", "kron"), (3, "pairwise", "kron"), (3, "meanfield", "full")],
)
def test_graphs_hold_the_temperature_and_the_residual(kind, k, method, structure, tmp_path):
    """Against float64 and dense matrices: mean/T, and the residual's variance on the diagonal."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = reference.network(k, dtype=torch.float32)
    x, y = reference.data(k, dtype=torch.float32)
    bayes = bb.Laplace(model, structure=structure, predictive=method).fit([(x, y)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeWarning)
        bayes.tune([(x, y)])
    assert bayes.near_variance > 0 and bayes.beyond_variance > 0
    bayes.prior_variance, bayes.temperature = 5.0, 0.4
    inputs = torch.cat([x[:4], 3 * x[:4], 20 * x[:4]])
    exact = copy.deepcopy(model).double()
    weights, inside = reference.head_weights(exact), reference.head_features(exact, x.double())
    features = reference.head_features(exact, inputs.double())
    sigma = reference.covariance(structure, weights, inside, y, 5.0)
    # The tanh of far inputs is like that of others: there the input alone is beyond the data.
    hidden = features[:, :-1], inside[:, :-1]
    distances = {
        "input": reference.residual_distances(inputs, x, correlated=True),
        "head": reference.residual_distances(*hidden, correlated=True),
        "classes": reference.class_distances(*hidden, y),
    }
    assert distances.keys() == bayes.settings.levels.keys() == bayes.settings.thresholds.keys()
    added, far = 0.0, 0
    for name, weight in bayes.settings.levels.items():
        cubes = distances[name] ** 3
        beyond = (cubes / bayes.settings.thresholds[name] ** 3 - 1).clamp_min(0)
        added = added + bayes.near_variance * weight * cubes + bayes.beyond_variance * beyond
        far += int((beyond > 0).sum())
    assert 0 < far < len(inputs)
    covariances = reference.logits_covariance(sigma, features, k)
    covariances += added[:, None, None] * torch.eye(k)
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


class Pixels(nn.Module):
    """It takes an image by its name, and numbers beside it, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, pixel_values, age):
        return self.head(torch.cat([pixel_values.flatten(1), age[:, None]], dim=1))


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_residual_of_inputs_in_a_mapping_is_exported(kind, tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    batch = {"pixel_values": torch.randn(40, 5), "age": torch.rand(40)}
    labelled = [batch | {"labels": torch.arange(40) % 3}]
    bayes = bb.Laplace(Pixels()).fit(labelled).tune(labelled)
    path = tmp_path / f"pixels.{kind}"
    bayes.export(path, {name: each[:2] for name, each in batch.items()})
    few = {name: 30 * value[:7] for name, value in batch.items()}  # far away, where the residual acts
    with torch.no_grad():
        found = onnx(path)(**few) if kind == "onnx" else torch.export.load(path).module()(few)
        assert_close(found, bayes(few))


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


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("kind", ["onnx", "pt2"])
@pytest.mark.parametrize("residual", ["auto", ("3", "2")])
def test_the_levels_of_the_residual_are_exported(residual, kind, tmp_path):
    """Pixels, averaged channels, and the head's features, twice; each has its part in the variance."""
    pytest.importorskip("onnxscript")
    model, x = ray_cases.network("convnet", 3, 300)
    y = ray_cases.predicted_labels(model, x)
    y[::3] = y[::3].roll(1)  # some are wrong
    model, x = model.float(), x.float()
    bayes = bb.Laplace(model, residual=residual).fit([(x, y)]).tune([(x, y)])
    inputs = torch.cat([x[:7], 3 * x[:5], x[:4] - 5])
    parts = bayes.explain(inputs)
    assert [*parts][-2:] == ["head", "classes"] and len(parts) == (3 if residual == "auto" else 5)
    assert all(float(each.max()) > 0.01 for each in parts.values())
    graph = graph_of(bayes, tmp_path / f"bayes.{kind}", x[:2])
    with torch.no_grad():
        for some in (inputs, inputs[:1], 100 * x[:5]):
            assert_close(graph(some), bayes(some))


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_distance_from_the_classes_is_exported(k, kind, tmp_path):
    """It alone counts: against the dense formula, in the logits that it shrinks."""
    pytest.importorskip("onnxscript")
    model, x = ray_cases.network("mlp", k, 200)
    y = ray_cases.predicted_labels(model, x)
    before = nn.Sequential(*list(model)[:-1])
    inputs = torch.cat([x[:6], 4 * x[:6], 30 * x[:6]])
    with torch.no_grad():
        far = reference.class_distances(before(inputs), before(x), y)
    assert int((far > 0.3).sum()) > 9 and int((far == 0).sum()) > 1
    bayes = bb.Laplace(model.float(), prior_variance=1e-9).fit([(x.float(), y)])
    levels = {name: float(name == "classes") for name in bayes.known_residual.names}
    bayes.settings = dataclasses.replace(bayes.settings, near_variance=0.2, levels=levels)
    found = graph_of(bayes, tmp_path / f"bayes.{kind}", x[:2].float())(inputs.float()).detach()
    assert_close(found, bayes(inputs.float()).detach())
    # A variance of v for each logit, and nothing else: every difference has twice as much.
    with torch.no_grad():
        means = model.double()(inputs)
    shrink = (1 + reference.KAPPA * (2 if k > 1 else 1) * 0.2 * far**3).sqrt()
    expected = [
        reference.pairwise(mean / s, torch.zeros(k, k)) if k > 1 else (mean / s).sigmoid()
        for mean, s in zip(means, shrink, strict=True)
    ]
    probabilities = found.double().softmax(1) if k > 1 else found.double().sigmoid()
    torch.testing.assert_close(probabilities, torch.stack(expected), rtol=1e-3, atol=1e-5)


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
    every = bb.Laplace(copy.deepcopy(bayes.model), layers="all", predictive="sampled_networks").fit([(x, y)])
    with pytest.raises(ArgumentError, match="closed form"):
        every.export(tmp_path / "bayes.pt2", x)
    every.predictive = "auto"
    with pytest.raises(ArgumentError, match=r"layers='all'.*'.pt2'"):
        every.export(tmp_path / "bayes.onnx", x)
    assert not list(tmp_path.iterdir())


class NotInOnnx(nn.Module):
    """A network with an operation that ONNX has not."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.linalg.cholesky(x[:, :, None] * x[:, None, :] + torch.eye(4))[:, -1])


def test_a_model_without_an_onnx_operation_raises(tmp_path):
    pytest.importorskip("onnxscript")
    x = torch.rand(12, 4)
    bayes = bb.Laplace(NotInOnnx()).fit([(x, torch.arange(12) % 3)])
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


# ---- all layers


class Attention(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.embed, self.keys, self.norm = nn.Linear(8, 6), nn.Linear(6, 18), nn.LayerNorm(6)
        self.head = nn.Linear(6, outputs)

    def forward(self, x):
        parts = self.keys(self.embed(x[:, 0])).chunk(3, -1)
        return self.head(self.norm(nn.functional.scaled_dot_product_attention(*parts)).mean(1))


class Scaled(nn.Module):
    """A parameter of its own, for which there is no formula."""

    def __init__(self, outputs):
        super().__init__()
        self.sizes, self.head = nn.Parameter(torch.linspace(0.5, 1.5, 64)), nn.Linear(64, outputs)

    def forward(self, x):
        return self.head((x.flatten(1) * self.sizes).tanh())


ALL_LAYERS = {
    "kron": (ConvNet, 3, {"residual": True}),
    "one": (ConvNet, 1, {}),
    "full": (ConvNet, 3, {"structure": "full", "predictive": "meanfield"}),
    "attention": (Attention, 3, {}),
    "other": (Scaled, 3, {"structure": "diag"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL_LAYERS)
def test_all_layers_are_exported_for_torch(case, tmp_path):
    """The backward passes are in the graph, and so are the numbers of rows that they are made for."""
    kind, outputs, options = ALL_LAYERS[case]
    torch.manual_seed(0)
    x, model = torch.rand(40, 1, 8, 8), kind(outputs)
    bayes = bb.Laplace(model, layers="all", prior_variance=3.0, **options)
    bayes.fit([(x, torch.arange(40) % max(2, outputs))])
    bayes.temperature = 0.7
    bayes.export(tmp_path / "bayes.pt2", x[:1], score=True)
    assert model.training and not any(each.grad is not None for each in model.parameters())
    graph = torch.export.load(tmp_path / "bayes.pt2").module()
    with torch.no_grad():
        for inputs in (x[:1], x[:7], 100 * x[:9], 1e6 * x[:5]):
            logits, score = graph(inputs)
            assert_close(logits, bayes(inputs))
            assert_close(score, bayes.score(inputs))


def test_graphs_of_all_layers_do_not_overflow(tmp_path):
    """Squared derivatives of such inputs are beyond float32."""
    torch.manual_seed(0)
    x = torch.randn(30, 4)
    bayes = bb.Laplace(nn.Linear(4, 3), layers="all", prior_variance=9.0).fit([(x, torch.arange(30) % 3)])
    bayes.export(tmp_path / "bayes.pt2", x[:2])
    far = 1e25 * x
    found = torch.export.load(tmp_path / "bayes.pt2").module()(far)
    assert bool(found.isfinite().all())
    assert_close(found.detach().softmax(1), bayes.predict_proba(far))


# ---- sizes other than the number of rows


class Words(nn.Module):
    """It takes sentences of any length up to 12, with a mask or without."""

    def __init__(self):
        super().__init__()
        self.embed, self.places, self.head = nn.Embedding(20, 6), nn.Embedding(12, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask=None):
        places = self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        words = self.embed(input_ids) + places
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.head((words * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))


def words(rows, length):
    generator = torch.Generator().manual_seed(length)
    return {
        "input_ids": torch.randint(20, (rows, length), generator=generator),
        "attention_mask": torch.randint(2, (rows, length), generator=generator).clamp(min=0)
        | (torch.arange(length) == 0).long(),
    }


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_lengths_can_be_free(kind, tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    batch = words(30, 5)
    bayes = bb.Laplace(Words()).fit([{**batch, "labels": torch.arange(30) % 3}])
    path, lengths = tmp_path / f"bayes.{kind}", {1: "length"}
    bayes.export(path, words(2, 5), dynamic_shapes=dict.fromkeys(batch, lengths))
    if kind == "onnx":
        run = onnx(path)
    else:
        graph = torch.export.load(path).module()
        run = lambda **inputs: graph(inputs).detach()  # noqa: E731
    with torch.no_grad():
        for rows, length in ((1, 5), (4, 3), (7, 12)):
            assert_close(run(**words(rows, length)), bayes(words(rows, length)))


class Mean(nn.Module):
    """It takes series of any length from 3 on."""

    def __init__(self):
        super().__init__()
        self.inside, self.head = nn.Conv1d(2, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.inside(x).relu().mean(2))


def test_bounds_of_lengths_are_told_and_taken(tmp_path):
    torch.manual_seed(0)
    x = torch.rand(30, 2, 9)
    bayes = bb.Laplace(Mean(), residual=False).fit([(x, torch.arange(30) % 3)])
    with pytest.raises(ModelError, match=r"length = Dim\('length', min=3\)"):
        bayes.export(tmp_path / "bayes.pt2", x[:2], dynamic_shapes={2: "length"})
    with pytest.raises(ModelError, match="Not all values of length"):  # of length 3 one position is left
        bayes.export(tmp_path / "bayes.pt2", x[:2], dynamic_shapes={2: Dim("length", min=3)})
    bayes.export(tmp_path / "bayes.pt2", x[:2], dynamic_shapes={2: Dim("length", min=4)})
    graph = torch.export.load(tmp_path / "bayes.pt2").module()
    with torch.no_grad():
        for shape in ((3, 2, 4), (1, 2, 50)):
            inputs = torch.rand(shape)
            assert_close(graph(inputs), bayes(inputs))


def test_sizes_that_cannot_be_free_raise(tmp_path):
    torch.manual_seed(0)
    bayes, x = fitted(3, {"residual": False})
    path = tmp_path / "bayes.pt2"
    with pytest.raises(ModelError, match=r"Constraints violated \(side\).*side = 8"):
        bayes.export(path, x[:2], dynamic_shapes={2: "side"})
    with pytest.raises(ArgumentError, match=r"axis 4: the example has shape \(2, 1, 8, 8\)"):
        bayes.export(path, x[:2], dynamic_shapes={4: "side"})
    with pytest.raises(ArgumentError, match="size 1 along axis 1"):
        bayes.export(path, x[:2], dynamic_shapes={1: "channels"})
    for wrong in ("side", {"x": {1: "side"}}, [None]):
        with pytest.raises(ArgumentError, match="dynamic_shapes"):
            bayes.export(path, x[:2], dynamic_shapes=wrong)
    batch = words(30, 5)
    text = bb.Laplace(Words()).fit([{**batch, "labels": torch.arange(30) % 3}])
    for wrong in ({"ids": {1: "length"}}, {"input_ids": "length"}, {1: "length"}):
        with pytest.raises(ArgumentError, match="dynamic_shapes"):
            text.export(path, batch, dynamic_shapes=wrong)
    assert not list(tmp_path.iterdir())


# ---- what else is in the file


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize(
    "k, predictive, score, tuned",
    [
        (1, "probit", True, False),
        (3, "auto", "score", True),
        (1, "auto", "confidence", True),
        (3, "auto", "confidence", True),
    ],
)
def test_a_graph_can_have_the_score_or_the_confidence(k, predictive, score, tuned, tmp_path):
    """The score has the distances in it once they are tuned."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    bayes, x = fitted(k, {"predictive": predictive})
    if tuned:
        bayes.tune([(x, torch.arange(140) % max(2, k))])
    assert (bayes.settings.score_spread is not None) == tuned
    bayes.export(tmp_path / "bayes.onnx", x[:2], score=score)
    session = runtime.InferenceSession(tmp_path / "bayes.onnx")
    name = "score" if score is True else score
    assert [each.name for each in session.get_outputs()] == ["logits", name]
    for inputs in (x[:1], x[:9], 50 * x[:5]):
        logits, second = map(torch.from_numpy, session.run(None, {"x": inputs.numpy()}))
        assert_close(logits, bayes(inputs).detach())
        assert_close(second, getattr(bayes, name)(inputs))


@pytest.mark.parametrize("score", ["scores", 1, None])
def test_another_second_output_is_refused(score, tmp_path):
    bayes, x = fitted(3, {})
    with pytest.raises(ArgumentError, match="score="):
        bayes.export(tmp_path / "bayes.pt2", x[:2], score=score)
    assert not list(tmp_path.iterdir())


def file_metadata(path):
    """What a file says, as texts."""
    if path.suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime")
        return runtime.InferenceSession(path).get_modelmeta().custom_metadata_map
    extra = {"metadata.json": ""}
    torch.export.load(path, extra_files=extra)
    return json.loads(extra["metadata.json"])


def test_files_tell_about_their_graph(tmp_path):
    pytest.importorskip("onnxscript")
    bayes, x = fitted(3, {})
    told = {"made": {"by": ["hand", 0.1 + 0.2]}, "note": "für Eulen"}
    names = ("cat", "dog", "owl")
    for kind in ("onnx", "pt2"):
        bayes.export(tmp_path / f"bayes.{kind}", x[:2], score=True, classes=names, metadata=told)
        found = file_metadata(tmp_path / f"bayes.{kind}")
        assert json.loads(found["made"]) == told["made"] and found["note"] == told["note"]
        assert found["bitbayes_version"] == bb.__version__ and found["torch_version"] == torch.__version__
        assert found["bitbayes_schema"] == "1" and found["likelihood"] == "categorical"
        assert json.loads(found["outputs"]) == ["logits", "score"]
        assert json.loads(found["classes"]) == [*names]
        assert not {"threshold", "sets", "interval"} & found.keys()
    for wrong in ({"a": torch.ones(1)}, {"t": float("nan")}, {3: "x"}, {"torch_version": "1"}, "x"):
        with pytest.raises(ArgumentError, match="metadata"):
            bayes.export(tmp_path / "other.pt2", x[:2], metadata=wrong)
    for name in ("threshold", "sets", "classes"):
        with pytest.raises(ArgumentError, match=rf"key '{name}', which has an argument.*{name}="):
            bayes.export(tmp_path / "other.pt2", x[:2], metadata={name: 0.5})
    assert not (tmp_path / "other.pt2").exists()


@pytest.mark.parametrize(
    "wrong, said",
    [
        (["cat", "dog"], "2 names, and there are 3 classes"),
        (["cat", "dog", "cat"], "the name 'cat' twice"),
        (["cat", "dog", ""], "the name ''"),
        (["cat", "dog", 3], "the name 3"),
        ("cat", "names of 3 classes"),
        (3, "names of 3 classes"),
    ],
)
def test_names_of_classes_that_do_not_fit_are_refused(wrong, said, tmp_path):
    bayes, x = fitted(3, {})
    with pytest.raises(ArgumentError, match=said):
        bayes.export(tmp_path / "bayes.pt2", x[:2], classes=wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_graph_that_is_too_large_for_one_file_has_two(tmp_path, monkeypatch):
    """As if messages of protobuf ended at 20 kB."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(onnx_file, "LARGEST_GRAPH", 20_000)
    torch.manual_seed(0)
    x = torch.randn(30, 4)
    model = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))
    bayes = bb.Laplace(model).fit([(x, torch.arange(30) % 3)])
    path = tmp_path / "bayes.onnx"

    def files():
        return {each.name: each.stat().st_size for each in tmp_path.iterdir()}

    def check():
        (logits,) = runtime.InferenceSession(path).run(None, {"x": x.numpy()})
        assert_close(torch.from_numpy(logits), bayes(x).detach())

    bayes.export(path, x[:2])
    (before,) = (name for name in files() if name != "bayes.onnx")
    assert before.startswith("bayes.onnx.") and before.endswith(".data") and files()[before] > 40_000
    check()
    bayes.prior_variance = 7.0
    bayes.export(path, x[:2])  # other numbers: other weights take the place of these
    assert len(files()) == 2 and before not in files()
    check()
    (tmp_path / "bayes.onnx.notes.data").write_text("somebody else's")
    monkeypatch.setattr(onnx_file, "LARGEST_GRAPH", 2**31)
    bayes.export(path, x[:2])
    assert [*sorted(files())] == ["bayes.onnx", "bayes.onnx.notes.data"]
    check()


def test_a_failure_leaves_both_files_of_a_large_graph(tmp_path, monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(onnx_file, "LARGEST_GRAPH", 1_000)
    bayes, x = fitted(3, {})
    path = tmp_path / "bayes.onnx"
    bayes.export(path, x[:2])
    before = bayes(x).detach()

    def fails(target, *pieces):
        if target == path:
            raise FileError("the disk is full")
        write_bytes(target, *pieces)

    monkeypatch.setattr(onnx_file, "write_bytes", fails)
    bayes.prior_variance = 1e-3
    with pytest.raises(FileError):
        bayes.export(path, x[:2])
    (logits,) = runtime.InferenceSession(path).run(None, {"x": x.numpy()})
    assert_close(torch.from_numpy(logits), before)
