"""How near the kernels are to the hardware's limit over random shapes."""
