"""Tensors and tiles of the old namespace: views with its index expressions, operators, results that wait.

A ``Tile`` is a window on a tensor in HBM, SBUF or PSUM. A ``Pending`` is the result of an instruction that waits for
its destination: ``t[...] = nl.exp(x)`` and ``psum += nisa.nc_matmul(x, y)`` write to ``t`` and ``psum`` at once. Any
other use, and the next instruction, give it a tile of its own. So instructions are issued in the order of the program.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Bounds, Index, Mask, regions
from trnrt.nki.legacy.operators import COMPARISONS, OPERATORS
from trnrt.nki.legacy.session import Session, active_session
from trnrt.nki.legacy.splitting import MOST_DIMENSIONS, split_ranks
from trnrt.nki.legacy.windows import ALL, Beyond, are_plain, is_same_window, require_inside, select
from trnrt.nki.machine.dtypes import DType, as_dtype, float32, tfloat32
from trnrt.nki.machine.program import Instruction, MemoryRegion, Source
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.values import MARKER

SMALL_FLOATS = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2)
SCALARS = (int, float, np.number, np.bool_, *SMALL_FLOATS)

FUNCTIONS: dict[str, Callable[..., Tile]] = {}
"""Functions behind the operators and methods of tiles, which register themselves: ``assign``, ``binary``, ``copy``."""


class Tile:
    """A window on a tensor. Instructions take ``window``; reading it issues what waits to fill the tensor."""

    __slots__ = ("_beyond", "_view")

    def __init__(self, view: NkiTensor, beyond: Sequence[Beyond] = ()) -> None:
        self._view = view
        self._beyond = tuple(beyond)

    @property
    def window(self) -> NkiTensor:
        active_session("a tile").fill_zeros(self._view)
        return self.target

    @property
    def target(self) -> NkiTensor:
        """The view, to be written as a whole; KernelError if it leaves its tensor."""
        require_inside(self._view, self._beyond)
        return self._view

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view.shape

    @property
    def format(self) -> DType:
        """The number format on the device."""
        return self._view.dtype

    @property
    def dtype(self) -> Any:
        """The number format as numpy's dtype, as the old namespace has it; of tfloat32, which numpy lacks, its own."""
        return self.format if self.format is tfloat32 else self.format.numpy

    @property
    def buffer(self) -> MemoryRegion:
        return self._view.buffer

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.format.itemsize

    @property
    def on_chip(self) -> bool:
        return self.buffer in (MemoryRegion.sbuf, MemoryRegion.psum)

    @property
    def is_indirect(self) -> bool:
        """True if indices that only the device knows select its elements."""
        return self._view.dynamic is not None

    @property
    def free_size(self) -> int:
        """Elements in each partition."""
        return prod(self.shape[1:])

    def describe(self) -> str:
        """The shape, the number format and the memory, without the numbers."""
        return f"Tile({self.shape}, {self.format}, {self.buffer.value})"

    def __repr__(self) -> str:
        """The numbers, where a simulated kernel prints them or a debugger asks; the description elsewhere."""
        marker = MARKER.get()
        return self.describe() if marker is None else marker(self.window, self.describe(), sys._getframe(1))

    __str__ = __repr__

    def __bool__(self) -> bool:
        raise KernelError("a tile's numbers are known on the device only: no Python condition can test them")

    def __iter__(self) -> Iterator[Any]:
        raise KernelError("a tile can't be iterated over; take parts of it in a loop over nl.affine_range")

    def __len__(self) -> int:
        return self.shape[0]

    # -- Parts ---------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Mask):
            return MaskedTile(self, key)
        keys = key if isinstance(key, tuple) else (key,)
        view = self.window if isinstance(self, Pending) else self._view
        if len(keys) == 1 and isinstance(keys[0], (bool, np.bool_)):
            return self._mask_operand(view, keys[0])
        if not self._beyond and are_plain(keys, view.shape):
            return Tile(view if keys.count(ALL) == len(keys) else view[keys])
        keys = tuple(one.window if isinstance(one, Tile) else one for one in keys)
        found, beyond = select(view, keys)
        if self._beyond and is_same_window(found, view):
            return Tile(view, self._beyond)
        return Tile(found if not self._beyond else select(self.target, keys)[0], beyond)

    def __setitem__(self, key: Any, value: Any) -> None:
        FUNCTIONS["assign"](self[key], value)

    def _mask_operand(self, view: NkiTensor, mask: bool | np.bool_) -> Tile:
        """The tile as an operand whose own mask holds everywhere, or nowhere: then no instruction may use it."""
        masked_out = (0, 0, 0, (0,) * view.ndim)
        return Tile(view, self._beyond if mask else (*self._beyond, masked_out))

    def narrow(self, bounds: Bounds) -> Tile:
        """The part within bounds of each dimension; a dimension of size 1 stays, as it is repeated."""
        shape, offset, dynamic = list(self.shape), self._view.offset, self._view.dynamic
        beyond = list(self._beyond)
        for dim, (first, end) in enumerate(bounds):
            if shape[dim] == 1:
                continue
            shape[dim] = end - first
            if dim == 0 and dynamic is not None and isinstance(dynamic.vector, NkiTensor):
                dynamic = replace(dynamic, vector=dynamic.vector[first:end])
                continue
            offset += first * self._view.strides[dim]
            beyond = [(d, size, start + first * steps[dim], steps) for d, size, start, steps in beyond]
        return Tile(replace(self._view, shape=tuple(shape), offset=offset, dynamic=dynamic), beyond)

    # -- Other forms ---------------------------------------------------------------------------------------

    def reshape(self, *sizes: Any, shape: Any = None) -> Tile:
        """The same elements in another shape; on chip the partitions stay."""
        if shape is not None:
            sizes = tuple(shape)
        wanted = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
        return Tile(self.window.reshape(tuple(int(size) for size in wanted)))

    def broadcast_to(self, shape: Sequence[int], **_: Any) -> Tile:
        """A view with the dimensions of size 1 repeated; of a single partition on chip a copy in each."""
        return FUNCTIONS["broadcast_to"](self, shape=shape)

    def expand_dims(self, axis: int | Sequence[int]) -> Tile:
        """A view with a dimension of size 1 at each ``axis`` of its shape."""
        return FUNCTIONS["expand_dims"](self, axis)

    def view(self, dtype: Any) -> Tile:
        """The same bits in another format."""
        return Tile(self.window.view(as_dtype(dtype)))

    def astype(self, dtype: Any) -> Tile:
        """A copy in another format."""
        return FUNCTIONS["copy"](self, dtype=dtype)

    def assert_shape(self, shape: Sequence[int]) -> Tile:
        """The tile itself; KernelError if it has another shape."""
        if tuple(shape) != self.shape:
            raise KernelError(f"a tile has shape {self.shape}; it should be {tuple(shape)}")
        return self

    # -- Operators -----------------------------------------------------------------------------------------

    def _operate(self, name: str, other: Any, *, swapped: bool = False) -> Tile:
        if not isinstance(other, (Tile, *SCALARS)):
            return NotImplemented  # type: ignore[no-any-return]
        x, y = (other, self) if swapped else (self, other)
        return FUNCTIONS["binary"](name, x, y)

    def _operate_here(self, name: str, other: Any) -> Tile:
        """``self <op>= other``: in this tile."""
        if name == "add" and isinstance(other, Pending) and other.fold_into(self):
            return self
        return FUNCTIONS["assign"](self, self._operate(name, other))

    def __neg__(self) -> Tile:
        return FUNCTIONS["negative"](self)

    def __invert__(self) -> Tile:
        return FUNCTIONS["invert"](self)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class MaskedTile:
    """``tile[condition]``: an operand of a matrix product with a part that counts alone."""

    tile: Tile
    mask: Mask


