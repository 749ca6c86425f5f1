"""The results of ``python -m benchmarks.courses``: tables for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING

from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from benchmarks.courses.samples.running import Outcome
    from benchmarks.courses.working import Result

SHARE = 0.9
"""Of the kernels with public imports only: the least share that must run and agree."""


def courses_document(results: Sequence[Result], outcomes: Sequence[Outcome]) -> Document:
    """Microseconds; ``passed`` is that of all harnesses, and of the share of kernels."""
    public = [one for one in outcomes if one.public and one.kernel]
    agreeing = sum(one.agrees for one in public)
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "courses",
        "harnesses": [_harness(result) for result in results],
        "samples": [asdict(one) | {"agrees": one.agrees} for one in outcomes],
        "public_kernels": len(public),
        "agreeing_kernels": agreeing,
        "passed": all(result.is_good for result in results) and agreeing >= SHARE * len(public),
    }


def _harness(result: Result) -> Document:
    run = result.run
    return {
        "name": run.name,
        "commit": f"{run.course.name}@{run.course.commit}",
        "solution": None if run.solution is None else f"{run.solution[0].name}@{run.solution[0].commit}",
        "target": run.target,
        "changes": [f"{file}: {what}" for file, what, _ in run.changes],
        "options": list(run.options),
        "predicted_us": list(result.times_us),
        "limits_us": list(run.limits),
        "published_us": list(run.published),
        "passed": result.is_good,
        "problems": list(result.problems),
        "cpu_seconds": round(result.cpu_seconds, 1),
    }


_INTRODUCTION = """\
# Courses' harnesses and AWS's samples

Public course harnesses and AWS samples that use the [old namespace](legacy.md) run on the simulator. This page lists
the results and the predicted times. The harnesses are those of Stanford's CS149 (assignment 4) and Berkeley's CS152
(lab 6); the samples are the files of `aws-neuron/nki-samples` at 28673b4 that have `nki.jit`. Their code is unchanged,
except where a run's name says otherwise.

`python -m benchmarks.courses --json-out benchmarks/courses/results.json` runs all of it, and this page is generated
from that file.

## The harnesses

Each harness runs with a public solution, with the course's own kernels, or with a kernel that is known to be bad. A
*bad* run must fail in the expected way. The last column says whether output and exit code are the expected ones. Flags
behind a run's name are those of `trnrt nki run`.

A limit is the course's own. A published time was measured with the same kernel; `benchmarks/courses/harnesses.py` names
the sources. CS152's convolutions are predicted to miss their limits.

| run | target | predicted us | limit us | published us | as expected |
|---|---|---|---|---|---|"""


def courses_page(document: Document) -> str:
    """docs/courses.md, from a document."""
    samples, agreeing, public = document["samples"], document["agreeing_kernels"], document["public_kernels"]
    lines = [
        *_INTRODUCTION.splitlines(),
        *(_harness_row(one) for one in document["harnesses"]),
        "",
        "## The kernels of nki-samples",
        "",
        f"{agreeing} of the {public} kernels that import only documented modules of the SDK run, and agree with numpy.",
        "Inputs and references are our own. *Difference* is the largest absolute one. After *yes* come the relative",
        "tolerance and its reason; bits are those of the significand.",
        "",
        "| file | kernel | difference | agrees, or why not |",
        "|---|---|---|---|",
        *(_sample_row(one) for one in samples),
    ]
    return "\n".join(lines) + "\n"


def _harness_row(one: Document) -> str:
    columns = (one["predicted_us"], one["limits_us"], one["published_us"])
    figures = (_figures(column) for column in columns)
    verdict = "yes" if one["passed"] else "no: " + "; ".join(one["problems"])
    name = ", ".join((one["name"], *(f"`{option}`" for option in one["options"])))
    return f"| {name} | {one['target']} | {' | '.join(figures)} | {verdict} |"


def _figures(column: Sequence[float | None]) -> str:
    """The figures of a cell, "-" for a missing one; nothing if all are missing."""
    if all(figure is None for figure in column):
        return ""
    return ", ".join("-" if figure is None else f"{figure:,.5g}" for figure in column)


def _sample_row(one: Document) -> str:
    kernel = f"`{one['kernel']}`" if one["kernel"] else ""
    difference = f"{one['difference']:.1e}" if one["agrees"] and one["difference"] is not None else ""
    verdict = f"yes; {one['tolerance']}" if one["agrees"] else one["problem"].partition(" at /")[0]
    return f"| `{one['file']}` | {kernel} | {difference} | {verdict} |"


def courses_parts(results: Sequence[Result], outcomes: Sequence[Outcome]) -> list[RenderableType]:
    """A line for each harness and time, and one for each kernel."""
    parts: list[RenderableType] = []
    if results:
        columns = ("harness", "target", "predicted us", "limit us", "published us", "CPU s", "verdict")
        lines = [line for result in results for line in _lines(result)]
        parts += [plain_table(columns, lines, right=(2, 3, 4, 5)), ""]
    if outcomes:
        rows = [(one.file, one.kernel, difference_text(one), verdict_of(one)) for one in outcomes]
        public = [one for one in outcomes if one.public and one.kernel]
        agreeing = sum(one.agrees for one in public)
        parts += [plain_table(("file", "kernel", "difference", "verdict"), rows), ""]
        parts.append(f"{agreeing} of {len(public)} kernels with public imports only run and agree")
    return parts


def _lines(result: Result) -> list[tuple[str, ...]]:
    """A line for each time of a run; the first has its name and verdict."""
    run = result.run
    verdict = "as it must be" if result.is_good else "; ".join(result.problems)
    times = list(zip_longest(result.times_us, run.limits, run.published)) or [(None, None, None)]
    found = []
    for at, figures in enumerate(times):
        shown = ["" if figure is None else f"{figure:,.1f}" for figure in figures]
        name, end = (run.name, run.target), (f"{result.cpu_seconds:.0f}", verdict)
        found.append((*(name if at == 0 else ("", "")), *shown, *(end if at == 0 else ("", ""))))
    return found


def difference_text(outcome: Outcome) -> str:
    """The largest difference of a kernel that agrees."""
    return f"{outcome.difference:.1e}" if outcome.agrees and outcome.difference is not None else ""


def verdict_of(outcome: Outcome) -> str:
    """The verdict on a kernel: that it agrees, or the reason why it doesn't."""
    return f"agrees ({outcome.tolerance})" if outcome.agrees else outcome.problem
