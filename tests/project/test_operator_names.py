"""What trnrt knows of an operator stands in its record: elsewhere operators are named in patterns of nodes only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import onnx
import pytest

from trnrt.operators import batch, order, shapes
from trnrt.operators.record import NEVER, Declaration, NotApplicable, Operator, records

ROOT = Path(__file__).parents[2] / "trnrt"
NAMES = {schema.name for schema in onnx.defs.get_all_schemas_with_history()} | {name for _, name in records()}
# Rooms without operators of ONNX: the simulator has classes and instructions of such names, and labs make models.
OUTSIDE = ("operators", "nki", "bench", "kernels", "serve")

# File -> why it names operators.
ALLOWED = {
    "importer/folding/amended.py": "results that onnx's inference leaves open in some opsets",
    "importer/folding/bytewise.py": "results of onnxruntime's quantised operators, which onnx does not infer",
    "importer/folding/computing.py": "the arithmetic of three operators on constants",
    "importer/folding/constants.py": "nodes that onnxscript's folder leaves or must not see",
    "importer/folding/counting.py": "shapes and counts, computed beside onnx's inference",
    "importer/folding/dequantising.py": "the arithmetic of one operator",
    "importer/folding/guarding.py": "the operator that onnx's inference must not see",
    "importer/folding/history.py": "nodes whose folding is told in other words, or not at all",
    "importer/folding/idle.py": "nodes that change nothing",
    "importer/folding/inference.py": "shapes that onnx's inference does not find",
    "importer/folding/spatial.py": "sizes that onnxruntime finds and onnx does not",
    "importer/folding/windows.py": "a rewrite: padding that a rule names becomes numbers",
    "importer/fused/activations.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/fused/attention.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/fused/blocked.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/fused/normalizing.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/fused/padding.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/fused/products.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/fused/rewriting.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/fused/writing.py": "a rewrite: onnxruntime's fused operators become ONNX's own",
    "importer/quantised/bytes.py": "a rewrite: quantised operators become plain ones",
    "importer/quantised/dynamic.py": "a rewrite: quantised operators become plain ones",
    "importer/quantised/functions.py": "a rewrite: quantised operators become plain ones",
    "importer/quantised/long_sums.py": "a rewrite: a product becomes several",
    "importer/quantised/moving.py": "a rewrite: quantised operators become plain ones",
    "importer/quantised/products.py": "a rewrite: quantised operators become plain ones",
    "importer/quantised/rewriting.py": "a rewrite: quantised operators become plain ones",
    "importer/quantised/writing.py": "a rewrite: quantised operators become plain ones",
    "importer/reading/axes.py": "a rewrite: axes in the order that onnx's inference counts on",
    "importer/reading/checking.py": "an attribute that would have onnx make room for anything",
    "importer/reading/functions.py": "operators that onnx writes out as functions of others",
    "importer/reading/model_file.py": "a rewrite: constants of strings",
    "importer/reading/signature.py": "results that onnx's inference leaves open",
    "importer/rewriting/editing.py": "makes copies",
    "importer/rewriting/einsum.py": "a rewrite: an Einsum becomes products and sums",
    "importer/rewriting/emptying.py": "a rewrite: parts without elements go",
    "importer/rewriting/flattening.py": "a rewrite: a Transpose goes into the weights behind it",
    "importer/rewriting/gathering.py": "a rewrite: elements are looked up as rows",
    "importer/rewriting/grids.py": "a rewrite: an AffineGrid becomes a product",
    "importer/rewriting/halves.py": "a rewrite: the part of a Split that is read first comes first",
    "importer/rewriting/joined.py": "a rewrite: Reshape, Transpose and Reshape become one Transpose",
    "importer/rewriting/older.py": "a rewrite: what opset 6 wrote otherwise",
    "importer/rewriting/packed.py": "a rewrite: packed weights are unpacked",
    "importer/rewriting/padding.py": "a rewrite: a Pad goes into the window behind it",
    "importer/rewriting/pool_indices.py": "a rewrite: indices of a MaxPool become comparisons",
    "importer/rewriting/pooling.py": "a rewrite: the mean of tokens by a mask becomes a product",
    "importer/rewriting/repeated.py": "a rewrite: constants of operators that broadcast",
    "importer/rewriting/rules.py": "rewrites of onnxscript: which, and when",
    "importer/rewriting/rotations.py": "a rewrite: a constant factor takes the sign of what it multiplies",
    "importer/rewriting/scales.py": "a rewrite: scales and shifts go into weights",
    "importer/rewriting/scattering.py": "a rewrite: scatters at constant indices become moves",
    "importer/rewriting/splitting.py": "a rewrite: many inputs are taken a few at a time",
    "importer/rewriting/transposes.py": "a rewrite: Transposes cancel",
    "importer/rewriting/wrapping.py": "a rewrite: a Gather reads indices before they are wrapped",
    "importer/rewriting/turned_rows.py": "a rewrite: Transposes move behind the projections of rows",
    "importer/rewriting/unpooling.py": "a rewrite: unpooling becomes comparisons, or moves",
    "importer/rows/batching.py": "nodes that tell a graph how many rows there are",
    "importer/rows/indexing.py": "what stands between an input and the Gather that it is an index of",
    "importer/unrolling/bag_operators.py": "a rewrite: bags of rows become a product or a reduction",
    "importer/unrolling/bags.py": "what PyTorch's exporters write for EmbeddingBag",
    "importer/unrolling/branches.py": "a rewrite: an If becomes a Where",
    "importer/unrolling/copying.py": "constants of a body",
    "importer/unrolling/loops.py": "a rewrite: loops become copies of their bodies",
    "importer/unrolling/sequences.py": "a rewrite: sequences become their elements",
    "importer/unrolling/trips.py": "the arithmetic that may end a loop",
    "importer/wholes.py": "operators whose results are whole if their operands are",
    "planner/lowering/indices.py": "boundary nodes, which carry final indices to the host",
    "planner/lowering/integers.py": "operators that compute integers exactly in float32",
    "planner/lowering/row_numbers.py": "a fusion: what stands between an input and the Gather that it is an index of",
    "planner/parts/ends.py": "a pattern: what a detector's end is made of",
    "planner/parts/ways_out.py": "nodes that read a shape, not elements",
    "planner/placing/passes.py": "shapes that a smaller batch rewrites",
    "quantise/float8.py": "the operators whose operands are narrowed",
    "quantise/preparing.py": "the operators that onnxruntime's quantiser is asked to quantise",
    "report/page/parts.py": "no operator: a column's title",
    "report/top.py": "a pattern: the table that a classifier looks its label up in",
    "running/ranges.py": "the operators that read 8-bit floats",
    "validate/__init__.py": "no operator: a class",
    "validate/bounds.py": "how doubt passes through integers, which have no rule of their own",
    "validate/choices.py": "operators that choose by the data",
    "validate/integers/evaluating.py": "what quantised operators mean, apart from the importer",
    "validate/reference.py": "operators that onnxruntime takes with constants only",
    "validate/shaking.py": "makes nodes that shake numbers, and leaves sizes alone",
    "validate/walking.py": "indices are compared by what they name",
}


def names_in(path: Path) -> Iterator[str]:
    """The operators that texts of a file name: alone, or in a list of nothing but operators."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
            yield from words if set(words) <= NAMES else ()


