"""Concat without copies: tensors that are stored in parts of larger ones, against onnxruntime."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from planning import compare, drawn, modelled, onnxruntimes, planned

import trnrt
from trnrt.planner import Plan
from trnrt.planner.choices import Choices
from trnrt.planner.placing import placement
from trnrt.planner.placing.windows import find_windows
from trnrt.planner.rendering.stepwise import function_lines, split_functions
from trnrt.validate.layers import validate_layers

SIZE = (6, 5)


def joined(channels: Sequence[int], concats: Sequence[Sequence[str]], size: tuple[int, int] = SIZE) -> onnx.ModelProto:
    """Convolutions a, b, ... of an image, with these channels; Concats p, q, ... of values before; the sum of all
    channels of each Concat as output y: a convolution of the last with every other Concat pooled."""
    names = [chr(ord("a") + k) for k in range(len(channels))]
    made = dict(zip(names, channels, strict=True))
    nodes = [f"{name} = Conv(x, w_{name})" for name in names]
    constants = {f"w_{name}": drawn(count, 3, 1, 1, seed=k) for k, (name, count) in enumerate(made.items())}
    outputs = []
    for k, parts in enumerate(concats):
        name = chr(ord("p") + k)
        made[name] = sum(made[part] for part in parts)
        constants[f"v_{name}"] = drawn(2, made[name], 1, 1, seed=50 + k) / np.float32(made[name])
        nodes += [f"{name} = Concat<axis=1>({', '.join(parts)})", f"y_{name} = Conv({name}, v_{name})"]
        outputs.append(f"float[N, 2, {size[0]}, {size[1]}] y_{name}")
    text = f"(float[N, 3, {size[0]}, {size[1]}] x) => ({', '.join(outputs)}) {{ {' '.join(nodes)} }}"
    return modelled(text, constants)


def image(rows: int = 1, size: tuple[int, int] = SIZE) -> dict[str, np.ndarray]:
    return {"x": drawn(rows, 3, *size, seed=9)}


def in_place(plan: Plan) -> dict[str, str]:
    """The reasons of the values that are written into others."""
    return {step.output: step.reason for step in plan.steps if step.reason.startswith("written into")}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nothing_is_copied(target: str, dtype: str) -> None:
    plan = compare(joined([64, 64, 130], [["a", "b", "c"]]), image(2), dtype=dtype, target=target)
    concat = next(step for step in plan.steps if step.output == "p")
    assert concat.kernel == "none" and "move" not in plan.source
    assert {value: reason.split(":")[0] for value, reason in in_place(plan).items()} == {
        "a": "written into 'p' from channel 0 on",
        "b": "written into 'p' from channel 64 on",
        "c": "written into 'p' from channel 128 on",
    }
    node = next(node for node in plan.nodes if node.op == "Concat")
    assert (node.place, node.kernel) == ("view", None)


def test_growing() -> None:
    """The Concats of a dense block, as PyTorch exports them, are all parts of the last one."""
    plan = compare(joined([64, 32, 32], [["a"], ["a", "b"], ["a", "b", "c"]]), image())
    assert {"a", "b", "c", "q"} <= set(in_place(plan))
    assert plan.source.count("buffer=nl.sbuf") == 1


def test_nested() -> None:
    plan = compare(joined([64, 32, 32], [["a", "b"], ["p", "c"]]), image())
    assert set(in_place(plan)) == {"a", "b", "c", "p"}


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_resized_part(target: str) -> None:
    """Nearest pixels are repeated where the Concat wants them."""
    model = modelled(
        "(float[N, 3, 6, 4] x, float[N, 3, 3, 2] s) => (float[N, 2, 6, 4] y) { a = Conv(x, v) b = Conv(s, w)"
        ' r = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(b, , scales)'
        " c = Concat<axis=1>(r, a) y = Conv(c, u) }",
        {
            "v": drawn(70, 3, 1, 1),
            "w": drawn(64, 3, 1, 1),
            "u": drawn(2, 134, 1, 1) / np.float32(134),
            "scales": np.array([1, 1, 2, 2], np.float32),
        },
    )
    plan = compare(model, {"x": drawn(2, 3, 6, 4), "s": drawn(2, 3, 3, 2)}, target=target)
    assert "r" in in_place(plan) and "repeat_images" in {step.kernel for step in plan.steps}


def test_part_that_another_step_reads() -> None:
    """A convolution reads from partition 0 on: b, which starts at 64, is copied."""
    plan = compare(joined([64, 32, 32], [["a", "b", "c"], ["b"]]), image())
    assert set(in_place(plan)) >= {"a", "c"} and "b" not in in_place(plan)


def test_channels_that_engines_do_not_reach() -> None:
    """Starts that are no multiples of 32 are left to the copying kernel."""
    assert in_place(compare(joined([24, 24], [["a", "b"]]), image())) == {}


def test_in_hbm() -> None:
    """A Concat in HBM is written there by its producers."""
    model = joined([64, 32], [["a", "b"]])
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False, choices=Choices(in_hbm=frozenset({"p"})))
    session.run(None, image())
    plan = session.last_run.plan
    assert plan is not None
    assert set(in_place(plan)) == {"a", "b"} and {step.place for step in plan.steps} == {"hbm"}


@pytest.mark.parametrize("rows", [1, 2])
def test_layers(rows: int) -> None:
    """Each step alone: of the Concat, its parts are loaded where it has them."""
    model = joined([64, 32, 32], [["a", "b"], ["p", "c"]])
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    report = validate_layers(session, image(rows))
    assert report.passed and [layer.kernel for layer in report.layers].count("none") == 2


def test_stepwise() -> None:
    """A step that calls nothing has no function."""
    plan = planned(joined([64, 32], [["a", "b"]]), {"x": (1, 3, *SIZE)})
    split = split_functions(plan)
    ast.parse(split.source)
    spans = dict(zip([step.kernel for step in split.steps], function_lines(split), strict=True))
    assert spans["none"] == (1, 0) and len(function_lines(split)) == len(split.steps)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), rows=st.integers(1, 2), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_any_concats(data: st.DataObject, rows: int, dtype: str) -> None:
    channels = data.draw(st.lists(st.sampled_from([1, 24, 32, 64, 96, 128, 160]), min_size=1, max_size=4))
    names = [chr(ord("a") + k) for k in range(len(channels))]
    concats = []
    for k in range(data.draw(st.integers(1, 3))):
        concats.append(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4)))
        names.append(chr(ord("p") + k))
    compare(joined(channels, concats), image(rows), dtype=dtype)


def cross_stage(
    parts: tuple[int, int],
    *,
    adds: bool,
    opset: int = 17,
    act: str = "silu",
    size: tuple[int, int] = SIZE,
    first: str = "c = Conv(x, w, v)",
) -> onnx.ModelProto:
    """A block as YOLO has it: a convolution split in two, two more convolutions of the second part, and all of it
    concatenated. ``first`` makes what is split."""
    one, other = parts
    extent = f"{size[0]}, {size[1]}"
    gate = {"silu": "g = Sigmoid(c) s = Mul(c, g)", "relu": "s = Relu(c)"}[act]
    last = "d = Add(b, e)" if adds else "d = Relu(e)"
    split = "a, b = Split<axis=1>(s, sizes)" if opset >= 13 else f"a, b = Split<axis=1, split=[{one}, {other}]>(s)"
    text = (
        f"(float[N, 3, {extent}] x) => (float[N, 2, {extent}] y) {{ {first} {gate} {split}"
        f" f = Conv<pads=[1, 1, 1, 1]>(b, k) e = Conv(f, m) {last} p = Concat<axis=1>(a, b, d) y = Conv(p, u) }}"
    )
    constants = {
        "w": drawn(one + other, 3, 1, 1, seed=1),
        "v": drawn(one + other, seed=2),
        "k": drawn(other, other, 3, 3, seed=3) / np.float32(9 * other),
        "m": drawn(other, other, 1, 1, seed=4) / np.float32(other),
        "u": drawn(2, one + 2 * other, 1, 1, seed=5) / np.float32(one + 2 * other),
    }
    sizes = {"sizes": np.array([one, other])} if opset >= 13 else {}
    return modelled(text, constants | sizes, opset=opset)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("act", ["silu", "relu"])
def test_split_reads_in_place(target: str, dtype: str, act: str) -> None:
    """The second part comes first, where the convolution and the sum read it; nothing is copied."""
    plan = compare(cross_stage((16, 16), adds=True, act=act), image(2), dtype=dtype, target=target)
    assert "move" not in plan.source
    taken = next(step for step in plan.steps if step.part_of)
    assert (taken.kernel, taken.part_of) == ("none", "[0:16, 0:1]")
    assert taken.reason == "the channels of 'p' from 0 on: read where they are"


@pytest.mark.parametrize("rows", [1, 2])
def test_layers_of_a_split(rows: int) -> None:
    session = trnrt.InferenceSession(cross_stage((16, 16), adds=True).SerializeToString(), cache=False)
    report = validate_layers(session, image(rows))
    assert report.passed and [layer.kernel for layer in report.layers].count("none") == 2


def test_split_before_opset_13() -> None:
    assert "move" not in compare(cross_stage((16, 16), adds=True, opset=11), image()).source


@pytest.mark.parametrize("bounds", [(0, -1), (0, 2), (1, 4), (2, -2)])
def test_swept_split(bounds: tuple[int, int]) -> None:
    """Sweeps that begin or end inside of the block, or hold all of it, two of four images at a time."""
    model = cross_stage((16, 16), adds=True)
    names = [step.name for step in planned(model, {"x": (4, 3, *SIZE)}).steps]
    sweeps = frozenset([(names[bounds[0]], names[bounds[1]], 2)])
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False, choices=Choices(sweeps=sweeps))
    np.testing.assert_allclose(session.run(None, image(4))[0], onnxruntimes(model, image(4))[0], rtol=1e-5, atol=1e-5)


def test_split_too_large_for_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is split after a sweep takes all of its images. If they don't fit while its first step runs, they go to HBM:
    each round of placement moves one tensor, or keeps one Concat's parts apart, so there are few."""
    size = 112, 112
    model = cross_stage((16, 16), adds=True, size=size, first="h = Conv(x, n) c = Conv(h, w, v)")
    model.graph.initializer.append(numpy_helper.from_array(drawn(3, 3, 1, 1), "n"))
    names = [step.name for step in planned(model, {"x": (4, 3, *size)}).steps]
    rounds: list[set[str]] = []

    def find(*given: Any) -> Any:
        rounds.append(set(given[-1]))
        assert rounds.count(rounds[-1]) <= len(names), f"placed again and again, with {rounds[-1]} apart"
        return find_windows(*given)

    monkeypatch.setattr(placement, "find_windows", find)
    choices = Choices(sweeps=frozenset([(names[0], names[1], 1)]))
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False, choices=choices)
    feeds = image(4, size)
    np.testing.assert_allclose(session.run(None, feeds)[0], onnxruntimes(model, feeds)[0], rtol=1e-4, atol=1e-4)
    plan = session.last_run.plan
    assert plan is not None
    assert [step.images for step in plan.steps[:2]] == [1, 1]
    assert "does not fit" in next(step.reason for step in plan.steps if step.output == "s")


