"""Operators that are refused, each with its reason and a way out; and quantised models, refused as a whole."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.errors import Blocker
from trnrt.planner.lowering.blocked import Blocked
from trnrt.planner.naming import printable

Reason = tuple[str, str]

FALLBACK = "--fallback onnxruntime runs this node on the CPU"
_INTEGERS = ("arithmetic on integers beyond indices", f"export the model without it; {FALLBACK}")
_CONTROL = (
    "control flow that depends on the data: the NeuronCore runs one fixed sequence of instructions",
    "export the model with the condition constant, or as tensors (Where in place of If)",
)
_LOOP = (
    "a loop: the NeuronCore runs one fixed sequence of instructions, and loops are not unrolled here",
    f"export the model unrolled (torch.onnx.export traces a loop of Python so); {FALLBACK}",
)
_SEQUENCE = (
    "sequences: a tensor of the device has one shape",
    "export the model with tensors in their place (Concat, Split)",
)
_OPTIONAL = ("optional values", "export the model without them")
_TEXT = ("arithmetic on strings", f"prepare the text before the model; {FALLBACK}")
_TRAINING = ("an operator of training", "export the model for inference (model.eval() in PyTorch)")
_RANDOM = ("random numbers: no two runs would agree", "export the model for inference, or give the noise as an input")
_RECURRENT = ("recurrent layers are not supported: only feed-forward and convolutional nets are", FALLBACK)
_SIGNAL = ("signal processing operators are not supported", f"prepare the signal before the model; {FALLBACK}")
_IMAGES = ("its work depends on the data", f"cut the model before it, and do this on its outputs; {FALLBACK}")
_TREES = ("trees and other classical models are not supported: only scalers and neural nets are", FALLBACK)
_LATER = ("the operator is not supported", FALLBACK)

_FAMILIES: tuple[tuple[Reason, str], ...] = (
    (_CONTROL, "If"),
    (_LOOP, "Loop Scan"),
    (
        _SEQUENCE,
        """ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
        SequenceMap SplitToSequence""",
    ),
    (_OPTIONAL, "Optional OptionalGetElement OptionalHasElement"),
    (_TEXT, "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer"),
    (_RANDOM, "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"),
    (_TRAINING, "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss"),
    (_RECURRENT, "GRU LSTM RNN"),
    (_SIGNAL, "BlackmanWindow DFT HammingWindow HannWindow ImageDecoder MelWeightMatrix STFT"),
    (_IMAGES, "Compress MaxRoiPool NonMaxSuppression NonZero RoiAlign Unique"),
    (_INTEGERS, "BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor"),
    (
        ("single elements at computed indices: the device looks whole rows up (Gather)", FALLBACK),
        "Gather GatherElements GatherND",
    ),
    (
        ("writing at computed indices is not supported", FALLBACK),
        "ScatterElements ScatterND Scatter",
    ),
    (
        (
            "attention as one operator is not supported; the MatMul and Softmax that it is made of are",
            f"export the model with opset 22 or earlier, which writes it so; {FALLBACK}",
        ),
        "Attention",
    ),
    (
        ("attention is not supported: only feed-forward and convolutional nets are", FALLBACK),
        "LinearAttention RotaryEmbedding TensorScatter",
    ),
    (
        (
            "what it makes depends on the data, or is too large to be computed beforehand",
            "export the model with fixed shapes",
        ),
        "ConstantOfShape Range Shape Size OneHot",
    ),
)
_REASONS: dict[str, Reason] = {name: reason for reason, names in _FAMILIES for name in names.split()}

_CLASSICAL = frozenset(
    """DictVectorizer LinearClassifier LinearRegressor SVMClassifier SVMRegressor TreeEnsemble TreeEnsembleClassifier
    TreeEnsembleRegressor""".split()  # noqa: SIM905
)
_QUANTISED = frozenset(
    """ConvInteger DequantizeLinear DynamicQuantizeLinear DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger
    MatMulIntegerToFloat MatMulNBits QAttention QEmbedLayerNormalization QGemm QLinearConv QLinearMatMul QuantizeLinear
    GatherBlockQuantized MatMulBnb4""".split()  # noqa: SIM905
)
_FUSED = "onnxruntime's own operator, from a model that its optimizer or a converter saved"


def refusal(node: ir.Node) -> Blocked:
    """Why a node of an operator that has no lowering function can't run, and what would help."""
    if is_quantised(node):
        return Blocked("quantised arithmetic", _QUANTISED_HINT)
    if node.domain == "":
        return Blocked(*_REASONS.get(node.op_type, _LATER))
    if node.domain == "ai.onnx.ml":
        return Blocked(*(_TREES if node.op_type in _CLASSICAL else _LATER))
    if node.domain.startswith("ai.onnx.preview.training") or node.domain == "ai.onnx.training":
        return Blocked(*_TRAINING)
    if node.domain.startswith("com.microsoft"):
        return Blocked(_FUSED, "export the model anew, or take the one that it was made from")
    return Blocked(
        f"an operator of the domain {printable(node.domain)!r}, which trnrt doesn't know",
        "export the model with ONNX's own operators only",
    )


_QUANTISED_HINT = (
    "export the float model, or take the one that this was made from; "
    "--dtype bfloat16 gives the speed without quantising"
)


def is_quantised(node: ir.Node) -> bool:
    """Is the node one that only quantised models have?"""
    if node.domain == "" or node.domain.startswith("com.microsoft"):
        return node.op_type in _QUANTISED or node.op_type.startswith("QLinear")
    return False


def summed_up(graph: ir.Graph, blockers: list[Blocker]) -> list[Blocker]:
    """The blockers, or the one that says it all: that the model is quantised."""
    quantised = [node for node in graph if is_quantised(node)]
    if not quantised or not blockers:
        return blockers
    kinds: dict[str, int] = {}
    for node in quantised:
        kinds[node.op_type] = kinds.get(node.op_type, 0) + 1
    told = ", ".join(f"{count} {printable(kind)}" for kind, count in sorted(kinds.items()))
    first = quantised[0]
    reason = f"the model is quantised ({told}); the NeuronCore computes in float32, bfloat16 and float16"
    return [Blocker(first.name or "", printable(first.op_type), reason, _QUANTISED_HINT)]
