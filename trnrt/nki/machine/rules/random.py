"""The engines' random number generators."""

from __future__ import annotations

from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.rules.access import ENGINE_ACCESS
from trnrt.nki.machine.rules.operands import column_operands, same_free_size, same_partitions
from trnrt.nki.machine.rules.shuffle import kept_dtype
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

WORDS = 6  # of one generator's state
GENERATORS = {Engine.gpsimd: 1, Engine.vector: 4}  # of each lane
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_FLOATS = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32")


@rule("rng-engine", "random bits come from the vector engine, from NeuronCore-v3 on from gpsimd too", "nki.isa rng")
def rng_engine(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is Engine.gpsimd and target.generation < 3:
        return f"engine={instruction.engine!r}; on {target.name} it must be vector"
    return None


@rule("rng-dtype", "random bits are integers", "nki.isa rng, Data types")
def rng_dtype(instruction: Instruction, target: Target) -> str | None:
    dtype = instruction["dst"].dtype
    return None if dtype.name in _INTEGERS else f"dst is {dtype}; it must be one of {', '.join(_INTEGERS)}"


RNG = (*ENGINE_ACCESS, rng_engine, rng_dtype)


@rule(
    "dropout-prob-dtype",
    "a tile of probabilities is of floats, of float32 where the data is of integers",
    "nki.isa dropout",
)
def dropout_prob_dtype(instruction: Instruction, target: Target) -> str | None:
    prob, data = instruction["prob"], instruction["data"]
    if not isinstance(prob, View):
        return None
    if not data.dtype.is_float and prob.dtype.name != "float32":
        return f"prob is {prob.dtype}; with data of {data.dtype} it must be float32"
    return None if prob.dtype.is_float else f"prob is {prob.dtype}; it must be a float"


DROPOUT = (*ENGINE_ACCESS, same_partitions, same_free_size, kept_dtype, column_operands, dropout_prob_dtype)


@rule("seed-shape", "the seed is one element of 32 bits", "nki.isa set_rng_seed")
def seed_shape(instruction: Instruction, target: Target) -> str | None:
    seed = instruction["src_seeds"]
    if seed.shape != (1, 1):
        return f"src_seeds has shape {seed.shape}; it must have (1, 1)"
    return None if seed.dtype.itemsize == 4 else f"src_seeds is {seed.dtype}; it must have 32 bits"


SEED = (*ENGINE_ACCESS, seed_shape)


@rule(
    "rand-state-engine",
    "generators' states are gpsimd's from NeuronCore-v3 on, the vector engine's from NeuronCore-v4 on",
    "nki.isa rand_set_state, rand_get_state",
)
def state_engine(instruction: Instruction, target: Target) -> str | None:
    if target.generation < 3:
        return f"{target.name} has no such instruction; NeuronCore-v3 and newer have"
    if instruction.engine is Engine.vector and target.generation < 4:
        return f"engine={instruction.engine!r}; on {target.name} it must be gpsimd"
    return None


@rule("rand-state-shape", "a state is 6 uint32 a partition, 24 for the vector engine", "nki.isa rand_set_state")
def state_shape(instruction: Instruction, target: Target) -> str | None:
    arg, state = instruction.operands[0]
    wanted = WORDS * GENERATORS[instruction.engine]
    if state.ndim != 2 or state.shape[1] != wanted:
        return f"{arg} has shape {state.shape}; for the {instruction.engine.name} engine it must have (P, {wanted})"
    return None if state.dtype.name == "uint32" else f"{arg} is {state.dtype}; it must be uint32"


@rule(
    "rand-state-memory",
    "states are read from SBUF, and written to PSUM from NeuronCore-v4 on only",
    "nki.isa rand_set_state, rand_get_state, Memory types",
)
def state_memory(instruction: Instruction, target: Target) -> str | None:
    arg, state = instruction.operands[0]
    if state.buffer is MemoryRegion.psum and (arg == "src_seeds" or target.generation < 4):
        return f"{arg} is in PSUM; it must be in SBUF"
    return None


STATE = (*ENGINE_ACCESS, state_engine, state_shape, state_memory)


@rule("rand2-target", "rand2 exists from NeuronCore-v4 on", "nki.isa rand2, Constraints")
def rand2_target(instruction: Instruction, target: Target) -> str | None:
    return f"{target.name} has no such instruction; NeuronCore-v4 and newer have" if target.generation < 4 else None


@rule("rand2-dtype", "rand2 gives floats and integers, not float8_e4m3fn or bool", "nki.isa rand2, Data types")
def rand2_dtype(instruction: Instruction, target: Target) -> str | None:
    legal, dtype = _FLOATS + _INTEGERS, instruction["dst"].dtype
    return None if dtype.name in legal else f"dst is {dtype}; it must be one of {', '.join(legal)}"


@rule("rand2-bounds", "rand2's bounds are float32, min the smaller", "nki.isa rand2, Constraints")
def rand2_bounds(instruction: Instruction, target: Target) -> str | None:
    low, high = instruction["min"], instruction["max"]
    for arg, bound in (("min", low), ("max", high)):
        if isinstance(bound, View) and bound.dtype.name != "float32":
            return f"{arg} is {bound.dtype}; it must be float32"
    if not isinstance(low, View) and not isinstance(high, View) and not low < high:
        return f"min={low}, max={high}; min must be less than max"
    return None


RAND2 = (rand2_target, *ENGINE_ACCESS, same_partitions, column_operands, rand2_dtype, rand2_bounds)
