"""Read a profiler's JSON report (``neuron-profile view --output-format json``), with its tables checked and typed.

An instruction is the kernel's own if the compiler named it; the runtime's (barriers, resets of semaphores, loads of
arguments, notifications) have no name. The second physical core of a logical one runs only the runtime's part, so the
core with the most own instructions is read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing.traces.record import ENGINES
from trnrt.errors import InputError

Table = list[dict[str, Any]]

MOST_BYTES = 500_000_000
_LONGEST_S = 1e6
_LARGEST = 1 << 53  # of a field; as many nanoseconds still fit 64 bits as picoseconds
_MARK_BYTES = 4  # the size of a packet that only sets a semaphore
_TABLES = ("instruction", "dma", "semaphore_update")
_HINT = "write it with the profiler's JSON output: neuron-profile view --output-format json"
_ENGINE_OF = {"TensorMatrix": "tensor", **{name.capitalize(): name for name in ENGINES}, "GpSimd": "gpsimd"}
_WAIT = re.compile(r"S\[(\d+)\](?: \(\w+\))?(?:>=|==)(\d+)")
_SETS = re.compile(r"S\[(\d+)\](?: \(\w+\))?(?:\+\+|\+=1)@complete")
_DMA_SETS = re.compile(r"\bsemaphore=(\d+) sem_increment=(\d+)")
_OPERAND = re.compile(r"\b(src|dst)\d*=(?:(\w+)@)?0x([0-9a-f]+)\[[-\d,]*\]\[([\d,]+)\]")
_ELEMENT = re.compile(r"\b(src|dst)_elem_size=(\d+)")
_PATTERN = re.compile(r"\b(src|dst)_pattern=\[([-\d,]*)\]\[([\d,]+)\]")
_SEMAPHORE = re.compile(r"(?:S\[)?(\d+)\]?(?: \((\w+)\))?")
_PSUM = 0x2000000  # PSUM's first address in the traces
_PARTITION_STEP = 1 << 18  # the distance between the addresses of neighbouring partitions


class Operand(NamedTuple):
    """A tile that an instruction reads or writes."""

    written: bool
    dtype: str
    in_psum: bool
    elements: int


class Trigger(NamedTuple):
    """The effect of a DMA instruction: its transfer, and the semaphore with its increment."""

    direction: str
    size: int
    semaphore: int
    increment: int


class Instruction(NamedTuple):
    """One of the kernel's own instructions. ``place`` is its position in the program, the same in each round of a loop;
    ``sets`` the semaphore that it adds 1 to, -1 for none."""

    name: str
    opcode: str
    place: int
    engine: str
    start: int
    end: int
    waits: tuple[tuple[int, int], ...]
    sets: int
    operands: tuple[Operand, ...]
    detail: str
    transposes: bool
    trigger: Trigger | None


class RawPacket(NamedTuple):
    """A DMA packet in the profiler's report. ``mode``: software, hardware or static; else the profiler's word."""

    queue: int
    mode: str
    engine: int
    start: int
    end: int
    size: int

    @property
    def mark(self) -> bool:
        """True if it only sets a semaphore: it writes no more than its value."""
        return self.size == _MARK_BYTES


class Update(NamedTuple):
    """A semaphore's new value. ``label``: the engine or DMA queue behind it."""

    semaphore: int
    label: str
    value: int
    time: int


@dataclass(frozen=True)
class Report:
    """The tables of one report, one core's. ``queues`` names queue numbers; ``clock`` has (start, end, full rate)."""

    name: str
    instructions: list[Instruction]
    foreign: list[tuple[int, int]]
    packets: list[RawPacket]
    updates: list[Update]
    queues: dict[int, str]
    clock: list[tuple[int, int, bool]]
    active: dict[str, int]
    total: int
    facts: dict[str, str]
    notes: list[str]


