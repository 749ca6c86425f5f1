"""One time step of an LSTM, GRU or RNN, with the hidden units on the partitions.

    x_part, h -> tensor engine: x + R @ h in PSUM -> scalar engine: gates -> vector engine: new state -> h

The hidden units are cut into groups of blocks, and the sums of all gates of a group have one PSUM bank. As soon as a
group's sums are there, the scalar and vector engines turn them into the group's part of h, while the tensor engine
computes the sums of the next groups; and the next step multiplies the first blocks of h while the last ones are made.

With t = tanh(x / 2), sigmoid(x) is (t + 1) / 2. So where the functions are ONNX's default ones, tanh serves all gates
(``halved``), and the scalar engine never loads another table of functions.
"""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import activation_function, ceil_div
from trnrt.nki import nisa, nl

# Gates of each kind of cell.
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
# The most groups of a step: their sums have half of PSUM's banks, which leaves room for those of the next step.
GROUPS = 4
# Of a step: the instructions that add W @ x and make a state of the sums, for each group.
GROUP_INSTRUCTIONS = {"lstm": 8, "gru": 9, "rnn": 2}
# Where an LSTM's gates, and beside them its cell state, stand in a tile: each product takes two neighbours at once.
LSTM_SLOTS = 5
CELL_GATE, CELL_STATE, OUTPUT_GATE = 2, 3, 4


@dataclass
class RecurrentCell(nl.NKIObject):
    """The computation of a layer's step.

    ``kind``: one of GATES. ``acts``: its activations, names of common.py, in ONNX's order (f, g, h). ``clip``: the
    largest magnitude that an activation reads; 0 for no limit. ``resets_product``: a GRU's reset gate scales R @ h, not
    h. ``halved``: see ``recurrent``.
    """

    kind: str
    acts: tuple[str, ...]
    clip: float
    resets_product: bool
    halved: bool


@dataclass
class RecurrentWeights(nl.NKIObject):
    """One direction's weights in SBUF. r_sb: (128, B, B*G*128); identity_sb: (128, 128) float32; others as in
    ``recurrent``, w in HBM if it is large."""

    identity_sb: nl.NkiTensor
    r_sb: nl.NkiTensor
    w: nl.NkiTensor
    bias_sb: nl.NkiTensor
    more_sb: Any


def group_blocks(cell: RecurrentCell, blocks: int) -> int:
    """The blocks of hidden units in a group. All are in one if the gates' functions differ: a second group would make
    the scalar engine load the tables of both functions once more."""
    return ceil_div(blocks, GROUPS) if cell.halved or cell.kind == "rnn" else blocks


