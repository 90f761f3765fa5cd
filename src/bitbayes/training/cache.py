"""Trained networks, kept in a folder of the user's choice: trained once, read ever after."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bitbayes.errors import FileError
from bitbayes.training.recipe import Recipe
from bitbayes.training.train import train
from bitbayes.writing import whole, write_tensors


def trained(
    folder: Path,
    name: str,
    make: Callable[[], nn.Module],
    images: Tensor,
    labels: Tensor,
    *,
    recipe: Recipe,
    objective: str = "plain",
    outliers: Tensor | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> nn.Module:
    """The network called `name` in `folder`, in eval mode; trained and saved first where it is not there.

    `folder` holds NAME.safetensors, the weights, and NAME.json: recipe, losses, versions, time. While a run
    is under way NAME.part.safetensors holds what a later call goes on from.

    `make` makes the untrained network; it is called with torch's random numbers seeded by `seed`.
    """
    device = images.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = make()
    weights, about = folder / f"{name}.safetensors", folder / f"{name}.json"
    settings = {"recipe": asdict(recipe), "objective": objective, "seed": seed, "images": len(images)}
    settings = json.loads(json.dumps(settings))
    if weights.exists() and about.exists():
        _check(about, settings)
        return _read(network, weights).to(device).eval()
    network = network.to(device)
    begun = time.perf_counter()
    part = folder / f"{name}.part.safetensors"
    losses = train(
        network,
        images,
        labels,
        recipe=recipe,
        objective=objective,
        outliers=outliers,
        seed=seed,
        part=part,
        progress=progress,
    )
    story = {
        **settings,
        "losses": losses,
        "seconds": round(time.perf_counter() - begun, 1),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    write_tensors(weights, network.state_dict(), {"bitbayes": json.dumps(settings)})
    with whole(about) as unfinished:
        unfinished.write_text(json.dumps(story, indent=1) + "\n", encoding="utf-8")
    return network


def _check(about: Path, settings: dict[str, Any]) -> None:
    try:
        found = json.loads(about.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{about} is damaged: delete it to train again") from error
    for key, wanted in settings.items():
        if found.get(key) != wanted:
            raise FileError(
                f"{about} belongs to a network trained with {key}={found.get(key)}, but {wanted} is asked "
                "for: choose another folder, or delete the file to train again"
            )


def _read(network: nn.Module, path: Path) -> nn.Module:
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise FileError(f"{path} does not hold this network: delete it to train again") from error
    return network
