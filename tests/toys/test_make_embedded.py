"""The script chooses as many images of each class."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/make_embedded.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_embedded", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_balanced_choice_takes_each_class_alike_and_no_point_twice(script):
    labels = np.repeat([1, 2, 3], [40, 50, 60])
    chosen = script.choose_balanced(labels, 100, np.random.default_rng(0))
    assert len(np.unique(chosen)) == 100
    assert np.bincount(labels[chosen]).tolist() == [0, 34, 33, 33]
    assert not np.array_equal(chosen, np.sort(chosen))
