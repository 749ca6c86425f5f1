"""Slices of what onnx infers to have fewer than 0 elements: refused in words; onnx's own inference ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from trnrt.errors import ModelFileError
from trnrt.importer import import_model

# What makes d of x: a vector of 2 elements, or an image of 2x2 pixels.
VECTOR, IMAGE = (2,), (1, 1, 2, 2)
MADE = {
    "Split into more parts": (VECTOR, "a, b, c, d = Split<num_outputs=4>(x)"),
    "Split by numbers": (VECTOR, "a, d = Split(x, parts)"),
    "Pad": (VECTOR, "d = Pad(x, pads)"),
    "TopK": (VECTOR, "d, i = TopK(x, few)"),
    "Resize": (VECTOR, "d = Resize(x, , , few)"),
    "CenterCropPad": (VECTOR, "d = CenterCropPad(x, few)"),
    "Conv": (IMAGE, "d = Conv(x, filter)"),
    "MaxPool": (IMAGE, "d = MaxPool<kernel_shape=[5, 5]>(x)"),
    "ConvTranspose": (IMAGE, "d = ConvTranspose<pads=[4, 4, 4, 4]>(x, filter)"),
}
CONSTANTS = {"parts": [5, -3], "pads": [-2, -2], "few": [-2], "start": [-100], "end": [1], "last": [-1]}


def negative(made: str, *, stated: bool) -> bytes:
    """A model that slices what ``made`` leaves; its output's shape is ``stated`` or left out."""
    shape, node = MADE[made]
    text = f"(float{list(shape)} x) => (float[{','.join('abcd'[: len(shape)])}] y)"
    nodes = f"{{ {node}  y = Slice(d, start, end, last) }}"
    model: onnx.ModelProto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text} {nodes}')
    size = 1 if made == "ConvTranspose" else 5
    arrays = {name: np.array(values, np.int64) for name, values in CONSTANTS.items()}
    for name, array in {**arrays, "filter": np.ones((1, 1, size, size), np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    if not stated:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    data: bytes = model.SerializeToString()
    return data


def print_refusals() -> None:
    """Read and bind each such model, and print what trnrt says."""
    for made, (shape, _) in MADE.items():
        for stated in (True, False):
            try:
                import_model(negative(made, stated=stated)).bind({"x": shape})
            except ModelFileError as error:
                print(json.dumps([made, stated, str(error)]), flush=True)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import test_importer_guarding
test_importer_guarding.print_refusals()
"""


@cache
def refusals() -> tuple[dict[tuple[str, bool], str], str]:
    """trnrt's answers by (made, stated), from a process that any case may kill; and that process's stderr."""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return {(made, stated): text for made, stated, text in map(json.loads, ran.stdout.splitlines())}, ran.stderr


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("made", MADE)
def test_what_leaves_fewer_than_no_elements_is_refused(made: str, stated: bool) -> None:
    """In another process, which must live to say so. Where it dies of one, those after it have no answer either."""
    said, errors = refusals()
    assert (made, stated) in said, errors[-2000:]
    assert made.split()[0] in said[made, stated]


def test_slices_of_slices_are_followed() -> None:
    """Outputs without a shape get theirs through any number of Slices."""
    names = [f"v{k}" for k in range(6)]
    nodes = "  ".join(f"{made} = Slice({source}, s, e)" for source, made in zip(["x", *names], names, strict=False))
    text = f"(float[N,9] x) => (float[n,m] v5) <int64[1] s = {{0}}, int64[1] e = {{9}}> {{ {nodes} }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert import_model(model.SerializeToString()).outputs[0].shape[-1] == 9
