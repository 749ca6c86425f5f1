"""Which outputs of a model are boxes or masks, and by which rule.

Nothing is guessed silently: ``Recognised.rule`` says what was found and why, and callers show it. A rule goes by the
metadata of ultralytics' exporter, or by names, shapes and dtypes. Where shapes alone could mean something else
(an image as output, a depth map), ``sure`` is False: such an output is read only if somebody asks for it.

A model's own metadata may restrict the rules: ``draw`` is "boxes", "mask" or "none". Only a caller outweighs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trnrt.inputs.ultralytics import is_ultralytics, ultralytics_names, ultralytics_point_numbers
from trnrt.text import count_text, list_text, quote, shape_text

if TYPE_CHECKING:
    from trnrt.importer import TensorInfo

KINDS = ("boxes", "mask")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int32", "int64", "uint8")

TASKS = ("detect", "segment", "pose", "obb", "classify")
"""ultralytics' tasks, which say what the outputs are: no other rule guesses then."""
STRIDES = (8, 16, 32)
"""Pixels per anchor, along each side, of the three grids of YOLO's heads."""
MOST_ROWS = 1000
"""An end-to-end detector has at most this many rows; more are anchors."""
MOST_RATIO = 16
"""A mask is at most this many times smaller, or larger, than the input along a side."""
_ROW = 6  # x1, y1, x2, y2, score, class


@dataclass(frozen=True)
class Recognised:
    """A model's outputs, recognised as boxes or as a mask.

    ``form`` names the reader in ``boxes`` or ``masks``; ``parts`` has the output of each role that it reads.
    ``classes``: the number of classes, where the form needs it; ``axis``: the dimension of the classes of a mask.
    """

    kind: str
    form: str
    parts: Mapping[str, str]
    rule: str
    sure: bool = True
    classes: int = 0
    axis: int = 1


@dataclass(frozen=True)
class _Model:
    """The facts that rules look at. ``sides``: the input's height and width, None where open."""

    outputs: Sequence[TensorInfo]
    metadata: Mapping[str, str]
    labels: Sequence[str]
    sides: tuple[int | None, int | None]

    @property
    def task(self) -> str | None:
        return self.metadata["task"] if is_ultralytics(self.metadata) else None


def recognise(
    model_outputs: Sequence[TensorInfo],
    metadata: Mapping[str, str],
    labels: Sequence[str],
    sides: tuple[int | None, int | None],
    kind: str | None = None,
) -> Recognised | None:
    """Recognise boxes or a mask in the outputs, by the first rule that applies; None if none does.

    ``labels``: the model's class names; ``sides``: its input's height and width, None where open. ``kind`` restricts
    the answer to one of ``KINDS``, as the metadata's ``draw`` does; a ``kind`` given outweighs that.
    """
    declared = metadata.get("draw", "").strip().lower()
    if kind is None and declared == "none":
        return None
    wanted = kind or (declared if declared in KINDS else None)
    model = _Model(model_outputs, metadata, labels, sides)
    for rule in (_by_ultralytics,) if model.task in TASKS else _RULES:
        found = rule(model)
        if found is not None and wanted in (None, found.kind):
            return found
    return None


def outputs_text(outputs: Sequence[TensorInfo]) -> str:
    """The outputs as messages list them."""
    return list_text([f"{quote(o.name)} {o.dtype} {shape_text(o.shape)}" for o in outputs])


# -- boxes ---------------------------------------------------------------------------------------------------------


def _by_ultralytics(model: _Model) -> Recognised | None:
    """The outputs of ultralytics' exporter for detection, instance masks and key points, by its metadata."""
    if model.task not in ("detect", "segment", "pose"):
        return None
    main, prototypes = _only(model.outputs, _FLOATS, 3), _only(model.outputs, _FLOATS, 4)
    if main is None or (model.task == "segment") != (prototypes is not None):
        return None
    parts = {"main": main.name}
    classes, more = len(ultralytics_names(model.metadata)), 0
    said = f"ultralytics' metadata says task {model.task}"
    if prototypes is not None:
        if not isinstance(prototypes.shape[1], int):
            return None
        parts["prototypes"] = prototypes.name
        more, said = prototypes.shape[1], f"{said}; {quote(prototypes.name)} holds prototypes of masks"
    if model.task == "pose":
        more, said = ultralytics_point_numbers(model.metadata), f"{said}; key points are left out"
    if main.shape[2] == _ROW + more:
        return Recognised("boxes", "rows", parts, f"{said}; {_rows_text(main)}", classes=classes)
    if classes and main.shape[1] == 4 + classes + more:
        return Recognised("boxes", "anchors", parts, f"{said}; {_anchors_text(main, classes)}", classes=classes)
    return None


def _by_torchvision(model: _Model) -> Recognised | None:
    """Boxes (N, 4), scores (N), labels (N) and perhaps masks (N, 1, h, w): torchvision's detectors."""
    boxes, scores = _only(model.outputs, _FLOATS, 2), _only(model.outputs, _FLOATS, 1)
    labels, masks = _only(model.outputs, _INTEGERS, 1), _only(model.outputs, _FLOATS, 4)
    if boxes is None or scores is None or labels is None or boxes.shape[1] != 4:
        return None
    if len(model.outputs) != 3 + (masks is not None) or (masks is not None and masks.shape[1] != 1):
        return None
    parts = {"boxes": boxes.name, "scores": scores.name, "labels": labels.name}
    rule = f"boxes {quote(boxes.name)}, scores {quote(scores.name)}, labels {quote(labels.name)}"
    if masks is not None:
        parts["masks"], rule = masks.name, f"{rule}, masks {quote(masks.name)}"
    return Recognised("boxes", "tensors", parts, f"{rule}, by shapes and dtypes as torchvision's detectors have them")


