"""Train a network once, save it in a folder, and load it from there afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from bitbayes.errors import FileError, UncheckedWarning, one_of
from paper.files import make_folder, write_bytes, write_text
from paper.training import checkpoint
from paper.training.objectives import OBJECTIVES
from paper.training.recipe import Recipe
from paper.training.step import computes_in_bfloat16
from paper.training.train import train

ADVICE = "delete it and its record (.json), and the network will be trained again"
DIGEST = "weights_sha256"
NetworkT = TypeVar("NetworkT", bound=nn.Module)


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
    start: nn.Module | None = None,
    attack_ramp: float = 0.0,
    seed: int = 0,
    progress: bool | None = None,
) -> nn.Module:
    """Return the network `name` of `folder`, in eval mode. If it is not there, train and save it first.

    The weights are in NAME.safetensors. NAME.json holds the recipe, the losses, versions, the time taken,
    and a digest of the weights, so that damage is noticed. During training a file NAME.….part holds the
    unfinished run, from which a later call resumes.

    Args:
        folder: where networks are kept. It is created if it does not exist.
        name: the name of the network's files.
        make: makes the untrained network. It is called with torch's random numbers seeded by `seed`.
        images: the training images, as in `train`. The network is trained on their device.
        labels: as in `train`.
        recipe: as in `train`.
        objective: as in `train`.
        outliers: as in `train`.
        start: a trained network of the same kind, from whose weights the training begins.
        attack_ramp: as in `train`.
        seed: determines the initial weights, and all that it determines in `train`.
        progress: as in `train`.
    """
    chosen = OBJECTIVES[one_of("objective", objective, tuple(OBJECTIVES))]
    used_outliers = [outliers] if chosen.needs_outliers and outliers is not None else []
    settings = {
        "recipe": asdict(recipe),
        "objective": objective,
        "strength": chosen.strength,
        "seed": seed,
        "images": len(images),
        "data": hash_tensors(images, labels, *used_outliers),
    }

    if attack_ramp:
        settings["attack_ramp"] = attack_ramp
    if start is not None:
        settings["start"] = hash_tensors(*start.state_dict().values())

    def run(network: nn.Module, checkpoint_file: Path) -> list[float]:
        if start is not None:
            network.load_state_dict(start.state_dict())
        return train(
            network,
            images,
            labels,
            recipe=recipe,
            objective=objective,
            outliers=outliers,
            attack_ramp=attack_ramp,
            seed=seed,
            checkpoint_file=checkpoint_file,
            progress=progress,
        )

    return load_or_train(folder, name, make, settings, images.device, run)[0]


def load_or_train(
    folder: Path,
    name: str,
    make: Callable[[], NetworkT],
    settings: dict[str, Any],
    device: torch.device,
    run: Callable[[NetworkT, Path], list[float]],
) -> tuple[NetworkT, dict[str, Any]]:
    """Load the network `name` from `folder`, or train it with `run` and save it there.

    Args:
        folder: where networks are kept.
        name: the name of the network's files.
        make: makes the untrained network.
        settings: a saved network must have been trained with these settings. They include the `seed`.
        device: the device of the network.
        run: trains a network in place, saves unfinished runs to the file it is given, and returns the losses.

    Returns:
        The network in eval mode, and the record of its training, as in NAME.json.
    """
    settings = json.loads(json.dumps(settings))
    # An unfinished run is resumed only with the same settings, so its file name depends on them.
    short_hash = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    checkpoint_file = folder / f"{name}.{short_hash}.part"
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(settings["seed"])
        network = make().to(device)
    weights_file, record_file = folder / f"{name}.safetensors", folder / f"{name}.json"
    if os.path.exists(weights_file) and os.path.exists(record_file):
        record = _read_record(record_file, settings)
        _load_weights(network, weights_file, record, record_file)
        return network.eval(), record
    make_folder(folder)
    started = checkpoint.start_time(checkpoint_file)
    losses = run(network, checkpoint_file)
    record = {
        **settings,
        "losses": losses,
        "seconds": round(time.time() - started, 1),
        "torch": torch.__version__,
        "device": device_name(device),
        "bfloat16": computes_in_bfloat16(device),
    }
    weights = save({key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()})
    write_bytes(weights_file, weights)
    _write_record(record_file, record, weights)
    checkpoint_file.unlink(missing_ok=True)
    return network.eval(), record


def hash_tensors(*tensors: Tensor) -> str:
    """Return a hash of the bytes of all tensors, which tells one data set from another."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def device_name(device: torch.device) -> str:
    """Return the GPU's model, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _read_record(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a training. Raise if the training had other settings."""
    try:
        found: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise FileError(f"{path} is damaged; {ADVICE}") from error
    for key, wanted in settings.items():
        if found.get(key) != wanted:
            raise FileError(
                f"{path} belongs to a network trained with {key}={found.get(key)}, but {wanted} is asked "
                "for: choose another folder, or delete the file to train again"
            )
    return found


def _write_record(path: Path, record: dict[str, Any], weights: bytes) -> None:
    record[DIGEST] = hashlib.sha256(weights).hexdigest()
    write_text(path, json.dumps(record, indent=1) + "\n")


def _load_weights(network: nn.Module, path: Path, record: dict[str, Any], record_file: Path) -> None:
    """Load the weights. Raise unless they are those of the record.

    Records of older versions have another digest, or none. Their networks are used with a warning, because
    training is expensive. From then on they have one.
    """
    weights = path.read_bytes()
    if record.get(DIGEST, "") not in ("", hashlib.sha256(weights).hexdigest()):
        raise FileError(f"{path} or {record_file} is damaged, or they are of two trainings; {ADVICE}")
    try:
        network.load_state_dict(load(weights))
    except Exception as error:  # of many types, if there was no digest to stop the parser
        raise FileError(f"{path} does not hold this network; {ADVICE}") from error
    if DIGEST not in record:
        warnings.warn(
            f"{path} has no digest: an older version wrote it, and damage cannot be noticed. "
            "A digest of it as it is now goes into its record; delete it to train again",
            UncheckedWarning,
            stacklevel=2,
        )
        with suppress(FileError):  # a folder that is only read: the next load will warn again
            _write_record(record_file, record, weights)
