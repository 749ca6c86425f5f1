"""The table of draws, and a graph from a number."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from graphs import (
    attending,
    bytes,
    classical,
    elementwise,
    ending,
    fused,
    integral,
    movement,
    products,
    recurrent,
    reducing,
    resizing,
    sampling,
    scattering,
    windows,
)
from graphs.draft import ROWS, Draft
from graphs.noise import MICROSOFT, Dropped

Drawing = Callable[[Draft], None]
NCHWC = "AveragePool Conv GlobalAveragePool GlobalMaxPool MaxPool ReorderInput ReorderOutput Upsample"


def own(names: str) -> str:
    """Operators of onnxruntime's own domain."""
    return " ".join(f"{MICROSOFT}.{name}" for name in names.split())


# What each draw may add, and how often it is drawn.
DRAWS: dict[Drawing, tuple[float, str]] = {
    elementwise.draw_unary: (4, " ".join(elementwise.SMOOTH_UNARY)),
    elementwise.draw_positive: (1, " ".join(elementwise.POSITIVE_UNARY)),
    elementwise.draw_bounded: (1, " ".join(elementwise.BOUNDED_UNARY) + " Acosh"),
    elementwise.draw_moving: (3, " ".join(elementwise.MOVING_UNARY)),
    elementwise.draw_jumps: (1, " ".join(elementwise.JUMPING_UNARY)),
    elementwise.draw_scale: (0.8, "Mul"),
    elementwise.draw_threshold: (0.4, "ThresholdedRelu"),
    elementwise.draw_clip: (1, "Clip"),
    elementwise.draw_arithmetic: (4, "Add Sub Mul Div Pow PRelu"),
    elementwise.draw_several: (2, "Max Min Sum Mean"),
    elementwise.draw_comparison: (1.5, " ".join(elementwise.COMPARISONS)),
    elementwise.draw_truth: (0.5, "Not And Or Xor"),
    elementwise.draw_where: (0.5, "Where"),
    elementwise.draw_gaps: (0.4, "IsNaN IsInf"),
    elementwise.draw_mod: (0.3, "Mod"),
    elementwise.draw_cast: (0.6, "Cast"),
    integral.draw_integer_arithmetic: (
        1.5,
        "Add Sub Mul Neg Abs Max Div Mod CumSum ReduceSum Trilu Equal Greater Less",
    ),
    integral.draw_one_hot: (0.5, "OneHot"),
    integral.draw_elements: (0.7, "GatherElements"),
    integral.draw_searched: (0.7, "TopK ArgMax ArgMin Gather GatherElements"),
    integral.draw_parts: (0.5, "GatherND"),
    integral.draw_cumulated: (0.7, "CumSum"),
    integral.draw_triangle: (0.5, "Trilu"),
    movement.draw_transpose: (4, "Transpose"),
    movement.draw_reshape: (3, "Reshape"),
    movement.draw_flatten: (0.7, "Flatten"),
    movement.draw_squeeze: (1, "Squeeze"),
    movement.draw_unsqueeze: (1, "Unsqueeze"),
    movement.draw_slice: (3, "Slice"),
    movement.draw_split: (2, "Split"),
    movement.draw_concat: (2, "Concat"),
    movement.draw_pad: (2, "Pad"),
    movement.draw_expand: (1, "Expand"),
    movement.draw_tile: (1, "Tile"),
    movement.draw_gather: (1.5, "Gather"),
    movement.draw_depth: (1.2, "DepthToSpace SpaceToDepth"),
    movement.draw_dropout: (0.3, "Dropout"),
    windows.draw_conv: (3, "Conv"),
    windows.draw_computed_conv: (0.3, "Conv"),
    windows.draw_conv_transpose: (2, "ConvTranspose"),
    windows.draw_max_pool: (2.5, "MaxPool"),
    windows.draw_average_pool: (2.5, "AveragePool"),
    windows.draw_lp_pool: (0.7, "LpPool"),
    windows.draw_global_pool: (1, "GlobalAveragePool GlobalMaxPool GlobalLpPool"),
    windows.draw_lrn: (0.4, "LRN"),
    resizing.draw_resize: (2.5, "Resize Upsample"),
    reducing.draw_reduction: (2, " ".join(reducing.REDUCTIONS)),
    reducing.draw_softmax: (1.5, "Softmax LogSoftmax"),
    reducing.draw_arg: (0.7, "ArgMax ArgMin"),
    reducing.draw_top: (0.7, "TopK"),
    reducing.draw_batch_norm: (1, "BatchNormalization"),
    reducing.draw_instance_norm: (0.6, "InstanceNormalization"),
    reducing.draw_layer_norm: (1, "LayerNormalization RMSNormalization"),
    reducing.draw_group_norm: (1, "GroupNormalization"),
    reducing.draw_lp_norm: (0.4, "LpNormalization"),
    reducing.draw_mean_variance: (0.4, "MeanVarianceNormalization"),
    products.draw_matmul: (2.5, "MatMul"),
    products.draw_product_with_itself: (0.4, "MatMul"),
    products.draw_gemm: (1.5, "Gemm"),
    products.draw_einsum: (0.8, "Einsum"),
    classical.draw_scaler: (0.4, "ai.onnx.ml.Scaler"),
    classical.draw_imputer: (0.3, "ai.onnx.ml.Imputer"),
    classical.draw_binarizer: (0.3, "ai.onnx.ml.Binarizer"),
    classical.draw_normalizer: (0.3, "ai.onnx.ml.Normalizer"),
    classical.draw_regressor: (0.3, "ai.onnx.ml.LinearRegressor"),
    classical.draw_classifier: (0.3, "ai.onnx.ml.LinearClassifier"),
    classical.draw_columns: (0.3, "ai.onnx.ml.ArrayFeatureExtractor"),
    classical.draw_labels: (0.4, "ai.onnx.ml.LabelEncoder"),
    classical.draw_categories: (0.4, "ai.onnx.ml.OneHotEncoder"),
    recurrent.draw_lstm: (1.2, "LSTM"),
    recurrent.draw_gru: (1, "GRU"),
    recurrent.draw_rnn: (0.8, "RNN"),
    sampling.draw_grid_sample: (1.2, "GridSample"),
    sampling.draw_affine_grid: (0.5, "AffineGrid"),
    sampling.draw_indices: (0.8, "MaxPool"),
    sampling.draw_unpool: (0.6, "MaxUnpool"),
    scattering.draw_scatter_nd: (0.7, "ScatterND"),
    scattering.draw_scatter_elements: (0.8, "Scatter ScatterElements"),
    attending.draw_attention: (1.2, "Attention"),
    attending.draw_rotary: (0.8, "RotaryEmbedding"),
    bytes.draw_round_trip: (1, "QuantizeLinear DequantizeLinear"),
    bytes.draw_byte_weights: (0.6, "DequantizeLinear"),
    bytes.draw_dynamic: (0.4, "DynamicQuantizeLinear DequantizeLinear"),
    fused.draw_gelu: (0.6, own("Gelu FastGelu BiasGelu QuickGelu")),
    fused.draw_fused_conv: (0.6, own("FusedConv")),
    fused.draw_fused_matmul: (0.5, own("FusedMatMul TransposeMatMul")),
    fused.draw_fused_gemm: (0.4, own("FusedGemm")),
    fused.draw_skip_norm: (0.6, own("SkipLayerNormalization SkipSimplifiedLayerNormalization")),
    fused.draw_simplified_norm: (0.4, "SimplifiedLayerNormalization"),
    fused.draw_embeddings: (0.3, own("EmbedLayerNormalization")),
    fused.draw_fused_attention: (0.7, own("Attention MultiHeadAttention")),
    fused.draw_fused_rotary: (0.4, own("RotaryEmbedding")),
}
ENDS = "NonZero NonMaxSuppression Compress Unique RoiAlign"
"""What ``ending.draw_end`` may add."""
_CPU = "onnxruntime has none for a CPU"
_BLOCKS = "its blocks are made by onnxruntime's optimizer only, for a processor"
_LATER = "onnxruntime doesn't know its opset, or its domain"
UNDRAWN = {
    "ai.onnx.ml.ZipMap": "its output is a list of dicts, compared in test_planner_pipelines.py",
    **dict.fromkeys(own("BiasAdd BiasSplitGelu GroupNorm NhwcConv NhwcFusedConv").split(), _CPU),
    **{f"com.microsoft.nchwc.{name}": _BLOCKS for name in NCHWC.split()},
    **dict.fromkeys(("LinearAttention", "SwiGLU", "ai.onnx.preview.FlexAttention"), _LATER),
    **dict.fromkeys(own("NhwcMaxPool Pad QLinearConv").split(), "compared in tests/importer"),
    "MaxRoiPool": "its regions are an input; compared with the other ends in tests/planner",
}
"""Operators that run and are not drawn, each with the reason. ``quantised.py`` draws those of quantised graphs."""
OPSETS = (7, 8, 9, 10, 11, 12, 13, 13, 14, 15, 16, 17, 17, 17, 18, 19, 20, 21, 21, 22, 23, 23, 24)
SHORTEST, LONGEST = 2, 12
ATTEMPTS = 60


