"""Matrix products and transposes."""

from __future__ import annotations

from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.access import dimensions, on_chip, partition_stride, pattern_range, start_partition
from trnrt.nki.machine.rules.array import MODES, columns
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

_TRANSPOSE_MAX = {Engine.tensor: 128, Engine.vector: 32}


@rule("matmul-memory", "a matmul reads SBUF and writes PSUM", "nki.isa nc_matmul, Memory types")
def matmul_memory(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        wanted = MemoryRegion.psum if arg == "dst" else MemoryRegion.sbuf
        if view.buffer is not wanted:
            return f"{arg} is in {view.buffer.value}; it must be in {wanted.value}"
    return None


@rule("matmul-contraction", "stationary and moving share their partitions", "nki.isa nc_matmul, Layout")
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


@rule("matmul-result", "dst is the stationary's columns by the moving's", "nki.isa nc_matmul, Layout")
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
    "32-bit operands go with 32-bit ones only, float8_e4m3 not with float8_e4m3fn",
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
    "psum-bank",
    "what the tensor engine writes stays in one PSUM bank (trn1, trn2: 2 KiB a partition)",
    "arch guide trn1, Near-memory accumulation in PSUM; nki.isa nc_matmul, Tile size",
)
def psum_bank(instruction: Instruction, target: Target) -> str | None:
    dst: View = instruction["dst"]
    if instruction.engine is not Engine.tensor or target.matmul_crosses_banks:
        return None
    size, bank = dst.dtype.itemsize, target.psum_bank_bytes
    steps = [(n - 1) * s for n, s in zip(dst.shape[1:], dst.strides[1:], strict=True)]
    # A tile without an address starts at a bank, or lies in one: the allocator's promise.
    start = (dst.storage.address[1] if dst.storage.address else 0) + dst.offset % dst.partition_elements * size
    first, last = (
        start + sum(s for s in steps if s < 0) * size,
        start + sum(s for s in steps if s > 0) * size + size - 1,
    )
    if first // bank != last // bank:
        return f"dst covers bytes {first} to {last} of a partition; it must stay in one bank of {bank}"
    return None


@rule(
    "psum-accumulate",
    "a matmul accumulates on what a matmul wrote (trn3: or another instruction)",
    "nki.isa nc_matmul, Accumulation mode",
)
def psum_accumulate(instruction: Instruction, target: Target) -> str | None:
    found = instruction["accumulates_on"]
    if found == "uninitialised":
        return "accumulate=True on a dst that nothing has written; the first matmul must overwrite: accumulate=False"
    if found == "foreign" and not target.accumulates_on_foreign:
        return f"accumulates on a dst that another instruction wrote; on {target.name} that is undefined"
    return None


_ACCESS = (partition_stride, start_partition, dimensions, pattern_range)
MATMUL = (
    matmul_memory,
    *_ACCESS,
    matmul_contraction,
    matmul_stationary,
    matmul_moving,
    matmul_result,
    matmul_dtypes,
    matmul_mixed_dtypes,
    matmul_result_dtype,
    psum_bank,
    psum_accumulate,
    *MODES,
)


@rule("transpose-memory", "a tensor-engine transpose reads SBUF and writes PSUM", "nki.isa nc_transpose, Memory types")
def transpose_memory(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is not Engine.tensor:
        return None
    for arg, wanted in (("data", MemoryRegion.sbuf), ("dst", MemoryRegion.psum)):
        if instruction[arg].buffer is not wanted:
            return f"{arg} is in {instruction[arg].buffer.value}; for the tensor engine it must be in {wanted.value}"
    return None


@rule("transpose-shape", "dst is the 2-D transpose of data", "nki.isa nc_transpose, Layout")
def transpose_shape(instruction: Instruction, target: Target) -> str | None:
    dst, data = instruction["dst"], instruction["data"]
    if (dst.partitions, dst.free_size) != (data.free_size, data.partitions):
        wanted = f"{data.free_size} x {data.partitions}"
        return (
            f"data is {data.partitions} x {data.free_size}, dst {dst.partitions} x {dst.free_size}; it must be {wanted}"
        )
    return None


@rule("transpose-size", "a transpose is at most 128x128, on the vector engine 32x32", "nki.isa nc_transpose, Tile size")
def transpose_size(instruction: Instruction, target: Target) -> str | None:
    data, limit = instruction["data"], _TRANSPOSE_MAX[instruction.engine]
    if data.partitions > limit or data.free_size > limit:
        size = f"{data.partitions} x {data.free_size}"
        return f"data is {size}; the limit of the {instruction.engine.name} engine is {limit} x {limit}"
    return None


@rule("transpose-dtype", "a transpose keeps the dtype", "nki.isa nc_transpose, Data types")
def transpose_dtype(instruction: Instruction, target: Target) -> str | None:
    dst, data = instruction["dst"].dtype, instruction["data"].dtype
    return None if dst == data else f"data is {data}, dst {dst}; they must be equal"


TRANSPOSE = (
    on_chip,
    *_ACCESS,
    transpose_memory,
    transpose_size,
    transpose_shape,
    transpose_dtype,
    psum_bank,
)
