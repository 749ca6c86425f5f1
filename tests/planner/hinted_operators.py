"""Models that a lowering function refuses, with what its hint asks for."""

from __future__ import annotations

import numpy as np
from hinted import (
    COUNTS,
    EVAL,
    FIXED,
    FLAG,
    LARGEST,
    LSTM,
    ROWS,
    STATISTICS,
    TABLE,
    Hinted,
    X,
    ints,
    one,
    ones,
)

from trnrt.planner.lowering.blocked import FALLBACK

_CLIP_EXACT = "float32 is exact for those up to 16777216: cast to a float before it, or limit them (Clip); " + FALLBACK
_CLIP_SHORT = "bfloat16 is exact for those up to 256: cast to a float before it, or limit them (Clip); " + FLAG
_CAST = f"cast to float32 before it; {FALLBACK}"
_CLIP_INDEX = f"limit them (Clip), or make them an input of the model, which is checked; {FALLBACK}"

ELEMENTWISE: dict[str, Hinted] = {
    "a computed string": Hinted(
        "(float[2,4] x) => (string[2,4] y) { r = Neg(x)  y = Cast<to=8>(r) }",
        "the NeuronCore has no strings: convert them before or after the model",
        f"{X} {{ y = Neg(x) }}",
    ),
    "8-bit floats": Hinted(f"{X} {{ r = Abs(x)  q = Cast<to=17>(r)  y = Cast<to=1>(q) }}", opset=19),
    "columns by computed indices": Hinted(
        """(float[2,4] x) => (float[2,2] y) { c = Clip(x, low, high)  i = Cast<to=7>(c)  f = Reshape(i, all)
        g = Slice(f, start, end)  y = ai.onnx.ml.ArrayFeatureExtractor(x, g) }""",
        constants={"low": one(0), "high": one(1), "all": ints(8), "start": ints(0), "end": ints(2)},
    ),
    "an alpha of 0": Hinted(f"{X} {{ y = Celu<alpha=0.0>(x) }}"),
    "integers of unknown size": Hinted(
        "(float[2,4] x, int64[4] i) => (int64[2,4] y) { f = Cast<to=7>(x)  y = Add(f, i) }",
        _CLIP_EXACT,
        "(float[2,4] x, int64[4] i) => (int64[2,4] y) { f = Cast<to=7>(x)  c = Clip(f, low, high)  y = Add(c, i) }",
        {"low": np.array(-100), "high": np.array(100)},
        COUNTS,
    ),
    "the same, cast to a float": Hinted(
        "(float[2,4] x, int64[4] i) => (int64[2,4] y) { f = Cast<to=7>(x)  y = Add(f, i) }",
        _CLIP_EXACT,
        "(float[2,4] x, int64[4] i) => (float[2,4] y) { f = Floor(x)  g = Cast<to=1>(i)  y = Add(f, g) }",
        more=COUNTS,
    ),
    "integers that wrap around": Hinted(
        "(int8[4] i) => (int8[4] y) { y = Mul(i, i) }",
        _CLIP_SHORT,
        "(int8[4] i) => (int8[4] y) { c = Clip(i, low, high)  y = Mul(c, c) }",
        {"low": np.array(-11, np.int8), "high": np.array(11, np.int8)},
        {"i": np.arange(4, dtype=np.int8)},
        dtype="bfloat16",
    ),
    "integers beyond the dtype": Hinted(
        "(float[4] x) => (int64[4] y) { f = Cast<to=7>(x)  c = Clip(f, low, high)  y = Add(c, c) }",
        _CLIP_SHORT,
        "(float[4] x) => (int64[4] y) { f = Cast<to=7>(x)  c = Clip(f, low, less)  y = Add(c, c) }",
        {"low": np.array(0), "high": np.array(200), "less": np.array(100)},
        COUNTS,
        dtype="bfloat16",
    ),
    "a constant integer, in 16 bits": Hinted(
        "(int64[4] i) => (bool[4] y) { y = Equal(i, c) }", FLAG, "", {"c": ints(301, 1, 2, 3)}, COUNTS, dtype="bfloat16"
    ),
    "a constant integer": Hinted(f"{ROWS} {{ y = Add(i, c) }}", constants={"c": ints(2**40 + 1, 1, 2, 3)}, more=COUNTS),
    "arithmetic after a label": Hinted(
        """(float[2,4] x) => (int64[2] z) { l, y = ai.onnx.ml.LinearClassifier<classlabels_ints=[0,1],
        intercepts=[0.0,0.0], coefficients=[1.0,1.0,1.0,1.0,1.0,2.0,1.0,1.0]>(x)  z = Add(l, o) }""",
        constants={"o": np.array(1)},
    ),
    "arithmetic on integers": Hinted(
        "(int64[2,4] i) => (int64[2,1] y) { y = ReduceSumSquare<axes=[1]>(i) }",
        _CAST,
        "(int64[2,4] i) => (float[2,1] y) { f = Cast<to=1>(i)  y = ReduceSumSquare<axes=[1]>(f) }",
        more={"i": np.arange(8).reshape(2, 4)},
    ),
    "doubles": Hinted(
        "(double[2,4] x) => (double[2,4] y) { y = Neg(x) }",
        f"convert the model to float32; {FALLBACK}",
        f"{X} {{ y = Neg(x) }}",
    ),
    "strings side by side": Hinted(
        "(string[2] s, float[2] x) => (float[2] y, string[4] z) { y = Neg(x)  z = Concat<axis=0>(s, s) }",
        f"prepare the text before the model; {FALLBACK}",
        "(float[2] x) => (float[2] y) { y = Neg(x) }",
        more={"s": np.array(["a", "b"], object)},
    ),
    "nothing is left": Hinted(
        "(float[2,4] x) => (float[2,0] y) { r = Neg(x)  y = Slice(r, a, a, a) }",
        f"export the model for shapes that leave something; {FALLBACK}",
        "(float[2,4] x) => (float[2,2] y) { r = Neg(x)  y = Slice(r, a, b, a) }",
        {"a": ints(1), "b": ints(3)},
    ),
}

