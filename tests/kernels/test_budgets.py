"""The kernels' own tiles stay in what the planner leaves them of SBUF, at the limits of every argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from calling import Tensor, hbm, sbuf_features

from trnrt.kernels.argmax import argmax
from trnrt.kernels.conv.conv2d import conv2d
from trnrt.kernels.elementwise import compute
from trnrt.kernels.expectation import MAX_BINS, TOGETHER, weighted_softmax
from trnrt.kernels.linear import linear_features, linear_rows
from trnrt.kernels.lrn import lrn
from trnrt.kernels.normalize import NORMALIZED_CHUNK, divide_rows_by_norm, normalize_rows, normalize_rows_rms
from trnrt.kernels.pool2d import avg_pool2d, max_pool2d
from trnrt.kernels.reduce import reduce
from trnrt.kernels.softmax import AHEAD_COLUMNS, KEPT_BYTES, SOFTMAX_CHUNK, WHOLE_COLUMNS, log_softmax, softmax
from trnrt.kernels.topk import MOST_FOUND, SEARCH_MAX, topk
from trnrt.kernels.transpose import transpose_matrices
from trnrt.nki import Spec, nl, trace
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.program import Program
from trnrt.planner.steps import WORKING_BYTES

Shape = tuple[int, ...]
Case = tuple[Callable[..., Tensor], list[Shape]]


def linear(rows: int, features: int, outputs: int, by_features: bool = False) -> Case:
    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm((rows, outputs), nl.float32)
        if by_features:
            linear_features(sbuf_features(rows, outputs, nl.float32), x, w, b, features, outputs, "relu")
        else:
            linear_rows(dst, x, w, b, features, "relu")
        return dst

    bias = (min(outputs, 128), -(-outputs // 128)) if by_features else (1, outputs)
    return body, [(rows, features), (min(features, 128), -(-features // 128) * outputs), bias]


def conv(images: Shape, outputs: int, kernel: tuple[int, int], pooled: bool) -> Case:
    """Without padding; pooled by 2 x 2."""
    n, channels, height, width = images
    size = (height - kernel[0] + 1, width - kernel[1] + 1)
    result = (size[0] // 2, size[1] // 2) if pooled else size
    options: dict[str, Any] = {"pool": (2, 2), "pool_stride": (2, 2)} if pooled else {}

    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm((n, outputs, *result), nl.float32)
        conv2d(dst, x, w, b, channels, size, kernel, act="relu", **options)
        return dst

    weight = (min(channels, 128), -(-channels // 128), kernel[0] * kernel[1], outputs)
    return body, [images, weight, (min(outputs, 128), -(-outputs // 128))]


def pool(images: Shape, kernel: tuple[int, int], stride: tuple[int, int]) -> Case:
    result = tuple((images[2 + d] - kernel[d]) // stride[d] + 1 for d in (0, 1))

    def body(x: Tensor) -> Tensor:
        dst = hbm((*images[:2], *result), nl.float32)
        max_pool2d(dst, x, images[1], kernel, stride, (0, 0), (1, 1))
        return dst

    return body, [images]


def averages(images: Shape, kernel: tuple[int, int]) -> Case:
    result = tuple(images[2 + d] - kernel[d] + 1 for d in (0, 1))

    def body(x: Tensor) -> Tensor:
        dst = hbm((*images[:2], *result), nl.float32)
        avg_pool2d(dst, x, images[1], kernel, (1, 1), (0, 0, 0, 0), (1, 1), count_include_pad=True)
        return dst

    return body, [images]


def rows(kernel: Callable[..., None], shape: Shape, result: Shape, dtype: object) -> Case:
    def body(x: Tensor) -> Tensor:
        dst = hbm(result, dtype)
        kernel(dst, x, shape[0])
        return dst

    return body, [shape]


def softmax_of(kernel: Callable[..., None], columns: int) -> Case:
    return rows(kernel, (400, columns), (400, columns), nl.float32)


def weighted(bins: int, columns: int) -> Case:
    def body(x: Tensor, factors: Tensor) -> Tensor:
        dst = hbm((96, columns), nl.float32)
        weighted_softmax(dst, x, factors)
        return dst

    return body, [(96, bins, columns), (128, bins + 1)]


def program(ops: tuple[tuple[Any, ...], ...], *shapes: Shape) -> Case:
    """An element-wise program on tensors of these shapes; the first has the result's."""

    def body(*given: Tensor) -> Tensor:
        dst = hbm(shapes[0], nl.float32)
        compute(dst, given, ops)
        return dst

    return body, list(shapes)


def transpose(shape: Shape) -> Case:
    def body(x: Tensor) -> Tensor:
        dst = hbm((shape[0], shape[2], shape[1]), nl.float32)
        transpose_matrices(dst, x)
        return dst

    return body, [shape]


