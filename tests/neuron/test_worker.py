"""A NEFF in a worker process computes what its arrays say: with a fake nrtpy in a real second process."""

from __future__ import annotations

import ast
import gc
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from worker_machine import Machine, X, Y

from trnrt.backends import Array
from trnrt.errors import BackendError, DeviceError, InputError
from trnrt.neuron.worker import program
from trnrt.neuron.worker.client import NeffWorker
from trnrt.neuron.worker.starting import worker_environment
from trnrt.planner.plan import DeviceTensor

FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def worker(machine: Machine) -> Iterator[NeffWorker]:
    with machine.start() as started:
        yield started


def tensor(name: str, array: Array) -> DeviceTensor:
    return DeviceTensor(name, array.shape, array.dtype.name)


def test_the_script_needs_numpy_and_nrtpy_alone() -> None:
    """trnrt is not in the worker's environment."""
    tree = ast.parse(Path(program.__file__).read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {"numpy", "nrtpy"}


def test_a_product_with_weights(machine: Machine, worker: NeffWorker) -> None:
    rng = np.random.default_rng(1)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in [(8, 16), (16, 4), (1, 4)])
    # The NEFF lists its inputs in another order than we do.
    path = machine.neff(
        [("b", b.shape, "float32"), ("w", w.shape, "float32"), ("x", x.shape, "float32")],
        [("output_0", (8, 4), "float32")],
        ["x @ w + b"],
    )
    neff = worker.load(path, [tensor("x", x)], [DeviceTensor("y", (8, 4), "float32")], {"w": w, "b": b})
    for scale in (1, 2, 3):
        [result] = neff.run([x * np.float32(scale)], timeout_s=30)
        np.testing.assert_array_equal(result, (x * np.float32(scale)) @ w + b)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32", "uint16", "uint32"],
)
def test_every_bit_of_a_dtype_crosses(machine: Machine, worker: NeffWorker, dtype: str) -> None:
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bits = np.random.default_rng(2).integers(0, 256, 12 * numpy_dtype.itemsize, np.uint8)
    array = bits.view(numpy_dtype).reshape(3, 4)
    plain = f"uint{8 * numpy_dtype.itemsize}"
    path = machine.neff(
        [("x", (3, 4), plain), ("w", (3, 4), plain)],
        [("output_0", (3, 4), plain), ("output_1", (3, 4), plain)],
        ["x", "w"],
    )
    outputs = [DeviceTensor("first", (3, 4), dtype), DeviceTensor("second", (3, 4), dtype)]
    neff = worker.load(path, [DeviceTensor("x", (3, 4), dtype)], outputs, {"w": array[::-1]})
    first, second = neff.run([array], timeout_s=30)
    assert first.dtype == second.dtype == numpy_dtype
    assert first.tobytes() == array.tobytes() and second.tobytes() == array[::-1].tobytes()


@pytest.mark.parametrize("names", [("output_0", "output_1"), ("output_1", "output_0"), ("low", "high"), ("one", "two")])
def test_outputs_come_in_our_order(machine: Machine, worker: NeffWorker, names: tuple[str, str]) -> None:
    """By number, by our own names, or else by the NEFF's order."""
    compute = {"output_0": "x - 1", "low": "x - 1", "one": "x - 1"}
    path = machine.neff(
        [("x", (2, 3), "float32")],
        [(name, (2, 3), "float32") for name in names],
        [compute.get(name, "x + 1") for name in names],
    )
    outputs = [DeviceTensor(name, (2, 3), "float32") for name in ("low", "high")]
    low, high = worker.load(path, [X], outputs, {}).run([FLOATS], timeout_s=30)
    np.testing.assert_array_equal(low, FLOATS - 1)
    np.testing.assert_array_equal(high, FLOATS + 1)


def test_an_input_that_is_also_an_output(machine: Machine, worker: NeffWorker) -> None:
    inputs = [("w", (2, 3), "float32"), ("x.must_alias_input", (2, 3), "float32")]
    path = machine.neff(inputs, [("x", (2, 3), "float32")], ["x - w"])
    [result] = worker.load(path, [X], [Y], {"w": np.ones_like(FLOATS)}).run([FLOATS], timeout_s=30)
    np.testing.assert_array_equal(result, FLOATS - 1)


