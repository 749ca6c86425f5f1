"""Which outputs are boxes or masks, by which rule; most signatures are those of real exports (docs/exports.md)."""

from __future__ import annotations

from typing import Any

import pytest

from trnrt.importer import TensorInfo
from trnrt.vision.recognising import Recognised, recognise

F, INT = "float32", "int64"
Shape = tuple[int | str | None, ...]


def said(task: str, classes: int = 80, **more: str) -> dict[str, str]:
    names = str({k: f"name {k}" for k in range(classes)})
    return {"task": task, "names": names, "imgsz": "[320, 320]", "stride": "32", **more}


def read(
    *outputs: tuple[str, str, Shape],
    metadata: dict[str, str] | None = None,
    labels: int = 0,
    sides: tuple[int | None, int | None] = (320, 320),
    kind: str | None = None,
) -> Recognised | None:
    infos = [TensorInfo(*output) for output in outputs]
    return recognise(infos, metadata or {}, [str(k) for k in range(labels)], sides, kind)


ROWS, ANCHORS = ("output0", F, (1, 300, 6)), ("output0", F, (1, 84, 2100))
PROTOTYPES = ("output1", F, (1, 32, 80, 80))
TORCHVISION = (("2148", F, ("a", 4)), ("2117", F, ("b",)), ("2118", INT, ("b",)))
POINTS = {"kpt_shape": "[17, 3]"}
KNOWN: dict[str, tuple[Any, dict[str, Any], str | None]] = {
    "yolo26n": ([ROWS], {"metadata": said("detect")}, "boxes rows sure"),
    "yolo11n": ([ANCHORS], {"metadata": said("detect")}, "boxes anchors sure"),
    "yolo26n-seg": ([("output0", F, (1, 300, 38)), PROTOTYPES], {"metadata": said("segment")}, "boxes rows sure"),
    "yolo11n-seg": ([("output0", F, (1, 116, 2100)), PROTOTYPES], {"metadata": said("segment")}, "boxes anchors sure"),
    "yolo26n-pose": ([("output0", F, (1, 300, 57))], {"metadata": said("pose", 1, **POINTS)}, "boxes rows sure"),
    "yolo11n-pose": ([("output0", F, (1, 56, 2100))], {"metadata": said("pose", 1, **POINTS)}, "boxes anchors sure"),
    "yolo26n-obb": ([("output0", F, (1, 300, 7))], {"metadata": said("obb")}, None),
    "yolo11n-obb": ([("output0", F, (1, 20, 2100))], {"metadata": said("obb", 15)}, None),
    "points of an unknown number": ([("output0", F, (1, 56, 2100))], {"metadata": said("pose", 1)}, None),
    "yolo26n-cls": ([("output0", F, (1, 1000))], {"metadata": said("classify")}, None),
    "rows alone": ([ROWS], {}, "boxes rows sure"),
    "anchors alone": ([ANCHORS], {}, "boxes anchors sure"),
    "anchors of another size": ([ANCHORS], {"sides": (640, 640)}, None),
    "too many rows": ([("y", F, (1, 25200, 6))], {}, None),
    "ssdlite": (TORCHVISION, {}, "boxes tensors sure"),
    "mask r-cnn": ([*TORCHVISION, ("m", F, ("b", 1, 320, 320))], {}, "boxes tensors sure"),
    "boxes of five numbers": ([("a", F, (9, 5)), *TORCHVISION[1:]], {}, None),
    "deeplabv3": ([("591", F, (1, 21, 320, 320))], {}, "mask scores sure"),
    "deeplabv3 with aux": ([("out", F, (1, 21, 320, 320)), ("aux", F, (1, 21, 320, 320))], {}, "mask scores sure"),
    "segformer": ([("logits", F, (1, 150, 80, 80))], {}, "mask scores sure"),
    "keras unet": ([("conv", F, ("N", 640, 640, 2))], {}, "mask scores unsure"),
    "an image, or three classes": ([("y", F, (1, 3, 320, 320))], {}, "mask scores unsure"),
    "three classes with names": ([("y", F, (1, 3, 320, 320))], {"labels": 3}, "mask scores sure"),
    "sixteen classes": ([("y", F, (1, 16, 320, 320))], {}, "mask scores sure"),
    "paddle's text finder": ([("fetch", F, ("N", 1, 320, 320))], {}, "mask threshold unsure"),
    "one number, declared": ([("y", F, (1, 1, 320, 320))], {"metadata": {"draw": "mask"}}, "mask threshold sure"),
    "a map": ([("y", INT, (1, 320, 320))], {}, "mask map sure"),
    "a map with a channel": ([("y", "int32", (1, 1, 320, 320))], {}, "mask map unsure"),
    "features": ([("y", F, (1, 512, 10, 10))], {}, None),
    "another ratio": ([("y", F, (1, 21, 320, 160))], {}, None),
    "a classifier": ([("y", F, (1, 1000))], {}, None),
    "open sizes": ([("y", F, ("N", 21, "h", "w"))], {"sides": (None, None)}, "mask scores sure"),
    "declared as nothing": ([ROWS], {"metadata": {"draw": "none"}}, None),
    "nothing, and asked": ([ROWS], {"metadata": {"draw": "none"}, "kind": "boxes"}, "boxes rows sure"),
    "asked for a mask of prototypes": (
        [("output0", F, (1, 300, 38)), PROTOTYPES],
        {"metadata": said("segment"), "kind": "mask"},
        None,
    ),
    "asked for a mask": ([ROWS], {"metadata": said("detect"), "kind": "mask"}, None),
    "prototypes of an open number": (
        [ROWS, ("output1", F, (1, "k", 80, 80))],
        {"metadata": said("segment")},
        None,
    ),
    "an open number of features": ([("y", F, (1, "k", 80, 80))], {}, None),
    "no classes": ([("y", F, (1, 0, 320, 320))], {}, None),
    "rows of text": ([("y", "str", (1, 300, 6))], {}, None),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_recognised(name: str) -> None:
    outputs, options, wanted = KNOWN[name]
    found = read(*outputs, **options)
    text = found and f"{found.kind} {found.form} {'sure' if found.sure else 'unsure'}"
    assert text == wanted


def test_the_rule_names_what_it_went_by() -> None:
    rules = {name: found.rule for name, (outputs, options, _) in KNOWN.items() if (found := read(*outputs, **options))}
    assert rules["yolo26n"] == (
        "ultralytics' metadata says task detect; 'output0' [1, 300, 6] has rows of x1, y1, x2, y2, score, class"
    )
    assert rules["yolo11n"].endswith("has a centre, a size and scores of 80 classes for each anchor")
    assert "key points are left out" in rules["yolo26n-pose"] and "of 1 class for" in rules["yolo11n-pose"]
    assert "as 320x320 pixels have at strides 8, 16 and 32" in rules["anchors alone"]
    assert "boxes '2148', scores '2117', labels '2118', masks 'm'" in rules["mask r-cnn"]
    assert "the first of 2 such outputs" in rules["deeplabv3 with aux"]


def test_the_parts_that_are_read() -> None:
    found = read(("output0", F, (1, 116, 2100)), PROTOTYPES, metadata=said("segment"))
    assert found is not None
    assert (found.parts, found.classes) == ({"main": "output0", "prototypes": "output1"}, 80)
    last = read(("y", F, ("N", 320, 320, 21)))
    assert last is not None and last.axis == 3
