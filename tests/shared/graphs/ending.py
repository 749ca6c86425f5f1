"""The end of a detector: what it makes depends on the data, and the host computes it from the kernel's results."""

from __future__ import annotations

import numpy as np

from graphs.draft import Draft
from graphs.movement import has_rank
from graphs.noise import SMOOTH, STEP, Dropped


def draw_end(draft: Draft) -> None:
    """One of the operators that choose by the data, of a value that nothing else follows."""
    if draft.float_type != "float32" or draft.fallback:
        raise Dropped("ends of float32 are drawn")
    draft.choice([draw_non_zero, draw_suppression, draw_compress, draw_unique, draw_regions])(draft)


def compute(draft: Draft, low: int = 1, high: int = 6) -> str:
    """A result of the device: without one, all of the model would be the host's, which is refused."""
    return draft.add("Tanh", [draft.pick(has_rank(low, high))])[0]


def draw_non_zero(draft: Draft) -> None:
    draft.since(9)
    draft.add("NonZero", [compute(draft)], STEP)


def draw_compress(draft: Draft) -> None:
    """Elements, or parts along an axis, where a constant says so."""
    draft.since(11)
    source = compute(draft)
    shape = draft.shape(source)
    axis = draft.between(0, len(shape) - 1) if draft.chance(0.7) else None
    if draft.batched(source) and not axis:
        raise Dropped("the batch stays")
    size = draft.array(source).size if axis is None else shape[axis]
    chosen = draft.generator.random(size) < 0.6
    chosen[0] = True
    draft.move("Compress", [source, draft.fixed(chosen, "bool")], axis=axis)


def draw_unique(draft: Draft) -> None:
    draft.since(11)
    source = compute(draft)
    (rounded,) = draft.add("Round", [source], STEP)
    draft.add("Unique", [rounded], STEP, outputs=4, sorted=draft.choice([None, 1, 0]))


def draw_suppression(draft: Draft) -> None:
    """Boxes and scores that the graph computes, of few boxes."""
    draft.since(11)
    source = draft.pick(lambda array: array.ndim > 1 and array.size // array.shape[0] >= 8)
    count = min(12, draft.array(source).size // draft.shape(source)[0] // 4)
    flat = draft.move("Reshape", [source, draft.fixed([0, -1])])
    cut = draft.move("Slice", [flat, *(draft.fixed([k]) for k in (0, 4 * count, 1))])
    boxes = draft.move("Reshape", [cut, draft.fixed([0, count, 4])])
    classes = draft.between(1, 3)
    weights = draft.weight(draft.numbers([classes, 4], 0.5))
    turned = draft.move("Transpose", [boxes], perm=[0, 2, 1])
    (scores,) = draft.add("Sigmoid", [draft.add("MatMul", [weights, turned])[0]])
    limits = [draft.fixed([draft.choice([2, 5])]), *(draft.fixed([x], "float32") for x in (0.4, 0.3))]
    draft.add("NonMaxSuppression", [boxes, scores, *limits], STEP, center_point_box=draft.choice([None, 0]))


def draw_regions(draft: Draft) -> None:
    """Parts of images, averaged."""
    draft.since(16)
    source = compute(draft, 4, 4)
    count = draft.between(1, 3)
    starts = draft.generator.uniform(0, 3, (count, 2))
    boxes = np.concatenate([starts, starts + draft.generator.uniform(1, 5, (count, 2))], 1).astype(np.float32)
    inputs = [source, draft.weight(boxes), draft.fixed(np.zeros(count, np.int64))]
    size = draft.between(1, 3)
    draft.add("RoiAlign", inputs, SMOOTH, output_height=size, output_width=size, sampling_ratio=2)
