"""The requirements for running kernels on a NeuronCore, each rule a function of the facts.

``--backend neuron`` refuses with these findings, and ``trnrt doctor`` shows the same ones: there is no other table.
The versions that work are data, with their sources: ``releases.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trnrt.errors import BackendError
from trnrt.neuron.cores import VISIBLE, parse_cores
from trnrt.neuron.device import (
    ARTIFACTS_VARIABLE,
    AWS_SIMULATOR,
    DEFAULT_LNC,
    LNC_VARIABLE,
    UNSUPPORTED_VARIABLE,
    Facts,
    logical_config,
    look_for_device,
)
from trnrt.neuron.findings import BAD, Finding
from trnrt.neuron.frontend import FRONTEND_VARIABLE, frontend_for
from trnrt.neuron.releases import Needs, Releases, load_releases
from trnrt.neuron.routes import ROUTES
from trnrt.neuron.routes.choosing import Use, choose_route, judge_package, judge_worker
from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target, known_targets, target_names
from trnrt.text import count_text

Judge = Callable[[Facts, Releases], "Finding"]

_LNC_FLAG = re.compile(r"(?:--logical-nc-config|--?lnc)[= ]\s*(\d+)")


@dataclass(frozen=True)
class Asked:
    """The use of the device. ``target``, ``lnc``: None is the machine's own. ``running``: False for compiling only,
    which needs no device. ``route``: None is the first that can be used; ``compiled``: only what was compiled before is
    run. ``unsupported``: a device that NKI does not support is accepted."""

    target: str | None = None
    lnc: int | None = None
    running: bool = True
    route: str | None = None
    compiled: bool = False
    unsupported: bool = False

    @property
    def use(self) -> Use:
        """The use of the route."""
        return Use(self.route, self.running, self.compiled)


@dataclass(frozen=True)
class Verdict:
    """The findings that keep this machine's NeuronCore from a use, and the route that is used if there are none."""

    findings: list[Finding]
    route: str
    reason: str


def examine_use(asked: Asked, facts: Facts | None = None) -> Verdict:
    """Judge this machine."""
    facts, releases = facts or look_for_device(), load_releases()
    route = choose_route(facts, releases, asked.use)
    judged = [judge(facts, releases) for judge in requirements(asked).values()]
    return Verdict([finding for finding in judged if finding.state in BAD], route.name, route.reason)


def findings(asked: Asked, facts: Facts | None = None) -> list[Finding]:
    """The findings that keep this machine's NeuronCore from this use."""
    return examine_use(asked, facts).findings


def requirements(asked: Asked) -> dict[str, Judge]:
    """The rules by name, the most important first."""
    names = dict.fromkeys(p.name for needs in load_releases().routes for p in needs.packages())
    return {
        "device": partial(device, asked=asked),
        "supported": partial(supported_device, asked=asked),
        "route": partial(route, asked=asked),
        **{name: partial(package, name=name, asked=asked) for name in names},
        "nrtpy": partial(worker, asked=asked),
        "kernels": partial(kernels, asked=asked),
        "frontend": partial(frontend, asked=asked),
        "lnc": partial(lnc, asked=asked),
        "visible": partial(visible_cores, asked=asked),
    }


