"""What graphs decide: the same as the library, at the border too, in both formats."""

import copy
import json
import math

import numpy
import pytest
import torch
from torch import nn

import bitbayes as bb
import classifiers
import reference
from bitbayes.decisions.exported import Decisions
from bitbayes.decisions.prediction_sets import METHODS, PredictionSets
from bitbayes.decisions.risk_threshold import RiskThreshold
from bitbayes.errors import ArgumentError
from bitbayes.io import export

pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")
KINDS = ("onnx", "pt2")


def promise(confidence, score=None):
    counted = {"points": 200, "accepted": 150, "errors": 3, "bound": 0.049}
    return RiskThreshold(confidence, risk=0.05, level=0.95, **counted, score_threshold=score)


def graph_of(path):
    """A function from inputs to the outputs by name, and what the file says."""
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        metadata = session.get_modelmeta().custom_metadata_map

        def run(x):
            given = x if isinstance(x, dict) else {"x": x}
            found = session.run(None, {name: each.numpy() for name, each in given.items()})
            names = [each.name for each in session.get_outputs()]
            return dict(zip(names, map(torch.from_numpy, found), strict=True))

        assert [each.name for each in session.get_outputs()] == json.loads(metadata["outputs"])
        return run, metadata
    extra = {"metadata.json": ""}
    graph = torch.export.load(path, extra_files=extra).module()
    metadata = json.loads(extra["metadata.json"])

    @torch.no_grad()
    def run(x):
        found = graph(x)
        found = (found,) if isinstance(found, torch.Tensor) else found
        return dict(zip(json.loads(metadata["outputs"]), found, strict=True))

    return run, metadata


# ---- the comparisons, on given probabilities and scores


class Decides(nn.Module):
    """Decisions alone, so that two runtimes compare the same numbers."""

    def __init__(self, decisions):
        super().__init__()
        self.decisions, self.weight = decisions, nn.Parameter(torch.zeros(1))

    def forward(self, x):
        accepted = [each.accept(x["scores"], x["p"].amax(1)) for each in self.decisions]
        return *accepted, *(each.sets_of(x["p"], x["scores"]) for each in self.decisions)


