"""The old namespace, ``neuronxcc.nki`` (NKI Beta 1, SDK 2.26), over the same machine.

Its kernels return results (``c = nl.add(a, b)``) where today's write to a ``dst``. Everything else is
shared: they issue today's instructions, with the same rules, memory and timing. Reference: SDK 2.26.1, nki/api.
docs/legacy.md has the choices where that is silent, and which of its errors are refused.

``indexing``    nl.arange, nl.mgrid, masks
``session``     the state of a kernel while it is traced
``windows``     parts of tensors
``slicing``     slices that a mask cuts off
``splitting``   instructions on too many dimensions
``operators``   Python's operators on tiles
``annotating``  annotations, and tensors without data
``tiles``       tensors and tiles, results that wait for their destination
``assigning``   ``t[...] = value``
``allocating``  addresses chosen by the kernel
``blocks``      block dimensions
``lang``        the functions of nl
``instructions``  the functions of nisa
``launching``   jit, launch grids, simulate_kernel, baremetal, benchmark, profile
``returning``   returns inside loops
``artefacts``   the files that harnesses look for
``api``         the names of SDK 2.26.1
``namespaces``  the modules under their old names
"""
