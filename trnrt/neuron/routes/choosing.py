"""Choosing a route by what is installed: the first of ``ROUTES`` that lacks nothing, or the one that is asked for.

- ``neff`` first, where TRNRT_NRTPY_PYTHON is set: it serves without a compiler, and a process that hangs can be ended.
- ``trace`` and ``torchneuron`` next: both keep weights on the device. Never both: they need other versions of
  torch-neuronx.
- ``jit`` last: it compiles at each call.

Without TRNRT_NRTPY_PYTHON, ``neff`` can compile but not run, so for compiling it comes after ``trace``.
"""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.neuron.device import ROUTE_VARIABLE, WORKER_VARIABLE, Facts, Package
from trnrt.neuron.findings import BAD, Finding
from trnrt.neuron.releases import Range, Releases, numbers
from trnrt.neuron.routes import ROUTES

KEEPING = ("neff", "trace")
"""The routes that keep compiled kernels."""
_WHY = {
    "neff": "it serves without a compiler",
    "trace": "torch-neuronx of PyTorch 2.9 is installed",
    "torchneuron": "TorchNeuron is installed",
    "jit": "nki and its compiler are installed; it compiles at each call, so it is not for serving",
}


@dataclass(frozen=True)
class Use:
    """The use of a route. ``route``: the one asked for; ``compiled``: only what was compiled before is run."""

    route: str | None = None
    running: bool = True
    compiled: bool = False


@dataclass(frozen=True)
class RouteChoice:
    """The chosen route and why; ``missing``: the findings that keep each route from being used, by its name;
    ``unknown``: the name that was asked for, if there is no such route."""

    name: str
    reason: str
    missing: dict[str, tuple[Finding, ...]]
    unknown: str = ""


def choose_route(facts: Facts, releases: Releases, use: Use) -> RouteChoice:
    """The route for this use. If none has all that it needs, the one that lacks least."""
    asked, by = use.route, "asked for"
    if asked is None and facts.settings.get(ROUTE_VARIABLE):
        asked, by = facts.settings[ROUTE_VARIABLE], f"{ROUTE_VARIABLE} says so"
    missing = {name: tuple(_lacks(facts, releases, name, use)) for name in ROUTES}
    if asked in ROUTES:
        return RouteChoice(asked, by, missing)
    order = _order(facts, use)
    name = min(order, key=lambda name: (len(missing[name]), order.index(name)))
    lacking = ", ".join(finding.name for finding in missing[name])
    reason = f"no route has all that it needs; this one lacks least: {lacking}" if missing[name] else _WHY[name]
    return RouteChoice(name, reason, missing, asked or "")


def judge_package(found: Package | None, wanted: Range, mend: str) -> Finding:
    """A Python package is installed, is AWS's, and has a version that trnrt was written to."""
    if found is None:
        return Finding(wanted.name, "missing", "not installed", wanted.text, mend)
    if found.placeholder:
        message = f"{found.version}, PyPI's empty placeholder"
        return Finding(wanted.name, "wrong", message, wanted.text, f"pip uninstall -y {wanted.name} && {mend}")
    state, message = wanted.state(found.version), found.version
    if wanted.beyond and numbers(found.version) >= numbers(wanted.below):
        message += f", {wanted.beyond}"
    return Finding(wanted.name, state, message, wanted.text, "" if state == "ok" else mend)


def judge_worker(facts: Facts, releases: Releases) -> Finding:
    """TRNRT_NRTPY_PYTHON names a Python that has nrtpy, and not nki."""
    needs = releases.route("neff")
    (wanted,) = needs.worker
    install = releases.pip_command(needs.worker, "/opt/nrtpy/bin/pip")
    make = f"python3.12 -m venv /opt/nrtpy && {install} numpy && export {WORKER_VARIABLE}=/opt/nrtpy/bin/python"
    if facts.worker is None:
        return Finding("nrtpy", "missing", f"{WORKER_VARIABLE} is not set", f"a Python with nrtpy {wanted.text}", make)
    if facts.worker.problem:
        return Finding("nrtpy", "wrong", facts.worker.problem, "a Python", make)
    packages = facts.worker.packages
    if "nki" in packages:
        message = f"the worker's Python has nki {packages['nki'].version}, too: both claim the same names"
        return Finding("nrtpy", "wrong", message, "nrtpy without nki", make)
    if "numpy" not in packages:
        return Finding("nrtpy", "missing", "the worker's Python has no numpy", "numpy", make)
    return judge_package(packages.get("nrtpy"), wanted, make)


def _order(facts: Facts, use: Use) -> list[str]:
    """The routes that this use allows, the preferred one first."""
    order = [name for name in ROUTES if name in KEEPING or (use.running and not use.compiled)]
    if not use.running and facts.worker is None:
        order.remove("neff")
        order.append("neff")
    return order


def _lacks(facts: Facts, releases: Releases, name: str, use: Use) -> list[Finding]:
    """The reason that keeps a route from this use."""
    needs = releases.route(name)
    mend = releases.pip_command(needs.packages())
    wanted = needs.packages(compiling=not use.compiled)
    judged = [judge_package(facts.packages.get(package.name), package, mend) for package in wanted]
    if name == "neff" and use.running:
        judged.append(judge_worker(facts, releases))
    if name not in KEEPING and (use.compiled or not use.running):
        judged.append(Finding("route", "wrong", f"the route {name} keeps no compiled kernels", " or ".join(KEEPING)))
    return [finding for finding in judged if finding.state in BAD]