@settings(max_examples=30, deadline=None)
@given(
    parts=st.tuples(st.sampled_from([5, 16, 32, 64, 128, 150]), st.sampled_from([7, 16, 32, 64, 128, 200])),
    adds=st.booleans(),
    rows=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_split(parts: tuple[int, int], adds: bool, rows: int, dtype: str) -> None:
    compare(cross_stage(parts, adds=adds), image(rows), dtype=dtype)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), rows=st.integers(1, 2), dtype=st.sampled_from(["float32", "bfloat16"]))
def test_any_parts_that_are_read(data: st.DataObject, rows: int, dtype: str) -> None:
    """Slices of channels, and slices of slices, each read by a convolution and a sum."""
    channels = data.draw(st.sampled_from([40, 128, 256, 300]))
    nodes, constants, made, outputs = ["a = Conv(x, w)"], {"w": drawn(channels, 3, 1, 1, seed=1)}, {"a": channels}, []
    for k in range(data.draw(st.integers(1, 3))):
        source = data.draw(st.sampled_from(sorted(made)))
        start = data.draw(st.sampled_from([n for n in (0, 0, 13, 32, 128, 256) if n < made[source]]))
        count = data.draw(st.integers(1, made[source] - start))
        made[f"s{k}"] = count
        constants |= {
            f"from{k}": np.array([start]),
            f"to{k}": np.array([start + count]),
            f"v{k}": drawn(2, count, 1, 1, seed=k) / np.float32(count),
        }
        nodes += [f"s{k} = Slice({source}, from{k}, to{k}, axis)", f"y{k} = Conv(s{k}, v{k})", f"z{k} = Relu(s{k})"]
        outputs += [f"float[N, 2, {SIZE[0]}, {SIZE[1]}] y{k}", f"float[N, {count}, {SIZE[0]}, {SIZE[1]}] z{k}"]
    text = f"(float[N, 3, {SIZE[0]}, {SIZE[1]}] x) => ({', '.join(outputs)}) {{ {' '.join(nodes)} }}"
    compare(modelled(text, constants | {"axis": np.array([1])}), image(rows), dtype=dtype)
