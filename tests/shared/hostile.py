"""Models that mean harm, or would do it: what they ask for is out of all proportion to their size.

Run as a program, this plans each of them under limits of time and memory, and prints what came of it as JSON lines:
a crash or a hang takes this process down and not the tests.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

SECONDS = 20  # of CPU: a busy machine is no fault of the model
MEMORY = 6 * 2**30
HUGE = 10**9

Make = Callable[[], onnx.ModelProto]
CASES: dict[str, Make] = {}


def case(function: Make) -> Make:
    CASES[function.__name__] = function
    return function


def text(body: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "wild" : 1]> g {body}')


def built(
    nodes: Sequence[onnx.NodeProto],
    tensors: Sequence[onnx.TensorProto] = (),
    shape: Sequence[int | str] = (2, 4),
    output: str = "y",
    opset: int = 17,
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [f"n{k}" for k in range(len(shape))])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def chain(op: str, count: int, **attributes: Any) -> list[onnx.NodeProto]:
    names = ["x", *(f"v{k}" for k in range(count - 1)), "y"]
    return [helper.make_node(op, [names[k]], [names[k + 1]], **attributes) for k in range(count)]


def numbers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


# -- many nodes --------------------------------------------------------------------------------------


@case
def a_chain_of_100000() -> onnx.ModelProto:
    return built(chain("Relu", 100_000))


@case
def a_chain_of_3000() -> onnx.ModelProto:
    return built(chain("Sigmoid", 3_000))


@case
def a_chain_of_2000_rows() -> onnx.ModelProto:
    return built(chain("Softmax", 2_000))


@case
def a_chain_of_3999_transposes() -> onnx.ModelProto:
    return built(chain("Transpose", 3_999), shape=(3, 4))


@case
def transposes_and_relus() -> onnx.ModelProto:
    nodes = []
    for k in range(4_000):
        op = ("Transpose", "Relu", "Exp")[k % 3]
        nodes.append(helper.make_node(op, ["x" if k == 0 else f"v{k}"], ["y" if k == 3_999 else f"v{k + 1}"]))
    return built(nodes, shape=(3, 4))


@case
def everything_reads_one_value() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], [f"v{k}"]) for k in range(900)]
    return built([*nodes, helper.make_node("Sum", [f"v{k}" for k in range(900)], ["y"])])


@case
def a_sum_of_50000() -> onnx.ModelProto:
    return built([helper.make_node("Sum", ["x"] * 50_000, ["y"])])


@case
def sums_that_double() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", [f"v{k - 1}" if k else "x"] * 2, [f"v{k}"]) for k in range(2_000)]
    return built([*nodes, helper.make_node("Relu", ["v1999"], ["y"])])


@case
def functions_100_deep() -> onnx.ModelProto:
    """The next one twice in each: 2 to the power of 100 nodes."""
    functions = []
    for k in range(100):
        op, domain = (f"f{k + 1}", "wild") if k < 99 else ("Relu", "")
        nodes = [
            helper.make_node(op, ["a"], ["b"], domain=domain),
            helper.make_node(op, ["b"], ["c"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("wild", 1)]
        functions.append(helper.make_function("wild", f"f{k}", ["a"], ["c"], nodes, opsets))
    model = built([helper.make_node("f0", ["x"], ["y"], domain="wild")])
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("wild", 1))
    return model


@case
def functions_5000_in_a_row() -> onnx.ModelProto:
    functions = []
    for k in range(5_000):
        op, domain = (f"f{k + 1}", "wild") if k < 4_999 else ("Relu", "")
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("wild", 1)]
        nodes = [helper.make_node(op, ["a"], ["b"], domain=domain)]
        functions.append(helper.make_function("wild", f"f{k}", ["a"], ["b"], nodes, opsets))
    model = built([helper.make_node("f0", ["x"], ["y"], domain="wild")])
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("wild", 1))
    return model


@case
def branches_20_deep() -> onnx.ModelProto:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "leaf", [], [_info("r")])
    for k in range(20):
        node = helper.make_node("If", ["c"], [f"r{k}"], then_branch=graph, else_branch=_leaf(k))
        graph = helper.make_graph([node], f"b{k}", [], [_info(f"r{k}")])
    condition = numpy_helper.from_array(np.array(True), "c")
    return built([helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=_leaf(99))], [condition])


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _leaf(number: int) -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Exp", ["x"], [f"e{number}"])], f"leaf{number}", [], [_info(f"e{number}")]
    )


# -- bombs -------------------------------------------------------------------------------------------


@case
def a_constant_of_an_exabyte() -> onnx.ModelProto:
    return text(
        "(float[1,1] x) => (float y) <int64[2] s = {1073741824,1073741824}> { c = ConstantOfShape(s)  y = Add(x, c) }"
    )


@case
def a_constant_of_a_gigabyte() -> onnx.ModelProto:
    return text("(float[1,1] x) => (float y) <int64[2] s = {32768,32768}> { c = ConstantOfShape(s)  y = Add(x, c) }")


@case
def a_constant_that_is_made_dense() -> onnx.ModelProto:
    return text(
        "(float[1,1] x) => (float y) <int64[2] s = {20000,20000}> "
        "{ c = ConstantOfShape(s)  d = Exp(c)  e = Neg(d)  f = Add(d, e)  y = Add(x, f) }"
    )


@case
def a_concatenation_that_doubles_60_times() -> onnx.ModelProto:
    nodes = [helper.make_node("Concat", [f"v{k - 1}" if k else "x"] * 2, [f"v{k}"], axis=1) for k in range(60)]
    return built([*nodes, helper.make_node("Relu", ["v59"], ["y"])])


@case
def a_constant_that_doubles_60_times() -> onnx.ModelProto:
    nodes = [helper.make_node("Concat", [f"v{k - 1}" if k else "c"] * 2, [f"v{k}"], axis=0) for k in range(60)]
    return built(
        [*nodes, helper.make_node("Add", ["v59", "x"], ["y"])],
        [numpy_helper.from_array(np.ones((1, 4), np.float32), "c")],
    )


@case
def a_tile_of_tiles() -> onnx.ModelProto:
    nodes = [helper.make_node("Tile", [f"v{k - 1}" if k else "x", "n"], [f"v{k}"]) for k in range(8)]
    return built([*nodes, helper.make_node("Relu", ["v7"], ["y"])], [numbers("n", 1000, 1000)])


@case
def an_expansion() -> onnx.ModelProto:
    return text(f"(float[1,1] x) => (float y) <int64[2] s = {{{HUGE},{HUGE}}}> {{ e = Expand(x, s)  y = Relu(e) }}")


@case
def an_expansion_of_16_gib() -> onnx.ModelProto:
    return text("(float[1,1] x) => (float y) <int64[2] s = {65536,65536}> { e = Expand(x, s)  y = Exp(e) }")


@case
def an_expansion_that_ends_small() -> onnx.ModelProto:
    return text(
        "(float[1,1] x) => (float y) <int64[2] s = {1000000,1000000}> "
        "{ e = Expand(x, s)  y = ReduceMean<axes=[0,1]>(e) }"
    )


@case
def a_resize() -> onnx.ModelProto:
    return text("(float[1,1,4,4] x) => (float y) <float[4] s = {1,1,100000,100000}> { y = Resize(x, , s) }")


@case
def a_resize_to_a_negative_size() -> onnx.ModelProto:
    return text("(float[1,1,4,4] x) => (float y) <int64[4] s = {1,1,-5,4}> { y = Resize(x, , , s) }")


@case
def a_resize_by_nan() -> onnx.ModelProto:
    scales = numpy_helper.from_array(np.array([1, 1, np.nan, np.inf], np.float32), "s")
    return built([helper.make_node("Resize", ["x", "", "s"], ["y"])], [scales], (1, 1, 4, 4))


@case
def a_range() -> onnx.ModelProto:
    return text(
        f"(float[1] x) => (float y) <int64 a = {{0}}, int64 b = {{{HUGE**2}}}, int64 c = {{1}}> "
        "{ r = Range(a, b, c)  f = Cast<to=1>(r)  y = Add(x, f) }"
    )


@case
def padding_of_a_billion() -> onnx.ModelProto:
    return text(f"(float[2,4] x) => (float y) <int64[4] p = {{0,0,0,{HUGE}}}> {{ e = Pad(x, p)  y = Relu(e) }}")


@case
def a_one_hot_of_a_billion() -> onnx.ModelProto:
    return text(
        f"(float[2,4] x) => (float y) <int64[1] i = {{1}}, int64 d = {{{HUGE}}}, float[2] v = {{0,1}}> "
        "{ o = OneHot(i, d, v)  r = ReduceMax<axes=[1]>(o)  y = Add(x, r) }"
    )


# -- attributes --------------------------------------------------------------------------------------

IMAGE = "(float[1,2,8,8] x) => (float y)"
WEIGHT = f"<float[2,2,3,3] w = {{{','.join('1' * 36)}}}>"
ATTRIBUTES = {
    "kernel": f"Conv<kernel_shape=[{HUGE},{HUGE}], pads=[{HUGE},{HUGE},{HUGE},{HUGE}]>(x, w)",
    "pads": f"Conv<pads=[{HUGE},{HUGE},{HUGE},{HUGE}]>(x, w)",
    "large_pads": f"Conv<pads=[{2**62},{2**62},{2**62},{2**62}]>(x, w)",
    "negative_pads": "Conv<pads=[-1,-1,-1,-1]>(x, w)",
    "group": f"Conv<group={HUGE}>(x, w)",
    "group_0": "Conv<group=0>(x, w)",
    "group_negative": "Conv<group=-2>(x, w)",
    "strides": f"Conv<strides=[{HUGE},{HUGE}]>(x, w)",
    "strides_0": "Conv<strides=[0,0]>(x, w)",
    "strides_negative": "Conv<strides=[-1,-1]>(x, w)",
    "dilations": f"Conv<dilations=[{HUGE},{HUGE}], pads=[{HUGE},{HUGE},{HUGE},{HUGE}]>(x, w)",
    "dilations_0": "Conv<dilations=[0,0]>(x, w)",
    "few_pads": "Conv<pads=[1]>(x, w)",
    "many_strides": "Conv<strides=[1,1,1,1]>(x, w)",
    "transposed_pads": f"ConvTranspose<output_padding=[{HUGE},{HUGE}]>(x, w)",
    "transposed_strides": f"ConvTranspose<strides=[{HUGE},{HUGE}]>(x, w)",
    "transposed_shape": f"ConvTranspose<output_shape=[{HUGE},{HUGE}]>(x, w)",
    "pool_kernel": f"MaxPool<kernel_shape=[{HUGE},{HUGE}], pads=[{HUGE},{HUGE},{HUGE},{HUGE}]>(x)",
    "pool_pads": f"AveragePool<kernel_shape=[2,2], pads=[{HUGE},{HUGE},{HUGE},{HUGE}]>(x)",
    "pool_kernel_0": "MaxPool<kernel_shape=[0,0]>(x)",
    "pool_kernel_negative": "AveragePool<kernel_shape=[-3,-3]>(x)",
    "pool_strides_0": "MaxPool<kernel_shape=[2,2], strides=[0,0]>(x)",
    "pool_dilations": f"MaxPool<kernel_shape=[2,2], dilations=[{HUGE},{HUGE}]>(x)",
    "pool_auto": f'MaxPool<kernel_shape=[{HUGE},{HUGE}], auto_pad="SAME_UPPER">(x)',
    "lrn": f"LRN<size={HUGE}>(x)",
    "lrn_negative": "LRN<size=-3>(x)",
    "axis": f"Softmax<axis={HUGE}>(x)",
    "perm": f"Transpose<perm=[0,1,2,{HUGE}]>(x)",
    "perm_twice": "Transpose<perm=[0,1,1,2]>(x)",
    "flatten": f"Flatten<axis=-{HUGE}>(x)",
    "block": f"DepthToSpace<blocksize={HUGE}>(x)",
    "block_0": "SpaceToDepth<blocksize=0>(x)",
    "concat": f"Concat<axis={HUGE}>(x, x)",
    "split": f"Split<num_outputs={HUGE}>(x)",
    "reduce": f"ReduceMean<axes=[{HUGE}]>(x)",
    "cast": f"Cast<to={HUGE}>(x)",
    "epsilon": "BatchNormalization<epsilon=-1.0>(x, b, b, b, b)",
    "reshape": "Reshape(x, big)",
    "topk": "TopK(x, many)",
    "gather": "Gather(x, many)",
    "tile_negative": "Tile(x, below)",
    "expand_negative": "Expand(x, below)",
    "slice_step_0": "Slice(x, one, many, one, zero)",
}


def _of_attribute(call: str) -> Make:
    constants = (
        f"{WEIGHT[:-1]}, float[2] b = {{1,2}}, int64[4] big = {{{2**62},{2**62},{2**62},16}}, "
        f"int64[1] many = {{{HUGE}}}, "
        "int64[4] below = {-1,-1,-1,-1}, int64[1] one = {1}, int64[1] zero = {0}>"
    )
    return lambda: text(f"{IMAGE} {constants} {{ y = {call} }}", 18 if "num_outputs" in call else 17)


CASES.update({f"attribute_{name}": _of_attribute(call) for name, call in ATTRIBUTES.items()})


# -- names and types ---------------------------------------------------------------------------------

NAMES = {
    "a_megabyte": "n" * 2**20,
    "code": '"); import os; os.system("echo harm")  # ',
    "lines": "a\nb\r\nc\x00\u2028d",
    "quotes": '\'"""\\',
    "keyword": "class",
    "of_ours": "t0",
    "path": "../../../etc/passwd",
    "colours": "\x1b[31mred\x1b[0m",
    "right_to_left": "\u202egnirts",
}


