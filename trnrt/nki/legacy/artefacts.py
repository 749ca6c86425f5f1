"""The files that harnesses look for: in the place of AWS's compiled kernel (NEFF) and trace (NTFF), text that says so.

A stand-in holds JSON: what it is, the kernel, the target, and the predicted latency. Beside a trace lies trnrt's own
timeline, which https://ui.perfetto.dev opens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trnrt.nki.machine.targets import get_target
from trnrt.nki.sim.kernel import Kernel, Simulated, default_target

WHAT = {
    "neff": "a stand-in for a compiled kernel, written by trnrt's simulator: no device can run it",
    "ntff": "a stand-in for a device's trace, written by trnrt's simulator: a prediction, nothing was measured",
}


def write_artefacts(
    kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> list[Path]:
    """Write the files that ``options`` name, in ``working_directory`` if it is given; return their paths."""
    folder = Path(options.get("working_directory") or ".")
    target = get_target(default_target())
    programs = Simulated(kernel, target).trace(*args, **kwargs)
    document = describe_programs(kernel.name, target.name, programs)
    written = []
    for kind, key in (("neff", "save_neff_name"), ("ntff", "save_trace_name")):
        if options.get(key):
            path = folder / str(options[key])
            path.write_text(json.dumps({"what": WHAT[kind], **document}, indent=1) + "\n", encoding="utf-8")
            written.append(path)
    return written


def describe_programs(kernel: str, target: str, programs: Sequence[Any]) -> dict[str, Any]:
    """The text of a stand-in about a kernel: its size, and the predicted latency in microseconds."""
    from trnrt.nki.machine.timing.prediction import predict_benchmark

    found = predict_benchmark(programs)
    return {
        "kernel": kernel,
        "target": target,
        "instructions": sum(len(program.instructions) for program in programs),
        "predicted_us": found.us,
        "low_us": found.least_us,
        "high_us": found.most_us,
    }
