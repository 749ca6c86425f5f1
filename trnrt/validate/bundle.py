"""A step as a case of its own: a minimal ONNX model, its inputs, what is expected, and a test that compares again.

Nothing else of the user's model or data is in it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trnrt.cache import write_whole
from trnrt.inputs.npz import pack_npz
from trnrt.nki.machine.targets import file_of
from trnrt.planner.naming import printable
from trnrt.planner.parts.cutting import cut, serialize_part
from trnrt.validate.bounds import as_float
from trnrt.validate.reference import Group

Array = NDArray[Any]

_TEST = '''"""Step {name} of a model against onnxruntime's numbers: written by trnrt validate --bundle, run by pytest.

step.onnx holds the step's nodes and weights, data.npz its inputs (input_0, input_1, ... in the model's order), what
onnxruntime made of them (expected), and how far rounding may take each element from that (tolerance).
"""

from pathlib import Path

import numpy as np

import trnrt

HERE = Path(__file__).parent


def test_step() -> None:
    session = trnrt.InferenceSession(HERE / "step.onnx", target={target}, dtype="{dtype}", backend="{backend}")
    with np.load(HERE / "data.npz") as data:
        expected, tolerance = data["expected"], data["tolerance"]
        feeds = {{info.name: data[f"input_{{k}}"] for k, info in enumerate(session.get_inputs())}}
    (ours,) = session.run(None, feeds)
    assert ours.shape == expected.shape
    got, wanted = ours.astype(np.float64), expected.astype(np.float64)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(all="ignore"):
        error = np.where(same, 0, np.abs(got - wanted))
    off = ~(error <= tolerance)
    worst = np.unravel_index(np.argmax(np.where(off, error - tolerance, -1)), error.shape) if off.any() else ()
    assert not off.any(), (
        f"{{off.sum()}} of {{off.size}} elements leave the tolerance; {{[int(i) for i in worst]}} is {{got[worst]}}, "
        f"onnxruntime's {{wanted[worst]}}, allowed {{tolerance[worst]}}"
    )
'''


@dataclass(frozen=True)
class Material:
    """What a bundle is made of; ``inputs`` are the values of the group's sources by name."""

    name: str
    model: ir.Model
    group: Group
    inputs: Mapping[str, Array]
    expected: Array
    tolerance: Array
    target: str
    dtype: str
    backend: str


def write_bundle(directory: Path, material: Material) -> list[Path]:
    """Write step.onnx, data.npz and test_step.py into a directory, which is made if need be; and the target's file, if
    the target is a user's own."""
    group = material.group
    part = cut(material.model, "step", list(group.sources), [group.value])
    _strip(part.model)
    arrays = {f"input_{k}": material.inputs[info.name] for k, info in enumerate(part.inputs)}
    packed = io.BytesIO()
    tolerance = np.broadcast_to(material.tolerance, material.expected.shape)
    pack_npz(packed, {"expected": _plain(material.expected), "tolerance": tolerance, **arrays})
    name = printable(material.name).replace("\\", "").replace('"', "'")
    own = file_of(material.target)
    target = f'"{material.target}"' if own is None else 'HERE / "target.toml"'
    test = _TEST.format(name=name, target=target, dtype=material.dtype, backend=material.backend)
    directory.mkdir(parents=True, exist_ok=True)
    contents = {"step.onnx": serialize_part(part), "data.npz": packed.getvalue(), "test_step.py": test.encode("utf-8")}
    contents |= {} if own is None else {"target.toml": own.content}
    for file, content in contents.items():
        write_whole(directory / file, content, mode=0o644)
    return [directory / file for file in contents]


def _plain(array: Array) -> Array:
    """What .npz can hold: it has no bfloat16."""
    return as_float(array) if array.dtype.kind == "V" else array


def _strip(model: ir.Model) -> None:
    """Leave out what a file may say besides its numbers: texts, and notes of the program that wrote it."""
    graph = model.graph
    graph.doc_string = None
    graph.metadata_props.clear()
    for node in graph:
        node.doc_string = None
        node.metadata_props.clear()
    for value in [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]:
        value.doc_string = None
        value.metadata_props.clear()
