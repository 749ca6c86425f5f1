"""A quantised model, by onnxruntime's quantiser with the settings that suit the NeuronCore.

Weights are int8 with a scale for each output channel and no zero point; activations uint8 with a zero point.
docs/quantising.md derives why.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from trnrt.quantise.calibrating import QUANTISABLE, naming_failures, quiet_logging
from trnrt.quantise.preparing import LAYERS, Prepared, interpolates, keep_used_domains


def quantise(prepared: Prepared, form: str, ranges: Any, kept: Collection[str] = ()) -> bytes:
    """The quantised model as the bytes of a file, with the layers ``kept`` in float.

    ``form``: one of ``LAYERS``; ``ranges``: those of ``find_ranges``, None for "dynamic".
    QuantiseError if onnxruntime fails.
    """
    import onnx

    model = onnx.load_model_from_string(prepared.content)
    metadata = list(model.metadata_props)
    excluded = [node for layer in prepared.layers if layer.name in kept for node in layer.nodes]
    if form == "dynamic":
        excluded += [f"{node}_MatMul" for node in excluded]  # Gemms are rewritten first
    if form == "qoperator":
        excluded += [node.name for node in model.graph.node if interpolates(node)]  # in integers it would truncate
    with quiet_logging(), naming_failures("quantise"):
        quantiser = _make_quantiser(model, form, ranges, excluded)
        quantiser.quantize_model()
        quantiser.model.topological_sort()
        made = quantiser.model.model
    del made.metadata_props[:]
    made.metadata_props.extend(metadata)
    del made.graph.value_info[:]  # it also describes tensors that are no more
    keep_used_domains(made)
    return bytes(made.SerializeToString())


def _make_quantiser(model: Any, form: str, ranges: Any, excluded: list[str]) -> Any:
    from onnxruntime.quantization import QDQQuantizer, QuantizationMode, QuantType
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer

    types = (QuantType.QInt8, QuantType.QUInt8)  # of weights, of activations
    by_channel, reduced = True, False  # int8's full range: sums here don't saturate
    if form == "qdq":
        return QDQQuantizer(model, by_channel, reduced, *types, ranges, [], excluded, QUANTISABLE, {})
    is_static = form != "dynamic"
    mode = QuantizationMode.QLinearOps if is_static else QuantizationMode.IntegerOps
    ops = QUANTISABLE if is_static else [*LAYERS["dynamic"]]
    options = {} if is_static else {"MatMulConstBOnly": True}
    return ONNXQuantizer(model, by_channel, reduced, mode, is_static, *types, ranges, [], excluded, ops, options)
