"""The simulator's overhead over numpy's and PyTorch's arithmetic, and the bars for it.

A case is a function from ``Effort`` to rows; ``CASES`` names them, each with its number of BLAS threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import Row, Run, in_turns, ratio, seconds
from benchmarks.simulator import kernels
from trnrt.nki.machine.execute import Executor
from trnrt.nki.sim.kernel import Kernel, Spec, simulate, trace

Array = NDArray[Any]

REPLAY_US = 10.0
COMPILED_PER_S = 30_000.0
MATMUL = {("float32", 1): 1.6, ("bfloat16", 1): 1.8, ("float32", 2): 2.2}
CONV_BY_ROWS = 4.0
FUSED_CONV = 3.0


@dataclass(frozen=True)
class Effort:
    """The sizes of the cases, and the number of measurements. The bars hold for the sizes given here."""

    rounds: int = 15
    slow_rounds: int = 5
    step_rounds: int = 250  # of 8 instructions each
    compiled_size: int = 2048  # 25,600 instructions
    matmul_size: int = 1024
    conv_images: tuple[int, int, int] = (4, 32, 16)
    fused_conv: tuple[int, int] = (256, 224)  # channels, rows and columns


QUICK = Effort(rounds=5, slow_rounds=2)

TARGET = "trn2"


def replay(effort: Effort) -> list[Row]:
    """Microseconds per instruction beyond the same arithmetic written in numpy by hand."""
    rounds = effort.step_rounds
    a, b = _random(128, 64), _random(128, 64)
    weights = _random(128, 128) / 128
    run = _make_replay(kernels.small_steps, a, b, weights, rounds)
    ours, theirs = in_turns([run, partial(numpy_small_steps, a, b, weights, rounds)], effort.rounds)
    beyond = median(x - y for x, y in zip(ours, theirs, strict=True)) / (8 * rounds + 3)
    by_hand = f"numpy's own arithmetic takes {median(theirs) / (8 * rounds + 3) * 1e6:.1f} us"
    return [Row("replay beyond numpy", beyond * 1e6, "us/instruction", REPLAY_US, note=by_hand)]


def numpy_small_steps(a: Array, b: Array, weights: Array, rounds: int) -> Array:
    """``kernels.small_steps`` in plain numpy."""
    x, y, product, w = a.copy(), np.empty_like(b), np.empty_like(a), weights.copy()
    column = np.empty((a.shape[0], 1), np.float32)
    half, zero = np.float32(0.5), np.float32(0)
    for _ in range(rounds):
        np.copyto(y, b)
        np.add(x, y, out=x)
        np.multiply(x, half, out=x)
        np.maximum(x, zero, out=x)
        np.max(x, axis=1, keepdims=True, out=column)
        np.matmul(w.T, x, out=product)
        np.copyto(y, product)
        np.subtract(y, column, out=x)
    return x.copy()


def compiling(effort: Effort) -> list[Row]:
    """Instructions per second, from a Python kernel to a checked program with addresses, and on to one ready to
    replay."""
    size = effort.compiled_size
    specs = (Spec((size, size), "float32"), Spec((size, size), "float32"), 64)
    compiled, bound = [], []
    for _ in range(effort.slow_rounds):
        start = time.perf_counter()
        program = trace(kernels.tiled_matmul, *specs, target=TARGET)
        compiled.append(time.perf_counter() - start)
        bound.append(seconds(partial(Executor, program)))
    count = len(program.instructions)
    ready = count / median(c + b for c, b in zip(compiled, bound, strict=True))
    what = f"{count:,} instructions, {median(compiled):.2f} s"
    return [
        Row("trace and compile", count / median(compiled), "instructions/s", COMPILED_PER_S, at_least=True, note=what),
        Row("trace, compile and bind", ready, "instructions/s", note="until it can replay"),
    ]


def matmul(dtype: str, threads: int, effort: Effort) -> list[Row]:
    """A warm tiled matmul against numpy's sgemm of the same size."""
    size = effort.matmul_size
    a, b = _random(size, size), _random(size, size)
    lhs_t, rhs = a.T.astype(_host(dtype), order="C"), b.astype(_host(dtype))
    run = simulate(kernels.tiled_matmul, target=TARGET)
    out = np.empty_like(a)
    found = ratio(lambda: run(lhs_t, rhs), lambda: np.matmul(a, b, out=out), effort.rounds)
    case = f"matmul {size}^3 {dtype}, {_threads(threads)}"
    return [_ratio_row(case, found, MATMUL[dtype, threads], "sgemm")]