def reduction(shape: Shape, after: str = "none") -> Case:
    def body(x: Tensor) -> Tensor:
        dst = hbm((shape[0], shape[2]), nl.float32)
        reduce(dst, x, "add", "square", 1.0, after)
        return dst

    return body, [shape]


def normalization(shape: Shape) -> Case:
    def body(x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        dst = hbm(shape, nl.float32)
        normalize_rows(dst, x, scale, bias, 1e-5)
        normalize_rows_rms(dst, x, scale, 1e-5)
        divide_rows_by_norm(dst, x, 1e-12)
        return dst

    return body, [shape, (1, shape[1]), (1, shape[1])]


def response(shape: Shape, size: int) -> Case:
    def body(x: Tensor) -> Tensor:
        dst = hbm(shape, nl.float32)
        lrn(dst, x, shape[1], size, 1.0, 0.75, 1.0)
        return dst

    return body, [shape]


def best(columns: int, k: int) -> Case:
    def body(x: Tensor) -> Any:
        values, indices = hbm((200, k), nl.float32), hbm((200, k), nl.uint32)
        topk(values, indices, x, k, True)
        return values, indices

    return body, [(200, columns)]


CASES: dict[str, Case] = {
    "linear, most features of whole blocks": linear(130, 12288, 513),
    "linear, more features": linear(130, 12289, 513),
    "linear by features": linear(513, 12288, 513, by_features=True),
    "linear, many rows": linear(2000, 4096, 600),
    "conv, most weights and band": conv((1, 64, 32, 340), 128, (3, 32), pooled=True),
    "conv, unpooled": conv((1, 64, 64, 1020), 512, (5, 5), pooled=False),
    "conv, weights by parts": conv((1, 385, 16, 160), 256, (5, 5), pooled=True),
    "conv, many images": conv((200, 3, 8, 8), 512, (3, 3), pooled=True),
    "pool, stride 1": pool((1, 128, 100, 1000), (2, 2), (1, 1)),
    "pool, many images": pool((999, 3, 8, 8), (2, 2), (1, 1)),
    "averages of small windows": averages((2, 128, 100, 1000), (1, 1)),
    "averages of large windows": averages((2, 3, 160, 400), (150, 150)),
    "softmax": softmax_of(softmax, WHOLE_COLUMNS),
    "softmax, two blocks at once": softmax_of(softmax, AHEAD_COLUMNS // 2),
    "logarithms of two blocks at once": softmax_of(log_softmax, AHEAD_COLUMNS // 2),
    "softmax, rows that are kept": softmax_of(softmax, KEPT_BYTES // 4),
    "softmax, rows that are brought in twice": softmax_of(log_softmax, KEPT_BYTES // 4 + SOFTMAX_CHUNK),
    "softmax, weighted": weighted(MAX_BINS, TOGETHER),
    "argmax": rows(argmax, (200, 40000), (200, 1), nl.uint32),
    "the last argmax": rows(partial(argmax, last=True), (200, 40000), (200, 1), nl.uint32),
    "sums of long rows": reduction((200, 40000, 1), "sqrt"),
    "sums of many columns": reduction((200, 9, 40000), "log"),
    "sums of many short rows": reduction((100_000, 9, 1), "log"),
    "normalised rows": normalization((200, NORMALIZED_CHUNK)),
    "normalised rows that are brought in twice": normalization((200, 3 * NORMALIZED_CHUNK)),
    "responses of many channels": response((2, 3000, 500), 300),
    "responses of large images": response((1, 128, 40000), 5),
    "the best of whole rows": best(SEARCH_MAX, MOST_FOUND),
    "the best of chunks": best(SEARCH_MAX + 1, MOST_FOUND // 3 // 8 * 8),
    "compute of one": program((("relu", 0),), (1, 1, 200, 5000)),
    "compute of two": program((("add", 0, 1), ("relu", 2)), (1, 2, 200, 5000), (1, 2, 200, 5000)),
    "compute of many": program(
        (("add", 0, 1), ("gelu", 3), ("multiply", 4, 2), ("divide", 5, 0), ("floor", 6)),
        (1, 1, 200, 5000),
        (1, 1, 200, 5000),
        (1, 1, 1, 5000),
    ),
    "transpose": transpose((2, 200, 5000)),
}


@pytest.mark.parametrize("name", CASES)
def test_working_memory(name: str) -> None:
    body, shapes = CASES[name]
    program = trace(body, *(Spec(shape, "float32") for shape in shapes))
    assert peak(program) <= WORKING_BYTES


def peak(program: Program) -> int:
    """The most bytes of a partition that tiles hold at once."""
    spans = find_lifetimes(program)
    sizes = {s.index: s.partition_bytes for s in program.storages if s.buffer is nl.sbuf and s.index in spans}
    changes = sorted(
        change for i, size in sizes.items() for change in ((spans[i][0], size), (spans[i][1] + 0.5, -size))
    )
    held, most = 0, 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
