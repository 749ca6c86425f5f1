"""The onnx package's own conformance suite: its tests as models with inputs and outputs, and what trnrt makes of them.

A test is run as it is (static shapes), and with the dimensions of its inputs made symbolic (dynamic shapes). Run as a
program, this runs everything and writes ``excluded.txt`` and ``node_tests.txt`` anew:

    python tests/conformance/onnx/suite.py
"""

from __future__ import annotations

import multiprocessing
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

EXCLUDED = Path(__file__).parent / "excluded.txt"
NODE_TESTS = Path(__file__).parent / "node_tests.txt"
NODE_MODULES = "onnx.backend.test.case.node"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# What the issue asks for.
OPERATORS = frozenset(
    """Gemm MatMul Conv ConvTranspose MaxPool AveragePool GlobalAveragePool GlobalMaxPool LRN BatchNormalization
    LayerNormalization InstanceNormalization Relu LeakyRelu PRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh
    Softplus Softsign Erf Gelu Mish Clip Exp Log Sqrt Reciprocal Neg Abs Floor Ceil Add Sub Mul Div Pow Min Max Mean Sum
    Softmax LogSoftmax ArgMax ArgMin TopK ReduceMean ReduceSum ReduceMax ReduceMin ReduceL2 Concat Split Slice Pad
    Flatten Reshape Squeeze Unsqueeze Transpose Expand Tile Gather Resize DepthToSpace SpaceToDepth Identity Dropout
    Constant ConstantOfShape Shape Where""".split()  # noqa: SIM905
)


@dataclass(frozen=True, eq=False)
class Case:
    """A test of the suite: its model, and pairs of inputs and the outputs that they must give.

    ``module``: the module of onnx that has a test of kind "node". ``operator``: of such a test of one node, else "".
    """

    kind: str
    name: str
    stored: Any = None
    module: str = ""
    operator: str = ""

    @property
    def test(self) -> Any:
        """onnx's own record of the test."""
        return node_module(self.module)[self.name] if self.kind == "node" else self.stored

    def load(self) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
        """The model, and its data sets."""
        if self.kind == "node":
            sets = [([_array(a) for a in i], [_array(a) for a in o]) for i, o in self.test.data_sets]
            return self.test.model, sets
        return _light(self.test) if self.kind == "real" else _stored(self.test.model_dir)


@cache
def cases(kind: str) -> dict[str, Case]:
    """Name -> test."""
    from onnx.backend.test.loader import load_model_tests

    found = node_cases() if kind == "node" else [Case(kind, test.name, test) for test in load_model_tests(kind=kind)]
    return {case.name: case for case in sorted(found, key=lambda case: case.name)}


def node_cases() -> list[Case]:
    """The tests of kind "node": as the table lists them for the installed onnx, else as all its modules make them."""
    heading, *lines = NODE_TESTS.read_text(encoding="utf-8").splitlines() if NODE_TESTS.exists() else [""]
    if heading != _node_heading():
        return node_cases_anew()
    rows = [line.split() for line in lines]
    return [
        Case("node", name, module=module, operator=operator.strip("-"))
        for module, operator, *names in rows
        for name in names
    ]


def node_cases_anew() -> list[Case]:
    """The tests of kind "node" by importing every module of onnx that has some."""
    found: dict[str, Case] = {}
    for info in pkgutil.walk_packages(import_module(NODE_MODULES).__path__, f"{NODE_MODULES}."):
        module = info.name.removeprefix(f"{NODE_MODULES}.")
        for name, test in node_module(module).items():
            nodes = list(test.model.graph.node)
            operator = nodes[0].op_type if len(nodes) == 1 and nodes[0].domain == "" else ""
            found.setdefault(name, Case("node", name, module=module, operator=operator))
    return list(found.values())


@cache
def node_module(module: str) -> dict[str, Any]:
    """Name -> test, of a module of onnx and of those imported before. Importing one computes its tests' numbers, which
    takes seconds for some."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import_module(f"{NODE_MODULES}.{module}")
    return {test.name: test for test in import_module(NODE_MODULES)._NodeTestCases}


def _node_heading() -> str:
    return f"# Module, operator of a single node (or -) and names of onnx {onnx.__version__}'s node tests, by suite.py"


def write_node_tests() -> None:
    """Write the table of the installed onnx's tests of kind "node"."""
    lines: dict[tuple[str, str], list[str]] = {}
    for case in node_cases_anew():
        lines.setdefault((case.module, case.operator or "-"), []).append(case.name)
    text = "\n".join(" ".join([*key, *sorted(names)]) for key, names in sorted(lines.items()))
    NODE_TESTS.write_text(f"{_node_heading()}\n{text}\n", encoding="utf-8")


def made_dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a symbol for each dimension of its inputs and outputs."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    constants = {tensor.name for tensor in copy.graph.initializer}
    for letter, infos in (("i", copy.graph.input), ("o", copy.graph.output)):
        for k, info in enumerate(infos):
            if info.name in constants or not info.type.HasField("tensor_type"):
                continue
            for axis, dim in enumerate(info.type.tensor_type.shape.dim):
                dim.dim_param = f"{letter}{k}_{axis}"
    del copy.graph.value_info[:]
    return copy


