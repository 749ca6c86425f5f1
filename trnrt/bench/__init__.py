"""Benchmarks: how fast trnrt is, measured against numpy and PyTorch in the same process.

``measuring``  interleaved runs, medians, and how many threads BLAS takes
``kernels``    the kernels that are measured
``simulator``  the cases of ``trnrt bench simulator``, with their bars
``worker``     one case in a process of its own, where BLAS takes its threads from the environment
"""
