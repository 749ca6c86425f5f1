"""Warming up the tensor engine: it works while nothing else does, and the products after it are faster."""

from __future__ import annotations

from typing import Any

import pytest
from calling import hbm

from trnrt.kernels.common import load
from trnrt.kernels.warm_up import warm_up
from trnrt.nki import Spec, nisa, nl, profile


def products(transposes: int, target: str) -> Any:
    """The profile of a load that takes some microseconds, and products of a part of it."""

    def body(x: Any) -> Any:
        out = hbm((64, 64), nl.float32)
        warm_up(transposes)
        x_sb = load(x)
        sum_psum = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
        for _ in range(200):
            nisa.nc_matmul(dst=sum_psum, stationary=x_sb[:, 0:64], moving=x_sb[:, 0:64])
        y_sb = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=y_sb, src=sum_psum)
        nisa.dma_copy(dst=out, src=y_sb)
        return out

    return profile(body, Spec((64, 2048), "float32"), target=target)


def test_products_are_faster_after_it() -> None:
    """The clock's first window begins with the first of them, while the load is under way, so it is over earlier."""
    assert products(6, "trn2").benchmark_us < products(0, "trn2").benchmark_us - 1


def test_nothing_is_multiplied() -> None:
    assert products(6, "trn2").flops == products(0, "trn2").flops


@pytest.mark.parametrize(("target", "more"), [("trn1", 0), ("trn2", 6), ("trn3", 6)])
def test_trn1_has_no_such_clock(target: str, more: int) -> None:
    assert products(6, target).instructions == products(0, target).instructions + more