def _array(item: Any) -> Any:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def _light(test: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    path = LIGHT / Path(test.url).name
    model = onnx.load(path)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = []
    for info in model.graph.input:
        if info.name not in constants:
            shape = tuple(dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim)
            count = int(np.prod(shape))
            inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    expected = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    return model, [(inputs, [numpy_helper.to_array(expected)])]


def _stored(folder: str) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    model = onnx.load(Path(folder, "model.onnx"))
    sets = []
    for place in sorted(Path(folder).glob("test_data_set*")):
        read = [
            list(_read(place, stem, infos))
            for stem, infos in (("input", model.graph.input), ("output", model.graph.output))
        ]
        sets.append((read[0], read[1]))
    return model, sets


def _read(place: Path, stem: str, infos: Any) -> Iterator[Any]:
    for k in range(len(list(place.glob(f"{stem}_*.pb")))):
        data = (place / f"{stem}_{k}.pb").read_bytes()
        if infos[k].type.HasField("sequence_type"):
            yield numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        else:
            yield numpy_helper.to_array(onnx.TensorProto.FromString(data))


# -- running -----------------------------------------------------------------------------------------


def check(case: Case, *, dynamic: bool) -> None:
    """Run the test. Raises AssertionError for a wrong answer, and trnrt's errors."""
    from onnx.backend.test.runner import Runner

    from trnrt.interfaces import onnx_backend

    model, sets = case.load()
    prepared = onnx_backend.prepare(made_dynamic(model) if dynamic else model)
    for inputs, expected in sets:
        Runner.assert_similar_outputs(expected, prepared.run(inputs), case.test.rtol, case.test.atol)


def reference(case: Case) -> list[Any]:
    """onnxruntime's answers to the first data set."""
    import onnxruntime

    model, sets = case.load()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [info.name for info in session.get_inputs()]
    outputs: list[Any] = session.run(None, dict(zip(names, sets[0][0], strict=True)))
    return outputs


def reference_passes(case: Case) -> bool:
    """Whether onnxruntime passes the test."""
    from onnx.backend.test.runner import Runner

    try:
        Runner.assert_similar_outputs(case.load()[1][0][1], reference(case), case.test.rtol, case.test.atol)
    except Exception:  # of any kind: it doesn't
        return False
    return True


# -- the table ---------------------------------------------------------------------------------------


def key(kind: str, name: str, *, dynamic: bool) -> str:
    """A test's name in the table."""
    return f"{'dynamic' if dynamic else 'static'} {kind} {name}"


@cache
def excluded() -> dict[str, str]:
    """Test -> why it is refused. "differs" begins the reason of one that gives another answer on purpose."""
    lines = EXCLUDED.read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))


def told(error: Exception) -> str:
    """Why a test is refused, in one line: the operator, and the first reason."""
    from trnrt.errors import UnsupportedModelError

    if isinstance(error, UnsupportedModelError):
        blocker = error.blockers[0]
        return " ".join(f"{blocker.op}: {blocker.reason}".split())[:150]
    return " ".join(f"{type(error).__name__}: {error}".split())[:150]


_HEADING = """# Tests of the onnx package's suite that trnrt doesn't pass, each with the reason that it is refused with.
# Written by suite.py; test_onnx_suite.py checks that each is refused so, and that no other is.
"""


def outcome(kind: str, name: str, dynamic: bool) -> tuple[str, str]:
    """How a test ends: "passes", "refused" or "wrong", and why."""
    from trnrt.errors import TrnrtError

    warnings.simplefilter("ignore")
    try:
        check(cases(kind)[name], dynamic=dynamic)
    except TrnrtError as error:
        return "refused", told(error)
    except Exception as error:  # whatever it is, it must not be
        return "wrong", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return "passes", ""


def main() -> None:
    write_node_tests()
    before = excluded() if EXCLUDED.exists() else {}
    tests = [(kind, name, dynamic) for kind in KINDS for name in cases(kind) for dynamic in (False, True)]
    lines, wrong = [], []
    with multiprocessing.Pool() as pool:
        for (kind, name, dynamic), (end, why) in zip(tests, pool.starmap(outcome, tests, chunksize=20), strict=True):
            this = key(kind, name, dynamic=dynamic)
            # What differs on purpose was written in by hand, and stays.
            if end == "wrong" and before.get(this, "").startswith("differs"):
                lines.append(f"{this}: {before[this]}")
            elif end == "wrong":
                wrong.append(f"{this}: {why}")
            elif end == "refused":
                lines.append(f"{this}: {why}")
    EXCLUDED.write_text(_HEADING + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(tests)} tests, {len(lines)} excluded; {len(wrong)} that must not be:", *wrong, sep="\n")


if __name__ == "__main__":
    main()