def device(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """There is a device, and it is of the target asked for."""
    what = facts.instance or "an unknown machine"
    if not asked.running:
        return Finding("device", "ok", "none is needed to compile")
    if not facts.devices:
        mend = f"launch a {DEFAULT_TARGET} instance: docs/neuron.md says how; without one, --backend simulator"
        if facts.target is not None:
            mend = install_command(facts, releases, "aws-neuronx-dkms")
        return Finding("device", "missing", f"there is no /dev/neuron* ({what})", "/dev/neuron0", mend)
    if facts.closed:
        # about-neuron/security.rst of SDK 2.32: a rule of udev may limit the devices to a group, there called neuron.
        mend = "sudo usermod -aG neuron $USER, and log in again; in containers: docs/deploy.md, Who may open the device"
        return Finding("device", "wrong", f"this user may not open {facts.closed[0]}", "read and write", mend)
    if asked.target is not None and facts.target not in (None, asked.target):
        message = f"target {asked.target} was asked for, and this machine's device is {facts.target}"
        mend = f"leave --target out, or compile for {asked.target} only: trnrt compile --backend neuron"
        return Finding("device", "wrong", message, asked.target, mend)
    if asked.target is None and facts.target is None:
        mend = f"say --target {' or '.join(', '.join(target_names()).rsplit(', ', 1))}"
        return Finding("device", "missing", f"the kind of this machine's device is unknown ({what})", "", mend)
    count = count_text(len(facts.devices), "device")
    return Finding("device", "ok", f"{count} ({facts.devices[0]} first) on {what}")


def supported_device(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """NKI supports the device, or the user wants to run there all the same."""
    target = None if not asked.running or not facts.devices else facts.target or asked.target
    if target is None:
        return Finding("supported", "ok", "no device to run on")
    device = get_target(target).device
    if device.nki_supported:
        return Finding("supported", "ok", f"NKI supports {target}")
    pages = f"For it: {'; '.join(device.nki_for)}. Against it: {'; '.join(device.nki_against)}"
    stated = f"AWS does not state that NKI runs here ({device.nki_supported_source})"
    message = f"{facts.instance or target}: {stated}. {pages}"
    certain = ", ".join(known.name for known in known_targets() if known.device.nki_supported)
    if asked.unsupported or facts.settings.get(UNSUPPORTED_VARIABLE) == "1":
        return Finding("supported", "warning", message, certain, "run trnrt doctor --self-test before you rely on it")
    mend = f"use a {DEFAULT_TARGET} instance, or add --allow-unsupported-device (or {UNSUPPORTED_VARIABLE}=1)"
    return Finding("supported", "wrong", message, certain, mend)


def route(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """One route to the device can be used; for each other one, what it lacks."""
    chosen = choose_route(facts, releases, asked.use)
    if chosen.unknown:
        return Finding("route", "wrong", f"unknown route {chosen.unknown!r}", "", f"routes are {', '.join(ROUTES)}")
    others = [
        f"{name}: {', '.join(f'{lack.name} ({lack.found})' for lack in lacks) or 'could be used, too'}"
        for name, lacks in chosen.missing.items()
        if name != chosen.name
    ]
    refused = [lack for lack in chosen.missing[chosen.name] if lack.name == "route"]
    if refused:
        return refused[0]
    state = "warning" if chosen.missing[chosen.name] else "ok"  # the rows of what it lacks say how to mend it
    return Finding("route", state, f"{chosen.name} ({chosen.reason}). Others: {'; '.join(others)}")


def package(facts: Facts, releases: Releases, name: str, asked: Asked) -> Finding:
    """A Python package that the route needs is installed, is AWS's, and has a version that trnrt was written to."""
    needs = _needs(facts, releases, asked)
    found = facts.packages.get(name)
    for wanted in needs.packages(compiling=not asked.compiled):
        if wanted.name == name:
            return judge_package(found, wanted, releases.pip_command(needs.packages()))
    return Finding(
        name, "ok", f"{found.version if found else 'not installed'}; the route {needs.name} does not need it"
    )


def worker(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """The route neff has a Python with nrtpy."""
    needs = _needs(facts, releases, asked)
    if not needs.worker:
        return Finding("nrtpy", "ok", f"the route {needs.name} needs no worker process")
    return judge_worker(facts, releases) if asked.running else Finding("nrtpy", "ok", "compiling needs no worker")


def kernels(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """Kernels import AWS's nki if it is installed, and it compiles them: it has a simulator of its own."""
    needs = _needs(facts, releases, asked)
    if asked.compiled and needs.worker:
        return Finding("kernels", "ok", "are compiled already")
    if (value := facts.settings.get(AWS_SIMULATOR)) not in (None, "", "0"):
        message = f"{AWS_SIMULATOR}={value} is set: AWS's nki would simulate the kernels on the CPU"
        return Finding("kernels", "wrong", message, "unset", f"unset {AWS_SIMULATOR}")
    if needs.worker:
        return Finding("kernels", "ok", "are compiled in a process that gets AWS's nki")
    if (value := facts.settings.get(ARTIFACTS_VARIABLE)) and needs.name != "trace":
        message = f"{ARTIFACTS_VARIABLE}={value} is set: AWS's compiler wants an empty folder for each kernel"
        return Finding("kernels", "wrong", message, "unset", f"unset {ARTIFACTS_VARIABLE}")
    if facts.seam and "nki" in facts.packages and not facts.packages["nki"].placeholder:
        message = f"AWS's nki is installed, but kernels don't get it: {facts.seam}"
        mend = "unset TRNRT_NKI"
        if "TRNRT_NKI" not in facts.seam:
            mend = releases.pip_command(needs.packages())
        return Finding("kernels", "wrong", message, "AWS's nki", mend)
    return Finding("kernels", "ok", "get the simulator's nki" if facts.seam else "get AWS's nki")


def frontend(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """NKI_COMPILER_FRONTEND has a value that the pages name for this nki; unset, the backend chooses one."""
    nki = facts.packages.get("nki")
    if nki is None or nki.placeholder:
        return Finding("frontend", "ok", "no nki to set it for")
    try:
        return Finding("frontend", "ok", frontend_for(nki.version, facts.settings.get(FRONTEND_VARIABLE)).text)
    except BackendError as error:
        return Finding("frontend", "wrong", str(error), "", error.hint or "")


def lnc(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """trn2 groups two physical cores by default; trnrt's kernels run on one, and runtime and compiler must agree.

    If NEURON_LOGICAL_NC_CONFIG is not set, the backend sets it, to ``--lnc`` or 1, for its own process.
    """
    variable = facts.settings.get(LNC_VARIABLE)
    flag = _LNC_FLAG.search(facts.settings.get("NEURON_CC_FLAGS", ""))
    try:
        used = logical_config(asked.lnc, facts.settings)
    except BackendError as error:
        return Finding("lnc", "wrong", str(error), "", error.hint or "")
    if flag is not None and flag[1] != str(used):
        message = f"NEURON_CC_FLAGS says {flag[0]}, and the runtime uses {used}: compiler and runtime must agree"
        return Finding("lnc", "wrong", message, "the same", "remove it from NEURON_CC_FLAGS")
    target = asked.target or facts.target
    if target is not None and used > get_target(target).device.most_lnc:
        mend = "use --lnc 1" if variable is None else f"export {LNC_VARIABLE}={DEFAULT_LNC}"
        return Finding("lnc", "wrong", f"{target} has no logical cores of 2: there, LNC is always 1", "1", mend)
    return _lnc_of_machine(facts, asked, variable)


def visible_cores(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """NEURON_RT_VISIBLE_CORES names cores: a parent process assigns some by it, or none."""
    value = facts.settings.get(VISIBLE)
    if value is None or not asked.running:
        return Finding("visible", "ok", f"{VISIBLE} is not set" if value is None else "no core is needed to compile")
    try:
        cores = parse_cores(value)
    except BackendError as error:
        return Finding("visible", "wrong", str(error), "", error.hint or "")
    return Finding("visible", "ok", f"{VISIBLE} names {count_text(len(cores), 'core')}")


def _lnc_of_machine(facts: Facts, asked: Asked, variable: str | None) -> Finding:
    """Warn of the setting of other programs on this machine. It changes nothing for trnrt, but may surprise."""
    if not facts.devices or not asked.running:
        return Finding("lnc", "ok", "no device to set it for" if not facts.devices else "as asked", str(DEFAULT_LNC))
    others, source = variable, f"{LNC_VARIABLE} is"
    if others is None and facts.lnc_file is not None:
        others, source = facts.lnc_file, "/opt/aws/neuron/logical_nc_config says"
    elif others is None and facts.listed_lnc is not None:
        others, source = str(facts.listed_lnc), "neuron-ls says"
    elif others is None:
        default = get_target(facts.target).device.default_lnc if facts.target else 0
        others, source = str(default or "unknown"), "the default is"
    if others != str(DEFAULT_LNC):
        message = f"{source} {others}; a kernel of trnrt runs on one physical core"
        return Finding("lnc", "warning", message, str(DEFAULT_LNC), f"export {LNC_VARIABLE}={DEFAULT_LNC}")
    return Finding("lnc", "ok", f"{source} {others}", str(DEFAULT_LNC))


def _needs(facts: Facts, releases: Releases, asked: Asked) -> Needs:
    """The needs of the route that is used."""
    return releases.route(choose_route(facts, releases, asked.use).name)


def install_command(facts: Facts, releases: Releases, name: str) -> str:
    """The command that installs a system package, of the release that the route's packages are of."""
    needs = _needs(facts, releases, Asked())
    return f"sudo apt-get install -y '{name}={releases.system_version(name, needs.sdk)}*'"
