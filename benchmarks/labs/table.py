"""The cases: published measurements, the labs' limits, and the targets of our kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np

from benchmarks.comparing import Figure
from benchmarks.kernels.entries import addition, convolution
from benchmarks.labs import entries
from benchmarks.labs.cases import FLEET_FACTOR, FLEET_SHARE, LARGE, Array, Case, Tolerance, measured
from trnrt.calibration.cases import Clock as DeviceClock
from trnrt.kernels.conv.labs_conv import conv2d_bias_pool
from trnrt.kernels.matmul import matmul, matmul_blocked
from trnrt.nki.machine.dtypes import as_dtype

Shapes = Sequence[tuple[int, ...]]

_TOLERANCES = {"float32": Tolerance(1e-5, 1e-8), "float16": Tolerance(1e-2, 1e-4), "bfloat16": Tolerance(2e-2, 1e-2)}
_CS149 = "CS149 assignment 4, a student's kernel"
_TUTORIAL = "the SDK's matrix multiplication tutorial, fully optimized"
_AUTOCOMP = "ucb-bar/autocomp, examples/trn-tutorial/1_gemm_trace.py, the last of six steps"
_TUNED = "a hand-tuned kernel, 89.5 % of the peak"
_FLEET = re.compile(r"in(\d+)_out(\d+)_filter(\d)x\d_batch(\d+)_(\d+)x(\d+)_(\w+)")


def _addition() -> Case:
    size = 256_000
    return Case(
        name="vector addition 256,000",
        target="trn2",
        dtype="float32",
        clock="profiler",
        kernel=addition,
        shapes=((size,), (size,)),
        reference=np.add,
        hbm_bytes=3 * size * 4,
        measured=(measured(26.4, "profiler", _CS149),),
        target_us=25.5,
        against=entries.streamed_addition,
        tolerance=Tolerance(1e-6, 0),
    )


def _transpose() -> Case:
    side = 1024
    return Case(
        name="transpose 1024x1024",
        target="trn2",
        dtype="float32",
        clock="profiler",
        kernel=entries.matrix_transpose,
        shapes=((side, side),),
        reference=np.transpose,
        hbm_bytes=2 * side * side * 4,
        measured=(measured(46.5, "profiler", _CS149),),
        target_us=42.0,
        against=entries.transpose_by_tiles,
        tolerance=Tolerance(0, 1e-30),
    )


def _product(lhs: Array, rhs: Array) -> Array:
    result: Array = lhs.T @ rhs
    return result


def _matmul(target: str, m: int, k: int, n: int, clock: DeviceClock, **bars: Any) -> Case:
    return Case(
        name=f"matmul [{m},{k}]x[{k},{n}]",
        target=target,
        dtype="bfloat16",
        clock=clock,
        kernel=matmul,
        shapes=((k, m), (k, n)),
        reference=_product,
        flops=2.0 * m * k * n,
        hbm_bytes=2 * (m * k + k * n + m * n),
        tolerance=_TOLERANCES["bfloat16"],
        **bars,
    )


def _predict_class(x: Array, w1: Array, b1: Array, w2: Array, b2: Array) -> Array:
    result: Array = (np.maximum(x @ w1 + b1, 0) @ w2 + b2).argmax(axis=1)[:, None]
    return result


def _draw_centred(generator: np.random.Generator, shapes: Shapes) -> list[Array]:
    """Centred numbers, so that the classes differ: with positive weights the same one would win in every row."""
    return [generator.standard_normal(shape) / np.sqrt(shape[0]) for shape in shapes]


def _feed_forward(dtype: str, target_us: float) -> Case:
    rows, features, hidden, classes = 2048, 4096, 8192, 2048
    item = as_dtype(dtype).itemsize
    weights = features * hidden + hidden * classes
    return Case(
        name=f"feed-forward predict {rows}x{features}->{hidden}->{classes}",
        target="trn1",
        dtype=dtype,
        clock="benchmark",
        kernel=entries.feed_forward_predict,
        shapes=((rows, features), (features, hidden), (1, hidden), (hidden, classes), (1, classes)),
        reference=_predict_class,
        flops=2.0 * rows * weights,
        hbm_bytes=item * (rows * features + weights) + 4 * rows,
        target_us=target_us,
        draw=_draw_centred,
        tolerance=Tolerance(0, 0.5),
    )


def convolve(x: Array, w: Array, bias: Array, pool: int = 1) -> Array:
    """The convolution without padding, a product for each tap, and the maxima of its windows."""
    images, _, height, width = x.shape
    outputs, _, rows, columns = w.shape
    size = (height - rows + 1, width - columns + 1)
    result = np.broadcast_to(bias[:, None, None], (images, outputs, *size)).copy()
    for i in range(rows):
        for j in range(columns):
            part = x[:, :, i : i + size[0], j : j + size[1]].reshape(images, x.shape[1], -1)
            result += (w[:, :, i, j] @ part).reshape(result.shape)
    kept = result[:, :, : size[0] // pool * pool, : size[1] // pool * pool]
    windows = kept.reshape(images, outputs, size[0] // pool, pool, size[1] // pool, pool)
    largest: Array = windows.max(axis=(3, 5))
    return largest


def _lab_inputs(generator: np.random.Generator, shapes: Shapes) -> list[Array]:
    """X and W in [0, 1), the bias in [0, 50), as the lab draws them."""
    return [generator.random(shape) * (50 if len(shape) == 1 else 1) for shape in shapes]


def _conv(
    name: str,
    target: str,
    dtype: str,
    sizes: tuple[int, ...],
    clock: DeviceClock = "benchmark",
    pool: int = 1,
    **bars: Any,
) -> Case:
    """``sizes``: images, channels, outputs, side of the filter, rows, columns."""
    images, channels, outputs, taps, rows, columns = sizes
    result = (rows - taps + 1) * (columns - taps + 1)
    elements = images * channels * rows * columns + outputs * channels * taps**2 + images * outputs * result // pool**2
    return Case(
        name=name,
        target=target,
        dtype=dtype,
        clock=clock,
        kernel=conv2d_bias_pool,
        shapes=((images, channels, rows, columns), (outputs, channels, taps, taps), (outputs,)),
        reference=lambda x, w, b: convolve(x, w, b, pool),
        flops=2.0 * images * outputs * channels * taps**2 * result,
        hbm_bytes=elements * as_dtype(dtype).itemsize,
        run=images * result,
        taps=taps**2,
        options={"pool": pool},
        draw=_lab_inputs,
        tolerance=_TOLERANCES[dtype],
        **bars,
    )


def _large_convs() -> list[Case]:
    sizes = (1, 256, 256, 3, 224, 224)
    name, pooled = "conv 256->256 3x3 224x224", "conv 256->256 3x3 224x224, 2x2 pool"
    half: dict[str, Any] = {"target_us": 775.0, "share_target": 0.95, "limit_us": 1002.0}
    full: dict[str, Any] = {"target_us": 3040.0, "share_target": 0.97, "limit_us": 4596.0}
    return [
        _conv(name, "trn2", "float16", sizes, measured=_convs(824.0, 782.8), **half),
        _conv(pooled, "trn2", "float16", sizes, pool=2, measured=_convs(825.0, 781.0), **half),
        _conv(name, "trn2", "float32", sizes, measured=_convs(3832.0, 3020.0), **full),
        _conv(pooled, "trn2", "float32", sizes, pool=2, measured=_convs(3830.0), **full),
        _conv(name, "trn1", "float16", sizes, measured=_convs(1060.0), limit_us=1300.0, target_us=790.0),
        _conv(name, "trn1", "float32", sizes, measured=_convs(3681.0), limit_us=4300.0, target_us=3100.0),
    ]


def _convs(benchmark_us: float, profiler_us: float | None = None) -> tuple[Figure, ...]:
    """A student's kernel by a benchmark, and the fastest public profile if there is one."""
    found = [measured(benchmark_us, "benchmark", _CS149)]
    if profiler_us is not None:
        found.append(measured(profiler_us, "profiler", f"{_CS149}, the fastest public profile"))
    return tuple(found)


