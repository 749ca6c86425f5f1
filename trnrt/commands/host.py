"""The checks of ``trnrt doctor`` that matter without a device: the simulator's numbers, the cache, and the extras."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from typing import TYPE_CHECKING

from trnrt.neuron.findings import Finding
from trnrt.text import error_text, one_line, quote, size_text

if TYPE_CHECKING:
    from trnrt.neuron.doctor import Diagnosis
    from trnrt.neuron.doctor.machine import Machine

AWS_PACKAGES = ("nki", "neuronx-cc", "torch-neuronx")
NO_DEVICE = "no Neuron device: the simulator is used; --device shows the checks"
_ROWS = 8
_LEAST_FREE = 1 << 28
"""Bytes free on the cache's disk: with less, the plans of a larger model may not be kept."""
_NOT_FOR_USERS = ("dev", "models", "neuron", "neuron-trace")
_MARKED = re.compile(r"""\s*([\w.-]+).*\bextra\s*==\s*["']([\w-]+)["']""")


def is_laptop(machine: Machine) -> bool:
    """True if nothing of a Neuron device is here: no device, driver, system package, tool, or package of AWS's."""
    packages = [machine.packages.get(name) for name in AWS_PACKAGES]
    own = any(package is not None and not package.placeholder for package in packages)
    return not (machine.devices or machine.driver or machine.system or machine.neuron_ls or own)


def check_host(diagnosis: Diagnosis) -> list[Finding]:
    """The findings that concern every machine, the most important first."""
    simulator = diagnosis.finding("simulator")
    checked = _compare_numbers() if simulator.state == "ok" else simulator
    cache = diagnosis.finding("cache")
    return [checked, _versions(diagnosis.machine), _measure_cache() if cache.state == "ok" else cache, _extras()]


def _versions(machine: Machine) -> Finding:
    numpy, onnx = _version("numpy"), _version("onnx")
    return Finding("versions", "ok", f"Python {machine.python}, with numpy {numpy} and onnx {onnx}")


def _compare_numbers() -> Finding:
    """The sample model's outputs on the simulator against onnxruntime's, on a few rows; nothing is cached."""
    import numpy as np

    from trnrt.samples import SAMPLES
    from trnrt.session import InferenceSession
    from trnrt.validate import validate

    sample = SAMPLES["digits"]
    try:
        session = InferenceSession(str(sample.model), backend="simulator", cache=False)
        with np.load(sample.data) as held_out:
            feeds = {"image": held_out["image"][:_ROWS]}
        report = validate(session, feeds)
    except Exception as error:  # whatever a broken installation raises
        return Finding("simulator", "wrong", f"the sample model fails: {one_line(str(error))}", "it runs")
    largest, version = error_text(max(output.max_abs for output in report.outputs)), _version("onnxruntime")
    how = f"{_ROWS} rows of the sample {quote(sample.name)}: the largest error is {largest}"
    if report.passed:
        return Finding("simulator", "ok", f"works, and agrees with onnxruntime {version} ({how})")
    mend = "trnrt validate --sample digits shows the outputs; reinstall onnxruntime and numpy"
    return Finding("simulator", "wrong", f"differs from onnxruntime {version} ({how})", "the same numbers", mend)


def _measure_cache() -> Finding:
    """The cache's directory, which can be written, and its size."""
    from trnrt.cache.plans import PlanCache

    cache = PlanCache()
    size = f"{size_text(cache.entries.size())} of {size_text(cache.limit)}"
    free = shutil.disk_usage(cache.directory).free if cache.directory.is_dir() else _LEAST_FREE
    if free < _LEAST_FREE:
        found = f"{cache.directory}: {size}, and {size_text(free)} free on its disk"
        return Finding(
            "cache", "warning", found, f"{size_text(_LEAST_FREE)} free", "free some space, or set TRNRT_CACHE"
        )
    return Finding("cache", "ok", f"{cache.directory}: {size}")


def _extras() -> Finding:
    """The optional parts of trnrt that are installed, and those that are not."""
    wanted: dict[str, list[str]] = {}
    for line in metadata.requires("trnrt") or []:
        found = _MARKED.match(line)
        if found is not None and found[2] not in _NOT_FOR_USERS and found[1] != "trnrt":
            wanted.setdefault(found[2], []).append(found[1])
    there = [extra for extra, names in wanted.items() if all(map(_version, names))]
    absent = [extra for extra in wanted if extra not in there]
    text = f"installed: {', '.join(there) or 'none'}"
    if absent:
        text += f"; not installed: {', '.join(absent)} (pip install 'trnrt[{absent[0]}]')"
    return Finding("extras", "ok", text)


def _version(name: str) -> str:
    """A package's version; "" if it isn't installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
