"""The functions of ``nki.language``, by subject. Each is made of `nisa` instructions; which ones is stated here.

AWS's compiler is free to choose others; the docstring of each function states our choice.
By default, results are new tiles in SBUF, computed in float32 and rounded once.

``common``       tiles, result dtypes, what strict mode refuses
``creation``     tensors with contents
``constants``    tensors that are part of the program, and printing
``movement``     between HBM and SBUF, views, broadcasting, gathering
``elementwise``  operators called as functions
``tokens``       which function calling an operator means
``rounding``     floor, ceil, trunc
``trigonometry`` sin, cos, tan over the whole range of angles, arctan
``selection``    where, dropout
``reductions``   along the free axes, softmax, rms_norm
``products``     matmul, transpose
``program``      ranges, no_reorder, the launch grid
``objects``      NKIObject
``sizes``        tile_size, memory regions
``packed``       the dtypes of MX, which are left out
"""
