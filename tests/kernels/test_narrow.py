"""Images of 16 bits in 8: exactly numpy's rounding of the scaled and limited numbers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from calling import Tensor, channels_in_sbuf, channels_to_hbm, sbuf_channels

from trnrt.kernels.narrow import narrow
from trnrt.nki import nl, simulate

LARGEST = {"float8_e4m3": 240.0, "float8_e5m2": 57344.0}


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("shape", [(1, 3, 2, 2), (2, 130, 40, 41), (9, 256, 7, 7), (1, 128, 3, 1100)])
def test_every_number(shape: tuple[int, int, int, int], target: str, signed: bool, dtype: str) -> None:
    random = np.random.default_rng(0)
    size = 2.0 ** random.integers(-20, 20, shape) * (random.standard_normal(shape) if signed else random.random(shape))
    x = size.astype(ml_dtypes.bfloat16)

    def body(src: Tensor) -> Tensor:
        dst = sbuf_channels(shape, getattr(nl, dtype))
        narrow(dst, channels_in_sbuf(src), 0.25, LARGEST[dtype], signed)
        return channels_to_hbm(dst, shape[1])

    limited = np.clip(x.astype(np.float32) * np.float32(0.25), -LARGEST[dtype], LARGEST[dtype])
    got = simulate(body, target)(x)
    np.testing.assert_array_equal(got.view(np.uint8), limited.astype(got.dtype).view(np.uint8))
