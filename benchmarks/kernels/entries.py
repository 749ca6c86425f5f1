"""Kernels that call one hand-written piece each, on tensors in HBM, with weights as the planner prepares them."""

from __future__ import annotations

from typing import Any

from trnrt.kernels.addition import add
from trnrt.kernels.argmax import argmax
from trnrt.kernels.conv.conv2d import conv2d
from trnrt.kernels.linear import linear_rows
from trnrt.kernels.softmax import softmax
from trnrt.kernels.transpose import transpose_matrices
from trnrt.nki import nisa, nki, nl

Tensor = Any  # an NkiTensor inside a kernel, an array outside


def _zero_bias(shape: tuple[int, int]) -> Tensor:
    """A bias of zeros in HBM: its values don't affect the time."""
    bias = nl.ndarray(shape, dtype=nl.float32, buffer=nl.private_hbm)
    zeros = nl.ndarray((shape[0], shape[1]), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=zeros, value=0.0)
    nisa.dma_copy(dst=bias, src=zeros)
    return bias


@nki.jit
def addition(a: Tensor, b: Tensor) -> Tensor:
    """a + b. a, b: HBM (N,)"""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add(out, a, b)
    return out


@nki.jit
def transpose(src: Tensor) -> Tensor:
    """src.T. src: HBM (M, N)"""
    out = nl.ndarray((1, src.shape[1], src.shape[0]), dtype=src.dtype, buffer=nl.shared_hbm)
    transpose_matrices(out, src.reshape((1, src.shape[0], src.shape[1])))
    return out


@nki.jit
def softmax_rows(src: Tensor) -> Tensor:
    """Softmax of each row. src: HBM (N, F)"""
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    softmax(out, src, src.shape[0])
    return out


@nki.jit
def largest_columns(src: Tensor) -> Tensor:
    """The index of the largest element of each row. src: HBM (N, F)"""
    out = nl.ndarray((src.shape[0], 1), dtype=nl.uint32, buffer=nl.shared_hbm)
    argmax(out, src, src.shape[0])
    return out


@nki.jit
def linear(src: Tensor, w: Tensor, features: int) -> Tensor:
    """src @ w. src: HBM (N, F), w: HBM (128, ceil(F/128) * O), prepared"""
    outputs = w.shape[1] // -(-features // 128)
    out = nl.ndarray((src.shape[0], outputs), dtype=src.dtype, buffer=nl.shared_hbm)
    linear_rows(out, src, w, _zero_bias((1, outputs)), features)
    return out


@nki.jit
def convolution(src: Tensor, w: Tensor, taps: int) -> Tensor:
    """A convolution of taps x taps without padding. src: HBM (N, C, H, W), w: HBM (128, ceil(C/128), T, O), prepared"""
    images, channels, rows, columns = src.shape
    size = (rows - taps + 1, columns - taps + 1)
    out = nl.ndarray((images, w.shape[3], size[0], size[1]), dtype=src.dtype, buffer=nl.shared_hbm)
    bias = _zero_bias((128, -(-w.shape[3] // 128)))
    conv2d(out, src, w, bias, channels=channels, size=size, kernel=(taps, taps))
    return out
