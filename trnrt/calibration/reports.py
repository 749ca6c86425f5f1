"""The self-test's reports as observations: read, checked, and matched with the cases of this version of trnrt."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnrt.calibration.learning import Observation
from trnrt.errors import OptionError, ReportError
from trnrt.neuron.selftest.cases import Case, Direct
from trnrt.neuron.selftest.describing import describe_case
from trnrt.neuron.selftest.table import CASES
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import target_names
from trnrt.nki.sim.kernel import trace
from trnrt.text import quote

LEAST_RUNS = 5
"""A case that was timed less often has no spread."""
_LARGEST_FILE = 2**26
_MAKE = "`trnrt doctor --self-test` writes one, on a machine with NeuronCores"
_MEDIAN_ERROR = 1.2533  # of a median's standard deviation to that of a mean, for many normal values
_QUARTILES = 1.349  # standard deviations between the quartiles of normal values
_PACKAGES = ("nki", "neuronx-cc", "torch-neuronx", "aws-neuronx-dkms", "aws-neuronx-runtime-lib")


@dataclass(frozen=True)
class Measured:
    """A case on the device. Times are microseconds; ``predicted_us`` and ``path_us`` are the report's own."""

    name: str
    us: float
    error_us: float
    clock: str
    moved_bytes: int
    predicted_us: float
    path_us: Mapping[str, float]


@dataclass(frozen=True)
class Report:
    """A report. ``foreign``: the cases that this version of trnrt does not have, or has with other contents;
    ``calls``: those whose times hold a compilation each, which say nothing of the device."""

    file: str
    digest: str
    target: str
    made: str
    trnrt: str
    versions: str
    cases: tuple[Measured, ...]
    foreign: tuple[str, ...]
    calls: tuple[str, ...] = ()


def read_report(path: Path) -> Report:
    """The report in a file. OptionError if it is none; ReportError if no device was measured."""
    return report_of(*_read_document(path), str(path))


def report_of(document: dict[str, Any], digest: str, file: str) -> Report:
    """The same for a document; ``file`` is its name in errors."""
    shown = quote(file)
    if document.get("kind") != "self-test" or not isinstance(document.get("cases"), list):
        raise OptionError(f"{shown} is no report of a self-test", hint=_MAKE)
    target = document.get("target")
    if target not in target_names():
        raise OptionError(f"{shown} is of the target {target!r}", hint=f"targets are {', '.join(target_names())}")
    found, foreign, calls = list[Measured](), list[str](), list[str]()
    for k, case in enumerate(document["cases"]):
        try:
            measured = None if _is_call(case) else _measured_case(case)
            calls += [str(case["name"])] if _is_call(case) else []
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"{shown}: cases[{k}] is broken: {type(error).__name__}: {error}", hint=_MAKE) from None
        if measured is not None:
            known = measured.name in CASES and describe_case(CASES[measured.name]) == case.get("ran")
            found += [measured] if known else []
            foreign += [] if known else [measured.name]
    if not found and not foreign and calls:
        raise ReportError(
            f"{shown} has times of calls that each hold a compilation (route jit), and none of a loaded kernel",
            hint="run the self-test by --route neff: docs/device.md says how",
        )
    if not found and not foreign:
        raise ReportError(f"{shown} has no times of a device ({document.get('backend')})", hint=_MAKE)
    if not found:
        version = str(document.get("trnrt_version"))[:40]
        raise ReportError(f"{shown} is by trnrt {version}, which has other cases", hint="use that version of trnrt")
    made, version = (_plain_text(document.get(key)) for key in ("made", "trnrt_version"))
    return Report(file, digest, target, made, version, _versions(document), tuple(found), tuple(foreign), tuple(calls))


def check_same_target(reports: Iterable[Report]) -> str:
    """The reports' target; OptionError if they are of several, or one is given twice."""
    reports = list(reports)
    targets = sorted({report.target for report in reports})
    if len(targets) > 1:
        raise OptionError(f"the reports are of {' and '.join(targets)}", hint="calibrate one target at a time")
    digests = [report.digest for report in reports]
    for report in reports:
        if digests.count(report.digest) > 1:
            raise OptionError(f"{quote(report.file)} is given twice", hint="give each report once")
    return targets[0]


def probed_observations(reports: Iterable[Report]) -> list[Observation]:
    """The cases that a fit learns from: the probes. In other cases the compiler chooses, not the hardware."""
    return [
        Observation(one.name, k, one.us, one.error_us, "device" if one.clock == "device" else "host", one.moved_bytes)
        for k, report in enumerate(reports)
        for one in report.cases
        if is_probe(CASES[one.name])
    ]


def is_probe(case: Case) -> bool:
    """True for a case that is repeated as often as its ``repeats`` says."""
    return isinstance(case, Direct) and bool(case.probe)


def program_of(name: str, target: str) -> Program:
    """The traced program of a kernel's case."""
    case = CASES[name]
    assert isinstance(case, Direct)
    return trace(case.find_kernel(), *case.arrays(), *case.options, target=target)


def _read_document(path: Path) -> tuple[dict[str, Any], str]:
    """The JSON document, and the first digits of its file's SHA-256."""
    shown = quote(str(path))
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise OptionError(f"{shown} has more than {_LARGEST_FILE} bytes: it is no report", hint=_MAKE)
        content = path.read_bytes()
        document = json.loads(content)
    except OSError as error:
        raise OptionError(f"can't read {shown}: {error.strerror}", hint=_MAKE) from None
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{shown} is not JSON: {error}", hint=_MAKE) from None
    if not isinstance(document, dict):
        raise OptionError(f"{shown} is no report of a self-test", hint=_MAKE)
    return document, hashlib.sha256(content).hexdigest()[:12]


def _is_call(case: dict[str, Any]) -> bool:
    """True for a case whose times hold a compilation."""
    times = case["measured"]
    return times is not None and str(times["clock"]) == "call"


def _measured_case(case: dict[str, Any]) -> Measured | None:
    """A case that passed and was timed often enough; else None. ValueError for numbers that can't be."""
    times = case["measured"]
    if times is None or case["state"] != "passed" or times["runs"] < LEAST_RUNS:
        return None
    spread = (_positive(times["upper"]) - _positive(times["lower"])) / _QUARTILES
    if spread < 0:
        raise ValueError("the upper quartile is below the lower")
    error_us = _MEDIAN_ERROR * spread / math.sqrt(times["runs"])
    path_us = {str(place): float(us) for place, us in (case["path_us"] or {}).items()}
    clock = str(times["clock"])
    if clock not in ("host", "device"):
        raise ValueError(f"clock = {clock!r}; clocks are device, host and call")
    us, predicted_us = _positive(times["median"]), _positive(case["predicted_us"])
    return Measured(str(case["name"]), us, error_us, clock, int(case["moved_bytes"]), predicted_us, path_us)


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _versions(document: dict[str, Any]) -> str:
    """The versions of AWS's packages: "nki 0.7.0, neuronx-cc 2.23"."""
    machine = (document.get("doctor") or {}).get("machine") or {}
    known = {**(machine.get("system") or {}), **(machine.get("packages") or {})}
    return ", ".join(f"{name} {_plain_text(known[name])}" for name in _PACKAGES if known.get(name))


def _plain_text(value: Any) -> str:
    """A version or a day; other characters than those of such are left out."""
    return re.sub(r"[^A-Za-z0-9.+_-]", "", str(value))[:60]
