"""Outputs of any values are read: what is found is finite, inside of the photo, and can be drawn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from trnrt.inputs.fitting import FITS, place_picture
from trnrt.vision.finding import Limits
from trnrt.vision.painting import paint
from trnrt.vision.reading import find_all, finding_document
from trnrt.vision.recognising import Recognised

FORMS: dict[str, tuple[Recognised, dict[str, tuple[int, ...]]]] = {
    "rows": (Recognised("boxes", "rows", {"main": "a"}, ""), {"a": (2, 9, 6)}),
    "rows with masks": (
        Recognised("boxes", "rows", {"main": "a", "prototypes": "b"}, ""),
        {"a": (2, 9, 10), "b": (2, 4, 8, 8)},
    ),
    "anchors": (Recognised("boxes", "anchors", {"main": "a"}, "", classes=3), {"a": (2, 7, 20)}),
    "scores": (Recognised("mask", "scores", {"scores": "a"}, "", classes=3), {"a": (2, 3, 8, 8)}),
    "classes last": (Recognised("mask", "scores", {"scores": "a"}, "", classes=3, axis=3), {"a": (2, 32, 32, 3)}),
    "threshold": (Recognised("mask", "threshold", {"scores": "a"}, "", classes=1), {"a": (2, 1, 40, 40)}),
}


def drawn(shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Numbers of all sizes, with NaN and infinities between them."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=shape) * 10.0 ** generator.integers(-3, 4, shape)
    odd = generator.random(shape)
    for bound, value in ((0.02, np.nan), (0.04, np.inf), (0.06, -np.inf), (0.08, 3e38), (0.1, 0.0)):
        values[(odd > bound - 0.02) & (odd < bound)] = value
    return values.astype(np.float32)


@pytest.mark.parametrize("name", FORMS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    fit=st.sampled_from(FITS),
)
def test_any_values(name: str, seed: int, size: tuple[int, int], fit: str) -> None:
    found, shapes = FORMS[name]
    outputs = {key: drawn(shape, seed) for key, shape in shapes.items()}
    place = place_picture(size, (32, 32), fit)
    findings = find_all(outputs, found, [place, place], ["a", "b"], Limits(0.1))
    assert len(findings) == 2
    for finding in findings:
        json.dumps(finding_document(finding), allow_nan=False)
        for box in finding.boxes:
            left, top, right, bottom = box.corners
            assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
        assert sum(region.share for region in finding.regions) <= 1 + 1e-9
        mask = finding.mask_of(size)
        assert (mask is None) == ("masks" not in name and found.kind == "boxes")
        if mask is not None:
            assert mask.shape == size[::-1] and mask.max() <= len(finding.boxes or finding.regions)
        assert paint(Image.new("RGB", size), finding).size == size
