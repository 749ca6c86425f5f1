"""The operands of vector, scalar and gpsimd instructions: sizes, dtypes, operators."""

from __future__ import annotations

from trnrt.nki.machine.modes import reduce_cmd
from trnrt.nki.machine.operators import OPERATORS, Operator
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.access import ENGINE_ACCESS
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

# Two inputs of one instruction of which PSUM can deliver one.
_PSUM_PAIRS = (
    ("data1", "data2"),
    ("data", "operand1"),
    ("src", "predicate"),
    ("data0", "data1"),
    ("on_true", "predicate"),
)
_REDUCE_COMMANDS = (reduce_cmd.idle, reduce_cmd.reset, reduce_cmd.reduce, reduce_cmd.reset_reduce)
_SEARCHED_MIN, _SEARCHED_MAX, _FOUND = 8, 16384, 8
# What the scalar engine's own multiply-add can do of tensor_scalar, where it has no more than that.
_SCALAR_ENGINE_FORMS = (("multiply", "add"), ("multiply", None), ("add", None))


@rule("same-partitions", "operands span as many partitions as the destination", "nki.isa, Tile size and Layout")
def same_partitions(instruction: Instruction, target: Target) -> str | None:
    dst: View = instruction[instruction.operation.writes[0]]
    for arg, view in instruction.operands:
        if view.shape[0] != dst.shape[0]:
            return f"{arg} spans {view.partitions} partitions, dst {dst.partitions}; they must be equal"
    return None


@rule("same-free-size", "operands hold as many elements a partition as the destination", "nki.isa, Tile size")
def same_free_size(instruction: Instruction, target: Target) -> str | None:
    size = instruction[instruction.operation.writes[0]].free_size
    columns = instruction.operation.columns
    for arg, view in instruction.operands:
        if arg not in columns and view.free_size != size:
            return f"{arg} holds {view.free_size} elements a partition, dst {size}; they must be equal"
    return None


ELEMENTWISE = (*ENGINE_ACCESS, same_partitions, same_free_size)


@rule("column-operands", "broadcast operands hold one element a partition", "nki.isa tensor_scalar, activation: [P, 1]")
def column_operands(instruction: Instruction, target: Target) -> str | None:
    columns = instruction.operation.columns
    for arg, view in instruction.operands:
        if arg in columns and view.free_size != 1:
            return f"{arg} holds {view.free_size} elements a partition; it must hold 1"
    return None


@rule(
    "float32-operands",
    "scalar operand tiles and an activation's scale are float32",
    "nki.isa tensor_scalar, activation",
)
def float32_operands(instruction: Instruction, target: Target) -> str | None:
    op0 = instruction.args.get("op0")
    if isinstance(op0, Operator) and op0.bitvec:
        return None
    for arg, view in instruction.operands:
        if arg in ("operand0", "operand1", "scale") and view.dtype.name != "float32":
            return f"{arg} is {view.dtype}; it must be float32"
    return None


@rule(
    "one-psum-input",
    "PSUM delivers one of an instruction's two inputs",
    "nki.isa tensor_tensor, scalar_tensor_tensor, tensor_copy_predicated, tensor_tensor_scan, select_reduce",
)
def one_psum_input(instruction: Instruction, target: Target) -> str | None:
    in_psum = {arg for arg, view in instruction.operands if view.buffer is MemoryRegion.psum}
    for one, other in _PSUM_PAIRS:
        if one in in_psum and other in in_psum:
            return f"{one} and {other} are both in psum; copy one to sbuf first"
    return None


@rule(
    "same-start-partition",
    "two inputs in SBUF start at the same partition",
    "AWS's compiler, error NCC_IBIR297 (aws-neuron-sdk, issue 1362); nki-library, core/embeddings/rope.py",
)
def same_start_partition(instruction: Instruction, target: Target) -> str | None:
    starts = _unequal_starts(instruction)
    return None if starts is None else f"{starts}; they must be equal: copy one of them first (nisa.tensor_copy)"


@rule(
    "other-start-partition",
    "two inputs in SBUF start at the same partition, in instructions that no document lists",
    "AWS's compiler, error NCC_IBIR297 (aws-neuron-sdk, issue 1362): for specific instructions",
    refuses=False,
)
def other_start_partition(instruction: Instruction, target: Target) -> str | None:
    starts = _unequal_starts(instruction)
    if starts is None:
        return None
    return f"{starts}; AWS's own kernels copy one first, and no document says that this instruction needs none"


