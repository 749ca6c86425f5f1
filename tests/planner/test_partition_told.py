"""A model in parts: what is told of them, what they cost, how they are run and saved, and what is refused."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from dividing import MIDDLE, checked, divided, placed
from onnx import TensorProto, helper
from planning import drawn, modelled, onnxruntimes

import trnrt
from trnrt.errors import BackendError, OptionError, UnsupportedModelError
from trnrt.nki.machine.targets import get_target, target_names
from trnrt.planner.parts.crossing import host_link
from trnrt.planner.parts.partition import CpuPart, fallback_notes

# ---- what is told


def test_without_fallback_everything_that_blocks_is_told_at_once() -> None:
    graph = "(float[2,3] x) => (float[2,3] y) { a = Hardmax(x)  b = Relu(a)  c = Shrink(b)  y = Sigmoid(c) }"
    model = modelled(graph).SerializeToString()
    with pytest.raises(UnsupportedModelError) as caught:
        trnrt.InferenceSession(model).run(None, {"x": drawn(2, 3)})
    assert [blocker.op for blocker in caught.value.blockers] == ["Hardmax", "Shrink"]


def test_a_supported_model_is_one_part_with_or_without_fallback() -> None:
    model = modelled("(float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Sigmoid(a) }").SerializeToString()
    sessions = [trnrt.InferenceSession(model, fallback=fallback) for fallback in (None, "onnxruntime")]
    for session in sessions:
        session.run(None, {"x": drawn(2, 3)})
    plain, other = sessions
    assert plain.last_run.notes == other.last_run.notes == ()
    assert plain.last_run.predicted_us == other.last_run.predicted_us
    assert plain.last_run.kernel_path == other.last_run.kernel_path
    assert other.last_run.partition is not None and other.last_run.partition.blockers == ()


def test_notes_name_each_node_its_reason_and_the_round_trip() -> None:
    graph = "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  c = Hardmax(b)  y = Sigmoid(c) }"
    session = trnrt.InferenceSession(modelled(graph).SerializeToString(), fallback="onnxruntime")
    session.run(None, {"x": drawn(2, 3)})
    partition = session.last_run.partition
    assert partition is not None
    notes = session.last_run.notes
    assert list(notes) == fallback_notes(partition)
    assert [note.split(" runs")[0] for note in notes[:2]] == ["Hardmax 'Hardmax_1'", "Hardmax 'Hardmax_2'"]
    cost = 2 * host_link("trn2").latency_us + 48 / (host_link("trn2").gbps * 1000)
    assert all(f"round trip {cost:,.1f} us, 24 bytes to the CPU, 24 back" in note for note in notes[:2])
    assert "assumption" in notes[2]
    assert partition.crossings_us == pytest.approx(cost)


@pytest.mark.parametrize("target", target_names())
def test_a_prediction_is_the_device_parts_and_the_round_trips(target: str) -> None:
    model = modelled(MIDDLE)
    session = trnrt.InferenceSession(model.SerializeToString(), target=target, fallback="onnxruntime")
    session.run(None, {"x": drawn(2, 3)})
    partition = session.last_run.partition
    assert partition is not None
    alone = []
    for operator, plan in zip(("Relu", "Sigmoid"), partition.plans, strict=True):
        single = modelled(f"(float[2,3] x) => (float[2,3] y) {{ y = {operator}(x) }}").SerializeToString()
        other = trnrt.InferenceSession(single, target=target)
        other.run(None, {"x": drawn(2, 3)})
        assert plan.target == target
        alone.append(other.last_run.predicted_us or 0.0)
    assert session.last_run.predicted_us == pytest.approx(sum(alone) + partition.crossings_us)


def test_nothing_is_predicted_where_nothing_is_on_the_device() -> None:
    session = trnrt.InferenceSession(
        modelled("(float[2,3] x) => (float[2,3] y) { y = Hardmax(x) }").SerializeToString(), fallback="onnxruntime"
    )
    session.run(None, {"x": drawn(2, 3)})
    assert session.last_run.predicted_us is None
    assert "no round trip" in session.last_run.notes[0]


def test_every_assumption_about_the_host_link_has_its_source() -> None:
    for name in target_names():
        given = get_target(name).host_link
        assert given.gbps_source.startswith("assumption: ") and given.latency_us_source.startswith("assumption: ")
    link = host_link("trn1")
    assert link.transfer_us(0) == 0
    assert link.transfer_us(16_000) == pytest.approx(link.latency_us + 16_000 / (1000 * link.gbps))


def test_every_node_of_the_file_has_a_report() -> None:
    graph = """(float[2,3] x) => (float[2,3] y)
        { a = Relu(x)  k = Identity(a)  b = Hardmax(k)  c = Constant<value_float=2.0>()  y = Mul(b, c) }"""
    partition = divided(modelled(graph), {"x": drawn(2, 3)})
    places = {node.op: node.place for node in partition.nodes}
    assert places == {"Relu": "core", "Identity": "folded", "Hardmax": "cpu", "Constant": "folded", "Mul": "core"}
    assert next(node.reason for node in partition.nodes if node.op == "Identity") == "removed, as it changes nothing"
    assert [blocker.op for blocker in partition.blockers] == ["Hardmax"]
    first, last = (plan.steps[-1].reason for plan in partition.plans)
    assert (first, last) == ("another part reads it", "an output of the model")
    assert not any("--fallback" in blocker.hint for blocker in partition.blockers)


# ---- running


class Watched:
    """A loaded part that notes which values are still there when it is run."""

    made: ClassVar[dict[str, weakref.ref[Any]]] = {}
    alive: ClassVar[list[set[str]]] = []

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The part's own answer."""
        Watched.alive.append({name for name, made in Watched.made.items() if made() is not None})
        outputs: dict[str, Any] = self.runner.run(values)
        Watched.made |= {name: weakref.ref(array) for name, array in outputs.items()}
        return outputs


