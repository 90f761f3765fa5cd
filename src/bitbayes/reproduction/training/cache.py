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
from torch import Tensor, nn

from bitbayes.errors import FileError, UncheckedWarning, one_of
from bitbayes.io.atomic_write import check_writable, make_folder, read_bytes, write_text
from bitbayes.io.strict_json import parse_json
from bitbayes.io.tensor_file import DIGEST_KEY, TensorFile, read_tensors, write_tensors
from bitbayes.reproduction.training import checkpoint
from bitbayes.reproduction.training.objectives import OBJECTIVES
from bitbayes.reproduction.training.recipe import Recipe
from bitbayes.reproduction.training.train import train

ADVICE = "delete it and its record (.json), and the network will be trained again"
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
    and a digest of all that and of the weights, so that damage is noticed. During training a file
    NAME.….part.safetensors holds the unfinished run, from which a later call resumes.

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
    checkpoint_file = folder / f"{name}.{short_hash}.part.safetensors"
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(settings["seed"])
        network = make().to(device)
    weights_file, record_file = folder / f"{name}.safetensors", folder / f"{name}.json"
    if os.path.exists(weights_file) and os.path.exists(record_file):
        record = _read_record(record_file, settings)
        file = read_tensors(weights_file, ADVICE)
        _check_digest(record, file, weights_file, record_file)
        _load_weights(network, file.tensors, weights_file)
        return network.eval(), record
    make_folder(folder)
    for path in (weights_file, record_file):
        check_writable(path)
    started = checkpoint.start_time(checkpoint_file)
    losses = run(network, checkpoint_file)
    record = {
        **settings,
        "losses": losses,
        "seconds": round(time.time() - started, 1),
        "torch": torch.__version__,
        "device": device_name(device),
    }
    weights_digest = write_tensors(weights_file, network.state_dict(), {"bitbayes": json.dumps(settings)})
    _write_record(record_file, record, weights_digest)
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
        found: dict[str, Any] = dict(parse_json(read_bytes(path)))
    except (TypeError, ValueError) as error:
        raise FileError(f"{path} is damaged; {ADVICE}") from error
    for key, wanted in settings.items():
        if found.get(key) != wanted:
            raise FileError(
                f"{path} belongs to a network trained with {key}={found.get(key)}, but {wanted} is asked "
                "for: choose another folder, or delete the file to train again"
            )
    return found


def _write_record(path: Path, record: dict[str, Any], weights_digest: str) -> None:
    digest = _digest(record, weights_digest)
    write_text(path, json.dumps({**record, DIGEST_KEY: digest}, indent=1) + "\n")


def _check_digest(record: dict[str, Any], file: TensorFile, weights_file: Path, record_file: Path) -> None:
    """Take the digest out of the record. Raise unless it is that of the record and the weights.

    Networks of versions that wrote no digest are used with a warning, because training is expensive. From
    then on they have one.
    """
    found = record.pop(DIGEST_KEY, None)
    if found == _digest(record, file.digest):
        return
    if found is not None or file.checked:
        raise FileError(f"{weights_file} or {record_file} is damaged, or they are of two trainings; {ADVICE}")
    warnings.warn(
        f"{weights_file} has no digest: an older version wrote it, and whether it is undamaged cannot be "
        "checked. A digest of it as it is now goes into its record; delete it to train again",
        UncheckedWarning,
        stacklevel=2,
    )
    with suppress(FileError):  # a folder that is only read: the next load will warn again
        _write_record(record_file, record, file.digest)


def _digest(record: dict[str, Any], weights_digest: str) -> str:
    text = json.dumps(record, sort_keys=True) + weights_digest
    return hashlib.sha256(text.encode()).hexdigest()


def _load_weights(network: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise FileError(f"{path} does not hold this network; {ADVICE}") from error