def _by_anchors(model: _Model) -> Recognised | None:
    """YOLO's (rows, 4 + classes, anchors) without metadata: as many anchors as its three grids have places."""
    main = _alone(model.outputs, 3)
    height, width = model.sides
    if main is None or height is None or width is None or not isinstance(main.shape[1], int) or main.shape[1] < 5:
        return None
    if main.shape[2] != sum((height // stride) * (width // stride) for stride in STRIDES):
        return None
    classes = main.shape[1] - 4
    rule = f"no metadata; {_anchors_text(main, classes)}, as {height}x{width} pixels have at strides 8, 16 and 32"
    return Recognised("boxes", "anchors", {"main": main.name}, rule, classes=classes)


def _by_rows(model: _Model) -> Recognised | None:
    """Rows of six numbers without metadata: an end-to-end YOLO."""
    main = _alone(model.outputs, 3)
    if main is None or main.shape[2] != _ROW or not isinstance(main.shape[1], int) or main.shape[1] > MOST_ROWS:
        return None
    return Recognised("boxes", "rows", {"main": main.name}, f"no metadata; {_rows_text(main)}, by the shape")


def _rows_text(main: TensorInfo) -> str:
    return f"{quote(main.name)} {shape_text(main.shape)} has rows of x1, y1, x2, y2, score, class"


def _anchors_text(main: TensorInfo, classes: int) -> str:
    return (
        f"{quote(main.name)} {shape_text(main.shape)} has a centre, a size and scores of "
        f"{count_text(classes, 'class', 'classes')} for each anchor"
    )


# -- masks ---------------------------------------------------------------------------------------------------------


def _by_class_scores(model: _Model) -> Recognised | None:
    """A score of each class for each pixel: (rows, classes, h, w) or (rows, h, w, classes)."""
    found = [output for output in model.outputs if output.dtype in _FLOATS and len(output.shape) == 4]
    if not found:
        return None
    scores = found[0]
    grids = [(axis, scores.shape[axis]) for axis in (1, 3) if _is_grid(scores, axis, model.sides)]
    counts = [(axis, count) for axis, count in grids if isinstance(count, int) and count > 0]
    if len(counts) != 1:
        return None
    ((axis, count),) = counts
    first = "" if len(found) == 1 else f", the first of {len(found)} such outputs,"
    shown = f"{quote(scores.name)} {shape_text(scores.shape)}{first}"
    named = len(model.labels) == count or model.metadata.get("draw", "").strip().lower() == "mask"
    parts = {"scores": scores.name}
    if count == 1:
        rule = f"{shown} has one number for each pixel"
        return Recognised("mask", "threshold", parts, rule, sure=named, classes=1, axis=axis)
    rule = f"{shown} has a score of each of {count} classes for each pixel"
    # As many numbers as an image has channels may be an image.
    return Recognised("mask", "scores", parts, rule, sure=named or count > 4, classes=count, axis=axis)


def _by_class_map(model: _Model) -> Recognised | None:
    """The class of each pixel: integers (rows, h, w) or (rows, 1, h, w)."""
    for rank in (3, 4):
        found = _only(model.outputs, _INTEGERS, rank)
        if found is None or not _is_grid(found, 1 if rank == 4 else None, model.sides):
            continue
        if rank == 4 and found.shape[1] != 1:
            continue
        rule = f"{quote(found.name)} {found.dtype} {shape_text(found.shape)} has the class of each pixel"
        return Recognised("mask", "map", {"classes": found.name}, rule, sure=bool(model.labels) or rank == 3)
    return None


def _is_grid(output: TensorInfo, axis: int | None, sides: tuple[int | None, int | None]) -> bool:
    """True if the dimensions but the first and ``axis`` are the input's sides, in one ratio, or both open."""
    grid = [dim for d, dim in enumerate(output.shape) if d not in (0, axis)]
    if isinstance(grid[0], int) != isinstance(grid[1], int):
        return False
    known = [(dim, side) for dim, side in zip(grid, sides, strict=True) if isinstance(dim, int) and side is not None]
    ratios = {round(dim / side, 1 if dim > side else 3) for dim, side in known}
    return len(ratios) <= 1 and all(
        dim > 1 and 1 / MOST_RATIO <= ratio <= MOST_RATIO for dim, _ in known for ratio in ratios
    )


# -- looking for outputs -------------------------------------------------------------------------------------------


def _only(outputs: Sequence[TensorInfo], dtypes: Sequence[str], rank: int) -> TensorInfo | None:
    """The one output of these dtypes and this rank."""
    found = [output for output in outputs if output.dtype in dtypes and len(output.shape) == rank]
    return found[0] if len(found) == 1 else None


def _alone(outputs: Sequence[TensorInfo], rank: int) -> TensorInfo | None:
    """The model's only output, if it has floats of this rank."""
    return _only(outputs, _FLOATS, rank) if len(outputs) == 1 else None


_RULES: tuple[Callable[[_Model], Recognised | None], ...] = (
    _by_ultralytics,
    _by_torchvision,
    _by_anchors,
    _by_rows,
    _by_class_scores,
    _by_class_map,
)
