"""Measurements on the device, for comparison with predictions and simulations. Only for ``--backend neuron``."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.members import Backend
from trnrt.commands.opening import open_session
from trnrt.commands.records import SessionOptions
from trnrt.errors import BackendError, OptionError
from trnrt.report.console import note
from trnrt.report.progress import working
from trnrt.text import count_text, error_text, escape_text, name_text, quote, range_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from trnrt.neuron.captured import Attribution
    from trnrt.neuron.measured import Measured
    from trnrt.nki.machine.timing import Range
    from trnrt.nki.profiling import Profile
    from trnrt.planner.parts.partition import Partition
    from trnrt.report.documents import Document
    from trnrt.session import InferenceSession


def measure_parts(session: InferenceSession, partition: Partition, *, compiled: bool) -> dict[str, Measured]:
    """Run each part of a model on the device, and time it; by the part's name.

    ``compiled``: use the output of ``trnrt compile``. Otherwise each step becomes a function of its own, so that a
    profiler can tell steps apart.
    """
    from trnrt.cache import KernelCache
    from trnrt.neuron.backend import NeuronBackend, NeuronKernel
    from trnrt.neuron.measured import measure
    from trnrt.planner.parts.partition import DevicePart
    from trnrt.planner.rendering.stepwise import split_functions
    from trnrt.running.partition import LoadedPartition

    if isinstance(session.runner, NeuronBackend) and session.runner.route.name == "jit":
        raise BackendError(
            "the route jit compiles at each call: its times say nothing about the device",
            hint="measure by --route neff: docs/device.md says how",
        )
    if not compiled:
        parts = [replace(p, plan=split_functions(p.plan)) if isinstance(p, DevicePart) else p for p in partition.parts]
        partition = replace(partition, parts=tuple(parts))
    with working(f"compiling and running on the {session.backend}"):
        loaded = LoadedPartition(partition, session.runner, KernelCache())
        try:
            found = {part.plan.name: measure(part.kernel, part.plan) for part in loaded.plans}
            neffs = [part.kernel.neff for part in loaded.plans if isinstance(part.kernel, NeuronKernel)]
        finally:
            loaded.close()
    for part, neff in zip(loaded.partition.plans, neffs, strict=True):
        if neff is not None:
            note(*_profiler_calls(part.name, neff, session))
    return found


def _profiler_calls(name: str, neff: Path, session: InferenceSession) -> tuple[str, ...]:
    """The commands that capture a profile of the compiled kernel, make tables of it, and show them by step."""
    from trnrt.neuron.backend import NeuronBackend
    from trnrt.planner.naming import identifier

    lnc = session.runner.lnc if isinstance(session.runner, NeuronBackend) else 1
    file, shown_as = escape_text(shlex.quote(str(neff))), identifier(name)
    return (
        "for measured times by step, use AWS's profiler on this machine; give the last command this call's options:",
        f"NEURON_LOGICAL_NC_CONFIG={lnc} neuron-explorer capture -n {file} -s profile.ntff --profile-nth-exec=2",
        f"neuron-explorer view -n {file} -s profile_exec_2.ntff --ingest-only --data-path explorer "
        f"--display-name {shown_as}",
        f"trnrt profile MODEL --device-profile explorer/profiles/global/{shown_as}@latest",
    )


def attribute_captured(
    folder: Path | None, partition: Partition, profiles: Sequence[tuple[str, Profile]]
) -> Attribution | None:
    """A device profile of the model, attributed to its steps; None without ``folder``.

    OptionError if the model has several parts on the device, InputError if the profile can't be used.
    """
    if folder is None:
        return None
    from trnrt.neuron.captured.attributing import attribute
    from trnrt.neuron.captured.explorer import read_profile
    from trnrt.planner.rendering.stepwise import split_functions
    from trnrt.running.profiler import profile_plan

    if len(profiles) != 1:
        raise OptionError(
            f"--device-profile holds one kernel, and {partition.name} has {len(profiles)} parts on the device",
            hint="profile a model that runs as one kernel",
        )
    ((name, predicted),) = profiles
    plan = partition.plans[0]
    with working("reading the device's profile"):
        stepwise = split_functions(plan)
        return attribute(read_profile(folder), [(stepwise, profile_plan(stepwise)), (plan, predicted)], name)


def measured_text(measured: Mapping[str, Measured], predicted: Mapping[str, Range]) -> str:
    """Measured and predicted times, a line for each part."""
    lines = []
    for name, times in measured.items():
        device = predicted[name]
        lines.append(
            f"{name_text(name)} measured: {times.median_us:,.1f} us median, {times.least_us:,.1f} least, "
            f"{times.p99_us:,.1f} 99th percentile of {count_text(times.runs, 'run')} on the host's clock, "
            "with transfers; "
            f"predicted for the device alone: {range_text(device)}; "
            f"measured / predicted: {times.median_us / device.us:,.2f}"
        )
    return "\n".join(["", *lines, ""])


def measured_document(measured: Mapping[str, Measured]) -> Document:
    """The measured times, by part."""
    return {name: asdict(times) for name, times in measured.items()}


def compare_simulator(
    model: Path, options: SessionOptions, session: InferenceSession, feeds: Mapping[str, npt.NDArray[Any]]
) -> dict[str, float]:
    """The largest difference between the device and the simulator, by output."""
    import numpy as np

    planning = replace(options.planning, target=session.target)
    twin = open_session(model, replace(options, backend=Backend.SIMULATOR, planning=planning))
    with working("running on the device and on the simulator"):
        ours, theirs = session.run(None, feeds), twin.run(None, feeds)
    names = [info.name for info in session.get_outputs()]
    found = {}
    for name, device, simulated in zip(names, ours, theirs, strict=True):
        if isinstance(device, np.ndarray) and device.dtype.kind in "fiub" and device.size:
            difference = np.abs(device.astype(np.float64) - simulated.astype(np.float64))
            found[name] = float(np.max(difference))
    for name, largest in found.items():
        note(f"{quote(name)}: the device and the simulator differ by at most {error_text(largest)}")
    return found
