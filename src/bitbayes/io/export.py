"""Export a fitted model as a graph that runs without bitbayes, in ONNX or in the format of torch.export."""

import io
import json
import logging
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from bitbayes._version import __version__
from bitbayes.errors import ArgumentError, ModelError
from bitbayes.io import onnx_file
from bitbayes.io.atomic_write import check_writable, write_bytes
from bitbayes.model import Inputs, row_count
from bitbayes.model.loaders.batches import LABELS, describe
from bitbayes.precision import without_autocast

EXPORT_SUFFIXES = (".onnx", ".pt2")
LOGITS = "logits"
# The outputs of a regression, and of a reward model, which has deviations, too.
VALUES, DEVIATIONS = "values", "deviations"
REWARDS = "rewards"
ROWS = "rows"
# Where a .pt2 file has its metadata.
METADATA_FILE = "metadata.json"
# What the keys of the metadata mean (docs/deploy.md). It changes if one of them gets another meaning.
SCHEMA = "1"
# The keys that the file itself uses, and those that have arguments of their own.
OWN_KEYS = ("bitbayes_schema", "bitbayes_version", "torch_version", "likelihood", "outputs", "interval")
ARGUMENT_KEYS = ("threshold", "sets", "classes")
# Sizes other than the number of rows that are free: by axis, for each input of a mapping.
DynamicShapes = Mapping[int, object] | Mapping[str, Mapping[int, object]] | Mapping[int, Mapping[int, object]]
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


class Graph(NamedTuple):
    """What becomes a graph.

    module: its forward pass takes inputs like the example.
    outputs: the names of what it returns.
    differentiates: whether the forward pass calls autograd.
    about: what the file says of the outputs, beside their names.
    """

    module: nn.Module
    outputs: tuple[str, ...] = (LOGITS,)
    differentiates: bool = False
    about: Mapping[str, object] = MappingProxyType({})


def check_classes(classes: Sequence[str], count: int) -> list[str]:
    """Return the names of the classes as a list; raise if they are not one text for each, all different."""
    given: Any = classes
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ArgumentError(f"classes={given!r}: expected the names of {count:,} classes, in their order")
    for name in given:
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"classes has the name {name!r}: expected texts")
    if len(given) != count:
        raise ArgumentError(f"classes has {len(given):,} names, and there are {count:,} classes: name each")
    if repeated := [name for name, times in Counter(given).items() if times > 1]:
        raise ArgumentError(f"classes has the name {repeated[0]!r} twice: give each its own")
    return list(given)


def write(
    graph: Graph,
    path: Path,
    example: Inputs,
    *,
    dynamic_shapes: DynamicShapes | None = None,
    metadata: Mapping[str, object] | None = None,
) -> None:
    """Trace a module and write the graph, which takes any number of rows.

    Args:
        graph: the module to trace.
        path: the file, checked by `check_path`.
        example: inputs with one row or more.
        dynamic_shapes: names of other sizes that are free, {axis: name}; by input, if these are a mapping.
        metadata: what the user says about the graph, beside what it says itself.
    """
    module = graph.module
    example = _with_two_rows(example)
    shapes, texts = _shapes(example, dynamic_shapes), _texts(graph, metadata)
    with EXPORT_LOCK, torch.no_grad(), without_autocast(next(module.parameters()).device):
        module(example)  # computes what the first prediction caches, before the trace
        with _silence_exporter():
            program = _trace(module, example, shapes, differentiates=graph.differentiates)
            if path.suffix == ".pt2":
                content = _pt2_bytes(program, texts)
            else:
                onnx_graph = _onnx_graph(
                    program,
                    [_input_name(each) for each in example] if isinstance(example, dict) else ["x"],
                    graph.outputs,
                )
    if path.suffix == ".pt2":
        write_bytes(path, content)
    else:
        onnx_graph.metadata_props.update(texts)
        onnx_file.write(path, onnx_graph)


