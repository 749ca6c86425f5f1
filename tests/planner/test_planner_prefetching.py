"""Weights that are brought to SBUF ahead of their steps: where they are, when they come, and that nothing changes."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import TOLERANCE, Array, compare, drawn, modelled, onnxruntimes, planned, steps

import trnrt
from trnrt.errors import KernelMemoryError
from trnrt.nki.machine.program import Program
from trnrt.planner import Plan
from trnrt.planner.placing.prefetching import (
    GROUP_BYTES,
    OPENING_BYTES,
    PIECE_BYTES,
    Rooms,
    Transfer,
    _insert_rows,
    plan_prefetch,
)
from trnrt.planner.searching import fitting
from trnrt.planner.searching.trial import trace_source_cores
from trnrt.planner.steps import Call

RESIDUAL = """(float[N,3,10,10] x) => (float[N,5] y) {
    a = Conv<pads=[1,1,1,1]>(x, v, vb)  r = Relu(a)
    b = Conv<pads=[1,1,1,1]>(r, w, wb)  s = Relu(b)
    c = Conv<pads=[1,1,1,1]>(s, u, ub)  d = Add(c, r)  t = Relu(d)
    g = GlobalAveragePool(t)  f = Flatten(g)  y = Gemm(f, k, kb) }"""


def residual(width: int = 140) -> onnx.ModelProto:
    """A residual block of ``width`` channels and a classifier."""
    scale = np.float32(1 / np.sqrt(9 * width))
    return modelled(
        RESIDUAL,
        {
            "v": drawn(width, 3, 3, 3) / 5,
            "w": drawn(width, width, 3, 3) * scale,
            "u": drawn(width, width, 3, 3, seed=1) * scale,
            "k": drawn(width, 5) / 12,
            **{name: drawn(width, seed=k) for k, name in enumerate(("vb", "wb", "ub"))},
            "kb": drawn(5),
        },
    )


MODELS = Path(__file__).parents[2] / "models"


def off(patch: pytest.MonkeyPatch) -> None:
    """Let steps load their own weights."""
    patch.setattr(fitting, "SHARES", (0.0,))


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_answers_are_the_same_bit_for_bit(dtype: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds = {"x": drawn(3, 3, 10, 10)}
    (expected,) = onnxruntimes(residual(), feeds)
    session = trnrt.InferenceSession(residual().SerializeToString(), dtype=dtype, target=target, cache=False)
    (with_them,) = session.run(None, feeds)
    assert session.last_run.plan is not None and session.last_run.plan.parts
    off(monkeypatch)
    session = trnrt.InferenceSession(residual().SerializeToString(), dtype=dtype, target=target, cache=False)
    (without,) = session.run(None, feeds)
    assert session.last_run.plan is not None and not session.last_run.plan.parts
    np.testing.assert_array_equal(with_them, without)
    tolerance = min(TOLERANCE[dtype], 5e-2)
    np.testing.assert_allclose(with_them, expected, rtol=tolerance, atol=tolerance)


def test_a_part_is_the_prepared_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    together = planned(residual(), {"x": (1, 3, 10, 10)})
    off(monkeypatch)
    apart = planned(residual(), {"x": (1, 3, 10, 10)})
    assert {part.argument for part in together.parts.values()} <= set(together.weights)
    for name, part in together.parts.items():
        held, alone = part.view(together.weights[part.argument]), apart.weights[name]
        assert alone.shape == part.shape and alone.dtype == held.dtype
        np.testing.assert_array_equal(held, alone.reshape(held.shape))


def test_biases_come_in_one_transfer_and_weights_in_large_ones() -> None:
    plan = planned(residual(), {"x": (1, 3, 10, 10)}, dtype="bfloat16")
    assert {p.argument for name, p in plan.parts.items() if name.endswith("_b")} == {"biases_all"}
    sizes = [array.shape[1] * 2 for name, array in plan.weights.items() if name.startswith("weights")]
    assert sizes and all(size >= 2048 for size in sizes)


def test_the_model_s_input_is_not_kept_waiting() -> None:
    """What later steps need is asked for after the first step, which loads the input; its tiles are reserved before."""
    lines = planned(residual(), {"x": (8, 3, 10, 10)}).source.splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip().startswith("# Conv"))
    asked = [
        number for number, line in enumerate(lines) if " = prefetch(weights_" in line and "weights_first" not in line
    ]
    assert asked and min(asked) > first
    reserved = [number for number, line in enumerate(lines) if " = reserve(weights_" in line]
    assert reserved and max(reserved) < first


def opening(dtype: str, *, own: bool = False) -> list[str]:
    """What the digits CNN asks for before its first step."""
    session = trnrt.InferenceSession(MODELS / "digits_cnn.onnx", target="trn2", dtype=dtype, cache=False)
    lines = session.plan(64 if own else 1).source.splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip().startswith("# Conv"))
    body = lines[next(number for number, line in enumerate(lines) if line.startswith("def ")) + 1 : first]
    return [line.strip() for line in body if line.strip()]


def test_a_small_model_s_first_weights_come_with_its_biases() -> None:
    """And the tensor engine's clock is warmed up meanwhile. Not in 16 bits, where biases are of another dtype, nor
    where the first step loads its own weights."""
    assert opening("float32") == ["warm_up(6)", "weights_first_sb = prefetch(weights_first, 2048)"]
    biases = ["biases_all_sb = prefetch(biases_all, 2048)"]
    assert opening("bfloat16") == opening("float32", own=True) == [*biases, "weights_0_sb = reserve(weights_0)"]


SIZES = st.lists(st.integers(1, 60_000), min_size=1, max_size=12)


@settings(max_examples=200)
@given(SIZES, st.lists(st.integers(0, 150_000), min_size=12, max_size=12), st.sampled_from([2, 4]), st.booleans())
def test_transfers_are_in_order_and_find_room(sizes: list[int], free: list[int], item: int, opens: bool) -> None:
    calls = [
        Call(
            "m",
            "k",
            (),
            weights={"w": _nothing((128, size // item + 1))},
            biases={"b": _nothing((1, 1))},
            held=("w", "b"),
        )
        for size in sizes
    ]
    room = [max(64, one) for one in free[: len(calls)]]
    own = [max(64, one - size) for one, size in zip(room, sizes, strict=True)]
    rooms = Rooms(room, own, frozenset({0}) if opens else frozenset(), 180_000)
    found = plan_prefetch(calls, rooms, item)
    befores = [transfer.before for transfer in found.weights]
    assert befores == sorted(befores)
    taken = [0] * len(calls)
    for transfer in found.weights:
        assert transfer.before <= transfer.first <= transfer.last
        assert len(transfer.parts) == 1 or transfer.columns * item <= GROUP_BYTES
        assert not opens or transfer.before > 0 or transfer.first == 0
        assert transfer.reserved == transfer.before or (opens and transfer.reserved == 0 and transfer.before == 1)
        for step in range(transfer.reserved, transfer.last + 1):
            taken[step] += transfer.columns * item
    held = {part.step for transfer in found.weights for part in transfer.parts}
    assert found.biases is not None and found.biases.columns * 4 <= max(OPENING_BYTES, len(calls) * 4)
    opened = {part.step for part in found.biases.parts if not part.bias}
    assert not opened or item == 4
    for step, size in enumerate(taken):
        assert size + found.biases.columns * 4 <= (room if step in held | opened else own)[step] or size == 0
    parts = [(part.step, part.first) for transfer in found.weights for part in transfer.parts]
    assert [step for step, _ in parts] == sorted(held) and not held & opened
    sizes = [call.weights["w"].shape[1] * item for call in calls]
    assert opened == set(range(len(opened)))
    assert held == {k for k, size in enumerate(sizes) if size <= room[k] - found.biases.columns * 4} - opened


def _nothing(shape: tuple[int, ...]) -> Array:
    """An array that takes no memory."""
    return np.broadcast_to(np.float32(0), shape)


def test_transfers_have_pieces() -> None:
    """A product waits for a piece, not for all weights of its step."""
    plan = planned(residual(256), {"x": (1, 3, 10, 10)})
    large = [
        name for name, a in plan.weights.items() if name.startswith("weights") and prod(a.shape[1:]) * 4 > PIECE_BYTES
    ]
    assert large and all(f"prefetch({name}, {PIECE_BYTES // 4}" in plan.source for name in large)


def test_less_is_brought_in_where_tiles_find_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that can't be allocated is followed by one that brings in less, and at last by tensors in HBM."""
    shares: list[int] = []

    def refuse(source: str, *rest: Any) -> list[Program]:
        shares.append(source.count(" = prefetch("))
        if len(shares) <= refused:
            raise KernelMemoryError("SBUF is full")
        return trace_source_cores(source, *rest)

    monkeypatch.setattr(fitting, "trace_source_cores", refuse)
    monkeypatch.setattr("trnrt.planner.placing.prefetching._LOOSE", 0.0)
    for refused, on_chip in ((1, True), (len(fitting.SHARES), False)):
        shares.clear()
        plan: Plan = planned(residual(), {"x": (1, 3, 10, 10)})
        moved = [step for step in plan.steps if "gaps between other tiles" in step.reason]
        assert (not moved) == on_chip
        assert len(shares) == refused + 1
        shares.clear()
        compare(residual(), {"x": drawn(1, 3, 10, 10)})


