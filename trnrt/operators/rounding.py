"""Whole numbers within limits: ``Clip(Round(x))``, as quantised models have it, in few instructions.

Whole limits don't care whether they come before or after the rounding. After them a number is small, and adding and
subtracting ``ROUNDER`` rounds it, half to even. A division by one number needs no general quotient then: see
``quantise`` in ``compute_math.py``, and docs/quantised.md, Rounding.
"""

from __future__ import annotations

import numpy as np

from trnrt.kernels.compute_math import ROUNDER, is_power_of_two
from trnrt.operators.programs import Operation, Program, Register, Term
from trnrt.operators.quantiser import find_quantiser

# Limits up to which adding ROUNDER rounds, and up to which a quotient in halves has few enough bits (``quantise``).
_MOST = 2.0**21
_MOST_QUOTIENT = 256.0
# Scales whose quotients and remainders are normal numbers.
_SCALES = (1e-30, 1e30)


def shorten_rounding(program: Program) -> Program:
    """The program with the cheap form of each ``Clip(Round(x))`` and ``Clip(Round(x / scale))``."""
    uses = [0] * len(program.operations)
    for _, terms in program.operations:
        for term in terms:
            if isinstance(term, Register) and not term.is_source:
                uses[term.index] += 1
    rounds = {i: limits for i in range(len(uses)) if (limits := _find_limits(program.operations, uses, i)) is not None}
    if not rounds:
        return program
    made = Program(list(program.sources))
    moved: dict[Register, Term] = {}
    quotients = {i: q for i in rounds if (q := _find_quotient(program.operations, uses, i, rounds[i])) is not None}
    gone = {i - 1 for i in quotients} | {i + k for i in rounds for k in (1, 2)}
    for index, (name, terms) in enumerate(program.operations):
        given = tuple(moved.get(t, t) if isinstance(t, Register) else t for t in terms)
        if index in gone:
            continue
        if index in quotients:
            numerator = program.operations[index - 1][1][0]
            assert isinstance(numerator, Register)
            last = made.apply("quantise", moved.get(numerator, numerator), *quotients[index])
        elif index in rounds:
            last = _round_between(made, given[0], rounds[index])
        elif index + 1 in rounds and (inverse := _find_inverse(name, terms)) is not None:
            last = made.apply("multiply", given[0], inverse)  # one instruction with the maximum behind it
        else:
            last = made.apply(name, *given)
        moved[Register(index + 2 if index in rounds else index)] = last
    return made


def are_limits(low: float, high: float) -> bool:
    """True if limits may come before a rounding, and make it cheap."""
    return low.is_integer() and high.is_integer() and -_MOST <= low <= high <= _MOST


def _round_between(program: Program, term: Term, limits: tuple[float, float]) -> Register:
    """Append the limits, and the rounding as two additions."""
    low = program.apply("maximum", term, limits[0])
    high = program.apply("minimum", low, limits[1])
    return program.apply("subtract", program.apply("add", high, ROUNDER), ROUNDER)


def _find_inverse(name: str, terms: tuple[Term, ...]) -> float | None:
    """The reciprocal of the power of two that an operation divides by, if it does."""
    by = terms[-1]
    return 1.0 / by if name == "divide" and not isinstance(by, Register) and is_power_of_two(by) else None


def _find_limits(operations: list[Operation], uses: list[int], index: int) -> tuple[float, float] | None:
    """The whole limits that follow the rounding ``index``, a maximum and a minimum of its result alone; else None."""
    if operations[index][0] != "round" or index + 2 >= len(operations):
        return None
    found = []
    for place, name in ((index, "maximum"), (index + 1, "minimum")):
        follower, terms = operations[place + 1]
        if follower != name or uses[place] != 1 or terms[0] != Register(place) or isinstance(terms[1], Register):
            return None
        found.append(terms[1])
    low, high = found
    return (low, high) if are_limits(low, high) else None


def _find_quotient(
    operations: list[Operation], uses: list[int], index: int, limits: tuple[float, float]
) -> tuple[float, ...] | None:
    """The numbers of ``quantise``, if the rounding ``index`` is that of a division that it computes exactly."""
    if index == 0 or operations[index - 1][0] != "divide" or operations[index][1][0] != Register(index - 1):
        return None
    numerator, scale = operations[index - 1][1]
    if uses[index - 1] != 1 or not isinstance(numerator, Register) or isinstance(scale, Register):
        return None
    if not _SCALES[0] < scale < _SCALES[1] or is_power_of_two(scale) or max(map(abs, limits)) > _MOST_QUOTIENT:
        return None
    quantiser = find_quantiser(float(np.float32(scale)), *limits)
    return None if quantiser is None else quantiser.numbers
