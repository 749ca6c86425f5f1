"""Attention as onnxruntime's optimizers write it: with its projections, without them, and RotaryEmbedding.

A mask is added to the scores: 0 where a key counts, ``mask_filter_value`` where it doesn't, and the lowest number of
the type for keys that come after the query if the attention is causal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import onnx_ir as ir

from trnrt.importer.fused.writing import Writer, uncast
from trnrt.importer.quantised.forms import Left
from trnrt.importer.values import attribute, constant_array, input_at


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values, each (B, N, S, h); ``past``: the keys before these queries' own, (B, N, P, h);
    ``added``: terms of the scores, each broadcast to (B, N, S, T)."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    past: ir.Value | None
    added: tuple[ir.Value, ...]
    is_causal: bool
    scale: float
    result: int


def _attend(writer: Writer, heads: _Heads, name: str) -> tuple[ir.Value, ir.Value]:
    """Softmax(query @ key.T * scale + the added terms) @ value as (B, S, N * h); and the scores."""
    scores = writer.apply("MatMul", heads.query, writer.transpose(heads.key, 0, 1, 3, 2), name=name)
    if heads.scale != 1:
        scores = writer.apply("Mul", scores, writer.number(heads.scale, scores))
    added = [*heads.added, _causal(writer, heads)] if heads.is_causal else heads.added
    for term in added:
        scores = writer.apply("Add", scores, term)
    shares = writer.apply("Softmax", scores, axis=3)
    rows = writer.transpose(writer.apply("MatMul", shares, heads.value), 0, 2, 1, 3)
    return writer.reshape(rows, 0, 0, heads.result), scores


def _causal(writer: Writer, heads: _Heads) -> ir.Value:
    """The lowest number for each key (T) that comes after the query (S), else 0.

    As in onnxruntime: the first query comes behind the past, whatever sequence the keys are of; the last sees all keys.
    """
    if writer.opset < 11:
        raise Left(f"causal attention in opset {writer.opset}; opset 11 and later are supported")
    zero, one = np.array(0, np.int64), np.array(1, np.int64)
    ends = [_length(writer, x) for x in (heads.query, heads.key)]
    rows, columns = (writer.apply("Range", zero, end, one) for end in ends)
    places = rows if heads.past is None else writer.apply("Add", rows, _length(writer, heads.past))
    after = writer.apply("Less", writer.unsqueeze(places, 1), writer.unsqueeze(columns, 0))
    others = writer.apply("Less", rows, writer.apply("Sub", ends[0], one))
    after = writer.apply("And", after, writer.unsqueeze(others, 1))
    assert heads.query.dtype is not None
    lowest = float(np.finfo(heads.query.dtype.numpy()).min) if heads.query.dtype != ir.DataType.BFLOAT16 else -3.38e38
    return writer.apply("Where", after, writer.number(lowest, heads.query), writer.number(0, heads.query))


def _length(writer: Writer, heads: ir.Value) -> ir.Value:
    """S of (B, N, S, h), as a number that is computed when shapes are known."""
    return writer.apply("Gather", writer.apply("Shape", heads), np.array(2, np.int64), axis=0)


def _mask(writer: Writer, node: ir.Node, mask: ir.Value, like: ir.Value, keys: ir.Value) -> ir.Value:
    """The numbers that a mask adds to the scores; ``keys`` (B, N, T, h)."""
    rank = writer.rank(mask)
    if rank == 1:
        if writer.opset < 11:
            raise Left("a mask of lengths before opset 11")
        places = writer.apply("Range", np.array(0, np.int64), _length(writer, keys), np.array(1, np.int64))
        places = writer.unsqueeze(writer.apply("Cast", places, to=ir.DataType.FLOAT), 0)
        _check_lengths(writer, mask, like)
        counts = writer.apply("Less", places, writer.unsqueeze(_floats(writer, mask), 1))
    elif rank in (2, 3):
        counts = writer.apply("Greater", _floats(writer, mask), np.zeros((), np.float32))
    else:
        raise Left(f"a mask of {rank} dimensions")
    filled = writer.number(attribute(node, "mask_filter_value", -10000.0), like)
    added = writer.apply("Where", counts, writer.number(0, like), filled)
    return writer.unsqueeze(added, 1) if rank == 3 else writer.unsqueeze(added, 1, 2)


def _check_lengths(writer: Writer, mask: ir.Value, like: ir.Value) -> None:
    """Refuse a mask of one dimension that may have more than one number for each row."""
    batch, dim = like.shape[0] if like.shape is not None else None, mask.shape[0] if mask.shape is not None else None
    if batch is None or dim is None or batch != dim:
        raise Left("a mask of one dimension that isn't one length for each row")


def _floats(writer: Writer, mask: ir.Value) -> ir.Value:
    return writer.apply("Cast", uncast(mask), to=ir.DataType.FLOAT)


def _join_past(writer: Writer, past: ir.Value | None, now: ir.Value) -> ir.Value:
    return now if past is None else writer.apply("Concat", past, now, axis=2)


def _refuse(node: ir.Node, attributes: tuple[str, ...], inputs: tuple[int, ...]) -> None:
    """Left if an attribute is not 0, or an input is given."""
    for name in attributes:
        if attribute(node, name, 0):
            raise Left(f"{name}={attribute(node, name, 0)}")
    for place in inputs:
        if input_at(node, place) is not None:
            raise Left(f"its input {place} is given, which isn't supported")


# -- Attention ---------------------------------------------------------------------------------------------


def write_attention(writer: Writer, node: ir.Node) -> None:
    """Attention over (B, S, D): the three projections, the heads, and their results side by side."""
    _refuse(node, ("do_rotary", "past_present_share_buffer"), (6,))
    data, weights, bias, mask, past, added = (input_at(node, place) for place in range(6))
    assert data is not None
    heads, array = attribute(node, "num_heads", 0), writer.array(weights, "the weight")
    sizes = attribute(node, "qkv_hidden_sizes", ()) or (array.shape[1] // 3,) * 3
    if heads < 1 or sum(sizes) != array.shape[1] or any(size % heads for size in sizes):
        raise Left(f"num_heads={heads} for weights of shape {array.shape}")
    ends = np.cumsum(sizes)[:2]
    biases = [None] * 3 if bias is None else np.split(writer.array(bias, "the bias"), ends)
    parts = []
    for part, shift, size in zip(np.split(array, ends, axis=1), biases, sizes, strict=True):
        rows = writer.apply("MatMul", data, np.ascontiguousarray(part))
        rows = rows if shift is None else writer.apply("Add", rows, shift)
        parts.append(writer.transpose(writer.reshape(rows, 0, 0, heads, size // heads), 0, 2, 1, 3))
    query, key, value = parts
    olds = [None, None] if past is None else [_take_half(writer, past, k) for k in (0, 1)]
    key, value = _join_past(writer, olds[0], key), _join_past(writer, olds[1], value)
    terms = [] if mask is None else [_mask(writer, node, mask, query, key)]
    terms += [] if added is None else [added]
    scale = attribute(node, "scale", 0.0) or 1 / sqrt(sizes[0] // heads)
    is_causal = bool(attribute(node, "unidirectional", 0))
    group = _Heads(query, key, value, olds[0], tuple(terms), is_causal, float(scale), sizes[2])
    present = None
    if len(node.outputs) > 1 and node.outputs[1].name:
        present = writer.apply("Concat", *(writer.unsqueeze(x, 0) for x in (key, value)), axis=0)
    writer.finish(_attend(writer, group, node.name or "")[0], present)


def _take_half(writer: Writer, past: ir.Value, place: int) -> ir.Value:
    """The keys (``place`` 0) or the values (1) of ``past``, (2, B, N, P, h), as (B, N, P, h)."""
    return writer.apply("Gather", past, np.array(place, np.int64), axis=0)


# -- MultiHeadAttention --------------------------------------------------------------------------------------


def write_multi_head_attention(writer: Writer, node: ir.Node) -> None:
    """Attention of queries, keys and values that are projected already, apart or packed."""
    _refuse(node, (), (8, 9))
    heads = attribute(node, "num_heads", 0)
    (query, key, value), width = _separate_heads(writer, node, heads)
    key, value = _join_past(writer, input_at(node, 6), key), _join_past(writer, input_at(node, 7), value)
    mask, added = input_at(node, 4), input_at(node, 5)
    terms = [] if mask is None else [_mask(writer, node, mask, query, key)]
    terms += [] if added is None else [added]
    scale = attribute(node, "scale", 0.0) or 1 / sqrt(writer.size(query, 3))
    is_causal = bool(attribute(node, "unidirectional", 0))
    group = _Heads(query, key, value, input_at(node, 6), tuple(terms), is_causal, float(scale), width)
    made, _scores = _attend(writer, group, node.name or "")
    writer.finish(made, key, value)


def _separate_heads(writer: Writer, node: ir.Node, heads: int) -> tuple[list[ir.Value], int]:
    """Queries, keys and values as (B, N, S, h), with their bias, and the width of the result."""
    query, key, value = (input_at(node, place) for place in range(3))
    assert query is not None
    if key is None:
        parts, width = _unpack(writer, query, 3), heads * writer.size(query, -1)
    elif value is None:
        parts, width = [query, *_unpack(writer, key, 2)], heads * writer.size(key, -1)
    else:
        width = heads * writer.size(value, -1) if writer.rank(value) == 4 else writer.size(value, -1)
        parts = [query, key, value]
    if input_at(node, 3) is not None:
        parts = _shift(writer, node, parts, heads)
    return [_spread(writer, x, heads) for x in parts], width


def _spread(writer: Writer, rows: ir.Value, heads: int) -> ir.Value:
    """(B, S, N * h) as (B, N, S, h); a tensor of four dimensions is so already."""
    if writer.rank(rows) == 4:
        return rows
    width = writer.size(rows, 2)
    if heads < 1 or width % heads:
        raise Left(f"num_heads={heads} for rows of {width}")
    return writer.transpose(writer.reshape(rows, 0, 0, heads, width // heads), 0, 2, 1, 3)


def _unpack(writer: Writer, packed: ir.Value, count: int) -> list[ir.Value]:
    """(B, S, N, count, h) as ``count`` tensors (B, N, S, h)."""
    if writer.rank(packed) != 5:
        raise Left(f"packed heads of {writer.rank(packed)} dimensions; 5 are supported")
    places = (np.array(place, np.int64) for place in range(count))
    return [writer.transpose(writer.apply("Gather", packed, at, axis=3), 0, 2, 1, 3) for at in places]


def _shift(writer: Writer, node: ir.Node, parts: list[ir.Value], heads: int) -> list[ir.Value]:
    """Rows or heads plus the projections' bias (queries, keys, values side by side)."""
    array = writer.array(input_at(node, 3), "the bias")
    width = writer.size(parts[0], -1) * (heads if writer.rank(parts[0]) == 4 else 1)
    shifted = []
    for part, bias in zip(parts, np.split(array, [width, 2 * width]), strict=True):
        own = bias.reshape(1, heads, 1, -1) if writer.rank(part) == 4 else bias
        shifted.append(writer.apply("Add", part, np.ascontiguousarray(own)))
    return shifted


