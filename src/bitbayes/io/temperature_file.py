"""A temperature, its likelihood and its model, as a safetensors file without tensors."""

import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path

from bitbayes.errors import FileError
from bitbayes.io.strict_json import parse_json
from bitbayes.io.tensor_file import SAVE_AGAIN, read_tensors, write_tensors
from bitbayes.model import Fingerprint

KEY = "bitbayes temperature"
FORMAT = 1


def write(path: str | PathLike[str], temperature: float, model: Fingerprint, likelihood: str) -> None:
    """Write the file atomically.

    Args:
        path: the file.
        temperature: T.
        model: the fingerprint of the model.
        likelihood: as it was asked for.
    """
    header = {
        "format": FORMAT,
        "temperature": temperature,
        "fingerprint": asdict(model),
        "likelihood": likelihood,
    }
    write_tensors(Path(path), {}, {KEY: json.dumps(header, allow_nan=False)})


def read(path: str | PathLike[str], model: Fingerprint) -> tuple[float, str]:
    """The temperature and the likelihood; raises if the file is damaged or another model's."""
    file = read_tensors(Path(path), SAVE_AGAIN)
    if KEY not in file.metadata:
        raise FileError(f"{path} is a safetensors file, but was not written by `TemperatureScaling.save`")
    try:
        header = parse_json(file.metadata[KEY])
        version, saved = header["format"], Fingerprint(**header["fingerprint"])
        temperature, likelihood = float(header["temperature"]), str(header.get("likelihood", "auto"))
    except Exception as error:  # of many types: a header may say anything
        raise FileError(f"{path} has a damaged header ({error!r}); {SAVE_AGAIN}") from error
    if version != FORMAT:
        raise FileError(f"{path} has format {version}, and this version of bitbayes reads {FORMAT}")
    file.require_digest(path)
    if saved != model:
        raise FileError(f"{path} was fitted on another model, or on other weights: load those, or fit again")
    return temperature, likelihood
