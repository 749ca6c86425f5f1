"""Models that contradict ONNX: onnxruntime refuses them, too. Most are refused when they are read."""

from __future__ import annotations

import numpy as np
from hinted import IMAGE, LSTM, Hinted, X, ints, ones

from trnrt.planner.lowering.blocked import WRONG

_UP = "(float[1,1,2,2] x) => (float[1,1,4,4] y)"

WRONGLY_MADE: dict[str, Hinted] = {
    "a column that isn't there": Hinted(
        "(float[2,4] x) => (float[2,1] y) { r = Neg(x)  y = ai.onnx.ml.ArrayFeatureExtractor(r, i) }",
        WRONG,
        constants={"i": ints(9)},
    ),
    "an element that isn't there": Hinted(
        "(float[2,4] x) => (float[2,1] y) { r = Neg(x)  y = Gather<axis=1>(r, i) }", WRONG, constants={"i": ints(7)}
    ),
    "a place that isn't there": Hinted(
        "(float[2,4] x) => (float[2,1] y) { r = Neg(x)  y = GatherElements<axis=1>(r, i) }",
        WRONG,
        constants={"i": np.array([[9], [1]])},
    ),
    "two lists": Hinted(
        f"{X} {{ r = Relu(x)  y = ai.onnx.ml.LabelEncoder<keys_floats=[1.0,2.0], values_floats=[1.0]>(r) }}", WRONG
    ),
    "groups of a remainder": Hinted(
        "(float[2,3,4] x) => (float[2,3,4] y) { r = Neg(x)  y = GroupNormalization<num_groups=2>(r, s, s) }",
        WRONG,
        constants={"s": ones(3)},
        opset=21,
    ),
    "a third norm": Hinted(f"{X} {{ r = Neg(x)  y = LpNormalization<p=3>(r) }}", WRONG),
    "no positions": Hinted(f"{X} {{ r = Neg(x)  y = LRN<size=3>(r) }}", WRONG),
    "three scales": Hinted(f"{X} {{ y = ai.onnx.ml.Scaler<scale=[1.0,2.0,3.0]>(x) }}", WRONG),
    "no rows": Hinted("(float x) => (float y) { y = ai.onnx.ml.Scaler<scale=[1.0]>(x) }", WRONG),
    "an unknown norm": Hinted(f'{X} {{ y = ai.onnx.ml.Normalizer<norm="L3">(x) }}', WRONG),
    "three coefficients": Hinted(
        """(float[2,4] x) => (float[2,1] y)
        { y = ai.onnx.ml.LinearRegressor<targets=1, coefficients=[1.0,1.0,1.0]>(x) }""",
        WRONG,
    ),
    "three scores": Hinted(
        """(float[2,3] x) => (seq(map(int64,float)) z)
        { z = ai.onnx.ml.ZipMap<classlabels_int64s=[0,1]>(x) }""",
        WRONG,
    ),
    "a pool of one dimension": Hinted("(float[2] x) => (float[2] y) { r = Neg(x)  y = GlobalMaxPool(r) }", WRONG),
    "an unknown mode of padding": Hinted(
        '(float[2,4] x) => (float[2,6] y) { r = Neg(x)  y = Pad<mode="mirror">(r, p) }',
        WRONG,
        constants={"p": ints(0, 1, 0, 1)},
    ),
    "an unknown interpolation": Hinted(
        f'{_UP} {{ r = Neg(x)  y = Resize<mode="area">(r, , s) }}',
        WRONG,
        constants={"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "unknown coordinates": Hinted(
        f'{_UP} {{ r = Neg(x)  y = Resize<coordinate_transformation_mode="center">(r, , s) }}',
        WRONG,
        constants={"s": np.array([1, 1, 2, 2], np.float32)},
        opset=19,
    ),
    "an unknown rounding": Hinted(
        f'{_UP} {{ r = Neg(x)  y = Resize<nearest_mode="even">(r, , s) }}',
        WRONG,
        constants={"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "fmod of floats": Hinted(
        f"{X} {{ y = Mod<fmod=0>(x, c) }}",
        "export the model with fmod=1",
        f"{X} {{ y = Mod<fmod=1>(x, c) }}",
        {"c": ones(2, 4) * 3},
    ),
}

CONTRADICTIONS: dict[str, Hinted] = {
    "channels": Hinted(
        f"{IMAGE} {{ r = Neg(x)  y = Conv(r, w) }}",
        constants={"w": ones(2, 3, 1, 1)},
        reason="1 groups of 2 channels, with weights of shape (2, 3, 1, 1)",
    ),
    "matrices": Hinted(
        "(float[2,4,1] x) => (float[2,4] y) { y = Gemm(x, w) }",
        constants={"w": ones(4, 4)},
        reason="A has 3 dimensions; Gemm takes matrices",
    ),
    "images": Hinted(
        "(float[1,4,2] x) => (float[1,1,4] y) { y = DepthToSpace<blocksize=2>(x) }",
        reason="DepthToSpace of 3 dimensions; only images (N, C, H, W) are supported",
    ),
    "numbers": Hinted(
        f"{X} {{ y = BatchNormalization(x, s, s, s, s) }}",
        constants={"s": ones(3)},
        reason="scale of shape (3,); it must have 4 numbers",
    ),
    "a window": Hinted(
        f"{IMAGE} {{ y = MaxPool<kernel_shape=[1]>(x) }}", reason="kernel_shape=[1]: 2 numbers are expected"
    ),
    "pads": Hinted(
        f"{IMAGE} {{ y = MaxPool<kernel_shape=[2,2], pads=[1,1]>(x) }}",
        reason="kernel_shape, strides, dilations and pads don't fit 2 dimensions",
    ),
    "volumes' pads": Hinted(
        "(float[1,2,3,3,3] x) => (float[1,2,3,3,3] y) { y = MaxPool<kernel_shape=[2,2,2], pads=[1,1]>(x) }",
        reason="kernel_shape, strides, dilations and pads don't fit 3 dimensions",
    ),
    "strides": Hinted(
        f"{IMAGE} {{ y = Conv<strides=[1]>(x, w) }}",
        constants={"w": ones(2, 2, 1, 1)},
        reason="strides=[1]: 2 numbers are expected",
    ),
    "negative pads": Hinted(
        "(float[1,2,3,3] x) => (float[1,2,1,1] y) { y = Conv<pads=[-1,-1,-1,-1]>(x, w) }",
        constants={"w": ones(2, 2, 1, 1)},
        reason="pads=[-1, -1, -1, -1]: negative padding",
    ),
    "sequences": Hinted(
        "(float[2,4] x) => (float[2,1,1,3] y) { y = LSTM<hidden_size=3>(x, w, r) }",
        constants=LSTM,
        reason="X has 2 dimensions; a recurrent layer takes 3",
    ),
    "an axis": Hinted(
        "(float[2,4] x) => (float[2] y) { y = ReduceMean<axes=[5], keepdims=0>(x) }",
        reason="axis 5 of a tensor of 2 dimensions",
    ),
    "triangles": Hinted(
        "(float[4] x) => (float[4] y) { y = Trilu(x) }", reason="a tensor of 1 dimensions; there must be matrices"
    ),
    "no K": Hinted(
        "(float[1,6] x) => (float[1,1] y, int64[1,1] i) { y, i = TopK(x) }", reason="the input K is missing"
    ),
    "two K": Hinted(
        "(float[1,6] x) => (float[1,1] y, int64[1,1] i) { y, i = TopK(x, k) }",
        constants={"k": ints(1, 1)},
        reason="2 numbers for K",
    ),
    "a large K": Hinted(
        "(float[1,6] x) => (float[1,9] y, int64[1,9] i) { y, i = TopK(x, k) }",
        constants={"k": ints(9)},
        reason="K=9 along an axis of 6 elements",
    ),
    "no size": Hinted(f"{_UP} {{ y = Resize(x) }}", reason="neither scales nor sizes are given for its axes"),
    "three sizes": Hinted(f"{_UP} {{ y = Resize(x, , s) }}", constants={"s": ones(3)}, reason="3 scales for 4 axes"),
    "indices of floats": Hinted(
        "(float[2,4] x) => (float[2,4,4] y) { y = Gather(x, x) }", reason="the indices are not integers"
    ),
    "no categories": Hinted(
        "(float[2,4] x) => (float[2,4,1] y) { y = ai.onnx.ml.OneHotEncoder<zeros=1>(x) }",
        reason="an encoder without categories",
    ),
    "a missing input": Hinted(
        f"{X} {{ y = Where(c, x, ) }}", constants={"c": np.ones((2, 4), bool)}, reason="a required input is missing"
    ),
    "no targets": Hinted(
        """(float[2,4] x) => (float[2,0] y)
        { y = ai.onnx.ml.LinearRegressor<targets=0, coefficients=[1.0]>(x) }""",
        reason="0 results for each row",
    ),
}
"""Refused before they are lowered, or with another reason than the lowering's own check."""
