"""``trnrt cache``: list or clear the cache of compiled models."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from trnrt.cache.entries import Entry
from trnrt.cache.plans import PlanCache
from trnrt.commands.options import Reporting
from trnrt.commands.results import deliver
from trnrt.report.console import note, render, say
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
    deliver(reporting, document, _table(found) if found else "nothing is cached\n")
    if not reporting.as_json:
        note(f"{escape_text(str(cache.directory))}: {size_text(size)} of {size_text(cache.limit)}")


def clear() -> None:
    """Remove everything, and print how much was removed."""
    cache = PlanCache()
    count = len(cache.entries.entries())
    freed = cache.entries.clear()
    say(f"removed {count_text(count, 'plan')} and what belonged to them, {size_text(freed)}\n")


def _as_json(entry: Entry) -> dict[str, Any]:
    return {"key": entry.key, "bytes": entry.size, "used": entry.used, "request": entry.request}


def _table(entries: list[Entry]) -> str:
    from trnrt.report.tables import plain_table

    rows = []
    for entry in entries:
        batch = entry.request.get("batch")
        rows.append(
            (
                name_text(str(entry.request.get("name"))),
                str(entry.request.get("target")),
                str(entry.request.get("dtype")),
                "" if batch is None else str(batch),
                size_text(entry.size),
                datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M"),
            )
        )
    return render([plain_table(("model", "target", "dtype", "batch", "size", "last used"), rows, right=(3, 4))])
