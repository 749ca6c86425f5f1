"""A net of two fully connected layers: its result, and the predicted class.

The first layer's result has the hidden units on the partitions, where the second one contracts them: no transpose in
between. The intermediate goes through HBM, which takes a fraction of the products' time.
"""

from trnrt.kernels.argmax import argmax
from trnrt.kernels.common import ceil_div
from trnrt.kernels.operands import ROWS, is_turned_once, turn
from trnrt.kernels.product import product
from trnrt.kernels.softmax import softmax
from trnrt.nki import nki, nl


@nki.jit
def forward(
    x: nl.NkiTensor,
    w1: nl.NkiTensor,
    b1: nl.NkiTensor,
    w2: nl.NkiTensor,
    b2: nl.NkiTensor,
    act: str = "relu",
    out_act: str = "softmax",
) -> nl.NkiTensor:
    """The net's result, HBM (N, O) of the dtype of x; see feed_forward."""
    dst = nl.ndarray((x.shape[0], w2.shape[1]), dtype=x.dtype, buffer=nl.shared_hbm)
    feed_forward(dst, x, w1, b1, w2, b2, act, out_act)
    return dst


@nki.jit
def predict(
    x: nl.NkiTensor, w1: nl.NkiTensor, b1: nl.NkiTensor, w2: nl.NkiTensor, b2: nl.NkiTensor, act: str = "relu"
) -> nl.NkiTensor:
    """The most probable class of each row, HBM (N, 1) uint32; the first one of equals.

    The largest result of the second layer is also the largest of its softmax, so no softmax is computed. The comparison
    is in float32 whatever the dtype of x.

    x, w1, b1, w2, b2, act: as in feed_forward

    numpy: argmax(act(x @ w1 + b1) @ w2 + b2, axis=1)
    """
    rows = x.shape[0]
    dst = nl.ndarray((rows, 1), dtype=nl.uint32, buffer=nl.shared_hbm)
    logits = nl.ndarray((rows, w2.shape[1]), dtype=nl.float32, buffer=nl.private_hbm)
    feed_forward(logits, x, w1, b1, w2, b2, act, "none")
    argmax(dst, logits, rows)
    return dst


def feed_forward(
    dst: nl.NkiTensor,
    x: nl.NkiTensor,
    w1: nl.NkiTensor,
    b1: nl.NkiTensor,
    w2: nl.NkiTensor,
    b2: nl.NkiTensor,
    act: str = "relu",
    out_act: str = "softmax",
) -> None:
    """dst = out_act(act(x @ w1 + b1) @ w2 + b2)

    dst: HBM (N, O)
    x: HBM (N, F)
    w1, w2: HBM (F, H), (H, O), of the dtype of x
    b1, b2: HBM (1, H), (1, O) float32
    act: one of ACTIVATIONS in common.py; the hidden units have the dtype of x
    out_act: the same, or "softmax"
    limits: those of softmax

    numpy: out_act(act(x @ w1 + b1) @ w2 + b2)
    """
    rows, features = x.shape
    hidden, outputs = w2.shape
    assert w1.shape == (features, hidden), f"feed_forward: w1 is {w1.shape}, expected {(features, hidden)}"
    hidden_t = nl.ndarray((hidden, rows), dtype=x.dtype, buffer=nl.private_hbm)
    if is_turned_once(ceil_div(hidden, ROWS), x.dtype):
        x_t = nl.ndarray((features, rows), dtype=x.dtype, buffer=nl.private_hbm)
        turn(x_t, x)
        product(hidden_t, w1, x_t, column_bias=b1, act=act)
    else:
        product(hidden_t, w1, x, b_turned=True, column_bias=b1, act=act)
    if out_act == "softmax":
        logits = nl.ndarray((rows, outputs), dtype=nl.float32, buffer=nl.private_hbm)
        product(logits, hidden_t, w2, row_bias=b2)
        softmax(dst, logits, rows)
    else:
        product(dst, hidden_t, w2, row_bias=b2, act=out_act)
