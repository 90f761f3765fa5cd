"""The example for many GPUs, with two processes on the CPU and made images."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch.utils.data import DataLoader

import bitbayes as bb

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "imagenet_torchrun.py"
NETWORK = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    features = nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(*features, nn.Linear(32, 3))
"""


@pytest.fixture
def images(tmp_path):
    """Images of three classes, each of its own colour, none of them square; 11 and 4 of each class."""
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 11), ("val", 4)):
        for label, name in enumerate(("n01", "n02", "n03")):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(0, 128, (24, 30, 3), generator=generator)
                pixels[..., label] += 80
                Image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / f"{number}.png")
    (tmp_path / "made_network.py").write_text(NETWORK)
    return tmp_path / "images"


@pytest.mark.slow
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no Gloo")
def test_two_processes_save_what_one_would_fit(images, monkeypatch):
    here = images.parent
    path = os.pathsep.join([str(here), str(ROOT / "src")])
    arguments = ["--model", "made_network:make", "--size", "16", "--batch-size", "4", "--workers", "0"]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*run, str(SCRIPT), str(images), *arguments],
        cwd=here,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    assert "fitted on 33 points" in ended.stdout and "accuracy" in ended.stdout
    assert list((here / "checkpoint").iterdir()) == []

    monkeypatch.syspath_prepend(str(here))
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import imagenet_torchrun
    import made_network

    model = made_network.make()
    saved = bb.Laplace.load(here / "bayes.safetensors", model)
    data = imagenet_torchrun.ImageFolder(images / "train", 16)
    alone = bb.Laplace(model).fit(DataLoader(data, 4))
    x = torch.stack([data[i][0] for i in range(0, len(data), 5)])
    alone.settings = saved.settings
    assert saved.near_variance > 0 and saved.beyond_variance > 0
    # Features in float32, of other batches.
    torch.testing.assert_close(saved.predict_proba(x), alone.predict_proba(x), rtol=0, atol=1e-5)
    assert saved.posterior.fitted.count == 33
