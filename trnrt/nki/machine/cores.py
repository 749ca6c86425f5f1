"""Two physical cores that run one kernel: each has its own program, SBUF and PSUM; they share HBM.

Between two meetings (``core_barrier``, ``sendrecv``) core 0 always runs first, then core 1, so that a kernel that lacks
a barrier fails in the same way every time. The n-th meeting of one core is with the n-th of the other. If these do not
match, the cores would deadlock: that is an error before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trnrt.nki.blas import one_blas_thread
from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.execute import Executor, from_host, unwritten_value
from trnrt.nki.machine.program import Instruction, MemoryRegion, Program, Storage


class CoreGroup:
    """The programs of all cores, bound to arrays, with the interface of an Executor.

    ``given``: constant arguments by position (weights), as an Executor's: they are read in place if possible.
    """

    def __init__(
        self, programs: Sequence[Program], *, precise: bool = True, given: Mapping[int, Array] | None = None
    ) -> None:
        self.programs = list(programs)
        self.program = programs[0]
        storages = [[s for s in program.storages if s.buffer is MemoryRegion.shared_hbm] for program in programs]
        _check_shared(storages)
        _check_constants(programs, storages)
        kept = _keep_given(programs, given or {})
        shared = [
            kept[s.index] if s.index in kept else np.full(s.size, unwritten_value(s), s.dtype.array_dtype)
            for s in storages[0]
        ]
        self._cores = [
            Executor(program, {s.index: held for s, held in zip(own, shared, strict=True)}, precise=precise)
            for program, own in zip(programs, storages, strict=True)
        ]
        loaded = {s.index for s in self.program.inputs} | set(self.program.initial)
        self._blank = [
            (h, unwritten_value(s)) for h, s in zip(shared, storages[0], strict=True) if s.index not in loaded
        ]
        check_meetings([core.meetings for core in self._cores])
        for position, array in (given or {}).items():
            if self.program.inputs[position].index not in kept:
                self.load(position, array)

    @property
    def changes(self) -> list[int]:
        """The arguments that any core writes to, by their position."""
        return sorted({position for core in self._cores for position in core.changes})

    def argument(self, position: int) -> Array:
        """The value of a tensor argument, which all cores share, after a run."""
        return self._cores[0].argument(position)

    def load(self, position: int, array: Array) -> None:
        """Set the kernel's tensor argument number ``position``, which all cores share."""
        self._cores[0].load(position, array)

    def run(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Run all cores; return the first one's results (they are in shared HBM)."""
        for position, array in enumerate(inputs):
            if array is not None:
                self.load(position, array)
        for held, nothing in self._blank:
            held.fill(nothing)
        for core in self._cores:
            core.restore()
        with np.errstate(all="ignore"), one_blas_thread():
            for segment in range(len(self._cores[0].segments)):
                for core in self._cores:
                    core.run_segment(segment)
                if segment < len(self._cores[0].meetings):
                    self._exchange([core.meetings[segment] for core in self._cores])
        return self._cores[0].results()

    def _exchange(self, meeting: list[Instruction]) -> None:
        """Exchange tiles: each core receives from the core that it names; a barrier moves nothing."""
        if meeting[0].operation.name != "sendrecv":
            return
        sent = [core.window(at["src"]).copy() for core, at in zip(self._cores, meeting, strict=True)]
        for core, at in zip(self._cores, meeting, strict=True):
            core.window(at["dst"])[...] = sent[at["recv_from_rank"]]


def _keep_given(programs: Sequence[Program], given: Mapping[int, Array]) -> dict[int, Array]:
    """The arguments that no core writes to, by the first core's storage: the caller's arrays, if they can be held."""
    written = {position for program in programs for position in program.changes()}
    inputs = programs[0].inputs
    return {
        inputs[position].index: from_host(array, inputs[position])
        for position, array in given.items()
        if position not in written and inputs[position].index not in programs[0].initial
    }


def _check_shared(storages: list[list[Storage]]) -> None:
    """The n-th tensor in shared HBM is the same on every core: check its shape and dtype."""
    first, *others = storages
    for core, own in enumerate(others, start=1):
        if [(s.shape, s.dtype) for s in own] != [(s.shape, s.dtype) for s in first]:
            pairs = zip(first, own, strict=False)
            different = next((a for a, b in pairs if (a.shape, a.dtype) != (b.shape, b.dtype)), None)
            raise KernelError(
                f"cores 0 and {core} do not allocate the same tensors in shared HBM, and so can't share them: "
                f"{different or 'one allocates more of them'}"
            )


def _check_constants(programs: Sequence[Program], storages: list[list[Storage]]) -> None:
    """Check that constants, which are shared, too, do not differ."""
    for same in zip(*storages, strict=True):
        first, *others = [program.initial.get(s.index) for program, s in zip(programs, same, strict=True)]
        for core, other in enumerate(others, start=1):
            if not _same_bytes(first, other):
                raise KernelError(f"cores 0 and {core} have different constants in shared HBM: {same[0]}")


def _same_bytes(one: Array | None, other: Array | None) -> bool:
    return one is other or (one is not None and other is not None and one.tobytes() == other.tobytes())


def check_meetings(meetings: list[list[Instruction]]) -> None:
    """Check that the n-th meetings of all cores are of one kind, and that exchanges fit."""
    for number in range(max(len(of_core) for of_core in meetings)):
        present = [of_core[number] if number < len(of_core) else None for of_core in meetings]
        names = [at.operation.name if at is not None else "the end of the kernel" for at in present]
        if len(set(names)) != 1:
            places = "; ".join(
                f"core {c}: {n}{f' at {at.source}' if at else ''}"
                for c, (n, at) in enumerate(zip(names, present, strict=True))
            )
            raise KernelError(f"the cores wait for each other for ever at their meeting number {number + 1}: {places}")
        exchange = [at for at in present if at is not None and at.operation.name == "sendrecv"]
        for core, at in enumerate(exchange):
            sender = exchange[at["recv_from_rank"]]
            if (
                sender["send_to_rank"] != core
                or sender["pipe_id"] != at["pipe_id"]
                or sender["src"].shape != at["dst"].shape
            ):
                raise KernelError(
                    f"core {core} waits for a tile {at['dst'].shape} in pipe {at['pipe_id']} from core "
                    f"{at['recv_from_rank']}, which sends {sender['src'].shape} in pipe {sender['pipe_id']} to core "
                    f"{sender['send_to_rank']}\n  at {at.source}"
                )
