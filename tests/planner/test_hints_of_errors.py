"""Hints of errors other than refusals: the error is raised with the hint, and what the hint says works."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from hint_sites import find_sites
from planning import modelled

import trnrt
from trnrt.errors import KernelSizeError, TrnrtError
from trnrt.importer import import_model
from trnrt.planner import PlanOptions
from trnrt.planner.choices import Choices
from trnrt.planner.options import Float8
from trnrt.planner.parts.partitioning import make_partition
from trnrt.planner.parts.ways_out import cut_model
from trnrt.planner.searching.candidates import find_step
from trnrt.planner.sizes import default_shapes, parse_shape
from trnrt.predict.source import Asked
from trnrt.quantise.data import read_data
from trnrt.quantise.preparing import prepare

ERRORS = {"InputError", "ModelFileError", "OptionError", "KernelSizeError", "QuantiseError", "Reason"}
AGAIN = re.compile(r".*(again|Check the path|Give the path).*", re.DOTALL)
"""Hints that ask for a sound file, or for another path: nothing else is to be followed."""

Call = Callable[[], Any]
PRODUCT = modelled(
    "(float[N,4] x) => (float[N,3] y) { g = Gemm(x, w)  y = Relu(g) }", {"w": np.ones((4, 3), np.float32)}
)
PICTURES = modelled(
    "(float[N,1,H,W] image) => (float[N,1,a,b] y) { y = Conv(image, w) }", {"w": np.ones((1, 1, 3, 3), np.float32)}
)
FLATTENED = modelled(
    "(float[N,4] x) => (float[N,3] y) { i = Flatten(x)  g = Gemm(i, w)  y = Relu(g) }",
    {"w": np.ones((4, 3), np.float32)},
)
ROWS = modelled("(int64[N] i) => (float[N,2] y) { y = Gather(t, i) }", {"t": np.ones((9, 2), np.float32)})
ELEMENTS = modelled("(int64[1,1] i, float[1,9] x) => (float[1,1] y) { n = Neg(x)  y = GatherElements<axis=1>(n, i) }")
PLACES = modelled(
    """(int64[1,1,1,2] i, float[1,1,1,2] x) => (float[1,1,1,4] y)
    { y = MaxUnpool<kernel_shape=[1,2], strides=[1,2]>(x, i) }"""
)
SUMS = modelled("(int64[N] i) => (int64[N] y) { y = Add(i, i) }")
AXIS = modelled("(float[N,4] x, int64[K] a) => (float[n,m] y) { y = ReduceSum(x, a) }")
STRICT = modelled("(int64[N,1] i) => (float[N,1,2] y) { y = ai.onnx.ml.OneHotEncoder<cats_int64s=[1,2], zeros=0>(i) }")


def run(model: onnx.ModelProto, dtype: str = "float32", fallback: str | None = None, **feeds: Any) -> Call:
    """Run a model with these inputs."""
    arrays = {name: np.array(value, np.int64 if name in "ai" else np.float32) for name, value in feeds.items()}
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False, dtype=dtype, fallback=fallback)
    return lambda: session.run(None, arrays)


def plan(model: onnx.ModelProto, shape: str = "", **options: Any) -> Call:
    """Plan a model for a row, with the sizes of ``shape``."""
    imported = import_model(model.SerializeToString(), name="m")

    def make() -> Any:
        given = dict([parse_shape(shape)]) if shape else {}
        return make_partition(imported, default_shapes(imported, 1, given), PlanOptions(**options))

    return make


def read(graph: str, opset: int = 17, constants: dict[str, Any] | None = None, change: Any = None) -> Call:
    """Read a model, and plan it for its shapes."""
    model = modelled(graph, constants, opset)
    if change is not None:
        change(model)
    return lambda: plan(model)()


def chosen(**choices: Any) -> Call:
    return plan(PRODUCT, choices=Choices(**choices))


def prepared(graph: str, constants: dict[str, Any], form: str = "qdq", domain: str = "") -> Call:
    """Prepare a model to be quantised."""
    model = modelled(graph, constants)
    if domain:
        model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    return lambda: prepare(import_model(model.SerializeToString(), name="m"), form)


def calibration(rows: Any) -> Any:
    """Read rows to calibrate with."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/rows.npz", x=rows)
        return read_data(import_model(PRODUCT.SerializeToString()), Asked((f"{folder}/rows.npz",)), {}, 10)


