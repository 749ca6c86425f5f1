"""Recurrent layers: LSTM, GRU and RNN over whole sequences, with the hidden state on the partitions.

    HBM  src (T, N, I)                                        dst (D, T + states, N, H)
          | a few time steps at once                            ^ transposed back to rows
          v                                                     |
    tensor engine: W @ x + bias of these steps -> SBUF x_sb     SBUF y_sb: the hidden states of these steps
                                |                               ^        |
                                v                               |        v the state that the next step reads
    each step:  R @ h -> PSUM --(+)--> gates (scalar engine) --> new state (vector engine)

The recurrent weights R are the stationary operand and stay in SBUF. All gates of a step have one PSUM bank: of 128 of
their outputs, a product has as many columns as rows of the batch. The directions of a bidirectional layer take turns
with their steps, so that one computes while the other waits for its engines.

H is padded to blocks of 128 with zeros; a padded hidden unit stays 0. Gates are in ONNX's order: i, o, f, c of an LSTM;
z, r, h of a GRU.
"""

from dataclasses import dataclass
from typing import Any, Optional

from trnrt.kernels.common import activation_function, block_rows, ceil_div, item_bytes, keep_where, load
from trnrt.kernels.linear import LOADS_AHEAD, linear_features
from trnrt.kernels.operands import turn_rows
from trnrt.nki import nisa, nl

# Gates of each kind of cell, and the states that dst holds behind the steps.
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
STATES = {"lstm": 2, "gru": 1, "rnn": 1}
# The most bytes per partition of recurrent weights in SBUF at once: more directions follow one another. H of 1,024 in
# float32 takes all of it for an LSTM.
RECURRENT_BYTES = 128 * 1024
# The most bytes per partition of W @ x (float32) of one direction, for the steps computed at once.
AHEAD_BYTES = 8 * 1024
# Input weights up to this many bytes per partition are loaded once, others again for each AHEAD_BYTES.
KEPT_INPUT_BYTES = 16 * 1024
# Bytes per partition of one load of input weights that aren't kept: small, as R takes most of SBUF beside them.
INPUT_LOAD_BYTES = 4 * 1024


@dataclass
class RecurrentCell(nl.NKIObject):
    """What a layer computes: ``kind`` of GATES; ``acts`` of common.py, in ONNX's order (f, g, h); ``clip`` limits what
    activations read, 0 doesn't; ``resets_product``: a GRU's reset gate scales R @ h, not h; ``halved``: see
    ``recurrent``."""

    kind: str
    acts: tuple[str, ...]
    clip: float
    resets_product: bool
    halved: bool


@dataclass
class RecurrentWeights(nl.NKIObject):
    """One direction's weights in SBUF. r_sb: (128, B, G*B*128); identity_sb: (128, 128) float32; others as in
    ``recurrent``, w in HBM if it is large."""

    identity_sb: nl.NkiTensor
    r_sb: nl.NkiTensor
    w: nl.NkiTensor
    bias_sb: nl.NkiTensor
    more_sb: Any


def recurrent_bytes(kind: str, hidden: int, item: int) -> int:
    """Bytes per partition of one direction's recurrent weights, with elements of ``item`` bytes."""
    blocks = ceil_div(hidden, nl.tile_size.pmax)
    return blocks * GATES[kind] * blocks * nl.tile_size.pmax * item


def recurrent_tile_bytes(kind: str, hidden: int, features: int, directions: int) -> int:
    """The most bytes per partition that the tiles take, for planners; weights as float32."""
    blocks, each = ceil_div(hidden, nl.tile_size.pmax), recurrent_bytes(kind, hidden, 4)
    together = directions if directions * each <= RECURRENT_BYTES else 1
    # A direction has its input weights, or loads of them, W @ x and hidden states of the steps computed at once, twice
    # while the next ones are prepared, and the features that W multiplies.
    source = 2 * ceil_div(features, nl.tile_size.pmax) * nl.tile_size.psum_bank_fmax * 4
    own = KEPT_INPUT_BYTES + LOADS_AHEAD * INPUT_LOAD_BYTES + 4 * AHEAD_BYTES + blocks * 1024
    return together * (each + own) + source


