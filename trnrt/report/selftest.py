"""The self-test's result: a document with a readable part, and tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from trnrt.neuron.selftest.anonymity import anonymous, private_names
from trnrt.neuron.selftest.describing import describe_case
from trnrt.neuron.selftest.table import CASES
from trnrt.report.doctor import WIDTH
from trnrt.report.documents import SCHEMA_VERSION
from trnrt.text import count_text, error_text, escape_text

if TYPE_CHECKING:
    from trnrt.neuron.selftest.suite import Outcome, Suite

_CLOCKS = {
    "device": "the device's own clock",
    "host": "the host's clock, with its part of a call",
    "call": "calls that each compile: no times of the device",
}
_STYLES = {"passed": "green", "skipped": "dim"}


def selftest_document(suite: Suite, doctor: dict[str, Any], text: str, *, version: str) -> dict[str, Any]:
    """``doctor --self-test``: ``text`` has the terminal's lines, ``doctor`` the diagnosis.

    A case's ``predicted_us`` is its latency by the timing model (``low_us`` to ``high_us``; ``path_us`` by place),
    ``measured_us`` the median of its runs on the device, or null, ``measured`` their distribution with its ``clock``
    ("device", "host" with the host's part, "call" with a compilation, which is no ``measured_us``), ``route`` the way
    to the device, ``ratio`` is measured over predicted, and ``ran`` says what was run. ``made``: the day, UTC. No
    machine, user or folder is named.
    """
    document: dict[str, Any] = anonymous(_document(suite, doctor, text, version), private_names())
    return document


def _document(suite: Suite, doctor: dict[str, Any], text: str, version: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "trnrt_version": version,
        "kind": "self-test",
        "made": datetime.now(UTC).date().isoformat(),
        "backend": suite.backend,
        "target": suite.target,
        "passed": suite.has_passed,
        "interrupted": suite.interrupted,
        "seconds": suite.seconds,
        "counts": dict(Counter(outcome.state for outcome in suite.outcomes)),
        "text": text.splitlines(),
        "cases": [_case(outcome) for outcome in suite.outcomes],
        "frontends": [asdict(tried) for tried in suite.tried],
        "doctor": _without_processes(doctor),
    }


def _without_processes(doctor: dict[str, Any]) -> dict[str, Any]:
    """The diagnosis without the names of processes that use the devices."""
    machine = doctor.get("machine", {})
    listed = [{key: value for key, value in row.items() if key != "users"} for row in machine.get("listed", ())]
    return {**doctor, "machine": {**machine, "listed": listed}} if listed else doctor


def _distribution_document(outcome: Outcome) -> dict[str, Any] | None:
    """The distribution of the device's times, with its clock; None if no device was tested."""
    return {**outcome.document["wall_us"], "clock": outcome.clock} if outcome.clock else None


def _case(outcome: Outcome) -> dict[str, Any]:
    case = CASES.get(outcome.name)
    source = outcome.document if outcome.simulated is None else outcome.simulated
    return {
        "name": outcome.name,
        "state": outcome.state,
        "predicted_us": outcome.predicted_us,
        "low_us": outcome.ends_us[0],
        "high_us": outcome.ends_us[1],
        "measured_us": outcome.measured_us,
        "ratio": _ratio(outcome),
        "measured": _distribution_document(outcome),
        "route": outcome.document.get("route") or None,
        "moved_bytes": source.get("moved_bytes"),
        "path_us": source.get("path_us"),
        "ran": None if case is None else describe_case(case),
        "off_simulator": outcome.off_simulator,
        "result": outcome.document,
        "simulated": outcome.simulated,
    }


def _ratio(outcome: Outcome) -> float | None:
    predicted, measured = outcome.predicted_us, outcome.measured_us
    return measured / predicted if predicted and measured is not None else None


def selftest_parts(suite: Suite) -> list[Any]:
    """The headline, a row for each case, and the failures."""
    counts = Counter(outcome.state for outcome in suite.outcomes)
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    verdict = Text("PASS", "bold green") if suite.has_passed else Text("FAIL", "bold red")
    where = f"on the {suite.backend}, target {suite.target}, in {suite.seconds:.0f} s"
    cases = count_text(len(suite.outcomes), "case")
    ended = "; interrupted before its end" if suite.interrupted else ""
    head = [Text.assemble(verdict, f" self-test {where}"), f"{cases}: {states}{ended}", *_clock_lines(suite)]
    parts: list[Any] = [*head, "", _table(suite)]
    bad = [outcome for outcome in suite.outcomes if outcome.state not in ("passed", "skipped")]
    if bad:
        parts.append("")
    for tried in suite.tried:
        off = "" if tried.off_simulator is None else f", off simulator {error_text(tried.off_simulator)}"
        parts.append(f"{tried.name} with NKI's frontend {tried.frontend}: {tried.state}{off}")
    for outcome in bad:
        lines = str(outcome.document.get("summary") or outcome.document.get("detail") or "").strip().splitlines()
        parts.append(Text(escape_text(f"{outcome.name}: {lines[0] if lines else 'its numbers are off'}")))
    return parts


def _clock_lines(suite: Suite) -> list[str]:
    """How the times were measured, a line for each clock."""
    counts = Counter((outcome.clock, str(outcome.document.get("route") or "")) for outcome in suite.outcomes)
    return [
        f"{count_text(number, 'time')} by {_CLOCKS[clock]}" + (f" (route {route})" if route else "")
        for (clock, route), number in sorted(counts.items())
        if clock
    ]


def _table(suite: Suite) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", width=WIDTH)
    table.add_column("case", ratio=1, no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("max abs", "off sim", "predicted us", "measured us", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome in suite.outcomes:
        largest, ratio = outcome.document.get("max_abs"), _ratio(outcome)
        table.add_row(
            outcome.name,
            Text(outcome.state, _STYLES.get(outcome.state, "bold red")),
            "" if largest is None else error_text(largest),
            "" if outcome.off_simulator is None else error_text(outcome.off_simulator),
            "" if outcome.predicted_us is None else f"{outcome.predicted_us:,.1f}",
            "" if outcome.measured_us is None else f"{outcome.measured_us:,.1f}",
            "" if ratio is None else f"{ratio:.2f}",
        )
    return table
