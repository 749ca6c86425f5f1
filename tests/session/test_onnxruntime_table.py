"""The table of onnxruntime's interface has every name of the installed one, and trnrt does what it says."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import parser
from onnxruntime_page import onnxruntime_page

import trnrt
from trnrt import errors
from trnrt.capi import onnxruntime_pybind11_state as own_state
from trnrt.errors import InterfaceWarning, NotSupportedError, OptionError, TrnrtError
from trnrt.ort.ignoring import forget_warnings
from trnrt.ort.options import NO_CPU_FALLBACK
from trnrt.ort.table import ABSENT_ERRORS, ERRORS, MODULE, TABLE, VERSION, Status, names_of

PAGE = Path(__file__).parents[2] / "docs" / "onnxruntime-api.md"
CLASSES = [owner for owner in TABLE if owner != MODULE]
X = np.ones((2, 3), np.float32)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own, and hears each warning anew."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    forget_warnings()


def net(batch: str = "N") -> bytes:
    """A Gemm over (batch, 3)."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]>\nnet (float[{batch},3] x) => (float[{batch},2] y)'
        "<float[3,2] w = {1,-1,2,0,-1,1}, float[2] b = {0.5,-0.25}> { y = Gemm(x, w, b) }"
    )
    return bytes(model.SerializeToString())


def public(owner: object) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


@pytest.mark.parametrize("owner", TABLE)
def test_the_table_has_every_name_of_onnxruntime(owner: str) -> None:
    place = onnxruntime if owner == MODULE else getattr(onnxruntime, owner)
    theirs = public(place)
    if owner in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder", "OrtAllocatorType", "OrtMemType"):
        theirs |= {"name", "value"}
    missing = theirs - set(TABLE[owner])
    # Submodules appear when another test imports them.
    assert {name for name in missing if not inspect.ismodule(getattr(place, name, None))} == set()
    if onnxruntime.__version__.startswith(f"{VERSION}."):
        assert set(TABLE[owner]) - theirs == set()


