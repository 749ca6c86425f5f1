"""The tensor engine's matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs, modes
from trnrt.nki.machine.binding import Arrays, exact, matrix, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.modes import matmul_perf_mode
from trnrt.nki.machine.program import Engine, Instruction, Marks, MemoryRegion, View
from trnrt.nki.machine.rules import access
from trnrt.nki.machine.rules.checks import join_choices
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.machine.windows import add_call, copy_call
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["nc_matmul"]

FULL_ARRAY = (128, 128)
_START = (0, 0)
_NONE = {
    "is_transpose": False,
    "passes_through": False,
    "tile_position": _START,
    "tile_size": FULL_ARRAY,
    "double_row": False,
}


def columns(instruction: Instruction, arg: str) -> int:
    """The columns of a matmul's operand; a double row contracts along the first free dimension, of 2, too."""
    args = instruction.args
    size: int = args[arg].free_size
    return size // 2 if args["double_row"] else size


@rule(
    "matmul-tile",
    "the array is cut into halves or (not on trn1) quarters, and a tile starts at a multiple of its size",
    "nki.isa nc_matmul, Tiling mode",
)
def matmul_tile(instruction: Instruction, target: Target) -> str | None:
    size, position = instruction["tile_size"], instruction["tile_position"]
    if size is FULL_ARRAY:
        return None
    legal = (64, 128) if target.generation < 3 else (32, 64, 128)
    for kind, extent, start in zip(("row", "column"), size, position, strict=True):
        if extent not in legal:
            return f"tile_size={size}: its {kind} size must be {join_choices(legal)}"
        if start % extent or not 0 <= start <= 128 - extent:
            last = 128 - extent
            return f"tile_position={position}: its {kind} must be a multiple of {extent} from 0 to {last}"
    return None


@rule("matmul-tile-fits", "the stationary operand fits its tile of the array", "nki.isa nc_matmul, Tile size")
def matmul_tile_fits(instruction: Instruction, target: Target) -> str | None:
    if instruction["tile_size"] is FULL_ARRAY:
        return None  # no tile is larger, and matmul-stationary holds its columns
    stationary, (rows, cols) = instruction["stationary"], instruction["tile_size"]
    have = stationary.partitions, columns(instruction, "stationary")
    if have[0] > rows or have[1] > cols:
        return f"stationary is {have[0]} x {have[1]}; tile_size holds {rows} x {cols}"
    return None


@rule(
    "matmul-double-row",
    "double_row needs trn2 or later, float8 operands of shape (P, 2, ...), all 128 columns and no transpose",
    "nki.isa nc_matmul, Performance mode, Layout; arch guide trn2, Double FP8 Matmul Performance",
)
def matmul_double_row(instruction: Instruction, target: Target) -> str | None:
    if not instruction["double_row"]:
        return None
    if not target.has_double_rows:
        return f"perf_mode is double_row; {target.name} has no performance mode"
    for arg in ("stationary", "moving"):
        view: View = instruction[arg]
        if view.ndim < 3 or view.shape[1] != 2:
            return f"{arg} has shape {view.shape}; with double_row it must have (P, 2, ...)"
        if view.dtype.itemsize != 1:
            return f"{arg} is {view.dtype}; with double_row it must be a float8"
    if instruction["tile_size"][1] != FULL_ARRAY[1]:
        return f"tile_size={instruction['tile_size']} with double_row; its column size must be {FULL_ARRAY[1]}"
    return "is_transpose=True with double_row; one excludes the other" if instruction["is_transpose"] else None


@rule(
    "matmul-transpose-accumulate",
    "a transpose overwrites: it can't add to dst",
    "arch guide trn2, Built-in Transpose Support",
)
def transpose_accumulate(instruction: Instruction, target: Target) -> str | None:
    if instruction["passes_through"] and instruction["accumulates"] is not False:
        return "is_transpose=True on a dst that a matmul has written, or accumulate=True; give accumulate=False"
    return None


