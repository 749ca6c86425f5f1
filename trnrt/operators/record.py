"""One record for each ONNX operator, declared beside its lowering function. The folder is the registry.

A facet that a declaration leaves out is an error when its module is imported. If a facet does not apply,
``NotApplicable`` gives the reason; functions such as ``order.keep_order`` are the answer "no". Everything that depends
on the operator (batches, orders of axes, tolerances, folding, refusals, docs/operators.md) reads these records.
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
"""Make the steps of a node; takes a ``Lowering``."""
BatchRule = Callable[[ir.Node, list[Batch | None], Shape], Batch]
"""Return where the batch lies in the output; raise ``Mixes`` if rows are mixed."""
OrderRule = Callable[[ir.Node, Order], NodeOrders | None]
"""Return what changes if the main input is stored in another order of axes; None if the node can't read that."""
BoundRule = Callable[[Case], list[Array]]
"""Return how far each output may be off, element by element."""
ShapeRule = Callable[[ir.Node, list[Shape | None]], str | None]
"""Return how the inputs' shapes contradict each other, or None. The first shape is known."""


@dataclass(frozen=True)
class NotApplicable:
    """The reason why an operator has no such facet."""

    reason: str


ON_CPU = NotApplicable("it runs on the CPU only, by onnxruntime on both sides")


@dataclass(frozen=True)
class Refusal:
    """Why an operator is not lowered, and what helps."""

    reason: str
    hint: str


@dataclass(frozen=True)
class Index:
    """The position of an input of indices, of any rank. A plan needs their values unless the table is constant."""

    position: int


class Folding(Flag):
    """Whether nodes with constant inputs are computed when the model is read.

    ``CHEAP``: yes, as work and memory are in proportion to inputs and outputs. ``SMALL``: only for small tensors.
    ``COUNTS``: it may compute shapes and counts. An input of the model that only such nodes read is a parameter if
    their results are used as shapes, axes or counts.
    """

    NEVER = 0
    CHEAP = auto()
    SMALL = auto()
    COUNTS = auto()


NEVER, CHEAP, SMALL, COUNTS = Folding.NEVER, Folding.CHEAP, Folding.SMALL, Folding.COUNTS


_Lowering = TypeVar("_Lowering", bound="Lower | Refusal")


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The facets of operators that one function lowers: a decorator of that function. Each name is declared once.

    ``opsets``: name -> the versions that the lowering knows; older versions than opset 6 count as 6. ``values``: the
    positions of inputs such as shapes, axes and limits, whose values a plan needs.
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
    """One operator's facets and lowering."""

    name: str
    lowering: Lower | Refusal


_RECORDS: dict[tuple[str, str], Operator] = {}


@dataclass(frozen=True)
class Group:
    """Nodes that one step computes although not each follows the one before, such as attention's, in the graph's
    order; ``lower`` makes the step, or returns False: then they are lowered one by one."""

    nodes: tuple[ir.Node, ...]
    lower: Callable[[Any], bool]


Finder = Callable[[Any], list[Group]]
"""Find the groups of one kind in the graph of a ``Lowering``."""
_FINDERS: list[Finder] = []


def finds_groups(find: Finder) -> Finder:
    """Register a function that finds groups."""
    _FINDERS.append(find)
    return find


def find_groups(lowering: Any) -> list[Group]:
    """The groups in the graph of a lowering; no node is in two."""
    records()
    found: list[Group] = []
    taken: set[ir.Node] = set()
    for find in _FINDERS:
        for group in find(lowering):
            if taken.isdisjoint(group.nodes):
                found.append(group)
                taken.update(group.nodes)
    return found


@cache
def records() -> Mapping[tuple[str, str], Operator]:
    """(domain, name) -> record of every declared operator. The first call imports the families."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")
    return MappingProxyType(_RECORDS)


def record_of(node: ir.Node) -> Operator | None:
    """The record of a node's operator, if there is one."""
    return records().get((node.domain, node.op_type))


def lowering_of(operator: tuple[str, str]) -> Lower | None:
    """The function that lowers an operator; None if it is unknown or refused."""
    found = records().get(operator)
    return None if found is None or isinstance(found.lowering, Refusal) else found.lowering


def supported_operators() -> list[tuple[str, str]]:
    """(domain, name) of every operator that can be lowered."""
    return sorted(operator for operator in records() if lowering_of(operator))
