"""The kernels beside times that others measured, limits of courses and targets of ours."""
