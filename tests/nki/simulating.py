"""What the simulator's tests share: short ways to make tiles, and to run a kernel's body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from trnrt.nki import Spec, nisa, nl, simulate, trace
from trnrt.nki.machine.program import Program

Array = NDArray[Any]
Tensor = nl.NkiTensor
Kernel = Callable[..., Any]

TARGETS = ("trn1", "trn2", "trn3")
NUMPY: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
}


def drawn(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Normally distributed numbers; for integers, numbers of their whole range but the outermost."""
    random = np.random.default_rng(seed)
    if NUMPY[dtype].kind in "iu":
        limits = np.iinfo(NUMPY[dtype])
        return random.integers(limits.min, limits.max, shape, dtype=NUMPY[dtype])
    return random.standard_normal(shape).astype(NUMPY[dtype])


def tile(*shape: int, dtype: object = nl.float32, buffer: nl.MemoryRegion = nl.sbuf, **options: Any) -> Tensor:
    """A tile that nothing has written."""
    return nl.ndarray(shape, dtype, buffer, **options)


def zeros(*shape: int, dtype: object = nl.float32, buffer: nl.MemoryRegion = nl.sbuf, **options: Any) -> Tensor:
    """A tile of zeros."""
    made = tile(*shape, dtype=dtype, buffer=buffer, **options)
    nisa.memset(dst=made, value=0)
    return made


def load(src: Tensor, buffer: nl.MemoryRegion = nl.sbuf) -> Tensor:
    """A copy of a tensor of HBM on chip."""
    in_sbuf = nl.ndarray(src.shape, src.dtype, nl.sbuf)
    nisa.dma_copy(dst=in_sbuf, src=src)
    if buffer is nl.sbuf:
        return in_sbuf
    in_psum = nl.ndarray(src.shape, src.dtype, buffer)
    nisa.tensor_copy(dst=in_psum, src=in_sbuf)
    return in_psum


def give(src: Tensor) -> Tensor:
    """A copy of a tile in HBM, for the kernel to return."""
    if src.buffer is nl.psum:
        in_sbuf = nl.ndarray(src.shape, src.dtype, nl.sbuf)
        nisa.tensor_copy(dst=in_sbuf, src=src)
        src = in_sbuf
    out = nl.ndarray(src.shape, src.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=src)
    return out


def doubled(x: Tensor) -> Tensor:
    """x * 2 in HBM, 128 rows at a time: a load, an instruction and a store each."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        loaded, made = tile(128, x.shape[1]), tile(128, x.shape[1])
        nisa.dma_copy(dst=loaded, src=x[row : row + 128])
        nisa.tensor_scalar(dst=made, data=loaded, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=out[row : row + 128], src=made)
    return out


def run(body: Kernel, *arguments: Any, target: str = "trn2") -> Any:
    """What a kernel's body returns, run on the simulated ``target``."""
    return simulate(body, target)(*arguments)


def traced(body: Kernel, *arguments: Any, target: str = "trn2") -> Program:
    """The program of a body that returns nothing."""

    def kernel(*tensors: Tensor) -> Tensor:
        body(*tensors)
        return nl.ndarray((1,), nl.float32, nl.shared_hbm)

    return trace(kernel, *arguments, target=target)


def trace_body(body: Callable[..., Any], *specs: Spec, target: str = "trn2") -> Program:
    """The program of a kernel's body, which returns nothing."""

    def kernel(*arguments: Any) -> nl.NkiTensor:
        body(*arguments)
        return nl.ndarray((1, 1), nl.float32, nl.shared_hbm)

    return trace(kernel, *specs, target=target)


def spec(*shape: int, dtype: str = "float32") -> Spec:
    return Spec(shape, dtype)


def same(got: Array, expected: Array) -> None:
    """Equal bit for bit, but for the sign of zero and the payload of NaN."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


def close(got: Array, expected: Array, ulps: int = 4) -> None:
    """Equal to some float32 roundings."""
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=ulps * 2.0**-23, atol=0)


def rounded(values: Array, dtype: str) -> Array:
    """float32 values in another dtype, as ml_dtypes and numpy round them; integers saturate."""
    wanted = NUMPY[dtype]
    if wanted.kind not in "iu":
        return values.astype(wanted)
    limits = np.iinfo(wanted)
    whole = np.rint(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    return np.clip(whole, limits.min, limits.max).astype(wanted)