def _unequal_starts(instruction: Instruction) -> str | None:
    """Which two inputs in SBUF start at different partitions."""
    operation = instruction.operation
    first: tuple[str, int] | None = None
    for arg, view in instruction.operands:
        if arg in operation.writes or view.storage.buffer is not MemoryRegion.sbuf:
            continue
        address = view.storage.address
        start = view.start_partition + (address[0] if address else 0)
        if first is None:
            first = arg, start
        elif start != first[1]:
            return f"{first[0]} starts at partition {first[1]}, {arg} at {start}, both in SBUF"
    return None


@rule("vector-operator", "vector instructions take operators of the ALU", "API reference, Supported Math Operators")
def vector_operator(instruction: Instruction, target: Target) -> str | None:
    for arg in ("op", "op0", "op1"):
        op = instruction.args.get(arg)
        if op is not None and not (isinstance(op, Operator) and (op.binary or op.unary)):
            return f"{arg}={op!r} is not an operator of the vector engine"
    return None


@rule("two-input-operator", "two tiles meet in an operator of two inputs", "API reference, Supported Math Operators")
def two_input_operator(instruction: Instruction, target: Target) -> str | None:
    arg = "op" if "op" in instruction.args else "op1"
    op = instruction[arg]
    return None if isinstance(op, Operator) and op.binary else f"{arg}={op!r} does not take two inputs"


@rule(
    "operand-given",
    "each operator has its operand: a unary one None or 0, a missing one None",
    "nki.isa tensor_scalar, operand0 and op1",
)
def operand_given(instruction: Instruction, target: Target) -> str | None:
    for arg, op_arg in (("operand0", "op0"), ("operand1", "op1")):
        operand, op = instruction.args.get(arg), instruction.args.get(op_arg)
        if op is None and operand is not None:
            return f"{arg} is {operand!s} but {op_arg} is None; both are given or both are None"
        if op is None or (isinstance(op, Operator) and not op.binary):
            if operand is not None and (isinstance(operand, View) or operand != 0):
                return f"{arg} is {operand!s}; it must be None or 0, because {op_arg}={op!r} takes no operand"
        elif operand is None:
            return f"{arg} is None; {op_arg}={op!r} needs one"
    return None


@rule(
    "tensor-scalar-engine", "engines other than vector do some forms of tensor_scalar", "nki.isa tensor_scalar, engine"
)
def tensor_scalar_engine(instruction: Instruction, target: Target) -> str | None:
    op0, op1 = instruction["op0"], instruction["op1"]
    form = (op0.name, None if op1 is None else op1.name)
    if instruction.engine is Engine.gpsimd and form != ("rsqrt", None):
        return f"op0={op0!r}, op1={op1!r} on the gpsimd engine; it does nl.rsqrt only"
    restricted = instruction.engine is Engine.scalar and not target.scalar_engine_tensor_scalar
    if restricted and form not in _SCALAR_ENGINE_FORMS:
        return f"op0={op0!r}, op1={op1!r}; the scalar engine of {target.name} multiplies, adds, or does both in turn"
    return None