# -- sums ---------------------------------------------------------------------------------------------

IMAGES = "float[2,6,5,5]"


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("act", ["", "Relu", "Sigmoid"])
@pytest.mark.parametrize("order", ["c, r", "r, c"])
def test_a_sum_with_what_is_there_is_fused(order: str, act: str, dtype: str, target: str) -> None:
    after = f"y = {act}(s)" if act else "y = Identity(s)"
    graph = f"({IMAGES} x) => ({IMAGES} y) {{ r = Tanh(x) c = Conv<pads=[1,1,1,1]>(r, w) s = Add({order}) {after} }}"
    plan = compare(modelled(graph, {"w": drawn(6, 6, 3, 3) / 7}), {"x": drawn(2, 6, 5, 5)}, dtype=dtype, target=target)
    assert set(steps(plan)) == {"compute", "conv2d"}
    assert "added=" in plan.source


def test_of_two_convolutions_the_last_takes_the_sum() -> None:
    graph = (
        f"({IMAGES} x) => ({IMAGES} y) {{ a = Conv(x, w) b = Conv<pads=[1,1,1,1]>(x, v) s = Add(a, b) y = Relu(s) }}"
    )
    plan = compare(modelled(graph, {"w": drawn(6, 6, 1, 1), "v": drawn(6, 6, 3, 3) / 7}), {"x": drawn(2, 6, 5, 5)})
    assert [step.nodes for step in plan.steps] == [("Conv_0",), ("Conv_1", "Add_2", "Relu_3")]


