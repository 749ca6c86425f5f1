"""Models with an operator that no kernel computes, with what the hint asks for in its place."""

from __future__ import annotations

import numpy as np
from hinted import LSTM, Hinted, X, one, ones

from trnrt.planner.lowering.blocked import FALLBACK
from trnrt.planner.lowering.refusals import QUANTISED

QUANTISED_LAYERS = f"quantise the model as it was exported, before that optimizer fuses its layers; {FALLBACK}"

REFUSED: dict[str, Hinted] = {
    "a loss": Hinted(
        "(float[2,4] x, int64[2] t) => (float y) { r = Neg(x)  y = SoftmaxCrossEntropyLoss(r, t) }",
        "export the model without it: with what the loss reads as an output",
        f"{X} {{ y = Neg(x) }}",
        more={"t": np.array([1, 3])},
    ),
    "an optimizer": Hinted(
        """(float[2,4] x) => (float[2,4] y) { r = Neg(x)
        y, v = ai.onnx.preview.training.Momentum<alpha=0.9, beta=1.0, mode="standard", norm_coefficient=0.0>
        (rate, count, x, r, r) }""",
        "export the model without it: an optimizer's step is no part of inference",
        f"{X} {{ y = Neg(x) }}",
        {"rate": np.array(0.1, np.float32), "count": np.array(1, np.int64)},
        domain="ai.onnx.preview.training",
    ),
    "noise": Hinted(
        f"{X} {{ n = RandomNormalLike(x)  y = Add(x, n) }}",
        "export the model for inference, or give the noise as an input",
        "(float[2,4] x, float[2,4] n) => (float[2,4] y) { y = Add(x, n) }",
        more={"n": ones(2, 4) / 3},
    ),
    "a sequence": Hinted(
        """(float[2,4] x) => (float[2,4] y) { e = Exp(x)  s = SequenceConstruct(x, e)  m = ReduceMax<keepdims=0>(x)
        c = Greater(m, zero)  i = Cast<to=7>(c)  y = SequenceAt(s, i) }""",
        "export the model with tensors in their place (Concat, Split)",
        """(float[2,4] x) => (float[2,4] y) { e = Exp(x)  s = Concat<axis=0>(x, e)  m = ReduceMax<keepdims=0>(x)
        c = Greater(m, zero)  i = Cast<to=7>(c)  r = Reshape(s, t)  y = Gather(r, i) }""",
        {"zero": one(0), "t": np.array([2, 2, 4])},
    ),
    "an optional value": Hinted(
        f"{X} {{ o = Optional(x)  y = OptionalGetElement(o) }}",
        "export the model without them",
        f"{X} {{ y = Neg(x) }}",
    ),
    "a condition": Hinted(
        """(float[2,4] x) => (float[2,k] y) { s = ReduceMax<keepdims=0>(x)  c = Greater(s, zero)
        y = If(c) <then_branch = a () => (float[2,1] t) { t = ReduceMin<axes=[1]>(x) },
        else_branch = b () => (float[2,4] e) { e = Relu(x) }> }""",
        f"export the model with the condition constant, or with branches of one shape; {FALLBACK}",
        """(float[2,4] x) => (float[2,4] y) { s = ReduceMax<keepdims=0>(x)  c = Greater(s, zero)
        y = If(c) <then_branch = a () => (float[2,4] t) { t = Neg(x) },
        else_branch = b () => (float[2,4] e) { e = Relu(x) }> }""",
        {"zero": np.array(0, np.float32)},
    ),
    "a loop": Hinted(
        """(float[2,4] x) => (float[2,4] y) { y = Loop(n, go, x) <body = b (int64 i, bool c, float[2,4] a)
        => (bool d, float[2,4] e) { e = Neg(a)  m = ReduceMax<keepdims=0>(e)  d = Less(m, most) }> }""",
        f"export the model with a fixed number of trips (torch.onnx.export unrolls Python loops); {FALLBACK}",
        """(float[2,4] x) => (float[2,4] y) { y = Loop(n, go, x)
        <body = b (int64 i, bool c, float[2,4] a) => (bool d, float[2,4] e) { d = Identity(c)  e = Neg(a) }> }""",
        {"n": np.array(3, np.int64), "go": np.array(True), "most": one(9)},
    ),
    "a shape of the data": Hinted(
        "(float[2,4] x) => (int64[n] y) { s = ReduceMax<keepdims=0>(x)  c = Cast<to=7>(s)  y = Range(f, c, f) }",
        "export the model with fixed shapes",
        f"{X} {{ y = Add(x, r) }}",
        {"f": np.array(1), "r": np.arange(4, dtype=np.float32)},
    ),
    "text": Hinted(
        "(float[2,4] x, string[2] s) => (float[2,4] y, string[2] z) { y = Neg(x)  z = StringConcat(s, s) }",
        f"prepare the text before the model; {FALLBACK}",
        f"{X} {{ y = Neg(x) }}",
        more={"s": np.array(["a", "b"], object)},
        opset=20,
    ),
    "a signal": Hinted(
        "(float[2,4,1] x) => (float[2,4,2] y) { y = DFT<axis=1>(x) }",
        f"prepare the signal before the model; {FALLBACK}",
        "(float[2,4,2] x) => (float[2,4,2] y) { y = Neg(x) }",
    ),
    "the work depends on the data": Hinted(
        "(float[2,4] x) => (int64[2,n] y) { y = NonZero(x) }",
        f"cut the model before it (`trnrt inspect` prints the command), and do this on its outputs; {FALLBACK}",
        f"{X} {{ y = Relu(x) }}",
    ),
    "a scatter": Hinted(
        "(float[2,4] x) => (float[2,4] y) { i = ArgMax<axis=1>(x)  y = ScatterElements<axis=1>(x, i, u) }",
        f"export the model with constant indices, each of them once; {FALLBACK}",
        "(float[2,4] x) => (float[2,4] y) { n = Neg(x)  y = ScatterElements<axis=1>(n, j, u) }",
        {"u": np.ones((2, 1), np.float32), "j": np.array([[0], [2]])},
    ),
    "a grid": Hinted(
        "(double[1,2,3] x) => (double[1,2,2,2] y) { y = AffineGrid(x, n) }",
        "export the model in float32 and with fixed shapes",
        "(float[1,2,3] x) => (float[1,2,2,2] y) { y = AffineGrid(x, n) }",
        {"n": np.array([1, 1, 2, 2])},
        opset=20,
    ),
    "unpooling": Hinted(
        """(float[1,1,4,4] x) => (float[1,1,4,4] y)
        { v, i = MaxPool<kernel_shape=[2,2]>(x)  y = MaxUnpool<kernel_shape=[2,2]>(v, i) }""",
        f"give both nodes such windows, and the MaxUnpool that output_shape; {FALLBACK}",
        """(float[1,1,4,4] x) => (float[1,1,4,4] y) { v, i = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)
        y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(v, i) }""",
    ),
    "an integer": Hinted(
        "(float[2,4] x, uint8[4] i) => (uint8[4] z, float[2,4] y) { z = BitwiseNot(i)  y = Neg(x) }",
        f"export the model without it; {FALLBACK}",
        f"{X} {{ y = Neg(x) }}",
        more={"i": np.arange(4, dtype=np.uint8)},
        opset=18,
    ),
    "a type that is looked up": Hinted(
        f"{X} {{ q = mine.Op(x)  y = CastLike(x, q) }}",
        "export the model with Cast in its place",
        f"{X} {{ y = Cast<to=1>(x) }}",
        domain="mine",
    ),
    "a gate": Hinted(
        "(float[2,2] x) => (float[2,2] y) { q = mine.Op(x)  y = SwiGLU(q, q) }",
        "export the model with opset 27 or earlier, which has Sigmoid and Mul",
        "(float[2,4] x) => (float[2,2] y) { a, b = Split<axis=1>(x)  s = Sigmoid(a)  g = Mul(a, s)  y = Mul(g, b) }",
        opset=28,
        after_opset=17,
        domain="mine",
    ),
    "attention of unknown ranks": Hinted(
        """(float[2,3,4] x) => (float[2,3,4] y)
        { q = mine.Op(x)  y = Attention<q_num_heads=1, kv_num_heads=1>(q, q, q) }""",
        "export the model with known ranks",
        "(float[2,3,4] x) => (float[2,3,4] y) { y = Attention<q_num_heads=1, kv_num_heads=1>(x, x, x) }",
        opset=23,
        domain="mine",
    ),
    "a picture": Hinted(
        "(uint8[9] p, float[2,4] x) => (uint8[h,w,3] z, float[2,4] y) { z = ImageDecoder(p)  y = Neg(x) }",
        "decode the image before the model",
        "(float[3,3,3] q, float[2,4] x) => (float[3,3,3] z, float[2,4] y) { z = Abs(q)  y = Neg(x) }",
        more={"p": np.zeros(9, np.uint8)},
        opset=20,
    ),
    "layers in one quantised operator": Hinted(
        """(float[2,1,4] x) => (float[2,1,1,3] y)
        { y = com.microsoft.DynamicQuantizeLSTM<hidden_size=3>(x, w, r, , , , , , s, z, s, z) }""",
        QUANTISED_LAYERS,
        "(float[2,1,4] x) => (float[2,1,1,3] y) { y = LSTM<hidden_size=3>(x, v, u) }",
        {
            "w": np.ones((1, 4, 12), np.int8),
            "r": np.ones((1, 3, 12), np.int8),
            "s": ones(1) / 8,
            "z": np.zeros(1, np.int8),
            "v": LSTM["w"],
            "u": LSTM["r"],
        },
        domain="com.microsoft",
    ),
    "a fused output": Hinted(
        """(float[2,3,8] x) => (float[2,3,8] y, float[2,3,1] m)
        { y, m = com.microsoft.SkipLayerNormalization(x, x, g) }""",
        f"take the model before it was optimised; {FALLBACK}",
        """(float[2,3,8] x) => (float[2,3,8] y, float[2,3,1] m)
        { s = Add(x, x)  y, m = LayerNormalization(s, g) }""",
        {"g": ones(8)},
        domain="com.microsoft",
    ),
    "an operator of onnxruntime": Hinted(
        "(float[2,2] x) => (float[2,2] y) { y = com.microsoft.Inverse(x) }",
        f"take the model before it was optimised; {FALLBACK}",
        f"{X} {{ y = Reciprocal(x) }}",
        domain="com.microsoft",
    ),
    "trees": Hinted(
        """(float[2,4] x) => (float[2,1] y) { y = ai.onnx.ml.TreeEnsembleRegressor<n_targets=1, nodes_falsenodeids=[0],
        nodes_featureids=[0], nodes_hitrates=[1.0], nodes_missing_value_tracks_true=[0], nodes_modes=["LEAF"],
        nodes_nodeids=[0], nodes_treeids=[0], nodes_truenodeids=[0], nodes_values=[0.0], target_ids=[0],
        target_nodeids=[0], target_treeids=[0], target_weights=[2.0]>(x) }"""
    ),
    "an operator that isn't there": Hinted(f"{X} {{ r = Relu(x)  h = Hardmax(r)  y = Exp(h) }}"),
    "another domain": Hinted(
        f"{X} {{ y = mine.Swish(x) }}",
        "export the model with ONNX's own operators only",
        f"{X} {{ s = Sigmoid(x)  y = Mul(x, s) }}",
        domain="mine",
    ),
    "quantised in another way": Hinted(
        "(float[2,4] x) => (uint16[2,4] y) { y = QuantizeLinear(x, s, z) }",
        QUANTISED.hint,
        "(float[2,4] x) => (uint8[2,4] y) { y = QuantizeLinear(x, s, b) }",
        {"s": one(0.1), "z": np.array(7, np.uint16), "b": np.array(7, np.uint8)},
        opset=21,
    ),
}
