"""Random programs: engines and DMA that fill, copy, load, store and move parts of the same few tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from simulating import tile

from trnrt.nki import nisa, nl

ROWS, COLUMNS = 40, 12
ENGINE = {"vector": nisa.engine.vector, "gpsimd": nisa.engine.gpsimd, "scalar": nisa.engine.scalar}
MODES = (nisa.dge_mode.none, nisa.dge_mode.swdge, nisa.dge_mode.unknown)


@dataclass
class Part:
    """A random part of a tensor: rows, columns with a step, and whether the bits are read as another dtype."""

    tensor: int
    rows: tuple[int, int]
    columns: tuple[int, int, int]
    cast: str | None

    def of(self, tensors: list[nl.NkiTensor]) -> nl.NkiTensor:
        tensor = tensors[self.tensor]
        low, high, step = self.columns
        if self.cast == "ap":  # overlapping windows
            pattern = [[COLUMNS, self.rows[1] - self.rows[0]], [1, 2], [2, 2]]
            return tensor[self.rows[0] : self.rows[1]].ap(pattern, offset=min(low, COLUMNS - 4))
        if self.cast == "split":
            return tensor.reshape((ROWS, 3, COLUMNS // 3))[self.rows[0] : self.rows[1], low % 3 :]
        if self.cast == "half":
            return tensor.view(nl.bfloat16)[self.rows[0] : self.rows[1], low : high + 3 : step]
        return tensor[self.rows[0] : self.rows[1], low:high:step]


def parts(tensors: int) -> st.SearchStrategy[Part]:
    def part(tensor: int, row: int, rows: int, low: int, size: int, step: int, cast: str | None) -> Part:
        high = min(COLUMNS, low + 1 + (size - 1) * step)
        return Part(tensor, (row, min(ROWS, row + rows)), (low, high, step), cast)

    casts = st.sampled_from([None, None, None, "half", "split", "ap"])
    rows = st.sampled_from([0, 8, 16, 32])
    sizes, steps = st.integers(1, 6), st.integers(1, 3)
    return st.builds(
        part, st.integers(0, tensors - 1), rows, rows.map(lambda n: n or ROWS), st.integers(0, 11), sizes, steps, casts
    )


def shaped(part: Part, other: Part) -> Part:
    """The same part of another tensor, at other rows where they fit."""
    count = part.rows[1] - part.rows[0]
    row = min(other.rows[0], ROWS - count)
    return Part(other.tensor, (row, row + count), part.columns, part.cast)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["fill", "copy", "load", "store", "move"]),
        st.sampled_from(sorted(ENGINE)),
        st.sampled_from(MODES),
        parts(3),
        parts(3),
    ),
    min_size=2,
    max_size=14,
)


def act(
    action: tuple[str, str, Any, Part, Part], sbuf: list[nl.NkiTensor], hbm: list[nl.NkiTensor], target: str
) -> None:
    kind, engine, mode, first, second = action
    named = nisa.engine.unknown
    if mode is nisa.dge_mode.unknown and target != "trn1":  # hardware descriptors, by either engine that can
        mode, named = nisa.dge_mode.hwdge, {"scalar": nisa.engine.scalar}.get(engine, nisa.engine.sync)
    second = shaped(first, second)
    if kind in ("fill", "copy"):  # engines start at partition 0 or 32
        first.rows = (first.rows[0] // 32 * 32, max(first.rows[1], first.rows[0] // 32 * 32 + 8))
    if kind == "fill":
        engine = "vector" if engine == "scalar" else engine
        nisa.memset(dst=first.of(sbuf), value=0, engine=ENGINE[engine])
    elif kind == "copy" and engine == "scalar":
        nisa.activation(dst=first.of(sbuf), op=nl.copy, data=first.of([sbuf[-1]] * 3))
    elif kind == "copy":
        nisa.tensor_copy(dst=first.of(sbuf), src=first.of([sbuf[-1]] * 3), engine=ENGINE[engine])
    elif kind == "load":
        nisa.dma_copy(dst=first.of(sbuf), src=second.of(hbm), dge_mode=mode, engine=named)
    elif kind == "store":
        nisa.dma_copy(dst=first.of(hbm), src=second.of(sbuf), dge_mode=mode, engine=named)
    else:
        nisa.dma_copy(dst=first.of(hbm), src=second.of([hbm[(first.tensor + 1) % 3]] * 3), dge_mode=mode, engine=named)


def run(actions: list[Any], target: str) -> None:
    """The body of a kernel that does these ``ACTIONS``, on tensors that were written before."""
    sbuf = [tile(ROWS, COLUMNS) for _ in range(3)]
    hbm = [tile(ROWS, COLUMNS, buffer=nl.private_hbm) for _ in range(3)]
    for one in sbuf + hbm:
        if one.on_chip:
            nisa.memset(dst=one, value=0)
    for one in hbm:
        nisa.dma_copy(dst=one, src=sbuf[0])
    for action in actions:
        act(action, sbuf, hbm, target)
