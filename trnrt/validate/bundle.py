"""Write a step as a test case: a minimal ONNX model, its inputs and expected result, and a test that compares them.

It contains nothing else of the user's model or data.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx_ir as ir

from trnrt.cache import write_whole
from trnrt.inputs.npz import pack_npz
from trnrt.nki.machine.targets import file_of
from trnrt.planner.naming import printable
from trnrt.planner.parts.cutting import cut, serialize_part
from trnrt.session import InferenceSession
from trnrt.validate.bounds import as_float
from trnrt.validate.walking import Compared, Unit

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


def write_bundle(
    directory: Path, session: InferenceSession, model: ir.Model, unit: Unit, found: Compared
) -> list[Path]:
    """Write step.onnx, data.npz and test_step.py into a directory, which is made if need be; and the target's file, if
    it is the user's own. ``model``: the bound graph that the unit is from."""
    (group,) = unit.groups
    assert found.expected is not None and found.tolerance is not None
    part = cut(model, "step", list(group.sources), [group.value])
    _strip(part.model)
    arrays = {f"input_{k}": found.inputs[info.name] for k, info in enumerate(part.inputs)}
    packed = io.BytesIO()
    tolerance = np.broadcast_to(found.tolerance, found.expected.shape)
    # .npz has no bfloat16.
    expected = as_float(found.expected) if found.expected.dtype.kind == "V" else found.expected
    pack_npz(packed, {"expected": expected, "tolerance": tolerance, **arrays})
    name = printable(unit.name).replace("\\", "").replace('"', "'")
    own = file_of(session.target)
    target = f'"{session.target}"' if own is None else 'HERE / "target.toml"'
    test = _TEST.format(name=name, target=target, dtype=session.dtype, backend=session.backend)
    directory.mkdir(parents=True, exist_ok=True)
    contents = {"step.onnx": serialize_part(part), "data.npz": packed.getvalue(), "test_step.py": test.encode("utf-8")}
    contents |= {} if own is None else {"target.toml": own.content}
    for file, content in contents.items():
        write_whole(directory / file, content, mode=0o644)
    return [directory / file for file in contents]


def _strip(model: ir.Model) -> None:
    """Remove the documentation and metadata of a file."""
    graph = model.graph
    graph.doc_string = None
    graph.metadata_props.clear()
    for node in graph:
        node.doc_string = None
        node.metadata_props.clear()
    for value in [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]:
        value.doc_string = None
        value.metadata_props.clear()
