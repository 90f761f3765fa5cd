"""timm without torchvision, which no CPU build of torch can load. timm asks it for image transforms alone."""

import importlib
import sys
import warnings
from unittest.mock import MagicMock

import pytest

PARTS = (
    "torchvision",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.models.feature_extraction",
    "torchvision.ops",
    "torchvision.ops.misc",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.utils",
)


def import_timm():
    """timm; skips the test, and says why, where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchvision")
        except Exception:  # of several types, by what is wrong with it
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            hollow = {name: MagicMock() for name in PARTS}
            sys.modules.update(hollow)
            try:
                return pytest.importorskip("timm", reason="timm is not installed: `make test` installs it")
            finally:
                for name in hollow:
                    del sys.modules[name]
        return pytest.importorskip("timm", reason="timm is not installed: `make test` installs it")
