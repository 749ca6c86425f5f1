"""The kernels' share of the hardware's limit, over random shapes."""
