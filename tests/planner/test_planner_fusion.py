"""What becomes one step, and the reason where it does not."""

from __future__ import annotations

import pytest
from planning import compare, drawn, modelled, steps

from trnrt.kernels import pool2d
from trnrt.kernels.conv import conv_room
from trnrt.planner import Plan

CONV = "c = Conv<pads=[1,1,1,1]>(x, w)"
POOL = "m = MaxPool<kernel_shape=[2,2], strides=[2,2]>"


@pytest.fixture(autouse=True)
def no_stacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small images of few channels have a kernel of their own, which fuses the same."""
    monkeypatch.setattr("trnrt.kernels.conv.stacking.PACK_NS", 0)


def images(nodes: str, outputs: str = "m", source: str = "float[N,2,6,6] x") -> Plan:
    """The plan of a model over images, whose answers were compared with onnxruntime's."""
    declared = ", ".join(f"float[N,p,q,s] {name}" for name in outputs.split())
    return compare(
        modelled(f"({source}) => ({declared}) {{ {nodes} }}", {"w": drawn(3, 2, 3, 3)}), {"x": drawn(2, 2, 6, 6)}
    )


def rows(nodes: str, outputs: str = "y") -> Plan:
    """The plan of a model over rows; v is (4, 5), b (5,), u (5, 3)."""
    declared = ", ".join(f"float[N,p] {name}" for name in outputs.split())
    constants = {"v": drawn(4, 5), "b": drawn(5), "u": drawn(5, 3)}
    return compare(modelled(f"(float[N,4] x) => ({declared}) {{ {nodes} }}", constants), {"x": drawn(6, 4)})


@pytest.mark.parametrize("act", ["Relu", "Sigmoid", "Tanh"])
def test_conv_activation_and_pool_are_one_step(act: str) -> None:
    plan = images(f"{CONV} a = {act}(c) {POOL}(a)")
    assert steps(plan) == {"conv2d": ("Conv_0", f"{act}_1", "MaxPool_2")}
    assert plan.notes == ()
    reports = {node.op: node for node in plan.nodes}
    assert {node.step for node in plan.nodes} == {"Conv_0"} and {node.kernel for node in plan.nodes} == {"conv2d"}
    assert "tensor engine" in reports["Conv"].reason
    assert reports["MaxPool"].reason.startswith("fused into Conv_0")


def test_conv_and_relu6_are_one_step() -> None:
    limits = "low = Constant<value_float=0.0>() high = Constant<value_float=6.0>()"
    plan = images(f"{CONV} {limits} m = Clip(c, low, high)")
    assert [names[0] for names in steps(plan).values()] == ["Conv_0"] and set(steps(plan)) == {"conv2d"}


def test_other_limits_are_a_step_of_their_own() -> None:
    limits = "low = Constant<value_float=-1.0>() high = Constant<value_float=6.0>()"
    assert set(steps(images(f"{CONV} {limits} m = Clip(c, low, high)"))) == {"conv2d", "compute"}


def test_conv_and_pool_without_activation_are_one_step() -> None:
    assert steps(images(f"{CONV} {POOL}(c)")) == {"conv2d": ("Conv_0", "MaxPool_1")}


@pytest.mark.parametrize("act", ["Relu", "Sigmoid", "Tanh"])
def test_pool_before_activation(act: str) -> None:
    plan = images(f"{CONV} {POOL}(c) r = {act}(m)", "r")
    assert steps(plan) == {"conv2d": ("Conv_0", "MaxPool_1", f"{act}_2")}


@pytest.mark.parametrize(
    ("nodes", "outputs", "notes"),
    [
        (
            f"{CONV} r = Relu(c) {POOL}(r)",
            "c m",
            ["Relu 'Relu_1' is not fused into Conv 'Conv_0': 'c' is an output of the model"],
        ),
        (
            f"{CONV} r = Relu(c) {POOL}(r)",
            "r m",
            ["MaxPool 'MaxPool_2' is not fused into Conv 'Conv_0': 'r' is an output of the model"],
        ),
        (
            f"{CONV} r = Relu(c) t = Tanh(c) {POOL}(r) n = Add(r, t)",
            "m n",
            [
                "Relu 'Relu_1' is not fused into Conv 'Conv_0': 'c' is read by 2 nodes",
                "Tanh 'Tanh_2' is not fused into Conv 'Conv_0': 'c' is read by 2 nodes",
            ],
        ),
        (
            f"{CONV} r = Relu(c) t = Tanh(r) {POOL}(r)",
            "m t",
            ["MaxPool 'MaxPool_3' is not fused into Conv 'Conv_0': 'r' is read by 2 nodes"],
        ),
    ],
    ids=["the sum is an output", "the activation is an output", "two activations", "the activation is read twice"],
)
def test_what_is_not_fused_into_conv_has_a_reason(nodes: str, outputs: str, notes: list[str]) -> None:
    assert list(images(nodes, outputs).notes) == notes


