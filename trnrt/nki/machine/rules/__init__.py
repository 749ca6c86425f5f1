"""What the hardware refuses, one row a rule.

A rule looks at one instruction (or one allocation) and answers with what is wrong: the operand, the value, the
limit; or None. Declarations name the rules that bind an instruction; tests walk ``RULES`` and break each one.

Here are the rules that several families of instructions obey; those of one family alone stand in its file, in
``sim/instructions``.

``checks``        what many rules check
``allocation``    where a tile may be
``access``        what an engine may touch, and in which pattern
``operands``      the operands of vector, scalar and gpsimd instructions
``operators``     the operators that an instruction takes
``accumulating``  what is reduced into an engine's accumulator registers
"""
