"""A net of two fully connected layers: its result, and the predicted class.

The first layer's result has the hidden units on the partitions, where the second one contracts them: no transpose in
between. The intermediate goes through HBM, which takes a fraction of the products' time.
"""

from trnrt.kernels.argmax import argmax
from trnrt.kernels.beside import Beside, do_beside, pieces_of_argmax, pieces_of_turn
from trnrt.kernels.common import Pair, ceil_div, transpose_is_exact
from trnrt.kernels.operands import ROWS, is_turned_once, turn
from trnrt.kernels.product import product
from trnrt.kernels.softmax import softmax
from trnrt.nki import nki, nl

# On trn1: rows of the first strip of x, and those at the end whose classes are found after all products.
FIRST_ROWS, LAST_ROWS = 512, 512


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
    if transpose_is_exact() or rows <= LAST_ROWS:
        feed_forward(logits, x, w1, b1, w2, b2, act, "none")
        argmax(dst, logits, rows)
        return dst
    hidden_t = _hidden_units(x, w1, b1, act)
    classes: list[Beside] = []
    for chunk in _chunks(rows):
        r0, r1 = chunk
        product(logits[r0:r1], hidden_t[:, r0:r1], w2, row_bias=b2, beside=classes)
        classes = pieces_of_argmax(dst[r0:r1], logits[r0:r1])
    for work in classes:
        do_beside(work)
    return dst


def _chunks(rows: int) -> list[Pair]:
    """(first, end) of the rows whose classes are found while the next ones are multiplied; the last are few, as nothing
    hides theirs."""
    chunks: list[Pair] = []
    r0 = 0
    while r0 < rows:
        r1 = min(rows, r0 + (ROWS if rows - r0 > ROWS else LAST_ROWS))
        chunks.append((r0, r1))
        r0 = r1
    return chunks


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
    hidden_t = _hidden_units(x, w1, b1, act)
    if out_act == "softmax":
        logits = nl.ndarray((rows, outputs), dtype=nl.float32, buffer=nl.private_hbm)
        product(logits, hidden_t, w2, row_bias=b2)
        softmax(dst, logits, rows)
    else:
        product(dst, hidden_t, w2, row_bias=b2, act=out_act)


def _hidden_units(x: nl.NkiTensor, w1: nl.NkiTensor, b1: nl.NkiTensor, act: str) -> nl.NkiTensor:
    """act(x @ w1 + b1).T, HBM (H, N).

    On trn1, where the tensor engine transposes x as slowly as it multiplies, it transposes the first strip of rows
    only. The vector engine turns each next strip beside the products of the one before.
    """
    rows, features = x.shape
    hidden = w1.shape[1]
    hidden_t = nl.ndarray((hidden, rows), dtype=x.dtype, buffer=nl.private_hbm)
    if not is_turned_once(ceil_div(hidden, ROWS), x.dtype):
        product(hidden_t, w1, x, b_turned=True, column_bias=b1, act=act)
        return hidden_t
    x_t = nl.ndarray((features, rows), dtype=x.dtype, buffer=nl.private_hbm)
    if transpose_is_exact():
        turn(x_t, x)
        product(hidden_t, w1, x_t, column_bias=b1, act=act)
        return hidden_t
    strips = _row_strips(rows)
    turn(x_t[:, 0 : strips[0][1]], x[0 : strips[0][1]])
    for i in range(len(strips)):
        r0, r1 = strips[i]
        ahead: list[Beside] = []
        if i + 1 < len(strips):
            n0, n1 = strips[i + 1]
            ahead = pieces_of_turn(x_t[:, n0:n1], x[n0:n1])
        product(hidden_t[:, r0:r1], w1, x_t[:, r0:r1], column_bias=b1, act=act, beside=ahead)
    return hidden_t


def _row_strips(rows: int) -> list[Pair]:
    """(first, end) of the rows that are multiplied while the next ones are turned: few at first, as nothing hides their
    turn, then more, as the weights are loaded anew for each strip."""
    found: list[Pair] = []
    r0 = 0
    while r0 < rows:
        r1 = min(rows, r0 + (FIRST_ROWS if len(found) == 0 else 3 * FIRST_ROWS))
        found.append((r0, r1))
        r0 = r1
    return found
