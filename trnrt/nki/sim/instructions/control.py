"""Registers and device loops, under NKI's names.

A device loop's body is traced once, between two markers, and stays a loop in the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.level import Level
from trnrt.nki.machine import costs
from trnrt.nki.machine.program import Engine, Instruction, Loop, MemoryRegion, Operation, Register, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import declare
from trnrt.nki.sim.instructions.scalars import NkiScalar, check_usable, new_scalar
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer
from trnrt.nki.sim.values import CONDITION, DeviceValue, describe_kind, is_while_test, refuse

__all__ = [
    "VirtualRegister",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
]


@rule("register-writable", "a loop's counter is written by the loop alone", "language guide, Dynamic Control Flow")
def register_writable(instruction: Instruction, target: Target) -> str | None:
    return "dst is the counter of a device loop, which can't be written" if instruction["dst"].frozen else None


@rule(
    "register-tile", "registers are loaded from and stored to a 1x1 SBUF tile", "nki.isa register_load, register_store"
)
def register_tile(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        assert isinstance(view, View)
        if view.buffer is not MemoryRegion.sbuf or view.size != 1:
            return f"{arg} is {view.shape} in {view.buffer.value}; it must be one element in SBUF"
    return None


_NO_WHILE = "NKI 0.7 has no `while register:`: call nl.while_loop"

_declare = partial(
    declare,
    engines=(Engine.sync, Engine.scalar, Engine.vector, Engine.gpsimd, Engine.tensor),
    cycles=costs.sequencer_only,
    spreads=None,
)


def _marker(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    raise KernelError(f"{instruction.operation.name} has no meaning of its own")  # the executor makes the loop


LOOP_BEGIN = _declare(writes=(), reads=(), rules=(), meaning=_marker).record("loop_begin")
LOOP_END = _declare(writes=(), reads=(), rules=(), meaning=_marker).record("loop_end")


def _move(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """A register gets a number, or what another register holds."""
    dst, src = arrays.register(instruction["dst"]), instruction["src"]
    source = arrays.register(src) if isinstance(src, Register) else [int(src)]

    def move() -> None:
        dst[0] = source[0]

    return move


REGISTER_MOVE = _declare(writes=(), reads=(), rules=(register_writable,), meaning=_move).record("register_move")


def _load(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """A register gets the one element of a tile; a float keeps its bits, as a register has no type."""
    dst, tile = arrays.register(instruction["dst"]), arrays(instruction["src"])

    def load() -> None:
        value = tile.reshape(-1)[:1]
        dst[0] = int(value[0]) if value.dtype.kind in "iub" else int(np.float32(value[0]).view(np.int32))

    return load


REGISTER_LOAD = _declare(writes=(), reads=("src",), rules=(register_writable, register_tile), meaning=_load).record(
    "register_load"
)


def _store(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """Store a register's value in the one element of a tile, truncated to the tile's width."""
    source, tile = arrays.register(instruction["src"]), arrays(instruction["dst"])

    def store() -> None:
        if tile.dtype.kind == "f":
            tile[...] = np.int64(source[0]).astype(np.int32).view(np.float32)
        else:
            tile[...] = np.int64(source[0]).astype(tile.dtype)

    return store


REGISTER_STORE = _declare(writes=("dst",), reads=(), rules=(register_tile,), meaning=_store).record("register_store")


class VirtualRegister(DeviceValue, Register):
    """A scalar of the device. Its value is not known while a kernel is traced, so Python can't compute with it.

    At level 0.6, ``while register:`` makes a device loop that runs as long as the register is not zero.
    """

    __slots__ = ()
    kind = "a register"

    def __bool__(self) -> bool:
        """The first question opens a loop on the register, the next one closes it: ``while`` asks before each round."""
        tracer = active_tracer("a register as a condition")
        if tracer.level is not Level.nki_0_6:
            refuse(self, "a condition (while, if, and, or, not, assert, bool())", f"{_NO_WHILE}. {CONDITION}")
        if is_while_test(sys._getframe(1)) is False:
            refuse(self, "a condition other than `while register:` (if, and, or, not, assert, bool())", CONDITION)
        if tracer.open_loops and tracer.open_loops[-1].condition is self:
            _end(tracer.open_loops[-1])
            return False
        _begin(Loop(None, condition=self))
        return True

    def describe(self) -> str:
        return f"register {self.index}"


Bound = int | VirtualRegister | NkiScalar


def _emit(operation: Operation, **args: Any) -> None:
    active_tracer(f"nisa.{operation.name}").emit(operation, args, Engine.unknown, None)


def _check_register(what: str, value: object) -> None:
    if not isinstance(value, VirtualRegister):
        hint = "nisa.scalar_store stores an NkiScalar" if isinstance(value, NkiScalar) else None
        message = f"{what} is {describe_kind(value)}; it must be a register (nisa.register_alloc)"
        raise KernelError(message, hint=hint)


def register_alloc(x: int | NkiTensor | VirtualRegister | None = None) -> VirtualRegister:
    """A new register, with the value ``x`` if given."""
    tracer = active_tracer("nisa.register_alloc")
    register = VirtualRegister(tracer.new_register())
    if isinstance(x, NkiTensor):
        register_load(register, x)
    elif x is not None:
        register_move(register, x)
    return register


def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """``dst = src``, a 32-bit integer or another register."""
    _check_register("register_move: dst", dst)
    if not isinstance(src, (int, VirtualRegister)):
        raise KernelError(f"register_move: src is {describe_kind(src)}; it must be an integer or a register")
    if isinstance(src, int) and not -(2**31) <= src < 2**32:
        raise KernelError(f"register_move: {src} does not fit the 32 bits of a register")
    _emit(REGISTER_MOVE, dst=dst, src=src)


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """``dst`` = the one element of an SBUF tile."""
    _check_register("register_load: dst", dst)
    _emit(REGISTER_LOAD, dst=dst, src=src)


def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """The one element of an SBUF tile = ``src``."""
    _check_register("register_store: src", src)
    _emit(REGISTER_STORE, dst=dst, src=src)


def _begin(loop: Loop) -> None:
    active_tracer("a device loop").open_loops.append(loop)
    _emit(LOOP_BEGIN, loop=loop)


def _end(loop: Loop) -> None:
    tracer = active_tracer("a device loop")
    if not tracer.open_loops or tracer.open_loops[-1] is not loop:
        raise KernelError("device loops are not nested properly: an inner one is still open")
    tracer.open_loops.pop()
    _emit(LOOP_END, loop=loop)


def _make_loop(start: Bound, stop: Bound, step: int) -> tuple[Loop, VirtualRegister | NkiScalar]:
    """The loop, and its index: a register at level 0.6 and where a bound is one, otherwise a scalar."""
    tracer = active_tracer("a device loop")
    if not isinstance(step, int) or step < 1:
        raise KernelError(f"the step of a device loop is {step!r}; it must be a positive integer known when compiling")
    for what, bound in (("start", start), ("stop", stop)):
        check_usable(f"the {what} of a device loop", bound)
        if not isinstance(bound, (int, Register)):
            raise KernelError(
                f"the {what} of a device loop is {describe_kind(bound)}; it must be an integer or register"
            )
    by_register = (
        tracer.level is Level.nki_0_6 or isinstance(start, VirtualRegister) or isinstance(stop, VirtualRegister)
    )
    counter = VirtualRegister(tracer.new_register(), frozen=True) if by_register else new_scalar()
    return Loop(counter, start, stop, step), counter


def dynamic_range(
    start: int | VirtualRegister, stop: int | VirtualRegister | None = None, step: int = 1
) -> Iterator[VirtualRegister | NkiScalar]:
    """A loop of level 0.6 on the device: its body is traced once, with a register in the place of the counter."""
    if active_tracer("nl.dynamic_range").level is not Level.nki_0_6:
        raise KernelError(
            "nl.dynamic_range is not in NKI 0.7", hint="write the loop's body as a function and call nl.fori_loop"
        )
    loop, counter = _make_loop(0 if stop is None else start, start if stop is None else stop, step)
    return _range_once(loop, counter)


def _range_once(loop: Loop, counter: VirtualRegister | NkiScalar) -> Iterator[VirtualRegister | NkiScalar]:
    _begin(loop)
    yield counter
    _end(loop)


def fori_loop(lower: Bound, upper: Bound, body_fun: Callable[[Any], object], step: int = 1) -> None:
    """``body_fun(i)`` for i from ``lower`` to ``upper`` (exclusive), as a loop on the device.

    ``i`` is a register at level 0.6. At 0.7 it is one if a bound is, and otherwise an NkiScalar.
    """
    loop, counter = _make_loop(lower, upper, step)
    _begin(loop)
    if body_fun(counter) is not None:
        raise KernelError("nl.fori_loop: the body returned a value; it must return nothing")
    _end(loop)


def while_loop(init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]) -> None:
    """``r = init; while r != 0: r = body_fun(r)``, as a loop on the device."""
    _check_register("nl.while_loop: init", init)
    condition = register_alloc(init)
    loop = Loop(None, condition=condition)
    _begin(loop)
    result = body_fun(register_alloc(condition))
    _check_register("nl.while_loop: what the body returned", result)
    register_move(condition, result)
    _end(loop)
