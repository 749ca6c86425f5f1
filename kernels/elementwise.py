"""Element by element: activations, and binary operators with broadcasting."""

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
        left = _broadcast(left, dst.shape)
        right = _broadcast(right, dst.shape)
        for a in range(dst.shape[0]):
            for b in range(dst.shape[1]):
                _binary_matrix(dst[a, b], left[a, b], right[a, b], op, act)


def _binary_matrix(dst: nl.NkiTensor, left: nl.NkiTensor, right: nl.NkiTensor, op: str, act: str) -> None:
    """binary for matrices (R, C) in HBM."""
    rows, columns = dst.shape
    for r0 in range(0, rows, nl.tile_size.pmax):
        r1 = min(rows, r0 + nl.tile_size.pmax)
        for c0 in range(0, columns, COLUMNS):
            c1 = min(columns, c0 + COLUMNS)
            y_sb = nl.ndarray((r1 - r0, c1 - c0), dtype=dst.dtype, buffer=nl.sbuf)
            _binary_tile(y_sb, load(left[r0:r1, c0:c1]), load(right[r0:r1, c0:c1]), op, act)
            nisa.dma_copy(dst=dst[r0:r1, c0:c1], src=y_sb)


def _binary_tile(dst: nl.NkiTensor, left: nl.NkiTensor, right: nl.NkiTensor, op: str, act: str) -> None:
    """binary for tiles in SBUF."""
    nisa.tensor_tensor(dst=dst, data1=left, data2=right, op=operator(op))
    if act != "none":
        nisa.activation(dst=dst, op=activation_function(act), data=dst)


def _broadcast(tensor: nl.NkiTensor, shape: tuple[int, ...]) -> nl.NkiTensor:
    """A view of an HBM tensor in which dimensions of size 1 repeat to reach ``shape``."""
    for dim in range(len(shape)):
        if tensor.shape[dim] == 1 and shape[dim] > 1:
            tensor = tensor.broadcast(dim, shape[dim])
    return tensor
