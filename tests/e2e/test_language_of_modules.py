"""Rendered modules pass ``trnrt nki check`` with nothing waived, for NKI 0.6 and 0.7: every module, its
calls traced strictly.

The kernels' own files are checked in tests/kernels/test_kernel_sources.py; here they are checked again as far as a
module calls them.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import onnx
import pytest
from planning import drawn, modelled
from randomizing import randomized

import trnrt
from trnrt.neuron.selftest import bodies, probes
from trnrt.nki.calls import describe
from trnrt.nki.checking import check, static_findings
from trnrt.nki.level import Level
from trnrt.nki.sim.kernel import Spec
from trnrt.planner.plan import Plan

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "models").glob("*.onnx"))
GRAPHS = ROOT / "tests" / "data" / "architectures"
# PyTorch's other exporter gives modules that differ in their names only. Of the networks in the onnx package those are
# taken that call a kernel in a way of their own.
ARCHITECTURES = [*sorted(GRAPHS.glob("*_dynamo.onnx")), GRAPHS / "keras_style.onnx"]
LIGHT = ("bvlc_alexnet", "inception_v1", "shufflenet", "squeezenet")


def checked(plan: Plan, folder: Path) -> None:
    """The module passes for the target of its plan, as `trnrt nki check` would say it."""
    path = folder / "module.py"
    path.write_text(plan.source, encoding="utf-8")
    specs = [Spec(tensor.shape, tensor.dtype) for tensor in plan.inputs]
    specs += [Spec(weight.shape, weight.dtype) for weight in plan.weights.values()]
    instructions = set()
    for level in Level:
        report = check(path, [f"{plan.entry}({describe(specs, {})})"], target=plan.target, nki=level)
        assert report.findings == [] and report.notes == [] and report.warnings == []
        assert [call.error for call in report.calls] == [None]
        instructions.add(report.calls[0].instructions)
    assert len(instructions) == 1  # it is one program at both levels


def plan_of(model: onnx.ModelProto | Path, target: str = "trn2", dtype: str = "float32", batch: int = 1) -> Plan:
    stored = model if isinstance(model, Path) else model.SerializeToString()
    return trnrt.InferenceSession(stored, backend="simulator", cache=False, target=target, dtype=dtype).plan(batch)


def test_all_are_here() -> None:
    assert (len(SAMPLES), len(ARCHITECTURES), len(LIGHT)) == (5, 11, 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_models(path: Path, target: str, dtype: str, tmp_path: Path) -> None:
    checked(plan_of(path, target, dtype, batch=8), tmp_path)


@pytest.mark.parametrize("path", ARCHITECTURES, ids=lambda path: path.stem)
def test_architectures(path: Path, tmp_path: Path) -> None:
    checked(plan_of(randomized(onnx.load(path), settled=False)), tmp_path)


@pytest.mark.parametrize("name", LIGHT)
def test_light_networks(name: str, tmp_path: Path) -> None:
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    checked(plan_of(onnx.load(light / f"light_{name}.onnx")), tmp_path)


def test_a_convolution_that_averages_what_it_makes(tmp_path: Path) -> None:
    """As between the blocks of a DenseNet."""
    graph = """(float[N,8,16,16] x) => (float[N,6,8,8] y) {
        c = Conv(x, w)  y = AveragePool<kernel_shape=[2,2], strides=[2,2]>(c) }"""
    plan = plan_of(modelled(graph, {"w": drawn(6, 8, 1, 1)}))
    assert 'pool_op="average"' in plan.source
    checked(plan, tmp_path)


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("module", [bodies, probes], ids=lambda module: module.__name__)
def test_the_self_tests_own_kernels(module: ModuleType, level: Level) -> None:
    path = Path(str(module.__file__))
    assert static_findings(path.read_text(encoding="utf-8"), str(path), level=level) == []


def test_a_module_that_is_edited_is_found_out(tmp_path: Path) -> None:
    """The check is not blind to a rendered module."""
    plan = plan_of(ROOT / "models" / "digits_ffnn.onnx")
    source = plan.source.replace("    return ", "    shapes = [t.shape for t in ()]\n    return ", 1)
    assert source != plan.source
    (tmp_path / "module.py").write_text(source, encoding="utf-8")
    assert [finding.rule for finding in static_findings(source, "module.py", level="0.6")] == ["comprehension"]
