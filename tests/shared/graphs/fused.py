"""Operators of com.microsoft, as onnxruntime's optimizers write them, in the forms that its CPU has."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphs.attending import pick_tokens, project
from graphs.draft import Draft
from graphs.movement import has_rank
from graphs.noise import MICROSOFT, Dropped
from graphs.products import draw_gemm_inputs
from graphs.reducing import epsilon
from graphs.windows import draw_conv_inputs, pick_image

ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")


def need_float32(draft: Draft) -> None:
    draft.since(11)
    if draft.float_type != "float32":
        raise Dropped("onnxruntime's own operators are of float32")


def draw_gelu(draft: Draft) -> None:
    need_float32(draft)
    op = draft.choice(["Gelu", "FastGelu", "BiasGelu", "QuickGelu"])
    source = draft.pick(has_rank(1))
    size = draft.shape(source)[-1]
    has_bias = op == "BiasGelu" or (op == "FastGelu" and draft.chance(0.5))
    if has_bias and draft.batched(source) and len(draft.shape(source)) == 1:
        raise Dropped("a bias of the batch")
    inputs = [source, draft.weight(draft.numbers([size]))] if has_bias else [source]
    alpha = draft.choice([None, 1.0, 1.702]) if op == "QuickGelu" else None
    draft.add(op, inputs, domain=MICROSOFT, alpha=alpha)


def draw_fused_conv(draft: Draft) -> None:
    """A convolution with an activation, at times plus another tensor."""
    need_float32(draft)
    source = pick_image(draft)
    if len(draft.shape(source)) != 4:
        raise Dropped("images only")
    inputs, settings = draw_conv_inputs(draft, source)
    activation = draft.choice(ACTIVATIONS)
    numbers: dict[str, Any] = {"LeakyRelu": [0.25], "Clip": [-0.5, 1.0], "HardSigmoid": [0.2, 0.5]}
    settings |= {"activation": activation, "activation_params": numbers.get(activation)}
    draft.add("FusedConv", inputs, domain=MICROSOFT, **settings)


def draw_fused_matmul(draft: Draft) -> None:
    """A product whose factors may be transposed, times a number."""
    need_float32(draft)
    source = draft.pick(has_rank(2, 4))
    shape = draft.shape(source)
    turned, across = draft.chance(0.4), draft.chance(0.4)
    if turned and len(shape) == 2 and draft.batched(source):
        raise Dropped("the batch stays")
    inner, features = shape[-2] if turned else shape[-1], draft.size(9)
    other = draft.weight(draft.numbers([features, inner] if across else [inner, features], 0.5))
    op = draft.choice(["FusedMatMul", "FusedMatMul", "TransposeMatMul"])
    settings = {"transA": int(turned) or None, "transB": int(across) or None, "alpha": draft.choice([None, 0.5, -1.5])}
    draft.add(op, [source, other], domain=MICROSOFT, **settings)


def draw_fused_gemm(draft: Draft) -> None:
    need_float32(draft)
    inputs, settings = draw_gemm_inputs(draft)
    activation = draft.choice(["Relu", "Tanh", "Sigmoid", "LeakyRelu"])
    if activation == "LeakyRelu":
        settings["activation_alpha"] = 0.25
    draft.add("FusedGemm", inputs, domain=MICROSOFT, activation=activation, **settings)


def draw_skip_norm(draft: Draft) -> None:
    """A normalisation of a sum, which is an output at times."""
    need_float32(draft)
    source = pick_tokens(draft)
    size = draft.shape(source)[-1]
    simple = draft.chance(0.4)
    shape = draft.shape(source)
    skip = draft.pick(lambda array: array.shape == shape)
    inputs = [source, skip, *(draft.weight(draft.numbers([size])) for _ in range(1 if simple else 2))]
    if draft.chance(0.5):
        inputs.append(draft.weight(draft.numbers([size])))
    outputs = draft.choice([1, 1, 4])
    op = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    settings = {"outputs": outputs, "left_out": [1, 2] if outputs == 4 else [], "epsilon": epsilon(draft, size)}
    draft.add(op, inputs, domain=MICROSOFT, **settings)


def draw_simplified_norm(draft: Draft) -> None:
    """In ONNX's own domain, where only onnxruntime has it."""
    need_float32(draft)
    source = draft.pick(has_rank(2, 4))
    size = draft.shape(source)[-1]
    inputs = [source, draft.weight(draft.numbers([size]))]
    draft.add("SimplifiedLayerNormalization", inputs, axis=-1, epsilon=epsilon(draft, size))