ENCODERS: dict[str, Hinted] = {
    "a long one-hot": Hinted(
        "(int64[2] i) => (float[2,300] y) { y = OneHot(i, d, v) }",
        constants={"d": np.array(300), "v": np.array([0, 1], np.float32)},
        more={"i": ints(1, 299)},
        dtype="bfloat16",
    ),
    "large integers in a one-hot": Hinted(
        "(int64[2] i) => (int64[2,3] y) { y = OneHot(i, d, v) }",
        constants={"d": np.array(3), "v": ints(0, 2**30 + 1)},
        more={"i": ints(1, 2)},
    ),
    "categories that stop": Hinted(
        "(float[2,4] x) => (float[2,4,1] y) { r = Relu(x)  y = ai.onnx.ml.OneHotEncoder<cats_int64s=[0], zeros=0>(r) }",
        "fit the encoder with handle_unknown='ignore'",
        "(float[2,4] x) => (float[2,4,1] y) { r = Relu(x)  y = ai.onnx.ml.OneHotEncoder<cats_int64s=[0], zeros=1>(r) }",
    ),
    "categories of text": Hinted(
        """(float[2,4] x) => (float[2,4,2] y) { r = Round(x)  s = Cast<to=8>(r)
        y = ai.onnx.ml.OneHotEncoder<cats_strings=["0","1"], zeros=1>(s) }""",
        "make the strings an input of the model",
        """(string[2,4] s) => (float[2,4,2] y)
        { y = ai.onnx.ml.OneHotEncoder<cats_strings=["0","1"], zeros=1>(s) }""",
        more={"s": np.array([["0", "1", "2", "0"], ["1", "1", "0", "9"]], object)},
        reason="computed strings",
    ),
    "large categories": Hinted(
        """(float[2,4] x) => (float[2,4,2] y)
        { r = Relu(x)  y = ai.onnx.ml.OneHotEncoder<cats_int64s=[1,300], zeros=1>(r) }""",
        FLAG,
        dtype="bfloat16",
    ),
    "labels of computed numbers": Hinted(
        """(float[2,4] x) => (string[2,4] y) { r = Round(x)
        y = ai.onnx.ml.LabelEncoder<keys_floats=[0.0,1.0], values_strings=["a","b"]>(r) }""",
        "look up final indices, labels, constants or inputs of the model",
        '(float[2,4] x) => (string[2,4] y) { y = ai.onnx.ml.LabelEncoder<keys_floats=[0.0], values_strings=["a"]>(x) }',
    ),
    "a look-up in 16 bits": Hinted(
        f"{X} {{ r = Round(x)  y = ai.onnx.ml.LabelEncoder<keys_floats=[0.0,1.0], values_floats=[1.0,2.0]>(r) }}",
        FLAG,
        dtype="bfloat16",
    ),
    "an imputer of integers": Hinted(
        """(int64[2,2] i) => (int64[2,2] y)
        { y = ai.onnx.ml.Imputer<imputed_value_int64s=[1], replaced_value_int64=0>(i) }""",
        "export the model with float inputs",
        """(float[2,2] x) => (float[2,2] y)
        { y = ai.onnx.ml.Imputer<imputed_value_floats=[1.0], replaced_value_float=0.0>(x) }""",
        more={"i": np.array([[0, 1], [2, 3]])},
    ),
    "two intercepts": Hinted(
        """(float[2,4] x) => (float[2,1] y) { y = ai.onnx.ml.LinearRegressor
        <targets=1, intercepts=[1.0,2.0], coefficients=[1.0,1.0,1.0,1.0]>(x) }"""
    ),
    "a regressor's softmax": Hinted(
        """(float[2,4] x) => (float[2,1] y) { y = ai.onnx.ml.LinearRegressor
        <targets=1, post_transform="SOFTMAX", coefficients=[1.0,1.0,1.0,1.0]>(x) }""",
        "apply it by a node of its own",
        """(float[2,4] x) => (float[2,1] y) { r = ai.onnx.ml.LinearRegressor
        <targets=1, coefficients=[1.0,1.0,1.0,1.0]>(x)  y = Softmax(r) }""",
    ),
    "a classifier's probit": Hinted(
        """(float[2,4] x) => (int64[2] l, float[2,2] y) { l, y = ai.onnx.ml.LinearClassifier<classlabels_ints=[0,1],
        post_transform="PROBIT", intercepts=[0.0,0.0], coefficients=[1.0,1.0,1.0,1.0,1.0,2.0,1.0,1.0]>(x) }""",
        "apply it after the model",
        """(float[2,4] x) => (int64[2] l, float[2,2] y) { l, y = ai.onnx.ml.LinearClassifier<classlabels_ints=[0,1],
        post_transform="NONE", intercepts=[0.0,0.0], coefficients=[1.0,1.0,1.0,1.0,1.0,2.0,1.0,1.0]>(x) }""",
    ),
    "one score for two classes": Hinted(
        """(float[2,4] x) => (int64[2] l, float[2,2] y) { l, y = ai.onnx.ml.LinearClassifier<classlabels_ints=[0,1],
        intercepts=[0.0], coefficients=[1.0,1.0,1.0,1.0]>(x) }""",
        "export the model with a score for each class",
        """(float[2,4] x) => (int64[2] l, float[2,2] y) { l, y = ai.onnx.ml.LinearClassifier<classlabels_ints=[0,1],
        intercepts=[0.0,0.0], coefficients=[-1.0,-1.0,-1.0,-1.0,1.0,1.0,1.0,1.0]>(x) }""",
    ),
    "a ZipMap that is read": Hinted(
        """(float[2,2] x) => (seq(map(int64,float)) z, seq(map(int64,float)) k)
        { y = Neg(x)  z = ai.onnx.ml.ZipMap<classlabels_int64s=[0,1]>(y)  k = Identity(z) }""",
        "export the model with options={'zipmap': False}",
        "(float[2,2] x) => (float[2,2] y) { y = Neg(x) }",
    ),
}

