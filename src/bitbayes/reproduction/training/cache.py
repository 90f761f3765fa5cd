"""Trained networks, kept in a folder of the user's choice: trained once, read ever after."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bitbayes.errors import FileError, one_of
from bitbayes.io.whole_file import whole, write_tensors
from bitbayes.reproduction.training import checkpoint
from bitbayes.reproduction.training.objectives import OBJECTIVES
from bitbayes.reproduction.training.recipe import Recipe
from bitbayes.reproduction.training.train import train

Made = TypeVar("Made", bound=nn.Module)


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
    is under way NAME.….part.safetensors holds what a later call goes on from.

    `make` makes the untrained network; it is called with torch's random numbers seeded by `seed`.
    """
    chosen = OBJECTIVES[one_of("objective", objective, tuple(OBJECTIVES))]
    exposed = [outliers] if chosen.exposed and outliers is not None else []
    settings = {
        "recipe": asdict(recipe),
        "objective": objective,
        "strength": chosen.strength,
        "seed": seed,
        "images": len(images),
        "data": digest(images, labels, *exposed),
    }

    def run(network: nn.Module, part: Path) -> list[float]:
        return train(
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

    return kept(folder, name, make, settings, images.device, run)[0]


def kept(
    folder: Path,
    name: str,
    make: Callable[[], Made],
    settings: dict[str, Any],
    device: torch.device,
    run: Callable[[Made, Path], list[float]],
) -> tuple[Made, dict[str, Any]]:
    """The same for any way of training: the network, and the story of its training as NAME.json has it.

    `settings`, with its `seed`, is what a network found there must have been trained with; `run` trains a new
    one in place, keeps unfinished work in the file it is given, and returns the losses.
    """
    settings = json.loads(json.dumps(settings))
    # What is unfinished goes on only with the same settings.
    part = folder / f"{name}.{hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]}.part.safetensors"
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(settings["seed"])
        network = make().to(device)
    weights, about = folder / f"{name}.safetensors", folder / f"{name}.json"
    if weights.exists() and about.exists():
        story = _check(about, settings)
        _read(network, weights)
        return network.eval(), story
    begun = checkpoint.begun(part)
    losses = run(network, part)
    story = {
        **settings,
        "losses": losses,
        "seconds": round(time.time() - begun, 1),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    write_tensors(weights, network.state_dict(), {"bitbayes": json.dumps(settings)})
    with whole(about) as unfinished:
        unfinished.write_text(json.dumps(story, indent=1) + "\n", encoding="utf-8")
    checkpoint.forget(part)
    return network.eval(), story


def digest(*tensors: Tensor) -> str:
    """Tells data apart: of the bytes of all of them."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def _check(about: Path, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(about.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{about} is damaged: delete it to train again") from error
    for key, wanted in settings.items():
        if found.get(key) != wanted:
            raise FileError(
                f"{about} belongs to a network trained with {key}={found.get(key)}, but {wanted} is asked "
                "for: choose another folder, or delete the file to train again"
            )
    return found


def _read(network: nn.Module, path: Path) -> None:
    try:
        network.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise FileError(f"{path} does not hold this network: delete it to train again") from error
