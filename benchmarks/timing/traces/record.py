"""A run of a kernel, measured or predicted: what each engine did when, and what it waited for.

Times are integers, nanoseconds on the run's own clock. Both sides use the same record, so that code to measure or pair
events exists once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
NONE = -1


class Packet(NamedTuple):
    """One packet on one DMA engine. ``mark``: it only sets the semaphore, after a transfer's last data."""

    queue: str
    engine: int
    start: int
    end: int
    size: int
    mark: bool


class Pass(NamedTuple):
    """One MATMUL of a product with the load of its weights before it, (start, end) each."""

    load: tuple[int, int]
    product: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A trigger's transfer. ``mode`` is the origin of its descriptors: software, hardware, static, or unknown.

    Data flowed from ``start`` to ``end``; its semaphore was complete at ``seen``. ``packets`` are empty if unknown.
    """

    queue: str
    mode: str
    direction: str
    size: int
    start: int
    end: int
    seen: int | None
    packets: tuple[Packet, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One instruction of a kernel; a product is one event, however many passes it takes.

    ``kind`` and ``size`` (elements per partition, a transfer's bytes) describe it, ``place`` says where its data is
    read and written (P: PSUM, S: SBUF) and in which dtypes, ``source`` which kind of event made the data that a copy
    copies. ``seen`` is when its semaphore was set; ``waited_for`` the last of the events that it waited for, seen at
    ``ready``. ``slow``: at half the clock. ``name`` is the compiler's, or the kernel's line.
    """

    engine: str
    kind: str
    size: int
    start: int
    end: int
    place: str = ""
    source: str = ""
    name: str = ""
    seen: int | None = None
    ready: int | None = None
    waited_for: int = NONE
    slow: bool = False
    passes: tuple[Pass, ...] = ()
    transfer: Transfer | None = None

    @property
    def duration(self) -> int:
        return self.end - self.start

    @property
    def is_trigger(self) -> bool:
        return self.kind in TRIGGERS

    @property
    def what(self) -> str:
        """Kind and size in words."""
        if self.is_trigger:
            return f"{self.kind} {self.size / 1024:g} KiB"
        return f"{self.kind} {self.size} {self.place}".strip() if self.size else self.kind


TRIGGERS = ("load", "store", "move")
"""Kinds of triggers: from HBM to SBUF, from SBUF to HBM, and within one of them."""

HELPERS = ("wait", "table load")
"""Kinds that only a compiled kernel has: a wait for one more semaphore, the load of a function's table."""


class Window(NamedTuple):
    """A span with a constant rate of the tensor engine's clock."""

    start: int
    end: int
    full: bool


@dataclass(frozen=True)
class Run:
    """The events of a kernel in the order of their starts, and their surroundings.

    ``total`` is the whole profile's length, ``first`` and ``last`` the kernel's own first start and last semaphore;
    ``before`` and ``after`` count the runtime's instructions there. ``foreign`` are packets of queues that don't belong
    to the kernel (instruction fetches, tables), ``facts`` the profile's statements about its device and compiler.
    """

    name: str
    events: tuple[Event, ...]
    total: int
    first: int
    last: int
    windows: tuple[Window, ...] = ()
    foreign: dict[str, int] = field(default_factory=dict)
    before: int = 0
    after: int = 0
    active: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def on(self, engine: str) -> list[int]:
        """The indices of an engine's events, in the order of their start."""
        return [n for n, event in enumerate(self.events) if event.engine == engine]
