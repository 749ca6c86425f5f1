"""Run functions of the old namespace on arrays: each input is loaded to SBUF, the result is stored to HBM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from trnrt.nki.legacy import language
from trnrt.nki.legacy.launching import jit
from trnrt.nki.machine.dtypes import Array

nl: Any = language  # its functions are made by name
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FORMATS = [np.dtype(np.float32), BFLOAT16]


def run(function: Callable[..., Any], *arrays: Array) -> Any:
    """``function`` of the tiles of arrays; it gives a tile, or a list of them."""

    def kernel(*tensors: Any) -> Any:
        made = function(*(nl.load(tensor) for tensor in tensors))
        several = isinstance(made, list)
        stored = []
        for one in made if several else [made]:
            out = nl.ndarray(one.shape, dtype=one.dtype, buffer=nl.shared_hbm)
            nl.store(out, one)
            stored.append(out)
        return tuple(stored) if several else stored[0]

    return jit(kernel)(*arrays)


def numbers(seed: int, *shape: int, dtype: Any = np.float32, least: float = -2.0, most: float = 2.0) -> Array:
    """Random numbers between two bounds."""
    made = np.random.default_rng(seed).uniform(least, most, shape)
    return made.astype(np.float32).astype(dtype)


def wide(array: Array) -> Array:
    """An array as float32, as the engines compute."""
    return array.astype(np.float32)


def assert_close(got: Array, wanted: Array) -> None:
    """Equal within a step of the result's number format; NaN where NaN is wanted."""
    step = 2.0**-7 if got.dtype == BFLOAT16 else 3e-6
    assert got.shape == wanted.shape
    np.testing.assert_allclose(wide(got), wide(wanted), rtol=step, atol=step)
