"""The files that harnesses look for: in the place of AWS's compiled kernel (NEFF) and trace (NTFF), text that says so.

A stand-in holds JSON: what it is, the kernel, the target, and the predicted latency. Under ``trnrt nki run`` the report
with the timeline lies beside a trace, as ``profile.html`` beside ``profile.ntff``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from trnrt.nki.machine.program import Program

WHAT = {
    "neff": "a stand-in for a compiled kernel, written by trnrt's simulator: no device can run it",
    "ntff": "a stand-in for a device's trace, written by trnrt's simulator: a prediction, nothing was measured",
}


Writer = Callable[[Sequence[Program]], str]
"""The report on a kernel's programs, as HTML. The simulator has none of its own: the command line lends it one."""


class _Lent:
    """The writer of this process. Not a context variable: scripts have threads."""

    writer: ClassVar[Writer | None] = None


@contextmanager
def lend_reports(writer: Writer) -> Iterator[None]:
    """Write a report beside each trace inside the context."""
    before, _Lent.writer = _Lent.writer, writer
    try:
        yield
    finally:
        _Lent.writer = before


def write_artefacts(programs: Sequence[Program], options: Mapping[str, Any]) -> list[Path]:
    """Write the files that ``options`` name, in ``working_directory`` if it is given; return their paths."""
    folder = Path(options.get("working_directory") or ".")
    document = describe_programs(programs)
    written = []
    for kind, key in (("neff", "save_neff_name"), ("ntff", "save_trace_name")):
        if options.get(key):
            path = folder / str(options[key])
            path.write_text(json.dumps({"what": WHAT[kind], **document}, indent=1) + "\n", encoding="utf-8")
            written.append(path)
            if kind == "ntff" and _Lent.writer is not None:
                written.append(path.with_suffix(".html"))
                written[-1].write_text(_Lent.writer(programs), encoding="utf-8")
    return written


def describe_programs(programs: Sequence[Program]) -> dict[str, Any]:
    """The text of a stand-in about a kernel: its size, and the predicted latency in microseconds."""
    from trnrt.nki.machine.timing.prediction import predict_benchmark

    found = predict_benchmark(list(programs))
    return {
        "kernel": programs[0].kernel,
        "target": programs[0].target.name,
        "instructions": sum(len(program.instructions) for program in programs),
        "predicted_us": found.us,
        "low_us": found.least_us,
        "high_us": found.most_us,
    }
