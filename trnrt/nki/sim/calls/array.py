"""The arguments with which ``nisa.nc_matmul`` says how it uses the tensor engine's array."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.modes import matmul_perf_mode
from trnrt.nki.machine.rules.array import FULL_ARRAY
from trnrt.nki.machine.targets import Target

_START = (0, 0)
_NONE = {
    "is_transpose": False,
    "passes_through": False,
    "tile_position": _START,
    "tile_size": FULL_ARRAY,
    "double_row": False,
}


def array_modes(
    is_transpose: bool, tile_position: Sequence[int], tile_size: Sequence[int], perf_mode: object, target: Target
) -> dict[str, Any]:
    """The modes as an instruction has them: pairs of integers, and what is done in double rows or passed through."""
    if perf_mode is matmul_perf_mode.none and not (is_transpose or tile_position or tile_size):
        return _NONE
    position, size = _tile(tile_position, tile_size)
    if perf_mode not in (*matmul_perf_mode, "none", "double_row"):
        raise KernelError(f"nc_matmul: perf_mode={perf_mode!r}; it must be none or double_row of matmul_perf_mode")
    return {
        "is_transpose": bool(is_transpose),
        "passes_through": bool(is_transpose) and target.bit_accurate_transpose,  # trn1 multiplies
        "tile_position": position,
        "tile_size": size,
        "double_row": perf_mode in (matmul_perf_mode.double_row, "double_row"),
    }


def _tile(tile_position: Sequence[int], tile_size: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both pairs; one alone must be what stands for the whole array."""
    position = _pair("tile_position", tile_position) or _START
    size = _pair("tile_size", tile_size) or FULL_ARRAY
    if not (tile_position and tile_size) and (position, size) != (_START, FULL_ARRAY):
        raise KernelError(
            f"nc_matmul: tile_position={tuple(tile_position)}, tile_size={tuple(tile_size)}; tiling takes both"
        )
    return position, FULL_ARRAY if size == FULL_ARRAY and position == _START else size


def _pair(argument: str, value: Sequence[int]) -> tuple[int, ...]:
    try:
        pair = tuple(index(item) for item in value or ())
    except TypeError:
        pair = (0,)
    if len(pair) not in (0, 2):
        raise KernelError(f"nc_matmul: {argument}={value!r}; it must be a pair of integers, (row, column)")
    return pair