def read_report(path: Path) -> Report:
    """The report in a file. InputError if it is another kind of file, or lacks a table or a field."""
    tables = _tables(path)
    rows = _Rows(path, tables)
    named = [row for row in rows.of("instruction") if row.text("bir_instruction_name", "")]
    own = Counter(row.text("subgraph", "") for row in named)
    if not own:
        raise InputError(
            f"{path}: no instruction of its {len(tables['instruction'])} has a compiler's name "
            "(bir_instruction_name), so the kernel's own can't be told from the runtime's",
            hint="profile the NEFF with the compiler's debug names in it",
        )
    core = own.most_common(1)[0][0]
    notes = [f"the profiler warns: {row['message']}" for row in tables.get("warnings", []) if "message" in row]
    if len(own) > 1:
        notes.append(f"{len(own)} cores run instructions of the kernel; only {core} is read, which has the most")
    return Report(
        name=path.name,
        packets=[_packet(row) for row in rows.of("dma", core)],
        updates=sorted((_update(row) for row in rows.of("semaphore_update", core)), key=lambda update: update.time),
        queues={row.integer("q_idx"): row.text("q_name") for row in rows.of("dma_queues_info", core)},
        clock=sorted(_window(row) for row in rows.of("ham", core)),
        active=_active(rows, core),
        total=_total(rows),
        facts=_facts(tables),
        notes=notes,
        **_instructions(rows, core, notes),
    )


