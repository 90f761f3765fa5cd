"""A fitted posterior as a safetensors file: the curvature's tensors, and a JSON header for all the rest.

Tensors are named "curvature/LAYER/FIELD" and "inputs/FIELD". The header has a format number: a reader
refuses formats that it does not know.
"""

import hashlib
import json
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from bitbayes.errors import FileError
from bitbayes.fitting import Fitted
from bitbayes.io.whole_file import write_tensors
from bitbayes.likelihood import likelihood_for
from bitbayes.model import Fingerprint, Head, TrainableLayers
from bitbayes.residual import InputMoments
from bitbayes.structures import CURVATURES
from bitbayes.tensors import TensorBundle

FORMAT = 3


def write(
    path: str | PathLike[str], options: dict[str, Any], numbers: dict[str, Any], fitted: Fitted
) -> None:
    """Write the file whole or not at all.

    Args:
        path: where to.
        options: those of the `Laplace`.
        numbers: what can be set at any time: prior variance, temperature and the residual's numbers.
        fitted: what was learned.
    """
    tensors = {
        f"curvature/{layer}/{name}": tensor
        for layer, curvature in fitted.curvature.items()
        for name, tensor in curvature.tensors().items()
    }
    if fitted.input_moments is not None:
        tensors |= {f"inputs/{name}": tensor for name, tensor in fitted.input_moments.tensors().items()}
    header = {
        "format": FORMAT,
        "options": options,
        "numbers": numbers,
        "inputs": fitted.input_moments is not None,
        "structures": {layer: curvature.structure for layer, curvature in fitted.curvature.items()},
        "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "checksum": _checksum(tensors),
        "likelihood": fitted.likelihood.name,
        "head" if isinstance(fitted.weights, Head) else "layers": asdict(fitted.weights),
        "squared_norms": fitted.squared_norms,
        "count": fitted.count,
        "loss": fitted.loss,
        "fingerprint": asdict(fitted.fingerprint),
    }
    target = Path(path)
    if not target.parent.is_dir() or target.is_dir():
        raise FileError(f"cannot write {target}: it is a folder, or there is no folder {target.parent}")
    write_tensors(target, tensors, {"bitbayes": json.dumps(header)})


def read(
    path: str | PathLike[str], model: Fingerprint, device: torch.device
) -> tuple[dict[str, Any], dict[str, Any], Fitted]:
    """The options, the numbers and what was fitted; raises if the file is not whole, or another model's."""
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
        header = json.loads(metadata["bitbayes"])
        _check_header(path, header, tensors, model)
        if device.type == "mps":  # which has no float64: the curvature stays on the CPU
            device = torch.device("cpu")
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        return header["options"], header["numbers"], _fitted(header, tensors)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} has a damaged header: {error!r}") from error


def _check_header(
    path: str | PathLike[str], header: dict[str, Any], tensors: dict[str, Tensor], model: Fingerprint
) -> None:
    if header["format"] != FORMAT:
        older = isinstance(header["format"], int) and header["format"] < FORMAT
        todo = "fit again and save again, which takes one pass" if older else "use the version that wrote it"
        raise FileError(
            f"{path} has format {header['format']}, and this version of bitbayes reads {FORMAT}: {todo}"
        )
    saved = Fingerprint(**header["fingerprint"])
    if saved.architecture != model.architecture:
        raise FileError(
            f"{path} was fitted on a model of another architecture: other modules, shapes or dtypes"
        )
    if saved.weights != model.weights:
        raise FileError(f"{path} was fitted on a model with other weights: load those, or fit again")
    expected = [f"{part}/{field.name}" for part, kind in _parts(header).items() for field in fields(kind)]
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if sorted(expected) != sorted(tensors) or shapes != header["shapes"]:
        raise FileError(f"{path} does not hold the tensors its header promises")
    if header["checksum"] != _checksum(tensors):
        raise FileError(f"{path} is damaged: its tensors are not those that were saved")


def _fitted(header: dict[str, Any], tensors: dict[str, Tensor]) -> Fitted:
    weights = Head(**header["head"]) if "head" in header else TrainableLayers.read(header["layers"])
    likelihood = likelihood_for(weights.outputs)
    if likelihood.name != header["likelihood"]:
        raise ValueError(f"likelihood {header['likelihood']!r} for {weights.outputs} outputs")
    made: dict[str, Any] = {
        part: kind(*(tensors[f"{part}/{field.name}"] for field in fields(kind)))
        for part, kind in _parts(header).items()
    }
    curvature = {layer: made[f"curvature/{layer}"] for layer in header["structures"]}
    norms = {layer: float(norm) for layer, norm in header["squared_norms"].items()}
    sums = curvature, norms, int(header["count"]), float(header["loss"])
    return Fitted(weights, likelihood, *sums, Fingerprint(**header["fingerprint"]), made.get("inputs"))


def _parts(header: dict[str, Any]) -> dict[str, type[TensorBundle]]:
    """What the file holds: each layer's curvature and, with a residual, the moments of the inputs."""
    parts: dict[str, type[TensorBundle]] = {
        f"curvature/{layer}": CURVATURES[structure] for layer, structure in header["structures"].items()
    }
    return parts | ({"inputs": InputMoments} if header["inputs"] else {})


def _checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(tensors[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
