"""The kernels beside published measurements, the limits of courses and our own targets."""
