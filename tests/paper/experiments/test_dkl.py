"""The table of deep kernel learning, on the tiny problem: cache, batches, both scalings, the paper's rows."""

from dataclasses import replace

import pytest
import torch

from bitbayes.errors import FileError
from bitbayes.toys import scale_pixels
from paper.deep_kernel import DeepKernel
from paper.experiments import ood
from paper.experiments.dkl import (
    ShuffledLoader,
    TrainedKernel,
    dkl_paper_scores,
    load_or_train_kernel,
)
from paper.methods import Points
from paper.options import Options
from paper.registry import reproduce
from paper.session import Session


def test_the_papers_numbers_stand_beside_ours():
    titles = {"plain": "MAP", "ours": None, "dkl-batch": "DKL", "dkl": None}
    sets = {"Tiny": None, "Fashion-MNIST": "FMNIST", "Noise × 2000": "Noise (delta=2000)"}
    values = {
        "problem": "Tiny",
        "paper_problem": "MNIST",
        "paper_rows": {name: row for name, row in sets.items() if row},
        "methods": {key: {"title": key, "paper": paper} for key, paper in titles.items()},
        "scores_percent": {name: {key: {"mmc": [50.0]} for key in titles} for name in sets},
    }
    found = {
        (where, method["key"]): paper
        for where, method, _, paper in ood.iterate_cells(values, dkl_paper_scores)
    }
    assert len(found) == 12
    assert found["Noise × 2000", "dkl-batch"] == {"mmc": [58.6, 0.5], "aur": [99.7, 0.0]}
    assert found["Fashion-MNIST", "dkl-batch"] == {"mmc": [70.6, 0.1], "aur": [98.8, 0.0]}
    assert found["Tiny", "dkl-batch"] == {"mmc": [99.6, 0.0], "aur": None}
    assert found["Noise × 2000", "plain"] == {"mmc": [100.0, 0.0], "aur": [0.1, 0.0]}
    assert found["Noise × 2000", "dkl"] == {} and found["Tiny", "ours"] == {}


def test_it_is_trained_once(options, monkeypatch):
    first, record = load_or_train_kernel(Session(options))
    assert record["seconds"] > 0 and len(record["losses"]) == 20 and record["objective"] == "dkl"
    monkeypatch.setattr(DeepKernel, "fit", lambda *args, **kwargs: pytest.fail("trained again"))
    second, read = load_or_train_kernel(Session(options))
    assert read["losses"] == pytest.approx(record["losses"])
    state = second.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.state_dict().items())
    images = scale_pixels(Session(options).problem.test.images)
    assert second.predict_proba(images).shape == (90, 3)

    other = Session(options)
    other.problem = replace(other.problem, recipe=replace(other.problem.recipe, learning_rate=0.02))
    with pytest.raises(FileError, match="belongs to a network trained with recipe"):
        load_or_train_kernel(other)


def test_each_epoch_has_its_own_order(problem):
    plain = replace(problem, recipe=replace(problem.recipe, crop=0, batch_size=36))
    loader = ShuffledLoader(plain, seed=0)

    def epoch(number):
        loader.set_epoch(number)
        return [torch.cat(part) for part in zip(*loader, strict=True)]

    first, again, second = epoch(0), epoch(0), epoch(1)
    assert len(first[0]) == 72  # of 96: the rest waits for another order
    assert first[0].equal(again[0]) and not first[0].equal(second[0])
    known = {(image.numpy().tobytes(), int(label)) for image, label in zip(*_train(plain), strict=True)}
    found = {(image.numpy().tobytes(), int(label)) for image, label in zip(*first, strict=True)}
    assert found <= known and len(found) == 72


def _train(problem):
    return scale_pixels(problem.train.images), problem.train.labels


def test_a_batch_is_scaled_by_its_own_range(options):
    kernel, _ = load_or_train_kernel(Session(options))
    images = scale_pixels(Session(options).problem.test.images)
    for values in (kernel.softmax.mixing_weights, kernel._variational_parameters()[0]):
        values.data.normal_()  # trained for a moment, it hardly looks at the features
    points = Points(images, images.flatten(1))
    by_batch, frozen = TrainedKernel(kernel, 45), TrainedKernel(kernel)
    found = by_batch.rate(points, {}, 7).probs
    assert found.equal(by_batch.rate(points, {}, 7).probs)
    assert not found.equal(by_batch.rate(points, {}, 8).probs)
    # With the first batch's range as the frozen one, its rows are predicted alike.
    features = kernel.features(images[:45])
    kernel.bounds.copy_(torch.stack([features.min(), features.max()]))
    assert torch.allclose(frozen.rate(points[:45], {}, 7).probs, found[:45], atol=1e-6)
    kernel.bounds.mul_(0.5)
    assert not torch.allclose(frozen.rate(points[:45], {}, 7).probs, found[:45], atol=1e-3)


def test_a_quick_run_is_told_apart(options):
    reproduce(["dkl"], Options(**{**vars(options), "quick": True}))
    text = (options.output / "dkl/tiny-quick.md").read_text()
    assert "A quick run" in text and "on 60 images (epochs: 1)" in text
    assert (options.cache / "tiny-dkl-quick-1-0.safetensors").exists()