def conv_by_rows(effort: Effort) -> list[Row]:
    """A convolution of one matmul per row and tap against the equivalent single sgemm."""
    count, height, width = effort.conv_images
    images, weights = _random(128, count, height + 2, width + 2), _random(128, 9, 128)
    patches, flat = _random(9 * 128, count * height * width), _random(128, 9 * 128)
    run = simulate(kernels.conv_by_rows, target=TARGET)
    out = np.empty((128, patches.shape[1]), np.float32)
    found = ratio(lambda: run(images, weights), lambda: np.matmul(flat, patches, out=out), effort.rounds)
    return [_ratio_row(f"conv 3x3 by rows, {count} images {height}x{width}", found, CONV_BY_ROWS, "sgemm")]


def fused_conv(effort: Effort) -> list[Row]:
    """trnrt's own convolution with bias, large, against PyTorch's."""
    channels, size = effort.fused_conv
    case = f"conv 3x3 {channels}->{channels}, {size}x{size}"
    if find_spec("torch") is None:
        return [Row(case, None, "x conv2d", FUSED_CONV, note="PyTorch is not installed")]
    image, weights, bias = _random(1, channels, size, size), _random(channels, channels, 3, 3), _random(channels)
    theirs = _pytorch_conv(image, weights, bias)
    found = ratio(_our_conv(image, weights, bias), theirs, effort.slow_rounds)
    return [_ratio_row(case, found, FUSED_CONV, "conv2d")]


def _our_conv(image: Array, weights: Array, bias: Array) -> Run:
    from benchmarks.simulator.fused import conv_kernel, prepared

    return _make_replay(conv_kernel, image, *prepared(weights, bias), keep=1)


def _pytorch_conv(image: Array, weights: Array, bias: Array) -> Run:
    import torch

    x, w, b = torch.from_numpy(image), torch.from_numpy(weights), torch.from_numpy(bias)

    def run() -> object:
        with torch.inference_mode():
            return torch.nn.functional.conv2d(x, w, b, padding=1)

    return run


@dataclass(frozen=True)
class Case:
    """A benchmark and its number of BLAS threads."""

    run: Callable[[Effort], list[Row]]
    threads: int


CASES: dict[str, Case] = {
    "replay": Case(replay, 1),
    "compiling": Case(compiling, 1),
    "matmul-float32": Case(partial(matmul, "float32", 1), 1),
    "matmul-bfloat16": Case(partial(matmul, "bfloat16", 1), 1),
    "matmul-two-threads": Case(partial(matmul, "float32", 2), 2),
    "conv-by-rows": Case(conv_by_rows, 1),
    "fused-conv": Case(fused_conv, 2),
}


def _make_replay(kernel: Kernel, *arguments: Any, keep: int | None = None) -> Run:
    """A function that replays the kernel; tensors after the first ``keep`` are loaded once, like weights."""
    executor = Executor(trace(kernel, *arguments, target=TARGET))
    arrays = [argument for argument in arguments if isinstance(argument, np.ndarray)]
    executor.run(arrays)
    given = arrays if keep is None else [*arrays[:keep], *[None] * (len(arrays) - keep)]
    return lambda: executor.run(given)


def _ratio_row(case: str, found: tuple[float, float, float], bar: float, yardstick: str) -> Row:
    value, ours, theirs = found
    return Row(case, value, f"x {yardstick}", bar, note=f"{ours * 1e3:.1f} ms against {theirs * 1e3:.1f} ms")


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _host(dtype: str) -> Any:
    from trnrt.nki.machine.dtypes import as_dtype

    return as_dtype(dtype).numpy


def _random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)
