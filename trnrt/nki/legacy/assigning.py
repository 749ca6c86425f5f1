"""Assignment to tiles: ``t[...] = value``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Bounds
from trnrt.nki.legacy.session import active_session
from trnrt.nki.legacy.tiles import FUNCTIONS, SCALARS, SMALL_FLOATS, Pending, Tile, reshape_target
from trnrt.nki.legacy.windows import is_same_window, repeat
from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.machine.rules.access import start_problem
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor


def assign(target: Tile, value: Any) -> Tile:
    """``target[...] = value``, and the target."""
    _write(target, value)
    return target


def _write(target: Tile, value: Any) -> None:
    """The instruction that makes the value writes to the target, or the value is copied."""
    session = active_session("an assignment")
    if isinstance(value, Tile) and not isinstance(value, Pending) and is_same_window(target._view, value._view):
        return  # the end of ``t[...] += x``, which has written already
    if not target.on_chip:
        raise KernelError(
            f"{target.describe()} is in HBM: assigning to it is no instruction",
            hint="write nl.store(tensor[...], value) or nisa.dma_copy(dst=tensor[...], src=value)",
        )
    if isinstance(value, SCALARS):
        session.flush()
        _fill(target.window, float(value) if isinstance(value, SMALL_FLOATS) else value)
        return
    if not isinstance(value, Tile):
        raise KernelError(f"a {type(value).__name__} is assigned to a tile; it must be a tile or a number")
    if isinstance(value, Pending) and not value.parts:
        return  # its mask is false everywhere
    if prod(value.shape) != prod(target.shape) and value.free_size != 1:
        _refuse_sizes(target, value)
    if isinstance(value, Pending) and value.shape[0] == target.shape[0] and value.issue_into(target):
        return
    if not value.on_chip:
        raise KernelError(
            f"{value.describe()} is in HBM: bring it in with nl.load", hint="t[...] = nl.load(tensor[...])"
        )
    session.flush()
    source, goal, parts = Tile(value.window), Tile(target.window), _parts_of(value)
    if value.free_size != target.free_size:
        source = Tile(repeat(source.window, goal.shape))
        parts = [bounds and bounds[:1] for bounds in parts]
    if source.shape[0] != goal.shape[0]:
        _refuse_sizes(target, value)
    for bounds in parts:
        if bounds is None:
            isa.tensor_copy(goal.window, source.window)
        else:
            _copy_part(goal, source, bounds)


def _parts_of(value: Tile) -> Sequence[Bounds | None]:
    """The parts of a tile that its mask has let an instruction write; [None] if that is all of it."""
    return [bounds for _, bounds in value.parts] if isinstance(value, Pending) else [None]


def _copy_part(goal: Tile, source: Tile, bounds: Bounds) -> None:
    """Copy one part of a result; the rest of the target keeps its numbers."""
    shaped = reshape_target(goal, source.shape)
    if shaped is None:
        raise KernelError(
            f"a masked result of shape {source.shape} is assigned to a tile of shape {goal.shape}; give them one shape"
        )
    isa.tensor_copy(shaped.narrow(bounds).target, source.narrow(bounds).window)


def _fill(view: NkiTensor, value: Any) -> None:
    """memset; where no engine can start, of a tile that a DMA then copies to the view."""
    if start_problem("dst", view) is None:
        isa.memset(view, value)
        return
    made = active_session("an assignment").allocate(view.shape, view.dtype, MemoryRegion.sbuf)
    isa.memset(made, value)
    isa.dma_copy(view, made)


def _refuse_sizes(target: Tile, value: Tile) -> NoReturn:
    raise KernelError(f"a tile of shape {value.shape} is assigned to one of shape {target.shape}; sizes must agree")


FUNCTIONS["assign"] = assign
