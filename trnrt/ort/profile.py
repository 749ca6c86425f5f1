"""The profile of a session's runs, as the JSON trace events that onnxruntime's tools read, and Perfetto, too.

Events of the category Session have wall-clock times of this machine: reading the model, and each run. Events of the
category Node are the steps of a run's plans with their *predicted* times on the device, one after the other from the
run's start; they need not end with the run, which took the simulator's time. The timeline of the last run's kernels
follows, each core as a process of its own (``trnrt.report.trace``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.ort.providers import CPU
from trnrt.text import name_text, quote

if TYPE_CHECKING:
    from trnrt.nki.profiling import Profile
    from trnrt.planner.parts.partition import Partition
    from trnrt.running.results import RunResult

Event = dict[str, Any]
_NS_PER_US = 1000


@dataclass
class Recorder:
    """Keeps the times of a session's runs until ``write``; made when the session is ready.

    ``provider``: the name of what computes the steps. ``begun_ns``: the time of ``time.perf_counter_ns`` at which the
    session began to open; ``start_ns``: the same of ``time.time_ns``.
    """

    prefix: str
    provider: str
    begun_ns: int
    start_ns: int = 0
    _ready_ns: int = field(default_factory=time.perf_counter_ns)
    _runs: list[tuple[int, int, int, RunResult]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start_ns = time.time_ns() - (self._ready_ns - self.begun_ns)

    def note_run(self, begun_ns: int, result: RunResult) -> None:
        """Note a run that began at this time of ``time.perf_counter_ns`` and ends now."""
        self._runs.append((begun_ns, time.perf_counter_ns(), threading.get_native_id(), result))

    def write(self) -> str:
        """Write all events into a file beside ``prefix``, and return its name. OptionError if it can't be written."""
        at = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(self.start_ns / 1e9))
        path = Path(f"{self.prefix}_{at}_{self.start_ns // 1_000_000 % 1000:03}.json")
        try:
            path.write_text(json.dumps(self.events(), allow_nan=False) + "\n", encoding="ascii")
        except OSError as error:
            raise OptionError(f"the profile {quote(str(path))} can't be written: {error.strerror}") from None
        return str(path)

    def events(self) -> list[Event]:
        """The events, in the order of time."""
        profiles: dict[int, Profile] = {}
        made = [self._event("session_initialization", self.begun_ns, self._ready_ns, threading.get_native_id())]
        for begun, ended, thread, result in self._runs:
            made.append(self._event("model_run", begun, ended, thread))
            at = (begun - self.begun_ns) / _NS_PER_US
            for program in result.programs:
                for event in _steps(program.partition, profiles, self.provider):
                    made.append({**event, "pid": os.getpid(), "tid": thread, "ts": round(at, 3)})
                    at += event["dur"]
        if self._runs:
            made += _timelines(self._runs[-1][3], profiles)
        return made

    def _event(self, name: str, begun: int, ended: int, thread: int) -> Event:
        start, span = (begun - self.begun_ns) // _NS_PER_US, (ended - begun) // _NS_PER_US
        shared = {"cat": "Session", "pid": os.getpid(), "tid": thread, "ph": "X", "args": {}}
        return {**shared, "name": name, "ts": start, "dur": span}


def _steps(partition: Partition, profiles: dict[int, Profile], provider: str) -> Iterator[Event]:
    """An event for each step, with its predicted time, and for each part on the CPU, with its round trip."""
    from trnrt.planner.parts.partition import CpuPart

    for part in partition.parts:
        if isinstance(part, CpuPart):
            names = [report.name for report in part.nodes]
            args: Event = {"op_name": "CPU part", "provider": CPU, "nodes": [name_text(name) for name in names]}
            yield _node(part.name, part.crossing.predicted_us, {**args, "time": "round trip"})
            continue
        operators = {report.name: report.op for report in part.plan.nodes}
        kernels = {step.name: step.kernel for step in part.plan.steps}
        for step in _profile_of(part.plan, profiles).steps:
            found = "+".join(operators.get(name, "") for name in step.nodes) or kernels.get(step.name, step.name)
            nodes = [name_text(name) for name in step.nodes]
            args = {"op_name": name_text(found), "provider": provider, "nodes": nodes, "kernel": kernels.get(step.name)}
            yield _node(step.name, step.time_us, {**args, "bound": step.bound, "time": "predicted"})


def _node(name: str, us: float, args: Event) -> Event:
    return {"cat": "Node", "ph": "X", "name": f"{name_text(name)}_kernel_time", "dur": round(us, 3), "args": args}


def _timelines(result: RunResult, profiles: dict[int, Profile]) -> Iterator[Event]:
    """The timelines of the last program's kernels, each core as a process."""
    from trnrt.report.trace import trace_document

    plans = [loaded.plan for program in result.programs[-1:] for loaded in program.plans]
    for number, plan in enumerate(plans):
        for event in trace_document(_profile_of(plan, profiles))["traceEvents"]:
            yield {
                "cat": "Timeline",
                "tid": 0,
                "ts": 0,
                "dur": 0,
                "args": {},
                **event,
                "pid": event["pid"] + 100 * number,
            }


def _profile_of(plan: Any, profiles: dict[int, Profile]) -> Profile:
    from trnrt.running.profiler import profile_plan

    if id(plan) not in profiles:
        profiles[id(plan)] = profile_plan(plan)
    return profiles[id(plan)]
