"""Fully connected layers: a matrix product with bias and activation.

Two forms, by the layout that the next step needs. The features form keeps features on the partitions: weights are the
stationary operand, and bias and activation are applied as the scalar engine evacuates PSUM. The rows form puts the
batch on the partitions: activations are the stationary operand, and a row is ready for softmax, argmax or HBM.

Weights are prepared on the host as (P, B*S*O): chunk b*S + s of (B*S) has the weights of the features in block b at
position s (see ``features`` in common.py). Each OUTPUTS columns of the result have theirs together, chunk after chunk,
so that a load of some chunks is one contiguous piece per partition; DMA loads them as they are used.

Weights may be 8-bit floats. The activations are then divided by their scale, limited and rounded to the same format in
SBUF; a product takes two chunks at a time (double_row.py), and the sums are multiplied by scales as they leave PSUM.
"""

from typing import Any

from trnrt.kernels.common import Pair, activation_function, block_rows, ceil_div, is_hbm_tensor, item_bytes, load
from trnrt.kernels.double_row import as_pair, is_scaled
from trnrt.kernels.narrow import narrow
from trnrt.kernels.operands import turn_rows
from trnrt.nki import nisa, nl

# The most bytes per partition of one load of weights (in their dtype), and of one block of activations (float32).
LOAD_BYTES = 16 * 1024
ACTIVATION_BYTES = 48 * 1024
# A row with more features would not fit ACTIVATION_BYTES: 128 partitions of float32.
MAX_FEATURES = 128 * ACTIVATION_BYTES // 4
# PSUM banks that accumulate at once; the other half is being evacuated.
SUM_BANKS = 4
# Columns of the result that share a load of weights: of float32, one bank of rows, or SUM_BANKS of features.
OUTPUTS = 512
# Loads of weights under way or in use at once, for which a plan leaves room: with fewer, DMA would wait for one load's
# products before it starts the next. Raised from 4 when the search began to vary the size of loads.
LOADS_AHEAD = 5
# The most bytes of results (in float32) that leave in one store: their data take less time than another store's start.
# ResNet-18 at batch 1, predicted: a store for each OUTPUTS takes 1.6 us more.
STORED_BYTES = 64 * 1024
# Columns (128 features of a row) up to which features are loaded to their partitions one by one: that takes no longer
# than loading rows and transposing them. It was chosen when trn1's packets took 69 ns, those of others 8. Digits,
# predicted: none slow the feed-forward net by 6 % on trn2 and trn1; 16 on trn2 and 8 on trn1 change nothing.
SINGLES, SINGLES_TRN1 = 8, 1
# Blocks of 128 features whose rows are loaded together to be transposed: 8 KiB per partition of float32, beyond which
# transfers get no faster. Kept from the first linear layers.
TURNED_BLOCKS = 16


def linear_weight_bytes(features: int, outputs: int, item: int) -> int:
    """Bytes per partition of the weights for OUTPUTS columns, with elements of ``item`` bytes."""
    return ceil_div(features, nl.tile_size.pmax) * min(OUTPUTS, outputs) * item


def linear_tile_bytes(
    rows: int, is_source_on_chip: bool, are_weights_held: bool, load_bytes: int, is_result_on_chip: bool = False
) -> int:
    """The most bytes per partition that the tiles take, for planners: loads of weights, the source before and after its
    transpose, a bias, sums and results, of OUTPUTS columns each, unless the results are made in their place."""
    loads = 0 if are_weights_held else LOADS_AHEAD * load_bytes
    source = 0 if is_source_on_chip else 2 * ACTIVATION_BYTES
    tiles = 1 if is_result_on_chip else min(ceil_div(rows, nl.tile_size.pmax), 2 * SUM_BANKS)
    return loads + source + tiles * 3 * OUTPUTS * 4


