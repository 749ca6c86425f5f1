"""Operands of nisa's functions, and instructions that write to tiles which the kernel names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Bounds, regions
from trnrt.nki.legacy.lang.common import require_tile, result_format
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import Pending, Tile, narrow_operand
from trnrt.nki.machine.dtypes import DTYPES, DType
from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.sim.lang.common import cast
from trnrt.nki.sim.tensor import NkiTensor

FLOAT32_MIN = float(np.finfo(np.float32).min)


P = ParamSpec("P")
R = TypeVar("R")


def instruction(function: Callable[P, R]) -> Callable[P, R]:
    """A function of nisa: it refuses arguments that it doesn't have, and takes ``name=`` and ``buffer=``.

    The old functions take any keyword. ``buffer=nl.psum`` puts the result there; a name has no effect.
    """
    known = frozenset(signature(function).parameters)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs.keys() <= known:
            return function(*args, **kwargs)
        what, given = f"nisa.{function.__name__}", dict[str, Any](kwargs)
        given.pop("name", None)
        region = given.pop("buffer", None)
        for name in given.keys() - known:
            raise KernelError(f"{what} has no argument {name!r}; it has {', '.join(sorted(known - {'_', '__'}))}")
        made: Any = function(*args, **given)
        if region is not None:
            _place_result(what, made, region)
        return made  # type: ignore[no-any-return]

    return call


def _place_result(what: str, made: Any, region: Any) -> None:
    """Let a result that has no tile yet get one in SBUF or PSUM."""
    if region not in (MemoryRegion.sbuf, MemoryRegion.psum) or not isinstance(made, Pending):
        raise KernelError(f"{what}: buffer={region!r}; it must be nl.sbuf or nl.psum, for a result that is returned")
    made.place_in(region)


class Rows(Tile):
    """An operand of which a mask takes whole rows: its free dimensions are not those of the data."""

    __slots__ = ()

    def narrow(self, bounds: Bounds) -> Tile:
        return super().narrow(bounds[:1])


class Columns(Tile):
    """An operand of which a mask takes all partitions."""

    __slots__ = ()

    def narrow(self, bounds: Bounds) -> Tile:
        return super().narrow(((0, self.shape[0]), *bounds[1:]))


class Whole(Tile):
    """An operand that is part of the data already."""

    __slots__ = ()

    def narrow(self, bounds: Bounds) -> Tile:
        return self


def require_result(what: str, value: Any, argument: str) -> Tile | None:
    """A tile that the instruction also writes, in place; None if none is given."""
    return None if value is None else require_tile(what, value, argument)


def require_free_size(what: str, tile: Tile, size: int, argument: str) -> Tile:
    """The tile; KernelError if it has not ``size`` elements in each partition."""
    if tile.free_size != size:
        raise KernelError(f"{what}: {argument} has {tile.free_size} elements a partition, {tile.shape}; give {size}")
    return tile


def issue_now(
    dst: Tile, emit: Callable[..., object], sources: Sequence[Any], mask: Any, iteration: Sequence[int] | None = None
) -> None:
    """Issue an instruction that writes a tile of the kernel's: once for each rectangle of the mask."""
    session = active_session("an instruction")
    target = Tile(dst.window)
    given = [Tile(one.window) if isinstance(one, Pending) else one for one in sources]
    session.flush()
    shape = target.shape if iteration is None else tuple(iteration)
    for bounds in regions(mask, shape):
        part = target if bounds is None else target.narrow(bounds)
        emit(part.target, *(narrow_operand(one, bounds, shape) for one in given))


def require_one_range(what: str, regions: Sequence[Bounds | None]) -> None:
    """KernelError if a mask leaves two ranges of a partition to an instruction that goes through it from end to end."""
    rows = [bounds[0] for bounds in regions if bounds is not None]
    if len(set(rows)) != len(rows):
        raise KernelError(
            f"{what}: the mask leaves several ranges of elements in a partition; it must leave one",
            hint="copy the elements that count to a tile of their own, or overwrite the rest by nl.where",
        )


def parts_of(made: Pending) -> list[Bounds | None]:
    """The parts of the data that a result's mask leaves."""
    return [source for source, _ in made.parts]


def as_column(operand: Any, op: Operator | None) -> Any:
    """A column of float32, which today's instruction takes; Beta 1 took any format."""
    if not isinstance(operand, NkiTensor) or op is None or op.bitvec:
        return operand
    return cast(operand, DTYPES["float32"])


def as_integers(window: NkiTensor) -> NkiTensor:
    """A tile of truth values as uint8, which predicates are on the device; others as they are."""
    return window.view(DTYPES["uint8"]) if window.dtype == DTYPES["bool_"] else window


def row_bounds(size: int) -> Callable[[Bounds], Bounds]:
    """The bounds of a result ``[P, size]`` for those of the data: the partitions, and all of its elements."""
    return lambda bounds: (bounds[0], (0, size))


def merge_free(window: NkiTensor) -> NkiTensor:
    """The window with one free dimension, if its strides allow that."""
    try:
        return window.flatten_dims(1, window.ndim - 1) if window.ndim > 2 else window
    except KernelError:
        return window


def index_format(dtype: Any, default: str) -> DType:
    """The format of indices: uint16 or uint32."""
    return DTYPES[default] if dtype is None else result_format(dtype)
