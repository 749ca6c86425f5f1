"""The walk over a graph that rewrites onnxruntime's own operators; ``_REWRITES`` says which function rewrites which."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import common as passes

from trnrt.importer.fused import activations, attention, normalizing, padding, products
from trnrt.importer.fused.blocked import Blocks, blocked_operators, is_blocked, write_blocked
from trnrt.importer.fused.writing import Writer, infer_open
from trnrt.importer.naming import node_text
from trnrt.importer.quantised.forms import LEFT, Left
from trnrt.text import list_text

Rewrite = Callable[[Writer, ir.Node], None]

NOTES = "trnrt.notes"
"""A model's metadata: what was done to it when it was read."""

# Operators of onnxruntime's domain, com.microsoft.
_REWRITES: dict[str, Rewrite] = {
    "Attention": attention.write_attention,
    "BiasAdd": activations.write_bias_add,
    "BiasGelu": activations.write_gelu,
    "BiasSplitGelu": activations.write_bias_split_gelu,
    "EmbedLayerNormalization": normalizing.write_embedding,
    "FastGelu": activations.write_gelu,
    "FusedConv": products.write_conv,
    "FusedGemm": products.write_gemm,
    "FusedMatMul": products.write_matmul,
    "Gelu": activations.write_gelu,
    "GroupNorm": normalizing.write_group_norm,
    "MultiHeadAttention": attention.write_multi_head_attention,
    "NhwcConv": products.write_conv_channels_last,
    "NhwcFusedConv": products.write_conv_channels_last,
    "NhwcMaxPool": products.write_max_pool_channels_last,
    "Pad": padding.write_pad,
    "QLinearConv": products.write_quantised_conv,
    "QuickGelu": activations.write_quick_gelu,
    "RotaryEmbedding": attention.write_rotary,
    "SkipLayerNormalization": normalizing.write_skip_layer_norm,
    "SkipSimplifiedLayerNormalization": normalizing.write_skip_layer_norm,
    "TransposeMatMul": products.write_matmul,
}


def fused_operators() -> dict[tuple[str, str], Callable[..., None]]:
    """(domain, name) -> the function that rewrites each of onnxruntime's operators, by name."""
    own: dict[tuple[str, str], Callable[..., None]] = {("com.microsoft", name): f for name, f in _REWRITES.items()}
    return dict(sorted((own | blocked_operators()).items()))


def rewrite_fused(model: ir.Model) -> None:
    """Rewrite every operator that can be; what is left has the reason in its metadata, and the model has notes."""
    graph = model.graph
    if not any(_is_fused(node) for node in graph):
        return
    # Weights may be Constant nodes.
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    blocks = Blocks(graph) if any(map(is_blocked, graph)) else None
    writer, done = Writer(model), []
    for node in list(graph):
        if not _is_fused(node):
            infer_open(node, model)
            continue
        title, writer.node = node_text(node), node
        try:
            if blocks is not None and is_blocked(node):
                write_blocked(writer, node, blocks)
            else:
                _REWRITES[node.op_type](writer, node)
        except Left as reason:
            node.meta[LEFT] = str(reason)
        else:
            done.append(title)
    notes = [f"written as plain operators: {list_text(done)}"] if done else []
    if blocks is not None and not blocks.is_known and blocks.size:
        notes.append(
            "channels in blocks: the file doesn't say how large they are, so that it is read with blocks of "
            f"{blocks.size}, as onnxruntime on this machine has them"
        )
    model.meta[NOTES] = notes


def _is_fused(node: ir.Node) -> bool:
    return is_blocked(node) or (node.domain == "com.microsoft" and node.op_type in _REWRITES)
