"""The program: storages, views on them, and the flat stream of instructions from tracing a kernel.

The rest of the machine is functions over these: the allocator gives storages their addresses, the executor binds views
to arrays, the reports read names and source lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any, NamedTuple

from trnrt.nki.machine.dtypes import Array, DType
from trnrt.nki.machine.targets import Target


class MemoryRegion(Enum):
    """Where a tensor lives. ``registers`` belong to an engine; kernels reach them only through instructions."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    registers = "registers"

    def __repr__(self) -> str:
        return self.value


ON_CHIP = frozenset({MemoryRegion.sbuf, MemoryRegion.psum})


class Engine(Enum):
    """The engines of a NeuronCore, numbered as ``nisa.engine``."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6

    def __repr__(self) -> str:
        return self.name


class Source(NamedTuple):
    """A line of Python: where a kernel allocated a tile or issued an instruction."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@dataclass(slots=True, eq=False)
class Storage:
    """The memory of one ``nl.ndarray`` call, or of one kernel argument.

    ``shape`` and ``size`` count elements. ``address`` is ``(partition, byte)`` within SBUF or PSUM, given by the kernel
    (``pinned``) or chosen by the allocator; None in HBM. ``line`` is the line of the ``@nki.jit`` function that led to
    the allocation.
    """

    index: int
    shape: tuple[int, ...]
    dtype: DType
    buffer: MemoryRegion
    name: str
    source: Source
    address: tuple[int, int] | None = None
    pinned: bool = False
    line: int = 0
    size: int = field(init=False)
    on_chip: bool = field(init=False)
    partition_elements: int = field(init=False)  # elements one partition holds: the stride to the next
    strides: tuple[int, ...] = field(init=False)  # of its elements in row-major order

    def __post_init__(self) -> None:
        self.size = prod(self.shape)
        self.on_chip = self.buffer in ON_CHIP
        self.partition_elements = prod(self.shape[1:])
        self.strides = contiguous_strides(self.shape)

    @property
    def partition_bytes(self) -> int:
        return self.partition_elements * self.dtype.itemsize

    def coordinates(self, offset: int) -> list[int]:
        """The index in each dimension of the element at ``offset``."""
        found = []
        for stride in self.strides:
            index, offset = divmod(offset, stride)
            found.append(index)
        return found

    def overlap(self, other: Storage) -> tuple[int, int] | None:
        """The bytes of a partition, first and end, that two tiles with addresses share; None if they share none."""
        if self.buffer is not other.buffer or self.address is None or other.address is None:
            return None
        (partition, start), (other_partition, other_start) = self.address, other.address
        first = max(start, other_start)
        end = min(start + self.partition_bytes, other_start + other.partition_bytes)
        beside = partition >= other_partition + other.shape[0] or other_partition >= partition + self.shape[0]
        return None if beside or first >= end else (first, end)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return f"{self.name or 'tile'} [{shape}] {self.dtype} ({self.source})"


@dataclass(slots=True, eq=False)
class Register:
    """A scalar register of an engine: 32 bits at run time. ``frozen``: a loop's counter, which only the loop writes."""

    index: int
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The part of an address that is known only at run time.

    ``scalar`` (a register, or a tile of one element) shifts the whole view by its value times ``stride`` elements.
    ``vector`` (a tile of one index per partition) gives each index of the view's first dimension its own start. Indices
    are below ``limit``, the size of the dimension that they select from.
    """

    scalar: Register | View | None
    vector: View | None
    stride: int
    limit: int

    @property
    def index_tile(self) -> View | None:
        """The tile that holds the index; None if a register holds it."""
        if self.vector is not None:
            return self.vector
        return self.scalar if isinstance(self.scalar, View) else None


@dataclass(slots=True, eq=False)
class View:
    """A strided window on a storage. Element ``(i0, i1, ...)`` is ``offset + sum(strides[k] * ik)``, in elements.

    On-chip views keep the partition dimension first; its stride is a multiple of ``partition_elements``. ``cast``: read
    the storage's bits as another dtype; strides and offset then count its elements. ``dynamic``: the run-time part of
    the address. ``bounded``: the view is known to stay within the storage; instructions refuse other views.
    """

    storage: Storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    cast: DType | None = None
    dynamic: Dynamic | None = None
    bounded: bool = True

    @property
    def dtype(self) -> DType:
        return self.storage.dtype if self.cast is None else self.cast

    @property
    def partition_elements(self) -> int:
        """Elements of the view's dtype that one partition of the storage holds."""
        if self.cast is None:
            return self.storage.partition_elements
        return self.storage.partition_bytes // self.cast.itemsize

    @property
    def buffer(self) -> MemoryRegion:
        return self.storage.buffer

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def partitions(self) -> int:
        return self.shape[0]

    @property
    def free_size(self) -> int:
        """Elements that the view touches in each partition."""
        return prod(self.shape[1:])

    @property
    def start_partition(self) -> int:
        """First partition the view touches, counted from the start of its storage."""
        elements = self.partition_elements
        return self.offset // elements if elements else 0

    @property
    def first_partition(self) -> int:
        """First partition of SBUF or PSUM that the view touches, as far as its storage has an address."""
        return self.start_partition + (self.storage.address[0] if self.storage.address else 0)

    @property
    def step(self) -> int:
        """Elements from one element of a partition to the next: the stride of the innermost free dimension, or 1."""
        for dim in range(len(self.shape) - 1, 0, -1):
            if self.shape[dim] != 1:
                return self.strides[dim]
        return 1

    @property
    def contiguous_elements(self) -> int:
        """The number of elements that are contiguous in memory, on chip in a partition, from the first one on."""
        count, dims = 1, list(zip(self.shape, self.strides, strict=True))
        for size, stride in reversed(dims[1:] if self.storage.on_chip else dims):
            if size != 1 and stride != count:
                break
            count *= size
        return count

    def covers_storage(self) -> bool:
        """True if the view has every element of its storage, in any order of dimensions."""
        if self.cast is not None or self.dynamic is not None:
            return False
        if self.shape == self.storage.shape and self.strides == self.storage.strides:
            return True
        step = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size != 1:
                if stride != step:
                    return False
                step *= size
        return step == self.storage.size

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"({shape}) {self.dtype} {self.buffer.value} view of {self.storage.name or 'a tile'!r}"


