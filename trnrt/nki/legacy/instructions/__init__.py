"""The functions of ``neuronxcc.nki.isa``, by subject. Each issues today's instruction of the same name.

``issuing``      operands; instructions that write to tiles which the kernel names
``compute``      products, elementwise instructions
``activations``  the scalar engine's functions
``reductions``   along the free axes, over the partitions; statistics
``selection``    constants of index expressions, choices by them, by ranges, by predicates
``search``       searches, gathers, shuffles, dropout
``movement``     copies, DMA, fills, transposes
"""
