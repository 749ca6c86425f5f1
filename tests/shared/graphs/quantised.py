"""Random quantised graphs with the integers that must come out: QDQ, QOperator and dynamic forms."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphs.noise import Array, Dropped
from graphs.quantised_draft import F32, LIMITS, MICROSOFT, MOST_TERMS, OPSETS, Quantised, Whole, check_ties

FORMATS = ("QDQ", "QOperator", "dynamic")


# -- products ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """Constant weights: integers, scales and zero points along the output's ``axis`` of them."""

    array: Array
    scale: Array
    zero: Array
    axis: int

    @property
    def centred(self) -> Array:
        shape = [1] * self.array.ndim
        shape[self.axis] = -1
        return self.array.astype(np.int64) - self.zero.reshape(shape if self.zero.ndim else ())

    def names(self, graph: Quantised) -> list[str]:
        return [graph.constant(a) for a in (self.array, self.scale, self.zero.astype(self.array.dtype))]


def draw_weights(graph: Quantised, shape: Sequence[int], axis: int, by_channel: bool) -> Weights:
    dtype = graph.random.choice(["int8", "int8", "uint8"])
    low, high = LIMITS[dtype]
    array = graph.generator.integers(low, high + 1, shape).astype(dtype)
    size = (shape[axis],) if by_channel else ()
    scale = 2.0 ** graph.generator.integers(-9, -5, size) if graph.exact else graph.generator.uniform(1e-3, 2e-2, size)
    zero = np.zeros(size) if dtype == "int8" and graph.chance(0.7) else graph.generator.integers(low, high + 1, size)
    return Weights(array, np.asarray(scale, F32), np.asarray(zero, np.int64), axis)


def requantised(graph: Quantised, sums: Array, factor: Array, low: float, high: float) -> tuple[Array, Array, int, str]:
    """Integers, scale, zero point and type of sums with a factor, where a Relu or Clip limits the float."""
    scale, zero, dtype = graph.new(np.clip(sums * factor, low, high))
    numbers = np.rint(sums.astype(F32) * (factor / scale).astype(F32)).astype(np.int64)
    ends = [np.rint(F32(end) / scale) for end in (low, high)]
    numbers = np.clip(numbers, ends[0], ends[1]).astype(np.int64)
    return graph.limit(numbers, zero, dtype), scale, zero, dtype


def finish_qdq(graph: Quantised, name: str, sums: Array, factor: Array) -> None:
    """An activation, at times, and a QuantizeLinear."""
    low, high = graph.random.choice([(-np.inf, np.inf), (0.0, np.inf), (0.0, 6.0), (-1.5, 2.0)])
    if high < np.inf and graph.opset < 11:
        name = graph.add("Clip", [name], min=low, max=high)[0]
    elif high < np.inf:
        name = graph.add("Clip", [name, graph.constant(F32(low)), graph.constant(F32(high))])[0]
    elif low == 0:
        name = graph.add("Relu", [name])[0]
    array, scale, zero, _ = requantised(graph, sums, factor, low, high)
    if np.isfinite(high) and not graph.exact:
        check_ties(np.array([F32(low) / scale, F32(high) / scale]))
    made = graph.add("QuantizeLinear", [name, graph.constant(scale), graph.constant(np.array(zero, array.dtype))])[0]
    graph.keep(made, array, scale, zero)


def draw_bias(graph: Quantised, channels: int) -> Array | None:
    return graph.generator.integers(-20000, 20000, channels).astype(np.int32) if graph.chance(0.6) else None


