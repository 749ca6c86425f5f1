"""The lowering functions, one file a family; importing this package registers them all."""

from trnrt.planner.ops import boundary, conv, elementwise, linear, pool, rows, shape

__all__ = ["boundary", "conv", "elementwise", "linear", "pool", "rows", "shape"]
