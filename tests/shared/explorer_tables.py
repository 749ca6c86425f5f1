"""A device's profile as Neuron Explorer's tables, made from a prediction; fields and types are the documented ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from trnrt.nki.machine.program import Instruction
from trnrt.nki.machine.timing import Timeline

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "neuron" / "reference.json").read_text(encoding="utf-8")
)["profile"]
_TYPES = {
    "integer": pyarrow.int64(),
    "number": pyarrow.float64(),
    "boolean": pyarrow.bool_(),
    "string": pyarrow.string(),
}

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def write_tables(folder: Path, tables: Tables) -> Path:
    """Write each table, with the fields that its rows have and the types that are documented for them."""
    folder.mkdir(parents=True)
    for name, rows in tables.items():
        documented = SCHEMA["tables"][name.rpartition("_")[0] if name[-1].isdigit() else name]
        fields = [field for field in documented if any(field in row for row in rows)]
        assert {field for row in rows for field in row} == set(fields), "a field that is not documented"
        schema = pyarrow.schema([(field, _TYPES[documented[field]["type"]]) for field in fields])
        columns = [pyarrow.array([row.get(field) for row in rows], schema.field(field).type) for field in fields]
        pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), folder / f"{name}.parquet")
    return folder


def tables_of(timeline: Timeline, location: Callable[[Instruction], str | None], slower: int = 2) -> Tables:
    """The tables of a device that does all that is predicted, ``slower`` times slower, and waits now and then."""
    transfers = {transfer.issue: transfer for transfer in timeline.transfers}
    rows: list[Row] = []
    for issue, index in enumerate(timeline.instruction):
        instruction = timeline.program.instructions[index]
        transfer = transfers.get(issue)
        begin, end = timeline.start[issue], timeline.end[issue]
        row: Row = {"engine": "Tensor" if transfer is None else "Sync", "opcode": instruction.operation.name.upper()}
        row |= {"nki_source_location": location(instruction), "pcore_idx": 0}
        if transfer is not None:
            row |= {"dma_trigger_start_ts": begin * slower // 1000, "dma_trigger_end_ts": end * slower // 1000}
            begin, end = transfer.triggered, transfer.trigger_end
        row |= {"start_ts": begin * slower // 1000, "end_ts": end * slower // 1000}
        rows.append(row)
        rows.append({**row, "opcode": "EVENT_SEMAPHORE", "start_ts": 0, "end_ts": 10**9})
    return {
        "Metadata": [{"profile_schema_version": SCHEMA["version"], "instance_type": "trn2.48xlarge"}],
        "Summary": [{"total_time": timeline.duration * slower / 1e12}],
        "Instruction": rows,
    }
