"""What Python can't do with a tile or a register: each question after a value is refused, with line and way out."""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulating import Tensor, drawn, give, load, same

from trnrt.errors import KernelError, TrnrtError
from trnrt.nki import nisa, nl, simulate, trace
from trnrt.nki.sim.values import _COMPARISONS, _CONVERSIONS, _OPERATORS, CONDITION

X = drawn(4, 6)
CHOOSE = "nl.where"
LOOP = "nl.while_loop"

# expression of v, a tile or a register -> what the error says
QUESTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "bool": (bool, CHOOSE),
    "not": (lambda v: not v, CHOOSE),
    "and": (lambda v: v and 1, LOOP),
    "or": (lambda v: v or 1, LOOP),
    "ternary": (lambda v: 1 if v else 2, CHOOSE),
    "greater": (lambda v: v > 0, "nl.greater"),
    "less, swapped": (lambda v: operator.gt(0, v), "nl.less"),
    "at least": (lambda v: v >= 0, "nl.greater_equal"),
    "at most": (lambda v: v <= 0.5, "nl.less_equal"),
    "equal": (lambda v: v == 0, "nl.equal"),
    "unequal": (lambda v: v != 0, "nl.not_equal"),
    "equal, swapped": (lambda v: operator.eq(3, v), "nl.equal"),
    "equal to an array": (lambda v: v == np.zeros(3), "nl.equal"),
    "chained": (lambda v: 0 < v < 5, CHOOSE),
    "chained, the numbers first": (lambda v: 0 < 1 < v, CHOOSE),
    "int": (int, "scalar_offset"),
    "float": (float, "scalar_offset"),
    "complex": (complex, "scalar_offset"),
    "round": (round, "nl.floor"),
    "floor": (math.floor, "nl.floor"),
    "range": (lambda v: range(v), "nl.fori_loop"),
    "index of a list": (lambda v: [1, 2][v], "select()"),
    "times a list": (lambda v: [0] * v, "nl.multiply"),
    "len": (len, "tensor.shape[0]"),
    "loop": (list, "tensor[i : i + 1]"),
    "unpacking": (lambda v: print(*v), "tensor[i : i + 1]"),
    "in": (lambda v: 3 in v, CHOOSE),
    "max": (lambda v: max(v, 0), "nl.less"),
    "sum": (lambda v: sum(v), "tensor[i : i + 1]"),
    "plus": (lambda v: v + 1, "nl.add"),
    "plus, swapped": (lambda v: 1.0 + v, "nl.add"),
    "minus itself": (lambda v: v - v, "nl.subtract"),
    "power": (lambda v: v**2, "nl.power"),
    "matmul": (lambda v: v @ v, "nisa.nc_matmul"),
    "shift": (lambda v: v >> 1, "nl.right_shift"),
    "negative": (lambda v: -v, "nl.negative"),
    "absolute": (abs, "nl.abs"),
    "numpy scalar first": (lambda v: np.float32(2) * v, "numpy works on arrays of the host"),
    "numpy array first": (lambda v: np.ones(3) < v, "numpy works on arrays of the host"),
    "ufunc": (np.sqrt, "numpy works on arrays of the host"),
    "reduction": (np.sum, "numpy works on arrays of the host"),
    "concatenation": (lambda v: np.concatenate([v, v]), "numpy works on arrays of the host"),
    "asarray": (np.asarray, "numpy works on arrays of the host"),
    "array of them": (lambda v: np.array([v, v]), "numpy works on arrays of the host"),
}


def refusal(body: Callable[[Tensor, nisa.VirtualRegister], Any]) -> str:
    def kernel(x: Tensor) -> Tensor:
        tile, register = load(x), nisa.register_alloc(3)
        body(tile, register)
        return give(tile)

    with pytest.raises(KernelError) as error:
        trace(kernel, X)
    return str(error.value)


