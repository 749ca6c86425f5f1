"""Elements chosen by a condition, or by chance."""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Mask
from trnrt.nki.legacy.lang.common import broadcast_shape, require_operand, require_tile, result_format, spread
from trnrt.nki.legacy.tiles import Pending, Tile
from trnrt.nki.machine.dtypes import uint8
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang import common as today
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["dropout", "where"]


def where(condition: Any, x: Any, y: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """``x`` where ``condition`` is not 0, else ``y``; sizes of 1 are repeated.

    A predicate of uint8 (a tensor_scalar, unless the condition is one), a copy of y, and a tensor_copy_predicated of x.
    """
    what = "nl.where"
    if isinstance(condition, Mask):
        raise KernelError(
            f"{what}: condition is a condition on index expressions; it must be a tile",
            hint="nisa.affine_select chooses by index expressions",
        )
    condition = require_tile(what, condition, "condition")
    x, y = require_operand(what, x, "x"), require_operand(what, y, "y")
    tiles = [one for one in (condition, x, y) if isinstance(one, Tile)]
    return Pending(_common_shape(what, tiles), result_format(dtype, x, y), _choose, (condition, x, y), mask=mask)


def _common_shape(what: str, tiles: list[Tile]) -> tuple[int, ...]:
    """The shape of all, with sizes of 1 repeated."""
    found = tiles[0]
    for other in tiles[1:]:
        shape = broadcast_shape(what, found, other)
        if shape != found.shape:
            found = other if shape == other.shape else found
        if shape != found.shape:
            raise KernelError(f"{what}: shapes {[one.shape for one in tiles]}; one of them must hold the others")
    return found.shape


def _choose(dst: NkiTensor, condition: NkiTensor, x: Any, y: Any) -> None:
    """The elements into a tile of their own if ``dst`` is one of the operands, then a copy of that."""
    aliases = any(isinstance(one, NkiTensor) and one.storage is dst.storage for one in (condition, x))
    made = today.tile(dst.shape, dst.dtype) if aliases else dst
    predicate = spread(condition, dst.shape)
    if condition.dtype is not uint8:
        truth = today.tile(condition.shape, uint8)
        isa.tensor_scalar(truth, condition, OPERATORS["not_equal"], 0.0)
        predicate = spread(truth, dst.shape)
    if isinstance(y, NkiTensor):
        isa.tensor_copy(made, spread(y, dst.shape))
    else:
        isa.memset(made, y)
    chosen = today.cast(spread(x, dst.shape), dst.dtype) if isinstance(x, NkiTensor) else x
    isa.tensor_copy_predicated(made, chosen, predicate)
    if made is not dst:
        isa.tensor_copy(dst, made)


def dropout(x: Any, rate: Any, *, dtype: Any = None, mask: Any = None, **_: Any) -> Pending:
    """``x``, each element replaced by 0 with the probability ``rate``, a number, a tile of one element, or a column
    ``[P, 1]``; nothing is scaled."""
    what = "nl.dropout"
    x, rate = require_tile(what, x), require_operand(what, rate, "rate")
    if isinstance(rate, Tile) and (rate.free_size != 1 or rate.shape[0] not in (1, x.shape[0])):
        raise KernelError(f"{what}: rate has shape {rate.shape}; it must be a number, [1, 1] or [{x.shape[0]}, 1]")

    def emit(dst: NkiTensor, a: NkiTensor, probability: Any) -> None:
        made = dst if dst.dtype == a.dtype else today.tile(dst.shape, a.dtype)
        if isinstance(probability, NkiTensor):
            probability = spread(probability, (a.shape[0], 1))
        isa.dropout(made, a, probability)
        if made is not dst:
            isa.tensor_copy(dst, made)

    return Pending(x.shape, result_format(dtype, x), emit, (x, rate), mask=mask)