def _of_name(name: str) -> Make:
    def make() -> onnx.ModelProto:
        weight = numpy_helper.from_array(np.ones((4, 3), np.float32), name + "w")
        nodes = [
            helper.make_node("MatMul", [name, name + "w"], [name + "h"], name=name),
            helper.make_node("Relu", [name + "h"], [name + "y"], name=name + "2"),
        ]
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4])]
        outputs = [helper.make_tensor_value_info(name + "y", TensorProto.FLOAT, [2, 3])]
        graph = helper.make_graph(nodes, name, inputs, outputs, [weight])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    return make


CASES.update({f"name_{name}": _of_name(value) for name, value in NAMES.items()})


@case
def an_operator_with_a_long_name() -> onnx.ModelProto:
    return built([helper.make_node("O" * 2**20, ["x"], ["y"], domain="wild\n" * 2**10)])


@case
def an_attribute_of_another_type() -> onnx.ModelProto:
    return built([helper.make_node("LeakyRelu", ["x"], ["y"], alpha="much")])


@case
def an_input_of_minus_sizes() -> onnx.ModelProto:
    return built(chain("Relu", 2), shape=(-1, -4))


@case
def an_input_of_a_terabyte() -> onnx.ModelProto:
    return built(chain("Relu", 2), shape=(2**20, 2**20))


