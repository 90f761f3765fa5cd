"""The problems of colour images, on small made files."""

import io
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bitbayes.errors import ArgumentError
from bitbayes.toys import scale_pixels
from paper.__main__ import app
from paper.experiments import openood
from paper.names import all_names
from paper.options import Options
from paper.problem import PROBLEMS
from paper.registry import reproduce


def write_packed(path, labels):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(len(str(path))).integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    image.fromarray(pixels.reshape(-1, 32, 3)).save(file, "WEBP", lossless=True)
    content = np.frombuffer(file.getvalue(), dtype=np.uint8)
    path.parent.mkdir(exist_ok=True, parents=True)
    np.savez(path, webp=content, sizes=[len(content)], labels=np.array(labels, np.uint8), bits=np.array(8))
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


@pytest.mark.parametrize(
    "name, classes, outliers, exposure",
    [
        ("cifar10", 10, ["SVHN", "LSUN (packed scenes)", "CIFAR-100"], "cifar100"),
        ("cifar100", 100, ["SVHN", "LSUN (packed scenes)", "CIFAR-10"], "cifar10"),
        ("svhn", 10, ["CIFAR-10", "LSUN (packed scenes)"], "cifar100"),
    ],
)
def test_problems_of_colour_images_are_read_from_packed_files(name, classes, outliers, exposure, tmp_path):
    written = {}
    for place, each in enumerate(("cifar10", "cifar100", "svhn", "lsun")):
        for split, count in (("train", 4 + place), ("test", 3 + place)):
            if (each, split) != ("lsun", "train"):
                labels = np.arange(count) % 10
                written[each, split] = write_packed(tmp_path / each / f"{split}_00.npz", labels)
    problem = PROBLEMS[name](Options(train=name, data=tmp_path))
    assert problem.classes == classes and problem.name == name
    assert torch.equal(problem.train.images, written[name, "train"])
    assert torch.equal(problem.test.images, written[name, "test"])
    assert problem.test.labels.tolist() == list(range(len(written[name, "test"])))
    assert list(problem.outliers) == outliers
    titles = {"SVHN": "svhn", "LSUN (packed scenes)": "lsun", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
    for title, found in problem.outliers.items():
        assert torch.equal(found.images, written[titles[title], "test"])
    assert torch.equal(problem.load_exposure_images(), written[exposure, "train"])
    logits = problem.make_network(classes).eval()(scale_pixels(problem.test.images))
    assert logits.shape == (len(problem.test.images), classes)


@pytest.fixture
def data(tmp_path):
    """Packed files of all sets, each of 66 images."""
    for name in ("cifar10", "cifar100", "svhn", "lsun"):
        for split in ("train", "test") if name != "lsun" else ("test",):
            write_packed(tmp_path / "data" / name / f"{split}_00.npz", np.arange(66) % 10)
    return tmp_path / "data"


def test_table2_on_the_command_line(data, tmp_path):
    command = ["table2", "openood", "--train", "cifar10", "--data", str(data), "--quick"]
    command += ["--trials", "2", "--output", str(tmp_path), "--cache", str(tmp_path / "networks")]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    values = json.loads((tmp_path / "table2/cifar10-quick.json").read_text())
    scores = values["scores_percent"]
    assert set(scores) == {"CIFAR-10", "SVHN", "LSUN (packed scenes)", "CIFAR-100", "Noise × 2000"}
    assert not values["not_run"]
    for method in values["methods"]:
        assert len(scores["SVHN"][method]["auroc"]) == len(scores["SVHN"][method]["fpr95"]) == 2
    assert scores["Noise × 2000"]["default"]["mmc"] == pytest.approx([10, 10], abs=1)
    text = (tmp_path / "table2/cifar10-quick.md").read_text()
    assert "96.4 ± 0.1" in text and "A quick run" in text  # the paper's AUROC of LLLA on SVHN
    near = (tmp_path / "openood/cifar10-quick.md").read_text()
    assert "| NAC | 90.9 | 94.6 |" in near and "| bitbayes (default) |" in near


def test_a_network_is_trained_further_with_outliers(data, tmp_path):
    options = Options(
        train="cifar100",
        data=data,
        trials=1,
        quick=True,
        output=tmp_path,
        cache=tmp_path / "n",
        progress=False,
    )
    reproduce(["oe"], options)
    record = json.loads((tmp_path / "n/cifar100-oe-quick-1-0.json").read_text())
    assert record["start"] and record["recipe"]["learning_rate"] == 0.01
    text = (tmp_path / "oe/cifar100-quick.md").read_text()
    assert "trained for 1 more epochs with outliers: the training images of CIFAR-10" in text
    assert "linearised" not in text  # these are compared on the plain network alone


def test_near_outliers_are_those_of_cifar_alone(options):
    assert "openood" in all_names("cifar10") and "openood" not in all_names("svhn")
    with pytest.raises(ArgumentError, match="near outliers for cifar10 and cifar100 alone"):
        reproduce(["openood"], options)


def test_near_and_far_are_means_over_their_sets():
    methods = {key: {"title": key.title(), "paper": None} for key in ("plain", "default", "dla")}
    scores = {
        name: {
            "plain": {"auroc": [first, 90.0], "fpr95": [40.0, 50.0]},
            "default": {"auroc": [95.0, 93.0], "fpr95": [10.0, 20.0]},
        }
        for name, first in (("a", 80.0), ("b", 90.0), ("c", 70.0))
    }
    values = {
        "methods": methods,
        "not_run": {"dla": "no"},
        "scores_percent": scores,
        "near": ["a"],
        "far": ["b", "c"],
    }
    best, other = openood.rows_in_order(values)
    assert best.key == "default" and best.near_auroc == [95.0, 93.0]
    assert other.near_auroc == [80.0, 90.0] and other.far_auroc == [80.0, 90.0]
    assert other.far_fpr95 == [40.0, 50.0]
