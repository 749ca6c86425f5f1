"""Networks in int8 beside their float models: ``python -m benchmarks.quantised``."""
