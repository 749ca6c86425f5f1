"""Element by element: activations, binary operators with broadcasting, and chains of them."""

from typing import Any

from trnrt.kernels.common import activation_function, is_hbm_tensor, load
from trnrt.nki import nisa, nl

# Columns of a tile that is brought in from HBM.
COLUMNS = 2048


def operator(name: str) -> Any:
    """The vector engine's operator for a name."""
    if name == "add":
        return nl.add
    if name == "subtract":
        return nl.subtract
    assert name == "multiply", f"unknown operator {name}"
    return nl.multiply


def activate(dst: nl.NkiTensor, src: nl.NkiTensor, act: str) -> None:
    """dst = act(src), element by element.

    dst, src: of one shape; both HBM (R, C), or both SBUF tiles of at most 5 dimensions
    act: "relu", "sigmoid", "tanh", "none"

    numpy: act(src)
    """
    if not is_hbm_tensor(dst):
        nisa.activation(dst=dst, op=activation_function(act), data=src)
    else:
        rows, columns = dst.shape
        for r0 in range(0, rows, nl.tile_size.pmax):
            r1 = min(rows, r0 + nl.tile_size.pmax)
            for c0 in range(0, columns, COLUMNS):
                c1 = min(columns, c0 + COLUMNS)
                x_sb = load(src[r0:r1, c0:c1])
                y_sb = nl.ndarray((r1 - r0, c1 - c0), dtype=dst.dtype, buffer=nl.sbuf)
                nisa.activation(dst=y_sb, op=activation_function(act), data=x_sb)
                nisa.dma_copy(dst=dst[r0:r1, c0:c1], src=y_sb)


def binary(dst: nl.NkiTensor, left: nl.NkiTensor, right: nl.NkiTensor, op: str, act: str = "none") -> None:
    """dst = act(left <op> right), element by element.

    dst: HBM (A, B, R, C), or an SBUF tile of at most 5 dimensions
    left, right: as dst; in HBM a dimension of size 1 broadcasts
    op: "add", "subtract", "multiply"
    act: "none", "relu", "sigmoid", "tanh"

    numpy: act(left <op> right)
    """
    if not is_hbm_tensor(dst):
        _binary_tile(dst, left, right, op, act)
    else:
        left = _broadcast(left, dst.shape[0:3])
        right = _broadcast(right, dst.shape[0:3])
        for a in range(dst.shape[0]):
            for b in range(dst.shape[1]):
                _binary_matrix(dst[a, b], left[a, b], right[a, b], op, act)


def chain(dst: nl.NkiTensor, src: nl.NkiTensor, others: tuple[nl.NkiTensor, ...], ops: tuple[str, ...]) -> None:
    """dst = what becomes of src when ``ops`` are applied one after the other, each element moved to SBUF once.

    dst, src: HBM (R, C)
    others: the right sides of the binary operators in ops, in their order: HBM (R, C), (1, C), (R, 1) or (1, 1)
    ops: "add", "subtract", "multiply", or an activation of common.activation_function

    What is between two of them is float32.
    limits: at least one operator

    numpy: for op in ops: src = op(src), or op(src, the next of others)
    """
    assert len(ops) > 0, "chain: there are no operators; it takes at least one"
    rows, columns = dst.shape
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        for c0 in range(0, columns, COLUMNS):
            c1 = min(columns, c0 + COLUMNS)
            value_sb = load(src[r0:r1, c0:c1])
            taken = 0
            for i in range(len(ops)):
                dtype = dst.dtype if i == len(ops) - 1 else nl.float32
                next_sb = nl.ndarray((r1 - r0, c1 - c0), dtype=dtype, buffer=nl.sbuf)
                if ops[i] == "add" or ops[i] == "subtract" or ops[i] == "multiply":
                    _apply(next_sb, value_sb, others[taken], r0, c0, ops[i])
                    taken = taken + 1
                else:
                    nisa.activation(dst=next_sb, op=activation_function(ops[i]), data=value_sb)
                value_sb = next_sb
            nisa.dma_copy(dst=dst[r0:r1, c0:c1], src=value_sb)


def _apply(dst_sb: nl.NkiTensor, left_sb: nl.NkiTensor, right: nl.NkiTensor, r0: int, c0: int, op: str) -> None:
    """dst_sb = left_sb <op> the part of ``right``, in HBM, that stands at row ``r0`` and column ``c0``.

    One number a row is an operand of the instruction: to repeat it in SBUF would take a packet an element.
    """
    rows, columns = dst_sb.shape
    whole = right.broadcast(0, r0 + rows) if right.shape[0] == 1 else right
    if right.shape[1] == 1:
        number_sb = _load_numbers(whole[r0 : r0 + rows, :])
        nisa.tensor_scalar(dst=dst_sb, data=left_sb, op0=operator(op), operand0=number_sb)
    else:
        right_sb = load(whole[r0 : r0 + rows, c0 : c0 + columns])
        nisa.tensor_tensor(dst=dst_sb, data1=left_sb, data2=right_sb, op=operator(op))


def _load_numbers(src: nl.NkiTensor) -> nl.NkiTensor:
    """One number a row, HBM (R, 1), as operand of an instruction."""
    given_sb = load(src)
    number_sb = nl.ndarray(src.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=number_sb, src=given_sb)
    return number_sb


def _binary_matrix(dst: nl.NkiTensor, left: nl.NkiTensor, right: nl.NkiTensor, op: str, act: str) -> None:
    """binary for matrices (R, C) in HBM; left or right may have one column."""
    rows, columns = dst.shape
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        for c0 in range(0, columns, COLUMNS):
            c1 = min(columns, c0 + COLUMNS)
            y_sb = nl.ndarray((r1 - r0, c1 - c0), dtype=dst.dtype, buffer=nl.sbuf)
            if right.shape[1] == 1:
                number_sb = _load_numbers(right[r0:r1, :])
                nisa.tensor_scalar(dst=y_sb, data=load(left[r0:r1, c0:c1]), op0=operator(op), operand0=number_sb)
            elif left.shape[1] == 1:
                number_sb = _load_numbers(left[r0:r1, :])
                right_sb = load(right[r0:r1, c0:c1])
                nisa.tensor_scalar(dst=y_sb, data=right_sb, op0=operator(op), operand0=number_sb, reverse0=True)
            else:
                right_sb = load(right[r0:r1, c0:c1])
                nisa.tensor_tensor(dst=y_sb, data1=load(left[r0:r1, c0:c1]), data2=right_sb, op=operator(op))
            if act != "none":
                nisa.activation(dst=y_sb, op=activation_function(act), data=y_sb)
            nisa.dma_copy(dst=dst[r0:r1, c0:c1], src=y_sb)


def _binary_tile(dst: nl.NkiTensor, left: nl.NkiTensor, right: nl.NkiTensor, op: str, act: str) -> None:
    """binary for tiles in SBUF."""
    nisa.tensor_tensor(dst=dst, data1=left, data2=right, op=operator(op))
    if act != "none":
        nisa.activation(dst=dst, op=activation_function(act), data=dst)


def _broadcast(tensor: nl.NkiTensor, shape: tuple[int, ...]) -> nl.NkiTensor:
    """A view of an HBM tensor in which leading dimensions of size 1 repeat to reach ``shape``."""
    for dim in range(len(shape)):
        if tensor.shape[dim] == 1 and shape[dim] > 1:
            tensor = tensor.broadcast(dim, shape[dim])
    return tensor
