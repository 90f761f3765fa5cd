"""A fitted posterior as a safetensors file: the curvature's tensors, and a JSON header for all the rest.

Tensors are named "curvature/LAYER/FIELD" and "inputs/FIELD". The header has a format number: a reader
refuses formats that it does not know. A digest covers the whole file.
"""

import json
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bitbayes.errors import FileError
from bitbayes.fitting import Fitted
from bitbayes.io.strict_json import parse_json
from bitbayes.io.tensor_file import SAVE_AGAIN, TensorFile, read_tensors, write_tensors
from bitbayes.likelihood import likelihood_for
from bitbayes.model import Fingerprint, Head, TrainableLayers
from bitbayes.residual import InputMoments
from bitbayes.structures import CURVATURES
from bitbayes.tensors import TensorBundle

FORMAT = 4


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
        "likelihood": fitted.likelihood.name,
        "head" if isinstance(fitted.weights, Head) else "layers": asdict(fitted.weights),
        "squared_norms": fitted.squared_norms,
        "count": fitted.count,
        "loss": fitted.loss,
        "fingerprint": asdict(fitted.fingerprint),
        "living": fitted.living,
    }
    try:
        text = json.dumps(header, allow_nan=False)
    except ValueError as error:
        raise FileError(f"cannot save {path}: a number of this posterior is not finite") from error
    write_tensors(Path(path), tensors, {"bitbayes": text})


def read(
    path: str | PathLike[str], model: Fingerprint, device: torch.device
) -> tuple[dict[str, Any], dict[str, Any], Fitted]:
    """The options, the numbers and what was fitted; raises if the file is not whole, or another model's."""
    file = read_tensors(Path(path), SAVE_AGAIN)
    if "bitbayes" not in file.metadata:
        raise FileError(f"{path} is a safetensors file, but was not written by bitbayes (`Laplace.save`)")
    try:
        header = parse_json(file.metadata["bitbayes"])
        _check_header(path, header, file, model)
        if device.type == "mps":  # which has no float64: the curvature stays on the CPU
            device = torch.device("cpu")
        tensors = {name: tensor.to(device) for name, tensor in file.tensors.items()}
        return header["options"], header["numbers"], _fitted(header, tensors)
    except FileError:
        raise
    except Exception as error:  # of many types: a header with a right digest may still say anything
        raise FileError(f"{path} has a damaged header ({error!r}); {SAVE_AGAIN}") from error


def _check_header(
    path: str | PathLike[str], header: dict[str, Any], file: TensorFile, model: Fingerprint
) -> None:
    if header["format"] != FORMAT:
        older = isinstance(header["format"], int) and header["format"] < FORMAT
        todo = "fit again and save again, which takes one pass" if older else "use the version that wrote it"
        raise FileError(
            f"{path} has format {header['format']}, and this version of bitbayes reads {FORMAT}: {todo}"
        )
    file.require_digest(path)
    saved = Fingerprint(**header["fingerprint"])
    if saved.architecture != model.architecture:
        raise FileError(
            f"{path} was fitted on a model of another architecture: other modules, shapes or dtypes"
        )
    if saved.weights != model.weights:
        raise FileError(f"{path} was fitted on a model with other weights: load those, or fit again")
    expected = [f"{part}/{field.name}" for part, kind in _parts(header).items() for field in fields(kind)]
    if sorted(expected) != sorted(file.tensors):
        raise FileError(f"{path} does not hold the tensors its header promises; {SAVE_AGAIN}")


def _fitted(header: dict[str, Any], tensors: dict[str, Tensor]) -> Fitted:
    weights = Head.read(header["head"]) if "head" in header else TrainableLayers.read(header["layers"])
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
    return Fitted(
        weights,
        likelihood,
        *sums,
        Fingerprint(**header["fingerprint"]),
        made.get("inputs"),
        tuple(header["living"]),
    )


def _parts(header: dict[str, Any]) -> dict[str, type[TensorBundle]]:
    """What the file holds: each layer's curvature and, with a residual, the moments of the inputs."""
    parts: dict[str, type[TensorBundle]] = {
        f"curvature/{layer}": CURVATURES[structure] for layer, structure in header["structures"].items()
    }
    return parts | ({"inputs": InputMoments} if header["inputs"] else {})
