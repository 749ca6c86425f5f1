"""What only moves elements."""

from __future__ import annotations

from math import prod

import numpy as np

from graphs.draft import Draft
from graphs.noise import MOVES, Dropped


def has_rank(low: int, high: int = 6):  # type: ignore[no-untyped-def]
    return lambda array: low <= array.ndim <= high


def draw_transpose(draft: Draft) -> None:
    source = draft.pick()
    rank = len(draft.shape(source))
    perm = list(range(rank))
    draft.random.shuffle(perm)
    if draft.batched(source) and draft.chance(0.6):
        perm.remove(0)
        perm.insert(0, 0)
    draft.move("Transpose", [source], perm=None if draft.chance(0.15) else perm)


def factored(draft: Draft, count: int, rank: int) -> list[int]:
    """Sizes of ``rank`` dimensions that make ``count``."""
    sizes = [1] * rank
    left, factor = count, 2
    while left > 1 and rank:
        if left % factor:
            factor = factor + 1 if factor * factor <= left else left
            continue
        sizes[draft.between(0, rank - 1)] *= factor
        left //= factor
    return sizes


def draw_reshape(draft: Draft) -> None:
    source = draft.pick(lambda array: array.size > 0)
    shape, count = draft.shape(source), draft.array(source).size
    if draft.batched(source) and draft.chance(0.9):
        sizes = [draft.choice([0, -1]), *factored(draft, count // shape[0], draft.between(0, 4))]
        if 0 in sizes and draft.chance(0.4) and len(sizes) > 1:
            sizes[draft.between(1, len(sizes) - 1)] = -1
    else:
        rank = draft.between(0 if count == 1 else 1, 5)
        sizes = factored(draft, count, rank)
        if sizes and draft.chance(0.4):
            sizes[draft.between(0, rank - 1)] = -1
    draft.move("Reshape", [source, draft.fixed(sizes)])


def draw_flatten(draft: Draft) -> None:
    source = draft.pick()
    rank = len(draft.shape(source))
    low = -rank if draft.opset >= 11 else 0
    axis = 1 if draft.batched(source) and draft.chance(0.6) else draft.between(low, rank)
    draft.move("Flatten", [source], axis=axis)


def with_axes(draft: Draft, op: str, source: str, axes: list[int], since: int = 13) -> None:
    """Axes as an attribute, or as an input from an opset on."""
    if draft.opset < since:
        draft.move(op, [source], axes=axes)
    else:
        draft.move(op, [source, draft.fixed(axes)])


def draw_squeeze(draft: Draft) -> None:
    source = draft.pick(lambda array: 1 in array.shape)
    shape = draft.shape(source)
    axes = [axis for axis, size in enumerate(shape) if size == 1]
    if draft.chance(0.15) and not draft.opened:
        draft.move("Squeeze", [source])
        return
    chosen = draft.random.sample(axes, draft.between(1, len(axes)))
    if draft.opset >= 11:
        chosen = [axis - len(shape) if draft.chance(0.3) else axis for axis in chosen]
    with_axes(draft, "Squeeze", source, chosen)


def draw_unsqueeze(draft: Draft) -> None:
    source = draft.pick(has_rank(0, 4))
    rank = len(draft.shape(source))
    count = draft.between(1, 5 - rank)
    axes = draft.random.sample(range(rank + count), count)
    if draft.opset >= 11:
        axes = [axis - rank - count if draft.chance(0.3) else axis for axis in axes]
    with_axes(draft, "Unsqueeze", source, axes)


def window_of(draft: Draft, size: int, *, open_end: bool) -> tuple[int, int, int]:
    """Start, end and step along an axis; of the open batch from either end."""
    step = draft.choice([1, 1, 1, 2, 3, -1, -2]) if draft.opset >= 10 else 1
    far = draft.choice([2**31 - 1, 2**63 - 1, 100])
    low, high = draft.between(0, max(0, size - 1)), draft.between(1, max(1, size))
    if step > 0:
        start = draft.choice([0, low, low - size, -100])
        end = draft.choice([high, far, high - size or far, far])
    else:
        start = draft.choice([-1, high - 1, far, size - 1])
        end = draft.choice([-far - 1, -100, low - size, low])
    if open_end:
        start = draft.choice([0, 1, -1, -2, -3, -4, start]) if step > 0 else draft.choice([-1, -2, start])
        end = draft.choice([far, -1, -2, 1, 2, 3, 7, end]) if step > 0 else draft.choice([-far - 1, 0, -3, end])
    return start, end, step


def draw_slice(draft: Draft) -> None:
    source = draft.pick(lambda array: array.ndim > 0)
    shape = draft.shape(source)
    axes = draft.random.sample(range(len(shape)), draft.between(1, min(2, len(shape))))
    if draft.batched(source) and draft.chance(0.4):
        axes = [0]
    cuts = [window_of(draft, shape[axis], open_end=axis == 0 and draft.batched(source)) for axis in axes]
    starts, ends, steps = ([cut[k] for cut in cuts] for k in range(3))
    named = [axis - len(shape) if draft.opset >= 10 and draft.chance(0.3) else axis for axis in axes]
    if draft.opset < 10:
        draft.move("Slice", [source], starts=starts, ends=ends, axes=named)
        return
    kind = "int32" if draft.chance(0.2) and max(map(abs, [*starts, *ends])) <= 2**31 - 1 else "int64"
    inputs = [source, draft.fixed(starts, kind), draft.fixed(ends, kind), draft.fixed(named, kind)]
    if steps != [1] * len(steps) or draft.chance(0.5):
        inputs.append(draft.fixed(steps, kind))
    draft.move("Slice", inputs)


def draw_split(draft: Draft) -> None:
    source = draft.pick(lambda array: any(size > 1 for size in array.shape))
    shape = draft.shape(source)
    axis = draft.choice([axis for axis, size in enumerate(shape) if size > 1])
    size, named = shape[axis], axis - len(shape) if draft.opset >= 11 and draft.chance(0.3) else axis
    parts = [draft.between(1, size - 1)]
    parts.append(size - parts[0])
    if parts[1] > 1 and draft.chance(0.4):
        parts[1:] = [1, parts[1] - 1]
    count = draft.choice([n for n in range(2, size + 1) if size % n == 0])
    if draft.chance(0.5) and draft.opset < 18:
        draft.add("Split", [source], MOVES, outputs=count, axis=named)
    elif draft.chance(0.5) and draft.opset >= 18:
        many = draft.choice([n for n in range(2, size + 1) if -(-size // n) * (n - 1) < size])
        draft.add("Split", [source], MOVES, outputs=many, axis=named, num_outputs=many)
    elif draft.opset < 13:
        draft.add("Split", [source], MOVES, outputs=len(parts), axis=named, split=parts)
    else:
        draft.add("Split", [source, draft.fixed(parts)], MOVES, outputs=len(parts), axis=named)


def draw_concat(draft: Draft) -> None:
    source = draft.pick(lambda array: array.ndim > 0)
    shape = draft.shape(source)
    axis = draft.between(0, len(shape) - 1)

    def fits(array: np.ndarray) -> bool:
        return array.ndim == len(shape) and all(
            a == b for k, (a, b) in enumerate(zip(array.shape, shape, strict=True)) if k != axis
        )

    parts = [source]
    for _ in range(draft.choice([0, 1, 1, 1, 2])):
        if draft.chance(0.7) or (draft.batched(source) and axis != 0):
            parts.append(draft.pick(fits))
        else:
            sizes = [draft.size(4) if k == axis else size for k, size in enumerate(shape)]
            parts.append(draft.weight(draft.numbers(sizes)))
    draft.random.shuffle(parts)
    draft.move("Concat", parts, axis=axis - len(shape) if draft.opset >= 11 and draft.chance(0.3) else axis)


def draw_pad(draft: Draft) -> None:
    source = draft.pick(lambda array: array.ndim > 0)
    shape = draft.shape(source)
    mode = draft.choice(["constant", "constant", "constant", "edge", "reflect", *(["wrap"] * (draft.opset >= 19))])
    axes = sorted(draft.random.sample(range(len(shape)), draft.between(1, len(shape))))
    if draft.batched(source) and draft.chance(0.9):
        axes = [axis for axis in axes if axis] or [len(shape) - 1]
    low = -1 if draft.chance(0.25) else 0
    most = [min(2, shape[k] - 1) if mode == "reflect" else 2 for k in axes]
    begins, ends = ([draft.between(low, top) for top in most] for _ in range(2))
    value = draft.choice([None, None, 0.5, -2.0])
    if draft.opset >= 18 and draft.chance(0.4):
        named = draft.fixed([k - len(shape) if draft.chance(0.3) else k for k in axes])
        number = draft.weight(np.asarray(value or 0.0, draft.float_type)) if mode == "constant" else ""
        draft.move("Pad", [source, draft.fixed([*begins, *ends]), number, named], mode=mode)
        return
    pads = [0] * (2 * len(shape))
    for k, begin, end in zip(axes, begins, ends, strict=True):
        pads[k], pads[k + len(shape)] = begin, end
    if draft.opset < 11:
        draft.move("Pad", [source], mode=mode, pads=pads, value=value)
        return
    fill = [draft.weight(np.asarray(value, draft.float_type))] if value is not None and mode == "constant" else []
    draft.move("Pad", [source, draft.fixed(pads), *fill], mode=mode)


def draw_expand(draft: Draft) -> None:
    draft.since(8)
    source = draft.pick(has_rank(0, 5))
    shape = draft.shape(source)
    sizes = [draft.size(4) if size == 1 and draft.chance(0.7) else draft.choice([1, size]) for size in shape]
    if draft.batched(source):
        sizes[0] = 1
    sizes = sizes[draft.between(0, len(sizes)) :] if draft.chance(0.2) else sizes
    if len(sizes) == len(draft.shape(source)) < 5 and draft.chance(0.3):
        sizes = [draft.size(3), *sizes]
    draft.move("Expand", [source, draft.fixed(np.array(sizes, np.int64))])


def draw_tile(draft: Draft) -> None:
    source = draft.pick(lambda array: array.ndim > 0)
    repeats = [draft.choice([1, 1, 2, 3]) for _ in draft.shape(source)]
    if draft.batched(source) and draft.chance(0.8):
        repeats[0] = 1
    draft.move("Tile", [source, draft.fixed(repeats)])


def draw_gather(draft: Draft) -> None:
    """By constant indices, or of a table by those of an input."""
    wanted = [x.name for x in draft.inputs if x.kind == "index"]
    if wanted and draft.chance(0.6):
        table = draft.weight(draft.numbers([draft.between(3, 9), *[draft.size(8) for _ in range(draft.between(0, 2))]]))
        draft.move("Gather", [table, draft.choice(wanted)], axis=draft.choice([None, 0]))
        return
    source = draft.pick(lambda array: array.ndim > 0)
    shape = draft.shape(source)
    axis = draft.between(0, len(shape) - 1)
    low = -shape[axis] if draft.opset >= 11 else 0
    form = draft.choice([(), (1,), (2,), (3,), (5,), (2, 2)])
    if draft.batched(source) and axis == 0 and draft.chance(0.7):
        raise Dropped("the batch stays")
    indices = np.array([draft.between(low, shape[axis] - 1) for _ in range(prod(form))], np.int64).reshape(form)
    named = axis - len(shape) if draft.chance(0.3) and draft.opset >= 11 else axis
    kind = draft.choice(["int64", "int64", "int32"])
    draft.move("Gather", [source, draft.fixed(indices, kind)], axis=named)


def draw_depth(draft: Draft) -> None:
    block = draft.choice([1, 2, 2, 3])
    if draft.chance(0.5):
        source = draft.pick(lambda a: a.ndim == 4 and a.shape[1] % (block * block) == 0)
        mode = draft.choice([None, "DCR", "CRD"]) if draft.opset >= 11 else None
        draft.move("DepthToSpace", [source], blocksize=block, mode=mode)
        return
    source = draft.pick(lambda a: a.ndim == 4 and a.shape[2] % block == 0 and a.shape[3] % block == 0)
    draft.move("SpaceToDepth", [source], blocksize=block)


def draw_dropout(draft: Draft) -> None:
    draft.move("Dropout", [draft.pick()], **({"ratio": 0.3} if draft.opset < 12 and draft.chance(0.5) else {}))