INDICES: dict[str, Hinted] = {
    "indices out of bounds": Hinted(
        "(float[2,4] x) => (float[2,4,3] y) { r = Neg(x)  i = Cast<to=7>(r)  y = Gather(t, i) }",
        _CLIP_INDEX,
        """(float[2,4] x) => (float[2,4,3] y) {
        r = Neg(x)  i = Cast<to=7>(r)  c = Clip(i, low, high)  y = Gather(t, c) }""",
        {"t": np.arange(15, dtype=np.float32).reshape(5, 3), "low": np.array(-5), "high": np.array(4)},
    ),
    "indices from an input": Hinted(
        "(float[2,4] x) => (float[2,4,3] y) { r = Neg(x)  i = Cast<to=7>(r)  y = Gather(t, i) }",
        _CLIP_INDEX,
        "(int64[2,4] i) => (float[2,4,3] y) { y = Gather(t, i) }",
        {"t": np.arange(15, dtype=np.float32).reshape(5, 3)},
        {"i": np.arange(8).reshape(2, 4) % 5},
    ),
    "an index as a number of 16 bits": Hinted(
        "(float[2,400] x) => (float[2,1] y) { i = ArgMax<axis=1>(x)  f = Cast<to=1>(i)  y = Sin(f) }",
        FLAG,
        dtype="bfloat16",
    ),
    "a sum of indices in 16 bits": Hinted(
        "(float[2,400] x) => (int64[1,1] y) { i = ArgMax<axis=1>(x)  y = ReduceSum(i, a) }",
        FLAG,
        constants={"a": ints(0)},
        dtype="bfloat16",
    ),
    "elements, counted in 16 bits": Hinted(
        """(float[2,400] x) => (float[2,400] y)
        { i = Cast<to=7>(x)  a = Clip(i, low, high)  y = GatherElements<axis=1>(x, a) }""",
        f"make the indices an input of the model; {FLAG}",
        "(float[2,400] x, int64[2,1] a) => (float[2,1] y) { r = Neg(x)  y = GatherElements<axis=1>(r, a) }",
        {"low": np.array(0), "high": np.array(2)},
        {"a": np.array([[3], [399]])},
        dtype="bfloat16",
    ),
    "indices that are turned": Hinted(
        "(int64[2,2] i, float[9,2] t) => (float[4,2] y) { a = Transpose(i)  j = Reshape(a, s)  y = Gather(t, j) }",
        constants={"s": ints(4)},
        more={"i": np.arange(4).reshape(2, 2), "t": TABLE},
        reason="would have to copy",
    ),
    "a computed number": Hinted(
        """(float[2,4] x) => (float[2,k] y)
        { m = ReduceMax<keepdims=0>(x)  c = Cast<to=7>(m)  s = Reshape(c, a)  r = Neg(x)  y, i = TopK(r, s) }""",
        "export the model with it as a constant",
        "(float[2,4] x) => (float[2,2] y) { r = Neg(x)  y, i = TopK(r, two) }",
        {"a": ints(1), "two": ints(2)},
    ),
    "a shape of opset 4": Hinted(
        "(float[2,4] x) => (float[4,2] y) { r = Neg(x)  y = Reshape<shape=[4,2]>(r) }",
        "convert the model to opset 7 or later",
        "(float[2,4] x) => (float[4,2] y) { r = Neg(x)  y = Reshape(r, s) }",
        {"s": ints(4, 2)},
        opset=4,
        after_opset=7,
    ),
    "a shape that is computed": Hinted(
        """(float[2,4] x) => (float[a,b] y) { m = ReduceMax<keepdims=0>(x)  c = Cast<to=7>(m)  s = Reshape(c, a)
        t = Concat<axis=0>(s, rest)  r = Reshape(x, t)  y = Exp(r) }""",
        FIXED,
        "(float[2,4] x) => (float[1,8] y) { r = Reshape(x, u)  y = Exp(r) }",
        {"a": ints(1), "rest": ints(-1), "u": ints(1, -1)},
    ),
}