def test_values_are_let_go_when_nobody_reads_them_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = """(float[2,3] x) => (float[2,3] a, float[2,3] y)
        { a = Relu(x)  b = Hardmax(a)  c = Sigmoid(b)  d = Hardmax(c)  y = Exp(d) }"""
    session = trnrt.InferenceSession(modelled(graph).SerializeToString(), fallback="onnxruntime")
    session.run(None, {"x": drawn(2, 3)})
    loaded = next(iter(session._programs.loaded.values()))
    monkeypatch.setattr(loaded, "parts", [(part, Watched(runner)) for part, runner in loaded.parts])
    loaded.run({"x": drawn(2, 3)})
    assert Watched.alive == [set(), {"a"}, {"a", "b"}, {"a", "c"}, {"a", "d"}]


def test_a_fixed_batch_runs_in_slices() -> None:
    model = modelled("(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  y = Sigmoid(b) }")
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime")
    x = drawn(5, 3)
    (y,) = session.run(None, {"x": x})
    padded = np.concatenate([x, x[-1:]])
    expected = np.concatenate([onnxruntimes(model, {"x": padded[k : k + 2]})[0] for k in (0, 2, 4)])[:5]
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    assert "in 3 slices" in session.last_run.notes[0] and "runs on the CPU" in session.last_run.notes[1]
    assert session.last_run.partition is not None and session.last_run.crossings_us > 0
    assert session.last_run.crossings_us == pytest.approx(3 * session.last_run.partition.crossings_us)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_values_cross_in_the_models_own_dtypes(dtype: str) -> None:
    model = modelled(MIDDLE)
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime", dtype=dtype)
    (y,) = session.run(None, {"x": drawn(2, 3)})
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, onnxruntimes(model, {"x": drawn(2, 3)})[0], atol=2e-2)
    assert session.last_run.partition is not None
    (cpu,) = session.last_run.partition.cpu_parts
    inner = onnx.load_model_from_string(cpu.model)
    assert inner.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_parts_hold_only_the_constants_that_they_read() -> None:
    graph = """(float[2,4] x) => (float[2,3] y) { a = MatMul(x, w)  b = Add(a, k)  c = Hardmax(b)
        d = ReverseSequence<batch_axis=0, time_axis=1>(c, lengths)  y = Relu(d) }"""
    model = modelled(graph, {"w": drawn(4, 3), "k": drawn(3), "lengths": np.array([3, 2])})
    partition = divided(model, {"x": drawn(2, 4)})
    (cpu,) = partition.cpu_parts
    inner = onnx.load_model_from_string(cpu.model)
    assert [tensor.name for tensor in inner.graph.initializer] == ["lengths"]
    assert checked(model, {"x": drawn(2, 4)}) == placed(partition)


