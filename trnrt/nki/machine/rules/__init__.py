"""What the hardware refuses, one row a rule.

A rule looks at one instruction (or one allocation) and answers with what is wrong: the operand, the value, the
limit; or None. Operations name the rules that bind them; tests walk ``RULES`` and break each one.

``allocation``  where a tile may be
``access``      what an engine, or a DMA, may touch and in which pattern
``operands``    the operands of vector, scalar and gpsimd instructions
``tensor``      matrix products and transposes
``array``       how matrix products use the tensor engine's array
``shuffle``     moves between and along partitions, GpSimd searches
``transfer``    DMA that transposes, adds or prints
``random``      random number generators
"""

from __future__ import annotations

from trnrt.nki.machine.rules import access, allocation, operands, tensor
from trnrt.nki.machine.rules.table import RULES

__all__ = ["RULES", "access", "allocation", "operands", "tensor"]
