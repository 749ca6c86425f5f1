"""What a Parquet column holds for an input, by its type, and its values as arrays.

For an input whose row has the shape S, of n values:

    a number, bool or text               where n is 1
    a list, fixed-size or not            n values in C's order, whatever S is
    lists of lists                       as deep as S is long, with S's lengths
    a fixed-shape tensor                 of the shape S
    bytes, or a struct with ``bytes``    a PNG or JPEG file, where the input takes pictures

A null, in place of a row or within it, makes the row a bad one; so does a list of another length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    """What is in a column below its lists: numpy's letter of the kind; ``lengths`` of the lists, None where open."""

    kind: str
    lengths: tuple[int | None, ...]


def is_picture(type_: pa.DataType) -> bool:
    """Whether a column of this type may hold encoded pictures."""
    import pyarrow as pa

    if pa.types.is_struct(type_):
        field = type_.get_field_index("bytes")
        return bool(field >= 0 and is_picture(type_.field(field).type))
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_))


def leaf_of(type_: pa.DataType) -> Leaf | None:
    """What a column of this type holds; None for what is no tensor."""
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
    """The shape of the input's rows, with what the model leaves open as the column's type says.

    InputError for a type that the input can't take.
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
    expected = known
    if len(lengths) != len(known):
        expected = (math.prod(known),) if len(lengths) == 1 else ()
    if len(lengths) != len(expected) or (not lengths and math.prod(known) != 1):
        depth = f"{count_text(len(lengths), 'level')} of lists" if lengths else "one value a row"
        raise InputError(f"{place} has {depth}, and {wanted.describe()} takes {_column_kinds(known)}")
    for have, want in zip(lengths, expected, strict=True):
        if have is not None and have != want:
            raise InputError(
                f"{place} is {name_text(str(type_))}, and {wanted.describe()} takes {_column_kinds(known)}"
            )
    return known


def tensor(column: pa.Array, shape: tuple[int, ...], wanted: Wanted) -> tuple[Array, dict[int, str]]:
    """A column's rows in the input's dtype, (rows, *shape), and why some have none; ``row_shape`` took its type."""
    import pyarrow as pa

    rows = len(column)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    depth = 0
    type_ = column.type
    while _is_list(type_):
        depth, type_ = depth + 1, type_.value_type
    lengths = shape if depth == len(shape) else (math.prod(shape),) * depth
    leaf, kept, bad = _unnest_lists(column, lengths, rows)
    found = _numpy(leaf).reshape(len(kept), *shape)
    fitted, reasons = fit(found, wanted)
    if len(kept) == rows:
        return fitted, reasons
    made = np.zeros((rows, *shape), wanted.dtype)
    made[kept] = fitted
    return made, bad | {int(kept[row]): reason for row, reason in reasons.items()}


def contents(column: pa.Array) -> list[bytes | None]:
    """The files in a column of pictures; None for a null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        column = pc.struct_field(column, "bytes")
    found: list[bytes | None] = column.to_pylist()
    return found


def id_values(column: pa.Array) -> Array:
    """The ids in a column of integers or texts; None for a null."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count or not pa.types.is_integer(column.type):
        return np.array(column.to_pylist(), object)
    found: Array = column.to_numpy(zero_copy_only=False)
    return found


def id_dtype(type_: pa.DataType, place: str) -> np.dtype[Any]:
    """numpy's dtype for ids of this type, object for texts; InputError for a column that can't be ids."""
    import pyarrow as pa

    if _kind(type_) not in ("i", "u", "U") or pa.types.is_decimal(type_):
        raise InputError(
            f"{place} is {name_text(str(type_))}; ids are integers or texts",
            hint="convert the column to text, for example",
        )
    return np.dtype(type_.to_pandas_dtype()) if pa.types.is_integer(type_) else np.dtype(object)


def _unnest_lists(column: pa.Array, lengths: tuple[int, ...], rows: int) -> tuple[pa.Array, Array, dict[int, str]]:
    """The values below the lists of the rows that are whole, which rows these are, and why the others are not."""
    import pyarrow.compute as pc

    kept: Array = np.arange(rows)
    bad: dict[int, str] = {}
    width = 1
    for level, length in enumerate(lengths):
        sizes = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        wrong: Array = np.asarray(sizes != length).reshape(len(kept), width)
        if wrong.any():
            told = {-1: "null"}
            where = "" if not level else f" in level {level + 1} of its lists"
            for row in np.flatnonzero(wrong.any(axis=1)):
                size = int(sizes[row * width + int(wrong[row].argmax())])
                bad[int(kept[row])] = told.get(size, f"{count_text(size, 'value')}{where}, not {length}")
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
    """The values of the rows in which nothing is wrong, (rows, width)."""
    import pyarrow as pa

    return column.filter(pa.array(np.repeat(~wrong.any(axis=1), width)))


def _numpy(leaf: pa.Array) -> Array:
    """Values without nulls, as numpy holds them: texts as objects."""
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
    kinds: Mapping[str, bool] = {
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
            f"neither the model nor {place} says how large a row is: {wanted.describe()}",
            hint=f"say --shape {name_text(wanted.name)}={'x'.join(str(size or 224) for size in shape)}",
        )
    return known


def _column_kinds(shape: tuple[int, ...]) -> str:
    """What a column may hold for a row of this shape."""
    count = math.prod(shape)
    ways = [f"lists of {count_text(count, 'value')}"]
    if len(shape) > 1:
        ways.append(f"lists {len(shape)} deep of the lengths {shape_text(shape)}")
    return " or ".join((["one value"] if count == 1 else []) + ways)


def column_text(column: str, file: str) -> str:
    """A column as messages name it."""
    return f"column {quote(column)} of {quote(file)}"