LAYERS: dict[str, Hinted] = {
    "four dimensions": Hinted(
        "(float[1,2,2,2,2,2] x) => (float[1,2,2,2,2,2] y) { y = Conv(x, w) }",
        f"rows (N, C, W), images (N, C, H, W) and volumes (N, C, D, H, W) are supported; {FALLBACK}",
        "(float[1,2,2,2,4] x) => (float[1,2,2,2,4] y) { y = Conv(x, v) }",
        {"w": ones(2, 2, 1, 1, 1, 1), "v": ones(2, 2, 1, 1, 1)},
    ),
    "pooling of four dimensions": Hinted(
        "(float[1,2,2,2,2,2] x) => (float[1,2,1,1,1,1] y) { y = MaxPool<kernel_shape=[2,2,2,2]>(x) }",
        "pool up to three dimensions at a time, with a Reshape before and after",
        """(float[1,2,2,2,2,2] x) => (float[1,2,1,1,1,1] y) { a = Reshape(x, s)  b = MaxPool<kernel_shape=[1,2,2]>(a)
        c = Reshape(b, t)  d = MaxPool<kernel_shape=[2,2]>(c)  y = Reshape(d, u) }""",
        {"s": ints(1, 2, 4, 2, 2), "t": ints(1, 2, 2, 2), "u": ints(1, 2, 1, 1, 1, 1)},
    ),
    "a convolution that sees too much": Hinted(
        "(float[1,8,1,40000] x) => (float[1,1,1,1] y) { y = Conv(x, w) }",
        f"use a smaller kernel, or less dilation; {FALLBACK}",
        "(float[1,8,1,40000] x) => (float[1,1,1,39901] y) { y = Conv(x, v) }",
        {"w": ones(1, 8, 1, 40000) / 99, "v": ones(1, 8, 1, 100) / 99},
    ),
    "a large computed weight": Hinted(
        "(float[1,4096,1,1] x, float[4096,4096,1,1] w) => (float[1,4096,1,1] y) { v = Neg(w)  y = Conv(x, v) }"
    ),
    "long rows of a product": Hinted(
        "(float[1,1572865] x) => (float[1,1] y) { r = Sigmoid(x)  y = Gemm(r, w) }",
        constants={"w": ones(1572865, 1) / 1572865},
    ),
    "indices of a pool, before opset 11": Hinted(
        """(float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i)
        { r = Neg(x)  y, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) }""",
        "export the model without return_indices, or for smaller images and windows",
        """(float[1,1,4,4] x) => (float[1,1,2,2] y)
        { r = Neg(x)  y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) }""",
        opset=8,
    ),
    "indices of a large window": Hinted(
        "(float[1,1,9,9] x) => (float[1,1,1,1] y, int64[1,1,1,1] i) { y, i = MaxPool<kernel_shape=[9,9]>(x) }",
        "export the model without return_indices, or for smaller images and windows",
        "(float[1,1,9,9] x) => (float[1,1,2,2] y, int64[1,1,2,2] i) { y, i = MaxPool<kernel_shape=[8,8]>(x) }",
    ),
    "a norm of 0": Hinted("(float[1,2,3,3] x) => (float[1,2,2,2] y) { y = LpPool<kernel_shape=[2,2], p=0>(x) }"),
    "an equation of other sizes": Hinted(
        '(float[2,1] x, float[2,4] z) => (float[2,4] y) { r = Neg(x)  y = Einsum<equation="ij,ij->ij">(r, z) }',
        f"expand the operands before it; {FALLBACK}",
        """(float[2,1] x, float[2,4] z) => (float[2,4] y)
        { r = Neg(x)  e = Expand(r, s)  y = Einsum<equation="ij,ij->ij">(e, z) }""",
        {"s": ints(2, 4)},
    ),
    "dropout's mask": Hinted(
        "(float[2,4] x) => (float[2,4] y, bool[2,4] m) { y, m = Dropout(x, r, t) }",
        EVAL,
        "(float[2,4] x) => (float[2,4] y) { n = Neg(x)  y = Dropout(n) }",
        {"r": one(0.5), "t": np.array(True)},
    ),
    "dropout": Hinted(
        f"{X} {{ y = Dropout(x, ratio, training) }}",
        EVAL,
        f"{X} {{ r = Dropout(x)  y = Neg(r) }}",
        {"ratio": one(0.5), "training": np.array(True)},
    ),
    "dropout by the data": Hinted(
        f"{X} {{ s = ReduceMax<keepdims=0>(x)  t = Greater(s, z)  y = Dropout(x, r, t) }}",
        EVAL,
        f"{X} {{ n = Neg(x)  y = Dropout(n) }}",
        {"r": one(0.5), "z": one(9)},
    ),
    "dropout before opset 7": Hinted(
        f"{X} {{ y = Dropout(x) }}", EVAL, f"{X} {{ n = Neg(x)  y = Dropout(n) }}", opset=6, after_opset=7
    ),
    "batches' statistics": Hinted(
        f"{X} {{ y, a, b = BatchNormalization<training_mode=1>(x, s, s, s, s) }}",
        STATISTICS,
        f"{X} {{ y = BatchNormalization(x, s, s, s, s) }}",
        {"s": ones(4)},
    ),
    "batches' statistics, as a layer": Hinted(
        "(float[2,3,4] x) => (float[2,3,4] y) { y, a, b = BatchNormalization<training_mode=1>(x, s, s, s, s) }",
        STATISTICS,
        "(float[2,3,4] x) => (float[2,3,4] y) { y = InstanceNormalization(x, s, s) }",
        {"s": ones(3)},
    ),
    "batches' statistics before opset 7": Hinted(
        f"{X} {{ y = BatchNormalization<is_test=0>(x, s, s, s, s) }}",
        STATISTICS,
        f"{X} {{ y = BatchNormalization(x, s, s, s, s) }}",
        {"s": ones(4)},
        opset=6,
        after_opset=7,
    ),
    "batches' statistics as outputs": Hinted(
        "(float[2,4] x) => (float[2,4] y, float[4] a) { y, a, b, c, d = BatchNormalization(x, s, s, s, s) }",
        STATISTICS,
        f"{X} {{ y = BatchNormalization(x, s, s, s, s) }}",
        {"s": ones(4)},
        opset=9,
    ),
    "one dimension": Hinted(
        "(float[4] x) => (float[4] y) { r = Neg(x)  y = BatchNormalization(r, s, s, s, s) }", constants={"s": ones(1)}
    ),
    "a scale for each row": Hinted(
        "(float[2,3,4] x) => (float[2,3,4] y) { y = LayerNormalization<axis=-1>(x, s) }",
        f"apply it by a Mul and an Add; {FALLBACK}",
        """(float[2,3,4] x) => (float[2,3,4] y)
        { n = LayerNormalization<axis=-1>(x, o)  m = Mul(n, s)  y = Add(m, z) }""",
        {"s": ones(3, 4) * 2, "o": ones(4), "z": ones(3, 4) * 0},
    ),
    "an inverse deviation": Hinted(
        "(float[2,4] x) => (float[2,4] y, float[2,1] i) { y, i = SimplifiedLayerNormalization(x, s) }",
        "export the model again without it",
        f"{X} {{ y = SimplifiedLayerNormalization(x, s) }}",
        {"s": ones(4)},
    ),
    "a padding of no number": Hinted(
        "(float[2,4] x) => (float[2,6] y) { y = Pad(x, p, v) }", constants={"p": ints(0, 1, 0, 1), "v": one(np.nan)}
    ),
    "a layer's own activation": Hinted(
        """(float[2,1,4] x) => (float[2,1,1,3] y)
        { y = LSTM<hidden_size=3, activations=["Sigmoid","Softsign","Tanh"]>(x, w, r) }""",
        f"these are supported between steps: relu, sigmoid, tanh; {FALLBACK}",
        """(float[2,1,4] x) => (float[2,1,1,3] y)
        { y = LSTM<hidden_size=3, activations=["Sigmoid","Relu","Tanh"]>(x, w, r) }""",
        LSTM,
    ),
    "a forget gate that is no sigmoid": Hinted(
        """(float[2,1,4] x) => (float[2,1,1,3] y)
        { y = LSTM<hidden_size=3, input_forget=1, activations=["Relu","Tanh","Tanh"]>(x, w, r) }""",
        f"only sigmoid(-x) is 1 - sigmoid(x): train the layer with sigmoid gates, or without input_forget; {FALLBACK}",
        """(float[2,1,4] x) => (float[2,1,1,3] y)
        { y = LSTM<hidden_size=3, input_forget=1, activations=["Sigmoid","Tanh","Tanh"]>(x, w, r) }""",
        LSTM,
    ),
    "directions that differ": Hinted(
        """(float[2,1,4] x) => (float[2,2,1,3] y) { y = LSTM<hidden_size=3, direction="bidirectional",
        activations=["Sigmoid","Tanh","Tanh","Sigmoid","Relu","Tanh"]>(x, w2, r2) }""",
        f"export each direction as a layer of its own; {FALLBACK}",
        """(float[2,1,4] x) => (float[2,2,1,3] y)
        { a = LSTM<hidden_size=3, activations=["Sigmoid","Tanh","Tanh"]>(x, w, r)
        b = LSTM<hidden_size=3, direction="reverse", activations=["Sigmoid","Relu","Tanh"]>(x, w, r)
        y = Concat<axis=1>(a, b) }""",
        LSTM,
    ),
    "many lengths": Hinted(
        "(float[300,1,4] x, int32[1] n) => (float[300,1,1,3] y) { y = LSTM<hidden_size=3>(x, w, r, , n) }",
        FLAG,
        constants=LSTM,
        more={"n": np.array([200], np.int32)},
        dtype="bfloat16",
    ),
    "computed weights": Hinted(
        "(float[2,1,4] x, float[1,12,4] w) => (float[2,1,1,3] y) { v = Neg(w)  y = LSTM<hidden_size=3>(x, v, r) }",
        f"its weights must be constants, or inputs of the model; {FALLBACK}",
        "(float[2,1,4] x, float[1,12,4] w) => (float[2,1,1,3] y) { y = LSTM<hidden_size=3>(x, w, r) }",
        {"r": LSTM["r"]},
    ),
    "a large layer": Hinted(
        "(float[1,1,4] x) => (float[1,1,1,2100] y) { y = RNN<hidden_size=2100>(x, w, r) }",
        "use --dtype bfloat16, which halves them",
        constants={"w": ones(1, 2100, 4), "r": ones(1, 2100, 2100) / 9999},
    ),
    "a larger layer": Hinted(
        "(float[1,1,4] x) => (float[1,1,1,3000] y) { y = RNN<hidden_size=3000>(x, w, r) }",
        f"use fewer hidden units; {FALLBACK}",
        "(float[1,1,4] x) => (float[1,1,1,300] y) { y = RNN<hidden_size=300>(x, v, s) }",
        {"w": ones(1, 3000, 4), "r": ones(1, 3000, 3000) / 9999, "v": ones(1, 300, 4), "s": ones(1, 300, 300) / 999},
    ),
    "no steps": Hinted(
        "(float[2,1,4] x) => (float[1,1,3] h) { s = Slice(x, a, a)  y, h = LSTM<hidden_size=3>(s, w, r) }",
        "export the model for at least one step",
        "(float[2,1,4] x) => (float[1,1,3] h) { s = Slice(x, a, b)  y, h = LSTM<hidden_size=3>(s, w, r) }",
        LSTM | {"a": ints(1), "b": ints(2)},
    ),
    "many features in a step": Hinted(
        "(float[1,1,1572865] x) => (float[1,1,1,1] y) { r = Sigmoid(x)  y = RNN<hidden_size=1>(r, w, q) }",
        constants={"w": ones(1, 1, 1572865) / 1572865, "q": ones(1, 1, 1)},
    ),
}

