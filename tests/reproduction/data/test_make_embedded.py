"""The script's own two ideas: a balanced choice, and a crop on half of the images."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "scripts/make_embedded.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_embedded", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_balanced_choice_takes_each_class_alike_and_no_point_twice(script):
    labels = np.repeat([1, 2, 3], [40, 50, 60])
    chosen = script.balanced(labels, 100, np.random.default_rng(0))
    assert len(np.unique(chosen)) == 100
    assert np.bincount(labels[chosen]).tolist() == [0, 34, 33, 33]
    assert not np.array_equal(chosen, np.sort(chosen))


def test_a_crop_shifts_about_half_of_the_images_by_up_to_two_pixels(script):
    torch.manual_seed(0)
    images = torch.zeros(4000, 1, 28, 28)
    images[:, 0, 10, 12] = 1
    cropped = script.augmented(images)
    assert cropped.shape == images.shape
    places = cropped.flatten(1).argmax(dim=1)
    shifts = torch.stack([places // 28 - 10, places % 28 - 12], dim=1)  # (n, 2)
    counts = torch.zeros(5, 5).index_put(
        (shifts[:, 0] + 2, shifts[:, 1] + 2), torch.ones(4000), accumulate=True
    )
    # Each shift has probability 1/50, and no shift 1/2 + 1/50; five standard deviations to each side.
    probability = torch.full((5, 5), 1 / 50)
    probability[2, 2] += 1 / 2
    deviation = (4000 * probability * (1 - probability)).sqrt()
    assert ((counts - 4000 * probability).abs() < 5 * deviation).all()
    assert counts.sum() == 4000
