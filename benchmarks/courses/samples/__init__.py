"""Our own drivers for the kernels of nki-samples: inputs, and references in numpy. None of its code is here.

``cases``      what a driver is, and the drivers by file and kernel
``files``      the repository's files with kernels, and what each of them imports
``running``    load a kernel, run its driver, compare
``stand_ins``  packages that files import for what they do beside their kernels
``tutorials``, ``attention``, ``reference``, ``contributed``  the drivers
"""
