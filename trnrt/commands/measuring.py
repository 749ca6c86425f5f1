"""What the device itself says, beside what trnrt predicts and simulates. Only for ``--backend neuron``."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.opening import SessionOptions, open_session
from trnrt.report.console import note, working
from trnrt.report.text import counted, error_text, escaped, quoted, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from trnrt.backends.measured import Measured
    from trnrt.planner.partition import Partition
    from trnrt.report.documents import Document
    from trnrt.session import InferenceSession


def measure_parts(session: InferenceSession, partition: Partition) -> dict[str, Measured]:
    """Run each part of a model on the device, and time it: by the part's name."""
    from trnrt.backends.measured import measure
    from trnrt.backends.neuron import NeuronKernel
    from trnrt.cache import KernelCache
    from trnrt.running import LoadedPartition

    with working(f"compiling and running on the {session.backend}"):
        loaded = LoadedPartition(partition, session.runner, KernelCache())
        try:
            found = {part.plan.name: measure(part.kernel, part.plan) for part in loaded.plans}
            neffs = [part.kernel.neff for part in loaded.plans if isinstance(part.kernel, NeuronKernel)]
        finally:
            loaded.close()
    for neff in filter(None, neffs):
        told = f"neuron-explorer capture -n {escaped(shlex.quote(str(neff)))} -s profile.ntff --profile-nth-exec=2"
        note(f"by step, AWS's own profiler tells; on this machine: {told}")
    return found


def measured_text(measured: Mapping[str, Measured], predicted_us: Mapping[str, float]) -> str:
    """Measured beside predicted, a line for each part."""
    lines = []
    for name, times in measured.items():
        predicted = predicted_us[name]
        off = 100 * (times.median_us - predicted) / predicted
        lines.append(
            f"{shown(name)} measured: {times.median_us:,.1f} us median, {times.least_us:,.1f} least, "
            f"{times.p99_us:,.1f} 99th percentile of {counted(times.runs, 'run')} on the host's clock, with transfers; "
            f"predicted for the device alone: {predicted:,.1f} us ({off:+.1f}%)"
        )
    return "\n".join(["", *lines, ""])


def measured_document(measured: Mapping[str, Measured]) -> Document:
    """The measured times, by part."""
    return {name: asdict(times) for name, times in measured.items()}


def against_simulator(
    model: Path, options: SessionOptions, session: InferenceSession, feeds: Mapping[str, npt.NDArray[Any]]
) -> dict[str, float]:
    """How far the device's outputs are from the simulator's, by output: the largest difference."""
    import numpy as np

    twin = open_session(model, replace(options, backend="simulator", target=session.target))
    with working("running on the device and on the simulator"):
        ours, theirs = session.run(None, feeds), twin.run(None, feeds)
    names = [info.name for info in session.get_outputs()]
    found = {}
    for name, device, simulated in zip(names, ours, theirs, strict=True):
        if isinstance(device, np.ndarray) and device.dtype.kind in "fiub" and device.size:
            difference = np.abs(device.astype(np.float64) - simulated.astype(np.float64))
            found[name] = float(np.max(difference))
    for name, largest in found.items():
        note(f"{quoted(name)}: the device and the simulator differ by at most {error_text(largest)}")
    return found