def _convolve_prepared(x: Array, w: Array) -> Array:
    """The convolution of 3 x 3 whose weights are (P, B, T, O), as the planner prepares them."""
    natural = w.transpose(3, 1, 0, 2).reshape(w.shape[3], x.shape[1], 3, 3)
    return convolve(x, natural, np.zeros(w.shape[3]))


def _small_convs() -> list[Case]:
    sizes = (1, 256, 256, 3, 32, 16)
    name = "conv 256->256 3x3 32x16"
    natural = _conv(
        name, "trn2", "float16", sizes, "profiler", measured=(measured(40.0, "profiler", _CS149),), target_us=38.0
    )
    prepared = replace(
        natural,
        name=f"{name}, prepared weights",
        kernel=convolution,
        shapes=((1, 256, 32, 16), (128, 2, 9, 256)),
        reference=_convolve_prepared,
        options={"taps": 3},
        taps=0,
        measured=(),  # the published kernel had to reorder its weights
        target_us=32.0,
    )
    return [
        natural,
        prepared,
        _conv(
            name, "trn2", "float32", sizes, "profiler", measured=(measured(56.9, "profiler", _CS149),), target_us=54.0
        ),
    ]


def _fleet() -> list[Case]:
    """The fleet of the second lab. It has limits but no measurements; our target is a multiple of the bound."""
    text = (files(__package__) / "fleet.json").read_text(encoding="utf-8")
    cases = []
    for name, limit in json.loads(text)["limits_us"].items():
        found = _FLEET.fullmatch(name)
        assert found is not None, name
        channels, outputs, taps, images, rows, columns = map(int, found.groups()[:6])
        case = _conv(name, "trn1", found[7], (images, channels, outputs, taps, rows, columns), limit_us=limit)
        share = FLEET_SHARE if case.flops > LARGE else None
        cases.append(replace(case, factor=FLEET_FACTOR, share_target=share))
    return cases


CASES: tuple[Case, ...] = (
    _addition(),
    _transpose(),
    _matmul(
        "trn2",
        2048,
        2048,
        2048,
        "profiler",
        measured=(measured(244.2, "profiler", _TUNED),),
        target_us=241.0,
        against=matmul_blocked,
    ),
    _matmul(
        "trn1",
        4096,
        8192,
        8192,
        "benchmark",
        measured=(measured(6970.0, "benchmark", _TUTORIAL), measured(6960.0, "benchmark", _AUTOCOMP)),
        share_target=0.86,
        against=matmul_blocked,
    ),
    _feed_forward("float32", 11_200.0),
    _feed_forward("bfloat16", 2_900.0),
    *_large_convs(),
    *_small_convs(),
    *_fleet(),
)