def recurrent_lane_rows(cell: RecurrentCell, blocks: int) -> int:
    """The most rows of the batch in a step: a bank of PSUM has the sums of a group."""
    regions = GATES[cell.kind] * group_blocks(cell, blocks)
    return max(1, min(nl.tile_size.pmax, nl.tile_size.psum_bank_fmax // regions))


def recurrent_instructions(cell: RecurrentCell, hidden: int, rows: int) -> int:
    """About the instructions of a time step in one direction, of a cell with default functions and without lengths."""
    blocks = ceil_div(hidden, nl.tile_size.pmax)
    groups = ceil_div(blocks, group_blocks(cell, blocks))
    each = GATES[cell.kind] * blocks * blocks + GROUP_INSTRUCTIONS[cell.kind] * groups
    return ceil_div(rows, recurrent_lane_rows(cell, blocks)) * each


def compute_step(
    cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, gates_sb: Any, x_part: Any, y_part: Any
) -> Any:
    """Write the hidden state (128, B, rows) after a step to y_part; an LSTM's next tile of gates, with its cell state.

    h_sb: the state before; gates_sb: None, or of an LSTM the tile (128, B, LSTM_SLOTS, rows) with the cell state
    x_part: W @ x and the bias (128, B, inputs, rows), as ``recurrent`` has them
    """
    if cell.kind == "lstm":
        return _step_lstm(cell, weights, h_sb, gates_sb, x_part, y_part)
    if cell.kind == "gru":
        _step_gru(cell, weights, h_sb, x_part, y_part)
    else:
        size = group_blocks(cell, h_sb.shape[1])
        sums = _recur(weights, h_sb, size, (0, 1), x_part)
        for j in range(len(sums)):
            b0, b1 = j * size, j * size + sums[j].shape[1]
            _apply(cell, 0, y_part[:, b0:b1], sums[j][:, :, 0])
    return None


def new_gates(blocks: int, rows: int) -> nl.NkiTensor:
    """A tile for an LSTM's gates and its cell state."""
    return nl.ndarray((nl.tile_size.pmax, blocks, LSTM_SLOTS, rows), dtype=nl.float32, buffer=nl.sbuf)


def _recur(
    weights: RecurrentWeights, h_sb: nl.NkiTensor, size: int, gates: tuple[int, int], x_part: nl.NkiTensor
) -> list[nl.NkiTensor]:
    """R @ h + x_part, of the gates from number gates[0] to gates[1]: for each group of ``size`` blocks of hidden units
    a tile (blocks, gates, rows) of PSUM.

    The tensor engine adds x_part by a product with the identity: before h is there, and without another engine. Then
    the first half of the blocks of h is multiplied for all groups, as they become ready; and then the second half for
    one group after the other, so that the first groups are ready early.
    """
    g0, g1 = gates
    blocks, rows = h_sb.shape[1], h_sb.shape[2]
    every = weights.r_sb.shape[2] // (blocks * nl.tile_size.pmax)
    sums = []
    for b0 in range(0, blocks, size):
        b1 = min(blocks, b0 + size)
        sums_psum = nl.ndarray((nl.tile_size.pmax, b1 - b0, g1 - g0, rows), dtype=nl.float32, buffer=nl.psum)
        moving = x_part[:, b0:b1, g0:g1]
        nisa.nc_matmul(dst=sums_psum, stationary=weights.identity_sb, moving=moving, accumulate=False)
        sums.append(sums_psum)
    half = blocks // 2
    for k in range(half):
        for j in range(len(sums)):
            _multiply_state(weights, h_sb, sums[j], k, j * size, g0, every)
    for j in range(len(sums)):
        for k in range(half, blocks):
            _multiply_state(weights, h_sb, sums[j], k, j * size, g0, every)
    return sums


def _multiply_state(
    weights: RecurrentWeights, h_sb: Any, sums_psum: Any, block: int, first: int, gate: int, gates: int
) -> None:
    """Add R @ h of one block of h to a group's sums, whose blocks begin with number ``first``, gates with ``gate`` of
    ``gates``."""
    pmax = nl.tile_size.pmax
    for b in range(sums_psum.shape[1]):
        for g in range(sums_psum.shape[2]):
            o0 = ((first + b) * gates + gate + g) * pmax
            nisa.nc_matmul(
                dst=sums_psum[:, b, g],
                stationary=weights.r_sb[:, block, o0 : o0 + pmax],
                moving=h_sb[:, block],
                accumulate=True,
            )


def _apply(cell: RecurrentCell, number: int, dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """dst = the cell's function of this number, of sums, which are limited first if the cell has a clip. If ``halved``,
    it is tanh in the place of a sigmoid."""
    if cell.clip > 0.0:
        limited_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=limited_sb, data=sums, op0=nl.minimum, operand0=cell.clip, op1=nl.maximum, operand1=-cell.clip
        )
        sums = limited_sb
    nisa.activation(dst=dst, op=nl.tanh if cell.halved else activation_function(cell.acts[number]), data=sums)


def _multiply_sum(dst_sb: nl.NkiTensor, data_sb: nl.NkiTensor, added: float, factor: nl.NkiTensor) -> None:
    """dst_sb = (data_sb + added) * factor."""
    if added == 0.0:
        nisa.tensor_tensor(dst=dst_sb, data1=data_sb, data2=factor, op=nl.multiply)
    else:
        nisa.scalar_tensor_tensor(
            dst=dst_sb, data=data_sb, op0=nl.add, operand0=added, op1=nl.multiply, operand1=factor
        )


def _step_lstm(
    cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, gates_sb: Any, x_part: Any, y_part: Any
) -> nl.NkiTensor:
    """See ``compute_step``. If ``halved``, the tiles have twice the cell state."""
    blocks, rows = h_sb.shape[1], h_sb.shape[2]
    size = group_blocks(cell, blocks)
    sums = _recur(weights, h_sb, size, (0, GATES["lstm"]), x_part)
    next_sb = new_gates(blocks, rows)
    # The hidden state of a group is computed behind the gates of the next one, which are ready before it.
    for j in range(len(sums) + 1):
        if j < len(sums):
            b0, b1 = j * size, j * size + sums[j].shape[1]
            _update_cell(cell, weights, sums[j], gates_sb[:, b0:b1], next_sb[:, b0:b1, CELL_STATE], b0)
        if j > 0:
            b0, b1 = (j - 1) * size, (j - 1) * size + sums[j - 1].shape[1]
            _show_cell(cell, gates_sb[:, b0:b1, OUTPUT_GATE], next_sb[:, b0:b1, CELL_STATE], y_part[:, b0:b1])
    return next_sb


def _update_cell(
    cell: RecurrentCell, weights: RecurrentWeights, sums: Any, gates_sb: Any, new_sb: Any, first: int
) -> None:
    """new_sb (128, blocks, rows) = the cell state of a group that begins with block ``first``; its gates in gates_sb.

    sums: i, f, c and o. If ``halved``, 2 c = (i' + 1) * g + (f' + 1) * (2 c) / 2, with i' and f' the tanh of halves.
    """
    i_sb, f_sb = gates_sb[:, :, 0], gates_sb[:, :, 1]
    c_sb, o_sb = gates_sb[:, :, CELL_STATE], gates_sb[:, :, OUTPUT_GATE]
    if cell.halved:
        _apply(cell, 0, gates_sb[:, :, 0:CELL_STATE], sums[:, :, 0:CELL_STATE])
        _apply(cell, 0, o_sb, sums[:, :, CELL_STATE])
    elif weights.more_sb is None:
        _apply(cell, 0, gates_sb[:, :, 0:CELL_GATE], sums[:, :, 0:CELL_GATE])
        _apply(cell, 0, o_sb, sums[:, :, CELL_STATE])
        _apply(cell, 1, gates_sb[:, :, CELL_GATE], sums[:, :, CELL_GATE])
    else:
        _apply(cell, 0, i_sb, _add_peephole(sums[:, :, 0], weights.more_sb, 0, first, c_sb))
        _apply(cell, 0, f_sb, _add_peephole(sums[:, :, 1], weights.more_sb, 1, first, c_sb))
        _apply(cell, 1, gates_sb[:, :, CELL_GATE], sums[:, :, CELL_GATE])
    parts_sb = nl.ndarray((nl.tile_size.pmax, c_sb.shape[1], 2, c_sb.shape[2]), dtype=nl.float32, buffer=nl.sbuf)
    added, share = (1.0, 0.5) if cell.halved else (0.0, 1.0)
    _multiply_sum(parts_sb, gates_sb[:, :, 0:CELL_GATE], added, gates_sb[:, :, CELL_GATE : CELL_STATE + 1])
    made_sb, kept_sb = parts_sb[:, :, 0], parts_sb[:, :, 1]
    if cell.halved:
        nisa.scalar_tensor_tensor(
            dst=new_sb, data=kept_sb, op0=nl.multiply, operand0=share, op1=nl.add, operand1=made_sb
        )
        nisa.tensor_scalar(dst=o_sb, data=o_sb, op0=nl.add, operand0=added, op1=nl.multiply, operand1=share)
    else:
        nisa.tensor_tensor(dst=new_sb, data1=kept_sb, data2=made_sb, op=nl.add)
    if weights.more_sb is not None:  # the output gate sees the new cell state
        _apply(cell, 0, o_sb, _add_peephole(sums[:, :, CELL_STATE], weights.more_sb, 2, first, new_sb))


def _show_cell(cell: RecurrentCell, o_sb: Any, c_sb: Any, y_part: Any) -> None:
    """y_part = the output gate times the function of the cell state, of a group."""
    shown_sb = nl.ndarray(c_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=shown_sb, op=activation_function(cell.acts[2]), data=c_sb, scale=0.5 if cell.halved else 1.0)
    nisa.tensor_tensor(dst=y_part, data1=o_sb, data2=shown_sb, op=nl.multiply)


def _add_peephole(sums: Any, peephole_sb: Any, gate: int, first: int, c_sb: Any) -> nl.NkiTensor:
    """sums + p * c of a group that begins with block ``first``; p is gate number ``gate`` of three in peephole_sb."""
    gate_sb = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    for b in range(c_sb.shape[1]):
        column = (first + b) * 3 + gate
        nisa.scalar_tensor_tensor(
            dst=gate_sb[:, b],
            data=c_sb[:, b],
            op0=nl.multiply,
            operand0=peephole_sb[:, column : column + 1],
            op1=nl.add,
            operand1=sums[:, b],
        )
    return gate_sb


def _step_gru(cell: RecurrentCell, weights: RecurrentWeights, h_sb: Any, x_part: Any, y_part: Any) -> None:
    """y_part = the hidden state (128, B, rows) after a step.

    With resets_product, the third sum is R @ h and its bias, and W @ x of the hidden gate is the last of x_part.
    """
    blocks, rows = h_sb.shape[1], h_sb.shape[2]
    size = group_blocks(cell, blocks)
    gates_sb = nl.ndarray((nl.tile_size.pmax, blocks, 2, rows), dtype=nl.float32, buffer=nl.sbuf)
    new_sb = nl.ndarray((nl.tile_size.pmax, blocks, rows), dtype=nl.float32, buffer=nl.sbuf)
    added = 1.0 if cell.halved else 0.0
    sums = _recur(weights, h_sb, size, (0, 3 if cell.resets_product else 2), x_part)
    count = len(sums)
    if cell.resets_product:
        for j in range(count + 1):  # as in _step_lstm
            if j < count:
                b0, b1 = j * size, j * size + sums[j].shape[1]
                _apply(cell, 0, gates_sb[:, b0:b1], sums[j][:, :, 0:2])
                _multiply_sum(new_sb[:, b0:b1], gates_sb[:, b0:b1, 1], added, sums[j][:, :, 2])
                nisa.tensor_tensor(dst=new_sb[:, b0:b1], data1=new_sb[:, b0:b1], data2=x_part[:, b0:b1, 3], op=nl.add)
            if j > 0:
                b0, b1 = (j - 1) * size, (j - 1) * size + sums[j - 1].shape[1]
                _apply(cell, 1, new_sb[:, b0:b1], new_sb[:, b0:b1])
                _mix(cell, gates_sb[:, b0:b1, 0], new_sb[:, b0:b1], h_sb[:, b0:b1], y_part[:, b0:b1])
        return
    reset_sb = nl.ndarray(h_sb.shape, dtype=h_sb.dtype, buffer=nl.sbuf)
    for j in range(count):
        b0, b1 = j * size, j * size + sums[j].shape[1]
        _apply(cell, 0, gates_sb[:, b0:b1], sums[j])
        # If halved, twice r * h: R is halved for it.
        _multiply_sum(reset_sb[:, b0:b1], gates_sb[:, b0:b1, 1], added, h_sb[:, b0:b1])
    sums = _recur(weights, reset_sb, size, (2, 3), x_part)
    for j in range(count):
        b0, b1 = j * size, j * size + sums[j].shape[1]
        _apply(cell, 1, new_sb[:, b0:b1], sums[j][:, :, 0])
        _mix(cell, gates_sb[:, b0:b1, 0], new_sb[:, b0:b1], h_sb[:, b0:b1], y_part[:, b0:b1])


def _mix(cell: RecurrentCell, z_sb: Any, new_sb: Any, h_sb: Any, y_part: Any) -> None:
    """y_part = (1 - z) * new + z * h. Of that, 1 - z and -z * h don't wait for new; z is (z_sb + 1) / 2 if halved."""
    share_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    kept_sb = nl.ndarray(z_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    factor, rest = (-0.5, 0.5) if cell.halved else (-1.0, 1.0)
    nisa.tensor_scalar(dst=share_sb, data=z_sb, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=rest)
    _multiply_sum(kept_sb, share_sb, -1.0, h_sb)
    nisa.tensor_tensor(dst=new_sb, data1=new_sb, data2=share_sb, op=nl.multiply)
    nisa.tensor_tensor(dst=y_part, data1=new_sb, data2=kept_sb, op=nl.subtract)
