"""Calls of kernels as text: ``kernel(f32[128,512], f32[128,512], 4, name="x")``.

A tensor is its dtype and shape. The text is Python's syntax, but nothing in it is evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnrt.nki.errors import OptionError
from trnrt.nki.machine.dtypes import DTYPES, DType, as_dtype
from trnrt.nki.sim.kernel import Spec

SHORT = {
    "f32": "float32",
    "tf32": "tfloat32",
    "bf16": "bfloat16",
    "f16": "float16",
    "f8e4m3": "float8_e4m3",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "bool": "bool_",
}
_LONG = {long: short for short, long in SHORT.items()}
_EXAMPLE = "kernel(f32[128,512], bf16[128,512], 4, flag=True)"


@dataclass(frozen=True)
class Call:
    """A kernel's name, its number of cores, and its arguments.

    ``cores``: None for the kernel's own; the sizes of a launch grid for a kernel of the old namespace.
    """

    kernel: str
    cores: int | tuple[int, ...] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def parse_call(text: str) -> Call:
    """The call that ``text`` describes.

    Raises:
        OptionError: if it is no such call, with the part that can't be read.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if not isinstance(node, ast.Call):
            raise ValueError("it is not a call")
        if any(keyword.arg is None for keyword in node.keywords):
            raise ValueError("it expands a dictionary")
        args = tuple(_value(argument) for argument in node.args)
        return Call(*_parse_launch(node.func), args, {str(k.arg): _value(k.value) for k in node.keywords})
    except SyntaxError as error:
        raise OptionError(f"can't read --call {text!r}: {error.msg}", hint=f"for example {_EXAMPLE!r}") from None
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(f"can't read --call {text!r}: {error}", hint=f"for example {_EXAMPLE!r}") from None


def parse_values(text: str) -> tuple[Any, ...]:
    """Plain values, as ``128, 256`` or ``range(128, 513, 128)``: numbers, strings, True, False, None, dtypes, tuples.

    Raises:
        ValueError: if there is another value, with what it is. SyntaxError: if the text can't be read.
    """
    node = ast.parse(text.strip(), mode="eval").body
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and not node.keywords:
        found: tuple[Any, ...] = tuple(range(*(_whole_number(argument) for argument in node.args)))
    else:
        found = tuple(_value(item) for item in (node.elts if isinstance(node, ast.Tuple) else [node]))
    if any(isinstance(value, Spec) for value in found):
        raise ValueError("a tensor is no plain value")
    return found


def describe(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """Arguments as text that ``parse_call`` reads."""
    return ", ".join([*map(value_text, args), *(f"{name}={value_text(value)}" for name, value in kwargs.items())])


def value_text(value: Any) -> str:
    """A value as ``parse_call`` and ``parse_values`` read it."""
    if isinstance(value, np.generic):
        return repr(value.item())
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        try:
            name = as_dtype(dtype).name
        except TypeError:
            name = str(dtype)
        return f"{_LONG.get(name, name)}[{','.join(map(str, shape))}]"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(value_text, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, DType):
        return _LONG[value.name]
    known = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if known else f"<{type(value).__name__}>"


def _parse_launch(node: ast.expr) -> tuple[str, int | tuple[int, ...] | None]:
    """The name and the cores of ``kernel``, ``kernel[2]`` or ``kernel[4, 2]``."""
    if isinstance(node, ast.Subscript):
        sizes = node.slice
        return _name(node.value), tuple(map(_size, sizes.elts)) if isinstance(sizes, ast.Tuple) else _size(sizes)
    return _name(node), None


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise ValueError(f"{ast.unparse(node)} is not a kernel's name")
    return node.id


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, (bool, int, float, str))):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = node.operand.value
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise ValueError(f"{ast.unparse(node)} is not a number")
        return -number
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Name):
        return _dtype(node)
    if isinstance(node, ast.Subscript):
        sizes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return Spec([_size(size) for size in sizes], _dtype(node.value))
    raise ValueError(f"{ast.unparse(node)} is neither a tensor nor a constant")


def _size(node: ast.expr) -> int:
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        raise ValueError(f"{ast.unparse(node)} is not a size")
    return node.value


def _whole_number(node: ast.expr) -> int:
    value = _value(node)
    if type(value) is not int:
        raise ValueError(f"{ast.unparse(node)} is not a whole number")
    return value


def _dtype(node: ast.expr) -> DType:
    name = ast.unparse(node)
    found = DTYPES.get(SHORT.get(name, name))
    if found is None:
        raise ValueError(f"{name} is not a dtype; they are {', '.join(SHORT)}")
    return found
