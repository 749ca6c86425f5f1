"""How the tensor engine's array of 128 x 128 cells is used: tiles of it, two rows in one, and passing data through."""

from __future__ import annotations

from trnrt.nki.machine.program import Instruction, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

FULL_ARRAY = (128, 128)


def columns(instruction: Instruction, arg: str) -> int:
    """The columns of a matmul's operand; a double row contracts along the first free dimension, of 2, too."""
    args = instruction.args
    size: int = args[arg].free_size
    return size // 2 if args["double_row"] else size


@rule(
    "matmul-tile",
    "the array is cut in halves, or quarters (not on trn1), and a tile starts at a multiple of its size",
    "nki.isa nc_matmul, Tiling mode",
)
def matmul_tile(instruction: Instruction, target: Target) -> str | None:
    size, position = instruction["tile_size"], instruction["tile_position"]
    if size is FULL_ARRAY:
        return None
    legal = (64, 128) if target.generation < 3 else (32, 64, 128)
    for kind, extent, start in zip(("row", "column"), size, position, strict=True):
        if extent not in legal:
            return f"tile_size={size}: its {kind} size must be {', '.join(map(str, legal[:-1]))} or {legal[-1]}"
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
    "double rows are of two float8 elements, on trn2 and newer, without column tiles and transposes",
    "nki.isa nc_matmul, Performance mode, Layout; arch guide trn2, Double FP8 Matmul Performance",
)
def matmul_double_row(instruction: Instruction, target: Target) -> str | None:
    if not instruction["double_row"]:
        return None
    if target.generation < 3:
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
    "a transpose overwrites: what is passed through is not added",
    "arch guide trn2, Built-in Transpose Support",
)
def transpose_accumulate(instruction: Instruction, target: Target) -> str | None:
    if instruction["passes_through"] and instruction["accumulates"] is not False:
        return "is_transpose=True on a dst that a matmul has written, or accumulate=True; give accumulate=False"
    return None


@rule(
    "matmul-transpose-dtype",
    "a transpose by matmul keeps the dtype of stationary, of 2 or 4 bytes",
    "arch guide trn2, Built-in Transpose Support",
)
def transpose_dtype(instruction: Instruction, target: Target) -> str | None:
    if not instruction["passes_through"]:
        return None
    stationary, dst = instruction["stationary"].dtype, instruction["dst"].dtype
    if stationary.itemsize == 1:
        return f"stationary is {stationary}, whose transpose has elements of 16 bits; copy it to bfloat16 first"
    return None if dst == stationary else f"stationary is {stationary}, dst {dst}; they must be equal"


MODES = (matmul_tile, matmul_tile_fits, matmul_double_row, transpose_accumulate, transpose_dtype)
