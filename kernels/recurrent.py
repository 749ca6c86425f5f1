"""Recurrent layers: LSTM, GRU and RNN over whole sequences, with the hidden state on the partitions.

    HBM  src (T, N, I)                                        dst (D, T + states, N, H)
          | a few time steps at once                            ^ transposed back to rows
          v                                                     |
    tensor engine: W @ x + bias of these steps -> SBUF x_sb     SBUF y_sb: the hidden states of these steps
                                |                               ^        |
                                v                               |        v the state that the next step reads
    each step (recurrent_steps.py):  x_sb + R @ h -> PSUM -> gates (scalar engine) -> new state (vector engine)

The recurrent weights R are the stationary operand and stay in SBUF: of 128 outputs, a product has as many columns as
rows of the batch. Lanes are rows of one direction that go through all steps together. All lanes take turns with their
steps, so that one computes while the others wait for their engines.

A long sequence goes through a loop on the device, many steps a trip, whose states stay in the same tiles. Its DMA finds
a trip's steps by a number in SBUF, because a backwards direction counts down, which a loop's counter can't.

H is padded to blocks of 128 with zeros; a padded hidden unit stays 0. The rows of W, R and the biases are block after
block of hidden units, and in each block gate after gate: i, f, c, o of an LSTM; z, r, h of a GRU. With resets_product W
and the bias have z, r, then R's bias of the hidden gate (the rows of W are 0), then h.
"""

from dataclasses import dataclass
from typing import Any, Optional

from trnrt.kernels.common import block_rows, ceil_div, item_bytes, load, transfer
from trnrt.kernels.linear import LOADS_AHEAD
from trnrt.kernels.operands import turn_rows, unit_matrix
from trnrt.kernels.recurrent_inputs import INPUT_LOAD_BYTES, RecurrentPart, find_steps, project_far, project_steps
from trnrt.kernels.recurrent_steps import (
    CELL_STATE,
    GATES,
    RecurrentCell,
    RecurrentWeights,
    compute_step,
    new_gates,
    recurrent_lane_rows,
)
from trnrt.nki import nisa, nl

# The states that dst holds behind the steps.
STATES = {"lstm": 2, "gru": 1, "rnn": 1}
# The most bytes per partition of recurrent weights in SBUF at once: more directions follow one another. H of 1,024 in
# float32 takes all of it for an LSTM.
RECURRENT_BYTES = 128 * 1024
# Input weights stay in SBUF if they find room in RECURRENT_BYTES beside the recurrent ones, or have no more bytes per
# partition than this. With others, W @ x is computed for all steps first, and stored in HBM.
KEPT_INPUT_BYTES = 16 * 1024
# Bytes per partition of W @ x of one direction, for the steps computed at once: the least, and, as far as
# RECURRENT_BYTES has room for four times as many, the most. More steps share the loads of W that isn't kept.
AHEAD_BYTES, MOST_AHEAD_BYTES = 8 * 1024, 16 * 1024
# Rows whose W @ x is computed at once while W is in SBUF: so little that it fits between two steps, and enough to fill
# products. benchmarks.recurrent, trn2: the sum of all ratios was 129.1 with 128, 131.4 with 256, 133.9 with 512; but
# with 128, transfers and transposes took too much of layers of 512 units: the worst ratio was 2.7, 2.5 and 2.2.
AHEAD_ROWS = 256


@dataclass
class RecurrentLane(nl.NKIObject):
    """Rows n0 to n1 of direction number ``k`` of those that run together, counted from the part's first row. h_sb (128,
    B, rows), gates_sb (see ``compute_step``): the states before the part's first step, or before a trip's; length_sb:
    (128, rows) float32 or None."""

    k: int
    n0: int
    n1: int
    h_sb: nl.NkiTensor
    gates_sb: Any
    length_sb: Any


def recurrent_bytes(kind: str, hidden: int, item: int) -> int:
    """Bytes per partition of one direction's recurrent weights, with elements of ``item`` bytes."""
    blocks = ceil_div(hidden, nl.tile_size.pmax)
    return blocks * GATES[kind] * blocks * nl.tile_size.pmax * item


def recurrent_tile_bytes(kind: str, hidden: int, features: int, directions: int) -> int:
    """The most bytes per partition that the tiles take, for planners; weights as float32."""
    blocks, each = ceil_div(hidden, nl.tile_size.pmax), recurrent_bytes(kind, hidden, 4)
    inputs = ceil_div(features, nl.tile_size.pmax) * blocks * nl.tile_size.pmax * 4 * 4
    together = directions if directions * each <= RECURRENT_BYTES else 1
    held = together * (each + inputs) if together * (each + inputs) <= RECURRENT_BYTES else together * each
    # A direction has its input weights, or loads of them, W @ x and hidden states of the steps computed at once, twice
    # while the next ones are prepared, and the features that W multiplies.
    source = 2 * ceil_div(features, nl.tile_size.pmax) * nl.tile_size.psum_bank_fmax * 4
    own = KEPT_INPUT_BYTES + LOADS_AHEAD * INPUT_LOAD_BYTES + 4 * _ahead_bytes(held, together) + blocks * 1024
    return held + together * own + source


