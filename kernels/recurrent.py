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

from trnrt.kernels.common import activation_function, block_rows, ceil_div, item_bytes, load
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
KEPT_BYTES = 16 * 1024
# Bytes per partition of one load of input weights that aren't kept: small, as R takes most of SBUF beside them.
INPUT_LOAD_BYTES = 4 * 1024


@dataclass
class RecurrentCell(nl.NKIObject):
    """What a layer computes: ``kind`` of GATES; ``acts`` of common.py, in ONNX's order (f, g, h); ``clip`` limits what
    activations read, 0 doesn't; ``resets_product``: a GRU's reset gate scales R @ h, not h."""

    kind: str
    acts: tuple[str, ...]
    clip: float
    resets_product: bool


@dataclass
class RecurrentWeights(nl.NKIObject):
    """One direction's weights in SBUF. r_sb: (128, B, G*B*128); others as in ``recurrent``, w in HBM if it is large."""

    r_sb: nl.NkiTensor
    w: nl.NkiTensor
    bias_sb: nl.NkiTensor
    more_sb: Optional[nl.NkiTensor]


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
    own = KEPT_BYTES + LOADS_AHEAD * INPUT_LOAD_BYTES + 4 * AHEAD_BYTES + blocks * 1024
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
    limits: recurrent_bytes <= RECURRENT_BYTES; G*BH <= 512

    numpy: h, c = h_first, c_first; at each step t (from the last if backwards) with g = x[t] @ W.T + h @ R.T + bias,
        lstm: c = f(g_f + p_f*c) * c + f(g_i + p_i*c) * g(g_c); h = f(g_o + p_o*c) * h(c)
        gru:  h = (1 - z) * g(x[t] @ W_h.T + (r*h) @ R_h.T + bias_h) + z * h, with z, r = f(g_z), f(g_r)
        rnn:  h = f(g)
    """
    cell = RecurrentCell(kind=kind, acts=acts, clip=clip, resets_product=resets_product)
    each = recurrent_bytes(kind, dst.shape[3], item_bytes(src.dtype))
    assert each <= RECURRENT_BYTES, f"recurrent: weights of {each} bytes a partition; the limit is {RECURRENT_BYTES}"
    together = len(w) if len(w) * each <= RECURRENT_BYTES else 1
    for d0 in range(0, len(w), together):
        weights = []
        for d in range(d0, d0 + together):
            weights.append(_load_weights(r[d], w[d], bias[d], more[d], ceil_div(dst.shape[3], nl.tile_size.pmax)))
        rows = src.shape[1]
        step = _rows_together(kind, dst.shape[3], rows)
        for n0 in range(0, rows, step):
            n1 = min(rows, n0 + step)
            length_sb = None
            if lengths is not None:
                length_sb = load(lengths[:, n0:n1].broadcast(0, nl.tile_size.pmax))
            _run_rows(dst, src, h_first, c_first, length_sb, weights, backwards, cell, d0, n0, n1)


def _load_weights(r: Any, w: Any, bias: Any, more: Any, blocks: int) -> RecurrentWeights:
    """One direction's weights in SBUF, but W if it has more than KEPT_BYTES."""
    r_sb = load(r).reshape((nl.tile_size.pmax, blocks, r.shape[1] // blocks))
    kept = w.shape[1] * item_bytes(w.dtype) <= KEPT_BYTES
    return RecurrentWeights(
        r_sb=r_sb, w=load(w) if kept else w, bias_sb=load(bias), more_sb=None if more is None else load(more)
    )


def _rows_together(kind: str, hidden: int, rows: int) -> int:
    """The rows of the batch that go through all steps together: the sums of all gates have one PSUM bank."""
    regions = GATES[kind] * ceil_div(hidden, nl.tile_size.pmax)
    return max(1, min(rows, nl.tile_size.pmax, nl.tile_size.psum_bank_fmax // regions))


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
    h_sb, c_sb = [], []
    for k in range(len(weights)):
        h_sb.append(_first_state(h_first, d0 + k, n0, n1, hidden, src.dtype))
        c_sb.append(_first_state(c_first, d0 + k, n0, n1, hidden, nl.float32) if cell.kind == "lstm" else None)
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
                    h_new_sb, c_new_sb = _keep_ended(
                        length_sb, starts[k] + t, h_sb[k], h_new_sb, c_sb[k], c_new_sb, y_part
                    )
                h_sb[k], c_sb[k] = h_new_sb, c_new_sb
        for k in range(len(weights)):
            _store_steps(dst[d0 + k], y_sb[k], starts[k], n0, n1)
    for k in range(len(weights)):
        _store_state(dst[d0 + k, steps, n0:n1], h_sb[k])
        if cell.kind == "lstm":
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
    if cell.kind == "lstm":
        return y_part, _step_lstm(cell, weights, h_sb, c_sb, x_part, y_part)
    if cell.kind == "gru":
        _step_gru(cell, weights, h_sb, x_part, y_part)
    else:
        gate_sb = _add_inputs(cell, _recur(weights.r_sb, h_sb, 0, x_part.shape[1]), x_part)
        nisa.activation(dst=y_part, op=activation_function(cell.acts[0]), data=gate_sb)
    return y_part, None


def _recur(r_sb: nl.NkiTensor, h_sb: nl.NkiTensor, first: int, regions: int) -> nl.NkiTensor:
    """R @ h (128, regions, rows) in PSUM, of ``regions`` blocks of gates from number ``first`` on."""
    sums_psum = nl.ndarray((nl.tile_size.pmax, regions, h_sb.shape[2]), dtype=nl.float32, buffer=nl.psum)
    for o in range(regions):
        o0 = (first + o) * nl.tile_size.pmax
        for b in range(h_sb.shape[1]):
            nisa.nc_matmul(
                dst=sums_psum[:, o],
                stationary=r_sb[:, b, o0 : o0 + nl.tile_size.pmax],
                moving=h_sb[:, b],
                accumulate=b > 0,
            )
    return sums_psum


def _add_inputs(cell: RecurrentCell, sums_psum: nl.NkiTensor, x_part: nl.NkiTensor) -> nl.NkiTensor:
    """What activations read: R @ h + (W @ x + bias), limited if the cell has a clip."""
    gates_sb = nl.ndarray(sums_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=gates_sb, data1=sums_psum, data2=x_part, op=nl.add)
    return _limit(cell, gates_sb)


def _limit(cell: RecurrentCell, gates_sb: nl.NkiTensor) -> nl.NkiTensor:
    """gates_sb itself, within -clip and clip if the cell has one."""
    if cell.clip > 0.0:
        nisa.tensor_scalar(
            dst=gates_sb, data=gates_sb, op0=nl.minimum, operand0=cell.clip, op1=nl.maximum, operand1=-cell.clip
        )
    return gates_sb


def _step_lstm(cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, c_sb: Any, x_part: Any, y_part: Any) -> Any:
    """The cell state (128, B, rows) float32 after a step; the hidden state goes to y_part."""
    blocks = c_sb.shape[1]
    f, g, h = cell.acts
    sums_psum = _recur(weights.r_sb, h_sb, 0, 4 * blocks)
    gates_sb = nl.ndarray(sums_psum.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=gates_sb, data1=sums_psum, data2=x_part, op=nl.add)
    i_sb, o_sb = gates_sb[:, 0:blocks], gates_sb[:, blocks : 2 * blocks]
    f_sb, c_gate_sb = gates_sb[:, 2 * blocks : 3 * blocks], gates_sb[:, 3 * blocks : 4 * blocks]
    if weights.more_sb is not None:
        _add_peephole(i_sb, weights.more_sb, 0, c_sb)
        _add_peephole(f_sb, weights.more_sb, 2 * blocks, c_sb)
        by_f = (i_sb, f_sb)  # o waits for the new cell state
    else:
        by_f = (gates_sb[:, 0 : 3 * blocks],)
    for part_sb in by_f:
        nisa.activation(dst=part_sb, op=activation_function(f), data=_limit(cell, part_sb))
    nisa.activation(dst=c_gate_sb, op=activation_function(g), data=_limit(cell, c_gate_sb))
    kept_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    made_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    new_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=kept_sb, data1=f_sb, data2=c_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=made_sb, data1=i_sb, data2=c_gate_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=new_sb, data1=kept_sb, data2=made_sb, op=nl.add)
    if weights.more_sb is not None:
        _add_peephole(o_sb, weights.more_sb, blocks, new_sb)
        nisa.activation(dst=o_sb, op=activation_function(f), data=_limit(cell, o_sb))
    shown_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shown_sb, op=activation_function(h), data=new_sb)
    nisa.tensor_tensor(dst=y_part, data1=o_sb, data2=shown_sb, op=nl.multiply)
    return new_sb


def _add_peephole(gate_sb: nl.NkiTensor, peephole_sb: nl.NkiTensor, first: int, c_sb: nl.NkiTensor) -> None:
    """gate_sb = gate_sb + p * c, with p in the columns of peephole_sb from ``first`` on."""
    for b in range(c_sb.shape[1]):
        nisa.scalar_tensor_tensor(
            dst=gate_sb[:, b],
            data=c_sb[:, b],
            op0=nl.multiply,
            operand0=peephole_sb[:, first + b : first + b + 1],
            op1=nl.add,
            operand1=gate_sb[:, b],
        )


def _step_gru(cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, x_part: Any, y_part: Any) -> None:
    """y_part = the hidden state (128, B, rows) after a step."""
    blocks = h_sb.shape[1]
    f, g = cell.acts
    both = 2 * blocks
    sums_psum = _recur(weights.r_sb, h_sb, 0, 3 * blocks if cell.resets_product else both)
    gates_sb = _add_inputs(cell, sums_psum[:, 0:both], x_part[:, 0:both])
    nisa.activation(dst=gates_sb, op=activation_function(f), data=gates_sb)
    z_sb, r_sb = gates_sb[:, 0:blocks], gates_sb[:, blocks:both]
    made_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    if cell.resets_product:
        for b in range(blocks):
            nisa.scalar_tensor_tensor(
                dst=made_sb[:, b],
                data=sums_psum[:, both + b],
                op0=nl.add,
                operand0=weights.more_sb[:, b : b + 1],
                op1=nl.multiply,
                operand1=r_sb[:, b],
            )
    else:
        reset_sb = nl.ndarray(h_sb.shape, dtype=h_sb.dtype, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=reset_sb, data1=r_sb, data2=h_sb, op=nl.multiply)
        made_sb = _recur(weights.r_sb, reset_sb, both, blocks)
    new_sb = _add_inputs(cell, made_sb, x_part[:, both : 3 * blocks])
    nisa.activation(dst=new_sb, op=activation_function(g), data=new_sb)
    change_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=change_sb, data1=h_sb, data2=new_sb, op=nl.subtract)
    nisa.tensor_tensor(dst=change_sb, data1=change_sb, data2=z_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=y_part, data1=new_sb, data2=change_sb, op=nl.add)


def _keep_ended(
    length_sb: nl.NkiTensor, t: int, h_sb: Any, h_new_sb: Any, c_sb: Any, c_new_sb: Any, y_part: Any
) -> tuple[Any, Any]:
    """The states after step t, of rows that have ended those before it; there y_part becomes 0."""
    running_sb = nl.ndarray(length_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    ended_sb = nl.ndarray(length_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=running_sb, data=length_sb, op0=nl.greater, operand0=float(t))
    nisa.tensor_scalar(dst=ended_sb, data=length_sb, op0=nl.less_equal, operand0=float(t))
    h_kept_sb = _choose(running_sb, h_new_sb, h_sb)
    c_kept_sb = None if c_sb is None else _choose(running_sb, c_new_sb, c_sb)
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
