"""Scripts written for onnxruntime, run twice: as they are, and with the import exchanged. Both must end with the same.

They follow what public code does with this interface: bindings with addresses and values, callbacks, profiles that are
summed by operator, metadata that holds labels, options for threads, providers that are filtered by availability.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from exchanging import assert_same, run_script, write_model

from trnrt.errors import InterfaceWarning
from trnrt.ort.ignoring import forget_warnings

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own, in a folder of its own, and hears each warning anew."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    forget_warnings()


SCRIPTS = {
    "keywords": """
        session = ort.InferenceSession(path_or_bytes=Path("net.onnx").read_bytes(), sess_options=ort.SessionOptions(),
                                       providers=["CPUExecutionProvider"], provider_options=[{}])
        feed = {session.get_inputs()[0].name: x}
        result = session.run(output_names=[o.name for o in session.get_outputs()], input_feed=feed, run_options=None)
    """,
    "options": """
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.enable_mem_pattern = False
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        ort.set_default_logger_severity(3)
        session = ort.InferenceSession("net.onnx", options, ["CPUExecutionProvider"])
        run_options = ort.RunOptions()
        run_options.log_severity_level = 3
        run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        kept = session.get_session_options()
        result = [
            session.run(None, {"x": x}, run_options), kept.intra_op_num_threads, kept.enable_mem_pattern,
            kept.get_session_config_entry("session.intra_op.allow_spinning"), int(kept.graph_optimization_level),
            str(kept.execution_mode), kept.log_severity_level,
        ]
    """,
    "metadata": """
        import ast

        meta = session.get_modelmeta()
        names = ast.literal_eval(meta.custom_metadata_map["names"])
        result = [
            names[int(session.run(["h"], {"x": x})[0][0].argmax())], dict(meta.custom_metadata_map),
            meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.graph_description, meta.version,
        ]
    """,
    "signature": """
        result = [(i.name, list(i.shape), i.type) for i in (*session.get_inputs(), *session.get_outputs())]
        result += [str(session.get_inputs()[0]).startswith("NodeArg(name='x'"), session.get_overridable_initializers()]
    """,
    "binding of arrays": """
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("h")
        binding.bind_output("y", "cpu")
        x[0, 0] = 5  # a binding reads the numbers that are there when it runs
        answer = session.run_with_iobinding(binding)
        result = [answer, binding.copy_outputs_to_cpu(), [v.numpy().copy() for v in binding.get_outputs()]]
        x[1] = 0
        session.run_with_iobinding(binding)
        result += [binding.copy_outputs_to_cpu()]
        binding.clear_binding_outputs()
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        result += [binding.copy_outputs_to_cpu(), len(binding.get_outputs())]
    """,
    "binding of addresses": """
        y = np.empty((2, 2), np.float32)
        binding = session.io_binding()
        binding.bind_input(name="x", device_type="cpu", device_id=0, element_type=np.float32, shape=tuple(x.shape),
                           buffer_ptr=x.ctypes.data)
        binding.bind_output(name="y", device_type="cpu", device_id=0, element_type=np.float32, shape=(2, 2),
                            buffer_ptr=y.ctypes.data)
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        first = y.copy()
        x *= 2
        session.run_with_iobinding(binding, ort.RunOptions())
        result = [first, y, binding.get_outputs()[0].data_ptr() == y.ctypes.data]
    """,
    "binding of values": """
        value = ort.OrtValue.ortvalue_from_numpy(x)
        place = ort.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32, "cpu", 0)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_ortvalue_output("y", place)
        session.run_with_iobinding(binding)
        result = [place.numpy().copy()]
        value.update_inplace(np.ascontiguousarray(x[::-1] * 3))
        session.run_with_iobinding(binding)
        result += [place.numpy().copy(), x]  # x shares the value's memory
    """,
    "values": """
        value = ort.OrtValue.ortvalue_from_numpy(x)
        whole = ort.OrtValue.ortvalue_from_shape_and_type([3], 7)
        half = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.arange(4, dtype=np.uint16), 16)
        result = [
            (v.shape(), v.data_type(), v.element_type(), v.device_name(), v.is_tensor(), v.has_value(),
             v.is_tensor_sequence(), v.is_sparse_tensor()) for v in (value, whole, half)
        ]
        result += [value.tensor_size_in_bytes(), value.data_ptr() == x.ctypes.data, whole.numpy().dtype.name]
        result += [[v.numpy().copy() for v in session.run_with_ort_values(["y", "h"], {"x": value})]]
        result += [[v.numpy().copy() for v in session.run_with_ort_values(None, {"x": value}, ort.RunOptions())]]
        result += [session.run(None, {"x": value}), np.from_dlpack(ort.OrtValue.from_dlpack(x))]
    """,
    "asynchronous": """
        import threading

        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        session = ort.InferenceSession("net.onnx", options, providers=["CPUExecutionProvider"])

        class Waiting:
            def __init__(self):
                self.done, self.outputs, self.error = threading.Event(), None, None

        def fill(outputs, waiting, error):
            waiting.outputs, waiting.error = outputs, error
            waiting.done.set()

        good, bad = Waiting(), Waiting()
        session.run_async(["y"], {"x": x}, fill, good)
        assert good.done.wait(60)
        session.run_async(["y"], {"x": x[0]}, fill, bad)
        assert bad.done.wait(60)
        result = [good.outputs, good.error, bad.outputs, bool(bad.error)]
    """,
    "profile": """
        import json
        import os

        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = os.path.abspath("mine")
        session = ort.InferenceSession("net.onnx", options, providers=["CPUExecutionProvider"])
        for _ in range(3):
            session.run(None, {"x": x})
        name = session.end_profiling()
        with open(name) as file:
            events = json.load(file)
        runs = [event for event in events if event.get("name") == "model_run" and "dur" in event]
        nodes = [event for event in events if event.get("cat") == "Node"]
        by_operator = {}
        for event in nodes:
            operator = event.get("args", {}).get("op_name", "unknown")
            by_operator[operator] = by_operator.get(operator, 0) + event["dur"]
        inside = [event for event in nodes if event["ts"] >= runs[-1]["ts"]]
        result = [
            len(runs), os.path.basename(name).startswith("mine_20"), session.end_profiling(),
            sum(by_operator.values()) > 0, 
            {event["args"]["provider"] for event in nodes} == set(session.get_providers()),
            all(event["name"].endswith("_kernel_time") for event in nodes), 0 < len(inside) < len(nodes),
            session.get_profiling_start_time_ns() > 0,
        ]
    """,
    "open sizes": """
        options = ort.SessionOptions()
        options.add_free_dimension_override_by_name("N", 2)
        options.add_free_dimension_override_by_name("other", 5)
        session = ort.InferenceSession("net.onnx", options, providers=["CPUExecutionProvider"])
        result = [session.get_inputs()[0].shape, session.get_outputs()[0].shape, session.run(None, {"x": x})]
    """,
    "errors by name": """
        state, result = ort.capi.onnxruntime_pybind11_state, []
        for names, feeds in ((None, {"x": x.astype(np.float64)}), (None, {"x": x[0]}), (["none"], {"x": x})):
            try:
                session.run(names, feeds)
            except ort.capi.onnxruntime_pybind11_state.InvalidArgument:
                result.append("invalid")
        for model in ("none.onnx", b"no model"):
            try:
                ort.InferenceSession(model)
            except state.NoSuchFile:
                result.append("no file")
            except (state.InvalidProtobuf, state.Fail):
                result.append("no model")
        stop = ort.RunOptions()
        stop.terminate = True
        try:
            session.run(None, {"x": x}, stop)
        except state.Fail:
            result.append("stopped")
    """,
    "absent names": """
        options = ort.SessionOptions()
        try:
            options.intra_op_threads = 2
            result = ["taken"]
        except AttributeError:
            result = ["no such option"]
        result += [hasattr(ort, "NoSuchThing"), hasattr(session, "no_such_method"), hasattr(options, "none")]
        result += [isinstance(session.run(None, {"x": x})[0], ort.SparseTensor), ort.has_collective_ops()]
    """,
    "providers": """
        wanted = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider")
                  if name in ort.get_available_providers()]
        session = ort.InferenceSession("net.onnx", providers=wanted)
        session.disable_fallback()
        result = [wanted, ort.get_device(), set(session.get_providers()) == set(session.get_provider_options()),
                  set(session.get_providers()) <= set(ort.get_available_providers()) <= set(ort.get_all_providers())]
        session.set_providers(session.get_providers())
        result += [session.run(None, {"x": x})]
    """,
    "copies": """
        source, target = (ort.OrtValue.ortvalue_from_numpy(a) for a in (x, np.zeros_like(x)))
        target.update_inplace(source.numpy())
        made = session.create_ortvalue_from_shape_and_type([4, 1], np.int64, "cpu")
        result = [target.numpy().copy(), made.shape(), made.data_type()]
        result += [ort.OrtDevice.make("cpu", 0).device_id()]
    """,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_changes_one_import(name: str, tmp_path: Path) -> None:
    write_model(tmp_path)
    theirs = run_script(SCRIPTS[name], "onnxruntime")
    assert_same(run_script(SCRIPTS[name], "trnrt"), theirs)


def test_a_classifier_of_pictures_changes_one_import(tmp_path: Path) -> None:
    """The digits' CNN, with a binding that stays for many batches, as a loop over a camera's frames has it."""
    images = np.load(MODELS / "digits_test.npz")["image"][:6]
    text = f"""
        session = ort.InferenceSession({str(MODELS / "digits_cnn.onnx")!r}, providers=["CPUExecutionProvider"])
        images = np.load({str(tmp_path / "images.npy")!r})
        binding = session.io_binding()
        frame = ort.OrtValue.ortvalue_from_numpy(images[:2].copy())
        binding.bind_ortvalue_input(session.get_inputs()[0].name, frame)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        result = []
        for k in range(0, 6, 2):
            frame.update_inplace(images[k : k + 2])
            session.run_with_iobinding(binding)
            result.append(dict(zip((o.name for o in session.get_outputs()), binding.copy_outputs_to_cpu()))["logits"])
    """
    np.save(tmp_path / "images.npy", images)
    write_model(tmp_path)
    assert_same(run_script(text, "trnrt"), run_script(text, "onnxruntime"))


def test_what_is_ignored_is_named_once(tmp_path: Path) -> None:
    import trnrt

    path = write_model(tmp_path)
    options = trnrt.SessionOptions()
    options.intra_op_num_threads = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    with pytest.warns(InterfaceWarning) as caught:
        trnrt.InferenceSession(path, options, providers=["CUDAExecutionProvider"])
    assert [str(warning.message) for warning in caught] == [
        "trnrt ignores SessionOptions.intra_op_num_threads (the simulator and the device have no such threads); the "
        "config entry session.disable_prepacking (no such key means anything here). See docs/onnxruntime-api.md",
        "trnrt ignores the provider CUDAExecutionProvider (trnrt computes on its own: "
        "TrnrtSimulatorExecutionProvider). See docs/onnxruntime-api.md",
    ]
    assert {warning.filename for warning in caught} == {__file__}
    trnrt.InferenceSession(path, options, providers=["CUDAExecutionProvider"])  # silent: each name warns once
    options.inter_op_num_threads = 2
    options.log_severity_level = 3
    trnrt.InferenceSession(path, options)  # silent: only errors are wanted
    options.log_severity_level = -1
    with pytest.warns(InterfaceWarning, match=re.escape("SessionOptions.inter_op_num_threads")):
        trnrt.InferenceSession(path, options)
