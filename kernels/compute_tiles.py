"""Cut the tensors of ``elementwise.compute`` into tiles, and run a program of operators on each of them."""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import ceil_div, count_elements, insert_item
from trnrt.kernels.compute_ops import OTHER_ROOM, ROOM, SCALAR, VECTOR, evaluate
from trnrt.kernels.values import as_float32, fresh, is_column, is_number, result_shape, wide
from trnrt.nki import nisa, nl

# Dimensions of tensors in HBM.
DIMENSIONS = 4
# Columns of a tile, and bytes of a partition that all tiles of a piece may take.
COLUMNS = 2048
PIECE_BYTES = 88 * 1024
# Rows shorter than this share partitions.
SHORT = 512
# A row is not cut in parts shorter than this for the sake of more partitions.
SHORT_PART = 128


def run(dst: nl.NkiTensor, sources: list[Any], ops: tuple[tuple[Any, ...], ...]) -> None:
    """dst = the last result of ops on tiles (P, G, W); see ``elementwise.compute``."""
    values = []
    for source in sources:
        values.append(as_float32(source) if is_column(source) else source)
    used = last_uses(len(sources), ops)
    skipped = 0
    for i in range(len(ops)):
        if skipped > 0:
            # It was computed together with the preceding operator.
            skipped = skipped - 1
            values.append(values[len(values) - 1])
        else:
            args = arguments(values, ops[i])
            shape = result_shape(args)
            assert shape[0] > 0, (
                f"compute: all operands of operator {i}, {ops[i][0]}, are numbers; compute it beforehand"
            )
            many = _at_once(values, ops, used, i)
            last = i + many == len(ops)
            whole = shape == result_shape([dst])
            result = dst if last and whole else fresh(shape)
            if many == 3:
                _scale_shift(result, values, ops[i], ops[i + 1], ops[i + 2])
            elif many == 2:
                _both(result, values, ops[i], ops[i + 1])
            else:
                evaluate(result, ops[i][0], args)
            if last and not whole:
                nisa.tensor_copy(dst=dst, src=wide(result, dst.shape))
            values.append(result)
            skipped = many - 1


def _at_once(values: list[Any], ops: tuple[tuple[Any, ...], ...], used: list[int], i: int) -> int:
    """The number of operators, from number ``i`` on, that one instruction can compute: up to 3."""
    if i + 1 >= len(ops) or used[i] != i + 1 or not is_pair(values, ops[i], ops[i + 1]):
        return 1
    if i + 2 >= len(ops) or used[i + 1] != i + 2 or ops[i + 2][0] not in SCALAR:
        return 2
    args = arguments(values, ops[i])
    added = _other(values, ops[i + 1])
    scaled = ops[i][0] == "multiply" and is_column(args[1]) and ops[i + 1][0] == "add"
    return 3 if scaled and not is_number(added) else 2


def _other(values: list[Any], second: tuple[Any, ...]) -> Any:
    """The other operand of a pair's second operator, besides the first one's result."""
    other = second[1] if is_number(second[1]) or second[1] != len(values) else second[2]
    return other if is_number(other) else values[other]


def _scale_shift(
    dst: nl.NkiTensor, values: list[Any], first: tuple[Any, ...], second: tuple[Any, ...], third: tuple[Any, ...]
) -> None:
    """dst = a function of a tile times a column plus a column, on the scalar engine."""
    args = arguments(values, first)
    scale_sb, bias_sb = args[1].flatten_dims(1, 2), _other(values, second).flatten_dims(1, 2)
    nisa.activation(dst=dst, op=SCALAR[third[0]], data=args[0], scale=scale_sb, bias=bias_sb)


def arguments(values: list[Any], op: tuple[Any, ...]) -> list[Any]:
    """The values of an operator's operands."""
    args = []
    for k in range(1, len(op)):
        args.append(op[k] if is_number(op[k]) else values[op[k]])
    return args


