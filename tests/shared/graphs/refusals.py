"""The reasons that a drawn graph may be refused with, fixed before a run: any other refusal fails.

Each is one of the reasons in the code's own tables (``operator_table`` reads them; ``test_random_graphs.py`` holds this
list to them), in the words of docs/operators.md: ``…`` stands for a value.
"""

from __future__ import annotations

import re

# Operators, "*" for all (of a domain), and the reason.
LISTED: tuple[tuple[str, str], ...] = (
    # The core computes in floats of 16 and 32 bits, on tensors, and keeps indices for the host.
    ("*", "arithmetic on double tensors"),
    ("*", "… is made on the host from a final index; no arithmetic can follow it"),
    ("*", "both sides are constants"),
    ("Cast", "a cast from … between computed tensors"),
    ("*", "integers of up to …"),
    ("*", "integers of unknown size"),
    ("Where", "the integer … in a constant, which … does not hold"),
    ("LSTM", "input_forget=1 with the activation …"),
    # onnx writes these out, and doesn't know what onnxruntime's own operators make.
    ("Attention", "onnx can't write it out by other operators, as the type or the rank of an input is not known"),
    ("RotaryEmbedding", "onnx can't write it out by other operators, as the type or the rank of an input is not known"),
    ("com.microsoft.*", "onnxruntime's own operator: the number of dimensions of its input … is not known"),
    # ONNX's inference does not know what MaxUnpool makes.
    ("QuantizeLinear", "quantised arithmetic: the shape of an input is not known"),
    # Where another node is refused, the end of the model is, too.
    ("*", "its work depends on the data; the host computes it at the end of a model"),
    ("ai.onnx.ml.Imputer", "… has … numbers for … columns"),
    # Several batches at once, where rows of a batch come together.
    ("InputError", "… for a batch fixed at …, whose rows are not independent: …"),
    # The batch is dimension 0: what has it elsewhere (the states of an LSTM) is of a size.
    ("InputError", "input … has shape …: dimension … is 0, there is nothing to run"),
    # Of no rows there are no answers where rows come together: onnxruntime has those of nothing.
    ("InputError", "the batch has 0 rows, and output … has …: the rows are not independent, …"),
)


def listed(op: str, reason: str) -> bool:
    """Whether the list has this reason for the operator."""
    domain = f"{op.rpartition('.')[0]}.*"
    return any(ops in ("*", op, domain) and matches(words, reason) for ops, words in LISTED)


def matches(words: str, reason: str) -> bool:
    """Whether a reason is one in the words of the list."""
    return re.fullmatch(".+".join(map(re.escape, words.split("…"))), reason, re.DOTALL) is not None
