"""Parquet columns as arrays for an input: which types fit, and their values.

For an input whose rows have the shape S and n values:

    a number, bool or text               where n is 1
    a list, fixed-size or not            n values in C's order, whatever S is
    lists of lists                       as deep as S is long, with S's lengths
    a fixed-shape tensor                 of the shape S
    bytes, or a struct with ``bytes``    a PNG or JPEG file, if the input takes pictures

A null, in place of a row or within it, makes the row bad; so does a list of another length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trnrt.errors import InputError
from trnrt.predict.rows import Array, Wanted, check_kind, fit
from trnrt.text import count_text, name_text, quote, shape_text

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Leaf:
    """The values below a column's lists. ``kind``: numpy's letter; ``lengths``: of the lists, None if they vary."""

    kind: str
    lengths: tuple[int | None, ...]


def is_picture(type_: pa.DataType) -> bool:
    """True if a column of this type can hold encoded pictures."""
    import pyarrow as pa

    if pa.types.is_struct(type_):
        field = type_.get_field_index("bytes")
        return bool(field >= 0 and is_picture(type_.field(field).type))
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_))


def leaf_of(type_: pa.DataType) -> Leaf | None:
    """The values in a column of this type; None if it is no tensor."""
    import pyarrow as pa

    if isinstance(type_, pa.FixedShapeTensorType):
        plain = type_.permutation is None or list(type_.permutation) == sorted(type_.permutation)
        kind = _kind(type_.value_type)
        return Leaf(kind, tuple(type_.shape)) if plain and kind else None
    lengths: list[int | None] = []
    while _is_list(type_):
        lengths.append(type_.list_size if pa.types.is_fixed_size_list(type_) else None)
        type_ = type_.value_type
    kind = _kind(type_)
    return Leaf(kind, tuple(lengths)) if kind else None


def row_shape(type_: pa.DataType, wanted: Wanted, place: str) -> tuple[int, ...]:
    """The shape of the input's rows; the column's type gives sizes that the model leaves open.

    InputError for a type that doesn't fit the input.
    """
    leaf = leaf_of(type_)
    if leaf is None:
        raise InputError(
            f"{place} is {name_text(str(type_))}, which is no tensor", hint="convert it to numbers or lists"
        )
    check_kind(leaf.kind, wanted, place)
    lengths, shape = leaf.lengths, wanted.shape
    if len(lengths) == len(shape):
        shape = tuple(have if want is None else want for want, have in zip(shape, lengths, strict=True))
    known = _known_shape(shape, wanted, place)
    takes = f"{wanted.describe()} takes {_column_kinds(known)}"
    size = math.prod(known)
    expected = known if len(lengths) == len(known) else (size,) if len(lengths) == 1 else ()
    if len(lengths) != len(expected) or (not lengths and size != 1):
        depth = f"{count_text(len(lengths), 'level')} of lists" if lengths else "one value in each row"
        raise InputError(f"{place} has {depth}, and {takes}")
    if any(have not in (None, want) for have, want in zip(lengths, expected, strict=True)):
        raise InputError(f"{place} is {name_text(str(type_))}, and {takes}")
    return known


def tensor(column: pa.Array, shape: tuple[int, ...], wanted: Wanted) -> tuple[Array, dict[int, str]]:
    """A column's rows in the input's dtype, (rows, *shape), and why some have none. ``row_shape`` accepts its type."""
    import pyarrow as pa

    rows = len(column)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    leaf = leaf_of(column.type)
    assert leaf is not None
    depth = len(leaf.lengths)
    lengths = shape if depth == len(shape) else (math.prod(shape),) * depth
    values, kept, bad = _unnest_lists(column, lengths, rows)
    fitted, reasons = fit(_as_numpy(values).reshape(len(kept), *shape), wanted)
    if len(kept) == rows:
        return fitted, reasons
    made = np.zeros((rows, *shape), wanted.dtype)
    made[kept] = fitted
    return made, bad | {int(kept[row]): reason for row, reason in reasons.items()}


def contents(column: pa.Array) -> list[bytes | None]:
    """The encoded pictures in a column; None for a null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        column = pc.struct_field(column, "bytes")
    found: list[bytes | None] = column.to_pylist()
    return found


def id_values(column: pa.Array) -> Array:
    """The ids in a column of integers or texts; None for a null."""
    import pyarrow as pa

    if column.null_count or not pa.types.is_integer(column.type):
        return np.array(column.to_pylist(), object)
    return _as_numpy(column)


