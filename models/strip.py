"""Strip a model for committing: nothing about the machine that exported it remains, only what trnrt reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx

BATCH = "batch"
NOTES = ("doc_string", "metadata_props")
# Paths, and the module files in stack traces.
FORBIDDEN = (b"/tmp", b"/root", b"/home", b".py", b"site-packages")

# How trnrt turns a picture file into the `image` input: greyscale, 0..255 times scale, strokes bright on dark.
IMAGE_METADATA = {
    "image.layout": "NCHW",
    "image.scale": "0.00392156862745098",
    "image.mean": "0",
    "image.std": "1",
    "image.color": "L",
}


def finish(model: onnx.ModelProto, path: Path, labels: tuple[str, ...], *, image: bool) -> None:
    """Strip `model` in place, set what trnrt reads, check it and write it to `path`.

    `labels` are the class names in class order. `image`: whether the input is an image rather than a row of numbers.
    Raises ValueError if something of the exporting machine is left, onnx.checker.ValidationError if the
    model is not valid.
    """
    strip(model)
    model.graph.name = path.stem
    metadata = {"labels": json.dumps(labels)} | (IMAGE_METADATA if image else {})
    onnx.helper.set_model_props(model, metadata)
    name_batch(model)
    assert_clean(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def strip(model: onnx.ModelProto) -> None:
    """Clear every doc string and metadata entry in the model."""
    for part in parts(model):
        for note in NOTES:
            if note in part.DESCRIPTOR.fields_by_name:
                part.ClearField(note)


def parts(message: Any) -> Iterator[Any]:
    """A protobuf message and all messages nested in it, including subgraphs, functions and anything that ONNX adds.

    A message comes before its children, so cleared content is not visited.
    """
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for child in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from parts(child)


def name_batch(model: onnx.ModelProto) -> None:
    """Call dimension 0 of every input and output "batch", which skl2onnx leaves unnamed; ValueError if it is fixed."""
    for value in (*model.graph.input, *model.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        if dim.WhichOneof("value") == "dim_value":
            raise ValueError(f"{value.name}: the batch is fixed to {dim.dim_value}")
        dim.dim_param = BATCH


def assert_clean(model: onnx.ModelProto) -> None:
    """Raise ValueError if anything within the model carries a note, or its bytes hold something like a path."""
    for part in parts(model):
        kept = [note for note in NOTES if part is not model and getattr(part, note, None)]
        if kept:
            raise ValueError(f"{getattr(part, 'name', '')}: still has {kept}")
    found = [text.decode() for text in FORBIDDEN if text in model.SerializeToString()]
    if found:
        raise ValueError(f"{model.graph.name}: contains {found}")
