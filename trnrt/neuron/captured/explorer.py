"""The Parquet tables of a profile that Neuron Explorer has processed, read with bounded memory.

Every table and field that is relied on is in ``schema.json`` with its line of the documentation; a profile that lacks a
required one, or has it in another type or unit, is refused by name. The JSON that the profiler can also write is not
read: its page calls it less complete, and gives no units.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError, OptionError

MOST_ROWS = 20_000_000
"""Instructions of a profile that are read; one takes about 50 bytes."""

_BATCH = 65_536
_LONGEST_STACK = 64
_WAIT = "EVENT_SEMAPHORE"
"""The instruction that waits. An engine is active but for semaphore waits, says the table ActiveTime."""
_PLACE = re.compile(r"([^\s,\[\]'\"]+):(\d{1,9})", re.ASCII)
_MIND = (
    "process it again with neuron-explorer of Neuron SDK 2.31 or 2.32 (aws-neuronx-tools 2.31 or 2.32), which the "
    "fields are documented for; or report this, with what neuron-explorer view --show-profile-schema prints"
)

Place = tuple[str, int]  # file, line
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Placed:
    """Where an instruction comes from: ``own`` lines, and those of the ``calls`` that led to it, innermost first."""

    own: tuple[Place, ...]
    calls: tuple[Place, ...] = ()


@dataclass(frozen=True)
class DeviceProfile:
    """One execution, an entry an instruction; waits for semaphores are left out.

    Times are nanoseconds; ``dma_start`` and ``dma_end`` those of the transfer that it started, 0 where there is none.
    ``kind`` indexes ``kinds`` (engine and opcode), ``place`` indexes ``places``.
    """

    schema_version: str
    instance: str | None
    total_us: float | None
    start: Rows
    end: Rows
    dma_start: Rows
    dma_end: Rows
    kind: Rows
    kinds: list[tuple[str, str]]
    place: Rows
    places: list[Placed]
    notes: tuple[str, ...]


def read_profile(path: Path) -> DeviceProfile:
    """The profile in a directory of tables. InputError where it is none, or has not the documented fields."""
    tables = Tables(find_tables(path))
    tables.check_units()
    (metadata,) = tables.rows("Metadata")[:1] or [{}]
    if not metadata:
        raise InputError(f"{tables.folder}: the table Metadata is missing or empty", hint=_MIND)
    if metadata.get("is_simulation"):
        raise InputError(f"{tables.folder}: it is a simulation of AWS's compiler, and was not measured")
    notes = [f"the profiler warns: {row['message']}" for row in tables.rows("Warning")[:10]]
    version = str(metadata["profile_schema_version"])
    strange = _strange(version)
    try:
        window, told = _last_execution(tables)
        rows, more = _instructions(tables, window)
    except InputError as error:
        raise InputError(f"{error}{'; ' if strange else ''}{strange}", hint=error.hint) from None
    notes += [strange] if strange else []
    totals = [row["total_time"] for row in tables.rows("Summary") if row.get("total_time") is not None]
    return DeviceProfile(
        schema_version=version,
        instance=metadata.get("instance_type"),
        total_us=float(totals[0]) * 1e6 if totals and not told else None,
        notes=(*told, *more, *notes),
        **rows,
    )


def find_tables(path: Path) -> Path:
    """The directory with the tables: ``path``, that of a table in it, or the only profile of a --data-path."""
    if path.is_file() and path.suffix == ".parquet":
        return path.parent
    if path.is_file():
        raise InputError(
            f"{path} is no directory of Parquet tables",
            hint="an .ntff file is processed first: neuron-explorer view -n NEFF -s NTFF --ingest-only --data-path DIR "
            "--display-name NAME",
        )
    if any(path.glob("Instruction*.parquet")):
        return path
    found = sorted(path.glob("profiles/global/*@latest"))
    if len(found) == 1:
        return found[0]
    if found:
        raise OptionError(f"{path} has {len(found)} profiles", hint=f"name one: {found[0]}")
    raise InputError(f"{path} has no Instruction.parquet", hint="name the NAME@latest that the profiler wrote")


class Tables:
    """The tables of a profile by name. Each may be split across numbered files."""

    def __init__(self, folder: Path) -> None:
        try:
            self._parquet: Any = importlib.import_module("pyarrow.parquet")
            self._broken = (OSError, ValueError, importlib.import_module("pyarrow").ArrowException)
        except ImportError:
            told = "reading a device's profile needs pyarrow, which is not installed"
            raise OptionError(told, hint="pip install 'trnrt[parquet]'") from None
        self.folder = folder

    def rows(self, name: str) -> list[dict[str, Any]]:
        """A table that is small by its nature; nothing where it is not there."""
        return [row for batch in self.batches(name) for row in batch]

    def batches(self, name: str) -> Iterator[list[dict[str, Any]]]:
        """A table's known fields, some rows at a time. InputError where they are not as documented."""
        for path in self._files(name):
            try:
                file = self._parquet.ParquetFile(path)
                known = self._known_fields(path, name, file.schema_arrow)
                for batch in file.iter_batches(batch_size=_BATCH, columns=known):
                    yield batch.to_pylist()
            except self._broken as error:
                raise InputError(f"{path} can't be read: {error}") from None

    def count(self, name: str) -> int:
        """How many rows a table has, by its files' own account."""
        try:
            return sum(self._parquet.ParquetFile(path).metadata.num_rows for path in self._files(name))
        except self._broken as error:
            raise InputError(f"{self.folder}: the table {name} can't be read: {error}") from None

    def check_units(self) -> None:
        """The profile says of itself in which unit each field is: InputError where that is not the documented one."""
        for row in self.rows("SchemaFields"):
            field = _schema().get(row["table_name"], {}).get(row["field_name"])
            unit = row.get("field_unit") or ""
            # The page gives dma_trigger_* no unit; they are read as what all other timestamps are.
            documented = field and (field["unit"] or ("nanoseconds" if row["field_name"].endswith("_ts") else unit))
            if field is not None and unit and unit != documented:
                told = f"{row['table_name']}.{row['field_name']} is in {unit}, and {documented} is documented"
                raise InputError(f"{self.folder}: {told}", hint=_MIND)

    def _files(self, name: str) -> list[Path]:
        numbered = re.compile(rf"{name}(_\d+)?\.parquet", re.ASCII)
        return sorted(path for path in self.folder.glob(f"{name}*.parquet") if numbered.fullmatch(path.name))

    def _known_fields(self, path: Path, name: str, schema: Any) -> list[str]:
        """The fields of a file that are known. InputError for a required one that is missing, or another type."""
        types = importlib.import_module("pyarrow.types")
        fields = _schema()[name]
        missing = [field for field, says in fields.items() if says["required"] and field not in schema.names]
        if missing:
            has = ", ".join(schema.names[:20])
            raise InputError(f"{path} has no field {', '.join(missing)}; it has {has}", hint=_MIND)
        known = [field for field in fields if field in schema.names]
        for field in known:
            found, says = schema.field(field).type, fields[field]["type"]
            if types.is_dictionary(found):
                found = found.value_type
            fits = {
                "integer": types.is_integer,
                "number": lambda kind: types.is_floating(kind) or types.is_integer(kind),
                "boolean": types.is_boolean,
                "string": lambda kind: types.is_string(kind) or types.is_large_string(kind),
            }
            if not (fits[says](found) or types.is_null(found)):
                raise InputError(f"{path}: {field} is {found}, and {says} is documented", hint=_MIND)
        return known