@dataclass(frozen=True)
class Setting:
    """How a graph is drawn and run."""

    opset: int
    float_type: str
    opened: bool
    rows: int
    dtype: str
    target: str
    effort: int
    fallback: bool
    twice: bool
    buckets: tuple[int, ...] | None


def setting(seed: int) -> Setting:
    """Of graph ``seed``: most run in float32 on trn2, as most models do."""
    draw = random.Random(seed)
    float_type = draw.choices(["float32", "float16", "float64"], [90, 9, 1])[0]
    dtype = draw.choices(["float32", "bfloat16", "float16"], [84, 9, 7])[0]
    return Setting(
        opset=draw.choice(OPSETS),
        float_type=float_type,
        opened=draw.random() < 0.55,
        rows=draw.choice(ROWS),
        dtype=dtype,
        target=draw.choices(["trn2", "trn1", "trn3"], [80, 14, 6])[0],
        effort=int(draw.random() < 0.03),
        fallback=draw.random() < 0.05,
        twice=draw.random() < 0.06,
        buckets=draw.choice([(4,), (1, 8), (3,)]) if draw.random() < 0.15 else None,
    )


def draw_graph(seed: int) -> tuple[Draft, Setting]:
    """Graph ``seed``."""
    given = setting(seed)
    draft = Draft(seed, given.opset, given.float_type, given.dtype, given.opened, given.rows, given.fallback)
    for _ in range(draft.choice([1, 1, 2, 3])):
        with suppress(Dropped):
            draw_input(draft)
    wanted, draws = draft.between(SHORTEST, LONGEST), list(DRAWS)
    weights = [DRAWS[draw][0] for draw in draws]
    for _ in range(ATTEMPTS):
        if len(draft.nodes) >= wanted:
            break
        try:
            if given.fallback and not draft.nodes:
                draw_unsupported(draft)
            draft.random.choices(draws, weights)[0](draft)
        except Dropped as reason:
            draft.dropped[str(reason)] += 1
    if draft.chance(0.04):
        with suppress(Dropped):
            ending.draw_end(draft)
    return draft, given


