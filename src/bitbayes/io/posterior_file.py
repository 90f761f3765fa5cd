"""A fitted posterior as a safetensors file: the curvature's tensors, and a JSON header for all the rest.

The tensors have the names of `io/sums.py`. The header has a format number: a reader refuses formats that it
does not know. A digest covers the whole file.
"""

import hashlib
import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bitbayes.errors import FileError
from bitbayes.fitted import DataEntry, Fitted
from bitbayes.io import sums
from bitbayes.io.strict_json import parse_json
from bitbayes.io.tensor_file import SAVE_AGAIN, TensorFile, decoded, encoded, read_tensors, write_tensors
from bitbayes.likelihoods import likelihood_for
from bitbayes.model import Fingerprint, Head, InputForm, KnownOutputs, Level, TrainableLayers
from bitbayes.model.running.change_detector import tensor_bytes
from bitbayes.residual import INPUT
from bitbayes.structures import CURVATURES
from bitbayes.tuned import TunedData

FORMAT = 7
# An earlier format, with one kernel at the input, is read, too.
MARGINAL_FORMAT = 5
# In the place of a path, in errors.
STATE_DICT = "the state dict"


class Content(NamedTuple):
    """What a file holds. Files of earlier versions know nothing of the data of `tune`."""

    options: dict[str, Any]
    settings: dict[str, Any]
    fitted: Fitted
    tuned: TunedData | None


def write(
    path: str | PathLike[str],
    options: dict[str, Any],
    settings: dict[str, Any],
    fitted: Fitted,
    tuned: TunedData | None,
) -> None:
    """Write the file atomically.

    Args:
        path: the file.
        options: those of the `Laplace`.
        settings: those of the `Laplace`.
        fitted: what was learned.
        tuned: what is known of the data of `tune`.
    """
    write_tensors(Path(path), *_contents(path, options, settings, fitted, tuned))


def to_bytes(
    options: dict[str, Any], settings: dict[str, Any], fitted: Fitted, tuned: TunedData | None
) -> bytes:
    """What `write` writes, for a state dict."""
    return b"".join(encoded(*_contents(STATE_DICT, options, settings, fitted, tuned)))


