"""Attention as the traced kernels have it, written from their published structure, with its numpy meaning.

Scores and weights are float32 whatever the inputs are. ``io`` says where the descriptors of the inputs' loads and of
the output's stores come from, ``scores`` those of the scores on their way through HBM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.calibration.tiles import MOVING, Mode, P, Tensor, load_tile, store_sum, transpose_tile
from trnrt.nki import nisa, nki, nl


def attention(q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]) -> NDArray[np.float32]:
    """softmax(q.T @ k) @ v.T, as both kernels compute it. q, k, v: (D, S); the result: (S, D)"""
    scores = q.astype(np.float32).T @ k.astype(np.float32)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: NDArray[np.float32] = weights / weights.sum(axis=1, keepdims=True) @ v.astype(np.float32).T
    return result


@nki.jit
def attention_unfused(q: Tensor, k: Tensor, v: Tensor, io: Mode = Mode.swdge, scores: Mode = Mode.hwdge) -> Tensor:
    """Three phases that pass data through HBM: scores, their softmax, weights times values.

    q, k, v: HBM (128, S), S a multiple of 512
    """
    depth, length = q.shape
    out = nl.ndarray((length, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    scores_hbm = nl.ndarray((length, length), dtype=nl.float32, buffer=nl.hbm)
    q_sb, k_sb, v_sb = load_tile(q, io), load_tile(k, io), load_tile(v, io)
    for first in range(0, length, P):
        scores_sb = _scores(q_sb[:, first : first + P], k_sb)
        nisa.dma_copy(dst=scores_hbm[first : first + P, :], src=scores_sb, dge_mode=scores)
    for first in range(0, length, P):
        rows = scores_hbm[first : first + P, :]
        exp_sb, inverse_sb = _exponentials(load_tile(rows, scores))
        weights_sb = nl.ndarray((P, length), dtype=nl.float32, buffer=nl.sbuf)
        for c in range(0, length, MOVING):
            part = slice(c, c + MOVING)
            nisa.tensor_scalar(dst=weights_sb[:, part], data=exp_sb[:, part], op0=nl.multiply, operand0=inverse_sb)
        nisa.dma_copy(dst=rows, src=weights_sb, dge_mode=scores)
    v_turned = _transpose_tiles(v_sb)
    for first in range(0, length, P):
        weights_turned = _transpose_tiles(load_tile(scores_hbm[first : first + P, :], scores))
        sum_psum = _sum_products(weights_turned, v_turned)
        store_sum(out[first : first + P, :], sum_psum, io)
    return out


@nki.jit
def attention_fused(q: Tensor, k: Tensor, v: Tensor, io: Mode = Mode.swdge) -> Tensor:
    """128 queries at a time, on chip; divided by the sum of the weights at the end.

    q, k, v: HBM (128, S), S a multiple of 512
    """
    depth, length = q.shape
    out = nl.ndarray((length, depth), dtype=q.dtype, buffer=nl.shared_hbm)
    q_sb, k_sb, v_sb = load_tile(q, io), load_tile(k, io), load_tile(v, io)
    v_turned = _transpose_tiles(v_sb)
    for first in range(0, length, P):
        exp_sb, inverse_sb = _exponentials(_scores(q_sb[:, first : first + P], k_sb))
        sum_psum = _sum_products(_transpose_tiles(exp_sb), v_turned)
        out_sb = nl.ndarray((P, depth), dtype=out.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=out_sb, data=sum_psum, op0=nl.multiply, operand0=inverse_sb)
        nisa.dma_copy(dst=out[first : first + P, :], src=out_sb, dge_mode=io)
    return out


def _scores(q_sb: Tensor, k_sb: Tensor) -> Tensor:
    """SBUF (128, S) float32: q_sb.T @ k_sb, copied from PSUM in parts."""
    length = k_sb.shape[1]
    scores_sb = nl.ndarray((P, length), dtype=nl.float32, buffer=nl.sbuf)
    for c in range(0, length, MOVING):
        part_psum = nl.ndarray((P, MOVING), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=part_psum, stationary=q_sb, moving=k_sb[:, c : c + MOVING])
        nisa.tensor_copy(dst=scores_sb[:, c : c + MOVING], src=part_psum)
    return scores_sb


def _exponentials(scores_sb: Tensor) -> tuple[Tensor, Tensor]:
    """exp(scores - their row's maximum), SBUF (128, S), and one over the sum of each row, SBUF (128, 1)."""
    length = scores_sb.shape[1]
    parts = range(length // MOVING)
    maxima_sb, sums_sb = (nl.ndarray((P, len(parts)), dtype=nl.float32, buffer=nl.sbuf) for _ in range(2))
    least_sb, total_sb, inverse_sb = (nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf) for _ in range(3))
    exp_sb = nl.ndarray((P, length), dtype=nl.float32, buffer=nl.sbuf)
    for n in parts:
        part = scores_sb[:, n * MOVING : (n + 1) * MOVING]
        nisa.tensor_reduce(dst=maxima_sb[:, n : n + 1], op=nl.maximum, data=part, axis=1)
    nisa.tensor_reduce(dst=least_sb, op=nl.maximum, data=maxima_sb, axis=1, negate=True)
    for n in parts:
        part = exp_sb[:, n * MOVING : (n + 1) * MOVING]
        nisa.activation(dst=part, op=nl.exp, data=scores_sb[:, n * MOVING : (n + 1) * MOVING], bias=least_sb)
        nisa.tensor_reduce(dst=sums_sb[:, n : n + 1], op=nl.add, data=part, axis=1)
    nisa.tensor_reduce(dst=total_sb, op=nl.add, data=sums_sb, axis=1)
    nisa.reciprocal(dst=inverse_sb, data=total_sb)
    return exp_sb, inverse_sb


def _transpose_tiles(data_sb: Tensor) -> list[Tensor]:
    """The transposes of data_sb, SBUF (128, S), in tiles (128, 128) of float32."""
    return [transpose_tile(data_sb[:, c : c + P], nl.float32) for c in range(0, data_sb.shape[1], P)]


def _sum_products(weights_turned: list[Tensor], v_turned: list[Tensor]) -> Tensor:
    """PSUM (128, 128): the sum of the products of the tiles."""
    sum_psum = nl.ndarray((P, P), dtype=nl.float32, buffer=nl.psum)
    for weights_sb, v_sb in zip(weights_turned, v_turned, strict=True):
        nisa.nc_matmul(dst=sum_psum, stationary=weights_sb, moving=v_sb)
    return sum_psum
