"""Functions that exporters write out in several operations: GELU, SiLU, Mish. The scalar engine computes each at once.

A result is compared in a normal form, a number times factors, so that neither the order of a product nor the places of
its constants matter. The engine's function rounds once where its parts round several times. At -inf it is 0, the limit;
the parts give ``-inf * 0``, which is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose, pi, sqrt
from typing import NamedTuple

from trnrt.operators.programs import Operation, Program, Register, Term

# Constants are float32, and may be the rounded inverse of another rounded one: each rounding is off by 6e-8 at most.
_CLOSE = 4e-7
# Factors of a product, with those of powers: no function here has more.
_MOST_FACTORS = 6
QUICK = 1.702
"""The factor of GELU's approximation by a sigmoid that the engine computes: CLIP's QuickGELU."""
_INNER = ("sigmoid", "tanh", "erf", "softplus")


class _Form(NamedTuple):
    """``number`` times the factors: "x", (function, form), or ("add", two terms, each a form or a number)."""

    number: float
    factors: tuple[object, ...]


def _product(number: float, *factors: object) -> _Form:
    return _Form(number, tuple(sorted(factors, key=repr)))


def _sum(*terms: _Form | float) -> _Form:
    return _product(1.0, ("add", *sorted(terms, key=repr)))


_X = _product(1.0, "x")
_ERF = _product(1.0, ("erf", _product(sqrt(0.5), "x")))
_CUBIC = _sum(_X, _product(0.044715, "x", "x", "x"))
_TANH = _product(1.0, ("tanh", _product(sqrt(2 / pi), *_CUBIC.factors)))
_WRITTEN = {
    "silu": _product(1.0, "x", ("sigmoid", _X)),
    "gelu_sigmoid": _product(1.0, "x", ("sigmoid", _product(QUICK, "x"))),
    "gelu": _product(0.5, "x", *_sum(_ERF, 1.0).factors),
    "gelu_tanh": _product(0.5, "x", *_sum(_TANH, 1.0).factors),
    "mish": _product(1.0, "x", ("tanh", _product(1.0, ("softplus", _X)))),
}


def name_swish(alpha: float) -> str:
    """The engine's function for ``x * sigmoid(alpha * x)``, "" if it has none."""
    if alpha == 1.0:
        return "silu"
    return "gelu_sigmoid" if isclose(alpha, QUICK, rel_tol=_CLOSE) else ""


def shorten(program: Program) -> Program:
    """The program with one operation for each function that it writes out."""
    operations = list(program.operations)
    bases = [Register(k, is_source=True) for k in range(len(program.sources))]
    for index in range(len(operations)):
        found = _find_function(operations, index, bases) if operations[index][0] == "multiply" else None
        if found is not None:
            operations[index] = found
        bases.append(Register(index))
    return program if operations == program.operations else Program(program.sources, _drop_unused(operations))


def _find_function(operations: Sequence[Operation], index: int, bases: Sequence[Register]) -> Operation | None:
    """Operation ``index`` as a function of an earlier register, if it is one."""
    for base in bases:
        form = _form_of(operations, Register(index), base)
        name = next((name for name, known in _WRITTEN.items() if _is_close(form, known)), None)
        if name is not None:
            return name, (base,)
    return None


def _form_of(operations: Sequence[Operation], term: Term, base: Register) -> _Form | float | None:
    """A term as a function of ``base``; None if it is none, or has a form that no function here has."""
    if not isinstance(term, Register):
        return term
    if term == base:
        return _X
    if term.is_source:
        return None
    name, operands = operations[term.index]
    forms = [_form_of(operations, operand, base) for operand in operands]
    if name in _INNER and isinstance(forms[0], _Form):
        return _product(1.0, (name, forms[0]))
    if len(forms) != 2 or None in forms:
        return None
    first, second = sorted((form for form in forms if form is not None), key=lambda form: isinstance(form, _Form))
    if name == "add":
        return _sum(first, second)
    if not isinstance(second, _Form) or (name != "multiply" and forms[0] is not second):
        return None
    return _combine(name, second, first)


def _combine(name: str, form: _Form, other: _Form | float) -> _Form | None:
    """``form`` multiplied, divided or raised by ``other``."""
    if name == "multiply":
        number, factors = (other.number, other.factors) if isinstance(other, _Form) else (other, ())
        made = _product(form.number * number, *form.factors, *factors)
    elif name == "divide" and isinstance(other, float) and other != 0:
        made = form._replace(number=form.number / other)
    elif name == "power" and other in (2.0, 3.0) and isinstance(other, float):
        made = _product(form.number**other, *form.factors * int(other))
    else:
        return None
    return made if len(made.factors) <= _MOST_FACTORS else None


def _is_close(found: object, known: object) -> bool:
    """True if two forms are equal but for rounding."""
    if isinstance(found, float) and isinstance(known, float):
        return isclose(found, known, rel_tol=_CLOSE)
    if isinstance(found, tuple) and isinstance(known, tuple):
        return len(found) == len(known) and all(map(_is_close, found, known))
    return found == known


def _drop_unused(operations: Sequence[Operation]) -> list[Operation]:
    """The operations that the last one needs."""
    needed = {len(operations) - 1}
    for index in reversed(range(len(operations))):
        if index in needed:
            needed |= {t.index for t in operations[index][1] if isinstance(t, Register) and not t.is_source}
    places = {old: new for new, old in enumerate(sorted(needed))}

    def move_term(term: Term) -> Term:
        return Register(places[term.index]) if isinstance(term, Register) and not term.is_source else term

    return [(operations[old][0], tuple(map(move_term, operations[old][1]))) for old in places]
