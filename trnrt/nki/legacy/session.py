"""The state of a kernel of the old namespace while it is traced: its place in the launch grid, what waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import DType
from trnrt.nki.machine.program import Instruction, MemoryRegion, Source
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import Tracer

Place = tuple[Source, int]


class Waiting(Protocol):
    """The result of an instruction that waits for its destination."""

    def issue(self) -> None:
        """Issue the instruction, with a tile of its own."""


@dataclass(eq=False)
class LoopTrips:
    """A loop that runs, and the places of tiles that its body has given: in ``first`` they are noted, later used.

    ``source``: the line that began it.
    """

    source: Source

    first: bool = True
    given: list[tuple[Source, Any]] = field(default_factory=list)
    at: int = 0

    def begin(self, *, first: bool) -> None:
        """Begin a trip."""
        self.first, self.at = first, 0


@dataclass
class Session:
    """One instance of a kernel. ``program``: its place in the launch grid, of the sizes ``grid``.

    ``pending``: the last instruction, if it waits for its destination. ``shared``: the tensors in HBM that the first
    instance has allocated, in order: the others' are the same. ``zeros``: tiles of PSUM that count as zeros and aren't
    written yet, each with the place of its allocation: a matrix product that adds to one may overwrite it.
    ``automatic``: the allocator places all tiles, also those that the kernel gives addresses. ``stacked``: tiles of
    both kinds may be mixed. ``allocated``: where the first tile with a given address is, and the first without.
    ``runs``: of loops that ``nl.loop_reduce`` reduces over. ``loops``: those that run, the outermost first.
    ``left``: the begin of a loop that was left before its last trip.
    """

    tracer: Tracer
    program: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    shared: list[NkiTensor] = field(default_factory=list)
    pending: Waiting | None = None
    zeros: dict[int, tuple[NkiTensor, Place]] = field(default_factory=dict)
    outputs: int = 0
    automatic: bool = False
    stacked: bool = False
    allocated: dict[bool, Source] = field(default_factory=dict)
    runs: dict[object, object] = field(default_factory=dict)
    loops: list[LoopTrips] = field(default_factory=list)
    left: Source | None = None

    def flush(self) -> None:
        """Issue the instruction that waits."""
        waiting, self.pending = self.pending, None
        if waiting is not None:
            waiting.issue()

    def use_allocation(self, *, direct: bool) -> None:
        """Note that the kernel gives a tile its address (``direct``), or leaves that to the allocator: not both."""
        self.allocated.setdefault(direct, self.tracer.here()[0])
        if len(self.allocated) == 2 and not (self.automatic or self.stacked):
            raise KernelError(
                "a kernel gives all of its tiles addresses, or none (NKI Beta 1): mod_alloc or alloc at "
                f"{self.allocated[True]}, the allocator's choice at {self.allocated[False]}",
                hint="give each nl.ndarray a buffer=ncc.sbuf.mod_alloc(...) or ncc.psum.mod_alloc(...), or decorate "
                "the kernel with @nki.compiler.force_auto_alloc",
            )

    def repeat_allocation(self, allocation: Any) -> Any:
        """The addresses for a tile: in later trips of a loop those of the first one.

        AWS's compiler traces a loop's body once: ``base_addr=offset; offset += size`` there is one address.
        """
        source = self.tracer.here()[0]
        for loop in self.loops:
            if not loop.first and loop.at < len(loop.given) and loop.given[loop.at][0] == source:
                allocation = loop.given[loop.at][1]
                break
        for loop in self.loops:
            if loop.first:
                loop.given.append((source, allocation))
            else:
                loop.at += 1
        return allocation

    @contextmanager
    def write_at(self, place: Place) -> Iterator[None]:
        """Instructions issued inside were written at ``place``."""
        before, self.tracer.place = self.tracer.place, place
        try:
            yield
        finally:
            self.tracer.place = before

    @contextmanager
    def insert_at(self, instruction: Instruction, *, after: bool) -> Iterator[None]:
        """Put the instructions issued inside before one of the program, or after it."""
        issued = self.tracer.program.instructions
        count = len(issued)
        yield
        made = issued[count:]
        at = next(at for at in reversed(range(count)) if issued[at] is instruction) + after
        issued[at:] = [*made, *issued[at:count]]

    def allocate(
        self,
        shape: Sequence[int],
        dtype: DType,
        buffer: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
        what: str = "nl.ndarray",
    ) -> NkiTensor:
        """A new tensor, for ``what``. One in shared HBM belongs to all instances: the n-th of each is the same."""
        sizes = tuple(int(size) for size in shape)
        if buffer is not MemoryRegion.shared_hbm:
            return self.tracer.allocate(sizes, dtype, buffer, name, address, what)
        number, self.outputs = self.outputs, self.outputs + 1
        if number == len(self.shared):
            self.shared.append(self.tracer.allocate(sizes, dtype, buffer, name, None))
        found = self.shared[number]
        if (found.shape, found.dtype, found.storage.source) != (sizes, dtype, self.tracer.here()[0]):
            raise KernelError(
                f"instance {self.program} of the launch grid makes a tensor {sizes} of {dtype} in HBM where the first "
                f"instance makes {found.storage}; the instances share these tensors, in order",
                hint="make the same tensors in each instance, outside conditions on nl.program_id",
            )
        return found

    def promise_zeros(self, tile: NkiTensor) -> None:
        """Let a new tile of PSUM count as zeros, without writing it yet."""
        self.zeros[tile.storage.index] = tile, self.tracer.here()

    def is_zero(self, view: NkiTensor) -> bool:
        """True if the view's tile counts as zeros."""
        return view.storage.index in self.zeros

    def covers_zeros(self, view: NkiTensor) -> bool:
        """True if the view is a whole tile that counts as zeros."""
        return self.is_zero(view) and view.covers_storage()

    def forget_zeros(self, view: NkiTensor) -> None:
        """Drop the promise for a tile that is about to be overwritten; write the zeros if only a part of it is."""
        if self.covers_zeros(view):
            del self.zeros[view.storage.index]
        else:
            self.fill_zeros(view)

    def fill_zeros(self, view: NkiTensor) -> None:
        """Write the zeros that the view's tile counts as, if it does."""
        promised = self.zeros.pop(view.storage.index, None)
        if promised is not None:
            tile, place = promised
            with self.write_at(place):
                isa.memset(tile, 0)


