"""What the hardware refuses, one row a rule.

A rule looks at one instruction and answers with what is wrong (the operand, the value, the limit) or None.
Instructions name the rules that bind them; tests walk ``RULES`` and break each one.
"""

from __future__ import annotations

from collections.abc import Callable

from trnrt.nki.machine.dtypes import float32
from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Check, Engine, Instruction, MemoryRegion, Rule, View
from trnrt.nki.machine.targets import Target

RULES: dict[str, Rule] = {}

# Engines address partitions in quadrants: how many partitions an access may span from each legal start.
_SPAN_FROM_START = {0: 128, 32: 32, 64: 64, 96: 32}
_WORD = 0xFFFF


def rule(name: str, says: str, source: str) -> Callable[[Check], Rule]:
    """Register the decorated check as a row of the table; a second claim on a name is a programming error."""

    def register(check: Check) -> Rule:
        if name in RULES:
            raise ValueError(f"rule {name!r} is declared twice")
        RULES[name] = Rule(name, says, source, check)
        return RULES[name]

    return register


@rule("on-chip", "an engine reads and writes SBUF and PSUM only", "arch guide, NeuronCore engines")
def on_chip(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.views():
        if not view.storage.on_chip:
            return f"{arg} is in {view.buffer.value}; engines reach SBUF and PSUM: bring it in with nisa.dma_copy"
    return None


@rule("partition-limit", "a tile spans at most 128 partitions", "tile_size.pmax")
def partition_limit(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.views():
        if view.storage.on_chip and view.partitions > target.partitions:
            return f"{arg} spans {view.partitions} partitions; the limit is {target.partitions}"
    return None


@rule("start-partition", "an engine access starts at partition 0, 32, 64 or 96", "arch guide, partition access")
def start_partition(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.views():
        base = view.storage.address[0] if view.storage.address else 0
        start = base + view.start_partition
        if start == 0:
            continue
        span = _SPAN_FROM_START.get(start)
        if span is None:
            return f"{arg} starts at partition {start}; engines start at 0, 32, 64 or 96 (DMA starts anywhere)"
        if view.partitions > span:
            return f"{arg} spans {view.partitions} partitions from partition {start}; from there the limit is {span}"
    return None


@rule("dimensions", "an access pattern has at most 5 dimensions", "language guide, Tensor Values")
def dimensions(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.views():
        if view.ndim > 5:
            return f"{arg} has {view.ndim} dimensions; an access pattern has at most 5 (partition and four free)"
    return None


@rule("pattern-range", "free-dimension sizes and strides of an access pattern are 16-bit", "NKI access patterns, ISA")
def pattern_range(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.views():
        for size, stride in zip(view.shape[1:], view.strides[1:], strict=True):
            if size > _WORD:
                return f"{arg} has a free dimension of {size} elements; the limit is {_WORD}"
            if size > 1 and abs(stride) > _WORD // 2:
                return f"{arg} has a stride of {stride} elements; strides are signed 16-bit ({_WORD // 2})"
    return None


@rule("same-partitions", "operands span the same partitions as the destination", "nki.isa, Layout of each instruction")
def same_partitions(instruction: Instruction, target: Target) -> str | None:
    dst: View = instruction[instruction.operation.writes[0]]
    for arg, view in instruction.views():
        if view.partitions != dst.partitions:
            return f"{arg} spans {view.partitions} partitions, dst {dst.partitions}; they must be equal"
    return None


def _is_column(arg: str, view: View) -> bool:
    """Whether an operand is one that broadcasts: one element a partition is its only legal shape."""
    return arg in ("operand0", "operand1", "bias", "scale", "reduce_res") and view.free_size == 1


@rule("same-free-size", "operands hold as many elements a partition as the destination", "nki.isa, Tile size")
def same_free_size(instruction: Instruction, target: Target) -> str | None:
    dst: View = instruction[instruction.operation.writes[0]]
    for arg, view in instruction.views():
        if view.free_size != dst.free_size and not _is_column(arg, view):
            return f"{arg} holds {view.free_size} elements a partition, dst {dst.free_size}; they must be equal"
    return None


@rule("same-size", "a DMA moves as many elements as it writes", "nki.isa dma_copy, Tile size")
def same_size(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if dst.size != src.size:
        return f"src has {src.size} elements {src.shape}, dst {dst.size} {dst.shape}; they must be equal"
    return None


@rule("dma-no-psum", "DMA reaches HBM and SBUF, not PSUM", "nki.isa dma_copy, Memory types")
def dma_no_psum(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.views():
        if view.buffer is MemoryRegion.psum:
            return f"{arg} is in PSUM; move it to SBUF first (nisa.tensor_copy, nisa.activation)"
    return None


@rule("gpsimd-no-psum", "the GpSimd engine can't access PSUM", "nki.isa tensor_copy; arch guide")
def gpsimd_no_psum(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is not Engine.gpsimd:
        return None
    for arg, view in instruction.views():
        if view.buffer is MemoryRegion.psum:
            return f"{arg} is in PSUM, which the GpSimd engine can't access; use the vector or scalar engine"
    return None


@rule("one-psum-input", "the two inputs of a vector instruction can't both be in PSUM", "nki.isa tensor_tensor")
def one_psum_input(instruction: Instruction, target: Target) -> str | None:
    inputs = [
        arg
        for arg in ("data1", "data2", "data", "operand1")
        if isinstance(instruction.args.get(arg), View) and instruction[arg].buffer is MemoryRegion.psum
    ]
    return f"{' and '.join(inputs)} are both in PSUM; copy one to SBUF first" if len(inputs) > 1 else None


@rule(
    "float32-operands",
    "scalar operand tiles and the activation's scale are float32",
    "nki.isa tensor_scalar, activation",
)
def float32_operands(instruction: Instruction, target: Target) -> str | None:
    for arg in ("operand0", "operand1", "scale"):
        view = instruction.args.get(arg)
        if isinstance(view, View) and view.dtype is not float32:
            return f"{arg} is {view.dtype}; it must be float32"
    return None


@rule("column-operands", "broadcast operands hold one element a partition", "nki.isa tensor_scalar, activation: [P, 1]")
def column_operands(instruction: Instruction, target: Target) -> str | None:
    for arg in ("operand0", "operand1", "bias", "scale", "reduce_res"):
        view = instruction.args.get(arg)
        if isinstance(view, View) and view.free_size != 1:
            return f"{arg} holds {view.free_size} elements a partition; it must hold 1"
    return None


@rule("activation-bias-tile", "on trn1 the activation's bias is a tile", "nki.isa activation, Layout")
def activation_bias_tile(instruction: Instruction, target: Target) -> str | None:
    bias = instruction["bias"]
    if target.activation_scalar_bias or bias is None or isinstance(bias, View):
        return None
    return f"bias is the number {bias}; on {target.name} it must be a [P, 1] tile"


@rule("scalar-tensor-copy", "trn1's scalar engine has no tensor_copy", "nki.isa tensor_copy")
def scalar_tensor_copy(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is Engine.scalar and not target.scalar_engine_tensor_copy:
        return f"the scalar engine of {target.name} has no tensor_copy; use nisa.activation(op=nl.copy)"
    return None


@rule("arithmetic-operator", "vector instructions take ALU operators", "API reference, Supported Math Operators")
def arithmetic_operator(instruction: Instruction, target: Target) -> str | None:
    for arg in ("op", "op0", "op1"):
        op = instruction.args.get(arg)
        if op is None:
            continue
        if not isinstance(op, Operator) or (op.binary is None and op.unary is None):
            return f"{arg}={op!r} is not an operator of the vector engine"
        if op.binary is None and arg == "op":
            return f"{arg}={op!r} takes one input; this instruction needs an operator of two"
    return None


@rule("reduce-operator", "a reduction's operator is one that reduces", "API reference, Legal Reduction op")
def reduce_operator(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if not isinstance(op, Operator) or not op.reduces:
        return f"op={op!r} is not a reduction; legal are add, subtract, multiply, maximum, minimum"
    return None


@rule(
    "activation-function",
    "an activation's op is a function of the scalar engine",
    "API reference, Activation Functions",
)
def activation_function(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if not isinstance(op, Operator) or op.activation is None:
        return f"op={op!r} is not an activation function of the scalar engine"
    return None


@rule("trailing-axes", "tensor_reduce reduces the last free axes", "nki.isa tensor_reduce")
def trailing_axes(instruction: Instruction, target: Target) -> str | None:
    data: View = instruction["data"]
    axes = instruction["axis"]
    if list(axes) != list(range(data.ndim - len(axes), data.ndim)) or 0 in axes:
        return f"axis={axes} of a {data.ndim}-dimensional tile; only its last free axes can be reduced"
    return None


@rule("reduced-size", "a reduction's destination holds what is left", "nki.isa tensor_reduce, Tile size")
def reduced_size(instruction: Instruction, target: Target) -> str | None:
    data, dst = instruction["data"], instruction["dst"]
    left = 1
    for size in data.shape[1 : data.ndim - len(instruction["axis"])]:
        left *= size
    if dst.free_size != left:
        return f"dst holds {dst.free_size} elements a partition; reducing {data.shape} leaves {left}"
    return None


@rule("matmul-memory", "a matmul reads SBUF and writes PSUM", "nki.isa nc_matmul, Memory types")
def matmul_memory(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.views():
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
    columns = instruction["stationary"].free_size
    if columns > target.stationary_max:
        return f"stationary has {columns} columns; the limit on {target.name} is {target.stationary_max}"
    return None


@rule("matmul-moving", "the moving operand has at most 512 columns (trn1, trn2)", "nki.isa nc_matmul, Tile size")
def matmul_moving(instruction: Instruction, target: Target) -> str | None:
    columns = instruction["moving"].free_size
    if columns > target.moving_max:
        return f"moving has {columns} columns; the limit on {target.name} is {target.moving_max}"
    return None


@rule(
    "matmul-result",
    "dst has the stationary's columns as partitions, the moving's as columns",
    "nki.isa nc_matmul, Layout",
)
def matmul_result(instruction: Instruction, target: Target) -> str | None:
    dst = instruction["dst"]
    wanted = (instruction["stationary"].free_size, instruction["moving"].free_size)
    if (dst.partitions, dst.free_size) != wanted:
        return f"dst is {dst.partitions} x {dst.free_size}; stationary and moving give {wanted[0]} x {wanted[1]}"
    return None


@rule("matmul-dtypes", "matmul operands are floats; float32 goes with float32 only", "nki.isa nc_matmul, Data types")
def matmul_dtypes(instruction: Instruction, target: Target) -> str | None:
    stationary, moving = instruction["stationary"].dtype, instruction["moving"].dtype
    for arg, dtype in (("stationary", stationary), ("moving", moving)):
        if not dtype.is_float:
            return f"{arg} is {dtype}; the tensor engine multiplies floats"
    if (stationary.itemsize == 4) != (moving.itemsize == 4):
        return f"stationary is {stationary}, moving {moving}; float32 goes with float32 only"
    return None


@rule("matmul-result-dtype", "a matmul's result is float32 (trn3: or bfloat16)", "nki.isa nc_matmul, Data types")
def matmul_result_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["dst"].dtype
    if dtype.name not in target.psum_matmul_dtypes:
        return f"dst is {dtype}; on {target.name} it must be {' or '.join(target.psum_matmul_dtypes)}"
    return None


@rule("psum-bank", "a matmul's destination stays in one PSUM bank (2 KiB a partition)", "arch guide, PSUM")
def psum_bank(instruction: Instruction, target: Target) -> str | None:
    dst: View = instruction["dst"]
    size = dst.dtype.itemsize
    last = sum((n - 1) * s for n, s in zip(dst.shape[1:], dst.strides[1:], strict=True))
    base = (dst.storage.address[1] if dst.storage.address else 0) + (dst.offset % dst.storage.partition_elements) * size
    end = base + last * size + size
    banks = max(1, target.moving_max * size // target.psum_bank_bytes)
    if base // target.psum_bank_bytes + banks - 1 < (end - 1) // target.psum_bank_bytes:
        return f"dst covers bytes {base} to {end} of a partition; it must stay in one bank of {target.psum_bank_bytes}"
    return None


@rule("psum-accumulate", "a matmul accumulates only on what a matmul wrote", "nki.isa nc_matmul, Accumulation mode")
def psum_accumulate(instruction: Instruction, target: Target) -> str | None:
    found = instruction.args.get("accumulates_on")
    if found == "uninitialised":
        return "accumulate=True on PSUM that nothing has written; the first matmul must overwrite"
    if found == "foreign" and target.generation < 4:
        return f"accumulates on PSUM that another instruction wrote; on {target.name} that is undefined"
    return None


@rule("transpose-shape", "dst is the 2-D transpose of data", "nki.isa nc_transpose, Layout")
def transpose_shape(instruction: Instruction, target: Target) -> str | None:
    dst, data = instruction["dst"], instruction["data"]
    if (dst.partitions, dst.free_size) != (data.free_size, data.partitions):
        return f"data is {data.partitions} x {data.free_size}, dst {dst.partitions} x {dst.free_size}"
    return None


@rule(
    "transpose-size", "tensor-engine transposes are at most 128x128, the vector engine's 32x32", "nki.isa nc_transpose"
)
def transpose_size(instruction: Instruction, target: Target) -> str | None:
    data = instruction["data"]
    limit = 128 if instruction.engine is Engine.tensor else 32
    if data.partitions > limit or data.free_size > limit:
        size = f"{data.partitions} x {data.free_size}"
        return f"data is {size}; the {instruction.engine.name} engine takes {limit} x {limit}"
    return None


@rule("transpose-dtype", "a transpose keeps the dtype", "nki.isa nc_transpose, Data types")
def transpose_dtype(instruction: Instruction, target: Target) -> str | None:
    dst, data = instruction["dst"].dtype, instruction["data"].dtype
    return None if dst == data else f"data is {data}, dst {dst}; they must be equal"


@rule("transpose-memory", "a tensor-engine transpose reads SBUF and writes PSUM", "nki.isa nc_transpose, Memory types")
def transpose_memory(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is not Engine.tensor:
        return None
    if instruction["data"].buffer is not MemoryRegion.sbuf:
        return f"data is in {instruction['data'].buffer.value}; the tensor engine reads SBUF"
    if instruction["dst"].buffer is not MemoryRegion.psum:
        return f"dst is in {instruction['dst'].buffer.value}; the tensor engine writes PSUM"
    return None


@rule("search-size", "max8 and nc_find_index8 read 8 to 16,384 elements a partition", "nki.isa max8, nc_find_index8")
def search_size(instruction: Instruction, target: Target) -> str | None:
    arg = "src" if "src" in instruction.args else "data"
    size = instruction[arg].free_size
    return None if 8 <= size <= 16384 else f"{arg} holds {size} elements a partition; 8 to 16384 can be searched"


@rule("search-eight", "max8 and nc_find_index8 write 8 elements a partition", "nki.isa max8, nc_find_index8")
def search_eight(instruction: Instruction, target: Target) -> str | None:
    for arg in ("dst", "vals"):
        view = instruction.args.get(arg)
        if isinstance(view, View) and view.free_size != 8:
            return f"{arg} holds {view.free_size} elements a partition; it must hold 8"
    return None


@rule("index-dtype", "indices are uint16 or uint32", "nki.isa nc_find_index8")
def index_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["dst"].dtype
    return None if dtype.name in ("uint16", "uint32") else f"dst is {dtype}; indices are uint16 or uint32"


@rule("predicate-dtype", "a predicate is uint8, uint16 or uint32", "nki.isa tensor_copy_predicated")
def predicate_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["predicate"].dtype
    return None if dtype.name in ("uint8", "uint16", "uint32") else f"predicate is {dtype}; it must be unsigned"


@rule("predicated-same-dtype", "a predicated copy keeps the dtype", "nki.isa tensor_copy_predicated")
def predicated_same_dtype(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if isinstance(src, View) and src.dtype != dst.dtype:
        return f"src is {src.dtype}, dst {dst.dtype}; they must be equal"
    return None
