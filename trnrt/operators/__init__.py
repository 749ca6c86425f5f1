"""The lowering functions, one file a family; importing this package registers them all."""

from trnrt.operators import (
    boundary,
    conv,
    elementwise,
    gather,
    linear,
    movement,
    normalize,
    pipelines,
    pool,
    reduce,
    resize,
    rows,
)

__all__ = [
    "boundary",
    "conv",
    "elementwise",
    "gather",
    "linear",
    "movement",
    "normalize",
    "pipelines",
    "pool",
    "reduce",
    "resize",
    "rows",
]
