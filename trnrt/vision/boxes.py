"""Boxes from a detector's outputs.

Forms: "rows" (x1, y1, x2, y2, score, class, and coefficients of prototype masks), "anchors" (centre, size, a score of
each class, and coefficients; one column for each anchor), "tensors" (boxes, scores, labels and perhaps masks).
Coordinates are pixels of the model's input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trnrt.errors import InputError
from trnrt.inputs.fitting import Placement
from trnrt.text import list_text, quote
from trnrt.vision.finding import MOST, Array, Box, Finding, Limits, label_of, row_of
from trnrt.vision.masks import paint_instances, prototype_masks, stored_masks
from trnrt.vision.recognising import Recognised

MOST_CANDIDATES = 30000
"""Boxes that suppression looks at, the highest scores first. It compares up to ``MOST`` of them with all others."""

MOST_CLASSES = 1 << 20
"""The largest number of a class that is read."""


@dataclass(frozen=True)
class _Candidates:
    """Boxes in the input's pixels: ``corners`` (N, 4), ``scores`` and ``classes`` (N), coefficients ``rest`` (N, k)."""

    corners: Array
    scores: Array
    classes: Array
    rest: Array

    def __getitem__(self, chosen: Array) -> _Candidates:
        return _Candidates(self.corners[chosen], self.scores[chosen], self.classes[chosen], self.rest[chosen])


def find_boxes(
    outputs: Mapping[str, Array],
    row: int,
    found: Recognised,
    placement: Placement,
    labels: Sequence[str],
    limits: Limits,
) -> Finding:
    """The boxes of one picture of the batch, highest score first; at most ``MOST``. Boxes without area are left out."""
    candidates = _READERS[found.form](outputs, row, found)
    seen = undo_placement(candidates.corners, placement)
    inside = (seen[:, 2:] > seen[:, :2]).all(axis=1)  # not turned inside out, not beside the picture, no NaN
    certain = (candidates.scores >= limits.score) & np.isfinite(candidates.scores)
    candidates = candidates[np.flatnonzero(inside & certain)]
    candidates = candidates[np.argsort(-candidates.scores, kind="stable")[:MOST_CANDIDATES]]
    if found.form == "anchors":
        candidates = candidates[keep_best(candidates.corners, candidates.classes, limits.overlap)]
    candidates = candidates[np.arange(min(MOST, len(candidates.scores)))]
    mask = None
    width, height = placement.input_size
    if "prototypes" in found.parts:
        prototypes = row_of(outputs, found, "prototypes", row)
        mask = paint_instances(
            prototype_masks(prototypes, candidates.rest, (width, height)), candidates.corners, (height, width)
        )
    elif "masks" in found.parts:
        masks = np.asarray(outputs[found.parts["masks"]], np.float32)[:, 0]
        chosen = masks[candidates.rest[:, 0].astype(np.int64)]
        mask = paint_instances(stored_masks(chosen, (width, height)), candidates.corners, (height, width))
    corners = undo_placement(candidates.corners, placement)
    boxes = tuple(
        Box((x1, y1, x2, y2), float(score), int(index), label_of(int(index), labels))
        for (x1, y1, x2, y2), score, index in zip(corners.tolist(), candidates.scores, candidates.classes, strict=True)
    )
    return Finding(placement, boxes, mask=mask)


def undo_placement(corners: Array, placement: Placement) -> Array:
    """Corners (N, 4) in the input's pixels as ones in the picture's, clipped to it, float64."""
    (sx, sy), (left, top), (width, height) = placement.scale, placement.offset, placement.size
    moved = (corners.astype(np.float64) - (left, top, left, top)) / (sx, sy, sx, sy)
    clipped: Array = np.clip(moved, 0, (width, height, width, height))
    return clipped


def keep_best(corners: Array, classes: Array, overlap: float) -> Array:
    """Greedy non-maximum suppression: the places of the boxes that stay, of boxes in falling order of score.

    A box goes if it shares more than ``overlap`` of the union of both with a better one of its class that stays.
    """
    kept: list[int] = []
    areas = np.prod(np.maximum(corners[:, 2:] - corners[:, :2], 0), axis=1)
    left = np.arange(len(corners))
    while len(left) and len(kept) < MOST:
        best, others = left[0], left[1:]
        kept.append(int(best))
        sides = np.minimum(corners[best, 2:], corners[others, 2:]) - np.maximum(corners[best, :2], corners[others, :2])
        shared = np.prod(np.maximum(sides, 0), axis=1)
        union = areas[best] + areas[others] - shared
        left = others[(classes[others] != classes[best]) | (shared <= overlap * union)]
    return np.array(kept, np.int64)


def _read_rows(outputs: Mapping[str, Array], row: int, found: Recognised) -> _Candidates:
    rows = row_of(outputs, found, "main", row)
    return _Candidates(rows[:, :4], rows[:, 4], _as_classes(rows[:, 5]), rows[:, 6:])


def _as_classes(numbers: Array) -> Array:
    """Floats as classes; NaN is 0."""
    classes: Array = np.clip(np.rint(np.nan_to_num(numbers)), 0, MOST_CLASSES).astype(np.int64)
    return classes


def _read_anchors(outputs: Mapping[str, Array], row: int, found: Recognised) -> _Candidates:
    columns = row_of(outputs, found, "main", row)
    centres, sizes, scores = columns[:2].T, columns[2:4].T, columns[4 : 4 + found.classes]
    corners = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)
    return _Candidates(corners, scores.max(axis=0), scores.argmax(axis=0), columns[4 + found.classes :].T)


def _read_tensors(outputs: Mapping[str, Array], row: int, found: Recognised) -> _Candidates:
    lengths = {name: len(outputs[name]) for name in found.parts.values()}
    if len(set(lengths.values())) != 1:
        listed = list_text(f"{quote(name)} {length:,}" for name, length in lengths.items())
        raise InputError(
            f"the outputs of a detector have a row for each box, and these have different numbers: {listed}"
        )
    corners, scores, labels = (np.asarray(outputs[found.parts[role]]) for role in ("boxes", "scores", "labels"))
    places = np.arange(len(labels))[:, None]
    return _Candidates(corners.astype(np.float32), scores.astype(np.float32), labels.astype(np.int64), places)


_READERS = {"rows": _read_rows, "anchors": _read_anchors, "tensors": _read_tensors}