UNFUSED = {
    "read elsewhere": "c = Conv<pads=[1,1,1,1]>(x, w) s = Add(c, x) y = Mul(s, c)",
    "broadcast": "p = GlobalAveragePool(x) c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, p)",
    "to itself": "c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, c)",
    "after an activation": "c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Add(r, x)",
    "a constant": "c = Conv<pads=[1,1,1,1]>(x, w) y = Add(c, k)",
    "groups": "c = Conv<pads=[1,1,1,1], group=2>(x, g) y = Add(c, x)",
}


@pytest.mark.parametrize("name", UNFUSED)
def test_other_sums_are_not(name: str) -> None:
    graph = f"({IMAGES} x) => ({IMAGES} y) {{ {UNFUSED[name]} }}"
    constants = {"w": drawn(6, 6, 3, 3) / 7, "g": drawn(6, 3, 3, 3) / 5, "k": drawn(2, 6, 5, 5)}
    model = modelled(graph, {k: a for k, a in constants.items() if f"{k})" in graph or f", {k})" in graph})
    plan = compare(model, {"x": drawn(2, 6, 5, 5)})
    assert "added=" not in plan.source


def test_rows_of_pixels_are_added_too() -> None:
    graph = "(float[2,6,9] x) => (float[2,6,9] y) { c = Conv<pads=[1,1]>(x, w) y = Add(x, c) }"
    plan = compare(modelled(graph, {"w": drawn(6, 6, 3) / 4}), {"x": drawn(2, 6, 9)})
    assert "added=" in plan.source


def test_a_long_row_of_biases_comes_with_its_weights() -> None:
    """Beside the others it would take as many columns of all partitions, which the first product would wait for."""
    parameters = {"w": drawn(140, 3, 3, 3) / 5, "b": drawn(140), "k": drawn(140, 1000) / 12, "kb": drawn(1000, seed=1)}
    text = """(float[N,3,10,10] x) => (float[N,1000] y) {
        a = Conv<pads=[1,1,1,1]>(x, w, b)  r = Relu(a)
        g = GlobalAveragePool(r)  f = Flatten(g)  y = Gemm(f, k, kb) }"""
    model = modelled(text, parameters)
    plan = planned(model, {"x": (1, 3, 10, 10)}, dtype="bfloat16")
    rows = [(name, array.shape) for name, array in plan.weights.items() if array.shape == (1, 1000)]
    assert len(rows) == 1 and plan.weights["biases_all"].shape[1] < 10
    lines = [line for line in plan.source.splitlines() if " = prefetch(" in line]
    assert rows[0][0] in lines[-2], "just ahead of the weights"
    compare(model, {"x": drawn(1, 3, 10, 10)}, dtype="bfloat16")


def test_a_long_bias_comes_before_its_step() -> None:
    """The transfer behind it may start later: that of another step, if this one loads its own weights."""
    later, rows = Transfer(before=2), Transfer()
    later.append(3, "w", drawn(4, 4))
    rows.append(1, "b", drawn(1, 130), bias=True)
    transfers = [later]
    _insert_rows(transfers, rows, Rooms([], []))
    assert transfers == [rows, later] and rows.before == rows.reserved == 1


def test_a_long_bias_comes_before_the_loop_of_its_step() -> None:
    """A transfer inside a loop would be written outside it, or not at all: BERT of 16 rows in a device loop failed."""
    rows = Transfer()
    rows.append(3, "b", drawn(1, 130), bias=True)
    transfers: list[Transfer] = []
    _insert_rows(transfers, rows, Rooms([], [], loops=((2, 5),)))
    assert transfers == [rows] and rows.before == rows.reserved == 2


def test_a_tile_that_is_reserved_first_is_written() -> None:
    """No biases come before the first step: the line that reserves the weights' tile is the body's first."""
    graph = """(float[2,1,2,3] x) => (float[2,1,1,130] y) {
        p = AveragePool<auto_pad="VALID", ceil_mode=1, count_include_pad=1, kernel_shape=[3,2], strides=[2,2]>(x)
        y = MatMul(p, w) }"""
    compare(modelled(graph, {"w": drawn(1, 2, 130)}, 13), {"x": drawn(2, 1, 2, 3)})
