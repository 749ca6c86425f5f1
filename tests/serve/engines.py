"""Engines for tests: models of a few nodes as files, and what a batcher runs when there is none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import uvloop
from numpy.typing import NDArray

from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.threads import ComputeThread
from trnrt.serve.hosting.waiting import Limits
from trnrt.serve.settings import ServeSettings

# What hangs fails after so long: far more than anything takes on a machine that is busy with something else.
PATIENCE_S = 120.0

Array = NDArray[Any]
Answer = TypeVar("Answer")


def run(work: Coroutine[Any, Any, Answer], seconds: float = PATIENCE_S) -> Answer:
    """Run a test's coroutine on the loop that the server has; what hangs fails."""

    async def limited() -> Answer:
        async with asyncio.timeout(seconds):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(limited())


def save(folder: Path, name: str, graph: str, opset: int = 17, **metadata: str) -> Path:
    """A model in ONNX's own text, as a file: ``(float[N,4] x) => (float[N,4] y) { y = Relu(x) }``."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\ng {graph}')
    for key, value in metadata.items():
        model.metadata_props.add(key=key.replace("__", "."), value=value)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


RELU = "(float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
# Large products that cancel: of equal numbers comes what rounding leaves of them, a thousandth and not 1e-5.
CANCELLING = """(float[N,4] x) => (float[N,4] y)
    <float[4,4] w = {1e5,1e5,1e5,1e5,-1e5,-1e5,-1e5,-1e5,1e5,1e5,1e5,1e5,-1e5,-1e5,-1e5,-1e5}> { y = MatMul(x, w) }"""
FIXED = "(float[4,3] x) => (float[4,3] y) { y = Relu(x) }"
MIXING = "(float[N,3] x) => (float[N,3] y) { y = Softmax<axis=0>(x) }"
FIXED_MIXING = "(float[4,3] x) => (float[4,3] y) { y = Softmax<axis=0>(x) }"
LAST_ROWS = """(float[N,3] x) => (float[M,3] y)
    <int64[1] s = {-3}, int64[1] e = {9223372036854775807}, int64[1] a = {0}>
    { y = Slice(x, s, e, a) }"""
NO_BATCH = "(float[3,4] x, float[2] z) => (float[3,4] y, float[2] w) { y = Relu(x)  w = Neg(z) }"
VARYING = "(float[N,L] x) => (float[N,L] y) { y = Relu(x) }"


def model_of(path: Path, metrics: Metrics | None = None, **settings: Any) -> ServedModel:
    """A model of a file, not loaded yet."""
    return ServedModel(path.stem, path, ServeSettings(**settings), metrics or Metrics())


async def loaded(path: Path, **settings: Any) -> ServedModel:
    """A model of a file, ready."""
    model = model_of(path, **settings)
    reason = await model.load()
    assert reason is None and model.state == "ready", reason
    return model


def numbers(*shape: int, seed: int = 0) -> Array:
    """Random float32 numbers around 0."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Doubling:
    """Doubles rows of ``x``, after ``seconds``, and remembers the rows of each run."""

    def __init__(self, seconds: float = 0.0, *, mergeable: bool = True) -> None:
        self.seconds, self.mergeable = seconds, mergeable
        self.parameters: tuple[str, ...] = ()
        self.runs: list[int] = []
        self.error: Callable[[Array], BaseException | None] = lambda _x: None
        self.gate = threading.Event()
        self.gate.set()

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, or what ``error`` says of the rows."""
        self.runs.append(len(feeds["x"]))
        assert self.gate.wait(PATIENCE_S), "nobody opened the gate"
        time.sleep(self.seconds)
        error = self.error(feeds["x"])
        if error is not None:
            raise error
        return {"y": feeds["x"] * 2}

    def bucket(self, rows: int) -> int:
        """The next power of two."""
        return 1 << (rows - 1).bit_length()

    def predicted_us(self, feeds: Mapping[str, NDArray[Any]], rows: int) -> float | None:
        """A microsecond a row."""
        return float(rows)

    def independent(self, feeds: Mapping[str, NDArray[Any]], rows: int) -> bool:
        """Rows are doubled one by one."""
        return True


def batcher_of(
    runnable: Doubling, *, rows: int = 8, delay_s: float = 0.05, queue: int = 100, slice_rows: int = 0
) -> Batcher:
    """A batcher of its own; to be made on a loop."""
    limits = Limits(rows, delay_s, queue, slice_rows)
    return Batcher("doubling", runnable, ComputeThread("test"), limits, Metrics())
