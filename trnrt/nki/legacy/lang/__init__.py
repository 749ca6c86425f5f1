"""The functions of ``neuronxcc.nki.language``, by subject. Each gives a new tile, and is made of `nisa` instructions.

``common``       operands, number formats of results
``across``       reductions over the trips of a loop, over a launch grid
``creation``     tensors: new ones, filled ones, constants, random numbers
``elementwise``  operators and functions of each element
``movement``     between HBM and SBUF, copies, other shapes
``masks``        masks of matrix products
``products``     matrix products and transposes
``program``      loops, the launch grid, the sizes of tiles
``reductions``   along the free axes; softmax, rms_norm
``selection``    elements chosen by a condition, or by chance
"""
