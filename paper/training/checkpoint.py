"""Save an unfinished training run in a file, and resume it.

The file holds a digest of what follows, so that damage is noticed, and then as safetensors the weights, the
optimizer's state, the loss of each epoch, and the seconds of training so far.
"""

import hashlib
import time
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from bitbayes.errors import FileError
from paper.files import make_folder, write_bytes

ADVICE = "delete it to begin the training again"
SECONDS_BETWEEN_CHECKPOINTS = 20.0  # an epoch can be much shorter


def start_time(path: Path | None) -> float:
    """Return when the run would have begun without interruptions, in the seconds of `time.time()`."""
    run = _find_run(path)
    return time.time() - (run.seconds if run else 0)


def save_if_due(
    path: Path | None,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: list[float],
    started: float,
) -> None:
    """Save the run, unless it was saved a short time ago or `path` is None."""
    if path is None or (path.exists() and time.time() - path.stat().st_mtime < SECONDS_BETWEEN_CHECKPOINTS):
        return
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{number}.{name}"] = value
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    tensors["seconds"] = torch.tensor(time.time() - started, dtype=torch.float64)
    content = save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    write_bytes(path, hashlib.sha256(content).digest() + content)


def resume(path: Path | None, network: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Load a saved run into network and optimizer, and return its losses. Without a file, return []."""
    run = _find_run(path)
    if run is None:
        return []
    # Checked first: torch would load what fits, and then raise.
    parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    if _shapes(run.weights) != _shapes(network.state_dict()) or not run.states.keys() <= {*range(parameters)}:
        raise FileError(f"{path} is an unfinished run of another network; {ADVICE}")
    network.load_state_dict(run.weights)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": run.states, "param_groups": groups})
    # A fused step on a CPU walks through memory: a momentum lies there as its weight does.
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter).copy_(value)
    return run.losses


class _Run(NamedTuple):
    """An unfinished run, as it is in the file."""

    weights: dict[str, Tensor]
    states: dict[int, dict[str, Tensor]]  # of the optimizer, by the number of the parameter
    losses: list[float]
    seconds: float


def _find_run(path: Path | None) -> _Run | None:
    """Return the run in the file, or None if there is none. Raise if a run could not be saved there."""
    if path is None:
        return None
    make_folder(path.parent)
    return _read(path) if path.exists() else None


def _read(path: Path) -> _Run:
    whole = path.read_bytes()
    digest, content = whole[:32], whole[32:]
    if digest != hashlib.sha256(content).digest():
        raise FileError(f"{path} is damaged; {ADVICE}")
    tensors = load(content)
    losses, seconds = tensors.pop("losses").tolist(), float(tensors.pop("seconds"))
    weights: dict[str, Tensor] = {}
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        kind, rest = name.split(".", 1)
        if kind == "network":
            weights[rest] = value
        else:
            number, key = rest.split(".", 1)
            states.setdefault(int(number), {})[key] = value
    return _Run(weights, states, losses, seconds)


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
