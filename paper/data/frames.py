"""Read pickled tables of pandas, without pandas.

A pickle can run any code while it is read. The reader here accepts the parts of a table and nothing else.
"""

import io
import pickle
from typing import Any, ClassVar

import numpy as np

from paper.data.files import damage_as_file_error

Columns = dict[str, np.ndarray]


def read_frame(content: bytes, where: str) -> Columns:
    """Return the columns (n,) by name, in their order. Text and missing text are of the type object.

    Args:
        content: the bytes of the pickle.
        where: its place, for error messages.
    """
    with damage_as_file_error(where, "pickled table"):
        blocks, axes = _TablesOnly(io.BytesIO(content)).load().state["_mgr"]
        names = [str(name) for name in axes[0]]
        columns: Columns = {}
        for values, places in blocks:  # values (columns of one type, n)
            numbers = range(*places.indices(len(names))) if isinstance(places, slice) else places
            columns |= {names[number]: row for number, row in zip(numbers, values, strict=True)}
        return {name: columns[name] for name in names}


class _Frame:
    """A table. Its state has the blocks of columns and the axes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state


def _index(kind: str, state: dict[str, Any]) -> Any:
    """The names of columns, or for rows, which are numbered, nothing."""
    return state["data"] if kind == "Index" else None


def _from_buffer(buffer: bytearray, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


class _TablesOnly(pickle.Unpickler):
    """An unpickler that refuses everything but the parts of a table. It imports nothing."""

    ALLOWED: ClassVar[dict[tuple[str, str], Any]] = {
        ("builtins", "slice"): slice,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("pandas.core.frame", "DataFrame"): _Frame,
        ("pandas.core.internals.managers", "BlockManager"): lambda blocks, axes: (blocks, axes),
        ("pandas._libs.internals", "_unpickle_block"): lambda values, places, dimensions: (values, places),
        ("pandas.core.indexes.base", "_new_Index"): _index,
        ("pandas.core.indexes.base", "Index"): "Index",
        ("pandas.core.indexes.range", "RangeIndex"): "RangeIndex",
        **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
        **dict.fromkeys(
            [(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")],
            np.empty(0).__reduce__()[0],  # the function that every pickled array is made with
        ),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a table never needs")
        return self.ALLOWED[module, name]
