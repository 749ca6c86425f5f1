"""``trnrt doctor``'s findings, as a table and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from trnrt.report.documents import SCHEMA_VERSION
from trnrt.text import count_text, escape_text

if TYPE_CHECKING:
    from trnrt.neuron.doctor import Diagnosis, Finding, Releases

WIDTH = 80

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red", "wrong": "bold red"}


def doctor_document(diagnosis: Diagnosis, releases: Releases, asked: str, *, version: str) -> dict[str, Any]:
    """``doctor``: ``usable`` is the answer for the backend in ``asked``; ``blocking`` names the findings that keep each
    backend from running; ``state`` is "ok", "warning", "missing" or "wrong"."""
    machine = diagnosis.machine
    return {
        "schema_version": SCHEMA_VERSION,
        "trnrt_version": version,
        "asked": asked,
        "usable": diagnosis.usable(asked),
        "backend": diagnosis.backend or None,
        "reason": diagnosis.reason,
        "sdk": releases.sdk,
        "machine": {
            "instance": machine.instance,
            "target": machine.target,
            "devices": list(machine.devices),
            "driver": machine.driver,
            "python": machine.python,
            "packages": {name: package.version for name, package in machine.packages.items()},
            "system": dict(machine.system),
            "listed": [asdict(listed) for listed in machine.listed],
            "settings": dict(machine.settings),
        },
        "blocking": {name: list(names) for name, names in diagnosis.blocking.items()},
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "sources": releases.sources,
    }


def doctor_parts(diagnosis: Diagnosis, asked: str, host: Sequence[Finding] = (), folded: str = "") -> list[Any]:
    """The answer, a row for each finding, and the fixes, each on a line to copy.

    ``host``: findings to show first, instead of the diagnosis's own of the same names. ``folded``: a line that stands
    for all the others.
    """
    shown = {finding.name for finding in host}
    others = () if folded else (finding for finding in diagnosis.findings if finding.name not in shown)
    findings = (*host, *others)
    headline = textwrap.fill(escape_text(_headline(diagnosis, asked)), WIDTH)
    parts: list[Any] = [Text(headline, "bold"), "", _table(findings)]
    parts += ["", Text(folded)] if folded else []
    mends: dict[str, list[str]] = {}
    for finding in findings:
        if finding.state != "ok" and finding.mend:
            mends.setdefault(finding.mend, []).append(finding.name)
    if mends:
        parts += ["", Text("how to fix it", "bold")]
    for mend, names in mends.items():
        parts += [Text(f"  {', '.join(names)}:"), Text(f"      {escape_text(mend)}", no_wrap=True, overflow="ignore")]
    return parts


def _headline(diagnosis: Diagnosis, asked: str) -> str:
    if asked != "auto" and not diagnosis.usable(asked):
        blocking = diagnosis.blocking[asked]
        return f"--backend {asked} can't be used: {count_text(len(blocking), 'finding')}, {', '.join(blocking)}"
    if not diagnosis.backend:
        return diagnosis.reason
    if asked not in ("auto", diagnosis.backend):
        return f"--backend {asked} can be used; --backend auto would take {diagnosis.backend}: {diagnosis.reason}"
    return f"would be used: {diagnosis.backend}, {diagnosis.reason}"


def _table(findings: tuple[Finding, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", width=WIDTH)
    table.add_column("state", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("found", ratio=1, overflow="fold")
    for finding in findings:
        wanted = f"; wanted: {finding.expected}" if finding.expected and finding.state != "ok" else ""
        table.add_row(
            Text(finding.state, _STYLES[finding.state]), finding.name, Text(escape_text(f"{finding.found}{wanted}"))
        )
    return table