def test_operators_are_named_in_their_records_and_in_patterns() -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    inside = {name: path for name, path in files.items() if name.split("/")[0] not in OUTSIDE}
    assert {name for name, path in inside.items() if any(names_in(path))} == set(ALLOWED)


def test_a_facet_that_is_left_out_is_an_error() -> None:
    facets: dict[str, Any] = {
        "batch": batch.unknown,
        "order": order.keep_order,
        "bound": NotApplicable("it is made up"),
        "values": (),
        "folds": NEVER,
        "shapes": shapes.by_onnx,
    }
    assert {field.name for field in fields(Declaration) if field.default is MISSING} == {"opsets", *facets}
    for name in facets:
        with pytest.raises(TypeError, match=name):
            Declaration({"Made": (1,)}, **{key: value for key, value in facets.items() if key != name})
    Declaration({"Made": (1,)}, **facets)


def test_what_does_not_apply_has_a_reason() -> None:
    absent = [
        value for record in records().values() for value in vars(record).values() if isinstance(value, NotApplicable)
    ]
    assert absent and all(len(facet.reason.split()) > 3 for facet in absent)


@pytest.mark.parametrize("record", [r for r in records().values() if callable(r.lowering)], ids=lambda r: r.name)
def test_a_record_stands_beside_what_lowers_it(record: Operator) -> None:
    assert record.lowering.__module__.startswith("trnrt.operators.")
    assert record.opsets[record.name] == tuple(sorted(set(record.opsets[record.name]))) != ()
