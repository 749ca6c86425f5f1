"""The dtypes of MX matrix products. Their names exist, because kernels compare with them; tensors of them do not."""

from __future__ import annotations

import numpy as np

from trnrt.nki.machine.dtypes import DType

__all__ = ["float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4", "float8_e8m0fnu"]


def _packed_dtype(name: str, itemsize: int) -> DType:
    return DType(name, itemsize, np.dtype(f"uint{8 * itemsize}"), is_float=False)


float8_e5m2_x4 = _packed_dtype("float8_e5m2_x4", 4)
float8_e4m3fn_x4 = _packed_dtype("float8_e4m3fn_x4", 4)
float4_e2m1fn_x4 = _packed_dtype("float4_e2m1fn_x4", 2)
float8_e8m0fnu = _packed_dtype("float8_e8m0fnu", 1)

LEFT_OUT = {d.name: d for d in (float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4, float8_e8m0fnu)}
