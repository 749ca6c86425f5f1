"""Work done beside a product: the vector engine turns rows, and finds classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.kernels.beside import do_beside, pieces_of_argmax, pieces_of_turn
from trnrt.kernels.product import product
from trnrt.nki import nki, nl, simulate


@nki.jit
def turned(src: Any) -> Any:
    """src.T. src: HBM (R, C)"""
    out = nl.ndarray((src.shape[1], src.shape[0]), dtype=src.dtype, buffer=nl.shared_hbm)
    for work in pieces_of_turn(out, src):
        do_beside(work)
    return out


@nki.jit
def multiplied_beside(lhs: Any, rhs: Any, rows: Any) -> Any:
    """lhs.T @ rhs, the classes of rows and rows.T. lhs, rhs, rows: HBM (K, M), (K, N), (R, F)"""
    out = nl.ndarray((lhs.shape[1], rhs.shape[1]), dtype=lhs.dtype, buffer=nl.shared_hbm)
    classes = nl.ndarray((rows.shape[0], 1), dtype=nl.uint32, buffer=nl.shared_hbm)
    rows_t = nl.ndarray((rows.shape[1], rows.shape[0]), dtype=rows.dtype, buffer=nl.shared_hbm)
    product(out, lhs, rhs, beside=pieces_of_argmax(classes, rows) + pieces_of_turn(rows_t, rows))
    return out, classes, rows_t


@settings(max_examples=30)
@given(
    rows=st.integers(1, 300),
    columns=st.integers(1, 1200),
    dtype=st.sampled_from(DTYPES),
    target=st.sampled_from(TARGETS),
)
def test_turned_bit_for_bit(rows: int, columns: int, dtype: str, target: str) -> None:
    src = drawn((rows, columns), rows, dtype)
    src[rows // 2, columns // 2] = np.nan
    src[0, columns - 1] = np.inf
    bits = np.uint32 if NUMPY[dtype].itemsize == 4 else np.uint16
    assert (simulate(turned, target)(src).view(bits) == src.T.copy().view(bits)).all()


@pytest.mark.parametrize("size", [(130, 70, 90, 40), (1800, 1100, 300, 700), (1900, 600, 512, 1200)], ids=str)
def test_beside_a_product(size: tuple[int, int, int, int]) -> None:
    """The second and the third contraction are cut: the moving operand stays in SBUF for all rows."""
    depth, m, n, rows = size
    lhs, rhs, others = drawn((depth, m), 1), drawn((depth, n), 2), drawn((rows, 33), 3)
    out, classes, rows_t = simulate(multiplied_beside, "trn1")(lhs, rhs, others)
    exact = lhs.T.astype(np.float64) @ rhs.astype(np.float64)
    allowed = depth * 2.0**-24 * (np.abs(lhs.T) @ np.abs(rhs))
    assert (np.abs(out - exact) <= allowed).all()
    assert (classes[:, 0] == others.argmax(axis=1)).all()
    assert (rows_t == others.T).all()
