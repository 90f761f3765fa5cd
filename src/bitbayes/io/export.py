"""The drop-in as a graph that runs without bitbayes: ONNX, or torch's own format."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from bitbayes.errors import ArgumentError, FileError, ModelError
from bitbayes.io.whole_file import whole
from bitbayes.model import Inputs, row_count
from bitbayes.model.batches import LABELS, describe
from bitbayes.precision import without_autocast

FORMATS = (".onnx", ".pt2")
OUTPUT = "logits"
# Neither torch's exporter nor the filters of warnings are made for several threads.
ONE_AT_A_TIME = threading.Lock()


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
    with ONE_AT_A_TIME, torch.no_grad(), without_autocast(next(module.parameters()).device):
        module(example)  # what is made at the first prediction is made now, of real numbers
        with _quiet():
            program = _graph(module, example)
            with whole(path) as part:
                if path.suffix == ".pt2":
                    torch.export.save(program, part)
                else:
                    _write_onnx(program, part, [*example] if isinstance(example, dict) else ["x"])


def _rows(example: Inputs) -> Inputs:
    """The example with two rows at least: of one row the trace would take the number for a constant."""
    if not isinstance(example, (Tensor, Mapping)) or not row_count(example):
        raise ArgumentError(
            f"example is {describe(example)}: expected inputs as the model takes them, with one row or more"
        )
    rows = row_count(example)

    def twice(value: Any) -> Any:
        return torch.cat([value, value]) if rows == 1 and _has(rows, value) else value

    if isinstance(example, Tensor):
        return twice(example)  # type: ignore[no-any-return]
    return {name: twice(value) for name, value in example.items() if name not in LABELS}


def _has(rows: int, value: Any) -> bool:
    """Whether it is a tensor with one row for each point, and no mask or flag for all of them."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows


def _graph(module: nn.Module, example: Inputs) -> ExportedProgram:
    rows, dynamic = row_count(example), {0: Dim("rows")}
    shapes: Any = dynamic
    if isinstance(example, Mapping):
        shapes = {name: dynamic if _has(rows, value) else None for name, value in example.items()}
    try:
        return torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # torch raises many kinds
        raise ModelError(
            f"torch.export cannot trace this model: {_cause(error)}. If it traces the model alone "
            "(torch.export.export), this is a fault of bitbayes"
        ) from error


def _write_onnx(program: ExportedProgram, path: Path, names: list[str]) -> None:
    try:
        made = torch.onnx.export(
            program, dynamo=True, input_names=names, output_names=[OUTPUT], verbose=False
        )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            f"ONNX has no counterpart for a part of this model or of its posterior: {_cause(error)}. "
            "Export to '.pt2' instead, or do without that part"
        ) from error
    assert made is not None
    made.save(path, external_data=False)


def _cause(error: BaseException) -> str:
    """The first line of what was wrong in the first place."""
    while error.__cause__ is not None:
        error = error.__cause__
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