@case
def an_input_of_2_to_the_200() -> onnx.ModelProto:
    return built(chain("Relu", 2), shape=(2**50, 2**50, 2**50, 2**50))


@case
def an_input_of_60_dimensions() -> onnx.ModelProto:
    return built(chain("Relu", 2), shape=(1,) * 60)


@case
def an_input_of_100_dimensions() -> onnx.ModelProto:
    return built([helper.make_node("Transpose", ["x"], ["y"])], shape=(2,) + (1,) * 99)


@case
def no_opset() -> onnx.ModelProto:
    model = built(chain("Relu", 2))
    del model.opset_import[:]
    return model


@case
def an_opset_of_long_ago() -> onnx.ModelProto:
    return built(chain("Relu", 2), opset=1)


@case
def a_negative_opset() -> onnx.ModelProto:
    return built(chain("Relu", 2), opset=-7)


@case
def a_matrix_of_another_size() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((5, 3), np.float32), "w")
    return built([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight])


@case
def a_dozen_outputs_of_one_value() -> onnx.ModelProto:
    model = built([helper.make_node("Relu", ["x"], ["y"])])
    for _ in range(12):
        model.graph.output.append(model.graph.output[0])
    return model


# -- the program -------------------------------------------------------------------------------------


class TooSlow(BaseException):
    """A case took longer than its time."""


