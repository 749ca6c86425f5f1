"""docs/operators.md: what trnrt lowers, and what it refuses, from the code itself.

Nothing here is a list of operators: they and their opsets come from the records; attributes from ONNX's schemas; what a
function refuses from the messages that stand in it; kernels and dtypes from plans for ONNX's own node tests; and what
stays out from the function that words the refusal.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema, get_all_schemas_with_history

from trnrt.errors import TrnrtError
from trnrt.importer import import_model
from trnrt.importer.fused.rewriting import fused_operators
from trnrt.importer.quantised.rewriting import rewritten_operators
from trnrt.importer.reading.functions import EXPANDED
from trnrt.operators.record import lowering_of, records, supported_operators
from trnrt.planner import PlanOptions, make_plan
from trnrt.planner.lowering import walk as lowering
from trnrt.planner.lowering.refusals import refusal
from trnrt.planner.plan import Plan

OLDEST_OPSET = 6
Operator = tuple[str, str]

_MANY = 15
"""Operators with one message, from which on it is told once for all."""

_INTRO = """# Operators

trnrt runs the ONNX operators of this table, in models of any opset up to {newest}. It also takes
[quantised operators](#quantised-operators), [loops and branches](#loops-branches-sequences-and-bags) and
[onnxruntime's own operators](#onnxruntimes-operators), and refuses [all others](#what-stays-out), with a way out.

Every operator works in float32, bfloat16 and float16: tensors of these types are computed in the session's dtype. The
column **opsets** has the versions of the operator, from opset {oldest} on. A *final* index or label is on its way to an
output, as an ArgMax's mostly is. [Operators, one by one](operator-details.md) has the attributes, refusals, kernels and
tests of each.

Generated from the code and onnx {version} (`tests/shared/operator_table.py`); a test keeps it true.
"""

_DETAILS = """# Operators, one by one

A section for each operator that trnrt runs: its versions, its limits, and how it is tested.
[Operators](operators.md) is the overview, and has what else a model may contain.

- **opsets**, **attributes**: of all versions of the operator, from opset {oldest} on.
- **other dtypes**: dtypes of inputs in ONNX's own tests of the operator that trnrt plans, besides float32, bfloat16 and
  float16.
- **kernels**: the kernels that the plans of these tests call; `view` if a plan only reads elements in another order,
  `host` for labels and final indices (an ArgMax's on its way to an output).
- **tests**: how many of ONNX's tests of a single such node trnrt plans, and how many there are. The others are refused
  for a reason in **refused**, or for a dtype that the device doesn't compute in.
- **file**: in `trnrt/operators`.
- **refused**: the reasons in the error. NAME is the name of an attribute or input, and … another value found.
  [Operators](operators.md#refusals-that-all-operators-share) has the reasons that all operators share.

Generated from the code and onnx {version} (`tests/shared/operator_table.py`); a test keeps it true.
"""

_QUANTISED = """## Quantised operators

The importer rewrites these operators as plain operators on whole numbers ([Quantised models](quantised.md)). It takes
int8 and uint8 tensors, from opset 10 on. A scale or zero point is constant or computed, and belongs to a whole tensor
or to an index of an axis. Operators that only move or choose elements work on the whole numbers themselves.
QuantizeLinear and DequantizeLinear may have blocks, and may be of the domain com.microsoft. Other types (2, 4 and 16
bits, 8-bit floats) are refused for computed tensors. Constant weights of these types become floats, as those of
com.microsoft.MatMulNBits do.
"""

_CONTROL = """## Loops, branches, sequences and bags

The importer rewrites these as plain operators (`trnrt/importer/unrolling`) when shapes are bound:

- **Loop** is unrolled if its number of trips doesn't depend on the data: it is a constant, a count that its condition
  gives, or an input of the model (each value needs a plan). The limits are 1,024 trips, and 20,000 nodes of all loops
  together. **Scan** is unrolled along its axis.
- **If** with a constant condition becomes one of its branches. With a computed one, the device computes both branches,
  and Where selects, if their results have the same shapes and types. At the end of a detector, the host runs the If.
- **Sequences** are replaced by their elements, if these are known when the model is read.
- **EmbeddingBag**, which PyTorch exports as a loop over the bags, becomes one operation:
    - With bags of one size, it is a Reduce. With other constant offsets, it is a product with a constant matrix, or a
      maximum of repeated rows.
    - With offsets from an input, it is a product with a matrix of zeros and ones that the device computes, or a
      maximum over the rows in each bag. Bags times rows (for a maximum, times features) are at most 2^24. Infinity and
      NaN in a row reach the sums of other bags.
    - `padding_idx` is not supported, because its loop depends on the data. Set that row of the table to zeros, and
      export a sum without it.
"""

_FUSED = """## onnxruntime's operators

onnxruntime's optimizer writes operators of its own when it saves a model at the level extended or all, and so does
`onnxruntime.transformers.optimizer`. When trnrt reads a file, it rewrites those of this table as ONNX's operators, and
refuses other forms with the reason. It also takes LayerNormalization before opset 17, and SimplifiedLayerNormalization
in ONNX's own domain, because onnxruntime writes both.

Files of the level all hold channels in blocks of 8 or 16, which suit the processor that made the file. If a file
doesn't say how large its blocks are, trnrt assumes those of onnxruntime on this machine, and a note says so. If a model
is to run elsewhere, optimise it at the level extended.
"""

_OPTIMISED = """These networks, with random weights, were optimised by onnxruntime 1.32 on a processor with blocks of 8.
Each file runs wholly on kernels. For one row in float32, the table has the largest difference from onnxruntime's
outputs of the same file, by level, and the outputs' largest magnitude; "transformers" is
`onnxruntime.transformers.optimizer`.

| network | basic | extended | all | transformers | outputs up to |
|---|---|---|---|---|---|
| LeNet-5 | 2e-8 | 2e-8 | 2e-8 | - | 0.11 |
| ResNet-18, 64x64 | 2e-7 | 1e-7 | 1e-7 | - | 0.51 |
| MobileNetV2, 64x64 | 6e-8 | 6e-8 | 6e-8 | - | 0.27 |
| MobileNetV3-Small, 64x64 | 3e-8 | 3e-8 | 3e-8 | - | 0.07 |
| EfficientNet-B0, 64x64 | 7e-8 | 7e-8 | 7e-8 | - | 0.18 |
| U-Net, 64x64 | 5e-8 | 5e-8 | 5e-8 | - | 0.13 |
| a 1-D CNN, 4,000 samples | 2e-7 | 2e-7 | 2e-7 | - | 3.7 |
| ConvNeXt of 5 blocks, 64x64 | 1e-6 | 1e-6 | 1e-6 | - | 2.0 |
| ViT of 2 layers, opset 17 | 5e-6 | 5e-6 | 5e-6 | 7e-6 | 2.6 |
| ViT of 2 layers, opset 14 | 8e-6 | 8e-6 | 8e-6 | - | 3.2 |
| PyTorch's encoder of 2 layers | 5e-7 | 5e-7 | 5e-7 | - | 4.3 |
| BERT of 2 layers; ids, types and positions are inputs | 4e-6 | 4e-6 | 4e-6 | 4e-6 | 2.8 |
| BERT of 2 layers; ids, types and an int64 mask | 2e-6 | 2e-6 | 2e-6 | 2e-6 | 2.7 |
| BERT of 2 layers; ids only | 3e-6 | 3e-6 | 3e-6 | 3e-6 | 2.8 |
"""

_WRITTEN_OUT = """These operators of ONNX become those of the table when the model is read, as ONNX defines them:
{names}."""

_COMMON = """## Refusals that all operators share

Any operator may be refused for one of these reasons, with … for the value found. The error names the tensor and the way
out.
"""

_FOLLOWED = """## Where onnxruntime and ONNX's reference differ

trnrt follows onnxruntime; its tests compare with 1.32.

- **Resize and Upsample by scales**: a size is multiplied by the scale in float32, and rounded down. 10 pixels by 0.7
  are 7; in the reference and ONNX's shape inference they are 6. Coordinates are float32, too; one within 1e-6 of a half
  counts as a half for `round_prefer_floor` and `round_prefer_ceil`.
- **Resize to the same shape** is a copy, whatever the scales and the roi are. With `antialias`, each axis that keeps
  its size is copied; an axis whose scale is 1 is never cropped.
- **Pools with `ceil_mode`** leave out windows that would start beyond the image, in any opset.
- **Pools whose window is larger than the padded image** have one window if the excess is less than the stride.
  Otherwise the result would be empty, which is refused.
- **`auto_pad` of pools**: `SAME_UPPER` and `SAME_LOWER` pad as if `dilations` were 1, so results may be smaller
  than the image divided by the stride.
- **AveragePool with `count_include_pad`** divides by the part of a window inside the image and its padding. Before
  opset 19 it divides by the whole window, unless `ceil_mode` is 1.
- **MaxUnpool with `output_shape`**: indices count in that shape; in the reference, in the smaller one, which it pads.
- **ConvTranspose with `auto_pad`**: results, `output_padding` included, are at most as large as the image times the
  stride.

trnrt also refuses what onnxruntime refuses: an `output_padding` or `output_shape` that no convolution has, padding as
large as a pool's window, an Upsample that shrinks.
"""

_LEFT_OUT = """## What stays out

trnrt refuses every other operator of ONNX. The table has the reason and the way out, as in the error. A node whose
inputs are all constants may be computed when the model is read; `trnrt inspect` then shows it as folded.
[One file of every kind](exports.md) shows how whole models fare, as PyTorch, Keras and others export them.
"""


@dataclass
class Tested:
    """What the node tests of one operator tell; lists are in the order of first appearance."""

    tests: int = 0
    planned: int = 0
    kernels: dict[str, None] = field(default_factory=dict)
    dtypes: set[str] = field(default_factory=set)


def operator_page() -> str:
    """The page as Markdown."""
    found = _node_tests()
    common = _common(_refused())
    lines = [_INTRO.format(version=onnx.__version__, oldest=OLDEST_OPSET, newest=onnx.defs.onnx_opset_version())]
    lines += [_row(("operator", "what is done", "opsets")), "|---|---|---|"]
    lines += [_row(_entry(operator)) for operator in supported_operators()]
    lines += ["", _WRITTEN_OUT.format(names=", ".join(map(titled, sorted(EXPANDED))))]
    lines += ["", _QUANTISED, _row(("operator", "inputs and result", "attributes", "tests")), "|---|---|---|---|"]
    lines += [_row(_quantised_entry(operator, found[operator])) for operator in rewritten_operators()]
    lines += ["", _CONTROL, _FUSED, _row(("operator", "what is done")), "|---|---|"]
    lines += [_row((titled(operator), _summary(write))) for operator, write in fused_operators().items()]
    lines += ["", _OPTIMISED, _COMMON, *(f"- {message}" for message in dict.fromkeys([*of_the_walk(), *common]))]
    lines += ["", _FOLLOWED, _LEFT_OUT, _row(("why", "what would help", "operators")), "|---|---|---|"]
    lines += [_row((reason, hint or "-", ", ".join(names))) for (reason, hint), names in left_out().items()]
    return "\n".join(lines) + "\n"


def _summary(function: object) -> str:
    return " ".join((inspect.getdoc(function) or "").split())


def of_the_walk() -> list[str]:
    """The messages of what the walk over the graph refuses, whatever the operator."""
    return list(map(_template, _refusals(ast.parse(inspect.getsource(lowering)), "")))


def details_page() -> str:
    """The page of details as Markdown: a section for each operator."""
    found, refused = _node_tests(), _refused()
    common = _common(refused)
    lines = [_DETAILS.format(version=onnx.__version__, oldest=OLDEST_OPSET)]
    for operator in supported_operators():
        own = [shown for message, shown in refused[operator].items() if message not in common]
        lines += _section(operator, own, found[operator])
    return "\n".join(lines)


def _refused() -> dict[Operator, dict[str, str]]:
    return {operator: _shown_messages(records()[operator].lowering, operator[1]) for operator in supported_operators()}


def _common(refused: dict[Operator, dict[str, str]]) -> list[str]:
    often = Counter(message for found in refused.values() for message in found)
    return [message for message, count in often.items() if count >= _MANY]


def _entry(operator: Operator) -> tuple[str, ...]:
    record = records()[operator]
    name = titled(operator)
    anchor = name.lower().replace(".", "")
    opsets = ", ".join(map(str, record.opsets[record.name]))
    return f"[{name}](operator-details.md#{anchor})", _summary(record.lowering), opsets


def _section(operator: Operator, refused: Sequence[str], tested: Tested) -> list[str]:
    record = records()[operator]
    function: Any = record.lowering
    facts = {
        "opsets": ", ".join(map(str, record.opsets[record.name])),
        "attributes": ", ".join(f"`{name}`" for name in attributes(operator)),
        "other dtypes": ", ".join(sorted(tested.dtypes)),
        "kernels": ", ".join(f"`{kernel}`" for kernel in tested.kernels),
        "tests": f"{tested.planned} of {tested.tests}" if tested.tests else "",
        "file": f"`{Path(inspect.getfile(function)).name}`",
    }
    lines = [f"## {titled(operator)}", "", _summary(function), ""]
    lines += [f"- {name}: {fact}" for name, fact in facts.items() if fact]
    lines += ["- refused:", *(f"    - {message}" for message in refused)] if refused else []
    return [*lines, ""]


def _quantised_entry(operator: Operator, tested: Tested) -> tuple[str, ...]:
    return (
        titled(operator),
        _summary(rewritten_operators()[operator]),
        ", ".join(attributes(operator)) or "-",
        f"{tested.planned} of {tested.tests}" if tested.tests else "-",
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def titled(operator: Operator) -> str:
    """An operator with its domain, where that is not ONNX's own."""
    return ".".join(filter(None, operator))


# ---- ONNX's schemas


@cache
def schemas() -> dict[Operator, tuple[OpSchema, ...]]:
    """All versions of every operator, oldest first; those that were taken out of ONNX are left out."""
    found: dict[Operator, dict[int, OpSchema]] = defaultdict(dict)
    for schema in get_all_schemas_with_history():
        found[schema.domain, schema.name][schema.since_version] = schema
    return {key: tuple(by[v] for v in sorted(by) if not by[v].deprecated) for key, by in sorted(found.items())}


def in_force(operator: Operator) -> tuple[OpSchema, ...]:
    """The versions that a model from opset 6 on may have; of other domains than ONNX's own, all."""
    history = schemas().get(operator, ())
    first = max((s.since_version for s in history if s.since_version <= OLDEST_OPSET), default=0)
    return tuple(schema for schema in history if operator[0] or schema.since_version >= first)


def versions(operator: Operator) -> list[int]:
    """The opsets that changed the operator; what was there before opset 6 counts as of 6."""
    floor = 0 if operator[0] else OLDEST_OPSET
    return sorted({max(floor, schema.since_version) for schema in in_force(operator)})


def attributes(operator: Operator) -> list[str]:
    """The attributes of all these versions."""
    return sorted({name for schema in in_force(operator) for name in schema.attributes})


# ---- what a lowering function refuses


def messages(function: Any, operator: str) -> list[str]:
    """The messages of what a function refuses, itself or in the functions of ``ops`` that it calls, each once."""
    return list(_shown_messages(function, operator))


def _shown_messages(function: Any, operator: str) -> dict[str, str]:
    """The same messages, each with its text for a reader: with the operator's name, and the values of constants."""
    found: dict[str, str] = {}
    seen: set[Any] = set()
    waiting = [function]
    while waiting:
        current = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        tree = ast.parse(inspect.getsource(current))
        module = sys.modules[current.__module__]
        for message in _refusals(tree, operator):
            found.setdefault(_template(message), _template(message, {**vars(module), "node.op_type": operator}))
        for name in dict.fromkeys(call.id for call in _called(tree, operator)):
            other = getattr(module, name, None)
            if inspect.isfunction(other) and other.__module__.startswith("trnrt.operators"):
                waiting.append(other)
    return found


def _refusals(tree: ast.AST, operator: str) -> Iterator[ast.expr]:
    for call in _calls(tree, operator):
        refuses = isinstance(call.func, ast.Name) and call.func.id == "Blocked" and call.args
        if refuses and any(letter.isalpha() for letter in _template(call.args[0])):
            yield call.args[0]


def _called(tree: ast.AST, operator: str) -> Iterator[ast.Name]:
    """Functions that are called, or given to ``partial`` to be."""
    for call in _calls(tree, operator):
        given = call.args[:1] if ast.unparse(call.func) == "partial" else [call.func]
        yield from (name for name in given if isinstance(name, ast.Name))


def _calls(tree: ast.AST, operator: str) -> Iterator[ast.Call]:
    """The calls that matter for an operator: not those of another's branch, nor whose refusal is caught."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node
        if isinstance(node, ast.Try) and any("Blocked" in ast.unparse(h.type) for h in node.handlers if h.type):
            continue
        if isinstance(node, ast.If) and _is_of_another(node.test, operator):
            for other in node.orelse:
                yield from _calls(ast.Module([other], []), operator)
            continue
        yield from _calls(node, operator)


def _is_of_another(test: ast.expr, operator: str) -> bool:
    """Whether a condition holds for another operator only: it says ``node.op_type == "Other"``."""
    conditions = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    said = (re.fullmatch(r"node\.op_type == '(\w+)'", ast.unparse(condition)) for condition in conditions)
    return any(match is not None and match[1] != operator for match in said)


def _template(node: ast.expr, known: Mapping[str, Any] | None = None) -> str:
    """A text, with … where a value is put in. With the globals ``known``, their constants show their values."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(partial(_part_text, known=known or {}), node.values))
    return ""


def _part_text(part: ast.expr, known: Mapping[str, Any]) -> str:
    if not isinstance(part, ast.FormattedValue):
        return str(part.value) if isinstance(part, ast.Constant) else "…"
    source = ast.unparse(part.value)
    if source in known and "." in source:
        return str(known[source])
    if source == "name" and known:
        return "NAME"
    names = [name.id for name in ast.walk(part.value) if isinstance(name, ast.Name)]
    if not names or not all(name in known and (name.isupper() or inspect.ismodule(known[name])) for name in names):
        return "…"
    return format(eval(source, dict(known)), _template(part.format_spec) if part.format_spec else "")


# ---- ONNX's node tests


@cache
def _node_tests() -> defaultdict[Operator, Tested]:
    """What plans for ONNX's tests of a single node tell about each operator."""
    from onnx.backend.test.loader import load_model_tests

    found: defaultdict[Operator, Tested] = defaultdict(Tested)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the tests' own code computes with overflow and the like
        cases = load_model_tests(kind="node")
    for case in sorted(cases, key=lambda case: case.name):
        nodes = list(case.model.graph.node) if case.model is not None else []
        if len(nodes) != 1:
            continue
        operator = "" if nodes[0].domain == "ai.onnx" else nodes[0].domain, nodes[0].op_type
        if lowering_of(operator) is None and operator not in rewritten_operators():
            continue
        tested = found[operator]
        tested.tests += 1
        plan = _planned(case.model, case.data_sets)
        if plan is not None:
            tested.planned += 1
            tested.kernels |= dict.fromkeys(_kernels(plan))
            imported = import_model(case.model.SerializeToString())
            tested.dtypes |= {info.dtype for info in imported.inputs if info.name not in imported.parameters}
    for tested in found.values():
        tested.dtypes -= {"float32", "float16", "bfloat16"}
    return found


def _planned(model: onnx.ModelProto, data_sets: Any) -> Plan | None:
    """The plan of a test for its own inputs; None where it is refused."""
    try:
        imported = import_model(model.SerializeToString())
        arrays = dict(zip([info.name for info in imported.inputs], map(_array, data_sets[0][0]), strict=True))
        shapes = {name: array.shape for name, array in arrays.items()}
        return make_plan(imported, shapes, PlanOptions("trn2", "float32"), arrays)
    except (TrnrtError, ValueError):  # ValueError: an input is left out, or is no tensor
        return None


def _array(given: Any) -> np.ndarray[Any, Any]:
    return onnx.numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)


def _kernels(plan: Plan) -> list[str]:
    places = {node.place for node in plan.nodes}
    called = [step.kernel for step in plan.steps if step.kernel != "none"]
    return called or [place for place in ("host", "view") if place in places]


# ---- what stays out


def left_out() -> dict[tuple[str, str], list[str]]:
    """(reason, way out) -> the operators of ONNX that are refused so, by name."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for operator, history in schemas().items():
        if lowering_of(operator) or operator in rewritten_operators() or operator in EXPANDED:
            continue
        if not history or operator[1] == "Constant":
            continue
        blocked = refusal(ir.Node(operator[0], operator[1], [], name="n"))
        found[blocked.reason, blocked.hint].append(titled(operator))
    for domain, name in (("com.microsoft", "com.microsoft.*"), ("DOMAIN", "of any other domain")):
        blocked = refusal(ir.Node(domain, "Any", [], name="n"))
        found[blocked.reason, blocked.hint].append(name)
    return found