def draw_input(draft: Draft) -> None:
    """An input: images above all, other ranks, and types that the device has not."""
    batch: list[int | str] = ["N"] if draft.opened else [draft.choice(ROWS)]
    rank = draft.choice([1, 2, 2, 3, 4, 4, 4, 4, 4, 5, *([0, 1, 2, 3] if draft.inputs else [])])
    if draft.inputs and draft.chance(0.12):
        name = draft.input((*batch, *[draft.size(5)] * draft.between(0, 1)), draft.choice(["int64", "int32"]), "index")
        if draft.chance(0.3):
            draft.add("Cast", [name], "moves", to=elementwise.draft_type(draft))
        return
    if rank == 4:
        sizes = [draft.choice([1, 1, 1, 2, 3, 4, 8]), draft.size(), draft.size()]
    else:
        sizes = [draft.size(9 if rank > 3 else 13) for _ in range(rank - 1)]
    if rank == 4 and draft.chance(0.05):  # more channels than there are partitions
        sizes = [130, draft.size(3), draft.size(2)]
    if rank == 2 and draft.chance(0.1):
        sizes = [draft.choice([64, 130, 200])]
    shape = (*batch, *sizes) if rank else ()
    kind = draft.choice(["normal", "normal", "normal", "eighths", "eighths"])
    if len(draft.inputs) and draft.chance(0.1):
        other = draft.choice(["bool", "int32", "int64", "uint8", "float64", "float16", "float32"])
        kind = "truth" if other == "bool" else "normal" if other.startswith("float") else "integer"
        name = draft.input(shape, other, kind)
        if other != draft.float_type:
            rounds = other.startswith("float")
            draft.add("Cast", [name], "smooth" if rounds else "moves", to=elementwise.draft_type(draft))
        return
    draft.input(shape, draft.float_type, "gaps" if draft.inputs and draft.chance(0.05) else kind)


def draw_unsupported(draft: Draft) -> None:
    """An operator that has no lowering, where a fallback runs it."""
    op = draft.choice(["Hardmax", "Shrink"])
    source = draft.pick(lambda array: array.ndim > 0)
    if op == "Hardmax":
        draft.add(op, [source], "step", axis=len(draft.shape(source)) - 1)
    else:
        draft.since(9)
        draft.add(op, [source], "jumps")
