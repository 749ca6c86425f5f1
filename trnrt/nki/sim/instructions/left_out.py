"""Instructions of NKI that this simulator lacks: calling one says so."""

from __future__ import annotations

from typing import Any, NoReturn

from trnrt.nki.errors import KernelError

__all__ = ["nc_matmul_mx", "quantize_mx"]


def _refuse(name: str) -> NoReturn:
    raise KernelError(
        f"nisa.{name} is left out of this simulator: it models no MX formats",
        hint="use nisa.nc_matmul with bfloat16 or fp8 operands",
    )


def nc_matmul_mx(
    dst: Any,
    stationary: Any,
    moving: Any,
    stationary_scale: Any,
    moving_scale: Any,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: Any = None,
    name: str | None = None,
) -> NoReturn:
    """Matrix products of MX formats: left out."""
    _refuse("nc_matmul_mx")


def quantize_mx(dst: Any, src: Any, dst_scale: Any, name: str | None = None) -> NoReturn:
    """Quantization to MX formats: left out."""
    _refuse("quantize_mx")