def _tables(path: Path) -> dict[str, Table]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} has more than {MOST_BYTES // 1_000_000} MB; a report that long is not read")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}", hint=_HINT) from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is no profiler's report: it holds no tables", hint=_HINT)
    missing = [name for name in _TABLES if name not in document]
    if missing:
        found = ", ".join(sorted(map(str, document))[:8]) or "nothing"
        raise InputError(f"{path} is no profiler's report: it lacks {', '.join(missing)}; it has {found}", hint=_HINT)
    for name, rows in document.items():
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            if name in _TABLES:
                raise InputError(f"{path}: {name} is no list of records", hint=_HINT)
            document[name] = []
    return document


class _Row:
    """A record with typed access to its fields; InputError names a missing one."""

    def __init__(self, where: str, fields: dict[str, Any]) -> None:
        self.where, self.fields = where, fields

    def integer(self, name: str) -> int:
        value = self.fields.get(name)
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            number = int(value)
            if abs(number) > _LARGEST:
                raise ValueError
            return number
        except (ValueError, OverflowError):
            raise InputError(f"{self.where}: {name} should be a whole number, not {value!r}", hint=_HINT) from None

    def text(self, name: str, default: str | None = None) -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise InputError(f"{self.where}: {name} should be a text, not {value!r}", hint=_HINT)
        return value

    def span(self) -> tuple[int, int]:
        start, duration = self.integer("timestamp"), self.integer("duration")
        if start < 0 or duration < 0:
            raise InputError(f"{self.where}: it starts at {start} and takes {duration} ns", hint=_HINT)
        return start, start + duration


class _Rows:
    def __init__(self, path: Path, tables: dict[str, Table]) -> None:
        self.path, self.tables = path, tables

    def of(self, table: str, core: str | None = None) -> list[_Row]:
        """The records of a table, only those of ``core`` if given."""
        rows = enumerate(self.tables.get(table, []), start=1)
        return [
            _Row(f"{self.path}: {table} {number}", row)
            for number, row in rows
            if core is None or row.get("subgraph", core) == core
        ]


def _instructions(rows: _Rows, core: str, notes: list[str]) -> dict[str, Any]:
    own, foreign, strange = [], [], Counter[str]()
    for row in rows.of("instruction", core):
        if not row.text("bir_instruction_name", ""):
            foreign.append(row.span())
        elif row.text("label") in _ENGINE_OF:
            own.append(_instruction(row))
        else:
            strange[row.text("label")] += 1
    for label, count in strange.items():
        notes.append(f"{count} instructions on {label} are left out: no such engine is known")
    own.sort(key=lambda instruction: instruction.start)
    return {"instructions": own, "foreign": sorted(foreign)}


def _instruction(row: _Row) -> Instruction:
    start, end = row.span()
    text, opcode = row.text("operands"), row.text("opcode")
    sets = _SETS.search(text)
    return Instruction(
        name=row.text("bir_instruction_name"),
        opcode=opcode,
        place=row.integer("pc"),
        engine=_ENGINE_OF[row.text("label")],
        start=start,
        end=end,
        waits=tuple((int(semaphore), int(value)) for semaphore, value in _WAIT.findall(text)),
        sets=int(sets[1]) if sets else -1,
        operands=tuple(_operand(*found) for found in _OPERAND.findall(text)),
        detail=_detail(text, row.text("activation_fn", "")),
        transposes=row.text("instruction_type", "") == "TRANSPOSE",
        trigger=_trigger(row, text),
    )


def _operand(role: str, dtype: str, address: str, shape: str) -> Operand:
    return Operand(role == "dst", dtype, int(address, 16) >= _PSUM, _product(shape))


def _product(numbers: str) -> int:
    total = 1
    for number in numbers.split(","):
        total *= int(number or 1)
    return total


def _detail(text: str, function: str) -> str:
    """The operator: an activation's function, a reduction's ``op``, the first of a scalar instruction's ``ops``."""
    found = re.search(r"\bops?=(\w+)", text)
    return (function or (found[1] if found else "")).lower()


def _trigger(row: _Row, text: str) -> Trigger | None:
    sets, elements, patterns = _DMA_SETS.search(text), dict(_ELEMENT.findall(text)), _PATTERN.findall(text)
    sizes = {side: int(elements[side]) * _product(counts) for side, _, counts in patterns if side in elements}
    if sets is None or not sizes:
        return None
    if row.fields.get("sbuf_write_bytes") or row.fields.get("sbuf_read_bytes"):
        into, out_of = bool(row.fields.get("hbm_read_bytes")), bool(row.fields.get("hbm_write_bytes"))
    else:  # the side with a step between partitions is SBUF
        chips = {side for side, steps, _ in patterns if str(_PARTITION_STEP) in steps.split(",")}
        into, out_of = chips == {"dst"}, chips == {"src"}
    direction = "move" if into == out_of else "load" if into else "store"
    size = sizes.get("src" if direction == "load" else "dst", max(sizes.values()))  # HBM's side: some transfers cast
    return Trigger(direction, size, int(sets[1]), int(sets[2]))


def _packet(row: _Row) -> RawPacket:
    start, end = row.span()
    mode = row.text("queue_type").removesuffix("_dynamic")
    return RawPacket(
        row.integer("dma_queue"), mode, row.integer("dma_engine"), start, end, row.integer("transfer_size")
    )


def _update(row: _Row) -> Update:
    found = _SEMAPHORE.fullmatch(row.text("id"))
    if found is None:
        raise InputError(f"{row.where}: {row.text('id')!r} is no semaphore", hint=_HINT)
    return Update(int(found[1]), found[2] or "", row.integer("value"), row.integer("timestamp"))


def _window(row: _Row) -> tuple[int, int, bool]:
    return (*row.span(), row.integer("k") == row.integer("n"))


def _active(rows: _Rows, core: str) -> dict[str, int]:
    active = Counter[str]()
    for row in rows.of("active_time", core):
        active[row.text("engine")] += row.integer("duration_ns")
    return dict(active)


def _total(rows: _Rows) -> int:
    """The whole profile's length; if not stated, the end of the last event."""
    for row in rows.of("summary"):
        seconds = row.fields.get("total_time")
        if isinstance(seconds, int | float) and 0 < seconds < _LONGEST_S:
            return round(seconds * 1e9)
    return max(row.span()[1] for row in rows.of("instruction"))


def _facts(tables: dict[str, Table]) -> dict[str, str]:
    """The report's statements about its device and tools."""
    wanted = (("summary", "instance_type"), ("summary", "compiler_version"), ("summary", "runtime_version"))
    facts = {}
    for table, name in (*wanted, ("profile_info", "profiler_version"), ("profile_info", "profile_name")):
        for row in tables.get(table, [])[:1]:
            if isinstance(row.get(name), str):
                facts[name] = row[name]
    return facts
