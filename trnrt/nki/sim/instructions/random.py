"""The engines' random number generators, and the instructions that draw from them.

Policy, where the reference leaves it open (a NeuronCore gives other numbers, of the same distribution):

- every engine on every target draws from XORWOW generators, as the reference has it for gpsimd and for NeuronCore-v4
  (the vector engine of earlier ones has an LFSR that nothing describes): one a lane (a partition) in gpsimd, four
  in the vector engine, whose numbers take turns; an instruction draws from the four equally often;
- a state is the words x, y, z, w, v, d; a step is ``t = x ^ (x >> 2)``, ``v' = v ^ (v << 4) ^ t ^ (t << 1)``,
  ``d' = d + 362437``, the other words moving up, and gives ``v' + d'``;
- a kernel's call begins, on each core, with what seed 0 gives, and a seed gives each lane and each generator a state
  of its own;
- a uniform number is the upper 24 of 32 bits, divided by 2**24: 0 <= u < 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, column, in_shape, writer
from trnrt.nki.machine.dtypes import Array, uint32
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, View
from trnrt.nki.machine.rules import access, operands
from trnrt.nki.machine.rules.checks import dtype_rule, generation_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

__all__ = ["dropout", "rand2", "rand_get_state", "rand_set_state", "rng", "set_rng_seed"]

WORDS = 6  # of one generator's state
GENERATORS = {Engine.gpsimd: 1, Engine.vector: 4}  # of each lane
_WEYL = np.uint32(362437)
_STEP = np.uint32(0x9E3779B9)
_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
_FLOATS = ("float8_e4m3", "float8_e5m2", "float16", "bfloat16", "float32", "tfloat32")


@rule(
    "rng-engine",
    "random bits come from the vector engine; from NeuronCore-v3 on, also from the GpSimd engine",
    "nki.isa rng",
)
def rng_engine(instruction: Instruction, target: Target) -> str | None:
    if instruction.engine is Engine.gpsimd and target.generation < 3:
        return f"engine={instruction.engine!r}; on {target.name} it must be vector"
    return None


rng_dtype = dtype_rule("rng-dtype", "random bits are integers", "nki.isa rng, Data types", dst=_INTEGERS)


@rule(
    "dropout-prob-dtype",
    "a tile of probabilities has a float dtype; float32 if the data has integers",
    "nki.isa dropout",
)
def dropout_prob_dtype(instruction: Instruction, target: Target) -> str | None:
    prob, data = instruction["prob"], instruction["data"]
    if not isinstance(prob, View):
        return None
    if not data.dtype.is_float and prob.dtype.name != "float32":
        return f"prob is {prob.dtype}; with data of {data.dtype} it must be float32"
    return None if prob.dtype.is_float else f"prob is {prob.dtype}; it must be a float"


@rule("seed-shape", "the seed is one element of 32 bits", "nki.isa set_rng_seed")
def seed_shape(instruction: Instruction, target: Target) -> str | None:
    seed = instruction["src_seeds"]
    if seed.shape != (1, 1):
        return f"src_seeds has shape {seed.shape}; it must have (1, 1)"
    return None if seed.dtype.itemsize == 4 else f"src_seeds is {seed.dtype}; it must have 32 bits"


@rule(
    "rand-state-engine",
    "the GpSimd engine has generator states from NeuronCore-v3 on, the vector engine from NeuronCore-v4 on",
    "nki.isa rand_set_state, rand_get_state",
)
def state_engine(instruction: Instruction, target: Target) -> str | None:
    if target.generation < 3:
        return f"{target.name} has no such instruction; NeuronCore-v3 and newer have"
    if instruction.engine is Engine.vector and target.generation < 4:
        return f"engine={instruction.engine!r}; on {target.name} it must be gpsimd"
    return None


@rule(
    "rand-state-shape", "a generator state has 6 uint32 a partition, 24 on the vector engine", "nki.isa rand_set_state"
)
def state_shape(instruction: Instruction, target: Target) -> str | None:
    arg, state = instruction.operands[0]
    wanted = WORDS * GENERATORS[instruction.engine]
    if state.ndim != 2 or state.shape[1] != wanted:
        return f"{arg} has shape {state.shape}; for the {instruction.engine.name} engine it must have (P, {wanted})"
    return None if state.dtype.name == "uint32" else f"{arg} is {state.dtype}; it must be uint32"


@rule(
    "rand-state-memory",
    "a generator state is set from SBUF, and stored in PSUM only from NeuronCore-v4 on",
    "nki.isa rand_set_state, rand_get_state, Memory types",
)
def state_memory(instruction: Instruction, target: Target) -> str | None:
    arg, state = instruction.operands[0]
    if state.buffer is MemoryRegion.psum and (arg == "src_seeds" or target.generation < 4):
        return f"{arg} is in PSUM; it must be in SBUF"
    return None


STATE = (*access.ENGINE_ACCESS, state_engine, state_shape, state_memory)


rand2_target = generation_rule("rand2-target", "rand2 exists from NeuronCore-v4 on", "nki.isa rand2, Constraints", 4)


rand2_dtype = dtype_rule(
    "rand2-dtype",
    "rand2 gives floats and integers, not float8_e4m3fn or bool",
    "nki.isa rand2, Data types",
    dst=_FLOATS + _INTEGERS,
)


@rule("rand2-bounds", "rand2's bounds are float32, and min is less than max", "nki.isa rand2, Constraints")
def rand2_bounds(instruction: Instruction, target: Target) -> str | None:
    low, high = instruction["min"], instruction["max"]
    for arg, bound in (("min", low), ("max", high)):
        if isinstance(bound, View) and bound.dtype.name != "float32":
            return f"{arg} is {bound.dtype}; it must be float32"
    if not isinstance(low, View) and not isinstance(high, View) and not low < high:
        return f"min={low}, max={high}; min must be less than max"
    return None


def seed_states(seed: int, lanes: int, words: int) -> Array:
    """(lanes, words) uint32: the states that a 32-bit seed gives, words mixed from the seed and their own place."""
    place = np.arange(1, lanes * words + 1, dtype=np.uint32).reshape(lanes, words)
    mixed = np.uint32(seed) + place * _STEP  # wraps
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    return mixed ^ (mixed >> np.uint32(16))


_initial = cache(partial(seed_states, 0))


def _states(what: str, engine: Engine) -> NkiTensor | None:
    """The states of an engine's generators, one lane per row; None for an engine without generators."""
    if engine not in GENERATORS:
        return None
    tracer, words = active_tracer(what), WORDS * GENERATORS[engine]
    name = f"random states of the {engine.name} engine"
    return tracer.initial_tensor(name, uint32, MemoryRegion.registers, _initial(tracer.target.partitions, words))


