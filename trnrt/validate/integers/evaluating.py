"""Evaluates a quantised model's original graph: integers in int64, every other node by onnxruntime, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from trnrt.running.reference import run_session
from trnrt.validate.integers.sums import convolve, multiply

Array = NDArray[Any]
_KNOWN_IR = 10
_SAME_SCALE = 2.0**-22
"""A bias whose scale is the product's up to this is whole: exporters round the product once more."""
_PRODUCTS = ("Conv", "Gemm", "MatMul")
# Operators of com.microsoft that onnxruntime's quantiser writes: (the float operator, how many quantised operands).
_WRAPPED = {
    "QLinearAdd": ("Add", 2),
    "QLinearMul": ("Mul", 2),
    "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearSoftmax": ("Softmax", 1),
}
_POOLS = {"QLinearGlobalAveragePool": "GlobalAveragePool", "QLinearAveragePool": "AveragePool"}


@dataclass(frozen=True)
class Centred:
    """Whole numbers less their zero point, in int64, and a scale along ``axis``, or for all if it is a scalar."""

    numbers: Array
    scale: Array
    axis: int


@dataclass(frozen=True)
class Sums:
    """A float value that is ``numbers * factor``, then limited to [``least``, ``most``]; ``numbers`` are int64 sums."""

    numbers: Array
    factor: Array
    least: float = -np.inf
    most: float = np.inf


@dataclass(frozen=True)
class Rounded:
    """A quantised value before it was rounded, without its zero point. ``is_exact``: no float was rounded before it but
    by the factor of requantisation, so that every correct implementation gives this value."""

    node: str
    before: Array
    is_exact: bool


def has_integers(model: onnx.ModelProto) -> bool:
    """True if a model computes with quantised tensors; weights alone, which become floats, are none."""
    words = (
        "QuantizeLinear",
        "DynamicQuantizeLinear",
        "ConvInteger",
        "MatMulInteger",
        "QGemm",
        "DynamicQuantizeMatMul",
    )
    return any(
        node.op_type in words or node.op_type.startswith(("QLinear", "MatMulIntegerTo")) for node in model.graph.node
    )


