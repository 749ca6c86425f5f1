"""Tensors and registers refuse to give Python their values, which exist at run time only.

A kernel is traced before it runs. Each operation that needs a value raises, and says what to write instead.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NoReturn

import numpy as np

from trnrt.nki.errors import KernelError

PACKAGE = str(Path(__file__).parents[1])  # the simulator's own code
_GENERATED = "<string>"  # the __eq__ of a dataclass

# Gives the text of a value that a simulated kernel asks for: (value, description, the frame that asks).
MARKER: ContextVar[Callable[[DeviceValue, str, FrameType], str] | None] = ContextVar("marker", default=None)
# Gives the elements of a tensor to a debugger: (tensor, the frame that asks); None to any other.
READER: ContextVar[Callable[[DeviceValue, FrameType], Any] | None] = ContextVar("reader", default=None)

CONDITION = (
    "Compute both results and choose element by element (nl.where, nisa.tensor_copy_predicated, nisa.affine_select), "
    "or loop on a register (nisa.register_load, then nl.while_loop)"
)
_NUMBER = "Pass it to an instruction as it is; a run-time index goes to select() or ap(scalar_offset=)"
_COUNT = "a count that the device knows to nl.fori_loop or nl.while_loop"
_ELEMENTS = "Loop over range(tensor.shape[0]) and take tensor[i : i + 1]"
_NUMPY = "Use the functions of nl and nisa: numpy works on arrays of the host"

# Special methods that need a value: the kernel's expression, and what to write instead.
_CONVERSIONS = {
    "__bool__": ("a condition (if, and, or, not, assert, bool())", f"{CONDITION}. `is not None` asks if it was given"),
    "__int__": ("int()", _NUMBER),
    "__float__": ("float()", _NUMBER),
    "__complex__": ("complex()", _NUMBER),
    "__round__": ("round()", "Use nl.floor, nl.ceil or nl.trunc"),
    "__trunc__": ("math.trunc()", "Use nl.trunc"),
    "__floor__": ("math.floor()", "Use nl.floor"),
    "__ceil__": ("math.ceil()", "Use nl.ceil"),
    "__index__": ("a Python index or count", f"{_NUMBER}, {_COUNT}"),
    "__len__": ("len()", "Use tensor.shape[0]"),
    "__iter__": ("iteration", _ELEMENTS),
    "__reversed__": ("reversed()", _ELEMENTS),
    "__contains__": ("`in`", CONDITION),
    "__array_function__": ("a numpy function", _NUMPY),
    "__neg__": ("`-`", "Write nl.negative(a)"),
    "__pos__": ("`+`", "Leave it out"),
    "__abs__": ("abs()", "Write nl.abs(a)"),
    "__invert__": ("`~`", "Write nl.invert(a)"),
}
_COMPARISONS = {
    "lt": ("<", "less"),
    "le": ("<=", "less_equal"),
    "gt": (">", "greater"),
    "ge": (">=", "greater_equal"),
    "eq": ("==", "equal"),
    "ne": ("!=", "not_equal"),
}
_OPERATORS = {
    "add": ("+", "nl.add"),
    "sub": ("-", "nl.subtract"),
    "mul": ("*", "nl.multiply"),
    "truediv": ("/", "nl.multiply with nl.reciprocal"),
    "floordiv": ("//", "nl.floor of nl.multiply with nl.reciprocal"),
    "mod": ("%", "nl.mod"),
    "divmod": ("divmod()", "nl.floor and nl.mod"),
    "pow": ("**", "nl.power"),
    "matmul": ("@", "nisa.nc_matmul"),
    "and": ("&", "nl.bitwise_and"),
    "or": ("|", "nl.bitwise_or"),
    "xor": ("^", "nl.bitwise_xor"),
    "lshift": ("<<", "nl.left_shift"),
    "rshift": (">>", "nl.right_shift"),
}

# The operators that NKI's scalars lack.
OTHER_OPERATORS = {name: symbol for name, (symbol, _) in _OPERATORS.items() if name not in ("add", "sub", "mul")}


class DeviceValue:
    """A tensor or a register: each operation that needs its value raises, with a way out."""

    __slots__ = ()
    kind: ClassVar[str] = "a tensor"

    def describe(self) -> str:
        """A description of the value, without its contents."""
        raise NotImplementedError

    def __str__(self) -> str:
        marker = MARKER.get()
        return self.describe() if marker is None else marker(self, self.describe(), sys._getframe(1))

    __repr__ = __str__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        reader = READER.get()
        array = None if reader is None else reader(self, sys._getframe(1))
        if array is None:
            refuse(self, "numpy.asarray", _NUMPY)
        return array if dtype is None else array.astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> NoReturn:
        refuse(self, f"numpy.{ufunc.__name__}", _NUMPY)


class ValueUnknownError(KernelError, TypeError):
    """Python asked a tensor or register for its value. A TypeError as well, as Python's own operators raise."""


