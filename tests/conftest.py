"""What all tests share: this folder on the path, for its helper modules, and seeded randomness."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Derandomised: a failure seen once is seen by everybody, and nothing is written beside the tests.
settings.register_profile("tests", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("tests")

# Networks as small as those of the tests only lose time to a second thread.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
