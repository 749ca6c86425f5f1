"""Declare an instruction: a decorator holds its facets, the decorated `nisa` function is its signature.

Tracing reads the signature, the engines, the operands and the rules; timing reads the engines and the cycles; a run
reads the meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec

from trnrt.nki.machine.program import Declaration, Engine, Instruction, Operation, Rule
from trnrt.nki.machine.rules import accumulating, operands
from trnrt.nki.sim.trace import active_tracer

Args = dict[str, Any]
P = ParamSpec("P")

OPERATIONS: dict[str, Operation] = {}


class declare(Declaration):  # noqa: N801 - a decorator
    """Declare the instruction that the decorated function issues.

    The function returns the arguments that an instruction keeps: ``locals()``, often extended by what only tracing
    knows. ``name`` names the instruction. If it can run on several engines, ``engine`` chooses one; otherwise
    ``engine`` is an ordinary argument (in ``dma_copy``, the engine that triggers the transfer).
    """

    def __call__(self, function: Callable[P, Args]) -> Callable[P, Instruction]:
        operation = self.record(function.__name__)
        label, several = f"nisa.{operation.name}", len(operation.engines) > 1

        @wraps(function)
        def issue(*args: P.args, **kwargs: P.kwargs) -> Instruction:
            tracer = active_tracer(label)
            kept = function(*args, **kwargs)
            engine = kept.pop("engine", Engine.unknown) if several else Engine.unknown
            return tracer.emit(operation, kept, engine, kept.pop("name", None))

        return issue

    def record(self, name: str) -> Operation:
        """Register the instruction. Declaring a name twice is a programming error."""
        if name in OPERATIONS:
            raise ValueError(f"instruction {name!r} is declared twice")
        facets = {facet.name: getattr(self, facet.name) for facet in fields(Declaration)}
        facets["rules"] = (*self.rules, *self._implied_rules())
        OPERATIONS[name] = Operation(name=name, **facets)
        return OPERATIONS[name]

    def _implied_rules(self) -> Iterator[Rule]:
        """The rules that follow from other facets: columns, a reduction, several inputs of an engine."""
        if self.columns:
            yield operands.column_operands
        if self.reduces is not None:
            yield from accumulating.REDUCTION
        inputs = set(self.reads) - set(self.writes)
        if len(inputs) > 1 and Engine.dma not in self.engines and operands.same_start_partition not in self.rules:
            yield operands.other_start_partition