def _steps_ahead(most: int, rows: int) -> int:
    """The steps whose W @ x is computed at once: of at most ``most`` rows."""
    return max(1, min(most // rows, ceil_div(AHEAD_ROWS, rows)))


def _ahead_bytes(held: int, together: int) -> int:
    """Bytes per partition of W @ x beside ``held`` bytes of weights of the directions that run together."""
    return max(AHEAD_BYTES, min(MOST_AHEAD_BYTES, (RECURRENT_BYTES - held) // (4 * together)))


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
    trip: int = 0,
) -> None:
    """dst = the hidden states of a recurrent layer at every step, then its last hidden (and an LSTM's cell) state.

    dst: HBM (D, T + STATES[kind], N, H)
    src: HBM (T, N, I)
    h_first, c_first: HBM (D, N, H), or None for zeros
    lengths: HBM (1, N) float32, or None: a row's steps from here on leave its state alone, and are 0 in dst
    w: for each direction HBM (P, B*BH*G'*128), prepared for linear_features: input weights to BH blocks of G' gates; G'
        is GATES[kind], 4 with resets_product
    r: for each direction HBM (128, BH*BH*G*128): block b of 128 hidden units, then its weights to all blocks and gates
    bias: for each direction HBM (128, BH*G') float32: W's and R's
    more: for each direction None; of an LSTM with peepholes HBM (128, BH*3) float32, for i, f and o
    backwards: for each direction True if it goes from the last step to the first
    kind, acts, clip, resets_product: see RecurrentCell
    halved: sigmoids are computed from tanh, which saves the scalar engine from loading another table of functions twice
        a step. The rows of gates i, f, o, or z and r, are then half of themselves in w, r and bias; of a GRU without
        resets_product also those of the hidden gate in r, of one with it those of R and its bias
    trip: 0, or the steps in each trip of a loop on the device; those that are left follow unrolled
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
    # In the dtype in which W @ x is kept: a product of bfloat16 takes a quarter of the time. float16 can't hold all of
    # these sums, and infinity times 0 would be NaN.
    identity_sb = unit_matrix(nl.bfloat16 if src.dtype == nl.bfloat16 else nl.float32)
    blocks, rows, columns = ceil_div(dst.shape[3], nl.tile_size.pmax), src.shape[1], bias[0].shape[1]
    inputs = w[0].shape[1] * item_bytes(w[0].dtype)
    fits = together * (each + inputs) <= RECURRENT_BYTES
    held = together * (each + inputs if fits else each)
    ahead = _ahead_bytes(held, together) // (columns * item_bytes(identity_sb.dtype))
    most = _rows_together(cell, blocks, columns)
    kept = fits or inputs <= KEPT_INPUT_BYTES
    for d0 in range(0, len(w), together):
        weights = []
        for d in range(d0, d0 + together):
            weights.append(_load_recurrent(identity_sb, r[d], w[d], bias[d], more[d], blocks, kept))
        for n0 in range(0, rows, most):
            part = RecurrentPart(
                dst=dst,
                src=src,
                weights=weights,
                backwards=backwards[d0 : d0 + together],
                cell=cell,
                d0=d0,
                n0=n0,
                n1=min(rows, n0 + most),
                ahead=_steps_ahead(ahead, min(rows, n0 + most) - n0),
            )
            _run_part(part, _make_lanes(part, h_first, c_first, lengths), trip)


def _load_recurrent(
    identity_sb: nl.NkiTensor, r: Any, w: Any, bias: Any, more: Any, blocks: int, kept: bool
) -> RecurrentWeights:
    """One direction's weights in SBUF, W only if it is ``kept`` there."""
    return RecurrentWeights(
        identity_sb=identity_sb,
        r_sb=load(r).reshape((nl.tile_size.pmax, blocks, r.shape[1] // blocks)),
        w=load(w) if kept else w,
        bias_sb=load(bias),
        more_sb=None if more is None else load(more),
    )


def _rows_together(cell: RecurrentCell, blocks: int, columns: int) -> int:
    """The rows of the batch that go through all steps together: as many lanes as AHEAD_BYTES of one step allow."""
    rows = recurrent_lane_rows(cell, blocks)
    return rows * max(1, AHEAD_BYTES // (columns * 4) // rows)


def _make_lanes(part: RecurrentPart, h_first: Any, c_first: Any, lengths: Any) -> list[RecurrentLane]:
    """The lanes of all directions, with their first states."""
    hidden, rows = part.dst.shape[3], part.n1 - part.n0
    blocks = ceil_div(hidden, nl.tile_size.pmax)
    most = recurrent_lane_rows(part.cell, blocks)
    lanes = []
    for l0 in range(0, rows, most):
        l1 = min(rows, l0 + most)
        n0, n1 = part.n0 + l0, part.n0 + l1
        for k in range(len(part.weights)):
            gates_sb, length_sb = None, None
            if part.cell.kind == "lstm":
                gates_sb = new_gates(blocks, l1 - l0)
                c_sb = _first_state(c_first, part.d0 + k, n0, n1, hidden, nl.float32)
                factor = 2.0 if part.cell.halved else 1.0
                nisa.tensor_scalar(dst=gates_sb[:, :, CELL_STATE], data=c_sb, op0=nl.multiply, operand0=factor)
            if lengths is not None:
                length_sb = load(lengths[:, n0:n1].broadcast(0, nl.tile_size.pmax))
            h_sb = _first_state(h_first, part.d0 + k, n0, n1, hidden, part.src.dtype)
            lanes.append(RecurrentLane(k=k, n0=l0, n1=l1, h_sb=h_sb, gates_sb=gates_sb, length_sb=length_sb))
    return lanes


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


def _run_part(part: RecurrentPart, lanes: list[RecurrentLane], trip: int) -> None:
    """All steps of a part: in trips of a device loop, then unrolled; and its last states to dst."""
    steps = part.src.shape[0]
    trips = steps // trip if trip > 0 else 0
    looped = trips * trip if trips > 1 else 0
    if looped > 0:
        places, lengths = [], []
        for backwards in part.backwards:
            place_sb = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
            nisa.memset(dst=place_sb, value=steps - trip if backwards else 0)
            places.append(place_sb)
        for lane in lanes:
            lengths.append(_copy_lengths(lane, steps - trip if part.backwards[lane.k] else 0))

        def run_trip(number: Any) -> None:
            ends = _run_steps(part, lanes, lengths, places, trip)
            for i in range(len(lanes)):
                _keep_states(lanes[i], ends[i][0], ends[i][1])
                _move_by(lengths[i], trip if part.backwards[lanes[i].k] else -trip)
            for k in range(len(places)):
                _move_by(places[k], -trip if part.backwards[k] else trip)

        nl.fori_loop(0, trips, run_trip)
    first, lengths = [], []
    for backwards in part.backwards:
        first.append(0 if backwards else looped)
    for lane in lanes:
        lengths.append(lane.length_sb)
    _store_ends(part, lanes, _run_steps(part, lanes, lengths, first, steps - looped))


def _copy_lengths(lane: RecurrentLane, place: int) -> Any:
    """The lengths of a lane, counted from step ``place`` on, which a loop may change; None if there are none."""
    if lane.length_sb is None:
        return None
    left_sb = nl.ndarray(lane.length_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=left_sb, data=lane.length_sb, op0=nl.subtract, operand0=float(place))
    return left_sb


def _move_by(tile_sb: Any, steps: int) -> None:
    """Add ``steps`` to a tile; None stays."""
    if tile_sb is not None:
        nisa.tensor_scalar(dst=tile_sb, data=tile_sb, op0=nl.add, operand0=steps)


def _keep_states(lane: RecurrentLane, h_sb: Any, gates_sb: Any) -> None:
    """Copy the states after a trip to where the next one finds them."""
    nisa.tensor_copy(dst=lane.h_sb, src=h_sb)
    if gates_sb is not None:
        nisa.tensor_copy(dst=lane.gates_sb[:, :, CELL_STATE], src=gates_sb[:, :, CELL_STATE])


def _run_steps(
    part: RecurrentPart, lanes: list[RecurrentLane], lengths: list[Any], places: list[Any], steps: int
) -> list[Any]:
    """Run ``steps`` steps, of each direction from its place on; for each lane the states after them.

    places: for each direction the first of its steps in src, whichever it takes first: a number, or a tile with it
    lengths: for each lane None, or its lengths; counted from the place on if that is a tile
    """
    states = []
    for lane in lanes:
        states.append((lane.h_sb, lane.gates_sb))
    x_far = project_far(part, places, steps)
    x_next = project_steps(part, x_far, places, steps, 0)
    y_before: list[Any] = []
    for first in range(0, steps, part.ahead):
        count = min(part.ahead, steps - first)
        x_sb, y_sb = x_next, []
        for _ in part.weights:
            y_sb.append(_new_states(part, count))
        for i in range(count):
            for j in range(len(lanes)):
                k, (h_sb, gates_sb) = lanes[j].k, states[j]
                start = steps - first - count if part.backwards[k] else first
                t = count - 1 - i if part.backwards[k] else i
                x_part = x_sb[k][:, :, :, t, lanes[j].n0 : lanes[j].n1]
                y_part = y_sb[k][:, :, t, lanes[j].n0 : lanes[j].n1]
                next_sb = compute_step(part.cell, part.weights[k], h_sb, gates_sb, x_part, y_part)
                states[j] = (y_part, next_sb)
                if lengths[j] is not None:
                    counted = start + t + (places[k] if isinstance(places[k], int) else 0)
                    states[j] = (_keep_ended(lengths[j], counted, h_sb, gates_sb, next_sb, y_part), next_sb)
            if i == 0:  # in the shadow of the steps that follow
                _store_all(part, places, steps, first - part.ahead, y_before)
                x_next = project_steps(part, x_far, places, steps, first + count)
        y_before = y_sb
    _store_all(part, places, steps, steps - (steps - 1) % part.ahead - 1, y_before)
    return states


def _store_all(part: RecurrentPart, places: list[Any], steps: int, first: int, y_sb: list[nl.NkiTensor]) -> None:
    """Store the states of each direction after its steps from number ``first`` of ``steps`` on, as it takes them."""
    for k in range(len(y_sb)):
        start = steps - first - y_sb[k].shape[2] if part.backwards[k] else first
        _store_steps(part, k, places[k], start, y_sb[k])


def _new_states(part: RecurrentPart, count: int) -> nl.NkiTensor:
    """A tile (128, B, count, rows) for the hidden states of some steps."""
    blocks = ceil_div(part.dst.shape[3], nl.tile_size.pmax)
    shape = (nl.tile_size.pmax, blocks, count, part.n1 - part.n0)
    return nl.ndarray(shape, dtype=part.src.dtype, buffer=nl.sbuf)


def _keep_ended(length_sb: Any, t: int, h_sb: Any, gates_sb: Any, next_sb: Any, y_part: Any) -> nl.NkiTensor:
    """The hidden states after step t, of rows that have ended those before it, as the cell states in next_sb; there
    y_part becomes 0."""
    ended_sb = nl.ndarray(length_sb.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=ended_sb, data=length_sb, op0=nl.less_equal, operand0=float(t))
    kept_sb = nl.ndarray(h_sb.shape, dtype=h_sb.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=kept_sb, src=y_part)
    for b in range(h_sb.shape[1]):
        nisa.tensor_copy_predicated(dst=kept_sb[:, b], src=h_sb[:, b], predicate=ended_sb)
        nisa.tensor_copy_predicated(dst=y_part[:, b], src=0.0, predicate=ended_sb)
        if next_sb is not None:
            before_sb = gates_sb[:, b, CELL_STATE]
            nisa.tensor_copy_predicated(dst=next_sb[:, b, CELL_STATE], src=before_sb, predicate=ended_sb)
    return kept_sb


def _store_steps(part: RecurrentPart, k: int, place: Any, start: int, y_sb: nl.NkiTensor) -> None:
    """The steps of dst of direction ``k``, from ``start`` behind its place on = y_sb (128, B, count, rows)."""
    _, every, rows, hidden = part.dst.shape
    count, own = y_sb.shape[2], y_sb.shape[3]
    d, states_sb = part.d0 + k, y_sb.flatten_dims(2, 3)
    if isinstance(place, int) and own == rows:
        taken = part.dst[d, place + start : place + start + count]
        _store_state(taken.reshape((count * rows, hidden)), states_sb)
    else:
        made = nl.ndarray((count, own, hidden), dtype=part.dst.dtype, buffer=nl.private_hbm)
        _store_state(made.reshape((count * own, hidden)), states_sb)
        pattern = [[rows * hidden, count], [hidden, own], [1, hidden]]
        offset = ((d * every + start) * rows + part.n0) * hidden
        transfer(find_steps(part.dst, pattern, place, offset, 1), made)


def _store_ends(part: RecurrentPart, lanes: list[RecurrentLane], ends: list[Any]) -> None:
    """The states of all lanes after the last step, behind the steps of dst."""
    steps = part.src.shape[0]
    for i in range(len(lanes)):
        lane, (h_sb, gates_sb) = lanes[i], ends[i]
        d, n0, n1 = part.d0 + lane.k, part.n0 + lane.n0, part.n0 + lane.n1
        _store_state(part.dst[d, steps, n0:n1], h_sb)
        if gates_sb is not None:
            c_sb = nl.ndarray(h_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
            factor = 0.5 if part.cell.halved else 1.0
            nisa.tensor_scalar(dst=c_sb, data=gates_sb[:, :, CELL_STATE], op0=nl.multiply, operand0=factor)
            _store_state(part.dst[d, steps + 1, n0:n1], c_sb)


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