def linear_rows(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    features: int,
    act: str = "none",
    load_bytes: int = LOAD_BYTES,
    narrowing: Any = None,
    added: Any = None,
) -> None:
    """dst = act(src @ w + bias) + added, a row of the batch on each partition.

    dst: rows, HBM (N, O) or SBUF (P, ceil(N/128), O)
    src: HBM (N, F), or SBUF ``features`` (P, B, S, N)
    w: HBM or SBUF (P, B*S*O), prepared; the dtype of src, or an 8-bit float, if src has 16 bits
    bias: HBM (1, O) float32; or, in SBUF or HBM, (R, O) of R equal rows, if the batch has only R. With an 8-bit w it
        has O columns more, the scales of the sums
    features: F of an HBM src; otherwise the number of channels of a flattened image (F = features * S)
    act: one of ACTIVATIONS in common.py
    load_bytes: bytes per partition of one load of weights from HBM
    narrowing: with an 8-bit w, the factor, largest number and signed of ``narrow`` for src
    added: None, HBM (N, O), or SBUF ``features`` (P, B, 1, N) of O features, the dtype of dst
    limits: F <= MAX_FEATURES of an HBM src; 8 bits: NeuronCore-v3 and later

    numpy: act(src @ w + bias) + added; with an 8-bit w act(narrowed src @ w * scales + bias)
    """
    assert features <= MAX_FEATURES, f"linear: rows of {features} features; the limit is {MAX_FEATURES}"
    rows = src.shape[0] if is_hbm_tensor(src) else src.shape[3]
    step = _batch_step(src, features)
    for n0 in range(0, rows, step):
        n_size = min(step, rows - n0)
        x_sb = _narrowed_block(_features_block(src, features, n0, n_size), w.dtype, narrowing)
        outputs = bias.shape[1] // 2 if is_scaled(w.dtype) else bias.shape[1]
        whole_sb: Any = None
        small = n_size <= nl.tile_size.pmax and n_size * outputs * 4 <= STORED_BYTES
        if is_hbm_tensor(dst) and small and added is None:
            whole_sb = nl.ndarray((n_size, outputs), dtype=dst.dtype, buffer=nl.sbuf)
        for o0 in range(0, outputs, OUTPUTS):
            o_size = min(OUTPUTS, outputs - o0)
            bias_sb = _load_row(bias, o0, o_size)
            scale_sb = _load_row(bias, outputs + o0, o_size) if is_scaled(w.dtype) else None
            for m0 in range(0, n_size, SUM_BANKS * nl.tile_size.pmax):
                m_size = min(SUM_BANKS * nl.tile_size.pmax, n_size - m0)
                x_part = x_sb[:, :, :, m0 : m0 + m_size]
                banks = _sum_products(x_part, weight_chunks(w, outputs, o0, o_size), features, load_bytes, True)
                if whole_sb is None:
                    _store_rows(dst, banks, bias_sb, scale_sb, n0 + m0, o0, act, added)
                else:
                    _finish_sums(whole_sb[:, o0 : o0 + o_size], banks[0], bias_sb, scale_sb, act)
        if whole_sb is not None:
            nisa.dma_copy(dst=dst[n0 : n0 + n_size, :], src=whole_sb)


def _load_row(bias: nl.NkiTensor, first: int, size: int) -> nl.NkiTensor:
    """Columns ``first``... of the bias, on each partition that a row of the batch can have."""
    part = bias[:, first : first + size]
    if not is_hbm_tensor(bias):
        return part
    return load(part if bias.shape[0] > 1 else part.broadcast(0, nl.tile_size.pmax))


def weight_chunks(w: nl.NkiTensor, outputs: int, o0: int, o_size: int) -> nl.NkiTensor:
    """The weights (P, B*S, o_size) of columns ``o0``... of ``outputs`` in prepared ones (P, B*S*outputs)."""
    chunks = w.shape[1] // outputs
    return w[:, chunks * o0 : chunks * (o0 + o_size)].reshape((w.shape[0], chunks, o_size))


