"""Random numbers of ``nki.isa``. Which numbers they are is the policy of ``machine/instructions/random.py``.

The parameters of ``rand2`` are NKI's names, though they hide Python's.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from trnrt.nki.machine.dtypes import uint32
from trnrt.nki.machine.instructions import random
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, Operation, View
from trnrt.nki.machine.rules.random import GENERATORS, WORDS
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import Tracer, active_tracer


def _states(tracer: Tracer, engine: Engine) -> NkiTensor | None:
    """The states of an engine's generators, a lane a row; None for an engine that has none."""
    if engine not in GENERATORS:
        return None
    words = WORDS * GENERATORS[engine]
    name = f"random states of the {engine.name} engine"
    return tracer.initialised(name, uint32, MemoryRegion.registers, _initial(tracer.target.partitions, words))


_initial = cache(partial(random.seeded, 0))


def _emit(
    operation: Operation, args: dict[str, Any], engine: Engine, lanes: str | None, name: str | None
) -> Instruction:
    """Append an instruction that works on the generators of the lanes that ``args[lanes]`` spans (None: on all)."""
    tracer = active_tracer(f"nisa.{operation.name}")
    engine = operation.engines[0] if engine is Engine.unknown else engine
    states = _states(tracer, engine)
    if lanes is not None:
        view = args[lanes]
        states = tracer.lanes(states, view) if states is not None and isinstance(view, View) else None
    return tracer.emit(operation, {**args, "state": states}, engine, name)


def rng(dst: NkiTensor, engine: Engine = Engine.vector, name: str | None = None) -> Instruction:
    """Random bits, as many as ``dst``'s integers have."""
    return _emit(random.RNG, {"dst": dst}, engine, "dst", name)


def dropout(dst: NkiTensor, data: NkiTensor, prob: float | NkiTensor, name: str | None = None) -> Instruction:
    """``data``, each element replaced by 0 with the probability ``prob`` (a number or ``[P, 1]``), nothing scaled."""
    args = {"dst": dst, "data": data, "prob": prob}
    return _emit(random.DROPOUT, args, Engine.unknown, "dst", name)


def set_rng_seed(src_seeds: NkiTensor, name: str | None = None) -> Instruction:
    """Seed the vector engine's generators with one number of 32 bits."""
    return _emit(random.SET_RNG_SEED, {"src_seeds": src_seeds}, Engine.unknown, None, name)


def rand_set_state(src_seeds: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Instruction:
    """Set the states of an engine's generators: 6 uint32 a partition, 24 for the vector engine."""
    return _emit(random.RAND_SET_STATE, {"src_seeds": src_seeds}, engine, "src_seeds", name)


def rand_get_state(dst: NkiTensor, engine: Engine = Engine.gpsimd, name: str | None = None) -> Instruction:
    """The states of an engine's generators: 6 uint32 a partition, 24 for the vector engine."""
    return _emit(random.RAND_GET_STATE, {"dst": dst}, engine, "dst", name)


def rand2(dst: NkiTensor, min: float | NkiTensor, max: float | NkiTensor, name: str | None = None) -> Instruction:
    """Random numbers, uniform between ``min`` and ``max`` (numbers or ``[P, 1]``)."""
    return _emit(random.RAND2, {"dst": dst, "min": min, "max": max}, Engine.unknown, "dst", name)
