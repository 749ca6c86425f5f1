"""What trnrt knows of an ONNX operator: one record each, declared beside its lowering function; the folder is the
registry.

A facet that a declaration leaves out is an error when its module is imported. One that does not apply says so:
``NotApplicable`` gives the reason, and functions such as ``order.keep_order`` are the answer "no". Everything that asks
about an operator (batches, orders of axes, tolerances, folding, refusals, the page of operators) reads these records.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import onnx_ir as ir

from trnrt.importer.rewriting.orders import NodeOrders, Order
from trnrt.importer.rows.batch import Batch
from trnrt.operators.bounds.case import Array, Case

Shape = tuple[int, ...]
Lower = Callable[[Any, ir.Node], None]
"""Makes the steps of a node; takes a ``Lowering``."""
BatchRule = Callable[[ir.Node, list[Batch | None], Shape], Batch]
"""Where the batch lies in the output; raises ``Mixes`` where rows come together."""
OrderRule = Callable[[ir.Node, Order], NodeOrders | None]
"""What changes if the main input is stored in another order of axes; None if the node can't work on that."""
BoundRule = Callable[[Case], list[Array]]
"""How far each output may be off, element by element."""
ShapeRule = Callable[[ir.Node, list[Shape | None]], str | None]
"""What contradicts in the shapes of the inputs, of which the first is known; None where nothing does."""


@dataclass(frozen=True)
class NotApplicable:
    """A facet that an operator does not have, and why."""

    reason: str


ON_CPU = NotApplicable("ours and onnxruntime's are one where it runs on the CPU")


@dataclass(frozen=True)
class Refusal:
    """Why an operator is not lowered, and what helps."""

    reason: str
    hint: str


@dataclass(frozen=True)
class Index:
    """The position of an input of indices: of any rank, and needed by value unless they pick from a constant table."""

    position: int


class Folding(Flag):
    """What is computed when the model is read.

    ``CHEAP``: work and memory are in proportion to what is read and written. ``SMALL``: they are not, so that only
    small tensors are folded. ``COUNTS``: it may compute shapes and counts, so that an input of the model that only it
    reads counts as read by whoever reads its result.
    """

    NEVER = 0
    CHEAP = auto()
    SMALL = auto()
    COUNTS = auto()


NEVER, CHEAP, SMALL, COUNTS = Folding.NEVER, Folding.CHEAP, Folding.SMALL, Folding.COUNTS


_Lowering = TypeVar("_Lowering", bound="Lower | Refusal")


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The facets of operators that one function lowers, which it decorates; a second claim on a name raises.

    ``opsets``: name -> the versions that the lowering knows; what was there before opset 6 counts as of 6. ``values``
    are the positions of inputs that say what is done, not what it is done to: a plan needs their values.
    """

    opsets: Mapping[str, tuple[int, ...]] = field(kw_only=False)
    domain: str = ""
    batch: BatchRule | NotApplicable
    order: OrderRule
    bound: BoundRule | NotApplicable
    values: tuple[int, ...] | Index
    folds: Folding
    shapes: ShapeRule

    def __call__(self, lowering: _Lowering) -> _Lowering:
        """Register the operators."""
        for name in self.opsets:
            if (self.domain, name) in _RECORDS:
                raise ValueError(f"{name} is declared twice")
            _RECORDS[self.domain, name] = Operator(**vars(self), name=name, lowering=lowering)
        return lowering


@dataclass(frozen=True, kw_only=True)
class Operator(Declaration):
    """All that is known of one operator."""

    name: str
    lowering: Lower | Refusal


_RECORDS: dict[tuple[str, str], Operator] = {}


@cache
def records() -> Mapping[tuple[str, str], Operator]:
    """(domain, name) -> record of every operator that is declared. The first call imports the families."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    return MappingProxyType(_RECORDS)


def record_of(node: ir.Node) -> Operator | None:
    """The record of a node's operator, if there is one."""
    return records().get((node.domain, node.op_type))


def lowering_of(operator: tuple[str, str]) -> Lower | None:
    """The function that lowers an operator, if there is one."""
    found = records().get(operator)
    return None if found is None or isinstance(found.lowering, Refusal) else found.lowering


def supported_operators() -> list[tuple[str, str]]:
    """(domain, name) of everything that can be lowered."""
    return sorted(operator for operator in records() if lowering_of(operator))
