"""The drop-in as a graph that runs without bitbayes: ONNX, or torch's own format."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from bitbayes.errors import ArgumentError, FileError, ModelError
from bitbayes.network import Inputs, rows_of
from bitbayes.writing import whole

FORMATS = (".onnx", ".pt2")
OUTPUT = "logits"


def check_path(path: str | PathLike[str]) -> Path:
    """The path; raises, before any work, if nothing of a known format can be written there."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ArgumentError(
            f"path={str(path)!r}: expected a name that ends in '.onnx', or in '.pt2' for torch.export"
        )
    if path.is_dir() or not path.parent.is_dir():
        raise FileError(f"cannot write {path}: it is a folder, or there is no folder {path.parent}")
    if path.suffix == ".onnx" and not find_spec("onnxscript"):
        raise ArgumentError("ONNX needs onnxscript: install bitbayes with its extra 'onnx', or export '.pt2'")
    return path


def write(module: nn.Module, path: Path, example: Inputs) -> None:
    """Trace `module` at inputs like the example, with any number of rows, and write the graph."""
    example = _rows(example)
    with torch.no_grad(), _quiet():
        module(example)  # what is made at the first prediction is made now, of real numbers
        program = _graph(module, example)
        with whole(path) as part:
            if path.suffix == ".pt2":
                torch.export.save(program, part)
            else:
                _write_onnx(program, part, [*example] if isinstance(example, Mapping) else ["x"])


def _rows(example: Inputs) -> Inputs:
    """The example with two rows at least: of one row the trace would take the number for a constant."""
    if rows_of(example) > 1:
        return example if isinstance(example, Tensor) else dict(example)
    if isinstance(example, Tensor):
        return torch.cat([example, example])
    return {name: torch.cat([value, value]) for name, value in example.items()}


def _graph(module: nn.Module, example: Inputs) -> ExportedProgram:
    rows = {0: Dim("rows")}
    shapes = rows if isinstance(example, Tensor) else dict.fromkeys(example, rows)
    try:
        return torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # torch raises many kinds
        raise ModelError(
            f"torch.export cannot trace this model: {_first_line(error)}. If it traces the model alone "
            "(torch.export.export), this is a fault of bitbayes"
        ) from error


def _write_onnx(program: ExportedProgram, path: Path, names: list[str]) -> None:
    try:
        made = torch.onnx.export(
            program, dynamo=True, input_names=names, output_names=[OUTPUT], verbose=False
        )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            f"ONNX has no counterpart for a part of this model or of its posterior: {_first_line(error)}. "
            "Export to '.pt2' instead, or choose another structure"
        ) from error
    assert made is not None
    made.save(path, external_data=False)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on torchvision, and on torch's own changes to come."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
