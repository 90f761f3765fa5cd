"""The example that serves an ONNX file, end to end: exported here, and run without torch and bitbayes."""

import json
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
    scores = [answer["score"] for answer in classifier(data.test_images[:VALIDATION].numpy())]
    # The threshold is one of these scores, which two runtimes round differently.
    t = classifier.threshold
    assert sum(score >= t - 1e-4 for score in scores) >= 0.95 * VALIDATION
    assert sum(score >= t + 1e-4 for score in scores) < 0.95 * VALIDATION
    fresh = classifier(data.test_images[VALIDATION:].numpy())
    assert 0.92 < sum(answer["accepted"] for answer in fresh) / len(fresh) < 0.98
    letters = classifier(data.letters_images[:200].numpy())
    noise = classifier((50 * torch.rand(20, 1, 28, 28)).numpy())
    assert sum(answer["accepted"] for answer in letters) < 0.8 * len(letters)
    assert not any(answer["accepted"] for answer in noise)
    assert max(answer["confidence"] for answer in noise) < 0.2


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


def test_the_server_answers(path, data):
    server = example.make_server(example.Classifier(path), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def ask(content):
        request = urllib.request.Request(
            f"http://localhost:{server.server_port}", json.dumps(content).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    try:
        answers = ask({"inputs": data.test_images[:2].tolist()})["answers"]
        assert [answer["label"] for answer in answers] == [str(int(each)) for each in data.test_labels[:2]]
        for wrong in ({"inputs": [[1.0, 2.0]]}, {"images": []}, {"inputs": [[[["a"] * 28] * 28]]}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask(wrong)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_file_without_threshold_is_refused(tmp_path):
    x = torch.randn(20, 4)
    bayes = bb.Laplace(torch.nn.Linear(4, 3), prior_variance=1.0).fit([(x, torch.arange(20) % 3)])
    bayes.export(tmp_path / "plain.onnx", x[:2])
    with pytest.raises(ValueError, match="no classes and no threshold"):
        example.Classifier(str(tmp_path / "plain.onnx"))