@rule(
    "matmul-transpose-dtype",
    "a transpose by matmul keeps the dtype of stationary, which has 2 or 4 bytes",
    "arch guide trn2, Built-in Transpose Support",
)
def transpose_dtype(instruction: Instruction, target: Target) -> str | None:
    if not instruction["passes_through"]:
        return None
    stationary, dst = instruction["stationary"].dtype, instruction["dst"].dtype
    if stationary.itemsize == 1:
        return f"stationary is {stationary}, whose transpose has elements of 16 bits; copy it to bfloat16 first"
    return None if dst == stationary else f"stationary is {stationary}, dst {dst}; they must be equal"


@rule("matmul-memory", "a matmul reads SBUF and writes PSUM", "nki.isa nc_matmul, Memory types")
def matmul_memory(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        wanted = MemoryRegion.psum if arg == "dst" else MemoryRegion.sbuf
        if view.buffer is not wanted:
            return f"{arg} is in {view.buffer.value}; it must be in {wanted.value}"
    return None


@rule("matmul-contraction", "stationary and moving have the same number of partitions", "nki.isa nc_matmul, Layout")
def matmul_contraction(instruction: Instruction, target: Target) -> str | None:
    stationary, moving = instruction["stationary"], instruction["moving"]
    if stationary.partitions != moving.partitions:
        return f"stationary has {stationary.partitions} partitions, moving {moving.partitions}; they must be equal"
    return None


@rule("matmul-stationary", "the stationary operand has at most 128 columns", "nki.isa nc_matmul, Tile size")
def matmul_stationary(instruction: Instruction, target: Target) -> str | None:
    size = columns(instruction, "stationary")
    if size > target.stationary_max:
        return f"stationary has {size} columns; the limit on {target.name} is {target.stationary_max}"
    return None


@rule(
    "matmul-moving",
    "the moving operand has at most 512 columns (trn3: 4096, 8192 for a bfloat16 result)",
    "nki.isa nc_matmul, Tile size",
)
def matmul_moving(instruction: Instruction, target: Target) -> str | None:
    size = columns(instruction, "moving")
    limit = target.moving_max if instruction["dst"].dtype.itemsize == 4 else target.moving_max_16bit
    if size > limit:
        return f"moving has {size} columns; the limit on {target.name} is {limit}"
    return None


@rule(
    "matmul-result",
    "dst has a row for each column of stationary, and the columns of moving",
    "nki.isa nc_matmul, Layout",
)
def matmul_result(instruction: Instruction, target: Target) -> str | None:
    dst = instruction["dst"]
    wanted = (columns(instruction, "stationary"), columns(instruction, "moving"))
    if (dst.partitions, dst.free_size) != wanted:
        return f"dst is {dst.partitions} x {dst.free_size}; stationary and moving give {wanted[0]} x {wanted[1]}"
    return None


@rule("matmul-dtypes", "the tensor engine multiplies floats", "nki.isa nc_matmul, Data types")
def matmul_dtypes(instruction: Instruction, target: Target) -> str | None:
    for arg in ("stationary", "moving"):
        dtype = instruction[arg].dtype
        if dtype.name not in target.matmul_dtypes:
            return f"{arg} is {dtype}; on {target.name} it must be one of {', '.join(target.matmul_dtypes)}"
    return None


@rule(
    "matmul-mixed-dtypes",
    "32-bit operands don't mix with others, nor float8_e4m3 with float8_e4m3fn",
    "nki.isa nc_matmul, Data types",
)
def matmul_mixed_dtypes(instruction: Instruction, target: Target) -> str | None:
    stationary, moving = instruction["stationary"].dtype, instruction["moving"].dtype
    if (stationary.itemsize == 4) != (moving.itemsize == 4):
        return f"stationary is {stationary}, moving {moving}; float32 and tfloat32 go with each other only"
    if {stationary.name, moving.name} == {"float8_e4m3", "float8_e4m3fn"}:
        return f"stationary is {stationary}, moving {moving}; the two formats can't be mixed"
    return None


@rule("matmul-result-dtype", "a matmul's result is float32 (trn3: or bfloat16)", "nki.isa nc_matmul, Data types")
def matmul_result_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["dst"].dtype
    if dtype.name not in target.psum_matmul_dtypes and not instruction["passes_through"]:
        return f"dst is {dtype}; on {target.name} it must be {' or '.join(target.psum_matmul_dtypes)}"
    return None


@rule(
    "psum-accumulate",
    "a matmul adds to the result of a matmul (trn3: or of another instruction)",
    "nki.isa nc_matmul, Accumulation mode",
)
def psum_accumulate(instruction: Instruction, target: Target) -> str | None:
    found = instruction["accumulates_on"]
    if found == "uninitialised":
        return "accumulate=True on a dst that nothing has written; the first matmul must overwrite: accumulate=False"
    if found == "foreign" and not target.accumulates_on_foreign:
        return f"accumulates on a dst that another instruction wrote; on {target.name} that is undefined"
    return None


def _product(instruction: Instruction, arrays: Arrays, out: Array) -> Callable[[], None]:
    """A call that puts ``stationary.T @ moving`` into ``out`` (columns, columns)."""
    stationary_view, moving_view = instruction["stationary"], instruction["moving"]
    multiply = multiplication(out)
    if instruction["double_row"]:
        halves = [
            (matrix(row(stationary_view, i), arrays, "stationary"), matrix(row(moving_view, i), arrays, "moving"))
            for i in (0, 1)
        ]

        def multiply_rows() -> None:
            (first, first_moving), (second, second_moving) = halves
            multiply(first().T, first_moving(), out=out)
            np.add(out, second().T @ second_moving(), out=out)

        return multiply_rows
    stationary = matrix(stationary_view, arrays, "stationary")
    moving = matrix(moving_view, arrays, "moving")

    def product() -> None:
        multiply(stationary().T, moving(), out=out)

    return product


def multiplication(out: Array) -> Callable[..., Array]:
    """numpy's faster function for a product into ``out``.

    Both call BLAS, but ``matmul`` leaves out products of one row and column, and takes longer to get there; ``dot``
    needs an ``out`` without gaps, and sums a single column in another order.
    """
    return np.dot if out.flags.c_contiguous and out.shape[1] > 1 else np.matmul


def row(view: View, position: int) -> View:
    """One of the two rows in a double row's first free dimension."""
    offset = view.offset + position * view.strides[1]
    shape, strides = (view.shape[0], *view.shape[2:]), (view.strides[0], *view.strides[2:])
    return replace(view, shape=shape, strides=strides, offset=offset)


def _pass_through(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = stationary.T``, bit for bit: each column of ``moving`` selects the partition to pass.

    ``moving`` is an identity matrix, or part of one in any order; the reference defines no other.
    """
    target = arrays(instruction["dst"])
    stationary = matrix(instruction["stationary"], arrays, "stationary")
    moving = matrix(instruction["moving"], arrays, "moving")

    def transpose() -> None:
        chosen = moving()
        passed = chosen.argmax(axis=0)
        if not _is_selection(chosen, passed):
            raise KernelError(
                "nc_matmul: is_transpose=True with a moving operand that is no identity matrix; the reference does not "
                f"define the result\n  at {instruction.source}"
            )
        target[...] = stationary().T[:, passed].reshape(target.shape)

    return transpose


def _is_selection(matrix: Array, ones: Array) -> bool:
    """True if each column holds a single one, in the row that ``ones`` names, and zeros."""
    columns = np.arange(matrix.shape[1])
    return bool((matrix[ones, columns] == 1).all()) and np.count_nonzero(matrix) == columns.size


def _matmul(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = stationary.T @ moving``, or ``dst += ...``, in float32; a transpose moves data instead of multiplying.

    ``accumulates`` is True, False, or (element by element, as the hardware tracks it) a mask of the elements
    of ``dst`` that are added to.
    """
    dst: View = instruction["dst"]
    target = arrays(dst)
    if instruction["passes_through"]:
        return _pass_through(instruction, arrays)
    accumulates = instruction["accumulates"]
    scratch = arrays.scratch("product", (dst.partitions, dst.free_size))
    shaped = scratch.reshape(target.shape)
    flat = target.reshape(scratch.shape)
    write = writer(dst, target)
    if not isinstance(accumulates, np.ndarray) and not accumulates and exact(dst):
        if np.may_share_memory(flat, target):
            return _product(instruction, arrays, flat)
        return call_both(_product(instruction, arrays, scratch), copy_call(target, shaped))
    product = _product(instruction, arrays, scratch)

    def overwrite() -> None:
        product()
        write(shaped)

    def accumulate() -> None:
        product()
        write(np.add(target, shaped, out=shaped))

    def accumulate_masked() -> None:
        product()
        write(np.where(accumulates, target, np.float32(0)) + shaped)

    if isinstance(accumulates, np.ndarray):
        return accumulate_masked
    if accumulates:
        return call_both(product, add_call(dst, shaped, arrays)) if exact(dst) else accumulate
    return overwrite


def call_both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    """A call that makes two."""

    def both() -> None:
        first()
        second()

    return both


def _marks_multiplied(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Marks for rows of dst from columns of the stationary operand, for its columns from those of the moving one."""
    dst = instruction["dst"]
    if instruction["passes_through"]:
        return {}
    total = np.zeros((dst.partitions, dst.free_size), np.int32)
    for arg, across in (("stationary", (-1, 1)), ("moving", (1, -1))):
        if arg in marks:
            mark = marks[arg]
            outer = 2 if instruction["double_row"] else 1  # dimensions that the product runs over
            columns = mark.reshape(*mark.shape[:outer], -1).max(axis=tuple(range(outer)))
            np.maximum(total, columns.reshape(across), out=total)
    return {"dst": total.reshape(dst.shape)}


def array_modes(
    is_transpose: bool, tile_position: Sequence[int], tile_size: Sequence[int], perf_mode: object, target: Target
) -> dict[str, Any]:
    """The modes that an instruction keeps: the tile as pairs of integers, whether it transposes, takes double rows."""
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
    """Both pairs; one alone must mean the whole array."""
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


@declare(
    engines=(Engine.tensor,),
    writes=("dst",),
    reads=("stationary", "moving"),
    rules=(
        matmul_memory,
        *access.PATTERN,
        matmul_contraction,
        matmul_stationary,
        matmul_moving,
        matmul_result,
        matmul_dtypes,
        matmul_mixed_dtypes,
        matmul_result_dtype,
        access.psum_bank,
        psum_accumulate,
        matmul_tile,
        matmul_tile_fits,
        matmul_double_row,
        transpose_accumulate,
        transpose_dtype,
    ),
    meaning=_matmul,
    cycles=costs.no_own_cycles,
    spreads=_marks_multiplied,
)
def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: modes.matmul_perf_mode = modes.matmul_perf_mode.none,
    name: str | None = None,
) -> Args:
    """``dst = stationary.T @ moving`` on the tensor engine, contraction along the partitions.

    ``accumulate``: True adds to ``dst``, False overwrites it, None overwrites the elements that no matmul has written
    since the tile was allocated and adds to the others. ``is_..._onezero`` change only the timing, as do
    ``tile_position`` and ``tile_size``, the tile of the array in use. ``is_transpose`` passes stationary through, bit
    for bit (trn1: multiplies); ``perf_mode`` double_row contracts along the first free dimension, of 2, too.
    """
    tracer = active_tracer("nisa.nc_matmul")
    used = array_modes(is_transpose, tile_position, tile_size, perf_mode, tracer.target)
    wanted = None if accumulate is None else bool(accumulate)
    known = isinstance(dst, NkiTensor) and dst.bounded
    accumulates, found = tracer.psum.accumulation(dst, wanted) if known else (False, "")
    return {
        "dst": dst,
        "stationary": stationary,
        "moving": moving,
        "is_stationary_onezero": is_stationary_onezero,
        "is_moving_onezero": is_moving_onezero,
        "accumulates": accumulates,
        "accumulates_on": found,
        "name": name,
        **used,
    }