Meaning = Callable[["Instruction", Any], Callable[[], None]]  # (instruction, binding.Arrays) -> what replays it
Cycles = Callable[["Instruction", Target], float]  # of its engine's data path
Marks = Mapping[str, Array]  # by argument, in the shape of its view; arguments without marks are left out
Spread = Callable[["Instruction", Marks], dict[str, Array]]
Check = Callable[[Any, Target], "str | None"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that the hardware (or its compiler) refuses or, without ``refuses``, may refuse.

    ``check`` says what is wrong with an instruction (or an allocation), with the value and the limit; or returns None.
    """

    name: str
    says: str
    source: str
    check: Check
    refuses: bool = True


class Reduction(NamedTuple):
    """How an instruction reduces its results into its engine's accumulator registers.

    ``commands``: the legal values of ``reduce_cmd``. ``operators``: the legal names of the argument ``operator``.
    ``loads``: the argument that ``load_reduce`` loads; ``unused``: its legal values with another command (empty: any).
    """

    commands: tuple[Enum, ...]
    operator: str = ""
    operators: tuple[str, ...] = ()
    loads: str = ""
    unused: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declaration of an instruction, without its name and signature. A missing facet is an error.

    ``engines`` can run it; the first is the default (AWS's compiler is free to choose; this is the model's policy).
    ``rules`` are checked, ``meaning`` works on arrays, ``cycles`` keep its engine's data path busy. ``spreads`` says
    which elements of its results depend on which inputs; None: masks or indices choose, and results count as written.

    Operands: ``writes`` and ``reads`` name the tensor arguments; those of ``numbers`` may be a number instead, those of
    ``optional`` may be None, those of ``columns`` hold one element per partition and broadcast. Those of ``partly`` are
    read only where a mask selects them, those of ``indexed`` at the indices of another operand. ``registers`` names the
    argument that holds the engine's own registers, read and written; ``reduces`` says how results are reduced into
    them. ``meets``: two cores wait for each other here. ``silent``: it only writes its destination, and with fixed
    addresses neither warns nor fails while the program runs.
    """

    engines: tuple[Engine, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    rules: tuple[Rule, ...]
    meaning: Meaning
    cycles: Cycles
    spreads: Spread | None
    numbers: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    partly: frozenset[str] = frozenset()
    indexed: frozenset[str] = frozenset()
    registers: str | None = None
    reduces: Reduction | None = None
    meets: bool = False
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Declaration):
    """An instruction of the NeuronCore. ``tensors`` names its tensor arguments, destinations first, each once."""

    name: str
    tensors: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(dict.fromkeys(self.writes + self.reads)))