def _contents(
    path: str | PathLike[str],
    options: dict[str, Any],
    settings: dict[str, Any],
    fitted: Fitted,
    tuned: TunedData | None,
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of the file."""
    tensors, described = sums.to_tensors(fitted.curvature, fitted.level_sums)
    header = {
        "format": FORMAT,
        "options": options,
        "numbers": settings,
        **described,
        "likelihood": fitted.likelihood.name,
        "head" if isinstance(fitted.weights, Head) else "all_layers": asdict(fitted.weights),
        "squared_norms": fitted.squared_norms,
        "entries": [asdict(each) for each in fitted.entries],
        "loss": fitted.loss,
        "fingerprint": asdict(fitted.fingerprint),
        "levels": [asdict(each) for each in fitted.levels],
        "mutable_buffers": fitted.mutable_buffers,
        "input_form": asdict(fitted.inputs),
        "random": fitted.random,
        "squared_errors": fitted.squared_errors,
        "tuned": None if tuned is None else asdict(tuned),
        "known_outputs": None if fitted.known_outputs is None else asdict(fitted.known_outputs),
    }
    try:
        text = json.dumps(header, allow_nan=False)
    except ValueError as error:
        raise FileError(f"cannot save {path}: a number of this posterior is not finite") from error
    return tensors, {"bitbayes": text}


def read(path: str | PathLike[str], model: Fingerprint, device: torch.device) -> Content:
    """What a file holds; raises if it is damaged or another model's."""
    return _parsed(path, read_tensors(Path(path), SAVE_AGAIN), model, device)


def from_bytes(content: bytes, model: Fingerprint, device: torch.device) -> Content:
    """What `read` returns, from the bytes of `to_bytes`."""
    return _parsed(STATE_DICT, decoded(content, STATE_DICT, SAVE_AGAIN), model, device)


def _parsed(path: str | PathLike[str], file: TensorFile, model: Fingerprint, device: torch.device) -> Content:
    if "bitbayes" not in file.metadata:
        raise FileError(f"{path} is a safetensors file, but was not written by bitbayes (`Laplace.save`)")
    try:
        header = parse_json(file.metadata["bitbayes"])
        if header["format"] == MARGINAL_FORMAT:
            header, file = _from_marginal_format(path, header, file)
        _check_header(path, header, file, model)
        if device.type == "mps":  # which has no float64: the curvature stays on the CPU
            device = torch.device("cpu")
        tensors = {name: tensor.to(device) for name, tensor in file.tensors.items()}
        tuned = TunedData.read(header["tuned"]) if header.get("tuned") else None
        return Content(header["options"], header["numbers"], _fitted(header, tensors), tuned)
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
    if unknown := {*header["structures"].values()} - CURVATURES.keys():
        raise FileError(
            f"{path} has the structure {min(unknown)!r}, which is not known here: import what defines it "
            "first (for 'paper-kron', paper.kron of a checkout)"
        )
    saved = Fingerprint(**header["fingerprint"])
    if saved.architecture != model.architecture:
        raise FileError(
            f"{path} was fitted on a model of another architecture: other modules, shapes, dtypes or adapters"
        )
    if saved.weights != model.weights:
        raise FileError(f"{path} was fitted on a model with other weights: load those, or fit again")
    hidden = [name for name in header["measured"] if name != INPUT]
    if sorted(sums.names(header)) != sorted(file.tensors) or hidden != [e["name"] for e in header["levels"]]:
        raise FileError(f"{path} does not hold the tensors its header promises; {SAVE_AGAIN}")


def _from_marginal_format(
    path: str | PathLike[str], header: dict[str, Any], file: TensorFile
) -> tuple[dict[str, Any], TensorFile]:
    """A file of that earlier format as one of this format. Its residual keeps its kernel and its numbers.

    σ²·max(0, k − threshold) with k = d³ is the steep term, or for a threshold of 0 that near the data.
    Such a file knows nothing of its data. All of them are one entry, with a digest of the sums.
    """
    header, tensors = dict(header), dict(file.tensors)
    digest = hashlib.sha256(b"".join(bytes(tensor_bytes(tensors[name])) for name in sorted(tensors)))
    if isinstance(header["options"]["residual"], list) and header["inputs"]:
        raise FileError(
            f"{path} has a residual at hidden layers, of an earlier version: fit again and save again, which "
            "takes one pass"
        )
    numbers = dict(header["numbers"])
    variance, threshold = numbers.pop("residual_variance"), numbers.pop("residual_threshold")
    if header["inputs"]:
        tensors = {name.replace("inputs/", "level/input/", 1): each for name, each in tensors.items()}
        tensors["level/input/products"] = torch.zeros(0, 0, dtype=torch.float64)
        tensors["level/input/rounding"] = torch.tensor(torch.finfo(torch.float64).eps, dtype=torch.float64)
        tensors["level/input/class_counts"] = torch.zeros(0, dtype=torch.float64)
        tensors["level/input/class_means"] = torch.zeros(0, 0, dtype=torch.float64)
        if threshold:
            numbers |= {"beyond_variance": variance * threshold, "thresholds": {INPUT: threshold ** (1 / 3)}}
            numbers |= {"levels": {INPUT: 0.0}}
        else:
            numbers |= {"near_variance": variance, "levels": {INPUT: 1.0}}
    header |= {"format": FORMAT, "numbers": numbers, "measured": [INPUT] if header["inputs"] else []}
    header |= {"levels": [], "mutable_buffers": header["living"]}
    header["entries"] = [{"count": header["count"], "digest": int(digest.hexdigest()[:16], 16)}]
    if "layers" in header:
        header["all_layers"] = header.pop("layers")
    return header, file._replace(tensors=tensors)


def _fitted(header: dict[str, Any], tensors: dict[str, Tensor]) -> Fitted:
    weights = Head.read(header["head"]) if "head" in header else TrainableLayers.read(header["all_layers"])
    likelihood = likelihood_for(weights.outputs, header["likelihood"])
    curvature, measured = sums.from_tensors(tensors, header)
    norms = {layer: float(norm) for layer, norm in header["squared_norms"].items()}
    return Fitted(
        weights,
        likelihood,
        curvature,
        norms,
        float(header["loss"]),
        Fingerprint(**header["fingerprint"]),
        tuple(
            DataEntry.of(int(each["count"]), int(each["digest"]), each.get("weight"))
            for each in header["entries"]
        ),
        tuple(Level(**each) for each in header["levels"]),
        measured,
        tuple(header["mutable_buffers"]),
        InputForm.read(header.get("input_form")),
        bool(header.get("random", False)),
        KnownOutputs.read(header["known_outputs"]) if header.get("known_outputs") else None,
        tuple(float(each) for each in header.get("squared_errors", ())),
    )
