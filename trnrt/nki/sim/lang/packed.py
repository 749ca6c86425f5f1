"""The dtypes of MX matrix products. The names exist, because kernels compare with them; there are no tensors of
them."""

from __future__ import annotations

import numpy as np

from trnrt.nki.machine.dtypes import DType

__all__ = ["float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4", "float8_e8m0fnu"]

float8_e5m2_x4 = DType("float8_e5m2_x4", np.uint32)
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", np.uint32)
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", np.uint16)
float8_e8m0fnu = DType("float8_e8m0fnu", np.uint8)

LEFT_OUT = {d.name: d for d in (float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4, float8_e8m0fnu)}