def id_dtype(type_: pa.DataType, place: str) -> np.dtype[Any]:
    """numpy's dtype for ids of this type, object for texts; InputError if they are neither integers nor texts."""
    import pyarrow as pa

    if _kind(type_) not in ("i", "u", "U") or pa.types.is_decimal(type_):
        raise InputError(
            f"{place} is {name_text(str(type_))}; ids are integers or texts",
            hint="convert the column to text, for example",
        )
    return np.dtype(type_.to_pandas_dtype()) if pa.types.is_integer(type_) else np.dtype(object)


def _unnest_lists(column: pa.Array, lengths: tuple[int, ...], rows: int) -> tuple[pa.Array, Array, dict[int, str]]:
    """The values below the lists of the rows that are whole, the numbers of these rows, and why others are not."""
    import pyarrow.compute as pc

    kept: Array = np.arange(rows)
    bad: dict[int, str] = {}
    width = 1
    for level, length in enumerate(lengths):
        sizes = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        wrong: Array = np.asarray(sizes != length).reshape(len(kept), width)
        if wrong.any():
            where = "" if not level else f" in level {level + 1} of its lists"
            for row in np.flatnonzero(wrong.any(axis=1)):
                size = int(sizes[row * width + int(wrong[row].argmax())])
                bad[int(kept[row])] = "null" if size == -1 else f"{count_text(size, 'value')}{where}, not {length}"
            column, kept = _drop_rows(column, wrong, width), kept[~wrong.any(axis=1)]
        column = column.flatten()
        width *= length
    if column.null_count:
        null = np.asarray(column.is_null().to_numpy(zero_copy_only=False)).reshape(len(kept), width)
        for row in np.flatnonzero(null.any(axis=1)):
            place = f"value {int(null[row].argmax()) + 1} of {width} is null"
            bad[int(kept[row])] = "null" if width == 1 else place
        column, kept = _drop_rows(column, null, width), kept[~null.any(axis=1)]
    return column, kept, bad


def _drop_rows(column: pa.Array, wrong: Array, width: int) -> pa.Array:
    """The values of the rows, (rows, width), in which none is wrong."""
    import pyarrow as pa

    return column.filter(pa.array(np.repeat(~wrong.any(axis=1), width)))


def _as_numpy(leaf: pa.Array) -> Array:
    """Values without nulls as an array: texts as objects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(leaf.type):
        leaf = leaf.dictionary_decode()
    if pa.types.is_decimal(leaf.type):
        leaf = pc.cast(leaf, pa.float64())
    if _kind(leaf.type) == "U":
        return np.array(leaf.to_pylist(), object)
    found: Array = leaf.to_numpy(zero_copy_only=False)
    return found


def _kind(type_: pa.DataType) -> str:
    """numpy's letter for a type of plain values; "" for any other."""
    import pyarrow as pa

    types: Any = pa.types
    if types.is_dictionary(type_):
        type_ = type_.value_type
    kinds = {
        "b": types.is_boolean(type_),
        "i": types.is_signed_integer(type_),
        "u": types.is_unsigned_integer(type_),
        "f": types.is_floating(type_) or types.is_decimal(type_),
        "U": types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_),
    }
    return next((kind for kind, fits in kinds.items() if fits), "")


def _is_list(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def _known_shape(shape: tuple[int | None, ...], wanted: Wanted, place: str) -> tuple[int, ...]:
    known = tuple(size for size in shape if size is not None)
    if len(known) < len(shape):
        raise InputError(
            f"neither the model nor {place} gives the size of a row: {wanted.describe()}",
            hint=f"say --shape {name_text(wanted.name)}={'x'.join(str(size or 224) for size in shape)}",
        )
    return known


def _column_kinds(shape: tuple[int, ...]) -> str:
    """The kinds of column that fit a row of this shape."""
    count = math.prod(shape)
    ways = [f"lists of {count_text(count, 'value')}"]
    if len(shape) > 1:
        ways.append(f"lists {len(shape)} deep of the lengths {shape_text(shape)}")
    return " or ".join((["one value"] if count == 1 else []) + ways)


def column_text(column: str, file: str) -> str:
    """A column's name, for messages."""
    return f"column {quote(column)} of {quote(file)}"