def make_sparse(model: onnx.ModelProto) -> None:
    dense = model.graph.initializer.pop()
    values = onnx.numpy_helper.from_array(np.ones(1, np.float32), dense.name)
    indices = onnx.numpy_helper.from_array(np.array([0]), "")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, list(dense.dims)))


def need_later_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


W = {"w": np.ones((4, 4), np.float32)}
X = "(float[2,4] x) => (float[2,4] y)"
MATMUL = f"{X} {{ y = MatMul(x, w) }}"

TRIALS: dict[str, tuple[str, Call, Call]] = {
    "open sizes": (
        "name the sizes, as in --shape image=1x224x224; where there is --input, it tells them, too",
        plan(PICTURES),
        plan(PICTURES, "image=1x224x224"),
    ),
    "open sizes, from an input": (
        "name the sizes, as in --shape image=1x224x224; where there is --input, it tells them, too",
        plan(PICTURES),
        run(PICTURES, image=np.ones((1, 1, 5, 5))),
    ),
    "a shape with commas": (
        "it is sizes joined by x, as in --shape image=3x224x224",
        plan(PICTURES, "image=1,9,9"),
        plan(PICTURES, "image=1x9x9"),
    ),
    "another input's shape": ("its inputs are image", plan(PICTURES, "x=1x9x9"), plan(PICTURES, "image=1x9x9")),
    "a shape of nobody": (
        "the model's inputs are x, a: name=3x224x224",
        plan(AXIS, "4"),
        run(AXIS, x=[[1] * 4], a=[1]),
    ),
    "sizes that leave nothing": ("Give other sizes.", plan(PICTURES, "image=1x2x2"), plan(PICTURES, "image=1x3x3")),
    "a row that isn't there": (
        "numbers from 0 to 8 are taken, and from -9 to -1, which count from the end",
        run(ROWS, i=[9]),
        run(ROWS, i=[8, 0, -9, -1]),
    ),
    "an element that isn't there": (
        "numbers from 0 to 8 are taken, and from -9 to -1, which count from the end",
        run(ELEMENTS, i=[[-10]], x=[[1] * 9]),
        run(ELEMENTS, i=[[-9]], x=[[1] * 9]),
    ),
    "a place that isn't there": (
        "numbers from 0 to 3 are taken",
        run(PLACES, i=[[[[1, 4]]]], x=[[[[5, 6]]]]),
        run(PLACES, i=[[[[1, 3]]]], x=[[[[5, 6]]]]),
    ),
    "large integers": (
        "keep its magnitudes within 8388608",
        run(SUMS, i=[2**40]),
        run(SUMS, i=[8388608]),
    ),
    "large integers in 16 bits": (
        "keep its magnitudes within 128; use --dtype float32",
        run(SUMS, "bfloat16", i=[200]),
        run(SUMS, "float32", i=[200]),
    ),
    "no such category": (
        "fit the encoder with handle_unknown='ignore', or leave such rows out",
        run(STRICT, i=[[1], [7]]),
        run(STRICT, i=[[1]]),
    ),
    "no value": (
        "It sets what an operator does (a shape, axes, a count): run and validate take it from --input; or export the "
        "model with it as a constant.",
        lambda: make_partition(import_model(AXIS.SerializeToString()), {"x": (1, 4), "a": (1,)}, PlanOptions()),
        run(AXIS, x=[[1] * 4], a=[1]),
    ),
    "too many values": (
        "Export the model with it as a constant.",
        run(AXIS, x=[[1] * 4], a=[1] * 9999),
        read("(float[2,4] x) => (float[2,1] y) { y = ReduceSum(x, a) }", constants={"a": np.array([1])}),
    ),
    "a later opset": (
        "Update the package (pip install --upgrade onnx), or export the model with an older opset.",
        read(MATMUL, constants=W, change=need_later_opset),
        read(MATMUL, constants=W),
    ),
    "sparse weights": (
        "Export the model with dense weights.",
        read(MATMUL, constants=W, change=make_sparse),
        read(MATMUL, constants=W),
    ),
    "an operator of another opset": (
        "The exporter kept an operator of its framework: use a newer exporter, or another opset.",
        read(f"{X} {{ y = Gelu(x) }}", 17),
        read(f"{X} {{ y = Gelu(x) }}", 20),
    ),
    "types that differ": (
        "Export the model in float32: --dtype says what it is computed in.",
        read("(float[2,4] x, float16[2,4] z) => (float[2,4] y) { y = Add(x, z) }"),
        read("(float[2,4] x, float[2,4] z) => (float[2,4] y) { y = Add(x, z) }"),
    ),
    "a type of a later opset": (
        "Export the model with opset 13 or later, or in float32: --dtype says what it is computed in.",
        read("(bfloat16[2,4] x) => (bfloat16[2,4] y) { y = Relu(x) }", 11),
        read("(bfloat16[2,4] x) => (bfloat16[2,4] y) { y = Relu(x) }", 13),
    ),
    "many values of a node": (
        "Divide the node, as a Concat of Concats.",
        read(f"(float[1,2] x) => (float[1001,2] y) {{ y = Concat<axis=0>({', '.join('x' * 1001)}) }}"),
        read(f"""(float[1,2] x) => (float[1001,2] y)
        {{ a = Concat<axis=0>({", ".join("x" * 1000)})  y = Concat<axis=0>(a, x) }}"""),
    ),
    "a node in no step": (
        "name a node that is fused into a step; Gemm_1, Relu_2 are in steps",
        plan(
            modelled(
                "(float[N,4] x) => (float[N,3] y) { i = Flatten(x)  g = Gemm(i, w)  y = Relu(g) }",
                {"w": np.ones((4, 3), np.float32)},
            ),
            choices=Choices(no_fuse=frozenset({"Flatten_0"})),
        ),
        chosen(no_fuse=frozenset({"Relu_1"})),
    ),
    "a name that is near": (
        "did you mean 'Relu_1'? there are Gemm_0, Relu_1; `trnrt inspect` shows them",
        chosen(no_fuse=frozenset({"Relu_2"})),
        chosen(no_fuse=frozenset({"Relu_1"})),
    ),
    "a step without weights": (
        "steps with weights: none",
        plan(
            modelled("(float[N,4] x) => (float[N,4] y) { y = Relu(x) }"),
            choices=Choices(own_weights=frozenset({"Relu_0"})),
        ),
        plan(modelled("(float[N,4] x) => (float[N,4] y) { y = Relu(x) }")),
    ),
    "no such dtype": (
        "dtypes are float32, bfloat16, float16",
        plan(PRODUCT, dtype="fp16"),
        plan(PRODUCT, dtype="float16"),
    ),
    "no such fallback": (
        "it is onnxruntime, or None",
        plan(PRODUCT, fallback="cpu"),
        plan(PRODUCT, fallback="onnxruntime"),
    ),
    "no such effort": ("it is one of 0, 1", plan(PRODUCT, effort=2), plan(PRODUCT, effort=1)),
    "a negative budget": (
        "it is 1 or more, or 0 for kernels of any size",
        plan(PRODUCT, max_instructions=-1),
        plan(PRODUCT, max_instructions=0),
    ),
    "two cores as one": ("use --lnc 1 or 2", plan(PRODUCT, lnc=4), plan(PRODUCT, lnc=2)),
    "two cores as one, on trn1": (
        "use --lnc 1: there, LNC is always 1",
        plan(PRODUCT, lnc=2, target="trn1"),
        plan(PRODUCT, lnc=1, target="trn1"),
    ),
    "8 bits beside 32": (
        "the other numbers are bfloat16",
        lambda: PlanOptions(float8=Float8("float8_e4m3")),
        lambda: PlanOptions(dtype="bfloat16", float8=Float8("float8_e4m3")),
    ),
    "8 bits on trn1": (
        "use --dtype bfloat16 there, or --target trn2",
        lambda: PlanOptions("trn1", "bfloat16", float8=Float8("float8_e4m3")),
        plan(PRODUCT, target="trn1", dtype="bfloat16"),
    ),
    "no such 8 bits": (
        "it is one of float8_e4m3, float8_e5m2",
        lambda: Float8("float8"),
        lambda: Float8("float8_e5m2"),
    ),
    "no such choice of layers": (
        "it is faster or all",
        lambda: Float8("float8_e4m3", narrow="some"),
        lambda: Float8("float8_e4m3", narrow="all"),
    ),
    "no such input": (
        "Its inputs are: 'x'.",
        lambda: import_model(PRODUCT.SerializeToString()).bind({"z": (1, 4)}),
        lambda: import_model(PRODUCT.SerializeToString()).bind({"x": (1, 4)}),
    ),
    "an input without a shape": (
        "expected [N, 4]",
        lambda: import_model(PRODUCT.SerializeToString()).bind({}),
        lambda: import_model(PRODUCT.SerializeToString()).bind({"x": (1, 4)}),
    ),
    "nothing to choose": (
        "there is nothing to choose for it; `trnrt inspect` shows the steps",
        lambda: find_step(plan(FLATTENED)(), "Flatten_0"),
        lambda: find_step(plan(FLATTENED)(), "Gemm_1"),
    ),
    "names with a comma": (
        "write spaces: --outputs g y",
        lambda: cut_model(import_model(PRODUCT.SerializeToString()), ["g,y"]),
        lambda: cut_model(import_model(PRODUCT.SerializeToString()), ["g", "y"]),
    ),
    "no rows to calibrate with": (
        "give a few hundred typical rows",
        lambda: calibration(np.ones((0, 4), np.float32)),
        lambda: calibration(np.ones((200, 4), np.float32)),
    ),
    "quantised already": (
        "quantise the float model that it was made from",
        prepared(
            f"{X} {{ q = QuantizeLinear(x, s, z)  f = DequantizeLinear(q, s, z)  y = MatMul(f, w) }}",
            W | {"s": np.float32(0.1), "z": np.uint8(3)},
        ),
        prepared(MATMUL, W),
    ),
    "weights of 16 bits": (
        "export the model in float32",
        prepared("(float16[2,4] x) => (float16[2,4] y) { y = MatMul(x, w) }", {"w": np.ones((4, 4), np.float16)}),
        prepared(MATMUL, W),
    ),
    "no layers": (
        "run the model as it is; one in float64 or float16 must be exported in float32 first",
        prepared(f"{X} {{ y = Relu(x) }}", {}),
        read(f"{X} {{ y = Relu(x) }}"),
    ),
    "no layers to quantise as they run": (
        "to quantise convolutions, give --data and leave --dynamic out",
        prepared(
            "(float[1,1,3,3] x) => (float[1,1,3,3] y) { y = Conv(x, w) }",
            {"w": np.ones((1, 1, 1, 1), np.float32)},
            form="dynamic",
        ),
        prepared(
            "(float[1,1,3,3] x) => (float[1,1,3,3] y) { y = Conv(x, w) }", {"w": np.ones((1, 1, 1, 1), np.float32)}
        ),
    ),
    "no such layer": (
        "its layers are MatMul_0",
        lambda: prepared(MATMUL, W)().find_layers(["fc"]),
        lambda: prepared(MATMUL, W)().find_layers(["MatMul_0"]),
    ),
    "an operator that onnxruntime hasn't": (
        "export the model with operators that onnxruntime has",
        prepared(f"{X} {{ m = MatMul(x, w)  y = mine.Op(m) }}", W, domain="mine"),
        prepared(MATMUL, W),
    ),
}


