"""The example that serves an ONNX file, end to end: exported here, and run without torch and bitbayes."""

import contextlib
import json
import math
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import bitbayes as bb
from bitbayes.io import export

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore:The given buffer is not writable")

SCRIPT = Path(__file__).parents[2] / "examples" / "serve_onnx.py"
SPEC = spec_from_file_location("serve_onnx", SCRIPT)
example = module_from_spec(SPEC)
SPEC.loader.exec_module(example)
POINTS = 1000
VALIDATION = example.VALIDATION


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    target = tmp_path_factory.mktemp("served") / "digits.onnx"
    example.export(str(target), points=POINTS)
    return str(target)


@pytest.fixture(scope="module")
def data():
    return bb.toys.digits()


def test_answers_are_those_of_the_library(path, data):
    images, labels = data.train_images[:POINTS], data.train_labels[:POINTS]
    bayes = bb.Laplace(bb.toys.digits_lenet()).fit([(images, labels)])
    bayes.tune([(data.test_images[:VALIDATION], data.test_labels[:VALIDATION])])
    x = torch.cat([data.test_images[-40:], data.letters_images[:40]])
    answers = example.Classifier(path)(x.numpy())
    probabilities, scores = bayes.predict_proba(x), bayes.score(x)
    found = [torch.tensor([answer[name] for answer in answers]) for name in ("confidence", "score")]
    torch.testing.assert_close(found[0], probabilities.amax(1), rtol=0, atol=1e-3)
    torch.testing.assert_close(found[1], scores, rtol=1e-3, atol=1e-3)
    assert [answer["label"] for answer in answers] == [str(int(each)) for each in probabilities.argmax(1)]


def test_the_threshold_accepts_the_share_it_was_made_for(path, data):
    classifier = example.Classifier(path)
    answers = classifier(data.test_images[:VALIDATION].numpy())
    t = json.loads(classifier.metadata["threshold"])["score"]
    scores = [answer["score"] for answer in answers]
    # The threshold is one of these scores, which two runtimes round differently.
    assert sum(score >= t - 1e-4 for score in scores) >= 0.95 * VALIDATION
    assert sum(score >= t + 1e-4 for score in scores) < 0.95 * VALIDATION
    assert [answer["accept"] for answer in answers] == [score >= t for score in scores]
    fresh = classifier(data.test_images[VALIDATION:].numpy())
    assert 0.92 < sum(answer["accept"] for answer in fresh) / len(fresh) < 0.98
    letters = classifier(data.letters_images[:200].numpy())
    noise = classifier((50 * torch.rand(20, 1, 28, 28)).numpy())
    assert sum(answer["accept"] for answer in letters) < 0.8 * len(letters)
    assert not any(answer["accept"] for answer in noise)
    assert max(answer["confidence"] for answer in noise) < 0.2


def test_sets_hold_the_true_digit_as_often_as_promised(path, data):
    """95% on average; 500 points calibrate it, so it varies by 0.01, and by 0.01 among 500 others."""
    first = VALIDATION + example.CALIBRATION
    answers = example.Classifier(path)(data.test_images[first:].numpy())
    true = [str(int(each)) for each in data.test_labels[first:]]
    held = [name in answer["set"] for name, answer in zip(true, answers, strict=True)]
    assert len(held) == 500 and sum(held) / 500 > 0.9
    assert sum(len(answer["set"]) for answer in answers) / 500 < 2
    far = example.Classifier(path)((50 * torch.rand(5, 1, 28, 28)).numpy())
    assert all(len(answer["set"]) == 10 for answer in far)