def test_results_are_arrays_of_their_own(machine: Machine, worker: NeffWorker) -> None:
    neff = worker.load(machine.double(), [X], [Y], {})
    [first] = neff.run([FLOATS], timeout_s=30)
    [second] = neff.run([np.asfortranarray(FLOATS + 1)], timeout_s=30)
    np.testing.assert_array_equal(first, 2 * FLOATS)
    np.testing.assert_array_equal(second, 2 * (FLOATS + 1))


def test_inputs_that_do_not_fit_are_refused(machine: Machine, worker: NeffWorker) -> None:
    neff = worker.load(machine.double(), [X], [Y], {})
    for wrong in ([], [FLOATS.T], [FLOATS.astype(np.float64)], [FLOATS, FLOATS]):
        with pytest.raises(InputError, match=r"k\.neff was given .*; it takes float32 \(2, 3\)"):
            neff.run(wrong, timeout_s=30)
    assert neff.run([FLOATS], timeout_s=30)[0][1, 2] == 10


def test_models_share_a_worker_and_its_memory(tmp_path: Path) -> None:
    """A model that was closed or dropped leaves room for another; weights are on the device once."""
    machine = Machine(tmp_path, memory=3000)
    weight = np.ones(512, np.float32)
    path = machine.neff(
        [("x", (2, 3), "float32"), ("w", (512,), "float32")], [("output_0", (2, 3), "float32")], ["x * w.sum()"]
    )
    with machine.start() as worker:
        neff = worker.load(path, [X], [Y], {"w": weight})
        small = worker.load(machine.double(name="small"), [X], [Y], {})
        with pytest.raises(DeviceError, match=r"no memory of the device.*NRT_RESOURCE"):
            worker.load(path, [X], [Y], {"w": weight})
        for _ in range(3):
            np.testing.assert_array_equal(neff.run([FLOATS], timeout_s=30)[0], 512 * FLOATS)
        neff.close()
        neff.close()
        with pytest.raises(DeviceError, match="it was closed"):
            neff.run([FLOATS], timeout_s=30)
        again = worker.load(path, [X], [Y], {"w": 2 * weight})
        del again
        gc.collect()
        again = worker.load(path, [X], [Y], {"w": 2 * weight})
        np.testing.assert_array_equal(again.run([FLOATS], timeout_s=30)[0], 1024 * FLOATS)
        np.testing.assert_array_equal(small.run([FLOATS], timeout_s=30)[0], 2 * FLOATS)


def test_threads_share_a_worker(machine: Machine, worker: NeffWorker) -> None:
    neffs = [worker.load(machine.double(name=f"k{k}"), [X], [Y], {}) for k in range(2)]
    wrong: list[int] = []

    def call(k: int) -> None:
        array = FLOATS + np.float32(k)
        wrong.extend(k for _ in range(20) if (neffs[k % 2].run([array], timeout_s=30)[0] != 2 * array).any())

    threads = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_worker_has_its_own_core(machine: Machine) -> None:
    with machine.start(0) as first, machine.start(1) as second:
        neffs = [worker.load(machine.double(), [X], [Y], {}) for worker in (first, second)]
        for neff in neffs:
            np.testing.assert_array_equal(neff.run([FLOATS], timeout_s=30)[0], 2 * FLOATS)
        with machine.start(1) as third, pytest.raises(DeviceError, match="another process has the NeuronCore"):
            third.load(machine.double(), [X], [Y], {})
    with machine.start(1) as fourth:
        fourth.load(machine.double(), [X], [Y], {})


@pytest.mark.parametrize(("mode", "events"), [("device", 2), ("host", 1)])
def test_benchmarks_are_nrtpys(machine: Machine, worker: NeffWorker, mode: str, events: int) -> None:
    neff = worker.load(machine.double(sleep=0.001, events=2), [X], [Y], {})
    result = neff.benchmark(warmup=2, iterations=3, mode=mode)
    assert (result.warmup_iterations, result.iterations, len(result.durations_ms)) == (2, 3 * events, 3 * events)
    assert 1 <= result.min_ms <= result.mean_ms <= result.max_ms and result.std_dev_ms >= 0


