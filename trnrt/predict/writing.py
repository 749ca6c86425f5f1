"""A part's columns as a Parquet or .npz file: equal columns give equal bytes.

In Parquet an output (rows, ...) is a plain column if a row is one value, else lists of fixed size, as deep as a row has
dimensions. float16 and bfloat16 are written as float32, which holds all their values and which every reader knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from trnrt.errors import OptionError
from trnrt.predict.parquet import require_pyarrow
from trnrt.predict.rows import Array
from trnrt.report.files import write_npz, write_whole

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("parquet", "npz")


def check_form(form: str) -> None:
    """BackendError if files of this form can't be written on this machine; OptionError for an unknown form."""
    if form not in FORMATS:
        raise OptionError(f"unknown format {form!r}", hint=f"formats are {', '.join(FORMATS)}")
    if form == "parquet":
        require_pyarrow("or --format npz")


def writer_version(form: str) -> str | None:
    """The version that files of this form contain: pyarrow's, which Parquet files name as their writer; else None."""
    if form != "parquet":
        return None
    check_form(form)
    import pyarrow as pa

    return str(pa.__version__)


def write_part(path: Path, form: str, columns: Mapping[str, Array]) -> None:
    """Write the columns into a new file that is on the disk when this returns; OptionError if that fails."""
    write_whole(path, lambda file: (_write_parquet if form == "parquet" else write_npz)(file, columns), durable=True)


def _write_parquet(file: IO[bytes], columns: Mapping[str, Array]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: _column(array) for name, array in columns.items()})
    # Dictionaries for texts alone: numbers seldom repeat.
    texts = [name for name in table.column_names if pa.types.is_string(table.schema.field(name).type)]
    pq.write_table(table, file, row_group_size=max(len(table), 1), use_dictionary=texts or False)


def _column(array: Array) -> pa.Array:
    import pyarrow as pa

    values = _flatten(array)
    sizes = array.shape[1:]
    if math.prod(sizes) == 1:
        return values
    for size in reversed(sizes):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values


def _flatten(array: Array) -> pa.Array:
    import pyarrow as pa

    flat = array.reshape(-1)
    if flat.dtype.kind in "OU":
        return pa.array([str(value) for value in flat], pa.string())
    if flat.dtype.kind == "V" or flat.dtype == np.float16:
        flat = flat.astype(np.float32)
    return pa.array(np.ascontiguousarray(flat))
