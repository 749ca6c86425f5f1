"""Where tensors live: in SBUF where producer, readers and room allow it, else in HBM with a reason."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import Array, compare, drawn, modelled, planned

from trnrt.nki.machine.targets import get_target
from trnrt.planner import Plan
from trnrt.planner.placing.placement import Tiles

STAYS = "stays on chip: its readers take it as it is"
CNN = """(float[N,3,8,8] x) => (float[N,6] y) {
    c = Conv<pads=[1,1,1,1]>(x, v)  r = Relu(c)  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
    d = Conv(m, w)  f = Flatten(d)  g = Gemm(f, u)  s = Sigmoid(g)  h = Gemm(s, t)  y = Softmax(h) }"""


def cnn() -> onnx.ModelProto:
    """A net with every layout in it: channels, a flattened image, features, rows."""
    return modelled(CNN, weights())


def weights() -> dict[str, Array]:
    return {
        "v": drawn(130, 3, 3, 3) / 5,
        "w": drawn(5, 130, 3, 3) / 30,
        "u": drawn(20, 140) / 4,
        "t": drawn(140, 6) / 10,
    }


def images(batch: int) -> dict[str, Array]:
    return {"x": drawn(batch, 3, 8, 8)}


def layouts(plan: Plan) -> dict[str, str]:
    return {step.output: step.layout for step in plan.steps}


def leave(room: int, target: str, patch: pytest.MonkeyPatch) -> None:
    """Let kernels take all of SBUF but so many bytes a partition."""
    taken = get_target(target).sbuf_usable_bytes - room
    patch.setattr(Tiles, "working_bytes", lambda tiles, *_, **__: [taken] * len(tiles.steps))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_tensors_stay_in_sbuf(target: str) -> None:
    plan = compare(cnn(), images(5), target=target)
    assert layouts(plan) == {"m": "channels", "d": "channels", "s": "features", "h": "rows", "y": "hbm"}
    assert [step.place for step in plan.steps] == ["sbuf"] * 4 + ["hbm"]
    assert [step.reason for step in plan.steps] == [STAYS] * 4 + ["an output of the model"]


def test_a_kernel_without_room_hides_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first kernel wants more than all of SBUF, with no tensor beside it; the others have no room either."""
    usable = get_target("trn2").sbuf_usable_bytes
    monkeypatch.setattr(
        Tiles, "working_bytes", lambda tiles, *_, **__: [usable + 1] + [usable] * (len(tiles.steps) - 1)
    )
    plan = compare(cnn(), images(2), target="trn2")
    assert set(layouts(plan).values()) == {"hbm"}


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_tensors_that_do_not_fit_go_to_hbm(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first activation takes 2 blocks of 16 float32 an image."""
    room = 20_000
    leave(room, target, monkeypatch)
    most = room // (2 * 16 * 4 + 2 * 2 * 4)
    inside, outside = (planned(cnn(), {"x": (n, 3, 8, 8)}, target=target) for n in (most, most + 1))
    assert layouts(inside)["m"] == "channels"
    assert layouts(outside) == {"m": "hbm", "d": "channels", "s": "features", "h": "rows", "y": "hbm"}
    step = outside.steps[0]
    assert (step.place, step.reason) == (
        "hbm",
        f"does not fit the {room} bytes a partition that SBUF has for tensors while step {outside.steps[1].name} runs",
    )
    assert layouts(planned(cnn(), {"x": (most + 1, 3, 8, 8)}, target=target, dtype="bfloat16"))["m"] == "channels"


@pytest.mark.parametrize("room", [0, 40, 100, 300, 700, 1000])
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_answers_do_not_depend_on_the_place(room: int, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(room, target, monkeypatch)
    plan = compare(cnn(), images(5), target=target)
    assert any(step.place == "sbuf" for step in plan.steps) == (room > 0)


def test_a_large_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More images than SBUF has room for: the answers stay right, and the plan says what it does about that."""
    leave(20_000, "trn2", monkeypatch)
    compare(cnn(), images(300))
    plan = planned(cnn(), {"x": (300, 3, 8, 8)})
    assert layouts(plan)["m"] == "channels" and any("in a loop over the whole plan" in note for note in plan.notes)
    fixed = modelled(CNN.replace("[N,", "[300,"), weights())  # its batch can't be taken in parts
    assert layouts(compare(fixed, images(300)))["m"] == "hbm"


def test_an_activation_has_one_memory_with_its_source() -> None:
    """Its result is an output, so its source goes to HBM with it, though the pool could read it in SBUF."""
    graph = """(float[N,2,6,6] x) => (float[N,3,4,4] r, float[N,3,2,2] m) {
        c = Conv(x, w)  r = Relu(c)  m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c) }"""
    plan = compare(modelled(graph, {"w": drawn(3, 2, 3, 3)}), {"x": drawn(2, 2, 6, 6)})
    reasons = {step.output: (step.layout, step.reason) for step in plan.steps}
    assert reasons["c"] == ("hbm", "step Relu_1 wants source and result in one memory")


def test_an_activation_stays_in_sbuf_with_its_source() -> None:
    graph = """(float[N,2,6,6] x) => (float[N,2] y) {
        c = Conv(x, w)  r = Relu(c)  t = Tanh(c)
        p = MaxPool<kernel_shape=[4,4]>(r)  q = MaxPool<kernel_shape=[4,4]>(t)
        f = Flatten(p)  g = Flatten(q)  a = Gemm(f, u)  b = Gemm(g, u)  y = Add(a, b) }"""
    plan = compare(modelled(graph, {"w": drawn(3, 2, 3, 3), "u": drawn(3, 2)}), {"x": drawn(2, 2, 6, 6)})
    assert layouts(plan) | {"y": ""} == {
        "c": "channels", "r": "channels", "t": "channels", "p": "channels", "q": "channels", "a": "features", "y": "",
    }  # fmt: skip


def test_readers_that_want_different_layouts() -> None:
    """Softmax reads rows, Gemm features."""
    graph = "(float[N,4] x) => (float[N,5] p, float[N,2] y) { h = Gemm(x, v) p = Softmax(h) y = Gemm(h, w) }"
    plan = compare(modelled(graph, {"v": drawn(4, 5), "w": drawn(5, 2)}), {"x": drawn(3, 4)})
    assert layouts(plan)["h"] == "hbm"


@settings(max_examples=60)
@given(room=st.integers(0, 3000), batch=st.integers(1, 6), data=st.data())
def test_any_chain_of_layers(room: int, batch: int, data: st.DataObject) -> None:
    """Layers in any order, read once or twice, with any room between steps."""
    layers = [
        ("float[N,6,4,4]", "{o} = Conv<pads=[1,1,1,1]>({i}, w)"),
        ("float[N,6,4,4]", "{o} = Relu({i})"),
        ("float[N,6,4,4]", "{o} = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>({i})"),
        ("float[N,6,4,4]", "{o} = Add({i}, x)"),
        ("float[N,6,4,4]", "{o}f = Flatten({i}) {o}g = Gemm({o}f, u) {o}r = Tanh({o}g) {o} = Reshape({o}r, s)"),
        ("float[N,6,4,4]", "{o}f = Flatten({i}) {o}g = Softmax({o}f) {o} = Reshape({o}g, s)"),
        ("float[N,6,4,4]", "{o} = Transpose<perm=[0,1,3,2]>({i})"),
    ]
    nodes, names = [], ["x"]
    for index in range(data.draw(st.integers(1, 7))):
        _, layer = data.draw(st.sampled_from(layers))
        source = data.draw(st.sampled_from(names[-2:]))
        names.append(f"v{index}")
        nodes.append(layer.format(i=source, o=names[-1]))
    outputs = sorted({names[-1], data.draw(st.sampled_from(names[1:]))})
    declared = ", ".join(f"float[N,6,4,4] {name}" for name in outputs)
    constants = {"w": drawn(6, 6, 3, 3) / 8, "u": drawn(96, 96) / 10, "s": drawn(4).astype("int64")}
    constants["s"][:] = [-1, 6, 4, 4]
    model = modelled(f"(float[N,6,4,4] x) => ({declared}) {{ {' '.join(nodes)} }}", constants)
    with pytest.MonkeyPatch.context() as patch:
        leave(room, "trn2", patch)
        compare(model, {"x": drawn(batch, 6, 4, 4)})
