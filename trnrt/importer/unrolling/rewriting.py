"""Write out a graph's loops, branches and sequences, one kind after the other."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from trnrt.importer.fused.writing import Writer
from trnrt.importer.unrolling.bags import merge_bags
from trnrt.importer.unrolling.branches import select_branches
from trnrt.importer.unrolling.loops import unroll_loops
from trnrt.importer.unrolling.sequences import spread_sequences

# Bags before branches: they know what an If of an empty bag means.
_OWN: tuple[Callable[[Writer], list[str]], ...] = (unroll_loops, spread_sequences, merge_bags, select_branches)


def expand_control(model: ir.Model) -> list[str]:
    """Apply the first rule that finds something; return notes on what was done. The graph is to be folded before and
    after."""
    return next((notes for rule in _OWN if (notes := rule(Writer(model)))), [])