_ACTIVE: ContextVar[Session | None] = ContextVar("active_session", default=None)


@contextmanager
def activate(session: Session) -> Iterator[Session]:
    """Make ``session`` the one that functions of the old namespace work in."""
    token = _ACTIVE.set(session)
    try:
        yield session
        session.flush()
    finally:
        _ACTIVE.reset(token)


def active_session(what: str) -> Session:
    """The session of the running kernel; KernelError if ``what`` was used outside of one."""
    session = _ACTIVE.get()
    if session is None:
        raise KernelError(f"{what} was used outside a kernel; decorate the function with @nki.jit and call that")
    return session


def begin_loop() -> LoopTrips | None:
    """Note that a loop runs in the active session, if there is one; ``end_loop`` ends it."""
    session = _ACTIVE.get()
    if session is None:
        return None
    loop = LoopTrips(session.tracer.here()[0])
    session.loops.append(loop)
    return loop


def end_loop(loop: LoopTrips, *, early: bool) -> None:
    """End a loop, and those inside it; ``early``: it was left before its last trip."""
    session = _ACTIVE.get()
    if session is not None and loop in session.loops:
        session.left = loop.source if early else session.left
        del session.loops[session.loops.index(loop) :]


def is_active() -> bool:
    """True if a kernel of the old namespace is being traced."""
    return _ACTIVE.get() is not None


def instance(what: str, axis: int) -> tuple[int, int]:
    """The number of this instance along an axis of the launch grid, and their count; without a grid 0 and 1."""
    session = active_session(what)
    if not session.grid and axis == 0:
        return 0, 1
    if not 0 <= axis < len(session.grid):
        raise KernelError(f"{what}: axis {axis} of a launch grid of {len(session.grid)} dimensions, {session.grid}")
    return session.program[axis], session.grid[axis]


__all__ = [
    "Place",
    "Session",
    "Waiting",
    "activate",
    "active_session",
    "begin_loop",
    "end_loop",
    "instance",
    "is_active",
]