def _strange(version: str) -> str:
    """What to say of a profile whose schema is an incompatible one by its own account: another first number."""
    known = _document()["profile_schema_version"]
    if version.partition(".")[0] == known.partition(".")[0]:
        return ""
    return f"its schema is {version}, and the fields are read as those of {known}"


@cache
def _document() -> dict[str, Any]:
    text = Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def _schema() -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, Any]] = _document()["tables"]
    return tables


def _last_execution(tables: Tables) -> tuple[tuple[int, int] | None, tuple[str, ...]]:
    """From when to when the last execution ran, where the profile has several, and what to say of it."""
    rows = tables.rows("ExecutionInfo")
    if len(rows) < 2:
        return None, ()
    last = max(rows, key=lambda row: row["execution_index"])
    start, end = last.get("execution_start_ts"), last.get("execution_end_ts")
    if start is None or end is None:
        raise InputError(
            f"{tables.folder}: it has {len(rows)} executions, and does not say when each ran",
            hint="capture one: neuron-explorer capture --profile-nth-exec=2",
        )
    return (start, end), (f"the last of {len(rows)} executions is shown",)


def _instructions(tables: Tables, window: tuple[int, int] | None) -> tuple[dict[str, Any], list[str]]:
    """The columns of ``DeviceProfile``, and what was left out."""
    count = tables.count("Instruction")
    if count > MOST_ROWS:
        raise InputError(f"{tables.folder}: {count:,} instructions; {MOST_ROWS:,} are read at most")
    stacks = _stacks(tables)
    kinds: dict[tuple[str, str], int] = {}
    places: dict[Placed, int] = {}
    parsed: dict[tuple[Any, ...], int] = {}
    columns: list[Rows] = []
    others = 0
    for batch in tables.batches("Instruction"):
        held = []
        for row in batch:
            if None in (row["start_ts"], row["end_ts"], row["engine"], row["opcode"]):
                raise InputError(f"{tables.folder}: an instruction has no time, engine or opcode", hint=_MIND)
            if row["opcode"] == _WAIT or (window and not window[0] <= row["start_ts"] < window[1]):
                continue
            if row.get("pcore_idx"):  # 0, or not there: the first core
                others += 1
                continue
            key = (row.get("kernel_instruction_name"), row.get("nki_source_location"), row.get(_BIR))
            if key not in parsed:
                parsed[key] = places.setdefault(_parse_places(key, stacks), len(places))
            kind = kinds.setdefault((row["engine"].lower(), row["opcode"]), len(kinds))
            begun, ended = row.get("dma_trigger_start_ts") or 0, row.get("dma_trigger_end_ts") or 0
            held.append((row["start_ts"], row["end_ts"], begun, ended, kind, parsed[key]))
        columns.append(np.array(held, np.int64).reshape(-1, 6))
    table = np.concatenate(columns) if columns else np.zeros((0, 6), np.int64)
    if not len(table):
        raise InputError(f"{tables.folder}: no instruction was executed", hint="capture the profile again")
    table = table[np.argsort(table[:, 0], kind="stable")]
    names = ("start", "end", "dma_start", "dma_end", "kind", "place")
    found: dict[str, Any] = {name: table[:, k] for k, name in enumerate(names)}
    told = [f"{others:,} instructions of the second physical core, which does the same work, are left out"]
    return found | {"kinds": list(kinds), "places": list(places)}, told if others else []


