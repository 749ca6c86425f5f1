"""ViT-B/16 at 224 ("An Image is Worth 16x16 Words", arXiv:2010.11929, table 1), with an open batch.

As PyTorch's exporter writes it: one product for queries, keys and values, and GELU with the error function.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from benchmarks.baseline.building import Builder

SIDE, PATCH, CLASSES = 224, 16, 1000
WIDTH, DEPTH, HEADS = 768, 12, 12
TOKENS = (SIDE // PATCH) ** 2 + 1
"""The patches, and the token whose last state is classified."""


def vit_b_16() -> onnx.ModelProto:
    """(N, 3, 224, 224) to (N, 1000)."""
    b = Builder("vit_b_16", SIDE, eps=1e-6)
    patches = b.conv("image", (3, WIDTH), PATCH, PATCH)
    patches = b.transpose(b.node("Reshape", patches, b.constant([0, WIDTH, TOKENS - 1])), 0, 2, 1)
    batch = b.node("Slice", b.node("Shape", patches), b.constant([0]), b.constant([1]))
    first = b.node("Expand", b.parameter(1, 1, WIDTH, spread=0.02), b.concat(batch, b.constant([1, WIDTH]), axis=0))
    source = b.node("Add", b.concat(first, patches), b.parameter(1, TOKENS, WIDTH, spread=0.02))
    for _ in range(DEPTH):
        source = b.node("Add", source, _attend(b, b.layer_norm(source, WIDTH)))
        inner = b.gelu(b.dense(b.layer_norm(source, WIDTH), WIDTH, 4 * WIDTH))
        source = b.node("Add", source, b.dense(inner, 4 * WIDTH, WIDTH))
    last = b.node("Gather", b.layer_norm(source, WIDTH), b.constant(np.array(0)), axis=1)
    return b.ending(b.linear(last, WIDTH, CLASSES), CLASSES)


def _attend(b: Builder, source: str) -> str:
    """Attention of all tokens to all, in 12 heads."""
    size = WIDTH // HEADS
    parts = b.node("Reshape", b.dense(source, WIDTH, 3 * WIDTH), b.constant([0, TOKENS, 3, HEADS, size]))
    parts = b.transpose(parts, 2, 0, 3, 1, 4)
    queries, keys, values = (b.node("Gather", parts, b.constant(np.array(k)), axis=0) for k in range(3))
    scores = b.node("MatMul", queries, b.transpose(keys, 0, 1, 3, 2))
    shares = b.node("Softmax", b.node("Mul", scores, b.constant(1 / math.sqrt(size))), axis=-1)
    mixed = b.transpose(b.node("MatMul", shares, values), 0, 2, 1, 3)
    return b.dense(b.node("Reshape", mixed, b.constant([0, TOKENS, WIDTH])), WIDTH, WIDTH)