ELSEWHERE = {
    "larger than": "tests/importer/test_importer_errors.py",
    "the model has no weight": "tests/session/test_onnxruntime_weights.py",
    "the value given for it is": "tests/session/test_onnxruntime_weights.py",
    "the data of tensor": "tests/importer/test_importer_errors.py",
    "not an ONNX model but": "tests/importer/test_importer_errors.py",
    "nodes; trnrt takes models of up to": "tests/importer/test_importer_errors.py",
    "options: step": "tests/planner/test_planner_search.py",
    "--plan:": "tests/commands/test_cli_choices.py",
    "is computed in step": "tests/commands/test_cli_choices.py",
    "the planner computes them in step": "tests/commands/test_cli_choices.py",
    "has values that are not finite": "tests/commands/test_cli_quantize.py",
    "does not limit the loss": "tests/commands/test_cli_quantize.py",
    "--max-drop limits lost decisions": "tests/commands/test_cli_quantize.py",
}
"""Part of a message: the tests that raise it, beside its way out."""

NOT_TRIED = {
    "the limit for a kernel is": "test_the_budget_that_is_named_is_enough follows it",
    "the model's functions can't be expanded": "no such model is known: onnx's checker refuses those that were tried",
    "at most": "a part for the CPU of more than 2 GB",
    "of calibration data need": "4 GiB of rows",
    "fits the model": "its hint is the first row's own error",
    "and onnx can't convert it to": "no model is known that onnx's version converter stops at and trnrt reads",
    "onnxruntime can't": "no such model is known: it is for whatever onnxruntime's quantiser raises",
}
"""Part of a message: why no test follows its hint."""


