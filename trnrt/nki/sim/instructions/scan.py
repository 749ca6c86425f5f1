"""The vector engine's scan of two tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs, spreading
from trnrt.nki.machine.binding import Arrays, as_float32, column, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import Operator, binary_function
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.machine.rules import operands, operators
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["tensor_tensor_scan"]


@rule(
    "scan-operators",
    "a scan's operators are arithmetic and take two inputs",
    "nki.isa tensor_tensor_scan, op0 and op1",
)
def scan_operators(instruction: Instruction, target: Target) -> str | None:
    for arg, op in operators.operators_of(instruction):
        if not (isinstance(op, Operator) and op.binary and not op.bitvec):
            return f"{arg}={op!r} is not an arithmetic operator of two inputs"
    return None


def _scan_step(
    first: Callable[[Array, Array], Array], second: Callable[[Array, Array], Array]
) -> Callable[[Array, Array, Array, Array], None]:
    """``out = (left <op0> state) <op1> right`` on one column of all partitions."""
    if isinstance(first, np.ufunc) and isinstance(second, np.ufunc):
        one, other = first, second

        def in_place(left: Array, right: Array, state: Array, out: Array) -> None:
            other(one(left, state, out=out), right, out=out)

        return in_place

    def step(left: Array, right: Array, state: Array, out: Array) -> None:
        out[...] = second(first(left, state), right)

    return step


def _tensor_tensor_scan(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``state = (data0 <op0> state) <op1> data1`` element by element from ``initial`` on; ``dst`` gets each state."""
    dst, shape = instruction["dst"], (instruction["dst"].partitions, instruction["dst"].free_size)
    left = in_shape(arrays(instruction["data0"]), shape)
    right = in_shape(arrays(instruction["data1"]), shape)
    first = binary_function(instruction["op0"], instruction["reverse0"])
    second = binary_function(instruction["op1"], instruction["reverse1"])
    initial = column(instruction["initial"], arrays, 1)
    step, write = _scan_step(first, second), writer(dst, arrays(dst))

    def scan() -> None:
        state = initial()
        states = np.empty(shape[::-1], np.float32)
        lefts = np.ascontiguousarray(as_float32(left()).T)
        rights = np.ascontiguousarray(as_float32(right()).T)
        for one, other, out in zip(lefts, rights, states, strict=True):
            step(one, other, state, out)
            state = out
        write(states.T)

    return scan


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data0", "data1", "initial"),
    numbers=frozenset({"initial"}),
    columns=frozenset({"initial"}),
    rules=(
        *operands.ELEMENTWISE,
        operands.one_psum_input,
        scan_operators,
        operators.operator_generation,
    ),
    meaning=_tensor_tensor_scan,
    cycles=costs.scanning,
    spreads=spreading.running,
)
def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: float | NkiTensor,
    op0: Operator,
    op1: Operator,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Args:
    """``state = (data0 <op0> state) <op1> data1`` along each partition from ``initial`` on; ``dst`` gets each state."""
    return locals()
