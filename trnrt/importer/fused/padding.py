"""com.microsoft.Pad, which onnxruntime had before ONNX's own Pad took its pads as an input."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.fused.writing import Writer
from trnrt.importer.quantised.forms import Left
from trnrt.importer.values import attribute, input_at


def write_pad(writer: Writer, node: ir.Node) -> None:
    """ONNX's Pad, with constant pads of one or two dimensions."""
    pads = writer.array(input_at(node, 1), "its pads").reshape(-1).astype(np.int64)
    data, value, mode = node.inputs[0], input_at(node, 2), attribute(node, "mode", "constant")
    if pads.size != 2 * writer.rank(data):
        raise Left(f"{pads.size} pads for {writer.rank(data)} dimensions")
    if writer.opset >= 11:
        flat = value if value is None else writer.array(value, "its value").reshape(())
        writer.finish(writer.apply("Pad", data, pads, flat, name=node.name or "", mode=mode))
        return
    fill = 0.0 if value is None else float(writer.array(value, "its value").reshape(()))
    writer.finish(writer.apply("Pad", data, name=node.name or "", mode=mode, pads=pads.tolist(), value=fill))