@cache
def error_of(name: str) -> tuple[str, str]:
    """What the trial's error says, and its hint."""
    with pytest.raises(TrnrtError) as caught:
        TRIALS[name][1]()
    return str(caught.value), caught.value.hint or ""


@pytest.mark.parametrize("name", TRIALS)
def test_it_is_raised_with_the_hint(name: str) -> None:
    assert error_of(name)[1] == TRIALS[name][0], error_of(name)


@pytest.mark.parametrize("name", TRIALS)
def test_following_the_hint_helps(name: str) -> None:
    TRIALS[name][2]()


def test_every_hint_of_the_source_is_tried() -> None:
    tried = [error_of(name) for name in TRIALS]
    sites = [site for folder in ("importer", "operators", "planner", "quantise") for site in find_sites(folder, ERRORS)]
    asking = [
        site for site in sites if site.hint and site.hint != "None" and not AGAIN.fullmatch(site.hint.replace("\\", ""))
    ]
    said = [re.escape(part) for part in [*ELSEWHERE, *NOT_TRIED]]
    asking = [site for site in asking if not any(part in site.message for part in said)]
    untried = [site for site in asking if not any(site.gives(*one) for one in tried)]
    assert not untried, "\n".join(f"{s.place} {s.kind} {s.message} -> {s.hint}" for s in untried)


def test_the_budget_that_is_named_is_enough() -> None:
    with pytest.raises(KernelSizeError) as caught:
        plan(PRODUCT, max_instructions=2)()
    found = re.fullmatch(
        r"allow --max-instructions (\d+), or plan for fewer rows or a smaller input", caught.value.hint or ""
    )
    assert found is not None
    made = plan(PRODUCT, max_instructions=int(found[1]))()
    assert max(part.size.compiled for part in made.plans) <= int(found[1])
    with pytest.raises(KernelSizeError):
        plan(PRODUCT, max_instructions=int(found[1]) - 1)()