def test_a_shape_that_the_file_lies_about_is_an_error() -> None:
    """onnxruntime warns at most where a tensor is not what the file says; a kernel is made for what it says."""
    model = modelled("(float[2,3] x) => (float[2,3] y) { a = Hardmax(x)  y = Relu(a) }")
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime")
    session.run(None, {"x": drawn(2, 3)})
    loaded = next(iter(session._programs.loaded.values())).plans[0]
    with pytest.raises(BackendError, match=r"'a' has the shape \[3, 2\], and model_part2 is planned for \[2, 3\]"):
        loaded.run({"a": drawn(3, 2)})


def test_what_onnxruntime_refuses_names_the_nodes() -> None:
    model = modelled("(float[2,3] x) => (float[2,3] y) { a = Relu(x)  y = Hardmax(a) }")
    model.graph.node[1].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime")
    with pytest.raises(BackendError, match=r"m?.*_part2.*com\.example\.Hardmax"):
        session.run(None, {"x": drawn(2, 3)})


def test_an_output_that_is_a_list_of_dicts() -> None:
    model = modelled("(float[2,3] x) => (float[2,3] y) { y = Relu(x)  h = Hardmax(y) }")
    zipped = helper.make_node("ZipMap", ["h"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    model.graph.node.append(zipped)
    kind = model.graph.output.add(name="z").type.sequence_type.elem_type.map_type
    kind.key_type = TensorProto.INT64
    kind.value_type.tensor_type.elem_type = TensorProto.FLOAT
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime")
    got, expected = session.run(["z"], {"x": drawn(2, 3)}), onnxruntimes(model, {"x": drawn(2, 3)})
    assert list(got[0]) == expected[1]


def test_an_output_that_is_neither_tensor_nor_list_is_refused() -> None:
    model = modelled("(float[2,3] x) => (float[2,3] y) { y = Relu(x)  z = Optional(y) }")
    kind = model.graph.output.add(name="z").type.optional_type.elem_type.tensor_type
    kind.elem_type = TensorProto.FLOAT
    session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime")
    with pytest.raises(UnsupportedModelError) as caught:
        session.run(None, {"x": drawn(2, 3)})
    assert [(b.node, b.reason) for b in caught.value.blockers] == [("z", "its type is optional(float32), not a tensor")]


def test_a_model_of_very_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.planner.parts.partitioning.MOST_PARTS", 3)
    checked(modelled(MIDDLE), {"x": drawn(2, 3)})
    longer = "(float[2,3] x) => (float[2,3] y) { a = Relu(x)  b = Hardmax(a)  c = Sigmoid(b)  y = Hardmax(c) }"
    with pytest.raises(UnsupportedModelError, match=r"it would be cut into 4 parts.*; up to 3 are made"):
        divided(modelled(longer), {"x": drawn(2, 3)})


def test_an_unknown_fallback_is_refused() -> None:
    with pytest.raises(OptionError, match="tensorflow"):
        trnrt.InferenceSession(modelled(MIDDLE).SerializeToString(), fallback="tensorflow")


def test_a_part_too_large_for_onnxruntime_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.errors import ModelFileError
    from trnrt.planner.parts import cutting

    monkeypatch.setattr(cutting, "LARGEST_PART", 3)
    graph = "(float[2,3] x) => (float[2,3] y) { y = ReverseSequence<batch_axis=0, time_axis=1>(x, lengths) }"
    model = modelled(graph, {"lengths": np.array([3, 2])})
    with pytest.raises(ModelFileError, match="16 bytes of constants; onnxruntime takes 3 at most"):
        divided(model, {"x": drawn(2, 3)})


def test_saving_writes_every_part(tmp_path: Path) -> None:
    session = trnrt.InferenceSession(modelled(MIDDLE).SerializeToString(), fallback="onnxruntime")
    files = session.save(tmp_path)
    assert [path.name for path in files] == [
        "model_part1.py",
        "model_part1_weights.npz",
        "model_part1_plan.json",
        "model_part2.onnx",
        "model_part3.py",
        "model_part3_weights.npz",
        "model_part3_plan.json",
    ]
    onnx.checker.check_model(onnx.load(tmp_path / "model_part2.onnx"))


def test_a_cpu_part_is_what_its_type_says() -> None:
    partition = divided(modelled(MIDDLE), {"x": drawn(2, 3)})
    assert [isinstance(part, CpuPart) for part in partition.parts] == [False, True, False]
    assert [part.name for part in partition.parts] == ["m_part1", "m_part2", "m_part3"]
