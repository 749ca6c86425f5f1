"""The engines' random number generators, and what draws from them.

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

import numpy as np

from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, column, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import operands, random

_WEYL = np.uint32(362437)
_STEP = np.uint32(0x9E3779B9)


def seeded(seed: int, lanes: int, words: int) -> Array:
    """(lanes, words) uint32: the states that a 32-bit seed gives, words mixed from the seed and their own place."""
    place = np.arange(1, lanes * words + 1, dtype=np.uint32).reshape(lanes, words)
    mixed = np.uint32(seed) + place * _STEP  # wraps
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> np.uint32(shift))) * np.uint32(factor)
    return mixed ^ (mixed >> np.uint32(16))


def draw(states: Array, count: int) -> Array:
    """``count`` numbers (count, generators) of XORWOW generators, whose states (generators, 6) move on."""
    history = np.empty((count + 5, len(states)), np.uint32)
    history[:5] = states[:, :5].T
    last = history[4]
    for start in range(0, count, 5):
        # v depends on the v before it and the one five before: what comes of the latter, five at a time.
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
    lanes, count = states.shape[0], random.GENERATORS[instruction.engine]
    steps = -(-size // count)

    def drawn() -> Array:
        flat = states.reshape(lanes * count, random.WORDS).copy()
        numbers = draw(flat, steps).reshape(steps, lanes, count)
        states[...] = flat.reshape(states.shape)
        return numbers.transpose(1, 0, 2).reshape(lanes, steps * count)[:, :size]

    return drawn


def _uniform(bits: Array) -> Array:
    return (bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _rng(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst`` = the least significant bits of random numbers."""
    dst = instruction["dst"]
    target, drawn = arrays(dst), _bits(instruction, arrays, dst.free_size)

    def fill() -> None:
        target[...] = drawn().astype(target.dtype).reshape(target.shape)

    return fill


RNG = Operation(
    name="rng",
    engines=(Engine.vector, Engine.gpsimd),
    writes=("dst",),
    reads=(),
    rules=random.RNG,
    bind=_rng,
    cost=costs.drawing,
    registers="state",
)


def _rand2(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = min + u * (max - min)`` in float32."""
    dst = instruction["dst"]
    target, drawn = arrays(dst), _bits(instruction, arrays, dst.free_size)
    low, high = (column(instruction[arg], arrays, target.ndim) for arg in ("min", "max"))
    write = writer(dst, target)

    def fill() -> None:
        start = low()
        write(start + _uniform(drawn()).reshape(target.shape) * (high() - start))

    return fill


RAND2 = Operation(
    name="rand2",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("min", "max"),
    rules=(*random.RAND2, operands.other_start_partition),
    bind=_rand2,
    cost=costs.drawing,
    numbers=frozenset({"min", "max"}),
    columns=frozenset({"min", "max"}),
    registers="state",
)


def _dropout(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = 0`` where ``u < prob``, elsewhere ``data``, which is not scaled."""
    dst = instruction["dst"]
    target, drawn = arrays(dst), _bits(instruction, arrays, dst.free_size)
    take = in_shape(arrays(instruction["data"]), target.shape)
    prob = column(instruction["prob"], arrays, target.ndim)
    zero = target.dtype.type(0)

    def drop() -> None:
        target[...] = np.where(_uniform(drawn()).reshape(target.shape) < prob(), zero, take())

    return drop


DROPOUT = Operation(
    name="dropout",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data", "prob"),
    rules=(*random.DROPOUT, operands.other_start_partition),
    bind=_dropout,
    cost=costs.streaming,
    numbers=frozenset({"prob"}),
    columns=frozenset({"prob"}),
    registers="state",
)


def _set_seed(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The states of all lanes, from one seed of 32 bits."""
    seed, states = arrays(instruction["src_seeds"]), arrays(instruction["state"])

    def set_seed() -> None:
        states[...] = seeded(int(seed.view(np.uint32)[0, 0]), *states.shape)

    return set_seed


SET_RNG_SEED = Operation(
    name="set_rng_seed",
    engines=(Engine.vector,),
    writes=(),
    reads=("src_seeds",),
    rules=random.SEED,
    bind=_set_seed,
    cost=costs.states,
    registers="state",
)


def _set_state(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    source, states = arrays(instruction["src_seeds"]), arrays(instruction["state"])

    def set_state() -> None:
        states[...] = source

    return set_state


RAND_SET_STATE = Operation(
    name="rand_set_state",
    engines=(Engine.gpsimd, Engine.vector),
    writes=(),
    reads=("src_seeds",),
    rules=random.STATE,
    bind=_set_state,
    cost=costs.states,
    registers="state",
)


def _get_state(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    target, states = arrays(instruction["dst"]), arrays(instruction["state"])

    def get_state() -> None:
        target[...] = states

    return get_state


RAND_GET_STATE = Operation(
    name="rand_get_state",
    engines=(Engine.gpsimd, Engine.vector),
    writes=("dst",),
    reads=(),
    rules=random.STATE,
    bind=_get_state,
    cost=costs.states,
    registers="state",
)
