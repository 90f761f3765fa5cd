"""A fitted posterior as a safetensors file: the curvature's tensors, and a JSON header for all the rest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bitbayes.curvature import STRUCTURES, Curvature, NetworkCurvature, sum_names
from bitbayes.errors import FileError
from bitbayes.fitting import Fitted
from bitbayes.io.whole_file import write_tensors
from bitbayes.likelihood import likelihood_for
from bitbayes.model import Fingerprint, Head, Network
from bitbayes.residual.kernel import InputMoments

FORMAT = 1
INPUTS = "inputs."  # the first part of the names of the inputs' moments


def write(path: str | PathLike[str], options: dict[str, Any], fitted: Fitted) -> None:
    """Write the file whole or not at all."""
    structure, tensors = _tensors(fitted.curvature)
    if fitted.inputs is not None:
        tensors = tensors | {INPUTS + name: value for name, value in vars(fitted.inputs).items()}
    header = {
        "format": FORMAT,
        "options": options,
        "structure": structure,
        "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "checksum": _checksum(tensors),
        "likelihood": fitted.likelihood.name,
        "head" if isinstance(fitted.part, Head) else "network": asdict(fitted.part),
        "count": fitted.count,
        "loss": fitted.loss,
        "squared_norm": fitted.squared_norm,
        "fingerprint": asdict(fitted.fingerprint),
    }
    target = Path(path)
    if not target.parent.is_dir() or target.is_dir():
        raise FileError(f"cannot write {target}: it is a folder, or there is no folder {target.parent}")
    write_tensors(target, tensors, {"bitbayes": json.dumps(header)})


def read(
    path: str | PathLike[str], model: Fingerprint, device: torch.device
) -> tuple[dict[str, Any], Fitted]:
    """The options and what was fitted, once the file is checked to be whole and to belong to the model."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}") from error
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} cannot be read: it is damaged, truncated or no safetensors file") from error
    if "bitbayes" not in metadata:
        raise FileError(f"{path} is a safetensors file, but was not written by bitbayes (`Laplace.save`)")
    try:
        return _parse(path, json.loads(metadata["bitbayes"]), tensors, model, device)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} has a damaged header: {error!r}") from error


def _parse(
    path: str | PathLike[str],
    header: dict[str, Any],
    tensors: dict[str, Tensor],
    model: Fingerprint,
    device: torch.device,
) -> tuple[dict[str, Any], Fitted]:
    if header["format"] != FORMAT:
        raise FileError(f"{path} has format {header['format']}; this version of bitbayes reads {FORMAT}")
    saved = Fingerprint(**header["fingerprint"])
    if saved.architecture != model.architecture:
        raise FileError(
            f"{path} was fitted on a model of another architecture: other modules, shapes or dtypes"
        )
    if saved.weights != model.weights:
        raise FileError(f"{path} was fitted on a model with other weights: load those, or fit again")
    part = Head(**header["head"]) if "head" in header else Network.read(header["network"])
    names = _names(header["structure"], part)
    moments = [INPUTS + field.name for field in fields(InputMoments)]
    moments = moments if header["options"].get("residual") else []
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if sorted(names + moments) != sorted(tensors) or shapes != header["shapes"]:
        raise FileError(f"{path} does not hold the tensors its header promises")
    if header["checksum"] != _checksum(tensors):
        raise FileError(f"{path} is damaged: its tensors are not those that were saved")
    if device.type == "mps":  # which has no float64: the curvature stays on the CPU
        device = torch.device("cpu")
    sums = {name: tensors[name].to(device) for name in names}
    curvature = (
        STRUCTURES[header["structure"]](**sums)
        if isinstance(part, Head)
        else NetworkCurvature(header["structure"], sums)
    )
    fitted = Fitted(
        part,
        likelihood_for(header["likelihood"], part.outputs),
        curvature,
        int(header["count"]),
        float(header["loss"]),
        float(header["squared_norm"]),
        saved,
        InputMoments(*(tensors[name].to(device) for name in moments)) if moments else None,
    )
    return header["options"], fitted


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _tensors(curvature: Curvature | NetworkCurvature) -> tuple[str, dict[str, Tensor]]:
    """The structure's name, and the tensors by name."""
    if isinstance(curvature, NetworkCurvature):
        return curvature.structure, curvature.sums
    structure = next(name for name, kind in STRUCTURES.items() if type(curvature) is kind)
    return structure, {field.name: getattr(curvature, field.name) for field in fields(curvature)}


def _names(structure: str, part: Head | Network) -> list[str]:
    """The tensors that a file must hold."""
    if isinstance(part, Head):
        return [field.name for field in fields(STRUCTURES[structure])]
    return sum_names(structure, part.layers)
