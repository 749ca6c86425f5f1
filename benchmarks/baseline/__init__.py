"""The kernels of one commit, 1e68255, kept so that the present timing model can time them."""