def test_benchmarks_that_nrtpy_refuses(machine: Machine, worker: NeffWorker) -> None:
    neff = worker.load(machine.double(events=0), [X], [Y], {})
    with pytest.raises(DeviceError, match="no device execution events"):
        neff.benchmark()
    with pytest.raises(DeviceError, match="mode is 'core'"):
        neff.benchmark(mode="core")
    with pytest.raises(DeviceError, match="benchmark_iter must be at least 1"):
        neff.benchmark(mode="host", iterations=0)
    assert neff.benchmark(mode="host").iterations == 5


NEFF_X = ("x", (2, 3), "float32")
NEFF_Y = ("output_0", (2, 3), "float32")


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([], [NEFF_Y], "it has 0 inputs, and 1 are expected"),
        ([NEFF_X], [NEFF_Y, ("output_1", (2, 3), "float32")], "it has 2 outputs, and 1 are expected"),
        ([("x", (3, 2), "float32")], [NEFF_Y], r"input 'x' is \(3, 2\) of 24 bytes, not \(2, 3\) of 24 bytes"),
        ([NEFF_X], [("output_0", (2, 3), "float16")], r"'output_0' is \(2, 3\) of 12 bytes, not \(2, 3\) of 24"),
        ([("z", (2, 4), "float32")], [NEFF_Y], r"'z' is \(2, 4\) of 32 bytes"),
    ],
)
def test_a_neff_of_another_plan_is_refused(
    machine: Machine, worker: NeffWorker, inputs: Any, outputs: Any, message: str
) -> None:
    path = machine.neff(inputs, outputs, ["numpy.zeros((2, 3))"] * len(outputs))
    with pytest.raises(BackendError, match=rf"k\.neff does not fit its plan: .*{message}.*Of the plan: \w \(2, 3\)"):
        worker.load(path, [X], [Y], {})
    assert worker.load(machine.double(), [X], [Y], {}).run([FLOATS], timeout_s=30)[0][0, 1] == 2


def test_inputs_without_known_names(machine: Machine, worker: NeffWorker) -> None:
    """Their order decides only if it can't swap two of one shape."""
    one, two = ("arg0", (2, 3), "float32"), ("arg1", (3,), "float32")
    path = machine.neff([one, two], [NEFF_Y], ["arg0 * arg1"])
    weight = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(worker.load(path, [X], [Y], {"w": weight}).run([FLOATS], 30)[0], FLOATS * weight)
    path = machine.neff([one, ("arg1", (2, 3), "float32")], [NEFF_Y], ["arg0 - arg1"])
    with pytest.raises(BackendError, match="none of the names is known, and several have one shape"):
        worker.load(path, [X], [Y], {"w": FLOATS})
    path = machine.neff([NEFF_X, two], [NEFF_Y], ["x * arg1"])
    with pytest.raises(BackendError, match="it has no input for 'w'"):
        worker.load(path, [X], [Y], {"w": weight})


def test_printing_does_not_disturb(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    with machine.start() as worker:
        neff = worker.load(machine.double(print="a line of a library"), [X], [Y], {})
        assert neff.run([FLOATS], timeout_s=30)[0][0, 1] == 2
    written = capfd.readouterr()
    assert "a line of a library" in written.err and "nrtpy: a library may print" in written.err
    assert written.out == ""


def test_the_environment_of_the_worker() -> None:
    own = {"PYTHONPATH": "/a", "VIRTUAL_ENV": "/b", "NEURON_RT_NUM_CORES": "2", "LD_LIBRARY_PATH": "/c", "HOME": "/d"}
    assert worker_environment(own, {"NEURON_LOGICAL_NC_CONFIG": "1"}) == {
        "LD_LIBRARY_PATH": "/opt/aws/neuron/lib:/c",
        "HOME": "/d",
        "NEURON_LOGICAL_NC_CONFIG": "1",
    }
    kept = {"LD_LIBRARY_PATH": "/e:/opt/aws/neuron/lib"}
    assert worker_environment(kept, {}) == kept
    assert worker_environment({}, {}) == {"LD_LIBRARY_PATH": "/opt/aws/neuron/lib"}


def test_a_message_of_any_size() -> None:
    message = {"text": "\N{SNOWMAN}" * 400_000}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=program.send, args=(ours, message))
        thread.start()
        assert program.receive(theirs) == message
        thread.join()
        ours.sendall(b"\0\0\1\0{")  # a message of 256 bytes, of which one comes
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            program.receive(theirs)
