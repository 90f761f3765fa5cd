"""An unfinished run as a safetensors file: weights, the optimizer's state, losses and seconds so far."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from bitbayes.errors import FileError
from bitbayes.io.whole_file import write_tensors

SECONDS = 20.0  # between two savings: an epoch can be much shorter


def begun(part: Path | None) -> float:
    """When the run would have begun had it never been stopped, as `time.time()` counts."""
    if part is None or not part.exists():
        return time.time()
    try:
        with safe_open(part, framework="pt") as file:
            return time.time() - float((file.metadata() or {}).get("seconds", 0))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise _foreign(part) from error


def keep(
    part: Path | None,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: list[float],
    begun: float,
) -> None:
    """Save the run, if the last time was long enough ago."""
    if part is None or (part.exists() and time.time() - part.stat().st_mtime < SECONDS):
        return
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{number}.{name}"] = value
    write_tensors(part, tensors, {"losses": json.dumps(losses), "seconds": str(time.time() - begun)})


def resume(part: Path | None, network: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """Load a saved run into network and optimizer; return its losses, none where there is no file."""
    if part is None or not part.exists():
        return []
    try:
        with safe_open(part, framework="pt") as file:
            losses = json.loads((file.metadata() or {})["losses"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        weights = {name[8:]: value for name, value in tensors.items() if name.startswith("network.")}
        network.load_state_dict(weights)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
        raise _foreign(part) from error
    states: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            states.setdefault(int(number), {})[key] = value
    current = optimizer.state_dict()
    optimizer.load_state_dict({"state": states, "param_groups": current["param_groups"]})
    return [float(loss) for loss in losses]


def forget(part: Path | None) -> None:
    """The run is finished."""
    if part is not None:
        part.unlink(missing_ok=True)


def _foreign(part: Path) -> FileError:
    return FileError(f"{part} is no unfinished run of this network: delete it to begin again")