def beside(number, dtype):
    """The number in the precision of the dtype, and its neighbours below and above."""
    exact = numpy.array(number, dtype=dtype)
    return [float(numpy.nextafter(exact, exact.dtype.type(side))) for side in (-9, number, 9)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [2, 3, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_comparisons_are_the_same_bit_by_bit_at_and_beside_the_border(dtype, k, kind, tmp_path):
    """With ties: among 40 classes of eight different probabilities."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    own = getattr(torch, dtype)
    tied = (4 * torch.rand(60, k, dtype=own)).round() / 4 + 0.25
    p = torch.cat([(2 * torch.randn(60, k, dtype=own)).softmax(1), tied / tied.sum(1, keepdim=True)])
    scores = torch.randn(len(p), dtype=own)
    # 0.1 + 0.2 is no number of float32: rounded it is the neighbour of others.
    score, confidence, refused = 0.1 + 0.2, float(p[1].max()), -0.7
    scores[:3] = torch.tensor(beside(score, dtype), dtype=own)
    scores[3:6] = torch.tensor(beside(refused, dtype), dtype=own)
    rounded = torch.tensor(score, dtype=own)
    assert (scores[:3] >= rounded).tolist() == [False, True, True]
    decisions = []
    for method in METHODS:
        quantile = float(METHODS[method](p)[7, 1])  # the conformity of one of the classes
        sets = PredictionSets(method, 0.9, quantile, refused, None, None, None)
        decisions += [
            Decisions(score, None, sets),
            Decisions(None, promise(confidence), sets),
            Decisions(score, promise(confidence, score), sets),
        ]
    own_quantiles = METHODS["lac"](p)[8]
    decisions.append(
        Decisions(score, None, PredictionSets("lac", 0.9, own_quantiles, None, None, None, None))
    )
    path, x = tmp_path / f"decisions.{kind}", {"p": p, "scores": scores}
    names = [f"{what}{place}" for what in ("accept", "sets") for place in range(len(decisions))]
    export.write(export.Graph(Decides(decisions), tuple(names)), path, {key: x[key][:2] for key in x})
    found = graph_of(path)[0](x)
    for place, each in enumerate(decisions):
        # In the words of the library's pages: a float beside a tensor.
        expected = torch.ones(len(p), dtype=torch.bool)
        expected &= scores >= each.score if each.score is not None else True
        expected &= p.amax(1) >= each.confidence if each.confidence is not None else True
        assert 0 < int(expected.sum()) < len(p)
        assert torch.equal(found[f"accept{place}"], expected)
        sets = each.sets
        in_set = METHODS[sets.method](p) >= sets.quantile
        kept = in_set if sets.threshold is None else in_set | ~(scores >= sets.threshold)[:, None]
        assert torch.equal(found[f"sets{place}"], kept)
        assert torch.equal(found[f"sets{place}"], sets.of(p, scores >= refused if sets.threshold else None))
    assert found["sets0"][3].all() and not found["sets0"][4:6].all()


def test_equal_probabilities_have_conformities_in_the_order_of_the_classes():
    """Sorts that are not stable change the order of more than sixteen."""
    p = torch.full((1, 40), 1 / 40)
    mass = METHODS["aps"](p)[0]
    assert (mass.diff() > 0).all() and float(mass[-1]) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_none_are_not_accepted_and_have_the_full_set(kind, tmp_path):
    pytest.importorskip("onnxscript")
    sets = [PredictionSets(method, 0.9, 0.3, -1.0, None, None, None) for method in METHODS]
    decisions = [Decisions(-1.0, promise(0.1, -1.0), each) for each in sets]
    x = {"p": torch.full((3, 4), math.nan), "scores": torch.full((3,), math.nan)}
    path = tmp_path / f"decisions.{kind}"
    export.write(export.Graph(Decides(decisions), tuple("abcdef")), path, x)
    found = [*graph_of(path)[0](x).values()]
    assert not any(each.any() for each in found[:3]) and all(each.all() for each in found[3:])


# ---- whole graphs


def fitted(k, likelihood="auto", **options):
    """A tuned classifier in float32, and points that calibrate."""
    torch.manual_seed(k)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, k))
    x = torch.randn(300, 2)
    y = (x[:, :1] + torch.randn(300, k) > 0).long() if likelihood == "multilabel" else None
    y = torch.arange(300) % max(2, k) if y is None else y
    x = x + (0 if likelihood == "multilabel" else 2 * y[:, None])
    bayes = bb.Laplace(model, likelihood=likelihood, **options).fit([(x[:100], y[:100])])
    return bayes.tune([(x[100:200], y[100:200])]), (x[200:], y[200:])


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "k, likelihood, method, within",
    [
        (1, "auto", "aps", None),
        (2, "auto", "lac", "class"),
        (3, "auto", "raps", None),
        (3, "multilabel", "lac", None),
    ],
)
def test_graphs_decide_as_the_library_does(k, likelihood, method, within, kind, tmp_path):
    pytest.importorskip("onnxscript")
    bayes, (x, y) = fitted(k, likelihood)
    sets = bayes.sets([(x, y)], 0.9, method, within)
    score = bayes.threshold(x, accept=0.8)
    confidence = bayes.threshold(x, accept=0.7, by="confidence")
    risk = promise(confidence, score)
    path = tmp_path / f"bayes.{kind}"
    bayes.export(path, x[:2], score=True, threshold=risk, sets=sets)
    run, metadata = graph_of(path)
    new = torch.cat([x, torch.randn(200, 2), 100 * x[:20]])
    found = run(new)
    assert [*found] == ["logits", "score", "accept", "sets"]
    scores, confidences, probabilities = bayes.score(new), bayes.confidence(new), bayes.predict_proba(new)
    expected = (scores >= score) & (confidences >= confidence)
    # Two runtimes round differently, so that inputs beside a threshold may be on either side of it.
    clear = ((scores - score).abs() > 1e-3) & ((confidences - confidence).abs() > 1e-4)
    assert int(clear.sum()) > 300 and 0 < int(expected[clear].sum()) < int(clear.sum())
    assert found["accept"].shape == (320,) and found["accept"].dtype == torch.bool
    assert torch.equal(found["accept"][clear], expected[clear])
    assert not (found["accept"] & (found["score"] < torch.tensor(score))).any()
    conformities = METHODS[method](probabilities)
    clear = ((conformities - sets.quantile).abs() > 1e-4).all(1) & ((scores - sets.threshold).abs() > 1e-3)
    assert int(clear.sum()) > 300
    expected = sets(new)
    assert found["sets"].shape == expected.shape == (320, max(k, 2)) and found["sets"].dtype == torch.bool
    assert torch.equal(found["sets"][clear], expected[clear])
    assert 0 < int(found["sets"][:300].sum()) < 300 * max(k, 2)
    assert found["sets"][-20:].all() and not found["accept"][-20:].any()  # far away
    assert metadata["likelihood"] == bayes.posterior.likelihood.name
    told = json.loads(metadata["threshold"])
    assert told == {
        "score": score,
        "confidence": confidence,
        "risk": 0.05,
        "level": 0.95,
        "points": 200,
        "accepted": 150,
        "errors": 3,
        "bound": 0.049,
    }
    told = json.loads(metadata["sets"])
    assert (told["method"], told["coverage"], told["threshold"]) == (method, 0.9, sets.threshold)
    assert torch.equal(torch.tensor(told["quantile"]), torch.as_tensor(sets.quantile).float())


@pytest.mark.filterwarnings("ignore::bitbayes.errors.EdgeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_float_is_a_threshold_of_the_score(kind, tmp_path):
    """It is one of the scores: the graph's own comparison is exact for its own score."""
    pytest.importorskip("onnxscript")
    bayes, (x, _) = fitted(3)
    path = tmp_path / f"bayes.{kind}"
    bayes.export(path, x[:2], score=True)
    scores = graph_of(path)[0](x)["score"]
    for least, added in zip(beside(float(scores[3]), "float32")[1:], (1, 0), strict=True):
        bayes.export(path, x[:2], score=True, threshold=least)
        run, metadata = graph_of(path)
        found = run(x)
        assert torch.equal(found["score"], scores)
        assert torch.equal(found["accept"], scores >= least) and int(found["accept"][3]) == added
        assert json.loads(metadata["threshold"]) == {"score": least}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("likelihood, outputs", [("gaussian", 2), ("gaussian", 1), ("heteroscedastic", 2)])
def test_graphs_of_regressions_have_the_interval(likelihood, outputs, kind, tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))
    x, y = torch.randn(80, 3), torch.randn(80, 1 if likelihood == "heteroscedastic" else outputs)
    bayes = bb.Laplace(model, likelihood=likelihood, prior_variance=1.0).fit([(x[:40], y[:40])])
    interval = bayes.conformal_interval([(x[40:], y[40:])], 0.8)
    path = tmp_path / f"bayes.{kind}"
    bayes.export(path, x[:2], sets=interval, threshold=bayes.threshold(x))
    run, metadata = graph_of(path)
    for new in (x[:1], x[:9], 30 * x[:5]):
        found = run(new)
        assert [*found] == ["values", "deviations", "accept", "interval"]
        torch.testing.assert_close(found["interval"], interval(new), rtol=1e-4, atol=1e-5)
    assert json.loads(metadata["interval"]) == {"coverage": 0.8, "quantile": interval.quantile.tolist()}


class Tags(nn.Module):
    """Three classes for each of five positions."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x)


@pytest.mark.parametrize("kind", KINDS)
def test_each_position_is_accepted_by_itself(kind, tmp_path):
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    x, y = torch.randn(30, 5, 4), torch.arange(150).reshape(30, 5) % 3
    bayes = bb.Laplace(Tags(), prior_variance=1.0).fit([(x, y)])
    confidence = bayes.confidence(x).median().item() + 1e-4
    path = tmp_path / f"bayes.{kind}"
    bayes.export(path, x[:2], threshold=promise(confidence))
    found = graph_of(path)[0](x)["accept"]
    clear = (bayes.confidence(x) - confidence).abs() > 1e-5
    assert found.shape == (30, 5) and torch.equal(found[clear], (bayes.confidence(x) >= confidence)[clear])


def test_graphs_of_all_layers_decide(tmp_path):
    bayes, (x, y) = classifiers.trained(3, torch.float32, n=60, layers="all", prior_variance=1.0)
    sets = bayes.sets([(x, y)], 0.9, "aps")
    bayes.export(tmp_path / "bayes.pt2", x[:2], threshold=bayes.threshold(x, accept=0.5) + 1e-3, sets=sets)
    found = graph_of(tmp_path / "bayes.pt2")[0](x)
    clear = ((METHODS["aps"](bayes.predict_proba(x)) - sets.quantile).abs() > 1e-5).all(1)
    clear &= (bayes.score(x) - sets.threshold).abs() > 1e-3  # it is the score of one of these points
    assert int(clear.sum()) > 50 and torch.equal(found["sets"][clear], sets(x)[clear])
    assert 10 < int(found["accept"].sum()) < 50


# ---- what is refused


def test_thresholds_that_are_none_are_refused(tmp_path):
    bayes, (x, _) = classifiers.trained(3, torch.float32, prior_variance=1.0)
    path = tmp_path / "bayes.pt2"
    for wrong in ("0.5", True, (0.1, promise(0.9)), {"score": 0.1}, torch.tensor(0.5)):
        with pytest.raises(ArgumentError, match=r"expected a score or a RiskThreshold.*score_threshold"):
            bayes.export(path, x[:2], threshold=wrong)
    for wrong in (math.nan, -math.inf, promise(math.inf), promise(0.5, math.nan)):
        with pytest.raises(ArgumentError, match="expected a finite number"):
            bayes.export(path, x[:2], threshold=wrong)
    line = bb.Laplace(nn.Linear(2, 1), likelihood="gaussian", prior_variance=1.0).fit([(x, x[:, :1])])
    with pytest.raises(ArgumentError, match="no probabilities of classes"):
        line.export(path, x[:2], threshold=promise(0.5))
    with pytest.raises(ArgumentError, match="no probabilities of classes"):
        line.export(path, x[:2], classes=["a"])
    assert not list(tmp_path.iterdir())


def test_sets_of_another_model_or_of_other_settings_are_refused(tmp_path):
    bayes, (x, y) = classifiers.trained(3, torch.float32, prior_variance=1.0)
    path, loader = tmp_path / "bayes.pt2", reference.loader(x, y, 20)
    sets = bayes.sets(loader)
    other = copy.copy(bayes)
    other.export(path, x[:2], sets=sets)  # it shares what was fitted
    path.unlink()
    other.prior_variance, other.temperature = 2.0, 0.5
    with pytest.raises(ArgumentError, match=r"other settings \(prior_variance, temperature\)"):
        other.export(path, x[:2], sets=sets)
    other = copy.copy(bayes)
    other.predictive = "probit"
    with pytest.raises(ArgumentError, match=r"other settings \(predictive\)"):
        other.export(path, x[:2], sets=sets)
    with pytest.raises(ArgumentError, match="another Laplace, or before the last `fit`"):
        copy.copy(bayes).update(loader).export(path, x[:2], sets=sets)
    for wrong in ("lac", 0.95, [sets]):
        with pytest.raises(ArgumentError, match="expected what `sets` or `conformal_interval` returns"):
            bayes.export(path, x[:2], sets=wrong)
    grouped = bayes.sets([(x, y)], within=["left", "right"] * 30)
    with pytest.raises(ArgumentError, match="within groups, which a graph does not know"):
        bayes.export(path, x[:2], sets=grouped)
    assert not list(tmp_path.iterdir())


def test_a_promise_keeps_its_score_when_it_is_copied():
    for each in (copy.copy(promise(0.9, 0.25)), copy.deepcopy(promise(0.9, 0.25))):
        assert (each, each.score_threshold, each.accepted_share) == (0.9, 0.25, 0.75)
    assert promise(0.9).score_threshold is None