def test_a_pool_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 2 x 2 results is 16 bytes."""
    monkeypatch.setattr(conv_room, "POOL_BYTES", 15)
    plan = images(f"{CONV} r = Relu(c) {POOL}(r)")
    assert steps(plan) == {"conv2d": ("Conv_0", "Relu_1"), "max_pool2d": ("MaxPool_2",)}
    assert list(plan.notes) == [
        "MaxPool 'MaxPool_2' is not fused into Conv 'Conv_0': the input of one pooled result does not fit SBUF"
    ]
    monkeypatch.setattr(conv_room, "POOL_BYTES", 16)
    assert set(steps(images(f"{CONV} r = Relu(c) {POOL}(r)"))) == {"conv2d"}


def test_a_pool_on_its_own_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers stay what they are where every kernel has room for two rows only."""
    monkeypatch.setattr(conv_room, "POOL_BYTES", 48)
    monkeypatch.setattr(conv_room, "BAND_BYTES", 2 * 64 * 4)
    monkeypatch.setattr(pool2d, "INPUT_BAND_BYTES", 48)
    images(f"{CONV} r = Relu(c) {POOL}(r) n = MaxPool<kernel_shape=[2,2], pads=[1,1,0,0]>(m)", "n")


def test_gemm_and_activation_are_one_step() -> None:
    assert steps(rows("g = Gemm(x, v, b) y = Relu(g)")) == {"linear_rows": ("Gemm_0", "Relu_1")}


def test_bias_and_activation_of_a_product_are_one_step() -> None:
    """Three dimensions, so that the importer leaves the Add alone."""
    graph = "(float[N,2,4] x) => (float[N,2,5] y) { m = MatMul(x, v) a = Add(b, m) y = Relu(a) }"
    plan = compare(modelled(graph, {"v": drawn(4, 5), "b": drawn(5)}), {"x": drawn(6, 2, 4)})
    assert steps(plan) == {"linear_rows": ("MatMul_0", "Add_1", "Relu_2")}


@pytest.mark.parametrize(
    ("nodes", "outputs", "notes"),
    [
        (
            "g = Gemm(x, v, b) y = Relu(g)",
            "g y",
            ["Relu 'Relu_1' is not fused into Gemm 'Gemm_0': 'g' is an output of the model"],
        ),
        (
            "g = Gemm(x, v, b) r = Relu(g) y = Add(g, r)",
            "y",
            ["Relu 'Relu_1' is not fused into Gemm 'Gemm_0': 'g' is read by 2 nodes"],
        ),
        (
            "m = MatMul(x, v) y = Add(m, b) z = Tanh(m)",
            "y z",
            [
                "Add 'Add_1' is not fused into MatMul 'MatMul_0' as its bias: 'm' is read by 2 nodes",
                "Tanh 'Tanh_2' is not fused into MatMul 'MatMul_0': 'm' is read by 2 nodes",
            ],
        ),
        (
            "a = Relu(x) s = Add(a, x) y = Relu(s) z = Tanh(s)",
            "y z",
            [],
        ),
    ],
    ids=["the sum is an output", "two readers", "a bias and another reader", "after an addition"],
)
def test_what_is_not_fused_into_rows_has_a_reason(nodes: str, outputs: str, notes: list[str]) -> None:
    assert list(rows(nodes, outputs).notes) == notes


def test_what_is_added_to_both_sides_is_no_bias() -> None:
    plan = rows("m = MatMul(x, v) y = Add(m, m)")
    assert [s.kernel for s in plan.steps] == ["linear_rows", "compute"] and plan.notes == ()


def test_add_takes_the_activation_along() -> None:
    plan = rows("a = Tanh(x) s = Add(a, x) y = Relu(s)")
    assert steps(plan) == {"compute": ("Tanh_0", "Add_1", "Relu_2")}


def test_a_view_ends_a_fusion() -> None:
    """A Reshape stands between: the activation is a step of its own, over the same elements."""
    nodes = "g = Gemm(x, v, b) f = Unsqueeze(g, one) h = Relu(f) y = Squeeze(h, one)"
    graph = f"(float[N,4] x) => (float[N,5] y) {{ one = Constant<value_ints=[1]>() {nodes} }}"
    plan = compare(modelled(graph, {"v": drawn(4, 5), "b": drawn(5)}), {"x": drawn(6, 4)})
    assert set(steps(plan)) == {"linear_rows", "compute"}


def test_the_node_itself_says_why_it_was_not_fused() -> None:
    plan = images(f"{CONV} r = Relu(c) {POOL}(r)", "c m")
    (relu,) = [node for node in plan.nodes if node.op == "Relu"]
    assert relu.reason.endswith("is not fused into Conv 'Conv_0': 'c' is an output of the model")


def test_a_node_that_the_clean_up_merged_has_the_step_it_went_to() -> None:
    plan = rows("h = MatMul(x, v) y = Add(h, b)")
    product, added = plan.nodes
    assert (product.op, added.op) == ("MatMul", "Add") and added.step == product.step is not None
    assert added.kernel == product.kernel == "linear_rows" and "made one Gemm" in added.reason
