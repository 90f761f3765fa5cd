"""What all tests share: this folder on the path, for its helper modules, and seeded randomness."""

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from bitbayes.model import MatrixJacobian
from bitbayes.model.jacobians import layer_jacobians

sys.path.insert(0, str(Path(__file__).parent))

# Derandomised: a failure seen once is seen by everybody, and nothing is written beside the tests.
settings.register_profile("tests", deadline=None, derandomize=True, database=None, max_examples=30)
# For `make fuzz`: new examples each time, and many; a failure prints how to see it again.
settings.register_profile(
    "fuzz",
    deadline=None,
    database=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# For faults that are put in on purpose: that an example fails is enough, the smallest is not looked for.
settings.register_profile("faults", settings.get_profile("tests"), phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))

# Networks as small as those of the tests only lose time to a second thread.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# Jacobians of layers in factors, of several shapes, and both ways in which their products are made.
SHAPES = [
    # points, groups, inputs, outputs, directions, positions
    (5, 1, 7, 4, 3, 1),
    (5, 1, 7, 4, 3, 6),
    (3, 2, 5, 3, 2, 4),
    (4, 3, 2, 1, 1, 9),
]


@pytest.fixture(params=SHAPES, ids=str)
def jacobian(request):
    n, groups, i, o, c, positions = request.param
    torch.manual_seed(0)
    inputs = torch.randn(n, groups, i, positions, dtype=torch.float64)
    return MatrixJacobian(inputs, torch.randn(n, groups, c, o, positions, dtype=torch.float64))


@pytest.fixture(params=[1, 20, 2**20], ids="chunks of {}".format)
def chunk(request, monkeypatch):
    monkeypatch.setattr(layer_jacobians, "CPU_CHUNK_NUMBERS", request.param)


@pytest.fixture(params=[-1000, 1000], ids=["formed", "pairs"])
def route(request, monkeypatch):
    monkeypatch.setattr(layer_jacobians, "SQUARE_COST_IN_PRODUCTS", request.param)
    return request.param > 0
