"""Operators that are not lowered, with the reason and a way out.

They have the other facets all the same: their nodes may be folded when the model is read, or run by onnxruntime.
"""

from __future__ import annotations

from functools import partial

from trnrt.operators import batch, order, shapes
from trnrt.operators.record import CHEAP, COUNTS, NEVER, ON_CPU, Declaration, Index, Refusal
from trnrt.planner.lowering.blocked import FALLBACK
from trnrt.planner.lowering.refusals import LATER, QUANTISED

_INTEGERS = Refusal("arithmetic on integers beyond indices", f"export the model without it; {FALLBACK}")
_SHAPES = Refusal(
    "what it makes depends on the data, or is too large to be computed beforehand", "export the model with fixed shapes"
)
_LOSS = Refusal("a loss, which training needs", "export the model without it: with what the loss reads as an output")
_PLACES = Refusal(
    "writing at indices that are computed, or at one index twice",
    f"export the model with constant indices, each of them once; {FALLBACK}",
)
_FUSED_BYTES = Refusal(
    "several layers in one quantised operator, which onnxruntime's transformer optimizer writes",
    f"quantise the model as it was exported, before that optimizer fuses its layers; {FALLBACK}",
)
_UNPOOLED = Refusal(
    "only a MaxPool's own indices are supported, of windows as large as their strides, without padding, for a result "
    "of its input's shape",
    f"give both nodes such windows, and the MaxUnpool that output_shape; {FALLBACK}",
)
_GRID = Refusal(
    "a size that isn't constant, or an affine transformation that isn't float32",
    "export the model in float32 and with fixed shapes",
)
_TREES = Refusal("trees and other classical models are not supported: only scalers and neural nets are", FALLBACK)

# Most have no rule for the batch, no Transpose moves past them, and they are never folded.
_refused = partial(
    Declaration,
    batch=batch.unknown,
    order=order.keep_order,
    bound=ON_CPU,
    values=(),
    folds=NEVER,
    shapes=shapes.by_onnx,
)


def _names(names: str) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(names.split(), ())


_refused(_names("CastLike"), folds=CHEAP)(
    Refusal("a type that isn't known when the model is read", "export the model with Cast in its place")
)
_refused(_names("SwiGLU"), batch=batch.along_axis)(
    Refusal("the operator is not supported", "export the model with opset 27 or earlier, which has Sigmoid and Mul")
)
_refused(_names("Shrink"), batch=batch.elementwise, order=order.unary, folds=CHEAP)(LATER)
_refused(_names("Hardmax"), batch=batch.along_axis, order=order.softmax)(LATER)
_refused(_names("BitShift"), batch=batch.elementwise)(_INTEGERS)
_refused(_names("BitwiseAnd BitwiseNot BitwiseOr BitwiseXor"))(_INTEGERS)
_refused(_names("Scatter ScatterElements ScatterND"), values=Index(1))(_PLACES)
_refused(_names("AffineGrid"), values=(1,))(_GRID)
_refused(_names("MaxUnpool"), values=(2,))(_UNPOOLED)
_refused(_names("ConstantOfShape"), values=(0,))(_SHAPES)
_refused(_names("Range"), values=(0, 1, 2), folds=CHEAP | COUNTS)(_SHAPES)
_refused(_names("Shape Size"), folds=COUNTS)(_SHAPES)
_refused(_names("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"))(_LOSS)
_refused(_names("DequantizeLinear QuantizeLinear"), batch=batch.quantize)(QUANTISED)
_refused(_names("ConvInteger DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul"))(QUANTISED)
_refused(
    _names(
        """DynamicQuantizeMatMul GatherBlockQuantized MatMulBnb4 MatMulIntegerToFloat MatMulNBits QGemm QLinearAdd
        QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean
        QLinearSigmoid QLinearSoftmax QLinearWhere"""
    ),
    domain="com.microsoft",
)(QUANTISED)
_refused(_names("DynamicQuantizeLSTM QAttention QEmbedLayerNormalization"), domain="com.microsoft")(_FUSED_BYTES)
_refused(
    _names("DictVectorizer SVMClassifier SVMRegressor TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor"),
    domain="ai.onnx.ml",
)(_TREES)

for _operators, _reason, _hint in (
    (
        "If",
        "control flow that depends on the data: the NeuronCore runs one fixed sequence of instructions",
        "export the model with the condition constant, or as tensors (Where in place of If)",
    ),
    (
        "Loop Scan",
        "a loop: the NeuronCore runs one fixed sequence of instructions, and loops are not unrolled here",
        f"export the model unrolled (torch.onnx.export unrolls Python loops); {FALLBACK}",
    ),
    (
        """ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
        SequenceMap SplitToSequence""",
        "sequences: a tensor of the device has one shape",
        "export the model with tensors in their place (Concat, Split)",
    ),
    ("Optional OptionalGetElement OptionalHasElement", "optional values", "export the model without them"),
    (
        "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
        "arithmetic on strings",
        f"prepare the text before the model; {FALLBACK}",
    ),
    (
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        "random numbers: no two runs would agree",
        "export the model for inference, or give the noise as an input",
    ),
    (
        "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
        "signal processing operators are not supported",
        f"prepare the signal before the model; {FALLBACK}",
    ),
    ("ImageDecoder", "images in a compressed form", "decode the image before the model"),
    (
        "Compress MaxRoiPool NonMaxSuppression NonZero RoiAlign Unique",
        "its work depends on the data; the host computes it at the end of a model",
        f"cut the model before it (`trnrt inspect` prints the command), and do this on its outputs; {FALLBACK}",
    ),
    (
        "LinearAttention TensorScatter",
        "a decoder's attention, with a state from step to step: attention over whole sequences is supported",
        FALLBACK,
    ),
):
    _refused(_names(_operators))(Refusal(_reason, _hint))
