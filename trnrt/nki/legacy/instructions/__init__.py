"""The functions of ``neuronxcc.nki.isa``, by subject. Each issues today's instruction of the same name.

``compute``   products, elementwise instructions, activations, reductions
``movement``  copies, DMA, fills, transposes
"""
