"""Two cores exchange tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.exchange import exchange
from trnrt.nki import nisa, nki, nl, simulate


@nki.jit
def swap(x):  # type: ignore[no-untyped-def]
    core = nl.program_id(0)
    src = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
    dst = nl.ndarray(x.shape[1:], dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=src, src=x[core])
    exchange(dst, src)
    nisa.dma_copy(dst=out[core], src=dst)
    return out


@settings(max_examples=20, deadline=None)
@given(
    parts=st.integers(1, 128),
    columns=st.integers(1, 500),
    dtype=st.sampled_from(["float32", "float16"]),
    target=st.sampled_from(["trn2", "trn3"]),
)
def test_each_core_gets_the_others_tile(parts: int, columns: int, dtype: str, target: str) -> None:
    x = np.random.default_rng(parts).standard_normal((2, parts, columns)).astype(dtype)
    np.testing.assert_array_equal(simulate(swap, target)[2](x), x[::-1])


def test_one_core_has_nobody_to_exchange_with() -> None:
    with pytest.raises(KernelError, match=r"exchange: a kernel on two cores, kernel\[2\]"):
        simulate(swap, "trn2")(np.zeros((2, 4, 4), np.float32))