class Evaluator:
    """Runs a model as its integers mean. ``rounded`` has the last run's quantised values, in the graph's order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.rounded: dict[str, Rounded] = {}
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self._values: dict[str, Array] = {}
        self._centred: dict[str, Centred] = {}
        self._sums: dict[str, Sums] = {}
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def run(self, feeds: Mapping[str, Array], own: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """All values by name. ``own``: values that later nodes read instead of the ones computed here."""
        self.rounded, self._centred, self._sums = {}, {}, {}
        self._values = {"": np.zeros(0)} | self._constants | dict(feeds)
        found: dict[str, Array] = {}
        for node in self.model.graph.node:
            made = self._evaluate(node)
            for name, array in zip(node.output, made, strict=False):
                found[name] = array
                self._values[name] = array if own is None or name not in own else own[name]
        return found

    def _evaluate(self, node: onnx.NodeProto) -> list[Array]:
        settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        meaning = getattr(self, f"_run_{node.op_type.lower()}", None)
        if meaning is not None and "block_size" not in settings:
            return [np.asarray(array) for array in meaning(node, settings)]
        if node.op_type in _PRODUCTS:
            return self._multiply_floats(node, settings)
        if node.op_type in ("Relu", "Clip") and node.input[0] in self._sums:
            self._limit(node, settings)
        if node.op_type in _WRAPPED or node.op_type in _POOLS:
            return self._wrap(node, settings)
        return self._run_alone(node, [self._values[name] if name else None for name in node.input])

    def _read_input(self, node: onnx.NodeProto, place: int) -> Array | None:
        return self._values[node.input[place]] if place < len(node.input) and node.input[place] else None

    def _centre(self, node: onnx.NodeProto, place: int, zero_place: int, axis: int = 0) -> Array:
        """Input ``place`` in int64, less its zero point."""
        numbers, zero = self._values[node.input[place]].astype(np.int64), self._read_input(node, zero_place)
        return numbers if zero is None else numbers - _spread(zero.astype(np.int64), numbers.ndim, axis)

    def _round(self, node: onnx.NodeProto, before: Array, zero: Array | None, kind: Any, *, exact: bool) -> Array:
        """round(before) + zero point, saturated."""
        import ml_dtypes

        limits = ml_dtypes.iinfo(kind)
        self.rounded[node.output[0]] = Rounded(node.name or node.output[0], before, exact)
        whole = np.rint(before.astype(np.float64)) + (0 if zero is None else zero.astype(np.float64))
        return np.clip(np.nan_to_num(whole, nan=0.0), int(limits.min), int(limits.max)).astype(kind)

    # QuantizeLinear and DequantizeLinear.

    def _run_dequantizelinear(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        x, scale = self._values[node.input[0]], self._values[node.input[1]]
        axis = settings.get("axis", 1)
        numbers = self._centre(node, 0, 2, axis)
        axis = axis % max(x.ndim, 1)
        self._centred[node.output[0]] = Centred(numbers, scale.astype(np.float32), axis)
        real = numbers.astype(np.float32) * _spread(scale.astype(np.float32), x.ndim, axis)
        return [real.astype(scale.dtype)]

    def _run_quantizelinear(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        x, scale, zero = self._values[node.input[0]], self._values[node.input[1]], self._read_input(node, 2)
        wanted = settings.get("output_dtype", 0)
        kind = zero.dtype if zero is not None else helper.tensor_dtype_to_np_dtype(wanted or onnx.TensorProto.UINT8)
        axis = settings.get("axis", 1)
        spread = _spread(scale.astype(np.float32), x.ndim, axis)
        sums = self._sums.get(node.input[0])
        zero = None if zero is None else _spread(zero.astype(np.int64), x.ndim, axis)
        if sums is None or scale.size != 1:
            return [self._round(node, x.astype(np.float32) / spread, zero, kind, exact=False)]
        before = sums.numbers.astype(np.float32) * (sums.factor / spread)
        # A limit is rounded like any number: to limit before or after is the same.
        before = np.clip(before, np.float32(sums.least) / spread, np.float32(sums.most) / spread)
        return [self._round(node, before, zero, kind, exact=True)]

    def _run_dynamicquantizelinear(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        x = self._values[node.input[0]]
        y, scale, zero = _quantise_dynamically(x)
        self.rounded[node.output[0]] = Rounded(node.name or node.output[0], x / scale, False)
        return [y, scale, zero]

    # Products of dequantised tensors.

    def _multiply_floats(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        arrays = [self._values[name] if name else None for name in node.input]
        left, right = (self._centred.get(name) for name in node.input[:2])
        factor = None if left is None or right is None else _find_factor(node, left, right, settings)
        if left is None or right is None or factor is None:
            return self._run_alone(node, arrays)
        factor = factor * np.float32(settings.get("alpha", 1.0))
        if node.op_type == "Conv":
            sums = convolve(left.numbers, right.numbers, settings)
        else:
            a, b = (
                side.numbers.T if settings.get(f"trans{k}", 0) else side.numbers
                for side, k in ((left, "A"), (right, "B"))
            )
            sums = multiply(a, b)
        bias = arrays[2] if len(arrays) > 2 else None
        if bias is None:
            return [self._keep(node, Sums(sums, factor))]
        dims = sums.ndim - 2 if node.op_type == "Conv" else 0
        whole = self._centred.get(node.input[2])
        unit = np.broadcast_to(factor.reshape(-1), (max(factor.size, whole.scale.size),)) if whole else factor
        if (
            whole
            and settings.get("beta", 1.0) == 1.0
            and np.all(np.abs(whole.scale.reshape(-1) - unit) <= _SAME_SCALE * unit)
        ):
            return [self._keep(node, Sums(sums + whole.numbers.reshape(*whole.numbers.shape, *[1] * dims), factor))]
        addend = bias * np.float32(settings.get("beta", 1.0))
        return [sums.astype(np.float32) * factor + addend.reshape(*addend.shape, *[1] * dims)]

    def _keep(self, node: onnx.NodeProto, sums: Sums) -> Array:
        self._sums[node.output[0]] = sums
        return sums.numbers.astype(np.float32) * sums.factor

    def _limit(self, node: onnx.NodeProto, settings: dict[str, Any]) -> None:
        """Relu or Clip of sums."""
        sums = self._sums[node.input[0]]
        low, high = (self._read_input(node, k) for k in (1, 2))
        least = 0.0 if node.op_type == "Relu" else float(settings.get("min", -np.inf) if low is None else low)
        most = np.inf if node.op_type == "Relu" else float(settings.get("max", np.inf) if high is None else high)
        limits = (min(max(sums.least, least), most), min(sums.most, most))
        self._sums[node.output[0]] = Sums(sums.numbers, sums.factor, *limits)

    # Operators on integers.

    def _run_qlinearconv(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        x, last = self._centre(node, 0, 2), settings.pop("channels_last", 0)
        x = np.moveaxis(x, -1, 1) if last else x
        sums, bias = convolve(x, self._centre(node, 3, 5), settings), self._read_input(node, 8)
        sums, axis = (np.moveaxis(sums, 1, -1), x.ndim - 1) if last else (sums, 1)
        if bias is not None:
            sums = sums + _spread(bias.astype(np.int64), x.ndim, axis)
        scale = self._values[node.input[1]] * self._values[node.input[4]]
        return [self._requantise(node, sums, _spread(scale, x.ndim, axis), 6)]

    def _run_qlinearmatmul(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        sums = multiply(self._centre(node, 0, 2, -2), self._centre(node, 3, 5, -1))
        left = _spread(self._values[node.input[1]], sums.ndim, -2)
        return [self._requantise(node, sums, left * _spread(self._values[node.input[4]], sums.ndim, -1), 6)]

    def _run_qgemm(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        turned = settings.get("transB", 0)
        a, b = self._centre(node, 0, 2), self._centre(node, 3, 5, 0 if turned else 1)
        sums, bias = multiply(a.T if settings.get("transA", 0) else a, b.T if turned else b), self._read_input(node, 6)
        sums = sums if bias is None else sums + bias.astype(np.int64)
        scale = self._values[node.input[1]] * self._values[node.input[4]] * np.float32(settings.get("alpha", 1.0))
        return [
            sums.astype(np.float32) * scale
            if self._read_input(node, 7) is None
            else self._requantise(node, sums, scale, 7)
        ]

    def _requantise(self, node: onnx.NodeProto, sums: Array, scale: Array, place: int) -> Array:
        zero = self._read_input(node, place + 1)
        factor = scale / self._values[node.input[place]].reshape(())
        before = sums.astype(np.float32) * factor
        return self._round(node, before, zero, np.uint8 if zero is None else zero.dtype, exact=True)

    def _run_convinteger(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        return [convolve(self._centre(node, 0, 2), self._centre(node, 1, 3), settings).astype(np.int32)]

    def _run_matmulinteger(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        return [multiply(self._centre(node, 0, 2, -2), self._centre(node, 1, 3, -1)).astype(np.int32)]

    def _run_matmulintegertofloat(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        sums, bias = multiply(self._centre(node, 0, 4), self._centre(node, 1, 5, -1)), self._read_input(node, 6)
        real = sums.astype(np.float32) * (self._values[node.input[2]] * self._values[node.input[3]])
        return [real if bias is None else real + bias]

    def _run_dynamicquantizematmul(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        y, scale, zero = _quantise_dynamically(self._values[node.input[0]])
        sums, bias = multiply(y.astype(np.int64) - int(zero), self._centre(node, 1, 3, -1)), self._read_input(node, 4)
        real = sums.astype(np.float32) * (scale * self._values[node.input[2]])
        return [real if bias is None else real + bias]

    def _run_qlinearconcat(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        parts = []
        for place in range(2, len(node.input), 3):
            parts.append(self._centre(node, place, place + 2).astype(np.float32) * self._values[node.input[place + 1]])
        zero = self._values[node.input[1]]
        before = np.concatenate(parts, settings["axis"]) / self._values[node.input[0]]
        return [self._round(node, before, zero, zero.dtype, exact=False)]

    def _wrap(self, node: onnx.NodeProto, settings: dict[str, Any]) -> list[Array]:
        """A float operator on dequantised operands, quantised again."""
        name, operands = _WRAPPED.get(node.op_type, (_POOLS.get(node.op_type, ""), 1))
        reals = [
            self._centre(node, 3 * k, 3 * k + 2).astype(np.float32) * self._values[node.input[3 * k + 1]]
            for k in range(operands)
        ]
        last = settings.pop("channels_last", 0)
        settings.pop("opset", None)
        if last:
            reals = [np.moveaxis(real, -1, 1) for real in reals]
        inner = helper.make_node(name, [f"operand {k} of {node.output[0]}" for k in range(operands)], ["y"], **settings)
        (made,) = self._run_alone(inner, list(reals))
        made = np.moveaxis(made, 1, -1) if last else made
        zero = self._read_input(node, 3 * operands + 1)
        before = made / self._values[node.input[3 * operands]]
        return [self._round(node, before, zero, np.uint8 if zero is None else zero.dtype, exact=False)]

    def _run_alone(self, node: onnx.NodeProto, arrays: list[Array | None]) -> list[Array]:
        """One node in onnxruntime, with all optimisations off. Constants stay constants."""
        import onnxruntime

        held = {name for name in node.input if name in self._constants}
        feeds = {
            name: np.ascontiguousarray(array)
            for name, array in zip(node.input, arrays, strict=True)
            if name not in held and array is not None and name
        }
        key = (node.SerializeToString(), *((name, array.dtype, array.shape) for name, array in feeds.items()))
        if key not in self._sessions:
            given = [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in feeds.items()
            ]
            constants = [numpy_helper.from_array(self._constants[name], name) for name in sorted(held)]
            results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
            graph = helper.make_graph([node], "node", given, results, constants)
            model = helper.make_model(
                graph, opset_imports=self.model.opset_import, ir_version=min(self.model.ir_version, _KNOWN_IR)
            )
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.log_severity_level = 4
            self._sessions[key] = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        made = iter(run_session(self._sessions[key], feeds))
        return [next(made) if name else np.zeros(0) for name in node.output]


def _spread(array: Array, dims: int, axis: int) -> Array:
    """A scalar, or a list along ``axis``, in a shape that broadcasts to ``dims`` dimensions."""
    if array.ndim > 1:
        return array
    if array.size == 1:
        return array.reshape(())
    shape = [1] * dims
    shape[axis] = -1
    return array.reshape(shape)


def _find_factor(node: onnx.NodeProto, left: Centred, right: Centred, settings: Mapping[str, Any]) -> Array | None:
    """The scale of the sums, in a shape that broadcasts to them; None if it differs between the terms of a sum."""
    if left.scale.size != 1 or left.scale.ndim > 1:
        return None
    own: Array = left.scale.reshape(())
    if right.scale.size == 1:
        return np.asarray(own * right.scale.reshape(()))
    dims = right.numbers.ndim
    if node.op_type == "Conv":
        wanted = 0
    else:
        wanted = 0 if settings.get("transB", 0) else dims - 1
    if right.axis != wanted or right.scale.ndim != 1:
        return None
    return np.asarray(own * (right.scale.reshape(-1, *[1] * (dims - 2)) if node.op_type == "Conv" else right.scale))


def _quantise_dynamically(x: Array) -> tuple[Array, Array, Array]:
    """ONNX's DynamicQuantizeLinear: uint8 numbers, scale, zero point."""
    least, most = np.float32(min(0.0, x.min(initial=0))), np.float32(max(0.0, x.max(initial=0)))
    scale = np.float32((most - least) / np.float32(255)) or np.float32(1)
    zero = np.clip(np.rint(-least / scale), 0, 255)
    numbers = np.clip(np.rint(x / scale) + zero, 0, 255)
    return numbers.astype(np.uint8), np.asarray(scale, np.float32), np.asarray(zero, np.uint8)
