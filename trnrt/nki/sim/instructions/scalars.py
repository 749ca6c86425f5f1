"""Scalars of NKI 0.7: integers of the device that a kernel computes with, loads and stores.

A scalar is held by a scalar register, and each operation on one is an instruction of its own. What such an instruction
costs is unpublished: it is charged as a move between registers. 64-bit scalars are left out (``nl.int64``).

Source: SDK 2.33's pages nki.isa.NkiScalar, nki.isa.scalar_load, nki.isa.scalar_store, and "NKI Scalar Values".
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.level import Level
from trnrt.nki.machine import costs
from trnrt.nki.machine.dtypes import DType, int32
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, Register, View
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import declare
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer
from trnrt.nki.sim.values import OTHER_OPERATORS, PACKAGE, DeviceValue, describe_kind, refuse

__all__ = ["NkiScalar", "scalar_load", "scalar_store"]

_ENGINES = (Engine.sync, Engine.scalar, Engine.vector, Engine.gpsimd, Engine.tensor)
_declare = partial(declare, engines=_ENGINES, cycles=costs.sequencer_only, spreads=None)

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}


@rule(
    "scalar-tile",
    "scalars are loaded from and stored to a 1x1 tensor of int32 in SBUF or HBM",
    "nki.isa scalar_load, scalar_store (SDK 2.33)",
)
def scalar_tile(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        assert isinstance(view, View)
        if view.buffer is MemoryRegion.psum or view.shape != (1, 1) or view.dtype != int32:
            return f"{arg} is {view.dtype} {view.shape} in {view.buffer.value}"
    return None


def _wrap(value: int) -> int:
    """An integer as int32 holds it: arithmetic wraps around."""
    return (value + 2**31) % 2**32 - 2**31


def _load(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """A register gets the one element of a tensor."""
    dst, source = arrays.register(instruction["dst"]), arrays(instruction["src"])

    def load() -> None:
        dst[0] = int(source.reshape(-1)[0])

    return load


def _store(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """The one element of a tensor gets a register's value."""
    source, target = arrays.register(instruction["src"]), arrays(instruction["dst"])

    def store() -> None:
        target[...] = np.int32(source[0])

    return store


def _compute(instruction: Instruction, arrays: Any) -> Callable[[], None]:
    """A register gets the sum, difference or product of two numbers or registers, in 32 bits."""
    dst, compute = arrays.register(instruction["dst"]), _OPERATIONS[instruction["op"]]
    left, right = (
        arrays.register(value) if isinstance(value, Register) else [value]
        for value in (instruction["src"], instruction["src2"])
    )

    def run() -> None:
        dst[0] = _wrap(compute(left[0], right[0]))

    return run


SCALAR_LOAD = _declare(writes=(), reads=("src",), rules=(scalar_tile,), meaning=_load).record("scalar_load")
SCALAR_STORE = _declare(writes=("dst",), reads=(), rules=(scalar_tile,), meaning=_store).record("scalar_store")
SCALAR_ARITHMETIC = _declare(writes=(), reads=(), rules=(), meaning=_compute).record("scalar_arithmetic")


class NkiScalar(DeviceValue, Register):
    """An integer of the device, of 32 bits: from ``nisa.scalar_load``, arithmetic, or a loop's index.

    ``+``, ``-`` and ``*`` with an integer or another scalar give a new scalar, and wrap around. Comparisons give a
    scalar that nothing takes.
    """

    __slots__ = ("is_comparison",)
    kind = "an NkiScalar"

    def __init__(self, state: int, dtype: DType | None = None, is_comparison: bool = False) -> None:
        """``state`` is the number of a register: kernels make no scalars this way."""
        if dtype not in (None, int32):
            raise KernelError(f"NkiScalar: dtype is {dtype}; the simulator has scalars of nl.int32 only")
        active_tracer("nisa.NkiScalar")
        Register.__init__(self, state, frozen=True)
        self.is_comparison = is_comparison

    @property
    def dtype(self) -> DType:
        """Always ``nl.int32``: the simulator has no scalars of 64 bits."""
        return int32

    def describe(self) -> str:
        return f"scalar {self.index}"

    def __add__(self, other: object) -> NkiScalar:
        return _emit_arithmetic("add", self, other)

    def __radd__(self, other: object) -> NkiScalar:
        return _emit_arithmetic("add", other, self)

    def __sub__(self, other: object) -> NkiScalar:
        return _emit_arithmetic("subtract", self, other)

    def __rsub__(self, other: object) -> NkiScalar:
        return _emit_arithmetic("subtract", other, self)

    def __mul__(self, other: object) -> NkiScalar:
        return _emit_arithmetic("multiply", self, other)

    def __rmul__(self, other: object) -> NkiScalar:
        return _emit_arithmetic("multiply", other, self)

    def __neg__(self) -> NkiScalar:
        return _emit_arithmetic("subtract", 0, self)

    def __pos__(self) -> NkiScalar:
        return _emit_arithmetic("add", self, 0)

    __iadd__ = __add__
    __isub__ = __sub__
    __imul__ = __mul__


