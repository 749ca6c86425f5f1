"""``python -m benchmarks.reports``: which numbers of the timing model a self-test's report can decide, and how well.

``rehearsal``  reports of a device that does not exist: the simulator's predictions with other numbers, and noise
``sweep``      each number changed alone, and threes together, and fitted again
"""
