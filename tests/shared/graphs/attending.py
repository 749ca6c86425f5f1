"""ONNX's Attention and RotaryEmbedding, over heads that are given apart or side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.draft import Draft
from graphs.movement import factored
from graphs.noise import Dropped


def pick_tokens(draft: Draft, *, rank: int = 3) -> str:
    """A value (N, T, C), or (N, heads, T, C) of rank 4: one that is such, or one that is made so."""
    if draft.chance(0.6):
        return draft.pick(lambda array: array.ndim == rank)
    source = draft.pick(lambda array: array.ndim > 1 and array.size > 0)
    shape = draft.shape(source)
    sizes = factored(draft, draft.array(source).size // shape[0], rank - 1)
    return draft.move("Reshape", [source, draft.fixed([0, *sizes])])


def project(draft: Draft, source: str, size: int) -> str:
    """Rows of another size."""
    inner = draft.shape(source)[-1]
    return draft.add("MatMul", [source, draft.weight(draft.numbers([inner, size], 0.5))])[0]


def heads_of(draft: Draft, source: str, heads: int, size: int) -> str:
    """(N, heads, T, size) of tokens (N, T, C)."""
    rows = project(draft, source, heads * size)
    apart = draft.move("Reshape", [rows, draft.fixed([0, 0, heads, size])])
    return draft.move("Transpose", [apart], perm=[0, 2, 1, 3])


def draw_attention(draft: Draft) -> None:
    """Heads of 3 or 4 dimensions, masks of both kinds, several heads of queries for one of keys."""
    draft.since(23)
    source = pick_tokens(draft)
    count, length, _ = draft.shape(source)
    others = draft.pick(lambda array: array.ndim == 3 and array.shape[0] == count) if draft.chance(0.3) else source
    keys = draft.shape(others)[1]
    kv_heads, times, size, value_size = (draft.choice(options) for options in ([1, 2, 3], [1, 1, 2], [2, 4], [2, 3]))
    heads = kv_heads * times
    sizes = ((source, heads, size), (others, kv_heads, size), (others, kv_heads, value_size))
    settings: dict[str, Any] = {
        "is_causal": draft.choice([None, None, 1]),
        "scale": draft.choice([None, 0.3]),
        "softcap": draft.choice([None, None, 2.0]),
    }
    if draft.chance(0.5):
        inputs = [heads_of(draft, *each) for each in sizes]
    else:
        inputs = [project(draft, name, many * width) for name, many, width in sizes]
        settings |= {"q_num_heads": heads, "kv_num_heads": kv_heads}
    if draft.chance(0.4):
        inputs.append(draw_mask(draft, [1, heads, length, keys]))
    draft.add("Attention", inputs, **settings)


def draw_mask(draft: Draft, shape: list[int]) -> str:
    """What is added to the scores, or which of them count: the first key always does."""
    shape = [draft.choice([1, shape[0]]), draft.choice([1, shape[1]]), *shape[2:]][draft.choice([0, 1, 2]) :]
    if draft.chance(0.5):
        return draft.weight(draft.numbers(shape))
    counts = draft.generator.random(shape) < 0.6
    counts[..., 0] = True
    return draft.fixed(counts, "bool")


def draw_rotary(draft: Draft) -> None:
    """Angles by positions, or one row of them for each token; of part of a head at times."""
    draft.since(23)
    source = pick_tokens(draft)
    count, length, width = draft.shape(source)
    if draft.batched(source):
        raise Dropped("positions are of each row")
    heads = draft.choice([n for n in (1, 2, 3) if width % n == 0])
    size = width // heads
    if size % 2:
        raise Dropped("a head of pairs")
    part = draft.choice([None, *(n for n in (2, 4) if n < size)])
    half = (part or size) // 2
    settings: dict[str, Any] = {"interleaved": draft.choice([None, 0, 1]), "rotary_embedding_dim": part}
    positions = draft.generator.integers(0, 9, (count, length))
    angles = (np.arange(9)[:, None] / 10.0 ** np.arange(half)).astype(draft.float_type)
    tables = [np.cos(angles), np.sin(angles)]
    inputs = [source]
    if draft.chance(0.5):
        settings["num_heads"] = heads
    elif heads > 1 or draft.chance(0.5):
        apart = draft.move("Reshape", [source, draft.fixed([0, 0, heads, size])])
        inputs = [draft.move("Transpose", [apart], perm=[0, 2, 1, 3])]
    else:
        settings["num_heads"] = 1
    if draft.chance(0.5):
        inputs += [draft.weight(table) for table in tables] + [draft.fixed(positions)]
    else:
        inputs += [draft.weight(table[positions]) for table in tables]
    draft.add("RotaryEmbedding", inputs, **settings)
