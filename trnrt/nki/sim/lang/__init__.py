"""The functions of ``nki.language``, by subject. Each is made of `nisa` instructions, listed in its docstring.

AWS's compiler may choose others. By default, results are new tiles in SBUF, computed in float32 and rounded once.

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
``left_out``     what NKI 0.7 added and the simulator lacks
"""