def _add_operators() -> None:
    """Give tiles Python's operators."""
    for special, name in (*OPERATORS.items(), *COMPARISONS.items()):
        setattr(Tile, f"__{special}__", lambda self, other, name=name: self._operate(name, other))
    for special, name in OPERATORS.items():
        setattr(Tile, f"__r{special}__", lambda self, other, name=name: self._operate(name, other, swapped=True))
        setattr(Tile, f"__i{special}__", lambda self, other, name=name: self._operate_here(name, other))


_add_operators()

Emit = Callable[..., object]
"""Issues an instruction: the destination's view, then one operand for each source: a view, a number or None."""


_WHOLE: tuple[tuple[None, None], ...] = ((None, None),)
"""The parts of an instruction without a mask."""


@dataclass(frozen=True)
class _Given:
    """The tile that a result was assigned to, or added to, by the instructions ``issued``."""

    target: Tile
    issued: list[Instruction]


class Pending(Tile):
    """The result of an instruction that isn't issued yet: of this shape and format, in this memory.

    ``emit(dst, *sources)`` issues it, once for each region of the mask. ``fold(dst, *sources)`` adds to dst instead.
    ``bounds_of`` gives the bounds of the destination for those of the iteration, the shape that the mask is for.
    ``converts``: the engine rounds its float32 once, to any format; a float32 result can be written in another one.
    ``once``: it counts twice if it is issued twice.
    """

    __slots__ = (
        "_converts",
        "_dtype",
        "_emit",
        "_fold",
        "_given",
        "_iteration",
        "_once",
        "_place",
        "_region",
        "_shape",
        "_sources",
        "_waits",
        "parts",
    )

    def __init__(
        self,
        shape: Sequence[int],
        dtype: DType,
        emit: Emit,
        sources: Sequence[Any],
        *,
        buffer: MemoryRegion = MemoryRegion.sbuf,
        mask: Mask | bool | None = None,
        iteration: Sequence[int] | None = None,
        bounds_of: Callable[[Bounds], Bounds] | None = None,
        fold: Emit | None = None,
        converts: bool = False,
        once: bool = False,
    ) -> None:
        session = active_session("an instruction")
        # Operands that wait are issued now, before this one.
        self._sources = [_settle(one) for one in sources]
        session.flush()
        self._shape = on_chip_shape(shape)
        self._dtype, self._region = dtype, buffer
        self._emit, self._fold, self._converts, self._once = emit, fold, converts, once
        self._given: _Given | None = None
        self._iteration = self._shape if iteration is None else tuple(iteration)
        self._waits = True
        self._place: tuple[Source, int] = session.tracer.here()
        if mask is None:
            self.parts: Sequence[tuple[Bounds | None, Bounds | None]] = _WHOLE
        else:
            found = regions(mask, self._iteration)
            self.parts = [(one, one if one is None or bounds_of is None else bounds_of(one)) for one in found]
        self._beyond = ()
        session.pending = self

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def format(self) -> DType:
        return self._dtype

    @property
    def buffer(self) -> MemoryRegion:
        return self._region

    @property
    def window(self) -> NkiTensor:
        return self.target_of_read()

    @property
    def target(self) -> NkiTensor:
        return self.target_of_read()

    def place_in(self, region: MemoryRegion) -> None:
        """Give the result a tile in that memory, if it needs one of its own."""
        self._region = region

    def target_of_read(self) -> NkiTensor:
        """The tile of its own, which the instruction fills now if it still waits."""
        self.issue()
        if self._given is not None:
            self._view, self._given = self._keep(self._given), None
        return self._view

    def _keep(self, given: _Given) -> NkiTensor:
        """A tile of its own for a result that was assigned to another tile, and is used again: filled at that place of
        the program, as the other tile may have changed since."""
        session = active_session("an instruction")
        repeats = self._fold is not None or given.target.format != self.format
        if repeats and self._once:
            raise KernelError(
                "a result that adds up is assigned to a tile of another format, and used again",
                hint="assign it to a tile of its own format first, and copy that",
            )
        with session.write_at(self._place):
            own = self.allocate()
            if not given.issued:
                return own
            with session.insert_at(given.issued[0 if repeats else -1], after=not repeats):
                self._issue_parts(Tile(own), self._emit) if repeats else self._copy_parts(given.target, Tile(own))
        return own

    def _copy_parts(self, source: Tile, target: Tile) -> None:
        for _, bounds in self.parts:
            given, kept = (source, target) if bounds is None else (source.narrow(bounds), target.narrow(bounds))
            for part, (numbers,) in split_ranks(kept.target, [given.target]):
                isa.tensor_copy(part, numbers)

    def issue(self) -> None:
        """Give the result a tile of its own, if the instruction still waits."""
        if self._waits:
            with active_session("an instruction").write_at(self._place):
                try:
                    self._view = self.allocate()
                except KernelError as error:
                    self._explain(error)
                    raise
            self._issue_into(Tile(self._view), self._emit)
            self._given = None

    def allocate(self) -> NkiTensor:
        """The tile of its own."""
        session = active_session("an instruction")
        return session.allocate(self._shape, self._dtype, self._region, what="the result of an instruction")

    def issue_into(self, target: Tile) -> bool:
        """Write to ``target`` in place of a tile of its own, if its number format allows it; True if it did."""
        near = target.buffer is self.buffer or (self.buffer is MemoryRegion.sbuf and not self._loads)
        same = target.format == self.format or (self._converts and self.format is float32)
        dst = reshape_target(target, self._shape) if self._waits and same and target.on_chip and near else None
        if dst is None or self._disturbs(dst):
            return False
        self._issue_into(dst, self._emit)
        return True

    def fold_into(self, target: Tile) -> bool:
        """Add to ``target`` in PSUM, as matrix products can; True if it did."""
        if not self._waits or self._fold is None or target.buffer is not MemoryRegion.psum:
            return False
        dst = reshape_target(target, self._shape)
        if dst is not None:
            self._issue_into(dst, self._fold, folds=True)
        return dst is not None

    def _disturbs(self, target: Tile) -> bool:
        """True if it is issued in parts, and one of them would overwrite in ``target`` the numbers that others read."""
        if len(self.parts) == 1 and len(self._shape) <= MOST_DIMENSIONS:
            return False
        in_place = all(source == bounds for source, bounds in self.parts)
        read = [one._view for one in self._sources if isinstance(one, Tile)]
        return any(
            one.storage is target._view.storage and not (in_place and is_same_window(one, target._view)) for one in read
        )

    @property
    def _loads(self) -> bool:
        """True if DMA fills the tile, which does not reach PSUM."""
        return any(isinstance(one, Tile) and not one.on_chip for one in self._sources)

    def _issue_into(self, target: Tile, emit: Emit, *, folds: bool = False) -> None:
        session = active_session("an instruction")
        self._waits = False
        session.pending = None
        before, session.tracer.place = session.tracer.place, self._place
        try:
            if session.zeros:
                self._settle_zeros(session, target, folds=folds)
            issued = session.tracer.program.instructions
            count = len(issued)
            self._issue_parts(target, emit)
            self._given = _Given(target, issued[count:])
        except KernelError as error:
            self._explain(error)
            raise
        finally:
            session.tracer.place = before

    def _issue_parts(self, target: Tile, emit: Emit) -> None:
        for source, bounds in self.parts:
            dst = target if bounds is None else target.narrow(bounds)
            operands = [narrow_operand(one, source, self._iteration) for one in self._sources]
            for part, own in split_ranks(dst.target, operands):
                emit(part, *own)

    def _explain(self, error: KernelError) -> None:
        """Make an error name the line of this instruction, which is issued later, and its result."""
        error.source = error.source or self._place[0]
        if error.hint is None and re.search(r"\bdst\b", str(error)):
            error.hint = (
                "dst is the result of the instruction, in the format dtype=, or the tile that it is assigned to"
            )

    def _settle_zeros(self, session: Session, target: Tile, *, folds: bool) -> None:
        """Write the zeros that tiles count as: the sources', and the target's unless all of it is overwritten or added
        to."""
        for one in self._sources:
            if isinstance(one, Tile):
                session.fill_zeros(one._view)
        view, whole = target._view, (None, None) in self.parts
        if whole and (not folds or session.covers_zeros(view)):
            session.forget_zeros(view)
        else:
            session.fill_zeros(view)