def is_pair(values: list[Any], first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """True if one instruction can compute two operators, the second on the first's result: both take a number or a
    column besides a tile."""
    if first[0] not in VECTOR or second[0] not in VECTOR:
        return False
    args = arguments(values, first)
    beside = is_number(args[1]) or is_column(args[1])
    if is_number(args[0]) or is_column(args[0]) or not beside:
        return False
    found = 0
    for k in range(1, 3):
        if is_number(second[k]):
            found = found + 1
        elif second[k] < len(values) and is_column(values[second[k]]):
            found = found + 1
    return found == 1 and (is_number(second[1]) or is_number(second[2]) or second[1] != second[2])


def _both(dst: nl.NkiTensor, values: list[Any], first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """dst = the second operator of the first one's result; see ``is_pair``."""
    args = arguments(values, first)
    nisa.tensor_scalar(
        dst=dst,
        data=args[0],
        op0=VECTOR[first[0]],
        operand0=args[1],
        op1=VECTOR[second[0]],
        operand1=_other(values, second),
        reverse1=is_number(second[1]) or second[1] != len(values),
    )


def last_uses(sources: int, ops: tuple[tuple[Any, ...], ...]) -> list[int]:
    """For each operator, the number of the last one that reads its result; its own if none does."""
    used = []
    for i in range(len(ops)):
        used.append(i)
        for operand in ops[i][1:]:
            if not is_number(operand) and operand >= sources:
                used[operand - sources] = i
    return used


def columns_of_a_piece(sources: int, ops: tuple[tuple[Any, ...], ...]) -> int:
    """The most elements per partition in a piece, so that all its live tiles fit PIECE_BYTES."""
    return max(1, min(COLUMNS, PIECE_BYTES // (4 * tiles_at_once(sources, ops))))


def compute_tile_bytes(sources: int, ops: tuple[tuple[Any, ...], ...], elements: int) -> int:
    """The most bytes per partition that the tiles take, for planners, for a call on ``elements`` per partition: those
    of a piece, and of the next one."""
    return 2 * tiles_at_once(sources, ops) * min(columns_of_a_piece(sources, ops), elements) * 4


def tiles_at_once(sources: int, ops: tuple[tuple[Any, ...], ...]) -> int:
    """The number of live float32 tiles of a piece's size, including those of its sources and its result."""
    used = last_uses(sources, ops)
    most = 0
    for i in range(len(ops)):
        alive = sources + ROOM.get(ops[i][0], OTHER_ROOM) + 1
        for j in range(i):
            alive = alive + 1 if used[j] >= i else alive
        most = max(most, alive)
    return most


def merge_dims(shape: tuple[int, ...], srcs: list[nl.NkiTensor]) -> tuple[list[int], list[list[bool]]]:
    """The dimensions of a tensor, with neighbours merged if every source either has both or repeats along both. Returns
    their sizes, and for each dimension which sources have it; leading 1s make them four."""
    sizes: list[int] = []
    flags: list[list[bool]] = []
    for dim in range(len(shape)):
        if shape[dim] > 1:
            has = []
            for src in srcs:
                has.append(src.shape[dim] > 1)
            if len(sizes) > 0 and flags[len(flags) - 1] == has:
                sizes[len(sizes) - 1] = sizes[len(sizes) - 1] * shape[dim]
            else:
                sizes.append(shape[dim])
                flags.append(has)
    missing = []
    for _ in range(len(srcs)):
        missing.append(False)
    while len(sizes) < 4:
        insert_item(sizes, 0, 1)
        insert_item(flags, 0, missing)
    return sizes, flags


def strides_of(sizes: list[int], flags: list[list[bool]], source: int) -> list[int]:
    """The strides of a dense source in the merged dimensions; 0 where it repeats."""
    strides = [0, 0, 0, 0]
    step = 1
    for back in range(4):
        dim = 3 - back
        if flags[dim][source]:
            strides[dim] = step
            step = step * sizes[dim]
    return strides


def row_pieces(rows: int, columns: int, most: int) -> list[tuple[int, int, int]]:
    """(first row, partitions, rows per partition): short rows share partitions."""
    pmax = nl.tile_size.pmax
    groups = 1
    if columns < SHORT and rows > pmax:
        groups = max(1, min(rows // pmax, most // columns))
    found = []
    first = 0
    while first < rows:
        each = min(groups, (rows - first) // pmax)
        if each > 0:
            found.append((first, pmax, each))
            first = first + pmax * each
        else:
            found.append((first, rows - first, 1))
            first = rows
    return found


def column_pieces(columns: int, partitions: int, most: int) -> list[tuple[int, int, int]]:
    """(first column, parts, columns per part): a row is cut into as many parts as it has ``partitions``."""
    parts = max(1, min(partitions, columns // SHORT_PART))
    for fewer in range(parts, parts // 2, -1):
        if columns % parts != 0 and columns % fewer == 0:
            parts = fewer
    each = columns // parts
    width = ceil_div(each, ceil_div(each, most))
    found = []
    first = 0
    while first < columns:
        size = min(width, (columns - first) // parts)
        if size == 0:
            parts, size = 1, min(most, columns - first)
        found.append((first, parts, size))
        first = first + parts * size
    return found


@dataclass
class Piece(nl.NKIObject):
    """The part of four dimensions that is computed at once: an index of the first, (first, count) of the second, and of
    the inner ones, ``down`` and ``across``, (first, partitions, each)."""

    outer: int
    images: tuple[int, int]
    down: tuple[int, int, int]
    across: tuple[int, int, int]


def pieces(sizes: list[int], most: int, row_by_row: bool) -> list[Piece]:
    """The pieces of four dimensions: at most 128 partitions of at most ``most`` elements each."""
    outer, images, rows, columns = sizes
    at_once = max(1, min(images, nl.tile_size.pmax // rows))
    found: list[Piece] = []
    # All rows of an image in one partition, if that takes fewer pieces.
    if rows * columns <= most and ceil_div(images, nl.tile_size.pmax) < ceil_div(images, at_once):
        for o in range(outer):
            for first in range(0, images, nl.tile_size.pmax):
                count = min(nl.tile_size.pmax, images - first)
                found.append(Piece(o, (first, count), (0, 1, rows), (0, 1, columns)))
        return found
    for o in range(outer):
        for first in range(0, images, at_once):
            count = min(at_once, images - first)
            downs = row_pieces(rows, columns, most)
            groups = downs[0][2]
            partitions = max(1, nl.tile_size.pmax // (count * rows))
            acrosses = column_pieces(columns, partitions, most // groups)
            for k in range(len(downs) * len(acrosses)):
                down = downs[k // len(acrosses)] if row_by_row else downs[k % len(downs)]
                across = acrosses[k % len(acrosses)] if row_by_row else acrosses[k // len(downs)]
                found.append(Piece(o, (first, count), down, across))
    return found


def piece_of(tensor: nl.NkiTensor, strides: list[int], piece: Piece) -> tuple[nl.NkiTensor, tuple[int, int, int]]:
    """A piece's part of a tensor in HBM, and the shape of its tile."""
    image, images = piece.images
    row, rows, groups = piece.down
    first, parts, width = piece.across
    offset = piece.outer * strides[0] + image * strides[1] + row * strides[2] + first * strides[3]
    wanted = [[strides[1], images], [strides[2] * groups, rows], [strides[3] * width, parts]]
    groups = groups if strides[2] > 0 else 1
    width = width if strides[3] > 0 else 1
    wanted.append([strides[2], groups])
    wanted.append([strides[3], width])
    pattern = []
    for i in range(5):
        if wanted[i][1] > 1:
            pattern.append(wanted[i])
    if len(pattern) == 0:
        pattern.append([1, 1])
    return tensor.ap(pattern=pattern, offset=offset), (images * rows * parts, groups, width)


def compute_piece(
    tensors: list[nl.NkiTensor], strides: list[list[int]], kept: list[Any], piece: Piece, ops: Any
) -> None:
    """Load, compute and store one piece. A part of a source that the last piece had is not loaded again.

    tensors: the sources, then the destination
    kept: for each source where its part starts, its pattern, and the tile, of the last piece; renewed
    """
    values = []
    for i in range(len(tensors) - 1):
        source, shape = piece_of(tensors[i], strides[i], piece)
        place = (source.offset, source.get_pattern(), shape)
        if kept[i] is None or kept[i][0] != place:
            tile_sb = nl.ndarray(shape, dtype=tensors[i].dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=tile_sb, src=source)
            column = shape[1] == 1 and shape[2] == 1
            kept[i] = (place, as_float32(tile_sb) if column else tile_sb)
        values.append(kept[i][1])
    target = tensors[len(tensors) - 1]
    part, shape = piece_of(target, strides[len(tensors) - 1], piece)
    result_sb = nl.ndarray(shape, dtype=target.dtype, buffer=nl.sbuf)
    run(result_sb, values, ops)
    nisa.dma_copy(dst=part, src=result_sb)


def compute_tile(dst: nl.NkiTensor, sources: list[nl.NkiTensor], most: int, ops: Any) -> None:
    """run for tiles of any dimensions and columns (P, 1, 1), ``most`` elements per partition at a time."""
    dense = dst.is_contiguous()
    size = count_elements(dst.shape[1:])
    for source in sources:
        dense = dense and source.is_contiguous()
    if dense or size <= most:
        width = ceil_div(size, ceil_div(size, most))
        for first in range(0, size, width):
            last = min(size, first + width)
            values = []
            for source in sources:
                values.append(_flat(source, size, first, last))
            result_sb = _flat(dst, size, first, last) if dense else fresh((dst.shape[0], 1, size))
            run(result_sb, values, ops)
            if not dense:
                nisa.tensor_copy(dst=dst, src=result_sb)
    else:
        # Loop over the first dimension that has more than one element.
        dim = 1
        while dst.shape[dim] == 1:
            dim = dim + 1
        each = max(1, most // (size // dst.shape[dim]))
        for first in range(0, dst.shape[dim], each):
            last = min(dst.shape[dim], first + each)
            parts = []
            for source in sources:
                full = source.shape == dst.shape
                parts.append(source.slice(dim, first, last) if full else source)
            compute_tile(dst.slice(dim, first, last), parts, most, ops)


def _flat(tile: nl.NkiTensor, size: int, first: int, last: int) -> nl.NkiTensor:
    """Elements ``first`` to ``last`` of a tile with ``size`` per partition, as (P, 1, n); a copy if not contiguous."""
    if count_elements(tile.shape[1:]) == 1 and size > 1:
        return tile
    if not tile.is_contiguous():
        copy_sb = nl.ndarray((tile.shape[0], 1, size), dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=copy_sb, src=tile)
        tile = copy_sb
    return tile.reshape((tile.shape[0], 1, size))[:, :, first:last]


def compute_gated(dst: nl.NkiTensor, sources: list[nl.NkiTensor], most: int, ops: Any) -> None:
    """run for a tile (P, G, W) and sources of its shape, columns, and (P, G, 1): one number per partition and group;
    ``most`` elements per partition at a time."""
    _, groups, width = dst.shape
    at_once, each = max(1, most // width), min(width, most)
    for g0 in range(0, groups, at_once):
        g1 = min(groups, g0 + at_once)
        for w0 in range(0, width, each):
            w1 = min(width, w0 + each)
            parts = []
            for source in sources:
                part = source[:, g0:g1] if source.shape[1] == groups else source
                parts.append(part[:, :, w0:w1] if source.shape[2] == width else part)
            run(dst[:, g0:g1, w0:w1], parts, ops)