def check_level(what: str) -> None:
    """KernelError at level 0.6, which has no scalars."""
    if active_tracer(what).level is Level.nki_0_6:
        raise KernelError(f"{what} came with NKI 0.7, and this kernel is traced at level 0.6", hint="use a register")


def check_usable(what: str, value: object) -> None:
    """KernelError if ``value`` is the result of comparing scalars: NKI 0.7 has no use for one."""
    if isinstance(value, NkiScalar) and value.is_comparison:
        raise KernelError(
            f"{what} is the result of a comparison, which NKI 0.7 traces and can't use",
            hint="choose element by element with nl.where, or loop with nl.while_loop over a register",
        )


def new_scalar(*, is_comparison: bool = False) -> NkiScalar:
    """A scalar in a free register."""
    return NkiScalar(active_tracer("nisa.NkiScalar").new_register(), None, is_comparison)


def scalar_load(src: NkiTensor) -> NkiScalar:
    """The one element of a 1x1 tensor of int32 in SBUF or HBM, as a scalar."""
    check_level("nisa.scalar_load")
    scalar = new_scalar()
    active_tracer("nisa.scalar_load").emit(SCALAR_LOAD, {"dst": scalar, "src": src}, Engine.unknown, None)
    return scalar


def scalar_store(dst: NkiTensor, value: object) -> None:
    """The one element of a 1x1 tensor of int32 in SBUF or HBM = ``value``."""
    check_level("nisa.scalar_store")
    if not isinstance(value, NkiScalar):
        instead = "nisa.memset" if isinstance(value, int) else "nisa.scalar_load makes one"
        raise KernelError(f"scalar_store: value is {describe_kind(value)}; it must be an NkiScalar ({instead})")
    check_usable("scalar_store: value", value)
    active_tracer("nisa.scalar_store").emit(SCALAR_STORE, {"dst": dst, "src": value}, Engine.unknown, None)


def _check_operand(value: object) -> None:
    if not isinstance(value, (int, NkiScalar)):
        raise KernelError(
            f"arithmetic of an NkiScalar with {describe_kind(value)}; it takes an integer or an NkiScalar"
        )
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        raise KernelError(f"arithmetic of an NkiScalar with {value}, which does not fit the 32 bits of nl.int32")
    check_usable("an operand of NkiScalar's arithmetic", value)


def _emit_arithmetic(op: str, left: object, right: object) -> NkiScalar:
    for value in (left, right):
        _check_operand(value)
    result = new_scalar()
    args = {"dst": result, "src": left, "src2": right, "op": op}
    active_tracer("arithmetic of an NkiScalar").emit(SCALAR_ARITHMETIC, args, Engine.unknown, None)
    return result


def _make_comparison(name: str) -> Callable[[NkiScalar, object], Any]:
    """A comparison in a kernel: a scalar that nothing takes, and no instruction. The simulator's own is by identity."""
    inherited = getattr(DeviceValue, name)

    def compare(self: NkiScalar, other: object) -> Any:
        if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):
            return NotImplemented
        if not isinstance(other, (int, NkiScalar)):
            return inherited(self, other)
        _check_operand(other)
        return new_scalar(is_comparison=True)

    return compare


def _make_refusal(symbol: str) -> Callable[[NkiScalar, object], NoReturn]:
    def method(self: NkiScalar, other: object) -> NoReturn:
        refuse(self, f"`{symbol}`", "The simulator's scalars have +, - and *, those that SDK 2.33 documents for them")

    return method


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(NkiScalar, _name, _make_comparison(_name))
for _name, _symbol in OTHER_OPERATORS.items():
    for _form in (f"__{_name}__", f"__r{_name}__", f"__i{_name}__"):
        setattr(NkiScalar, _form, _make_refusal(_symbol))
