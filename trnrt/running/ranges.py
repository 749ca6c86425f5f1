"""The ranges of a model's values on typical inputs, measured by onnxruntime: they choose the scales of 8-bit floats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import BackendError, InputError, OptionError
from trnrt.importer import ImportedModel
from trnrt.planner.options import PlanOptions
from trnrt.running.feeding import check_feeds
from trnrt.running.rows import count_rows
from trnrt.text import quote

if TYPE_CHECKING:  # deferred where they run: most sessions have no 8-bit floats to measure
    import onnx_ir as ir

Array = NDArray[Any]

# Rows that run at a time: the values between the layers of as many are in memory together.
_ROWS = 8
# onnxruntime refuses newer versions.
_KNOWN_IR = 10
_FLOATS = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")
# Operators whose result has the elements of their first input.
_MOVES = ("Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


def with_ranges(model: ImportedModel, options: PlanOptions, given: Path | Mapping[str, Array] | None) -> PlanOptions:
    """The options with the ranges of 8-bit floats, if they ask for any.

    OptionError if the data is missing, or not needed; InputError if it doesn't fit the model.
    """
    if options.float8 is None:
        if given is not None:
            raise OptionError(
                f"--calibration gives the ranges of 8-bit floats, and the dtype is {options.dtype}",
                hint="leave it out, or use --dtype float8_e4m3",
            )
        return options
    if given is None:
        raise OptionError(
            f"--dtype {options.float8.dtype} needs typical inputs: they give the ranges of the numbers",
            hint="give some hundred rows with --calibration DATA.npz, in arrays named like the model's inputs",
        )
    arrays = dict(given) if isinstance(given, Mapping) else _read(model, given)
    ranges = measure_ranges(model, check_feeds(model, arrays))
    return replace(options, float8=replace(options.float8, ranges=tuple(sorted(ranges.items()))))


def _read(model: ImportedModel, path: Path) -> dict[str, Array]:
    from trnrt.inputs.images import ImageOptions
    from trnrt.inputs.matching import read_inputs

    found = read_inputs([str(path)], model.inputs, metadata=model.metadata, images=ImageOptions())
    return dict(found.feeds)


def measure_ranges(model: ImportedModel, arrays: Mapping[str, Array]) -> dict[str, float]:
    """The largest magnitude of each value that a layer multiplies, by its name in the graph as planned.

    BackendError if onnxruntime can't run the graph, InputError if a value isn't finite.
    """
    ranges: dict[str, float] = {}
    opened: dict[tuple[tuple[str, tuple[int, ...]], ...], tuple[Any, list[str], list[str]]] = {}
    for feeds in _slices(model, arrays):
        key = tuple((name, array.shape) for name, array in feeds.items())
        if key not in opened:
            opened[key] = _open(model, feeds)
        session, names, inputs = opened[key]
        found = dict(zip(names, session.run(names, feeds) if names else [], strict=True))
        for name, array in (found | {name: feeds[name] for name in inputs}).items():
            most = float(np.abs(array.astype(np.float32)).max(initial=0.0))
            if not np.isfinite(most):
                raise InputError(f"{quote(name)} is not finite on the calibration data", hint="leave such rows out")
            ranges[name] = max(ranges.get(name, 0.0), most)
    return ranges


def _slices(model: ImportedModel, arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The rows, some at a time: as many as the model's fixed batch; a rest that would not fill it is left out."""
    rows = count_rows(model, arrays)
    if rows is None or model.batch is None:
        yield dict(arrays)
        return
    each = model.batch if isinstance(model.batch, int) else _ROWS
    if rows < each and isinstance(model.batch, int):
        raise InputError(f"the calibration data has {rows} rows; the model's batch is {each}")
    for first in range(0, rows, each):
        part = {
            name: array if name in model.parameters or not array.ndim else array[first : first + each]
            for name, array in arrays.items()
        }
        if isinstance(model.batch, str) or rows - first >= each:
            yield part


def _open(model: ImportedModel, feeds: Mapping[str, Array]) -> tuple[Any, list[str], list[str]]:
    """onnxruntime's session for the graph as planned, and the names of computed values and of inputs to measure."""
    import onnx
    import onnx_ir as ir
    import onnxruntime

    values = {name: feeds[name] for name in model.parameters}
    bound = model.bind({name: array.shape for name, array in feeds.items()}, values).model
    read = {value for node in bound.graph if _is_layer(node) for value in _stored_values(node.inputs[0])}
    names = sorted(str(value.name) for value in read if value.producer() is not None)
    inputs = sorted(str(value.name) for value in read if value.is_graph_input())
    proto: onnx.ModelProto = ir.to_proto(bound)
    proto.ir_version = min(proto.ir_version, _KNOWN_IR)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base class
        raise BackendError(
            f"onnxruntime can't run the model to measure ranges: {' '.join(str(error).split())}"
        ) from None
    return session, names, inputs


def _is_layer(node: ir.Node) -> bool:
    return node.op_type in ("Conv", "Gemm", "MatMul") and node.domain == ""


def _stored_values(value: ir.Value | None) -> Iterator[ir.Value]:
    """A value of floats, and those that have the same elements in another order or shape."""
    while value is not None and value.dtype is not None and value.dtype.name in _FLOATS and not value.is_initializer():
        yield value
        node = value.producer()
        value = node.inputs[0] if node is not None and node.op_type in _MOVES and node.domain == "" else None
