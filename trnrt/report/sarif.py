"""The findings of ``trnrt nki check`` as SARIF 2.1.0, which code reviews show at their lines.

SARIF: OASIS, Static Analysis Results Interchange Format 2.1.0. Files below the working directory get relative URIs,
which GitHub takes as relative to the repository.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from trnrt.nki.checking import Report
    from trnrt.nki.findings import Kind
    from trnrt.nki.sim.subset_source import Finding

Document = dict[str, Any]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
PROJECT = "https://github.com/trnrt/trnrt"
PAGE = f"{PROJECT}/blob/main/docs/findings.md"
_ROOT = "%SRCROOT%"


def sarif_document(report: Report, *, version: str) -> Document:
    """A log with one run: the checked file's findings as errors, its warnings as warnings, notes as notifications.

    ``version``: that of trnrt. The run's category is the file's, so that logs of several files don't replace each
    other.
    """
    from trnrt.nki.findings import kind_of

    found = [*report.findings, *report.warnings]
    used = sorted({kind_of(finding.rule) for finding in found}, key=lambda kind: kind.code)
    numbers = {kind.rule: (number, kind.code) for number, kind in enumerate(used)}
    results = [_result(finding, numbers[finding.rule], "error") for finding in report.findings]
    results += [_result(finding, numbers[finding.rule], "warning") for finding in report.warnings]
    run = {
        "tool": {
            "driver": {
                "name": "trnrt nki check",
                "version": version,
                "informationUri": PROJECT,
                "rules": [_rule(kind) for kind in used],
            }
        },
        "automationDetails": {"id": f"trnrt-nki-check/{_location(report.file)['uri']}/"},
        "invocations": [_invocation(report.notes)],
        "results": results,
        "columnKind": "unicodeCodePoints",
        "properties": {"target": report.target, "nki": report.level.value, "calls": len(report.calls)},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(kind: Kind) -> Document:
    text = f"{kind.says}. {kind.instead}" if kind.instead else kind.says
    source = f"\n\nSource: {kind.source}" if kind.source else ""
    return {
        "id": kind.code,
        "name": kind.rule,
        "shortDescription": {"text": kind.says},
        "fullDescription": {"text": text},
        "help": {"text": f"{text}{source}"},
        "helpUri": PAGE,
        "defaultConfiguration": {"level": "error" if kind.refuses else "warning"},
    }


def _result(finding: Finding, rule: tuple[int, str], level: str) -> Document:
    number, code = rule
    text = f"{finding.message}\n{finding.instead}" if finding.instead else finding.message
    region = {"startLine": max(1, finding.line), "startColumn": _column(finding)}
    location = {"physicalLocation": {"artifactLocation": _location(finding.file), "region": region}}
    return {"ruleId": code, "ruleIndex": number, "level": level, "message": {"text": text}, "locations": [location]}


def _column(finding: Finding) -> int:
    """The column in characters: Python counts the bytes of UTF-8."""
    line = linecache.getline(finding.file, finding.line).encode()
    return len(line[: finding.column - 1].decode(errors="ignore")) + 1 if line else max(1, finding.column)


def _location(file: str) -> Document:
    """A file below the working directory relative to it, another one as an absolute URI."""
    path = Path(file).absolute()
    if path.is_relative_to(Path.cwd()):
        return {"uri": quote(path.relative_to(Path.cwd()).as_posix()), "uriBaseId": _ROOT}
    return {"uri": path.as_uri()}


def _invocation(notes: Sequence[str]) -> Document:
    return {"executionSuccessful": True, "toolExecutionNotifications": list(_notifications(notes))}


def _notifications(notes: Iterable[str]) -> Iterable[Document]:
    for note in notes:
        yield {"level": "note", "message": {"text": note}}