def test_the_table_has_every_error_of_onnxruntime() -> None:
    state = onnxruntime.capi.onnxruntime_pybind11_state
    theirs = {name for name, found in vars(state).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert theirs - {*ERRORS, *ABSENT_ERRORS} == set()
    for name, mine in ERRORS.items():
        assert getattr(own_state, name) is getattr(errors, mine)
    assert trnrt.capi.onnxruntime_pybind11_state is own_state
    assert not issubclass(own_state.NotFound, TrnrtError)


def test_the_page_is_generated() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(onnxruntime_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == onnxruntime_page()


def test_the_module_has_what_the_table_says() -> None:
    for name, entry in TABLE[MODULE].items():
        if entry.status is Status.internal:
            assert name not in trnrt._HOMES, name
        else:
            assert hasattr(trnrt, name), name
    assert set(trnrt._REFUSED) == set(names_of(MODULE, Status.refused))
    assert {name for name in TABLE[MODULE] if TABLE[MODULE][name].status in (Status.works, Status.ignored)} <= set(
        dir(trnrt)
    )


@pytest.mark.parametrize("name", names_of(MODULE, Status.refused))
def test_refused_names_of_the_module_say_why(name: str) -> None:
    found = getattr(trnrt, name)
    assert found is getattr(trnrt, name)
    with pytest.raises(NotSupportedError) as error:
        found("library.so")
    assert re.fullmatch(f"{name}: {TABLE[MODULE][name].note}", str(error.value))
    if isinstance(found, type):
        assert not isinstance(X, found)
        with pytest.raises(NotSupportedError, match=f"^{name}: "):
            found.anything()  # type: ignore[attr-defined]


def owners() -> dict[str, Any]:
    """An object of each class of the table."""
    session = trnrt.InferenceSession(net())
    return {
        "InferenceSession": session,
        "SessionOptions": trnrt.SessionOptions(),
        "RunOptions": trnrt.RunOptions(),
        "OrtValue": trnrt.OrtValue.ortvalue_from_numpy(X),
        "IOBinding": session.io_binding(),
        "ModelMetadata": session.get_modelmeta(),
        "NodeArg": session.get_inputs()[0],
        "OrtDevice": trnrt.OrtDevice.make("cpu", 0),
        "OrtMemoryInfo": trnrt.OrtMemoryInfo(),
        "GraphOptimizationLevel": trnrt.GraphOptimizationLevel.ORT_ENABLE_ALL,
        "ExecutionMode": trnrt.ExecutionMode.ORT_SEQUENTIAL,
        "ExecutionOrder": trnrt.ExecutionOrder.DEFAULT,
        "OrtAllocatorType": trnrt.OrtAllocatorType.INVALID,
        "OrtMemType": trnrt.OrtMemType.DEFAULT,
    }


def test_classes_have_what_the_table_says() -> None:
    for owner, found in owners().items():
        for name, entry in TABLE[owner].items():
            if entry.status is not Status.refused:
                assert hasattr(found, name), (owner, name)
                continue
            with pytest.raises(NotSupportedError) as caught:
                refused: Callable[..., Any] = getattr(found, name)
                refused(*[0] * required_parameters(refused))
            assert str(caught.value) == f"{owner}.{name}: {entry.note}"


def required_parameters(function: Callable[..., Any]) -> int:
    parameters = inspect.signature(function).parameters.values()
    return sum(parameter.default is inspect.Parameter.empty for parameter in parameters)


def test_constants_have_onnxruntimes_numbers() -> None:
    for owner in ("GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder", "OrtAllocatorType", "OrtMemType"):
        theirs = {name: int(value) for name, value in getattr(onnxruntime, owner).__members__.items()}
        assert {name: int(value) for name, value in getattr(trnrt, owner).__members__.items()} == theirs
        assert all(str(getattr(trnrt, owner)[name]).startswith(f"{owner}.") for name in theirs)


def test_options_have_onnxruntimes_defaults() -> None:
    for owner in ("SessionOptions", "RunOptions"):
        mine, theirs = getattr(trnrt, owner)(), getattr(onnxruntime, owner)()
        for name in TABLE[owner]:
            default = getattr(theirs, name)
            if not callable(default) and name != "profile_file_prefix":
                assert int(getattr(mine, name) or 0) == int(default or 0), name


FUNCTIONS: dict[str, tuple[object, ...]] = {
    "enable_telemetry_events": (),
    "set_default_logger_verbosity": (1,),
    "set_default_logger_callback": (print, 2),
    "set_global_thread_pool_sizes": (1, 1),
    "set_seed": (3,),
    "preload_dlls": (),
    "OrtArenaCfg": (0, -1, -1, -1),
    "create_and_register_allocator": (None, None),
    "create_and_register_allocator_v2": ("CPUExecutionProvider", None, {}, None),
}
METHODS: dict[str, tuple[object, ...]] = {
    "enable_fallback": (),
    "release_captured_graph": (),
    "set_ep_dynamic_options": ({},),
}
CHANGED = {
    "enable_cpu_mem_arena": False, "enable_mem_pattern": False, "enable_mem_reuse": False, "log_verbosity_level": 1,
    "execution_mode": trnrt.ExecutionMode.ORT_PARALLEL, "execution_order": trnrt.ExecutionOrder.PRIORITY_BASED,
    "graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, "inter_op_num_threads": 2,
    "intra_op_num_threads": 2, "use_per_session_threads": False, "logid": "mine", "only_execute_path_to_fetches": True,
}  # fmt: skip


def test_ignored_names_warn_once() -> None:
    session = trnrt.InferenceSession(net())
    assert set(FUNCTIONS) == set(names_of(MODULE, Status.ignored))
    assert set(METHODS) == set(names_of("InferenceSession", Status.ignored))
    calls = [(getattr(trnrt, name), name, given) for name, given in FUNCTIONS.items()]
    calls += [(getattr(session, name), f"InferenceSession.{name}", given) for name, given in METHODS.items()]
    for function, name, given in calls:
        with pytest.warns(InterfaceWarning, match=rf"^trnrt ignores {name} \(.*\)\. See docs/onnxruntime-api\.md$"):
            function(*given)
        function(*given)  # an error, if it warned again


def test_ignored_options_warn_if_they_are_changed() -> None:
    names = names_of("SessionOptions", Status.ignored)
    for name in names:
        options = trnrt.SessionOptions()
        if name == "set_load_cancellation_flag":
            options.set_load_cancellation_flag(True)
        else:
            setattr(options, name, CHANGED[name])
        with pytest.warns(InterfaceWarning, match=f"^trnrt ignores SessionOptions.{name} "):
            trnrt.InferenceSession(net(), options)
    session = trnrt.InferenceSession(net(), trnrt.SessionOptions())
    for name in names_of("RunOptions", Status.ignored):
        run_options = trnrt.RunOptions()
        setattr(run_options, name, CHANGED[name])
        with pytest.warns(InterfaceWarning, match=f"^trnrt ignores RunOptions.{name} "):
            session.run(None, {"x": X}, run_options)


def test_onnxruntimes_own_options_are_read() -> None:
    """A script may keep its import of onnxruntime for the options."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 3
    with pytest.warns(InterfaceWarning, match="SessionOptions.intra_op_num_threads"):
        session = trnrt.InferenceSession(net(), options)
    assert session.get_session_options().intra_op_num_threads == 3
    run_options = onnxruntime.RunOptions()
    run_options.terminate = True
    with pytest.raises(errors.InterruptedRunError):
        session.run(None, {"x": X}, run_options)
    for wrong in ({"intra_op_num_threads": 2}, "options"):
        with pytest.raises(OptionError, match="is of type"):
            trnrt.InferenceSession(net(), wrong)
        with pytest.raises(OptionError, match="run_options is of type"):
            session.run(None, {"x": X}, wrong)


def test_providers_choose_backend_and_options() -> None:
    name = "TrnrtSimulatorExecutionProvider"
    session = trnrt.InferenceSession(net(), providers=[(name, {"target": "TRN1", "dtype": "bf16"})])
    assert (session.backend, session.target, session.dtype) == ("simulator", "trn1", "bfloat16")
    assert session.get_provider_options() == {name: {"target": "trn1", "dtype": "bfloat16"}}
    session.set_providers([name], [{"dtype": "fp16"}])
    assert (session.target, session.dtype) == ("trn1", "float16")
    other = trnrt.InferenceSession(net(), None, [name, "CPUExecutionProvider"], [{"fallback": "onnxruntime"}, {}])
    assert other.get_providers() == [name, "CPUExecutionProvider"]
    assert trnrt.InferenceSession(net(), providers=[(name, {"dtype": "bf16"})], dtype="float32").dtype == "float32"
    with pytest.raises(errors.BackendError):
        trnrt.InferenceSession(net(), providers=["TrnrtNeuronExecutionProvider"])
    with pytest.raises(OptionError, match="has no option 'device_id'"):
        trnrt.InferenceSession(net(), providers=[(name, {"device_id": "0"})])
    with pytest.raises(OptionError, match="1 providers, and 2 provider_options"):
        trnrt.InferenceSession(net(), None, [name], [{}, {}])
    options = trnrt.SessionOptions()
    options.add_provider(name, {"target": "trn3"})
    assert options.has_providers() and trnrt.InferenceSession(net(), options).target == "trn3"


def test_a_session_that_forbids_the_cpu_has_no_fallback() -> None:
    options = trnrt.SessionOptions()
    options.add_session_config_entry(NO_CPU_FALLBACK, "1")
    trnrt.InferenceSession(net(), options)
    with pytest.raises(OptionError, match="options forbid the CPU"):
        trnrt.InferenceSession(net(), options, fallback="onnxruntime")


def test_memory_on_other_devices() -> None:
    session = trnrt.InferenceSession(net())
    with pytest.warns(InterfaceWarning, match="trnrt ignores the device 'cuda'"):
        value = trnrt.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    assert value.device_name() == "cpu"
    binding = session.io_binding()
    binding.bind_output("y", "cuda")
    with pytest.raises(NotSupportedError, match="an address on the device 'cuda' can't be read"):
        binding.bind_input("x", "cuda", 0, np.float32, (2, 3), X.ctypes.data)
    with pytest.raises(NotSupportedError, match="an address on the device 'cuda' can't be read"):
        binding.bind_output("y", "cuda", 0, np.float32, (2, 2), X.ctypes.data)


def test_mistakes_in_bindings_are_named() -> None:
    session = trnrt.InferenceSession(net())
    binding = session.io_binding()
    with pytest.raises(errors.InputError, match="the model has no input 'z'"):
        binding.bind_cpu_input("z", X)
    with pytest.raises(errors.InputError, match="the model has no output 'z'"):
        binding.bind_output("z")
    binding.bind_cpu_input("x", X)
    with pytest.raises(errors.InputError, match="no output is bound"):
        session.run_with_iobinding(binding)
    binding.bind_ortvalue_output("y", trnrt.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32))
    with pytest.raises(errors.InputError, match=r"the place bound for it is float32 \(3, 2\)"):
        session.run_with_iobinding(binding)
    assert binding.get_outputs() == []
    with pytest.raises(errors.InputError, match="has an address, and no shape"):
        binding.bind_output("y", buffer_ptr=X.ctypes.data)
    with pytest.raises(errors.InputError, match="the address is 0"):
        binding.bind_input("x", "cpu", 0, np.float32, (2, 3), 0)
    with pytest.raises(errors.InputError, match="99 is no element type"):
        binding.bind_input("x", "cpu", 0, 99, (2, 3), X.ctypes.data)


def test_sizes_by_denotation() -> None:
    import onnx

    model = onnx.load_from_string(net())
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options, theirs = trnrt.SessionOptions(), onnxruntime.SessionOptions()
    shapes = []
    for module, given in ((trnrt, options), (onnxruntime, theirs)):
        given.add_free_dimension_override_by_denotation("DATA_BATCH", 4)
        session = module.InferenceSession(model.SerializeToString(), given)
        shapes.append([list(info.shape) for info in (*session.get_inputs(), *session.get_outputs())])
    assert shapes[0] == shapes[1] == [[4, 3], [4, 2]]
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(OptionError, match="the DATA_BATCH of input 'x' is 2, not 4"):
        trnrt.InferenceSession(model, options)
    with pytest.raises(OptionError, match="would have the size 0"):
        options.add_free_dimension_override_by_name("N", 0)


def test_severity_silences_warnings() -> None:
    trnrt.set_default_logger_severity(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trnrt.set_seed(1)
    trnrt.set_default_logger_severity(2)
    with pytest.warns(InterfaceWarning, match="set_seed"):
        trnrt.set_seed(1)