def recurrent(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    h_first: Optional[nl.NkiTensor],
    c_first: Optional[nl.NkiTensor],
    lengths: Optional[nl.NkiTensor],
    w: tuple[nl.NkiTensor, ...],
    r: tuple[nl.NkiTensor, ...],
    bias: tuple[nl.NkiTensor, ...],
    more: tuple[Any, ...],
    backwards: tuple[bool, ...],
    kind: str,
    acts: tuple[str, ...],
    clip: float = 0.0,
    resets_product: bool = False,
    halved: bool = False,
) -> None:
    """dst = the hidden states of a recurrent layer at every step, then its last hidden (and an LSTM's cell) state.

    dst: HBM (D, T + STATES[kind], N, H)
    src: HBM (T, N, I)
    h_first, c_first: HBM (D, N, H), or None for zeros
    lengths: HBM (1, N) float32, or None: a row's steps from here on leave its state alone, and are 0 in dst
    w: for each direction HBM (P, B*G*BH*128), prepared for linear_features: input weights to G gates of BH blocks
    r: for each direction HBM (128, BH*G*BH*128): block b of 128 hidden units, then its weights to all gates
    bias: for each direction HBM (128, G*BH) float32: W's and R's; R's of the hidden gate not if resets_product
    more: for each direction None; of an LSTM with peepholes HBM (128, 3*BH) float32, for i, o and f; with
        resets_product HBM (128, BH) float32, R's bias of the hidden gate
    backwards: for each direction True if it goes from the last step to the first
    kind, acts, clip, resets_product: see RecurrentCell
    halved: sigmoids are computed from tanh, which saves the scalar engine from loading another table of functions twice
        a step. The rows of gates i, o, f, or z and r, are then half of themselves in w, r and bias; of a GRU without
        resets_product also those of the hidden gate in r
    limits: recurrent_bytes <= RECURRENT_BYTES; G*BH <= 512. halved: an LSTM's or GRU's default acts, no clip, no
        peepholes. An infinite W @ x makes all hidden units of its row NaN

    numpy: h, c = h_first, c_first; at each step t (from the last if backwards) with g = x[t] @ W.T + h @ R.T + bias,
        lstm: c = f(g_f + p_f*c) * c + f(g_i + p_i*c) * g(g_c); h = f(g_o + p_o*c) * h(c)
        gru:  h = (1 - z) * g(x[t] @ W_h.T + (r*h) @ R_h.T + bias_h) + z * h, with z, r = f(g_z), f(g_r)
        rnn:  h = f(g)
    """
    cell = RecurrentCell(kind=kind, acts=acts, clip=clip, resets_product=resets_product, halved=halved)
    each = recurrent_bytes(kind, dst.shape[3], item_bytes(src.dtype))
    assert each <= RECURRENT_BYTES, f"recurrent: weights of {each} bytes a partition; the limit is {RECURRENT_BYTES}"
    together = len(w) if len(w) * each <= RECURRENT_BYTES else 1
    identity_sb = _make_ones_diagonal()
    for d0 in range(0, len(w), together):
        weights = []
        for d in range(d0, d0 + together):
            weights.append(
                _load_recurrent(identity_sb, r[d], w[d], bias[d], more[d], ceil_div(dst.shape[3], nl.tile_size.pmax))
            )
        rows = src.shape[1]
        step = _rows_together(kind, dst.shape[3], rows)
        for n0 in range(0, rows, step):
            n1 = min(rows, n0 + step)
            length_sb = None
            if lengths is not None:
                length_sb = load(lengths[:, n0:n1].broadcast(0, nl.tile_size.pmax))
            _run_rows(dst, src, h_first, c_first, length_sb, weights, backwards, cell, d0, n0, n1)


