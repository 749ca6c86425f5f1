"""AWS's own kernels, with AWS's own tests, on the simulator."""
