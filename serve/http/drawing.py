"""Boxes and masks in the answers of ``/predict``, for pictures sent to detectors and segmenters.

The query's ``draw`` chooses: "auto" reads boxes or masks where their form is sure, "boxes" and "mask" insist on them,
"none" answers with the raw outputs. ``min_score`` is the least score of a box. ``preparing`` reads the rest of the
query, which says how pictures become the input.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from starlette.datastructures import QueryParams

from trnrt.inputs.fitting import Placement
from trnrt.inputs.images import ImageOptions, Recipe
from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.preparing import image_options
from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.tensors import value_text
from trnrt.vision.finding import Finding, Limits
from trnrt.vision.reading import find_all, finding_document, rule_text
from trnrt.vision.recognising import KINDS, Recognised, recognise

Array = NDArray[Any]

CHOICES = ("auto", *KINDS, "none")
MASK_SIDE = 640
"""The most pixels of a mask's longer side: the page shows no more."""


@dataclass(frozen=True)
class Choice:
    """The reading of pictures and of outputs that the query asks for."""

    draw: str = CHOICES[0]
    limits: Limits = field(default_factory=Limits)
    images: ImageOptions = field(default_factory=ImageOptions)


def choice_of(query: QueryParams) -> Choice:
    """The query's choice; RequestError for a value that isn't allowed."""
    draw, score = query.get("draw", CHOICES[0]), query.get("min_score")
    if draw not in CHOICES:
        raise RequestError(f"draw is {value_text(draw)}; it is {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    images = image_options(query)
    if score is None:
        return Choice(draw, images=images)
    try:
        least = float(score)
    except ValueError:
        least = math.nan
    if not 0 <= least <= 1:
        raise RequestError(f"min_score is {value_text(score)}; it is a number of 0 to 1")
    return Choice(draw, Limits(least), images)


def drawable(
    described: Description, how: Recipe, choice: Choice, outputs: Mapping[str, Array] | None = None
) -> Recognised | None:
    """How a model's outputs are read for this choice; None for raw outputs.

    ``outputs`` has the computed ones: their sizes stand for those that the model leaves open. Without them, None also
    where an open size must be known first. RequestError if the choice insists on what is not recognised.
    """
    if choice.draw == "none":
        return None
    asked = None if choice.draw == "auto" else choice.draw
    metas = [_with_sizes(meta, outputs) for meta in described.outputs]
    known = [meta.info for meta in metas]
    found = recognise(known, described.metadata, described.labels or (), (how.height, how.width), asked)
    is_open = any(-1 in meta.shape[1:] for meta in metas)
    if found is None and asked and (outputs is not None or not is_open):
        raise RequestError(
            f"draw is {asked}, and the model's outputs are nothing like it; draw=none gives them as they are"
        )
    return found if asked or (found is not None and found.sure) else None


def _with_sizes(meta: TensorMeta, outputs: Mapping[str, Array] | None) -> TensorMeta:
    """An output with the sizes of the computed one where the model leaves them open, but for the rows."""
    array = None if outputs is None else outputs.get(meta.name)
    if array is None or array.ndim != len(meta.shape):
        return meta
    sizes = (
        found if size < 0 and place else size
        for place, (size, found) in enumerate(zip(meta.shape, array.shape, strict=True))
    )
    return replace(meta, shape=tuple(sizes))


def drawn_answer(
    outputs: Mapping[str, Array],
    found: Recognised,
    placements: Sequence[Placement],
    described: Description,
    limits: Limits,
) -> dict[str, Any]:
    """The answer's part for pictures: one prediction each. Call it off the event loop."""
    findings = find_all(outputs, found, placements, described.labels or (), limits)
    return {
        "kind": found.kind,
        "rule": rule_text(outputs, found),
        "predictions": [finding_document(finding) | {"mask": _mask_document(finding)} for finding in findings],
    }


def _mask_document(finding: Finding) -> dict[str, Any] | None:
    """The mask as a grey PNG in base64: k + 1 where the entry k of ``boxes`` or ``classes`` is, else 0."""
    width, height = finding.placement.size
    factor = min(1.0, MASK_SIDE / max(width, height))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    mask = finding.mask_of(size)
    if mask is None:
        return None
    written = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(mask)).save(written, "PNG")
    return {"width": size[0], "height": size[1], "png": base64.b64encode(written.getvalue()).decode("ascii")}