def _settle(operand: Any) -> Any:
    """An operand for an instruction to come: results that wait are issued, floats of numpy's add-ons are Python's."""
    if isinstance(operand, Pending):
        return Tile(operand.target_of_read())
    return float(operand) if isinstance(operand, SMALL_FLOATS) else operand


def narrow_operand(value: Any, bounds: Bounds | None, shape: tuple[int, ...]) -> Any:
    """An operand of an instruction on a part of the elements of ``shape``: a window, an index expression, or what it
    is."""
    if isinstance(value, Index):
        return value if bounds is None else value.narrow(bounds)
    if not isinstance(value, Tile):
        return value
    if bounds is None:
        return value.window
    if value.ndim == len(shape):
        if type(value) is Tile and any(n not in (1, size) for n, size in zip(value.shape, shape, strict=True)):
            shaped = reshape_target(value, shape)
            value = value if shaped is None else shaped
        return value.narrow(bounds).window
    return value.narrow(bounds[:1]).window  # a column, or a tile of another rank, has its partitions in common


def reshape_target(target: Tile, shape: tuple[int, ...]) -> Tile | None:
    """The target in the shape of the result; None if it has other sizes, or no view of that shape."""
    if isinstance(target, Pending):
        target = Tile(target.target_of_read())
    if target.shape == shape:
        return target
    try:
        return Tile(target.target.reshape(shape))
    except KernelError:
        return None


def on_chip_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape with at least two dimensions: partitions, and elements of each."""
    sizes = tuple(int(size) for size in shape)
    return sizes if len(sizes) > 1 else (*(sizes or (1,)), 1)