def _sum_products(
    x_sb: nl.NkiTensor, w: nl.NkiTensor, features: int, load_bytes: int, by_rows: bool
) -> list[nl.NkiTensor]:
    """PSUM tiles (rows, outputs), one for each 128 rows of x_sb (P, B, S, rows); or, not ``by_rows``, (outputs, rows),
    one for each 128 outputs of w (P, B*S, at most OUTPUTS)."""
    across, along = x_sb.shape[3], w.shape[2]
    if not by_rows:
        across, along = along, across
    banks = []
    for m0 in range(0, across, nl.tile_size.pmax):
        m_size = min(nl.tile_size.pmax, across - m0)
        banks.append(nl.ndarray((m_size, along), dtype=nl.float32, buffer=nl.psum))
    positions = x_sb.shape[2]
    # All chunks of weights are available if they are in SBUF.
    group = max(1, load_bytes // (w.shape[2] * item_bytes(w.dtype))) if is_hbm_tensor(w) else w.shape[1]
    for c0 in range(0, w.shape[1], group):
        c1 = min(w.shape[1], c0 + group)
        w_sb = load(w[:, c0:c1]) if is_hbm_tensor(w) else w[:, c0:c1]
        for i in range(len(banks)):
            m0 = i * nl.tile_size.pmax
            m1 = m0 + banks[i].shape[0]
            products = _chunks_together(c0, c1, positions, features, is_scaled(w.dtype))
            for number in range(len(products)):
                c, count = products[number]
                k = block_rows(features, c // positions)
                x_part, w_part = x_sb[0:k, c // positions, c % positions], w_sb[0:k, c - c0]
                stationary, moving = (x_part[:, m0:m1], w_part) if by_rows else (w_part[:, m0:m1], x_part)
                mode = nisa.matmul_perf_mode.none
                if count > 1:
                    mode = nisa.matmul_perf_mode.double_row
                    x_apart, w_apart = _distance(x_sb, c, positions), w_sb.get_pattern()[1][0]
                    stationary = as_pair(stationary, x_apart if by_rows else w_apart)
                    moving = as_pair(moving, w_apart if by_rows else x_apart)
                nisa.nc_matmul(dst=banks[i], stationary=stationary, moving=moving, accumulate=c > 0, perf_mode=mode)
    return banks


def _chunks_together(c0: int, c1: int, positions: int, features: int, are_paired: bool) -> list[Pair]:
    """(first chunk, chunks) of each product of chunks ``c0`` to ``c1``: pairs where both have as many features."""
    found = []
    taken = c0
    for c in range(c0, c1):
        if c == taken:
            alike = are_paired and c + 1 < c1
            alike = alike and block_rows(features, c // positions) == block_rows(features, (c + 1) // positions)
            found.append((c, 2 if alike else 1))
            taken = c + (2 if alike else 1)
    return found


def _distance(x_sb: nl.NkiTensor, c: int, positions: int) -> int:
    """Elements from chunk ``c`` of x_sb (P, B, S, rows) to the next."""
    pattern = x_sb.get_pattern()
    block, position = pattern[1][0], pattern[2][0]
    return ((c + 1) // positions - c // positions) * block + ((c + 1) % positions - c % positions) * position


def _store_rows(
    dst: nl.NkiTensor,
    banks: list[nl.NkiTensor],
    bias_sb: nl.NkiTensor,
    scale_sb: Any,
    n0: int,
    o0: int,
    act: str,
    added: Any,
) -> None:
    """Scale, bias, activation and sum on the way from PSUM to rows ``n0``... of dst, columns ``o0``..."""
    for i in range(len(banks)):
        rows, o_size = banks[i].shape
        row = n0 + i * nl.tile_size.pmax
        block = row // nl.tile_size.pmax
        part = row % nl.tile_size.pmax
        in_place = part == 0 and not is_hbm_tensor(dst)
        if in_place:
            y_sb = dst[0:rows, block, o0 : o0 + o_size]
        else:
            y_sb = nl.ndarray((rows, o_size), dtype=dst.dtype, buffer=nl.sbuf)
        _finish_sums(y_sb, banks[i], bias_sb, scale_sb, act)
        if added is not None:
            other = _added_rows(added, row, rows, o0, o_size)
            nisa.tensor_tensor(dst=y_sb, data1=y_sb, data2=other, op=nl.add)
        if is_hbm_tensor(dst):
            nisa.dma_copy(dst=dst[row : row + rows, o0 : o0 + o_size], src=y_sb)
        elif not in_place:
            # Engines write from partition 0, 32, 64 or 96 on; DMA from any.
            nisa.dma_copy(dst=dst[part : part + rows, block, o0 : o0 + o_size], src=y_sb)


def _added_rows(added: nl.NkiTensor, row: int, rows: int, o0: int, o_size: int) -> nl.NkiTensor:
    """Rows ``row``... (rows, o_size) of what is added, columns ``o0``..."""
    if is_hbm_tensor(added):
        return load(added[row : row + rows, o0 : o0 + o_size])
    turned_sb = nl.ndarray((rows, 1, o_size), dtype=added.dtype, buffer=nl.sbuf)
    for c0 in range(0, o_size, nl.tile_size.pmax):
        c1 = min(o_size, c0 + nl.tile_size.pmax)
        part_sb = added[0 : c1 - c0, (o0 + c0) // nl.tile_size.pmax, 0, row : row + rows]
        turn_rows(turned_sb[:, :, c0:c1], part_sb)
    return turned_sb[:, 0, :]


def _finish_sums(y_sb: nl.NkiTensor, sum_psum: nl.NkiTensor, bias_sb: nl.NkiTensor, scale_sb: Any, act: str) -> None:
    """y_sb (rows, outputs) = act(sum_psum * the scale of each row + its bias); without a scale_sb, no scale."""
    rows = y_sb.shape[0]
    total = sum_psum
    if scale_sb is not None:
        total = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=total, data1=sum_psum, data2=scale_sb[0:rows, :], op=nl.multiply)
    if act == "none":
        nisa.tensor_tensor(dst=y_sb, data1=total, data2=bias_sb[0:rows, :], op=nl.add)
        return
    sum_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=sum_sb, data1=total, data2=bias_sb[0:rows, :], op=nl.add)
    nisa.activation(dst=y_sb, op=activation_function(act), data=sum_sb)


def linear_features(
    dst: nl.NkiTensor,
    src: nl.NkiTensor,
    w: nl.NkiTensor,
    bias: nl.NkiTensor,
    features: int,
    outputs: int,
    act: str = "none",
    load_bytes: int = LOAD_BYTES,
    narrowing: Any = None,
    added: Any = None,
) -> None:
    """dst = act(src @ w + bias) + added, a feature of the result on each partition.

    dst: SBUF (P, ceil(O/128), N) in the ``features`` layout with S = 1 left out
    src, w, features, act, load_bytes, narrowing: as in linear_rows
    bias: HBM or SBUF (P, ceil(O/128)) float32, prepared; with an 8-bit w as many columns more, the scales of the sums
    outputs: O
    added: as in linear_rows

    numpy: (act(src @ w + bias) + added).T, or as in linear_rows with an 8-bit w; output o on partition o % 128 of block
           o // 128
    """
    assert features <= MAX_FEATURES, f"linear: rows of {features} features; the limit is {MAX_FEATURES}"
    rows = dst.shape[2]
    bias_sb = load(bias) if is_hbm_tensor(bias) else bias
    step = min(_batch_step(src, features), nl.tile_size.psum_bank_fmax)
    for n0 in range(0, rows, step):
        n_size = min(step, rows - n0)
        x_sb = _narrowed_block(_features_block(src, features, n0, n_size), w.dtype, narrowing)
        added_sb: Any = None if added is None else _added_block(added, outputs, n0, n_size)
        for o0 in range(0, outputs, OUTPUTS):
            o_size = min(OUTPUTS, outputs - o0)
            banks = _sum_products(x_sb, weight_chunks(w, outputs, o0, o_size), features, load_bytes, False)
            for i in range(len(banks)):
                parts = banks[i].shape[0]
                block = o0 // nl.tile_size.pmax + i
                scales = ceil_div(outputs, nl.tile_size.pmax) + block
                y_sb = dst[0:parts, block, n0 : n0 + n_size]
                bias_part = bias_sb[0:parts, block : block + 1]
                scale = bias_sb[0:parts, scales : scales + 1] if is_scaled(w.dtype) else None
                if added is None:
                    factor = 1.0 if scale is None else scale
                    nisa.activation(dst=y_sb, op=activation_function(act), data=banks[i], bias=bias_part, scale=factor)
                else:
                    _add_features(y_sb, banks[i], bias_part, scale, act, added_sb[0:parts, block, 0, :])


def _add_features(
    y_sb: nl.NkiTensor, sum_psum: nl.NkiTensor, bias_sb: nl.NkiTensor, scale: Any, act: str, added_sb: nl.NkiTensor
) -> None:
    """y_sb (outputs, rows) = act(sum_psum * scale + bias_sb) + added_sb."""
    if act == "none" and scale is None:
        nisa.scalar_tensor_tensor(dst=y_sb, data=sum_psum, op0=nl.add, operand0=bias_sb, op1=nl.add, operand1=added_sb)
        return
    result_sb = nl.ndarray(y_sb.shape, dtype=nl.float32, buffer=nl.sbuf)
    factor = 1.0 if scale is None else scale
    nisa.activation(dst=result_sb, op=activation_function(act), data=sum_psum, bias=bias_sb, scale=factor)
    nisa.tensor_tensor(dst=y_sb, data1=result_sb, data2=added_sb, op=nl.add)


def _added_block(added: nl.NkiTensor, outputs: int, n0: int, n_size: int) -> nl.NkiTensor:
    """Rows ``n0``... of what is added, in the ``features`` layout (P, B, 1, n_size)."""
    if is_hbm_tensor(added):
        return _features_block(added, outputs, n0, n_size)
    return added[:, :, :, n0 : n0 + n_size]


def _batch_step(src: nl.NkiTensor, features: int) -> int:
    """The number of the batch's rows in SBUF at once: all if src is there already, else as many as fit.

    A multiple of 128, or a power of 2 below it, so that no step spans two blocks of 128 without covering both.
    """
    if not is_hbm_tensor(src):
        return src.shape[3]
    held = ACTIVATION_BYTES // (ceil_div(features, nl.tile_size.pmax) * 4)
    if held >= nl.tile_size.pmax:
        return held // nl.tile_size.pmax * nl.tile_size.pmax
    step = 1
    while step * 2 <= held:
        step = step * 2
    return step


def _features_block(src: nl.NkiTensor, features: int, n0: int, n_size: int) -> nl.NkiTensor:
    """Rows ``n0``... of src in the ``features`` layout (P, B, S, n_size)."""
    if not is_hbm_tensor(src):
        return src[:, :, :, n0 : n0 + n_size]
    blocks = ceil_div(features, nl.tile_size.pmax)
    x_sb = nl.ndarray((min(features, nl.tile_size.pmax), blocks, 1, n_size), dtype=src.dtype, buffer=nl.sbuf)
    if blocks * src.shape[0] <= (SINGLES if nisa.get_nc_version() >= nisa.nc_version.gen3 else SINGLES_TRN1):
        for block in range(blocks):
            _load_singly(x_sb[0 : block_rows(features, block), block, 0, :], src, n0, block)
        return x_sb
    for m0 in range(0, n_size, nl.tile_size.pmax):
        m_size = min(nl.tile_size.pmax, n_size - m0)
        for b0 in range(0, blocks, TURNED_BLOCKS):
            _load_transposed(x_sb, src, features, n0, m0, m_size, b0, min(TURNED_BLOCKS, blocks - b0))
    return x_sb


def _narrowed_block(x_sb: nl.NkiTensor, dtype: Any, narrowing: Any) -> nl.NkiTensor:
    """x_sb (P, B, S, n) in an 8-bit ``dtype``, scaled and limited; itself with other weights."""
    if not is_scaled(dtype):
        return x_sb
    factor, most, signed = narrowing
    narrow_sb = nl.ndarray(x_sb.shape, dtype=dtype, buffer=nl.sbuf)
    narrow(narrow_sb.expand_dim(1), x_sb.expand_dim(1), factor, most, signed)
    return narrow_sb


def _load_singly(x_sb: nl.NkiTensor, src: nl.NkiTensor, n0: int, block: int) -> None:
    """x_sb (P, n) = a block of features of rows ``n0``... of src (N, F), each element a packet of its own. The first
    block loads through the scalar engine's queue, beside the weights, if there are hardware descriptors."""
    first = block * nl.tile_size.pmax
    turned = src[n0 : n0 + x_sb.shape[1], first : first + x_sb.shape[0]].permute((1, 0))
    if n0 + block == 0 and nisa.get_nc_version() >= nisa.nc_version.gen3:
        nisa.dma_copy(dst=x_sb, src=turned, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.scalar)
    else:
        nisa.dma_copy(dst=x_sb, src=turned)


def _load_transposed(
    x_sb: nl.NkiTensor, src: nl.NkiTensor, features: int, n0: int, m0: int, m_size: int, b0: int, b_size: int
) -> None:
    """Blocks ``b0``... of rows ``n0 + m0``... of src (N, F), features onto the partitions of x_sb."""
    first = b0 * nl.tile_size.pmax
    columns = min(b_size * nl.tile_size.pmax, features - first)
    rows_hbm = src[n0 + m0 : n0 + m0 + m_size, first : first + columns]
    turn_rows(x_sb[:, b0 : b0 + b_size, 0, m0 : m0 + m_size], load(rows_hbm))