def _lanes(what: str, engine: Engine, view: object) -> NkiTensor | None:
    """The states of the lanes that ``view`` spans."""
    states = _states(what, engine)
    return active_tracer(what).lanes(states, view) if states is not None and isinstance(view, View) else None


def draw(states: Array, count: int) -> Array:
    """``count`` numbers (count, generators) of XORWOW generators, whose states (generators, 6) move on."""
    history = np.empty((count + 5, len(states)), np.uint32)
    history[:5] = states[:, :5].T
    last = history[4]
    for start in range(0, count, 5):
        # v depends on the previous v and the one five before: compute the latter's part, five at a time.
        end = min(start + 5, count)
        t = history[start:end] ^ (history[start:end] >> np.uint32(2))
        t ^= t << np.uint32(1)
        for k in range(start, end):
            now = np.left_shift(last, np.uint32(4), out=history[k + 5])
            now ^= last
            now ^= t[k - start]
            last = now
    weyl = states[:, 5] + _WEYL * np.arange(1, count + 1, dtype=np.uint32)[:, None]
    states[:, :5], states[:, 5] = history[count:].T, weyl[-1]
    numbers: Array = history[5:] + weyl
    return numbers


def _bits(instruction: Instruction, arrays: Arrays, size: int) -> Callable[[], Array]:
    """A function that draws (lanes, size) random uint32."""
    states = arrays(instruction["state"])
    lanes, count = states.shape[0], GENERATORS[instruction.engine]
    steps = -(-size // count)

    def draw_bits() -> Array:
        flat = states.reshape(lanes * count, WORDS).copy()
        numbers = draw(flat, steps).reshape(steps, lanes, count)
        states[...] = flat.reshape(states.shape)
        return numbers.transpose(1, 0, 2).reshape(lanes, steps * count)[:, :size]

    return draw_bits


def _uniform(bits: Array) -> Array:
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _rng(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst`` = the least significant bits of random numbers."""
    dst = instruction["dst"]
    target, draw_bits = arrays(dst), _bits(instruction, arrays, dst.free_size)
    return lambda: np.copyto(target, draw_bits().astype(target.dtype).reshape(target.shape))


@declare(
    engines=(Engine.vector, Engine.gpsimd),
    writes=("dst",),
    reads=(),
    registers="state",
    rules=(
        *access.ENGINE_ACCESS,
        rng_engine,
        rng_dtype,
    ),
    meaning=_rng,
    cycles=costs.drawing,
    spreads=None,
)
def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> Args:
    """Random bits, as many as ``dst``'s integers have."""
    engine = Engine.vector if engine is Engine.unknown else engine
    state = _lanes("nisa.rng", engine, dst)
    return locals()


def _rand2(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = min + u * (max - min)`` in float32."""
    dst = instruction["dst"]
    target, draw_bits = arrays(dst), _bits(instruction, arrays, dst.free_size)
    low, high = (column(instruction[arg], arrays, target.ndim) for arg in ("min", "max"))
    write = writer(dst, target)

    def fill() -> None:
        start = low()
        write(start + _uniform(draw_bits()).reshape(target.shape) * (high() - start))

    return fill


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("min", "max"),
    numbers=frozenset({"min", "max"}),
    columns=frozenset({"min", "max"}),
    registers="state",
    rules=(
        rand2_target,
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        rand2_dtype,
        rand2_bounds,
    ),
    meaning=_rand2,
    cycles=costs.drawing,
    spreads=None,
)
def rand2(dst: NkiTensor, min: float | NkiTensor, max: float | NkiTensor, name: str | None = None) -> Args:
    """Random numbers, uniform between ``min`` and ``max`` (numbers or ``[P, 1]``)."""
    state = _lanes("nisa.rand2", Engine.vector, dst)
    return locals()


def _dropout(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = 0`` where ``u < prob``, elsewhere ``data``, unscaled."""
    dst = instruction["dst"]
    target, draw_bits = arrays(dst), _bits(instruction, arrays, dst.free_size)
    take = in_shape(arrays(instruction["data"]), target.shape)
    prob = column(instruction["prob"], arrays, target.ndim)
    zero = target.dtype.type(0)

    def drop() -> None:
        target[...] = np.where(_uniform(draw_bits()).reshape(target.shape) < prob(), zero, take())

    return drop


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data", "prob"),
    numbers=frozenset({"prob"}),
    columns=frozenset({"prob"}),
    registers="state",
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        operands.same_free_size,
        operands.kept_dtype,
        dropout_prob_dtype,
    ),
    meaning=_dropout,
    cycles=costs.streaming,
    spreads=None,
)
def dropout(dst: NkiTensor, data: NkiTensor, prob: float | NkiTensor, name: str | None = None) -> Args:
    """``data``, each element replaced by 0 with the probability ``prob`` (a number or ``[P, 1]``), without scaling."""
    state = _lanes("nisa.dropout", Engine.vector, dst)
    return locals()


def _set_seed(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The states of all lanes, from one seed of 32 bits."""
    seed, states = arrays(instruction["src_seeds"]), arrays(instruction["state"])

    def set_seed() -> None:
        states[...] = seed_states(int(seed.view(np.uint32)[0, 0]), *states.shape)

    return set_seed


@declare(
    engines=(Engine.vector,),
    writes=(),
    reads=("src_seeds",),
    registers="state",
    rules=(
        *access.ENGINE_ACCESS,
        seed_shape,
    ),
    meaning=_set_seed,
    cycles=costs.states,
    spreads=None,
)
def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> Args:
    """Seed the vector engine's generators with one number of 32 bits."""
    state = _states("nisa.set_rng_seed", Engine.vector)
    return locals()


def _set_state(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    source, states = arrays(instruction["src_seeds"]), arrays(instruction["state"])
    return lambda: np.copyto(states, source)


@declare(
    engines=(Engine.gpsimd, Engine.vector),
    writes=(),
    reads=("src_seeds",),
    registers="state",
    rules=STATE,
    meaning=_set_state,
    cycles=costs.states,
    spreads=None,
)
def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Args:
    """Set the states of an engine's generators: 6 uint32 a partition, 24 for the vector engine."""
    engine = Engine.gpsimd if engine is Engine.unknown else engine
    state = _lanes("nisa.rand_set_state", engine, src_seeds)
    return locals()


def _get_state(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    target, states = arrays(instruction["dst"]), arrays(instruction["state"])
    return lambda: np.copyto(target, states)


@declare(
    engines=(Engine.gpsimd, Engine.vector),
    writes=("dst",),
    reads=(),
    registers="state",
    rules=STATE,
    meaning=_get_state,
    cycles=costs.states,
    spreads=None,
)
def rand_get_state(dst: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Args:
    """The states of an engine's generators: 6 uint32 a partition, 24 for the vector engine."""
    engine = Engine.gpsimd if engine is Engine.unknown else engine
    state = _lanes("nisa.rand_get_state", engine, dst)
    return locals()
