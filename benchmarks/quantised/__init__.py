"""Networks in int8 and 8-bit floats beside their float models: ``python -m benchmarks.quantised``."""