_BIR = "bir_debug_info_source_location"


def _parse_places(key: tuple[Any, ...], stacks: dict[str, Placed]) -> Placed:
    """The places of an instruction by its name in the kernel, and by the two texts that give its lines."""
    name, nki, bir = key
    stack = stacks.get(name, Placed(()))
    # NKI's own location is the more exact one; the compiler's is there for instructions that it made itself, too.
    said = _PLACE.findall(nki or "") or _PLACE.findall(bir or "")
    return Placed(tuple((file, int(line)) for file, line in said) or stack.own, stack.calls)


def _stacks(tables: Tables) -> dict[str, Placed]:
    """The line of each kernel instruction, and of the calls that led to it, by its name."""
    frames = {row["stack_frame_id"]: row for row in tables.rows("KernelStackFrames") if not row.get("pcore_idx")}
    found = {}
    for row in tables.rows("KernelInstructions"):
        if row.get("pcore_idx"):
            continue
        calls: list[tuple[str, int | None]] = []
        at = row.get("stack_frame_id")
        while at in frames and len(calls) < _LONGEST_STACK:
            frame = frames[at]
            calls += [(frame["file_path"], frame["line_number"])] if frame.get("file_path") else []
            at = frame.get("parent_stack_frame_id")
        own = ((row["file_path"], row.get("line_number") or 0),) if row.get("file_path") else ()
        found[row["kernel_instruction_name"]] = Placed(own, tuple((file, line or 0) for file, line in calls))
    return found
