"""The size of networks' kernels: their instructions, and what a budget of them costs."""
