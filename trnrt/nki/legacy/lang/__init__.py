"""The functions of ``neuronxcc.nki.language``, by subject. Each gives a new tile, and is made of `nisa` instructions.

``common``       operands, number formats of results
``creation``     tensors: new ones, filled ones, constants, random numbers
``elementwise``  operators and functions of each element
``movement``     between HBM and SBUF, copies, other shapes
``products``     matrix products and transposes
``program``      loops, the launch grid, the sizes of tiles
``reductions``   along the free axes, over a loop, over the launch grid; softmax, rms_norm
"""
