"""Read a recognised model's outputs: the findings in each picture of a run, and a finding as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trnrt.inputs.fitting import Placement
from trnrt.vision.boxes import find_boxes
from trnrt.vision.finding import Array, Finding, Limits
from trnrt.vision.masks import find_regions, threshold_text
from trnrt.vision.painting import color_text
from trnrt.vision.recognising import Recognised


def find_all(
    outputs: Mapping[str, Array],
    found: Recognised,
    placements: Sequence[Placement],
    labels: Sequence[str],
    limits: Limits,
) -> list[Finding]:
    """The findings in each picture of a batch; ``placements`` has one for each picture.

    InputError if the outputs contradict their form.
    """
    with np.errstate(all="ignore"):  # NaN and infinity are no boxes
        if found.kind == "mask":
            return [find_regions(outputs, row, found, place, labels) for row, place in enumerate(placements)]
        own = [outputs] * len(placements)
        if found.form == "tensors" and len(placements) > 1:  # a model with a batch has one box for each picture
            own = [{name: array[row : row + 1] for name, array in outputs.items()} for row in range(len(placements))]
        return [find_boxes(own[row], row, found, place, labels, limits) for row, place in enumerate(placements)]


def rule_text(outputs: Mapping[str, Array], found: Recognised) -> str:
    """The rule by which the outputs are read. For a mask of one number a pixel, their values decide the threshold."""
    return f"{found.rule}; {threshold_text(outputs, found)}" if found.form == "threshold" else found.rule


def finding_document(finding: Finding) -> dict[str, Any]:
    """A finding as JSON: the picture's size, and its boxes or classes with their colours."""
    width, height = finding.placement.size
    return {
        "width": width,
        "height": height,
        "boxes": [
            {
                "class": box.index,
                "label": box.label,
                "score": round(box.score, 6),
                "box": [round(corner, 2) for corner in box.corners],
                "color": color_text(box.index),
            }
            for box in finding.boxes
        ],
        "classes": [
            {
                "class": region.index,
                "label": region.label,
                "share": round(region.share, 6),
                "color": color_text(region.index),
            }
            for region in finding.regions
        ],
    }