@dataclass(slots=True, eq=False)
class Instruction:
    """One issued instruction. ``line`` is the line of the ``@nki.jit`` function that led to it: the step.

    ``operands`` are its tensors with the names of their arguments, destinations first. ``extra``: what else it touches,
    run-time indices and the engine's own registers (read and written). ``after``: instructions that the kernel wants
    done first, whatever memory they touch. ``in_order``: it is in a ``nl.no_reorder`` block.
    """

    operation: Operation
    engine: Engine
    args: dict[str, Any]
    source: Source
    line: int
    name: str | None = None
    after: tuple[Instruction, ...] = ()
    in_order: bool = False
    operands: list[tuple[str, View]] = field(init=False)
    extra: tuple[View, ...] = field(init=False)

    def __post_init__(self) -> None:
        args = self.args
        self.operands = [(arg, args[arg]) for arg in self.operation.tensors if isinstance(args[arg], View)]
        self.extra = (*self._indices(), *self._registers())

    def __getitem__(self, arg: str) -> Any:
        return self.args[arg]

    def depends_on(self, *producers: Instruction) -> Instruction:
        """Run after each of ``producers``: a semaphore wait on the device, besides those that memory needs."""
        self.after += producers
        return self

    def writes(self) -> list[View]:
        """The views that it writes, registers included."""
        written = self.operation.writes
        return [view for arg, view in self.operands if arg in written] + self._registers()

    def reads(self) -> list[View]:
        """The views that it reads, registers and run-time indices included."""
        read = self.operation.reads
        return [view for arg, view in self.operands if arg in read] + list(self.extra)

    def touches(self) -> list[View]:
        """The views that it reads or writes, each once."""
        touched = [view for _, view in self.operands]
        return touched + list(self.extra) if self.extra else touched

    def _indices(self) -> list[View]:
        tiles = [view.dynamic.index_tile for _, view in self.operands if view.dynamic is not None]
        return [tile for tile in tiles if tile is not None]

    def _registers(self) -> list[View]:
        name = self.operation.registers
        return [self.args[name]] if name is not None and isinstance(self.args[name], View) else []


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop that runs on the device. The program has its body once, between ``loop_begin`` and ``loop_end``.

    A counted loop runs ``counter`` from ``start`` to ``stop`` (exclusive) by ``step``. A while loop has no counter and
    runs while ``condition`` is not zero.
    """

    counter: Register | None
    start: int | Register = 0
    stop: int | Register = 0
    step: int = 1
    condition: Register | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """A line of a kernel that the hardware may refuse, and the rule that it may break."""

    source: Source
    rule: Rule
    message: str

    def __str__(self) -> str:
        return f"{self.message}\n  rule {self.rule.name}: {self.rule.says} ({self.rule.source})"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The most bytes of a partition that tiles hold at once, and the memories that are too small for them."""

    sbuf_peak_bytes: int
    psum_peak_bytes: int
    overflowed: tuple[MemoryRegion, ...] = ()

    def peak_bytes(self, region: MemoryRegion) -> int:
        return self.sbuf_peak_bytes if region is MemoryRegion.sbuf else self.psum_peak_bytes

    @property
    def fits(self) -> bool:
        return not self.overflowed


@dataclass(slots=True, eq=False)
class Program:
    """The instructions and tensors of a kernel for given shapes on a given target, before any data.

    ``inputs`` are the storages of the tensor arguments in order, ``outputs`` the returned views; ``returns_tuple``: the
    kernel returned a tuple. ``memory``: the bytes of its tiles, once placed. ``initial``: the contents of storages at
    the start, by their index (constants, and the states of engines). ``doubts``: what the hardware may refuse, once for
    each line and rule.
    """

    kernel: str
    target: Target
    storages: list[Storage] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    inputs: list[Storage] = field(default_factory=list)
    outputs: list[View] = field(default_factory=list)
    returns_tuple: bool = False
    file: str = ""
    memory: MemoryUse | None = None
    initial: dict[int, Array] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)

    def writers(self) -> dict[int, list[int]]:
        """Storage index -> the positions of the instructions that write to it, once for each view that they write."""
        found: dict[int, list[int]] = {}
        for position, instruction in enumerate(self.instructions):
            for view in instruction.writes():
                found.setdefault(view.storage.index, []).append(position)
        return found

    def changes(self) -> list[int]:
        """The tensor arguments, by their position, that the program writes to."""
        written = self.writers()
        return [position for position, storage in enumerate(self.inputs) if storage.index in written]

    def call_result(self, outputs: Sequence[Array]) -> Any:
        """The result of a call of the kernel: a tuple, the one tensor, or None."""
        if self.returns_tuple:
            return tuple(outputs)
        return outputs[0] if outputs else None

    def loops(self) -> list[tuple[int, int]]:
        """The indices of the first and the last instruction of every device loop, inner loops first."""
        found, open_loops = [], []
        for position, instruction in enumerate(self.instructions):
            if instruction.operation.name == "loop_begin":
                open_loops.append(position)
            elif instruction.operation.name == "loop_end":
                found.append((open_loops.pop(), position))
        return found
