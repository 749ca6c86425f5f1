"""Read the Parquet tables of a profile that Neuron Explorer has processed, with bounded memory.

``schema.json`` lists every table and field used here, with its line in the documentation. A profile without a required
field, or with another type or unit, is refused. The profiler's JSON is not read: its documentation calls it less
complete, and gives no units.
"""

from __future__ import annotations

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
"""The most instructions that are read; one takes about 50 bytes."""

_BATCH = 65_536
_LONGEST_STACK = 64
_WAIT = "EVENT_SEMAPHORE"
"""The instruction that waits. By the table ActiveTime, an engine is active except for semaphore waits."""
_PLACE = re.compile(r"([^\s,\[\]'\"]+):(\d{1,9})", re.ASCII)
_MIND = (
    "process it again with neuron-explorer of Neuron SDK 2.31 or 2.32 (aws-neuronx-tools 2.31 or 2.32), whose fields "
    "are documented; or report this, with the output of neuron-explorer view --show-profile-schema"
)

Place = tuple[str, int]  # file, line
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Placed:
    """The source of an instruction: its ``own`` lines, and those of the ``calls`` around it, innermost first."""

    own: tuple[Place, ...]
    calls: tuple[Place, ...] = ()


@dataclass(frozen=True)
class DeviceProfile:
    """One execution, with an entry for each instruction except waits for semaphores.

    Times are nanoseconds. ``dma_start`` and ``dma_end``: of the transfer that the instruction started, 0 if none.
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
    """Read the profile in a directory of tables. InputError if it isn't one, or lacks documented fields."""
    tables = Tables(find_tables(path))
    tables.check_units()
    (metadata,) = tables.rows("Metadata")[:1] or [{}]
    if not metadata:
        raise InputError(f"{tables.folder}: the table Metadata is missing or empty", hint=_MIND)
    if metadata.get("is_simulation"):
        raise InputError(f"{tables.folder}: it was simulated by AWS's compiler, not measured")
    notes = [f"the profiler warns: {row['message']}" for row in tables.rows("Warning")[:10]]
    version = str(metadata["profile_schema_version"])
    warning = _version_warning(version)
    try:
        window, skipped = _last_execution(tables)
        rows, more = _instructions(tables, window)
    except InputError as error:
        raise InputError(f"{error}{'; ' if warning else ''}{warning}", hint=error.hint) from None
    notes += [warning] if warning else []
    totals = [row["total_time"] for row in tables.rows("Summary") if row.get("total_time") is not None]
    return DeviceProfile(
        schema_version=version,
        instance=metadata.get("instance_type"),
        total_us=float(totals[0]) * 1e6 if totals and not skipped else None,
        notes=(*skipped, *more, *notes),
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
    """A profile's tables by name. Each may be split into numbered files."""

    def __init__(self, folder: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            message = "reading a device's profile needs pyarrow, which is not installed"
            raise OptionError(message, hint="pip install 'trnrt[parquet]'") from None
        self.folder = folder
        self._parquet: Any = pyarrow.parquet
        self._types: Any = pyarrow.types
        self._broken = (OSError, ValueError, pyarrow.ArrowException)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a small table; none if it is missing."""
        return [row for batch in self.batches(name) for row in batch]

    def batches(self, name: str) -> Iterator[list[dict[str, Any]]]:
        """A table's known fields, some rows at a time. InputError if they are not as documented."""
        for path in self._files(name):
            try:
                file = self._parquet.ParquetFile(path)
                known = self._known_fields(path, name, file.schema_arrow)
                for batch in file.iter_batches(batch_size=_BATCH, columns=known):
                    yield batch.to_pylist()
            except self._broken as error:
                raise InputError(f"{path} can't be read: {error}") from None

    def count(self, name: str) -> int:
        """The number of a table's rows, by its files' metadata."""
        try:
            return sum(self._parquet.ParquetFile(path).metadata.num_rows for path in self._files(name))
        except self._broken as error:
            raise InputError(f"{self.folder}: the table {name} can't be read: {error}") from None

    def check_units(self) -> None:
        """InputError if the profile says that a field has another unit than documented."""
        for row in self.rows("SchemaFields"):
            field = _schema()["tables"].get(row["table_name"], {}).get(row["field_name"])
            unit = row.get("field_unit") or ""
            # dma_trigger_* have no documented unit; they are read like all other timestamps.
            documented = field and (field["unit"] or ("nanoseconds" if row["field_name"].endswith("_ts") else unit))
            if field is not None and unit and unit != documented:
                name = f"{row['table_name']}.{row['field_name']}"
                raise InputError(f"{self.folder}: {name} is in {unit}, and {documented} is documented", hint=_MIND)

    def _files(self, name: str) -> list[Path]:
        numbered = re.compile(rf"{name}(_\d+)?\.parquet", re.ASCII)
        return sorted(path for path in self.folder.glob(f"{name}*.parquet") if numbered.fullmatch(path.name))

    def _known_fields(self, path: Path, name: str, schema: Any) -> list[str]:
        """The known fields of a file. InputError if a required one is missing, or one has another type."""
        types = self._types
        fields = _schema()["tables"][name]
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


def _version_warning(version: str) -> str:
    """A warning about a schema version with another first number, which is incompatible; else ""."""
    known = _schema()["profile_schema_version"]
    if version.partition(".")[0] == known.partition(".")[0]:
        return ""
    return f"its schema is {version}, and the fields are read as those of {known}"


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_bytes())
    return schema


def _last_execution(tables: Tables) -> tuple[tuple[int, int] | None, tuple[str, ...]]:
    """The start and end of the last execution, if the profile has several, and notes on it."""
    rows = tables.rows("ExecutionInfo")
    if len(rows) < 2:
        return None, ()
    last = max(rows, key=lambda row: row["execution_index"])
    start, end = last.get("execution_start_ts"), last.get("execution_end_ts")
    if start is None or end is None:
        raise InputError(
            f"{tables.folder}: it has {len(rows)} executions without their times",
            hint="capture one: neuron-explorer capture --profile-nth-exec=2",
        )
    return (start, end), (f"the last of {len(rows)} executions is shown",)


def _instructions(tables: Tables, window: tuple[int, int] | None) -> tuple[dict[str, Any], list[str]]:
    """The columns of ``DeviceProfile``, and a note on instructions that were left out."""
    count = tables.count("Instruction")
    if count > MOST_ROWS:
        raise InputError(f"{tables.folder}: {count:,} instructions; the limit is {MOST_ROWS:,}")
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
    notes = [f"{others:,} instructions of the second physical core are left out"]
    return found | {"kinds": list(kinds), "places": list(places)}, notes if others else []


_BIR = "bir_debug_info_source_location"


def _parse_places(key: tuple[Any, ...], stacks: dict[str, Placed]) -> Placed:
    """The places of an instruction: its name in the kernel, and the two texts that give its lines."""
    name, nki, bir = key
    stack = stacks.get(name, Placed(()))
    # NKI's own location is more exact; the compiler's also covers instructions that the compiler added.
    said = _PLACE.findall(nki or "") or _PLACE.findall(bir or "")
    return Placed(tuple((file, int(line)) for file, line in said) or stack.own, stack.calls)


def _stacks(tables: Tables) -> dict[str, Placed]:
    """The line of each kernel instruction, and of the calls around it, by its name."""
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
