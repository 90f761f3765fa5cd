"""Save an unfinished training run as a safetensors file, and resume it.

The file holds the weights, the optimizer's state, the loss of each epoch, and the seconds of training so far.
"""

import json
import time
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bitbayes.errors import FileError
from bitbayes.io.whole_file import write_tensors

SECONDS_BETWEEN_CHECKPOINTS = 20.0  # an epoch can be much shorter


def start_time(path: Path | None) -> float:
    """Return when the run would have begun without interruptions, in the seconds of `time.time()`."""
    if path is None or not path.exists():
        return time.time()
    try:
        with safe_open(path, framework="pt") as file:
            return time.time() - float((file.metadata() or {}).get("seconds", 0))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise _wrong_file(path) from error


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
    write_tensors(path, tensors, {"losses": json.dumps(losses), "seconds": str(time.time() - started)})


def resume(path: Path | None, network: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Load a saved run into network and optimizer, and return its losses. Without a file, return []."""
    if path is None or not path.exists():
        return []
    try:
        with safe_open(path, framework="pt") as file:
            losses = json.loads((file.metadata() or {})["losses"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name[8:]: value for name, value in tensors.items() if name.startswith("network.")}
        network.load_state_dict(weights)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise _wrong_file(path) from error
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            states.setdefault(int(number), {})[key] = value
    current = optimizer.state_dict()
    optimizer.load_state_dict({"state": states, "param_groups": current["param_groups"]})
    return [float(loss) for loss in losses]


def _wrong_file(path: Path) -> FileError:
    return FileError(f"{path} is no unfinished run of this network: delete it to begin again")