def draw_embeddings(draft: Draft) -> None:
    """The sum of word, position and segment embeddings, normalised; and the tokens that a mask counts."""
    need_float32(draft)
    length, size, words = draft.size(7), draft.choice([4, 6, 9]), 9
    rows: int | str = "N" if draft.opened else draft.rows
    ids, segments = (draft.input((rows, length), "int32", "integer") for _ in range(2))
    has_segments = draft.chance(0.6)
    tables = [draft.weight(draft.numbers([count, size])) for count in (words, length + draft.between(0, 3), 5)]
    parts = [draft.weight(draft.numbers([size])) for _ in range(2)]
    inputs = [ids, segments if has_segments else "", tables[0], tables[1], tables[2] if has_segments else "", *parts]
    inputs.append(draft.input((rows, length), "int32", "mask"))  # the second output counts it
    draft.add("EmbedLayerNormalization", inputs, domain=MICROSOFT, outputs=2, epsilon=epsilon(draft, size))


def draw_fused_attention(draft: Draft) -> None:
    """With its projections, or behind them."""
    need_float32(draft)
    source = pick_tokens(draft)
    count, length, width = draft.shape(source)
    heads, size = draft.choice([1, 2, 3]), draft.choice([2, 4])
    settings: dict[str, Any] = {"num_heads": heads, "scale": draft.choice([None, 0.3])}
    if draft.chance(0.2):
        settings["unidirectional"] = 1
    if draft.chance(0.5):
        weights = draft.weight(draft.numbers([width, 3 * heads * size], 0.5))
        inputs = [source, weights, draft.weight(draft.numbers([3 * heads * size]))]
        if not draft.batched(source) and draft.chance(0.4):
            mask = draft.generator.random((count, length)) < 0.7
            mask[:, 0] = True
            inputs.append(draft.fixed(mask.astype(np.int32), "int32"))
        draft.add("Attention", inputs, domain=MICROSOFT, **settings)
        return
    others = draft.pick(lambda array: array.ndim == 3 and array.shape[0] == count) if draft.chance(0.4) else source
    inputs = [project(draft, name, heads * size) for name in (source, others, others)]
    if draft.chance(0.4):
        inputs.append(draft.weight(draft.numbers([3 * heads * size])))
    draft.add("MultiHeadAttention", inputs, domain=MICROSOFT, **settings)


def draw_fused_rotary(draft: Draft) -> None:
    """Pairs of elements, turned by the angles of positions."""
    need_float32(draft)
    source = pick_tokens(draft)
    count, length, width = draft.shape(source)
    if draft.batched(source) or width % 4:
        raise Dropped("positions are of each row, and heads of pairs")
    heads = draft.choice([n for n in (1, 2) if width % (2 * n) == 0])
    angles = (np.arange(length + 4)[:, None] / 10.0 ** np.arange(width // heads // 2)).astype(np.float32)
    positions = draft.fixed(draft.generator.integers(0, length + 4, (count, length)))
    inputs = [source, positions, draft.weight(np.cos(angles)), draft.weight(np.sin(angles))]
    draft.add("RotaryEmbedding", inputs, domain=MICROSOFT, interleaved=draft.choice([None, 0, 1]), num_heads=heads)
