"""Export a fitted model as a graph that runs without bitbayes, in ONNX or in the format of torch.export."""

import io
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

from bitbayes.errors import ArgumentError, ModelError
from bitbayes.io.whole_file import check_writable, write_bytes
from bitbayes.model import Inputs, row_count
from bitbayes.model.batches import LABELS, describe
from bitbayes.precision import without_autocast

EXPORT_SUFFIXES = (".onnx", ".pt2")
ONNX_OUTPUT_NAME = "logits"
# Neither torch's exporter nor Python's warning filters are safe in several threads.
EXPORT_LOCK = threading.Lock()


def check_path(path: str | PathLike[str]) -> Path:
    """Return the path. Raise, before any work, if its format is not known or it cannot be written."""
    path = Path(path)
    if path.suffix not in EXPORT_SUFFIXES:
        raise ArgumentError(
            f"path={str(path)!r}: expected a name that ends in '.onnx', or in '.pt2' for torch.export"
        )
    check_writable(path)
    if path.suffix == ".onnx" and not find_spec("onnxscript"):
        raise ArgumentError("ONNX needs onnxscript: install bitbayes with its extra 'onnx', or export '.pt2'")
    return path


def write(module: nn.Module, path: Path, example: Inputs) -> None:
    """Trace `module` and write the graph, which takes any number of rows.

    Args:
        module: the module to trace. Its forward pass takes inputs like the example.
        path: the file, checked by `check_path`.
        example: inputs with one row or more.
    """
    example = _with_two_rows(example)
    with EXPORT_LOCK, torch.no_grad(), without_autocast(next(module.parameters()).device):
        module(example)  # computes what the first prediction caches, before the trace
        with _silence_exporter():
            program = _trace(module, example)
            names = [_input_name(each) for each in example] if isinstance(example, dict) else ["x"]
            content = _pt2_bytes(program) if path.suffix == ".pt2" else _onnx_bytes(program, names)
    write_bytes(path, content)


def _input_name(key: Any) -> str:
    """Return the name of an input in the graph: its own, or one that is made of its place."""
    return f"x{key}" if isinstance(key, int) else str(key)


def _with_two_rows(example: Inputs) -> Inputs:
    """Return the example with at least two rows. With one row the trace would take their number as fixed."""
    if not isinstance(example, (Tensor, Mapping)) or not row_count(example):
        raise ArgumentError(
            f"example is {describe(example)}: expected inputs as the model takes them, with one row or more"
        )
    rows = row_count(example)

    def doubled(value: Any) -> Any:
        return torch.cat([value, value]) if rows == 1 and _has_rows(value, rows) else value

    if isinstance(example, Tensor):
        return doubled(example)  # type: ignore[no-any-return]
    return {name: doubled(value) for name, value in example.items() if name not in LABELS}


def _has_rows(value: Any, rows: int) -> bool:
    """Return whether `value` is a tensor with one row per point. A flag or a shared mask is not."""
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == rows


def _trace(module: nn.Module, example: Inputs) -> ExportedProgram:
    rows, dynamic = row_count(example), {0: Dim("rows")}
    shapes: Any = dynamic
    if isinstance(example, Mapping):
        shapes = {name: dynamic if _has_rows(value, rows) else None for name, value in example.items()}
    try:
        return torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # torch raises errors of many types
        raise ModelError(
            f"torch.export cannot trace this model: {_root_cause(error)}. If it traces the model alone "
            "(torch.export.export), this is a fault of bitbayes"
        ) from error


def _pt2_bytes(program: ExportedProgram) -> bytes | memoryview:
    """Return the file of torch.export. On a full disk torch would end the process, so it gets none."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getbuffer()


def _onnx_bytes(program: ExportedProgram, names: list[str]) -> bytes:
    try:
        made = torch.onnx.export(
            program, dynamo=True, input_names=names, output_names=[ONNX_OUTPUT_NAME], verbose=False
        )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            f"ONNX has no counterpart for a part of this model or of its posterior: {_root_cause(error)}. "
            "Export to '.pt2' instead, or do without that part"
        ) from error
    assert made is not None
    try:
        return bytes(made.model_proto.SerializeToString())
    except Exception as error:  # of protobuf, whose messages end at 2 GB
        raise ModelError(
            f"the graph does not fit into one ONNX file: {_root_cause(error)}. Export to '.pt2' instead"
        ) from error


def _root_cause(error: BaseException) -> str:
    """Return the first line of the error that caused all others."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Hide the exporter's messages: on torchvision, and on deprecations inside torch."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
