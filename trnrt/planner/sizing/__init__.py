"""The size of a kernel: instructions are counted, and a budget of them is met by loops and by several kernels."""