def _load_recurrent(identity_sb: nl.NkiTensor, r: Any, w: Any, bias: Any, more: Any, blocks: int) -> RecurrentWeights:
    """One direction's weights in SBUF, but W if it has more than KEPT_INPUT_BYTES."""
    r_sb = load(r).reshape((nl.tile_size.pmax, blocks, r.shape[1] // blocks))
    kept = w.shape[1] * item_bytes(w.dtype) <= KEPT_INPUT_BYTES
    return RecurrentWeights(
        identity_sb=identity_sb,
        r_sb=r_sb,
        w=load(w) if kept else w,
        bias_sb=load(bias),
        more_sb=None if more is None else load(more),
    )


def _make_ones_diagonal() -> nl.NkiTensor:
    """The identity matrix (128, 128) in float32."""
    ones_sb = nl.ndarray((nl.tile_size.pmax, nl.tile_size.pmax), dtype=nl.float32, buffer=nl.sbuf)
    identity_sb = nl.ndarray(ones_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=ones_sb, value=1.0)
    keep_where(identity_sb, ones_sb, 1, -1, 0, nl.equal)
    return identity_sb


def _rows_together(kind: str, hidden: int, rows: int) -> int:
    """The rows of the batch that go through all steps together: the sums of all gates have one PSUM bank."""
    regions = GATES[kind] * ceil_div(hidden, nl.tile_size.pmax)
    return max(1, min(rows, min(nl.tile_size.pmax, nl.tile_size.psum_bank_fmax // regions)))


def _run_rows(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    h_first: Optional[nl.NkiTensor],
    c_first: Optional[nl.NkiTensor],
    length_sb: Optional[nl.NkiTensor],
    weights: list[RecurrentWeights],
    backwards: tuple[bool, ...],
    cell: RecurrentCell,
    d0: int,
    n0: int,
    n1: int,
) -> None:
    """All steps of rows n0 to n1, of the directions from number d0 on that ``weights`` has."""
    steps, hidden = src.shape[0], dst.shape[3]
    blocks = ceil_div(hidden, nl.tile_size.pmax)
    h_sb: list[Any] = []
    c_sb: list[Any] = []
    for k in range(len(weights)):
        h_sb.append(_first_state(h_first, d0 + k, n0, n1, hidden, src.dtype))
        c_sb.append(None)
        if cell.kind == "lstm":
            c_sb[k] = _first_state(c_first, d0 + k, n0, n1, hidden, nl.float32)
            _scale_cell(c_sb[k], cell, 2.0)
    ahead = max(1, AHEAD_BYTES // (GATES[cell.kind] * blocks * (n1 - n0) * 4))
    for first in range(0, steps, ahead):
        count = min(ahead, steps - first)
        x_sb, y_sb, starts = [], [], []
        for k in range(len(weights)):
            t0 = steps - first - count if backwards[d0 + k] else first
            starts.append(t0)
            x_sb.append(_project(src, weights[k], t0, count, n0, n1))
            y_sb.append(nl.ndarray((nl.tile_size.pmax, blocks, count, n1 - n0), dtype=src.dtype, buffer=nl.sbuf))
        for i in range(count):
            for k in range(len(weights)):
                t = count - 1 - i if backwards[d0 + k] else i
                x_part, y_part = x_sb[k][:, :, t], y_sb[k][:, :, t]
                h_new_sb, c_new_sb = _compute_step(cell, weights[k], h_sb[k], c_sb[k], x_part, y_part)
                if length_sb is not None:
                    before = (h_sb[k], c_sb[k])
                    h_new_sb, c_new_sb = _keep_ended(length_sb, starts[k] + t, before, h_new_sb, c_new_sb, y_part)
                h_sb[k] = h_new_sb
                c_sb[k] = c_new_sb
        for k in range(len(weights)):
            _store_steps(dst[d0 + k], y_sb[k], starts[k], n0, n1)
    for k in range(len(weights)):
        _store_state(dst[d0 + k, steps, n0:n1], h_sb[k])
        if cell.kind == "lstm":
            _scale_cell(c_sb[k], cell, 0.5)
            _store_state(dst[d0 + k, steps + 1, n0:n1], c_sb[k])


def _first_state(state: Optional[nl.NkiTensor], d: int, n0: int, n1: int, hidden: int, dtype: Any) -> nl.NkiTensor:
    """A state (128, B, rows) before the first step; zeros if there is none, and where H is padded."""
    blocks = ceil_div(hidden, nl.tile_size.pmax)
    first_sb = nl.ndarray((nl.tile_size.pmax, blocks, n1 - n0), dtype=dtype, buffer=nl.sbuf)
    if state is None or hidden % nl.tile_size.pmax != 0:
        nisa.memset(dst=first_sb, value=0.0)
    if state is not None:
        rows_sb = load(state[d, n0:n1])
        if state.dtype != dtype:
            wide_sb = nl.ndarray(rows_sb.shape, dtype=dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=wide_sb, src=rows_sb)
            rows_sb = wide_sb
        turn_rows(first_sb, rows_sb)
    return first_sb


def _scale_cell(c_sb: nl.NkiTensor, cell: RecurrentCell, factor: float) -> None:
    """Multiply a cell state in place where steps work on twice of it: with halved weights."""
    if cell.halved:
        nisa.tensor_scalar(dst=c_sb, data=c_sb, op0=nl.multiply, operand0=factor)


def _project(src: nl.NkiTensor, weights: RecurrentWeights, t0: int, count: int, n0: int, n1: int) -> nl.NkiTensor:
    """W @ x + bias (128, G*B, count, rows) of ``count`` steps from t0 on."""
    outputs = weights.bias_sb.shape[1] * nl.tile_size.pmax
    x_sb = nl.ndarray((nl.tile_size.pmax, weights.bias_sb.shape[1], count, n1 - n0), dtype=nl.float32, buffer=nl.sbuf)
    features = src.shape[2]
    if n1 - n0 == src.shape[1]:
        rows = src[t0 : t0 + count].reshape((count * (n1 - n0), features))
        flat_sb = x_sb.flatten_dims(2, 3)
        linear_features(flat_sb, rows, weights.w, weights.bias_sb, features, outputs, "none", INPUT_LOAD_BYTES)
    else:
        for t in range(count):
            rows, x_part = src[t0 + t, n0:n1], x_sb[:, :, t]
            linear_features(x_part, rows, weights.w, weights.bias_sb, features, outputs, "none", INPUT_LOAD_BYTES)
    return x_sb


def _compute_step(
    cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, c_sb: Any, x_part: Any, y_part: Any
) -> tuple[Any, Any]:
    """The states after a step: the hidden one is written to y_part (128, B, rows)."""
    if cell.kind == "lstm" and cell.halved:
        return y_part, _step_lstm_by_tanh(weights, h_sb, c_sb, x_part, y_part)
    if cell.kind == "lstm":
        return y_part, _step_lstm(cell, weights, h_sb, c_sb, x_part, y_part)
    if cell.kind == "gru" and cell.halved:
        _step_gru_by_tanh(cell, weights, h_sb, x_part, y_part)
    elif cell.kind == "gru":
        _step_gru(cell, weights, h_sb, x_part, y_part)
    else:
        _apply(cell, 0, y_part, _recur(weights, h_sb, 0, x_part))
    return y_part, None


def _recur(
    weights: RecurrentWeights, h_sb: nl.NkiTensor, first: int, x_part: nl.NkiTensor, added: int = -1
) -> nl.NkiTensor:
    """R @ h + x_part (128, regions, rows) in PSUM, for the blocks of gates from number ``first`` on; of x_part only the
    first ``added`` regions are added, if that is given.

    The tensor engine adds x_part by a product with the identity: before h is there, and without another engine.
    """
    regions = x_part.shape[1]
    added = regions if added < 0 else added
    sums_psum = nl.ndarray((nl.tile_size.pmax, regions, h_sb.shape[2]), dtype=nl.float32, buffer=nl.psum)
    if added > 0:
        nisa.nc_matmul(
            dst=sums_psum[:, 0:added], stationary=weights.identity_sb, moving=x_part[:, 0:added], accumulate=False
        )
    for o in range(regions):
        o0 = (first + o) * nl.tile_size.pmax
        for b in range(h_sb.shape[1]):
            nisa.nc_matmul(
                dst=sums_psum[:, o],
                stationary=weights.r_sb[:, b, o0 : o0 + nl.tile_size.pmax],
                moving=h_sb[:, b],
                accumulate=b > 0 or o < added,
            )
    return sums_psum


def _apply(cell: RecurrentCell, number: int, dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """dst = the cell's function of this number, of sums, which are limited first if the cell has a clip."""
    if cell.clip > 0.0:
        limited_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=limited_sb, data=sums, op0=nl.minimum, operand0=cell.clip, op1=nl.maximum, operand1=-cell.clip
        )
        sums = limited_sb
    nisa.activation(dst=dst, op=activation_function(cell.acts[number]), data=sums)


def _step_lstm(cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, c_sb: Any, x_part: Any, y_part: Any) -> Any:
    """The cell state (128, B, rows) float32 after a step; the hidden state goes to y_part."""
    blocks = c_sb.shape[1]
    sums = _recur(weights, h_sb, 0, x_part)
    gates_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    i_sb, o_sb = gates_sb[:, 0:blocks], gates_sb[:, blocks : 2 * blocks]
    f_sb, c_gate_sb = gates_sb[:, 2 * blocks : 3 * blocks], gates_sb[:, 3 * blocks : 4 * blocks]
    if weights.more_sb is None:
        _apply(cell, 0, gates_sb[:, 0 : 3 * blocks], sums[:, 0 : 3 * blocks])
    else:
        _apply(cell, 0, i_sb, _add_peephole(sums[:, 0:blocks], weights.more_sb, 0, c_sb))
        _apply(cell, 0, f_sb, _add_peephole(sums[:, 2 * blocks : 3 * blocks], weights.more_sb, 2 * blocks, c_sb))
    _apply(cell, 1, c_gate_sb, sums[:, 3 * blocks : 4 * blocks])
    kept_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    made_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    new_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=kept_sb, data1=f_sb, data2=c_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=made_sb, data1=i_sb, data2=c_gate_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=new_sb, data1=kept_sb, data2=made_sb, op=nl.add)
    if weights.more_sb is not None:  # the output gate sees the new cell state
        _apply(cell, 0, o_sb, _add_peephole(sums[:, blocks : 2 * blocks], weights.more_sb, blocks, new_sb))
    shown_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shown_sb, op=activation_function(cell.acts[2]), data=new_sb)
    nisa.tensor_tensor(dst=y_part, data1=o_sb, data2=shown_sb, op=nl.multiply)
    return new_sb


def _add_peephole(sums: nl.NkiTensor, peephole_sb: nl.NkiTensor, first: int, c_sb: nl.NkiTensor) -> nl.NkiTensor:
    """sums + p * c, with p in the columns of peephole_sb from ``first`` on."""
    gate_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    for b in range(c_sb.shape[1]):
        nisa.scalar_tensor_tensor(
            dst=gate_sb[:, b],
            data=c_sb[:, b],
            op0=nl.multiply,
            operand0=peephole_sb[:, first + b : first + b + 1],
            op1=nl.add,
            operand1=sums[:, b],
        )
    return gate_sb


def _step_lstm_by_tanh(weights: RecurrentWeights, h_sb: Any, twice_c_sb: Any, x_part: Any, y_part: Any) -> Any:
    """Twice the cell state (128, B, rows) float32 after a step; the hidden state goes to y_part.

    With t = tanh(x / 2), sigmoid(x) is (t + 1) / 2. So one function serves all gates, and between two products stand
    two instructions of the scalar engine and three of the vector engine.
    """
    blocks = twice_c_sb.shape[1]
    sums = _recur(weights, h_sb, 0, x_part)
    gates_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=gates_sb, op=nl.tanh, data=sums)
    i_sb, o_sb = gates_sb[:, 0:blocks], gates_sb[:, blocks : 2 * blocks]
    f_sb, c_gate_sb = gates_sb[:, 2 * blocks : 3 * blocks], gates_sb[:, 3 * blocks : 4 * blocks]
    made_sb = nl.ndarray(twice_c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    kept_sb = nl.ndarray(twice_c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    new_sb = nl.ndarray(twice_c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    _multiply_sum(made_sb, i_sb, 1.0, c_gate_sb)
    _multiply_sum(kept_sb, f_sb, 1.0, twice_c_sb)
    nisa.scalar_tensor_tensor(dst=new_sb, data=kept_sb, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=made_sb)
    nisa.tensor_scalar(dst=o_sb, data=o_sb, op0=nl.add, operand0=1.0, op1=nl.multiply, operand1=0.5)
    shown_sb = nl.ndarray(twice_c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shown_sb, op=nl.tanh, data=new_sb, scale=0.5)
    nisa.tensor_tensor(dst=y_part, data1=o_sb, data2=shown_sb, op=nl.multiply)
    return new_sb


def _multiply_sum(dst_sb: nl.NkiTensor, data_sb: nl.NkiTensor, added: Any, factor_sb: nl.NkiTensor) -> None:
    """dst_sb = (data_sb + added) * factor_sb."""
    nisa.scalar_tensor_tensor(dst=dst_sb, data=data_sb, op0=nl.add, operand0=added, op1=nl.multiply, operand1=factor_sb)


def _step_gru(cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, x_part: Any, y_part: Any) -> None:
    """y_part = the hidden state (128, B, rows) after a step."""
    blocks = h_sb.shape[1]
    both = 2 * blocks
    gates_sb = nl.ndarray((nl.tile_size.pmax, both, h_sb.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    z_sb, r_sb = gates_sb[:, 0:blocks], gates_sb[:, blocks:both]
    new_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    if cell.resets_product:
        sums = _recur(weights, h_sb, 0, x_part, both)
        _apply(cell, 0, gates_sb, sums[:, 0:both])
        for b in range(blocks):
            _multiply_sum(new_sb[:, b], sums[:, both + b], weights.more_sb[:, b : b + 1], r_sb[:, b])
        nisa.tensor_tensor(dst=new_sb, data1=new_sb, data2=x_part[:, both : 3 * blocks], op=nl.add)
        _apply(cell, 1, new_sb, new_sb)
    else:
        _apply(cell, 0, gates_sb, _recur(weights, h_sb, 0, x_part[:, 0:both]))
        reset_sb = nl.ndarray(h_sb.shape, dtype=h_sb.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=reset_sb, data1=r_sb, data2=h_sb, op=nl.multiply)
        _apply(cell, 1, new_sb, _recur(weights, reset_sb, both, x_part[:, both : 3 * blocks]))
    change_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=change_sb, data1=h_sb, data2=new_sb, op=nl.subtract)
    nisa.tensor_tensor(dst=change_sb, data1=change_sb, data2=z_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=y_part, data1=new_sb, data2=change_sb, op=nl.add)


def _step_gru_by_tanh(cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, x_part: Any, y_part: Any) -> None:
    """``_step_gru`` with sigmoids by tanh (``_step_lstm_by_tanh``). z * h and 1 - z are ready before the new gate."""
    blocks = h_sb.shape[1]
    both = 2 * blocks
    gates_sb = nl.ndarray((nl.tile_size.pmax, both, h_sb.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    z_sb, r_sb = gates_sb[:, 0:blocks], gates_sb[:, blocks:both]
    new_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    if cell.resets_product:
        sums = _recur(weights, h_sb, 0, x_part, both)
        nisa.activation(dst=gates_sb, op=nl.tanh, data=sums[:, 0:both])
        for b in range(blocks):  # half of R @ h and its bias: r is (t + 1) / 2
            nisa.tensor_scalar(
                dst=new_sb[:, b],
                data=sums[:, both + b],
                op0=nl.add,
                operand0=weights.more_sb[:, b : b + 1],
                op1=nl.multiply,
                operand1=0.5,
            )
        _multiply_sum(new_sb, r_sb, 1.0, new_sb)
        nisa.tensor_tensor(dst=new_sb, data1=new_sb, data2=x_part[:, both : 3 * blocks], op=nl.add)
        nisa.activation(dst=new_sb, op=nl.tanh, data=new_sb)
    else:
        nisa.activation(dst=gates_sb, op=nl.tanh, data=_recur(weights, h_sb, 0, x_part[:, 0:both]))
        reset_sb = nl.ndarray(h_sb.shape, dtype=h_sb.dtype, buffer=nl.sbuf)
        _multiply_sum(reset_sb, r_sb, 1.0, h_sb)  # twice r * h, for which R is halved
        nisa.activation(dst=new_sb, op=nl.tanh, data=_recur(weights, reset_sb, both, x_part[:, both : 3 * blocks]))
    kept_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    share_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=share_sb, data=z_sb, op0=nl.multiply, operand0=-0.5, op1=nl.add, operand1=0.5)
    nisa.tensor_scalar(dst=z_sb, data=z_sb, op0=nl.multiply, operand0=0.5, op1=nl.add, operand1=0.5)
    nisa.tensor_tensor(dst=kept_sb, data1=z_sb, data2=h_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=new_sb, data1=new_sb, data2=share_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=y_part, data1=new_sb, data2=kept_sb, op=nl.add)


def _keep_ended(
    length_sb: nl.NkiTensor, t: int, before: tuple[Any, Any], h_new_sb: Any, c_new_sb: Any, y_part: Any
) -> tuple[Any, Any]:
    """The states after step t, of rows that have ended those before it; there y_part becomes 0."""
    running_sb = nl.ndarray(length_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    ended_sb = nl.ndarray(length_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=running_sb, data=length_sb, op0=nl.greater, operand0=float(t))
    nisa.tensor_scalar(dst=ended_sb, data=length_sb, op0=nl.less_equal, operand0=float(t))
    h_kept_sb = _choose(running_sb, h_new_sb, before[0])
    c_kept_sb = None if c_new_sb is None else _choose(running_sb, c_new_sb, before[1])
    for b in range(y_part.shape[1]):
        nisa.tensor_copy_predicated(dst=y_part[:, b], src=0.0, predicate=ended_sb)
    return h_kept_sb, c_kept_sb


def _choose(where_sb: nl.NkiTensor, yes_sb: nl.NkiTensor, no_sb: nl.NkiTensor) -> nl.NkiTensor:
    """A tile (128, B, rows): yes_sb for the rows of where_sb (128, rows), else no_sb."""
    chosen_sb = nl.ndarray(no_sb.shape, dtype=no_sb.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=chosen_sb, src=no_sb)
    for b in range(no_sb.shape[1]):
        nisa.tensor_copy_predicated(dst=chosen_sb[:, b], src=yes_sb[:, b], predicate=where_sb)
    return chosen_sb


def _store_steps(dst: nl.NkiTensor, y_sb: nl.NkiTensor, t0: int, n0: int, n1: int) -> None:
    """dst (T, N, H), HBM: steps from t0 on of rows n0 to n1 = y_sb (128, B, count, rows)."""
    count, rows = y_sb.shape[2], y_sb.shape[3]
    if rows == dst.shape[1]:
        flat = dst[t0 : t0 + count].reshape((count * rows, dst.shape[2]))
        _store_state(flat, y_sb.flatten_dims(2, 3))
    else:
        for t in range(count):
            _store_state(dst[t0 + t, n0:n1], y_sb[:, :, t])


def _store_state(dst: nl.NkiTensor, state_sb: nl.NkiTensor) -> None:
    """dst (rows, H), HBM = a tile (128, B, rows), transposed on chip: then its rows are contiguous."""
    rows, hidden = dst.shape
    if state_sb.dtype != dst.dtype:
        narrow_sb = nl.ndarray(state_sb.shape, dtype=dst.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=narrow_sb, src=state_sb)
        state_sb = narrow_sb
    pmax = nl.tile_size.pmax
    rows_sb = nl.ndarray((pmax, ceil_div(rows, pmax), hidden), dtype=dst.dtype, buffer=nl.sbuf)
    for b in range(state_sb.shape[1]):
        h0, parts = b * pmax, block_rows(hidden, b)
        turn_rows(rows_sb[:, :, h0 : h0 + parts], state_sb[0:parts, b])
    for i in range(ceil_div(rows, pmax)):
        r0, r1 = i * pmax, min(rows, (i + 1) * pmax)
        nisa.dma_copy(dst=dst[r0:r1], src=rows_sb[0 : r1 - r0, i])