@rule("scalar-tensor-copy", "trn1's scalar engine has no tensor_copy", "nki.isa tensor_copy")
def scalar_tensor_copy(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is Engine.scalar and not target.scalar_engine_tensor_copy:
        return f"engine=scalar; on {target.name} use nisa.activation(op=nl.copy)"
    return None


@rule("predicate-dtype", "a predicate is uint8, uint16 or uint32", "nki.isa tensor_copy_predicated")
def predicate_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["predicate"].dtype
    if dtype.name in ("uint8", "uint16", "uint32"):
        return None
    return f"predicate is {dtype}; it must be uint8, uint16 or uint32"


@rule("predicated-dtype", "a predicated copy keeps the dtype", "nki.isa tensor_copy_predicated")
def predicated_dtype(instruction: Instruction, target: Target) -> str | None:
    dst, src = instruction["dst"], instruction["src"]
    if isinstance(src, View) and src.dtype != dst.dtype:
        return f"src is {src.dtype}, dst {dst.dtype}; they must be equal"
    return None


@rule("activation-function", "an activation's op is one of the scalar engine's", "API reference, Activation Functions")
def activation_function(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and op.activation:
        return None
    if isinstance(op, Operator) and op.parametric:
        return f"op={op!r} takes its slope from nisa.activate2's relu_param; what it is in nisa.activation is not known"
    return f"op={op!r} is not an activation function of the scalar engine"


@rule("activation-bias-tile", "on trn1 an activation's bias is a tile", "nki.isa activation, Layout")
def activation_bias_tile(instruction: Instruction, target: Target) -> str | None:
    bias = instruction["bias"]
    if target.activation_scalar_bias or bias is None or isinstance(bias, View):
        return None
    return f"bias is the number {bias}; on {target.name} it must be a [P, 1] tile"


@rule("activation-bias-dtype", "an activation's bias is of any dtype but tfloat32", "nki.isa activation, Data types")
def activation_bias_dtype(instruction: Instruction, target: Target) -> str | None:
    bias = instruction["bias"]
    return "bias is tfloat32; it can't be" if isinstance(bias, View) and bias.dtype.name == "tfloat32" else None


@rule(
    "activation-reduce",
    "an activation sums its results, or leaves them",
    "nki.isa activation, reduce_op and reduce_cmd",
)
def activation_reduce(instruction: Instruction, target: Target) -> str | None:
    command, op = instruction["reduce_cmd"], instruction["reduce_op"]
    if command not in _REDUCE_COMMANDS:
        return f"reduce_cmd={command!r}; it must be idle, reset, reduce or reset_reduce"
    reduces = command in (reduce_cmd.reduce, reduce_cmd.reset_reduce)
    if op is not OPERATORS["add"] and (reduces or op is not None):
        return f"reduce_op={op!r} with reduce_cmd={command!r}; it must be nl.add"
    return None


@rule("reduce-operator", "a reduction's operator is one that reduces", "API reference, Legal Reduction op")
def reduce_operator(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and op.reduces:
        return None
    legal = ", ".join(repr(o) for o in OPERATORS.values() if o.reduces)
    return f"op={op!r} is not a reduction; legal are {legal}"


@rule("trailing-axes", "tensor_reduce reduces the last free axes", "nki.isa tensor_reduce")
def trailing_axes(instruction: Instruction, target: Target) -> str | None:
    data: View = instruction["data"]
    axes = instruction["axis"]
    if axes and 0 not in axes and sorted(axes) == list(range(data.ndim - len(axes), data.ndim)):
        return None
    return f"axis={axes} of data of {data.ndim} dimensions; only its last free axes can be reduced"


@rule("reduced-size", "a reduction's destination holds what is left", "nki.isa tensor_reduce, Tile size")
def reduced_size(instruction: Instruction, target: Target) -> str | None:
    data, dst = instruction["data"], instruction["dst"]
    left = 1
    for size in data.shape[1 : data.ndim - len(instruction["axis"])]:
        left *= size
    if dst.free_size != left:
        return f"dst holds {dst.free_size} elements a partition; reducing {data.shape} leaves {left}"
    return None


def _searched(instruction: Instruction) -> tuple[str, View]:
    arg = "src" if "src" in instruction.args else "data"
    return arg, instruction[arg]


@rule("search-size", "a search reads 8 to 16,384 elements a partition", "nki.isa max8, nc_find_index8")
def search_size(instruction: Instruction, target: Target) -> str | None:
    arg, view = _searched(instruction)
    if _SEARCHED_MIN <= view.free_size <= _SEARCHED_MAX:
        return None
    return f"{arg} holds {view.free_size} elements a partition; it must hold {_SEARCHED_MIN} to {_SEARCHED_MAX}"


@rule("search-eight", "a search writes, and looks for, 8 elements a partition", "nki.isa max8, nc_find_index8")
def search_eight(instruction: Instruction, target: Target) -> str | None:
    searched, _ = _searched(instruction)
    for arg, view in instruction.operands:
        if arg != searched and view.free_size != _FOUND:
            return f"{arg} holds {view.free_size} elements a partition; it must hold {_FOUND}"
    return None


@rule("search-dimensions", "what is searched has at most 3 dimensions", "nki.isa max8, nc_find_index8")
def search_dimensions(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if arg != "dst" and view.ndim > 3:
            return f"{arg} has {view.ndim} dimensions; the limit is 3"
    return None


@rule("index-dtype", "indices are uint16 or uint32", "nki.isa nc_find_index8")
def index_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["dst"].dtype
    return None if dtype.name in ("uint16", "uint32") else f"dst is {dtype}; indices are uint16 or uint32"


SEARCH = (*ENGINE_ACCESS, same_partitions, search_eight, search_size, search_dimensions)
