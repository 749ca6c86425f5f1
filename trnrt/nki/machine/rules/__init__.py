"""The hardware's rules, as a table.

A rule checks one instruction (or one allocation) and returns what is wrong: the operand, the value and the limit; or
None. Declarations name the rules of an instruction; tests walk ``RULES`` and break each one.

These are the rules of several families of instructions; those of a single family are in its file, in
``sim/instructions``.

``checks``        what many rules check
``allocation``    where a tile may be
``access``        where an engine or a DMA may read and write, and in which pattern
``operands``      the operands of vector, scalar and gpsimd instructions
``operators``     the operators that an instruction takes
``accumulating``  reductions into an engine's accumulator registers
"""
