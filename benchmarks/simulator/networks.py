"""Whole networks: trnrt's simulator against onnxruntime, each in its own process, in turns.

The nine networks in the onnx package, with random weights, float32, batch 1, warm, with one thread each; their peak
memory; and ResNet-50's time from import to its first answer, without and with the cache.

``python -m benchmarks.simulator.networks SYSTEM MODEL`` is one such process. It loads the model and runs it once, then
once per line on stdin, answering with seconds. At the end of stdin it answers with its peak memory in bytes.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean, median
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.measuring import Row

Array = NDArray[Any]

EACH, ALL, MEMORY = 20.0, 3.0, 3.0
FIRST_S, CACHED_S = 15.0, 4.0
COLD = "light_resnet50"
_SYSTEMS = ("trnrt", "onnxruntime")


def measure_networks(*, quick: bool = False, working: Callable[[str], Any]) -> list[Row]:
    """Rows for each network's time and memory, for their mean, and for ResNet-50's first answer.

    ``working`` makes the context to measure a network of that name in. ``quick``: three networks, few rounds.
    """
    paths = sorted(_folder().glob("light_*.onnx"), key=lambda path: path.stem)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in [p for p in paths if not quick or p.stem in (COLD, "light_squeezenet", "light_shufflenet")]:
            with working(path.stem):
                model = Path(folder) / path.name
                _write_randomized(path, model)
                rows += _compare_systems(model, rounds=3 if quick else 9)
                if path.stem == COLD:
                    rows += _cold(model, Path(folder) / "cache")
                model.unlink()
    times = [row.value for row in rows if row.unit == "x onnxruntime" and row.value is not None]
    return [*rows, Row("all networks, geometric mean", geometric_mean(times), "x onnxruntime", ALL)]


def _folder() -> Path:
    import onnx

    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def _write_randomized(source: Path, target: Path) -> None:
    """Write the network with new random weights, scaled to keep the size of activations."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(source)
    generator = np.random.default_rng(0)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes, drawn = [], []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in shapes:
            nodes.append(node)
            continue
        shape = tuple(int(size) for size in shapes[node.input[0]])
        spread = math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else 0.1
        numbers = generator.standard_normal(shape, np.float32) * np.float32(spread)
        # One number per channel may be a variance.
        drawn.append(numpy_helper.from_array(numbers if len(shape) > 1 else np.abs(numbers) + 0.5, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(drawn)
    # If an initializer is also an input, a caller could replace it: onnxruntime would not treat it as a constant.
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored and value.name not in shapes]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    onnx.save(model, target)


def _compare_systems(model: Path, rounds: int) -> list[Row]:
    """Runs in turns, and the peak memory of each process."""
    processes = {system: _start(system, model) for system in _SYSTEMS}
    taken: dict[str, list[float]] = {system: [] for system in _SYSTEMS}
    for system in _SYSTEMS:
        _answer(processes[system])
    for number in range(rounds):
        for system in _SYSTEMS if number % 2 == 0 else reversed(_SYSTEMS):
            _stdin(processes[system]).write("run\n")
            _stdin(processes[system]).flush()
            taken[system].append(_answer(processes[system])["seconds"])
    peaks = {}
    for system, process in processes.items():
        _stdin(process).close()
        peaks[system] = _answer(process)["peak"]
        process.wait()
    ours, theirs = (median(taken[system]) for system in _SYSTEMS)
    ratio = median(a / b for a, b in zip(*(taken[system] for system in _SYSTEMS), strict=True))
    told = f"{ours * 1e3:.0f} ms against {theirs * 1e3:.0f} ms"
    sizes = " against ".join(f"{peaks[system] / 2**20:.0f} MiB" for system in _SYSTEMS)
    return [
        Row(model.stem, ratio, "x onnxruntime", EACH, note=told),
        Row(f"{model.stem}, peak memory", peaks["trnrt"] / peaks["onnxruntime"], "x", MEMORY, note=sizes),
    ]


def _cold(model: Path, cache: Path) -> list[Row]:
    """Seconds from the start of a process, imports included, to the first answer: without a cache, and with it."""
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        process = _start("trnrt", model, cache)
        _answer(process)
        taken.append(time.perf_counter() - start)
        _stdin(process).close()
        process.wait()
    return [
        Row(f"{model.stem}, first answer", taken[0], "s", FIRST_S, note="a new process, nothing cached"),
        Row(f"{model.stem}, first answer from the cache", taken[1], "s", CACHED_S, note="a new process"),
    ]


def _start(system: str, model: Path, cache: Path | None = None) -> subprocess.Popen[str]:
    environment = os.environ | ({"TRNRT_CACHE": str(cache)} if cache is not None else {"TRNRT_CACHE_LIMIT": "0"})
    environment["OPENBLAS_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "benchmarks.simulator.networks", system, str(model)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _stdin(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a benchmark process ended early, with exit code {process.wait()}")
    answer: dict[str, float] = json.loads(line)
    return answer


def _runner(system: str, model: str) -> Callable[[], object]:
    """A function that runs the model on one random image."""
    if system == "trnrt":
        from trnrt.session import InferenceSession

        ours = InferenceSession(model, backend="simulator")
        feeds = ours.random_inputs(1)
        return lambda: ours.run(None, feeds)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # otherwise each unused constant of the light networks gives a warning
    options.intra_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (image,) = theirs.get_inputs()
    drawn: Array = np.random.default_rng(0).random(image.shape).astype(np.float32)
    return lambda: theirs.run(None, {image.name: drawn})


def _peak() -> int:
    """The peak memory of this process in bytes; getrusage would include the parent's before the fork."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition("VmHWM:")[2].split()[0]) * 1024


def main(arguments: list[str]) -> None:
    """One process: see the module's text."""
    run = _runner(*arguments)
    run()
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        start = time.perf_counter()
        run()
        sys.stdout.write(json.dumps({"seconds": time.perf_counter() - start}) + "\n")
        sys.stdout.flush()
    sys.stdout.write(json.dumps({"peak": _peak()}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