_LARGE = "  ".join(f"a{k} = Abs({f'a{k - 1}' if k else 'x'})" for k in range(40))

ROWS_AND_IMAGES: dict[str, Hinted] = {
    "long rows of a softmax": Hinted(f"(float[1,{LARGEST}] x) => (float[1,{LARGEST}] y) {{ y = Softmax(x) }}"),
    "a long search": Hinted(f"(float[1,{LARGEST}] x) => (int64[1,1] y) {{ y = ArgMax<axis=1>(x) }}"),
    "the largest of many": Hinted(
        f"(float[1,{LARGEST}] x) => (float[1,1] y, int64[1,1] i) {{ y, i = TopK(x, k) }}", constants={"k": ints(1)}
    ),
    "many of the largest": Hinted(
        "(float[1,60000] x) => (float[1,30000] y, int64[1,30000] i) { y, i = TopK(x, k) }",
        constants={"k": ints(30000)},
    ),
    "long rows of a normalisation": Hinted(
        f"(float[1,{LARGEST}] x) => (float[1,{LARGEST}] y) {{ y = LayerNormalization(x, s) }}",
        constants={"s": ones(1)},
    ),
    "cubic samples of volumes": Hinted(
        """(float[1,1,4,4,4] x, float[1,2,2,2,3] g) => (float[1,1,2,2,2] y)
        { y = GridSample<mode="cubic">(x, g) }""",
        "images (N, C, H, W) are supported, and (N, C, D, H, W) with linear or nearest sampling",
        """(float[1,1,4,4,4] x, float[1,2,2,2,3] g) => (float[1,1,2,2,2] y)
        { y = GridSample<mode="linear">(x, g) }""",
        opset=20,
    ),
    "samples of large images": Hinted(
        "(float[1,1,4097,4096] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample(x, g) }",
        f"use fewer rows or smaller images; {FALLBACK}",
        "(float[1,1,64,64] x, float[1,2,2,2] g) => (float[1,1,2,2] y) { y = GridSample(x, g) }",
        opset=20,
    ),
    "a large window": Hinted(
        "(float[1,1,300,300] x) => (float[1,1,1,1] y) { y = AveragePool<kernel_shape=[300,300]>(x) }",
        "use a global pooling operator",
        "(float[1,1,300,300] x) => (float[1,1,1,1] y) { y = GlobalAveragePool(x) }",
    ),
    "many dimensions": Hinted(
        f"(float[{'1,' * 32}2] x) => (float[{'1,' * 32}2] y) {{ y = Neg(x) }}",
        "join dimensions by a Reshape",
        "(float[1,2] x) => (float[1,2] y) { r = Neg(x)  y = Reshape(r, s) }",
        {"s": ints(1, 2)},
    ),
    "a large tensor": Hinted(
        "(float[99999,99999] x) => (float[1,99999] y) { y = ReduceSum(x, a) }",
        "run it with a smaller batch or smaller inputs",
        "(float[9,99999] x) => (float[1,99999] y) { y = ReduceSum(x, a) }",
        {"a": ints(0)},
    ),
    "many large tensors": Hinted(
        f"(float[500000000] x) => (float[1] y) {{ {_LARGE}  y = ReduceSum(a39) }}",
        "run it with a smaller batch or smaller inputs",
        f"(float[5] x) => (float[1] y) {{ {_LARGE}  y = ReduceSum(a39) }}",
    ),
    "a search of nothing": Hinted(
        "(float[2,4] x) => (int64[2,1] y) { r = Slice(x, a, a, a)  y = ArgMax<axis=1>(r) }",
        "export the model for larger inputs",
        "(float[2,4] x) => (int64[2,1] y) { r = Slice(x, a, b, a)  y = ArgMax<axis=1>(r) }",
        {"a": ints(1), "b": ints(3)},
    ),
}
