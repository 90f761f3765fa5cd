"""Write an ONNX graph, with its weights in a second file where they do not fit into a message of protobuf."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bitbayes.errors import ModelError
from bitbayes.io.atomic_write import check_writable, remove, write_bytes

# A message of protobuf ends at 2³¹ bytes, and there is more in it than weights.
LARGEST_GRAPH = 2**31 - 2**26
# Smaller tensors stay in the graph: some of them are shapes, which runtimes read before anything else.
SMALLEST_OUTSIDE = 2**10
# Runtimes map a tensor into memory if it starts at a page.
PAGE = 2**16


def write(path: Path, model: Any) -> None:
    """Write the graph, and if it is too large for one file, its weights beside it.

    The second file is named by the digest of what is in it, and is written first. So the graph that is at
    `path` at any moment, the old one or the new one, has its own weights.

    Args:
        path: the file of the graph.
        model: an `onnx_ir.Model`. Its large tensors are replaced by references if there is a second file.
    """
    import onnx_ir

    target, kept = check_writable(path), None
    tensors = [each for each in model.graph.initializers.values() if each.const_value is not None]
    if sum(each.const_value.nbytes for each in tensors) > LARGEST_GRAPH:
        kept = _write_weights(
            target, [each for each in tensors if each.const_value.nbytes >= SMALLEST_OUTSIDE]
        )
    try:
        content = onnx_ir.to_proto(model).SerializeToString()
    except Exception as error:  # of protobuf
        raise ModelError(
            f"the graph does not fit into an ONNX file ({error}): export to '.pt2' instead"
        ) from error
    write_bytes(path, content)
    for other in _weights_beside(target):
        if other != kept:
            remove(other)


def _write_weights(target: Path, values: list[Any]) -> Path:
    """Write the weights of the graph `target`, replace them in it by references, and return their file."""
    import onnx_ir

    pieces = [*_in_pages([_bytes_of(each.const_value) for each in values])]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    path = target.with_name(f"{target.name}.{digest.hexdigest()[:16]}.data")
    write_bytes(path, *pieces)
    start = 0
    for value in values:
        tensor = value.const_value
        place = path.name, start, tensor.nbytes, tensor.dtype
        value.const_value = onnx_ir.ExternalTensor(
            *place, shape=tensor.shape, name=value.name, base_dir=path.parent
        )
        start += tensor.nbytes + -tensor.nbytes % PAGE
    return path


def _weights_beside(target: Path) -> list[Path]:
    """The files that hold the weights of this graph, or of graphs that were here before it."""
    name = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    return [each for each in target.parent.iterdir() if name.fullmatch(each.name)]


def _in_pages(tensors: list[memoryview]) -> Iterator[bytes | memoryview]:
    """The tensors, each followed by zeros up to the next page."""
    for tensor in tensors:
        yield tensor
        yield bytes(-tensor.nbytes % PAGE)


def _bytes_of(tensor: Any) -> memoryview:
    """The bytes of a tensor as ONNX has them, without a copy where they lie so in memory."""
    array = tensor.numpy()
    if array.nbytes != tensor.nbytes or not array.flags.c_contiguous or array.dtype.byteorder == ">":
        return memoryview(tensor.tobytes())
    return memoryview(array.reshape(-1).view("uint8"))
