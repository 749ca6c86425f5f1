"""Scripts for onnxruntime that replace weights, write models, and rely on its errors and types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from exchanging import assert_same, run_script, write_model
from onnx import TensorProto, helper, numpy_helper, parser

import trnrt
from trnrt import errors
from trnrt.ort.ignoring import forget_warnings

X = np.ones((2, 3), np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own, in a folder of its own, and hears each warning anew."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    forget_warnings()


def write_outside(folder: Path) -> None:
    """The same network with its weights in outside.data, as outside.onnx."""
    model = onnx.load(folder / "net.onnx")
    for tensor in model.graph.initializer:  # onnx moves only raw data
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    place = {"save_as_external_data": True, "location": "outside.data", "size_threshold": 0}
    onnx.save(model, folder / "outside.onnx", **place)


def write_scalar(folder: Path) -> None:
    """A net whose input ``rate`` is a scalar, as the sampling rate of a voice detector is."""
    text = '<ir_version: 8, opset_import: ["" : 17]>\n'
    text += "net (float[N,3] x, int64 rate) => (float[N,3] y) { r = Cast<to=1>(rate)  y = Mul(x, r) }"
    onnx.save(parser.parse_model(text), folder / "scalar.onnx")


def write_dicts(folder: Path) -> None:
    """A classifier as skl2onnx exports it: its second output is a list of dicts."""
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["N", 2])
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    dicts = helper.make_value_info("dicts", helper.make_sequence_type_proto(kind))
    nodes = [
        helper.make_node("Softmax", ["X"], ["p"], axis=1),
        helper.make_node("ZipMap", ["p"], ["dicts"], domain="ai.onnx.ml", classlabels_int64s=[3, 5]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "net", [x], [dicts])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "dicts.onnx")


SCRIPTS = {
    "weights": """
        options = ort.SessionOptions()
        w = ort.OrtValue.ortvalue_from_numpy(np.array([[1, 0], [0, 1], [3, 4]], np.float32))
        options.add_initializer("w", w)
        session = ort.InferenceSession("net.onnx", sess_options=options, providers=["CPUExecutionProvider"])
        result = session.run(None, {"x": x})
    """,
    "external weights": """
        options = ort.SessionOptions()
        names = ["w", "b"]
        arrays = [np.full((3, 2), 2, np.float32), np.array([-1, 1], np.float32)]
        options.add_external_initializers(names, [ort.OrtValue.ortvalue_from_numpy(a) for a in arrays])
        session = ort.InferenceSession("outside.onnx", options, providers=["CPUExecutionProvider"])
        result = session.run(None, {"x": x})
    """,
    "files in memory": """
        data = Path("outside.data").read_bytes()
        Path("outside.data").unlink()
        options = ort.SessionOptions()
        options.add_external_initializers_from_files_in_memory(["outside.data"], [data], [len(data)])
        session = ort.InferenceSession(Path("outside.onnx").read_bytes(), options, ["CPUExecutionProvider"])
        result = session.run(None, {"x": x})
    """,
    "folder of files": """
        import os

        content, folder = Path("outside.onnx").read_bytes(), os.getcwd()
        os.makedirs("elsewhere", exist_ok=True)
        os.chdir("elsewhere")
        options = ort.SessionOptions()
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        result = session.run(None, {"x": x})
        os.chdir(folder)
    """,
    "optimized model": """
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = "made.onnx"
        options.add_free_dimension_override_by_name("N", 2)
        ort.InferenceSession("net.onnx", options, providers=["CPUExecutionProvider"])
        again = ort.InferenceSession("made.onnx", providers=["CPUExecutionProvider"])
        Path("made.onnx").unlink()
        result = [again.get_inputs()[0].shape, again.run(None, {"x": x})]
    """,
    "scalars": """
        session = ort.InferenceSession("scalar.onnx", providers=["CPUExecutionProvider"])
        result = [session.run(None, {"x": x, "rate": np.array(rate)}) for rate in (3, [3])]
    """,
    "types of outputs": """
        session = ort.InferenceSession("dicts.onnx", providers=["CPUExecutionProvider"])
        result = [(info.type, info.shape) for info in session.get_outputs()]
    """,
    "argument in words": """
        result = [str(info) for info in (*session.get_inputs(), *session.get_outputs())]
        result += [ort.OrtDevice.make("cpu", 0).device_type()]
    """,
    "missing inputs": """
        result = []
        for feed in ({}, {"y": x}):
            try:
                session.run(None, feed)
            except ValueError:
                result.append("missing")
    """,
    "other places of the names": """
        import onnxruntime.capi.onnxruntime_inference_collection as collection
        from onnxruntime.capi import _pybind_state as state
        from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, SessionOptions

        result = [collection.InferenceSession is ort.InferenceSession, issubclass(InvalidArgument, Exception)]
        result += [state.get_available_providers() == ort.get_available_providers(), hasattr(state, "NoSuchThing")]
        result += [SessionOptions is ort.SessionOptions]
    """,
    "keys of a profile": """
        import json

        options = ort.SessionOptions()
        options.enable_profiling = True
        session = ort.InferenceSession("net.onnx", options, providers=["CPUExecutionProvider"])
        session.run(None, {"x": x})
        events = json.loads(Path(session.end_profiling()).read_text())
        keys = {"cat", "name", "ph", "pid", "tid", "ts", "dur", "args"}
        result = [all(keys <= set(event) for event in events), {"Session", "Node"} <= {e["cat"] for e in events}]
    """,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_changes_one_import(name: str, tmp_path: Path) -> None:
    for write in (write_model, write_outside, write_scalar, write_dicts):
        write(tmp_path)
    text = SCRIPTS[name]
    theirs = run_script(text, "onnxruntime")
    write_outside_again(tmp_path)
    ours = text.replace("import onnxruntime.capi", "import trnrt.capi").replace("from onnxruntime.", "from trnrt.")
    assert_same(run_script(ours, "trnrt"), theirs)


def write_outside_again(folder: Path) -> None:
    """Undo what a script removed; onnx writes over no data file."""
    (folder / "outside.data").unlink(missing_ok=True)
    write_outside(folder)


def weights(**arrays: Any) -> trnrt.SessionOptions:
    options = trnrt.SessionOptions()
    for name, array in arrays.items():
        options.add_initializer(name, trnrt.OrtValue.ortvalue_from_numpy(array))
    return options


def test_weights_are_part_of_the_model(tmp_path: Path) -> None:
    """The reference has them, a cached plan of the file's own doesn't serve for them, and the name stays."""
    path, new = write_model(tmp_path), np.zeros((3, 2), np.float32)
    own = trnrt.InferenceSession(path).run(["h"], {"x": X})[0]
    session = trnrt.InferenceSession(path, weights(w=new))
    np.testing.assert_array_equal(session.run(["h"], {"x": X})[0], [[0.5, -0.25]] * 2)
    assert session.name == "net" and isinstance(session.serialized(), bytes)
    np.testing.assert_array_equal(trnrt.InferenceSession(path).run(["h"], {"x": X})[0], own)
    reference = onnxruntime.InferenceSession(session.serialized()).run(["h"], {"x": X})[0]
    np.testing.assert_array_equal(reference, [[0.5, -0.25]] * 2)


def test_numbers_of_the_other_byte_order_are_converted(tmp_path: Path) -> None:
    session = trnrt.InferenceSession(write_model(tmp_path))
    first, second = (session.run(None, {"x": x}) for x in (X, X.astype(">f4")))
    assert_same(second, first)


def test_numbers_of_python_lose_nothing(tmp_path: Path) -> None:
    write_scalar(tmp_path)
    session: Any = trnrt.InferenceSession(tmp_path / "scalar.onnx")
    np.testing.assert_array_equal(session.run(None, {"x": X, "rate": 3})[0], 3 * X)
    with pytest.raises(errors.InputError, match="'rate' is float64; the model wants int64"):
        session.run(None, {"x": X, "rate": 1.5})
    with pytest.raises(errors.InputError, match="'rate' is no array of int64"):
        session.run(None, {"x": X, "rate": 2**70})
    with pytest.raises(errors.InputError, match=r"'rate' has shape \[2\]"):
        session.run(None, {"x": X, "rate": np.array([1, 2])})


MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str, str]] = {
    "an unknown weight": (
        lambda: trnrt.InferenceSession("net.onnx", weights(q=X)), errors.OptionError, "no weight 'q'", "'w', 'b'"
    ),
    "a weight of another shape": (
        lambda: trnrt.InferenceSession("net.onnx", weights(w=X)), errors.OptionError,
        r"'w' is float \[3, 2\]; the value given for it is float \[2, 3\]", "same dtype and shape",
    ),
    "a weight that is no value": (
        lambda: trnrt.SessionOptions().add_initializer("w", X),  # type: ignore[arg-type]
        errors.OptionError, "is of type ndarray", "ortvalue_from_numpy",
    ),
    "lists of different lengths": (
        lambda: trnrt.SessionOptions().add_external_initializers(["w"], []),
        errors.OptionError, "1 names, 0 values", "one of each",
    ),
    "no folder for the optimised model": (
        lambda: open_with("optimized_model_filepath", "none/made.onnx"), errors.OptionError, "no folder", "make it"
    ),
    "a number as a text": (
        lambda: open_with("intra_op_num_threads", "4"), errors.OptionError, "is '4', of type str", "give an int"
    ),
    "no such level": (
        lambda: open_with("graph_optimization_level", 7), errors.OptionError, "is 7", "another of its members"
    ),
    "no switch": (
        lambda: open_with("enable_profiling", "yes"), errors.OptionError, "is 'yes'", "True or False"
    ),
    "no path": (lambda: open_with("logid", 3), errors.OptionError, "is 3", "give a str"),
    "a class of options": (
        lambda: trnrt.InferenceSession("net.onnx", trnrt.SessionOptions), errors.OptionError,
        "sess_options is of type type", r"SessionOptions\(\)",
    ),
    "providers in the place of options": (
        lambda: trnrt.InferenceSession("net.onnx", ["CPUExecutionProvider"]), errors.OptionError,
        "sess_options is of type list", r"providers=\[",
    ),
    "no severity": (lambda: trnrt.set_default_logger_severity(9), errors.OptionError, "severity is 9", "0 "),
    "an array alone": (lambda: run(X), errors.InputError, "output_names is of type ndarray", "second argument"),
    "a dict alone": (lambda: run({"x": X}), errors.InputError, "output_names is of type dict", "second argument"),
    "an output's number": (lambda: run([3], {"x": X}), errors.InputError, "no output 3", "'?y'?, '?h'?"),
    "an input's number": (lambda: run(None, {3: X}), errors.InputError, "no input 3", "x"),
    "a feed of nothing": (lambda: run(None, {"x": None}), errors.InputError, "'x' is None", "array of float32"),
    "a run that replaces a weight": (
        lambda: run(None, {"x": X, "w": X}), errors.InputError, "no input 'w'", "'w' is a weight, .*add_initializer"
    ),
    "no callback": (
        lambda: trnrt.InferenceSession("net.onnx").run_async(None, {"x": X}, None, None),  # type: ignore[arg-type]
        errors.OptionError, "callback is of type NoneType", "function",
    ),
    "short data": (lambda: open_in_memory(b"12"), errors.ModelFileError, "which has only 2 bytes", "cut short"),
}  # fmt: skip


def open_with(option: str, value: object) -> None:
    options = trnrt.SessionOptions()
    setattr(options, option, value)
    trnrt.InferenceSession("net.onnx", options)


def open_in_memory(content: bytes) -> None:
    write_outside(Path())
    options = trnrt.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["outside.data"], [content], [len(content)])
    trnrt.InferenceSession(Path("outside.onnx").read_bytes(), options)


def run(*given: Any) -> None:
    trnrt.InferenceSession("net.onnx").run(*given)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_with_a_way_out(name: str, tmp_path: Path) -> None:
    write_model(tmp_path)
    act, kind, message, hint = MISTAKES[name]
    with pytest.raises(kind, match=message) as caught:
        act()
    assert isinstance(caught.value, errors.TrnrtError)
    with pytest.raises(AssertionError, match=hint):
        raise AssertionError(caught.value.hint)


def test_values_set_as_other_types_are_kept_as_the_options_own(tmp_path: Path) -> None:
    options = trnrt.SessionOptions()
    options.enable_mem_pattern = 0  # type: ignore[assignment]
    options.graph_optimization_level = 1  # type: ignore[assignment]
    options.intra_op_num_threads = np.int64(3)  # type: ignore[assignment]
    options.profile_file_prefix = tmp_path / "mine"  # type: ignore[assignment]
    assert options.enable_mem_pattern is False
    assert options.graph_optimization_level is trnrt.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert json.dumps(options.intra_op_num_threads) == "3"
    assert options.profile_file_prefix == str(tmp_path / "mine")


def test_options_that_are_wrong_are_invalid_arguments() -> None:
    with pytest.raises(trnrt.capi.onnxruntime_pybind11_state.InvalidArgument):
        trnrt.SessionOptions().add_free_dimension_override_by_name("N", 0)