def draw_conv(graph: Quantised) -> None:
    x = graph.pick(lambda whole: whole.array.ndim == 4)
    channels, *size = x.array.shape[1:]
    groups = graph.random.choice([1, 1, channels])
    kernel = [graph.random.randint(1, min(3, n)) for n in size]
    made = groups * graph.random.randint(1, 3) if groups > 1 else graph.random.randint(1, 9)
    by_channel = graph.chance(0.5) and (graph.form == "QOperator" or graph.opset >= 13)
    weights = draw_weights(graph, (made, channels // groups, *kernel), 0, by_channel)
    pads, strides = [graph.random.randint(0, n - 1) for n in kernel * 2], [graph.random.randint(1, 2) for _ in kernel]
    sums = convolve(x.centred, weights.centred, pads, strides, groups)
    bias = draw_bias(graph, made)
    if bias is not None:
        sums = sums + bias.astype(np.int64).reshape(1, -1, 1, 1)
    factor = (x.scale * weights.scale).astype(F32)
    wide = factor.reshape(-1, 1, 1) if by_channel else factor
    settings = {"pads": pads, "strides": strides, "group": groups}
    check_sums(sums, x, weights)
    finish(graph, "Conv", x, weights, bias, (sums, factor, wide), settings)


def draw_matmul(graph: Quantised) -> None:
    x = graph.pick(lambda whole: whole.array.ndim in (2, 3) and whole.array.shape[-1] <= MOST_TERMS)
    features = graph.random.randint(1, 12)
    is_gemm = x.array.ndim == 2 and graph.chance(0.5)
    turned = is_gemm and graph.chance(0.5)
    shape = (features, x.array.shape[-1]) if turned else (x.array.shape[-1], features)
    by_channel = graph.chance(0.5) and graph.opset >= 13
    weights = draw_weights(graph, shape, 0 if turned else 1, by_channel)
    sums = x.centred @ (weights.centred.T if turned else weights.centred)
    bias = draw_bias(graph, features) if is_gemm else None
    sums = sums if bias is None else sums + bias.astype(np.int64)
    factor = (x.scale * weights.scale).astype(F32)
    check_sums(sums, x, weights)
    settings = {"transB": int(turned)} if is_gemm else {}
    if is_gemm and bias is None and graph.opset < 11 and graph.form == "QDQ":
        raise Dropped("Gemm needs C in this opset")
    finish(graph, "Gemm" if is_gemm else "MatMul", x, weights, bias, (sums, factor, factor), settings)


def check_sums(sums: Array, x: Whole, weights: Weights) -> None:
    if np.abs(sums).max(initial=0) >= 2**24:
        raise Dropped("sums beyond float32")


def finish(
    graph: Quantised,
    op: str,
    x: Whole,
    weights: Weights,
    bias: Array | None,
    numbers: tuple[Array, Array, Array],
    settings: dict[str, Any],
) -> None:
    """Write a product: ``numbers`` are its sums, their scale, and the same so that it broadcasts."""
    sums, factor, wide = numbers
    of_channels: dict[str, Any] = {"axis": weights.axis} if weights.scale.ndim else {}
    if graph.form == "QDQ":
        inputs = [graph.dequantise(x), graph.add("DequantizeLinear", weights.names(graph), **of_channels)[0]]
        if bias is not None:
            along: dict[str, Any] = {"axis": 0} if factor.ndim else {}
            inputs += graph.add("DequantizeLinear", [graph.constant(bias), graph.constant(factor)], **along)
        finish_qdq(graph, graph.add(op, inputs, **settings)[0], sums, wide)
        return
    array, scale, zero, dtype = requantised(graph, sums, wide, -np.inf, np.inf)
    inputs, after = (
        [*graph.triple(x), *weights.names(graph)],
        [graph.constant(scale), graph.constant(np.array(zero, dtype))],
    )
    last = [] if bias is None else [graph.constant(bias)]
    if op == "Gemm":
        made = graph.add("QGemm", [*inputs, *(last or [""]), *after], MICROSOFT, **settings)[0]
    else:
        made = graph.add(f"QLinear{op}", [*inputs, *after, *last], **settings)[0]
    graph.keep(made, array, scale, zero)


def convolve(x: Array, w: Array, pads: Sequence[int], strides: Sequence[int], groups: int) -> Array:
    """A convolution in int64."""
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, :: strides[0], :: strides[1]]
    n, _, h, wide = windows.shape[:4]
    apart = windows.reshape(n, groups, -1, h, wide, *w.shape[2:])
    made = np.einsum("ngchwij,gkcij->ngkhw", apart, w.reshape(groups, -1, *w.shape[1:]))
    return np.asarray(made.reshape(n, -1, h, wide))


def draw_attention(graph: Quantised) -> None:
    """A product of two computed tensors."""
    x = graph.pick(lambda whole: whole.array.ndim == 3)
    y = graph.pick(lambda whole: whole.array.ndim == 3 and whole.array.shape[1] == x.array.shape[2])
    sums, factor = x.centred @ y.centred, (x.scale * y.scale).astype(F32)
    if np.abs(sums).max(initial=0) >= 2**24:
        raise Dropped("sums beyond float32")
    if graph.form == "QDQ":
        finish_qdq(graph, graph.add("MatMul", [graph.dequantise(x), graph.dequantise(y)])[0], sums, factor)
        return
    array, scale, zero, dtype = requantised(graph, sums, factor, -np.inf, np.inf)
    after = [graph.constant(scale), graph.constant(np.array(zero, dtype))]
    made = graph.add("QLinearMatMul", [*graph.triple(x), *graph.triple(y), *after])[0]
    graph.keep(made, array, scale, zero)


# -- functions of floats ----------------------------------------------------------------------------------


def draw_sum(graph: Quantised) -> None:
    x = graph.pick(lambda whole: True)
    y = graph.pick(lambda whole: whole.array.shape == x.array.shape)
    op = graph.random.choice(["Add", "Mul"])
    real = (x.real + y.real if op == "Add" else x.real * y.real).astype(F32)
    if graph.form == "QDQ":
        graph.quantise(graph.add(op, [graph.dequantise(x), graph.dequantise(y)])[0], real)
        return
    apply_own(graph, f"QLinear{op}", [*graph.triple(x), *graph.triple(y)], real)


def apply_own(graph: Quantised, op: str, inputs: list[str], real: Array, near: bool = False, **settings: Any) -> None:
    """An operator of onnxruntime that computes in floats."""
    scale, zero, dtype = graph.new(real)
    if near:
        check_ties((real / scale).astype(F32))
    array = graph.limit(graph.quotient(real, scale), zero, dtype)
    after = [graph.constant(scale), graph.constant(np.array(zero, dtype))]
    graph.keep(graph.add(op, [*inputs, *after], MICROSOFT, **settings)[0], array, scale, zero)


def draw_function(graph: Quantised) -> None:
    x = graph.pick(lambda whole: True)
    op = graph.random.choice(["Sigmoid", "LeakyRelu", "Relu"] if graph.form == "QDQ" else ["Sigmoid", "LeakyRelu"])
    wide = x.real.astype(np.float64)
    with np.errstate(over="ignore"):
        real = {"Sigmoid": 1 / (1 + np.exp(-wide)), "Relu": np.maximum(wide, 0)}.get(
            op, np.where(wide < 0, wide / 4, wide)
        )
    settings: dict[str, Any] = {"alpha": 0.25} if op == "LeakyRelu" else {}
    near = op == "Sigmoid"
    if graph.form == "QDQ":
        graph.quantise(graph.add(op, [graph.dequantise(x)], **settings)[0], real.astype(F32), near)
    else:
        apply_own(graph, f"QLinear{op}", graph.triple(x), real.astype(F32), near, **settings)


def draw_mean(graph: Quantised) -> None:
    """A global average: in QOperator one factor of whole sums."""
    x = graph.pick(lambda whole: whole.array.ndim == 4)
    count = int(np.prod(x.array.shape[2:]))
    sums = x.centred.sum((2, 3), keepdims=True)
    real = (sums * np.float64(x.scale) / count).astype(F32)
    if graph.form == "QDQ":
        graph.quantise(graph.add("GlobalAveragePool", [graph.dequantise(x)])[0], real, near=True)
        return
    scale, zero, dtype = graph.new(real)
    factor = (x.scale / (scale * F32(count))).astype(F32)
    array = graph.limit(np.rint(sums.astype(F32) * factor).astype(np.int64), zero, dtype)
    after = [graph.constant(scale), graph.constant(np.array(zero, dtype))]
    graph.keep(graph.add("QLinearGlobalAveragePool", [*graph.triple(x), *after], MICROSOFT)[0], array, scale, zero)


def draw_scale(graph: Quantised) -> None:
    """Another scale and zero point."""
    x = graph.pick(lambda whole: True)
    graph.quantise(graph.dequantise(x), x.real)


def draw_concat(graph: Quantised) -> None:
    x = graph.pick(lambda whole: whole.array.ndim > 1)
    y = graph.pick(lambda whole: whole.array.ndim == x.array.ndim and whole.array.shape[2:] == x.array.shape[2:])
    if graph.form == "QDQ":
        name = graph.add("Concat", [graph.dequantise(x), graph.dequantise(y)], axis=1)[0]
        graph.quantise(name, np.concatenate([x.real, y.real], 1))
        return
    real = np.concatenate([x.real, y.real], 1)
    scale, zero, dtype = graph.new(real)
    array = graph.limit(graph.quotient(real, scale), zero, dtype)
    before = [graph.constant(scale), graph.constant(np.array(zero, dtype))]
    if x.dtype != y.dtype or x.dtype != dtype:
        raise Dropped("types")
    inputs = [*before, *graph.triple(x), *graph.triple(y)]
    graph.keep(graph.add("QLinearConcat", inputs, MICROSOFT, axis=1)[0], array, scale, zero)


# -- movement ----------------------------------------------------------------------------------------------


def draw_movement(graph: Quantised) -> None:
    """Elements in other places: between DequantizeLinear and QuantizeLinear of one scale, or as integers."""
    x = graph.pick(lambda whole: whole.array.ndim > 1)
    op, inputs, settings, moved = graph.random.choice(MOVES)(graph, x)
    fills = [graph.constant(item) for item in inputs if isinstance(item, np.ndarray)]
    inputs = [item for item in inputs if isinstance(item, str)]
    if graph.form == "QDQ" and graph.chance(0.7):
        inputs += [graph.add("DequantizeLinear", [fill, *graph.parameters(x)])[0] for fill in fills]
        name = graph.add(op, [graph.dequantise(x), *inputs], **settings)[0]
        name = graph.add("QuantizeLinear", [name, *graph.parameters(x)])[0]
    else:
        name = graph.add(op, [x.name, *inputs, *fills], **settings)[0]
    graph.keep(name, np.ascontiguousarray(moved), x.scale, x.zero)


Move = tuple[str, list[Any], dict[str, Any], Array]


def move_slice(graph: Quantised, x: Whole) -> Move:
    start = graph.random.randint(0, x.array.shape[1] - 1)
    inputs = [graph.constant(np.array([number])) for number in (start, x.array.shape[1], 1)]
    return "Slice", inputs, {}, x.array[:, start:]


def move_transpose(graph: Quantised, x: Whole) -> Move:
    order = list(range(1, x.array.ndim))
    graph.random.shuffle(order)
    return "Transpose", [], {"perm": [0, *order]}, x.array.transpose([0, *order])


def move_reshape(graph: Quantised, x: Whole) -> Move:
    rest = x.array.shape[1:]
    shape = graph.random.choice([(int(np.prod(rest)),), (rest[0], int(np.prod(rest[1:])))])
    return "Reshape", [graph.constant(np.array([-1, *shape]))], {}, x.array.reshape(-1, *shape)


def move_pool(graph: Quantised, x: Whole) -> Move:
    if x.array.ndim != 4 or min(x.array.shape[2:]) < 2 or graph.opset < 12:
        raise Dropped("nothing to pool")
    stride = graph.random.randint(1, 2)
    windows = np.lib.stride_tricks.sliding_window_view(x.array, (2, 2), (2, 3))[:, :, ::stride, ::stride]
    return "MaxPool", [], {"kernel_shape": [2, 2], "strides": [stride] * 2}, windows.max((-1, -2))


def move_pad(graph: Quantised, x: Whole) -> Move:
    if graph.opset < 13:
        raise Dropped("an attribute in this opset")
    amounts = [graph.random.randint(0, 2) for _ in range(2 * x.array.ndim)]
    amounts[0] = amounts[x.array.ndim] = 0
    pairs = list(zip(amounts[: x.array.ndim], amounts[x.array.ndim :], strict=True))
    fill = np.array(graph.random.choice([x.zero, LIMITS[x.dtype][1]]), x.dtype)
    return "Pad", [graph.constant(np.array(amounts)), fill], {}, np.pad(x.array, pairs, constant_values=fill)


MOVES = (move_slice, move_transpose, move_reshape, move_pool, move_pad)


# -- dynamic -----------------------------------------------------------------------------------------------


def draw_dynamic(graph: Quantised) -> None:
    """DynamicQuantizeLinear of an input, and an integer product of it: the output is the scaled float."""
    x = graph.feeds["x"]
    low, high = min(F32(0), x.min()), max(F32(0), x.max())
    scale = F32((high - low) / F32(255)) if high > low else F32(1)
    quotient = F32((F32(0) - low) / scale)
    check_ties(np.array([quotient]))
    zero = int(np.clip(np.rint(quotient), 0, 255))
    divided = (x / scale).astype(F32)
    check_ties(divided)
    centred = np.clip(np.rint(divided).astype(np.int64) + zero, 0, 255) - zero
    q, qs, qz = graph.add("DynamicQuantizeLinear", ["x"], outputs=3)
    settings: dict[str, Any] = {}
    if x.ndim == 4:
        weights = draw_weights(graph, (graph.random.randint(1, 9), x.shape[1], 2, 2), 0, False)
        sums = convolve(centred, weights.centred, [1, 0, 0, 1], [1, 1], 1)
        op, settings = "ConvInteger", {"pads": [1, 0, 0, 1]}
    else:
        weights = draw_weights(graph, (x.shape[-1], graph.random.randint(1, 9)), 1, graph.chance(0.5))
        sums, op = centred @ weights.centred, "MatMulInteger"
    w, ws, wz = weights.names(graph)
    if weights.scale.ndim and graph.chance(0.5):
        check_sums(sums, Whole("", q, scale, 0), weights)  # type: ignore[arg-type]
        bias = graph.generator.standard_normal(weights.scale.shape).astype(F32)
        graph.nodes.pop()
        made = graph.add("DynamicQuantizeMatMul", ["x", w, ws, wz, graph.constant(bias)], MICROSOFT)[0]
        graph.outputs[made] = (sums.astype(F32) * (scale * weights.scale).astype(F32) + bias).astype(F32)
        return
    (made,) = graph.add(op, [q, w, qz, wz], **settings)
    (real,) = graph.add("Cast", [made], to=1)
    (factor,) = graph.add("Mul", [qs, ws])
    (scaled,) = graph.add("Mul", [real, factor])
    graph.outputs[scaled] = (sums.astype(F32) * (scale * weights.scale).astype(F32)).astype(F32)


# -- a graph ------------------------------------------------------------------------------------------------

DRAWS: dict[Callable[[Quantised], None], int] = {
    draw_conv: 5, draw_matmul: 4, draw_attention: 2, draw_sum: 2, draw_function: 2, draw_mean: 1, draw_scale: 1,
    draw_concat: 2, draw_movement: 5,
}  # fmt: skip


def draw_quantised(seed: int) -> Quantised:
    """Graph ``seed``. Dropped if nothing came of it."""
    chosen = random.Random(seed)
    form = chosen.choices(FORMATS, (5, 5, 1))[0]
    opset = max(chosen.choice(OPSETS), 11 if form == "dynamic" else 10)
    graph = Quantised(seed, form, opset, chosen.random() < 0.4, chosen.choice([1, 1, 2, 3, 5]))
    shape = chosen.choice([(3, 6, 5), (4, 4, 4), (1, 7, 3), (12,), (5, 7), (40,), (6, 6)])
    graph.feeds["x"] = draw_input(graph, (graph.rows, *shape))
    if form == "dynamic":
        draw_dynamic(graph)
        return graph
    begin(graph)
    for _ in range(chosen.randint(1, 6)):
        before = len(graph.nodes)
        try:
            chosen.choices(list(DRAWS), list(DRAWS.values()))[0](graph)
        except Dropped:
            del graph.nodes[before:]
    if len(graph.tensors) < 2:
        raise Dropped("nothing was drawn")
    end(graph)
    return graph


def draw_input(graph: Quantised, shape: tuple[int, ...]) -> Array:
    numbers = graph.generator.standard_normal(shape)
    return np.asarray(np.round(numbers * 64) / 64 if graph.exact else numbers, F32)


def begin(graph: Quantised) -> None:
    """Quantise the input, or let it be one of integers."""
    if graph.chance(0.3):
        dtype = graph.random.choice(["int8", "uint8"])
        low, high = LIMITS[dtype]
        graph.feeds["x"] = graph.generator.integers(low, high + 1, graph.feeds["x"].shape).astype(dtype)
        scale = np.asarray(2.0**-5 if graph.exact else graph.random.uniform(0.01, 0.05), F32)
        graph.keep("x", graph.feeds["x"], scale, graph.zero_of(dtype))
    else:
        graph.quantise("x", graph.feeds["x"])


def end(graph: Quantised) -> None:
    """Outputs: the last tensor and at times another, as floats or as integers."""
    last = graph.tensors[-1]
    chosen = [last] + ([graph.random.choice(graph.tensors[1:])] if graph.chance(0.3) else [])
    for whole in {tensor.name: tensor for tensor in chosen}.values():
        if graph.chance(0.5):
            graph.outputs[graph.dequantise(whole)] = whole.real
        else:
            graph.outputs[whole.name] = whole.array