def test_the_file_is_all_that_is_needed(path, data, tmp_path):
    """In a process without torch and without bitbayes."""
    (tmp_path / "images.json").write_text(json.dumps(data.test_images[:3].tolist()))
    code = f"""
import json, sys
sys.modules["torch"] = sys.modules["bitbayes"] = None
sys.path.insert(0, {str(SCRIPT.parent)!r})
from serve_onnx import Classifier
classifier = Classifier({path!r})
with open("images.json") as file:
    answers = classifier(json.load(file))
print(*(answer["label"] for answer in answers), classifier.metadata["bitbayes_version"])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    expected = [str(int(each)) for each in data.test_labels[:3]]
    assert shown.stdout.split() == [*expected, bb.__version__], shown.stderr


@contextlib.contextmanager
def served(classifier):
    """A function that sends a text to a running server, and returns the status and the answer."""
    server = example.make_server(classifier, 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def ask(text):
        address = f"http://localhost:{server.server_port}"
        try:
            with urllib.request.urlopen(urllib.request.Request(address, text.encode()), timeout=30) as found:
                status, content = found.status, found.read()
        except urllib.error.HTTPError as error:
            status, content = error.code, error.read()
        return status, json.loads(content, parse_constant=pytest.fail)  # NaN is no JSON

    try:
        yield ask
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_server_answers(path, data):
    with served(example.Classifier(path)) as ask:
        status, found = ask(json.dumps({"inputs": data.test_images[:2].tolist()}))
        labels = [str(int(each)) for each in data.test_labels[:2]]
        assert status == 200 and [each["label"] for each in found["answers"]] == labels
        assert [*found["answers"][0]] == ["label", "confidence", "score", "accept", "set"]
        for wrong in (
            '{"inputs": [[1.0, 2.0]]}',
            '{"images": []}',
            json.dumps({"inputs": [[[["a"] * 28] * 28]]}),
            json.dumps({"inputs": [[[[math.nan] * 28] * 28]]}),
            json.dumps({"inputs": [[[[math.inf] * 28] * 28]]}),
            json.dumps({"inputs": [[[[None] * 28] * 28]]}),
            "[]",
            100_000 * "[",
            '{"inputs": ',
            "",
        ):
            status, found = ask(wrong)
            assert status == 400 and [*found] == ["error"]


@pytest.mark.parametrize("number", ["3e38", "-3e38", "1e39", "1e400", "1" + 400 * "0"])
def test_what_overflows_is_refused(path, number):
    """In the network, in float32, in float64, and as a whole number."""
    row = ", ".join(28 * [number])
    image = ", ".join(28 * [f"[{row}]"])
    with served(example.Classifier(path)) as ask:
        status, found = ask(f'{{"inputs": [[[{image}]]]}}')
    assert status == 422 and [*found] == ["error"]


@pytest.mark.parametrize("squeezed", [False, True])
def test_models_with_one_logit_are_answered(squeezed, tmp_path):
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = (x[:, 0] > 0).long()
    shape = torch.nn.Flatten(0) if squeezed else torch.nn.Identity()
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), shape)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, 0.0]]))
        model[0].bias.zero_()
    bayes = bb.Laplace(model, prior_variance=1.0).fit([(x[:100], y[:100])])
    target, options = tmp_path / "one.onnx", {"score": True, "classes": ["left", "right"]}
    sets = bayes.sets([(x[100:], y[100:])], 0.9)
    bayes.export(target, x[:2], threshold=bayes.threshold(x), sets=sets, **options)
    new = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.01, 0.0]])
    answers = example.Classifier(str(target))(new.numpy())
    probabilities, inside = bayes.predict_proba(new), sets(new)
    assert [each["label"] for each in answers] == ["left", "right", "right"]
    confidences = torch.tensor([each["confidence"] for each in answers])
    torch.testing.assert_close(confidences, probabilities.amax(1), rtol=1e-4, atol=1e-5)
    assert float(confidences[2]) < 0.6 < float(confidences[0]) < 1
    names = [[name for name, has in zip(("left", "right"), row, strict=True) if has] for row in inside]
    assert [each["set"] for each in answers] == names and names[0] == ["left"]


def test_a_file_without_sets_is_refused(tmp_path):
    x = torch.randn(20, 4)
    bayes = bb.Laplace(torch.nn.Linear(4, 3), prior_variance=1.0).fit([(x, torch.arange(20) % 3)])
    bayes.export(tmp_path / "plain.onnx", x[:2], score=True)
    with pytest.raises(ValueError, match="no accept and no classes and no sets"):
        example.Classifier(str(tmp_path / "plain.onnx"))


def test_an_unknown_schema_is_refused(tmp_path, monkeypatch):
    x = torch.randn(20, 4)
    bayes = bb.Laplace(torch.nn.Linear(4, 3), prior_variance=1.0).fit([(x, torch.arange(20) % 3)])
    monkeypatch.setattr(export, "SCHEMA", "999")
    bayes.export(tmp_path / "later.onnx", x[:2])
    with pytest.raises(
        ValueError, match="schema 999, and this server reads schema 1: export the model again"
    ):
        example.Classifier(str(tmp_path / "later.onnx"))
    assert example.SCHEMA == "1"


def test_files_of_other_models_are_refused(tmp_path):
    x = torch.randn(120, 4)
    y = (x[:, :2] > 0).long()
    bayes = bb.Laplace(torch.nn.Linear(4, 2), likelihood="multilabel", prior_variance=1.0)
    bayes.fit([(x[:60], y[:60])])
    options = {"score": True, "threshold": bayes.threshold(x), "classes": ["cat", "dog"]}
    bayes.export(tmp_path / "several.onnx", x[:2], sets=bayes.sets([(x[60:], y[60:])], 0.9), **options)
    with pytest.raises(ValueError, match="likelihood multilabel: this server is for one class each"):
        example.Classifier(str(tmp_path / "several.onnx"))