def _texts(graph: Graph, metadata: Mapping[str, Any] | None) -> dict[str, str]:
    """What the file says, as texts: of its form, of the graph, and the user's own. Others are in JSON."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ArgumentError(f"metadata is a {type(metadata).__name__}: expected a mapping from names")
    for name in metadata or {}:
        if name in ARGUMENT_KEYS:
            raise ArgumentError(f"metadata has the key {name!r}, which has an argument: export(…, {name}=…)")
        if not isinstance(name, str) or name in ("", *OWN_KEYS):
            raise ArgumentError(f"metadata has the key {name!r}: expected a text that is no other's name")
    own = {
        "bitbayes_schema": SCHEMA,
        "bitbayes_version": __version__,
        "torch_version": str(torch.__version__),
        "outputs": graph.outputs,
    }
    texts = {}
    for name, value in {**own, **graph.about, **(metadata or {})}.items():
        try:
            texts[name] = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"metadata[{name!r}] is {value!r}: expected a text, or what JSON can hold ({error})"
            ) from error
    return texts


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


def _shapes(example: Inputs, dynamic_shapes: DynamicShapes | None) -> Any:
    """The free axes of each input, as torch.export takes them: the rows, and those in `dynamic_shapes`."""
    rows, given = row_count(example), {} if dynamic_shapes is None else dynamic_shapes
    if not isinstance(given, Mapping):
        raise ArgumentError(f"dynamic_shapes={given!r}: expected a mapping, such as {{1: 'length'}}")
    named: dict[str, Any] = {ROWS: Dim(ROWS)}
    if isinstance(example, Tensor):
        return _free_sizes(example, given, "", rows, named)
    unknown = [name for name in given if name not in example]
    if unknown:
        raise ArgumentError(f"dynamic_shapes has the key {unknown[0]!r}: the inputs are {[*example]}")
    return {
        name: _free_sizes(value, given.get(name) or {}, f"[{name!r}]", rows, named)
        for name, value in example.items()
    }


def _free_sizes(
    value: Any, given: Any, place: str, rows: int, named: dict[str, Any]
) -> dict[int, Any] | None:
    """The free sizes of one input by axis. A name stands for the same size wherever it is used."""
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"dynamic_shapes{place}={given!r}: expected {{axis: name}}, such as {{1: 'length'}}"
        )
    free = {0: named[ROWS]} if _has_rows(value, rows) else {}
    for axis, size in given.items():
        if axis == 0 and free:
            continue  # rows are free anyway
        sizes = tuple(value.shape) if isinstance(value, Tensor) else ()
        if not isinstance(axis, int) or not 0 <= axis < len(sizes):
            raise ArgumentError(f"dynamic_shapes{place} has the axis {axis!r}: the example has shape {sizes}")
        if sizes[axis] < 2:
            raise ArgumentError(
                f"the example has size {sizes[axis]} along axis {axis} {place or 'of the input'}, which is "
                "to be free: give one of size 2 or more, because a trace takes smaller ones as fixed"
            )
        free[axis] = named.setdefault(size, Dim(size)) if isinstance(size, str) else size
    return free or None


def _trace(module: nn.Module, example: Inputs, shapes: Any, *, differentiates: bool) -> ExportedProgram:
    try:
        if differentiates:
            # torch.export itself records operations above autograd, where a backward pass is none.
            from torch.export._trace import _export

            trace: Any = partial(_export, pre_dispatch=False)
        else:
            trace = torch.export.export
        program: ExportedProgram = trace(module, (example,), dynamic_shapes=(shapes,), strict=False)
        return program
    except Exception as error:  # torch raises errors of many types
        raise ModelError(
            f"torch.export cannot trace this model: {_root_cause(error)}. If it traces the model alone "
            "(torch.export.export), this is a fault of bitbayes, or a residual, which fixes the sizes of the "
            "inputs (residual=False)"
        ) from error


def _pt2_bytes(program: ExportedProgram, metadata: dict[str, str]) -> bytes | memoryview:
    """Return the file of torch.export. It is made in memory: on a full disk torch would end the process."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA_FILE: json.dumps(metadata)})
    return buffer.getbuffer()


def _onnx_graph(program: ExportedProgram, names: list[str], outputs: tuple[str, ...]) -> Any:
    """Return the graph, as an `onnx_ir.Model`."""
    try:
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=names,
            output_names=[*outputs],
            verbose=False,
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
        )
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            f"ONNX has no counterpart for a part of this model or of its posterior: {_root_cause(error)}. "
            "Export to '.pt2' instead, or do without that part"
        ) from error
    assert made is not None
    return made.model


def _stable_sort(values: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """A stable sort in ONNX, whose TopK takes the first of equal values first. The exporter has none."""
    from onnxscript import opset18 as op

    size = op.Shape(values, start=dim, end=dim + 1 or None)
    return op.TopK(values, size, axis=dim, largest=descending, sorted=True)


def _root_cause(error: BaseException) -> str:
    """Return the first line of the error that caused all others, and what torch suggests for sizes."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    fixes = str(error).partition("Suggested fixes:\n")[2].partition("\n\n")[0]
    if fixes:
        suggested = ", ".join(map(str.strip, fixes.splitlines()))
        return f"{lines[0].partition('!')[0]} (torch suggests {suggested})"
    if len(lines) > 1 and lines[1].startswith("- "):
        return f"{lines[0].partition('!')[0]} ({lines[1][2:]})"
    return lines[0]


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
