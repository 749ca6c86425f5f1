"""``trnrt cache``: what is kept of compiled models, and how to be rid of it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from trnrt.cache.entries import Entry
from trnrt.cache.plans import PlanCache
from trnrt.commands.options import Reporting
from trnrt.report.console import note, render, say
from trnrt.report.files import write_text
from trnrt.text import count_text, escape_text, name_text, size_text


def list_entries(reporting: Reporting) -> None:
    """Print the entries, the one used last first."""
    cache = PlanCache()
    found, size = cache.entries.entries(), cache.entries.size()
    document = {
        "schema_version": 1,
        "directory": str(cache.directory),
        "bytes": size,
        "limit_bytes": cache.limit,
        "entries": [_as_json(entry) for entry in found],
    }
    text = json.dumps(document, indent=1) + "\n"
    if reporting.json_out is not None:
        write_text(reporting.json_out, text)
    if reporting.as_json:
        say(text)
        return
    say(_table(found) if found else "nothing is cached\n")
    note(f"{escape_text(str(cache.directory))}: {size_text(size)} of {size_text(cache.limit)}")


def clear() -> None:
    """Remove everything, and say how much that was."""
    cache = PlanCache()
    count = len(cache.entries.entries())
    freed = cache.entries.clear()
    say(f"removed {count_text(count, 'plan')} and what belonged to them, {size_text(freed)}\n")


def _as_json(entry: Entry) -> dict[str, Any]:
    return {"key": entry.key, "bytes": entry.size, "used": entry.used, "request": entry.request}


def _table(entries: list[Entry]) -> str:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("model", "target", "dtype", "batch", "size", "last used"):
        table.add_column(heading, justify="right" if heading in ("batch", "size") else "left")
    for entry in entries:
        request = entry.request
        batch = request.get("batch")
        table.add_row(
            name_text(str(request.get("name"))),
            str(request.get("target")),
            str(request.get("dtype")),
            "" if batch is None else str(batch),
            size_text(entry.size),
            datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M"),
        )
    return render([table])
