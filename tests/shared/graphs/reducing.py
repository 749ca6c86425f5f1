"""What brings the elements of axes together: reductions, Softmax, normalisations, indices of the largest."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from graphs.draft import Draft, type_of
from graphs.movement import has_rank
from graphs.noise import MOVES, SMOOTH, STEP, Dropped

REDUCTIONS = {
    "ReduceSum": SMOOTH, "ReduceMean": SMOOTH, "ReduceMax": MOVES, "ReduceMin": MOVES, "ReduceProd": SMOOTH,
    "ReduceL1": SMOOTH, "ReduceL2": SMOOTH, "ReduceLogSum": SMOOTH, "ReduceLogSumExp": SMOOTH,
    "ReduceSumSquare": SMOOTH,
}  # fmt: skip


def some_axes(draft: Draft, source: str) -> list[int]:
    """Axes, mostly not the batch, some counted from the end."""
    rank = len(draft.shape(source))
    axes = draft.random.sample(range(rank), draft.between(1, min(rank, 3)))
    if draft.batched(source) and draft.chance(0.85):
        axes = [axis for axis in axes if axis] or [rank - 1]
    return [axis - rank if draft.chance(0.3) and draft.opset >= 11 else axis for axis in axes]


def draw_reduction(draft: Draft) -> None:
    op = draft.choice(list(REDUCTIONS))
    source = draft.pick(has_rank(1))
    if op == "ReduceLogSum":
        source = draft.add("Exp", [source])[0]
    settings: dict[str, Any] = {"keepdims": draft.choice([None, 0, 1])}
    inputs = [source]
    since = 13 if op == "ReduceSum" else 18
    if draft.chance(0.15):
        if draft.opset >= since and draft.chance(0.4):
            settings["noop_with_empty_axes"] = 1
        if draft.opset >= since and draft.chance(0.4):
            inputs.append(draft.fixed(np.array([], np.int64)))
    elif draft.opset < since:
        settings["axes"] = some_axes(draft, source)
    else:
        inputs.append(draft.fixed(some_axes(draft, source)))
    draft.add(op, inputs, REDUCTIONS[op], **settings)


def draw_softmax(draft: Draft) -> None:
    source = draft.pick(has_rank(1))
    axis = draft.choice([None, *some_axes(draft, source)])
    draft.add(draft.choice(["Softmax", "LogSoftmax"]), [source], axis=axis)


def draw_arg(draft: Draft) -> None:
    """An index, an output of the graph or a number again."""
    source = draft.pick(has_rank(1))
    settings: dict[str, Any] = {"axis": some_axes(draft, source)[0], "keepdims": draft.choice([None, 0, 1])}
    if draft.opset >= 12 and draft.chance(0.4):
        settings["select_last_index"] = 1
    (index,) = draft.add(draft.choice(["ArgMax", "ArgMin"]), [source], STEP, **settings)
    if draft.chance(0.15):
        draft.add("Cast", [index], STEP, to=type_of(draft.choice(["int32", draft.float_type])))


def draw_top(draft: Draft) -> None:
    source = draft.pick(has_rank(1))
    axis = some_axes(draft, source)[0]
    count = draft.between(1, draft.shape(source)[axis])
    settings: dict[str, Any] = {"axis": axis}
    if draft.opset >= 11:
        settings |= {"largest": draft.choice([None, 0, 1])}
    if draft.opset < 10:
        draft.add("TopK", [source], MOVES, outputs=2, k=count, **settings)
    else:
        draft.add("TopK", [source, draft.fixed([count])], MOVES, outputs=2, **settings)


def draw_batch_norm(draft: Draft) -> None:
    source = draft.pick(has_rank(2, 5))
    channels = draft.shape(source)[1]
    parts = [draft.weight(draft.numbers([channels])) for _ in range(3)]
    variance = draft.weight(np.abs(draft.numbers([channels])) + np.asarray(0.3, draft.float_type))
    settings: dict[str, Any] = {"spatial": 1} if draft.opset < 9 and draft.chance(0.3) else {}
    draft.add("BatchNormalization", [source, *parts, variance], epsilon=draft.choice([None, 1e-3]), **settings)


def epsilon(draft: Draft, size: int) -> float | None:
    """What is added to a variance; that of few elements may be all rounding, which a small number would blow up."""
    return 0.5 if size < 4 else draft.choice([None, 1e-2])


def draw_instance_norm(draft: Draft) -> None:
    source = draft.pick(has_rank(3, 4))
    shape = draft.shape(source)
    parts = [draft.weight(draft.numbers([shape[1]])) for _ in range(2)]
    draft.add("InstanceNormalization", [source, *parts], epsilon=epsilon(draft, prod(shape[2:])))


def draw_layer_norm(draft: Draft) -> None:
    source = draft.pick(has_rank(1))
    shape = draft.shape(source)
    axis = draft.between(1 if draft.batched(source) and len(shape) > 1 else 0, len(shape) - 1)
    rms = draft.opset >= 23 and draft.chance(0.5)
    draft.since(17)
    parts = [draft.weight(draft.numbers(shape[axis:])) for _ in range(1 if rms else draft.choice([1, 2]))]
    named = None if axis == len(shape) - 1 and draft.chance(0.5) else axis - len(shape) * draft.chance(0.3)
    op = "RMSNormalization" if rms else "LayerNormalization"
    draft.add(op, [source, *parts], axis=named, epsilon=epsilon(draft, prod(shape[axis:])))


def draw_group_norm(draft: Draft) -> None:
    draft.since(21)
    source = draft.pick(has_rank(3, 4))
    shape = draft.shape(source)
    channels = shape[1]
    groups = draft.choice([n for n in range(1, channels + 1) if channels % n == 0])
    parts = [draft.weight(draft.numbers([channels])) for _ in range(2)]
    size = prod(shape[1:]) // groups
    draft.add("GroupNormalization", [source, *parts], num_groups=groups, epsilon=epsilon(draft, size))


def draw_lp_norm(draft: Draft) -> None:
    source = draft.pick(has_rank(1))
    draft.add("LpNormalization", [source], axis=some_axes(draft, source)[0], p=draft.choice([None, 1, 2]))


def draw_mean_variance(draft: Draft) -> None:
    draft.since(9)
    source = draft.pick(has_rank(2, 4))
    axes = None if len(draft.shape(source)) == 4 and draft.chance(0.5) else some_axes(draft, source)
    if axes and any(axis < 0 for axis in axes):
        raise Dropped("axes from the end")
    if prod(draft.shape(source)[axis] for axis in axes or (0, 2, 3)) < 4:
        raise Dropped("a variance of few elements")
    draft.add("MeanVarianceNormalization", [source], axes=axes)