def refuse(value: DeviceValue, what: str, instead: str) -> NoReturn:
    """ValueUnknownError: ``what`` would need the value of a tensor or register, which Python doesn't know."""
    raise ValueUnknownError(
        f"{value.kind}'s value is known on the device only, when it runs; {what} asks for that of {value!s}. {instead}"
    )


def describe_kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def is_while_test(frame: FrameType) -> bool | None:
    """True if the expression that a frame is evaluating is the whole test of a ``while``; None without its source."""
    tests = _while_tests(tuple(linecache.getlines(frame.f_code.co_filename)))
    if tests is None:
        return None
    line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if column is None or end_column is None:  # python -X no_debug_ranges
        return any(line == first for first, _, _, _ in tests)
    return (line, end_line, column, end_column) in tests


@lru_cache(maxsize=16)
def _while_tests(lines: tuple[str, ...]) -> frozenset[tuple[int, int, int, int]] | None:
    """The places of the file's ``while`` tests that are a single value; None without a file."""
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
    single = [node for node in loops if not isinstance(node.test, (ast.BoolOp, ast.UnaryOp, ast.IfExp))]
    # Python 3.11 gives the place of the whole statement, later versions that of the test.
    nodes = [node for loop in single for node in (loop, loop.test)]
    places = frozenset((n.lineno, n.end_lineno or 0, n.col_offset, n.end_col_offset or 0) for n in nodes)
    return places if lines else None


def _make_refusal(what: str, instead: str) -> Callable[..., NoReturn]:
    def method(self: DeviceValue, *others: object, **options: object) -> NoReturn:
        refuse(self, what, instead)

    return method


def _make_comparison(symbol: str, function: str) -> Callable[[DeviceValue, object], Any]:
    """A comparison that the kernel writes is refused; dataclasses and the simulator compare for identity."""

    def method(self: DeviceValue, other: object) -> Any:
        known = not isinstance(other, (bool, int, float, np.ndarray, np.generic, DeviceValue))
        caller = sys._getframe(1).f_code.co_filename
        if symbol in ("==", "!=") and (known or caller.startswith(PACKAGE) or caller == _GENERATED):
            return NotImplemented
        refuse(self, f"`{symbol}`", f"nl.{function}(a, b) of tiles is a tile of the answers. {CONDITION}")

    return method


def _add_methods() -> None:
    for name, (what, instead) in _CONVERSIONS.items():
        setattr(DeviceValue, name, _make_refusal(what, instead))
    for name, (symbol, function) in _COMPARISONS.items():
        setattr(DeviceValue, f"__{name}__", _make_comparison(symbol, function))
    for name, (symbol, function) in _OPERATORS.items():
        for form in (f"__{name}__", f"__r{name}__", f"__i{name}__"):
            setattr(DeviceValue, form, _make_refusal(f"`{symbol}`", f"Write {function}, or the instruction of nisa"))


_add_methods()
