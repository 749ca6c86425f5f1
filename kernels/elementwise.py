"""Element by element: programs of operators with broadcasting, each element moved to SBUF and back once."""

from typing import Any

from trnrt.kernels.common import is_hbm_tensor, load
from trnrt.kernels.compute_tiles import (
    DIMENSIONS,
    columns_of_a_piece,
    compute_gated,
    compute_piece,
    compute_tile,
    merge_dims,
    pieces,
    strides_of,
)
from trnrt.nki import nl


def compute(dst: nl.NkiTensor, srcs: tuple[nl.NkiTensor, ...], ops: tuple[tuple[Any, ...], ...]) -> None:
    """dst = the last result of a program of element-wise operators; each source is loaded into SBUF once.

    dst: HBM (A, B, R, C), or an SBUF tile of at most 5 dimensions that is none of srcs
    srcs: for an HBM dst HBM (a, b, r, c), each dimension that of dst or 1, which repeats; for an SBUF dst tiles of its
        shape, (P, B) float32 in HBM or SBUF, one number per partition and block of dst (P, B, ...), or for channels (P,
        B, N, H, W) tiles (P, B, N, 1, 1)
    ops: (name, operand, ...) each; an operand is an int, which numbers the sources and then the results of the
        operators before, or a float, itself. The last result is dst; those between are float32.

    Names (x, y, condition, slope: any operands; the others: numbers; compute_ops.py tells how exact they are):
        copy x, relu x, sigmoid x, tanh x, exp x, log x, sqrt x, rsqrt x, reciprocal x, square x, abs x, neg x, sign x,
        floor x, ceil x, round x, erf x, gelu x, gelu_tanh x, gelu_sigmoid x, silu x, softplus x, mish x, sin x,
        cos x, not x, is_nan x, is_inf x, softsign x, hard_swish x, leaky_relu x alpha, elu x alpha, celu x alpha,
        selu x alpha gamma, hard_sigmoid x alpha beta, clip x low high; add x y, subtract, multiply, divide, maximum,
        minimum, power, mod, fmod, greater, greater_equal, less, less_equal, equal, not_equal, and, or, xor;
        prelu x slope; where condition x y
    limits: at least one operator, which has an operand that is not a number; tensors are contiguous

    numpy: for name, *operands in ops: values.append(function[name](*operands)); values[-1]
    """
    assert len(ops) > 0, "compute: there are no operators; it takes at least one"
    if is_hbm_tensor(dst):
        for src in srcs:
            for dim in range(DIMENSIONS):
                size = src.shape[dim]
                assert size == 1 or size == dst.shape[dim], (
                    f"compute: a source {src.shape} does not repeat to {dst.shape}"
                )
        _compute_hbm(dst, srcs, ops)
    else:
        _compute_tile(dst, srcs, ops)


def _compute_hbm(dst: nl.NkiTensor, srcs: tuple[nl.NkiTensor, ...], ops: tuple[tuple[Any, ...], ...]) -> None:
    """compute for tensors in HBM: the pieces of all tensors, row by row, or along a row if its numbers repeat."""
    tensors = []
    for src in srcs:
        tensors.append(src)
    tensors.append(dst)
    sizes, flags = merge_dims(dst.shape, tensors)
    strides = []
    kept: list[Any] = []
    for i in range(len(tensors)):
        strides.append(strides_of(sizes, flags, i))
        kept.append(None)
    row_by_row = True
    for i in range(len(srcs)):
        row_by_row = row_by_row and (strides[i][3] == 0 or strides[i][2] > 0)
    for piece in pieces(sizes, columns_of_a_piece(len(srcs), ops), row_by_row):
        compute_piece(tensors, strides, kept, piece, ops)


def _compute_tile(dst: nl.NkiTensor, srcs: tuple[nl.NkiTensor, ...], ops: tuple[tuple[Any, ...], ...]) -> None:
    """compute for tiles in SBUF, block by block if sources have one number per block and partition."""
    values = []
    blocks = 1
    gated = False
    for src in srcs:
        if _is_columns(src, dst):
            assert src.shape == dst.shape[0:2], f"compute: columns {src.shape} for a tile {dst.shape}"
            blocks = dst.shape[1]
            values.append(load(src) if is_hbm_tensor(src) else src)
        else:
            repeats = src.shape != dst.shape
            assert not repeats or src.shape == dst.shape[0:3] + (1, 1), f"compute: {src.shape} for a tile {dst.shape}"
            gated = gated or repeats
            values.append(src)
    most = columns_of_a_piece(len(srcs), ops)
    for block in range(blocks):
        parts = []
        for i in range(len(srcs)):
            if _is_columns(srcs[i], dst):
                parts.append(values[i][:, block : block + 1].expand_dim(2))
            else:
                part = values[i] if blocks == 1 else values[i][:, block : block + 1]
                parts.append(_by_image(part) if gated else part)
        part = dst if blocks == 1 else dst[:, block : block + 1]
        if gated:
            compute_gated(_by_image(part), parts, most, ops)
        else:
            compute_tile(part, parts, most, ops)


def _is_columns(src: nl.NkiTensor, dst: nl.NkiTensor) -> bool:
    """True if a source is one number per partition and block of a tile."""
    return is_hbm_tensor(src) or len(src.shape) < len(dst.shape)


def _by_image(tile: nl.NkiTensor) -> nl.NkiTensor:
    """A tile of channels as (P, blocks and images, pixels)."""
    return tile.flatten_dims(3, 4).flatten_dims(1, 2)