@pytest.mark.parametrize("value", ["tile", "register"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_after_a_value(name: str, value: str) -> None:
    ask, way_out = QUESTIONS[name]

    def body(tile: Tensor, register: nisa.VirtualRegister) -> None:
        ask(tile if value == "tile" else register)

    message = refusal(body)
    assert "known on the device only" in message
    assert ("(4, 6) float32 sbuf" if value == "tile" else "register 1") in message
    assert way_out in message
    assert f"\n  at {__file__}:" in message


def add_in_place(value: Any) -> None:
    value += value


@pytest.mark.parametrize("old", [lambda v: v * 2, add_in_place, lambda v: operator.setitem(v, 0, v)])
def test_what_the_old_namespace_allowed_names_the_verbs(old: Callable[[Tensor], object]) -> None:
    def kernel(x: Tensor) -> Tensor:
        old(load(x))
        return x

    with pytest.raises(KernelError, match="`trnrt nki check` lists such places and `trnrt nki port` rewrites them"):
        trace(kernel, X)


def test_every_special_method_is_refused() -> None:
    """The table has no hole: whatever Python asks a number or a sequence for."""
    asked = {*_CONVERSIONS, *(f"__{name}__" for name in [*_COMPARISONS, *_OPERATORS])}
    asked |= {f"__r{name}__" for name in _OPERATORS}
    kept = {"new", "init", "repr", "str", "format", "hash", "getattribute", "getnewargs", "getformat", "sizeof"}
    of_numbers = {name for kind in (int, float, complex) for name, value in vars(kind).items() if callable(value)}
    of_lists = {"__len__", "__iter__", "__contains__", "__reversed__"}
    wanted = {name for name in of_numbers | of_lists if name.startswith("__")} - {f"__{name}__" for name in kept}
    assert wanted <= asked
    assert all(hasattr(nl.NkiTensor, f"__r{name}__") for name in _OPERATORS)


def test_the_line_is_the_kernel_s() -> None:
    def body(tile: Tensor, register: nisa.VirtualRegister) -> None:
        if register > 3:  # type: ignore[operator]  # here
            nisa.memset(dst=tile, value=0)

    lines, first = inspect.getsourcelines(body)
    at = next(number for number, line in enumerate(lines, first) if line.rstrip().endswith("# here"))
    assert refusal(body).endswith(f"\n  at {__file__}:{at} in body")


def test_whether_a_tensor_was_given_may_be_asked() -> None:
    @dataclass
    class Pair:
        one: Any
        other: Any

    def kernel(x: Tensor, bias: Tensor | None = None) -> Tensor:
        tile, other = load(x), load(x)
        assert bias is None
        assert tile != None  # noqa: E711 - as kernels in the field say it
        assert tile != "a name"  # type: ignore[comparison-overlap]
        assert tile in [tile, other]
        assert {tile: 1, other: 2}[other] == 2
        assert Pair(tile, other) == Pair(tile, other)
        assert Pair(tile, other) != Pair(other, tile)
        return give(tile)

    same(simulate(kernel)(X), X)


def test_different_tiles_are_not_compared_for_identity() -> None:
    assert "nl.equal" in refusal(lambda tile, register: tile == load(tile))


def test_the_docs_name_every_way_to_decide() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")
    ways = re.findall(r"(?:nl|nisa)\.\w+", CONDITION)
    assert len(ways) == 5
    assert [way for way in ways if way not in page] == []


# Registers as conditions


@pytest.mark.usefixtures("level_0_6")
def test_a_while_loop_may_ask_for_its_register() -> None:
    def kernel(x: Tensor) -> Tensor:
        tile, count = load(x), nisa.register_alloc(2)
        left = nl.ndarray((1, 1), nl.int32, nl.sbuf)
        nisa.register_store(left, count)
        while count:
            nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=1)
            nisa.register_load(count, left)
        return give(tile)

    same(simulate(kernel)(X), X * 4)


def ask_twice(tile: Tensor, register: nisa.VirtualRegister) -> None:
    if register:
        nisa.memset(dst=tile, value=0)
    if register:
        nisa.memset(dst=tile, value=1)


def ask_not(tile: Tensor, register: nisa.VirtualRegister) -> None:
    while not register:
        nisa.register_move(register, 1)


def ask_and(tile: Tensor, register: nisa.VirtualRegister) -> None:
    while register and tile.shape[0]:
        nisa.register_move(register, 0)


def ask_assert(tile: Tensor, register: nisa.VirtualRegister) -> None:
    assert register


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("body", [ask_twice, ask_not, ask_and, ask_assert])
def test_any_other_condition_is_refused_where_it_stands(body: Callable[[Tensor, nisa.VirtualRegister], None]) -> None:
    message = refusal(body)
    assert "a condition other than `while register:`" in message
    assert CHOOSE in message
    first = body.__code__.co_firstlineno
    assert f"\n  at {__file__}:{first + 1} in {body.__name__}" in message


@pytest.mark.usefixtures("level_0_6")
def test_a_break_out_of_a_device_loop_names_the_loop() -> None:
    def body(tile: Tensor, register: nisa.VirtualRegister) -> None:
        while register:  # here
            break

    lines, first = inspect.getsourcelines(body)
    message = refusal(body)
    assert "let its register become 0" in message
    assert message.endswith(f"\n  at {__file__}:{first + 1} in body")
    assert "# here" in lines[1]


# The class of errors


def test_a_broken_rule_is_an_assertion_error_too() -> None:
    def kernel(x: Tensor) -> Tensor:
        return give(nl.ndarray((256, 512), nl.float32, nl.sbuf))

    with pytest.raises(AssertionError, match="256") as error:
        simulate(kernel)(X)
    assert isinstance(error.value, TrnrtError)
    assert error.value.exit_code == 1