# -- RotaryEmbedding -----------------------------------------------------------------------------------------


def write_rotary(writer: Writer, node: ir.Node) -> None:
    """Rotates pairs of elements by the angles of their positions."""
    _refuse(node, ("is_packed_batching",), ())
    data, places, cosines, sines = node.inputs[:4]
    assert data is not None
    heads, rank = attribute(node, "num_heads", 0), writer.rank(data)
    width, half = writer.size(data, -1), writer.size(cosines, 1)
    if rank == 3:
        head = width // heads if heads else attribute(node, "rotary_embedding_dim", 0) or 2 * half
        inner = writer.transpose(writer.reshape(data, 0, 0, width // head, head), 0, 2, 1, 3)
    else:
        head, inner = width, data
    found = constant_array(places)
    if writer.rank(places) != 2 and (found is None or found.any()):
        raise Left("positions that are an offset; one for each token is supported")
    tables = []
    for table in (cosines, sines):
        if writer.rank(places) == 2:
            rows = writer.apply("Gather", table, places, axis=0)
        else:
            rows = writer.unsqueeze(_table_rows(writer, table, inner), 0)
        tables.append(writer.unsqueeze(rows, 1))
    turned = _rotate(writer, inner, (head, half), tables, interleaved=bool(attribute(node, "interleaved", 0)))
    if rank == 3:
        turned = writer.reshape(writer.transpose(turned, 0, 2, 1, 3), 0, 0, width)
    writer.finish(turned)


def _table_rows(writer: Writer, table: ir.Value | None, data: ir.Value) -> ir.Value:
    """The rows of a table for positions 0, 1, 2 ... of data (B, N, S, h)."""
    zero = np.array([0], np.int64)
    count = writer.apply("Gather", writer.apply("Shape", data), np.array([2], np.int64), axis=0)
    return writer.apply("Slice", table, zero, count, zero)


def _rotate(
    writer: Writer, data: ir.Value, sizes: tuple[int, int], tables: list[ir.Value], *, interleaved: bool
) -> ir.Value:
    """Heads (B, N, S, h), whose first 2 * half elements are turned: pairs are neighbours, or half apart."""
    head, half = sizes
    rest = head - 2 * half
    parts = writer.split(data, [2 * half, rest], 3) if rest else [data]
    if interleaved:
        pairs = writer.reshape(parts[0], 0, 0, 0, half, 2)
        x, y = (writer.apply("Gather", pairs, np.array(place, np.int64), axis=4) for place in (0, 1))
    else:
        x, y = writer.split(parts[0], [half, half], 3)
    cosine, sine = tables

    def times(a: ir.Value, b: ir.Value) -> ir.Value:
        return writer.apply("Mul", a, b)

    real = writer.apply("Sub", times(x, cosine), times(y, sine))
    imaginary = writer.apply("Add", times(x, sine), times(y, cosine))
    if interleaved:
        joined = writer.apply("Concat", *(writer.unsqueeze(part, 4) for part in (real, imaginary)), axis=4)
        turned = writer.reshape(joined, 0, 0, 0, 2 * half)
    else:
        turned = writer.apply("Concat", real, imaginary, axis=3)
    return turned if not rest else writer.apply("Concat", turned, parts[1], axis=3)