def outcome(make: Make) -> dict[str, Any]:
    """What comes of a model: planned, refused (with the error and its exit code), or something that must not be."""
    from trnrt import InferenceSession
    from trnrt.errors import TrnrtError
    from trnrt.importer import import_model
    from trnrt.planner import PlanOptions, make_plan
    from trnrt.planner.sizes import default_shapes

    data = make().SerializeToString()
    start = time.monotonic()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        model = import_model(data)
        plan = make_plan(model, default_shapes(model, 2), PlanOptions("trn2", "float32"))
        found: dict[str, Any] = {"end": "planned", "text": f"{len(plan.steps)} steps"}
        if len(plan.steps) < 10:
            session = InferenceSession(data)
            session.run(None, session.random_inputs())
            found["end"] = "ran"
    except TrnrtError as error:
        found = {"end": type(error).__name__, "code": error.exit_code, "text": str(error), "hint": error.hint}
    except TooSlow:
        found = {"end": "slow", "text": f"over {SECONDS} s of CPU"}
    except BaseException as error:
        found = {"end": "crash", "text": "".join(traceback.format_exception(error))[-3000:]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return found | {"seconds": round(time.monotonic() - start, 2)}


def main() -> None:
    def too_slow(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, too_slow)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name in sys.argv[1:] or CASES:
        print(json.dumps({"case": name} | outcome(CASES[name])), flush=True)


if __name__ == "__main__":
    main()
