"""Registers and device loops: what the engines' sequencers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.program import Engine, Instruction, Operation, Register
from trnrt.nki.machine.rules import control as rules

_SEQUENCERS = (Engine.sync, Engine.scalar, Engine.vector, Engine.gpsimd, Engine.tensor)


def _marker(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    raise KernelError(f"{instruction.operation.name} has no meaning of its own")  # the executor makes the loop


LOOP_BEGIN = Operation(name="loop_begin", engines=_SEQUENCERS, writes=(), reads=(), rules=(), bind=_marker)
LOOP_END = Operation(name="loop_end", engines=_SEQUENCERS, writes=(), reads=(), rules=(), bind=_marker)


def _move(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """A register gets a number, or what another register holds."""
    dst, src = arrays.register(instruction["dst"]), instruction["src"]
    source = arrays.register(src) if isinstance(src, Register) else [int(src)]

    def move() -> None:
        dst[0] = source[0]

    return move


REGISTER_MOVE = Operation(
    name="register_move", engines=_SEQUENCERS, writes=(), reads=(), rules=(rules.register_writable,), bind=_move
)


def _load(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """A register gets the one element of a tile; a float keeps its bits, as a register has no type."""
    dst, tile = arrays.register(instruction["dst"]), arrays(instruction["src"])

    def load() -> None:
        value = tile.reshape(-1)[:1]
        dst[0] = int(value[0]) if value.dtype.kind in "iub" else int(np.float32(value[0]).view(np.int32))

    return load


REGISTER_LOAD = Operation(
    name="register_load",
    engines=_SEQUENCERS,
    writes=(),
    reads=("src",),
    rules=(rules.register_writable, rules.register_tile),
    bind=_load,
)


def _store(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """The one element of a tile gets what a register holds, cut to the tile's width."""
    source, tile = arrays.register(instruction["src"]), arrays(instruction["dst"])

    def store() -> None:
        if tile.dtype.kind == "f":
            tile[...] = np.int64(source[0]).astype(np.int32).view(np.float32)
        else:
            tile[...] = np.int64(source[0]).astype(tile.dtype)

    return store


REGISTER_STORE = Operation(
    name="register_store",
    engines=_SEQUENCERS,
    writes=("dst",),
    reads=(),
    rules=(rules.register_tile,),
    bind=_store,
)
