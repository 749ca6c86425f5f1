"""What must hold for kernels to run on a NeuronCore, each rule a function of the facts.

``--backend neuron`` refuses with these findings, and ``trnrt doctor`` shows the same ones: there is no other table.
Which versions serve is data, with its sources: ``releases.json``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trnrt.errors import BackendError
from trnrt.neuron.cores import VISIBLE, parse_cores
from trnrt.neuron.device import AWS_SIMULATOR, DEFAULT_LNC, LNC_VARIABLE, Facts, look_for_device
from trnrt.neuron.releases import Range, Releases, load_releases, numbers
from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target, target_names
from trnrt.text import count_text

STATES = ("ok", "warning", "missing", "wrong")
BAD = ("missing", "wrong")

_LNC_FLAG = re.compile(r"(?:--logical-nc-config|--?lnc)[= ]\s*(\d+)")


@dataclass(frozen=True)
class Finding:
    """What a rule says: ``state`` is one of STATES; ``mend`` is a command, or what to do; empty where nothing is."""

    name: str
    state: str
    found: str
    expected: str = ""
    mend: str = ""

    @property
    def text(self) -> str:
        """The finding in one line."""
        return f"{self.name}: {self.found}{f' (wanted: {self.expected})' if self.expected else ''}"


@dataclass(frozen=True)
class Asked:
    """What is to be done with the device. ``target``, ``lnc``: None is what the machine has. ``running``: not only
    compiling, which needs no device."""

    target: str | None = None
    lnc: int | None = None
    running: bool = True


@dataclass(frozen=True)
class Requirement:
    """A row of the table."""

    name: str
    judge: Callable[[Facts, Releases, Asked], Finding]


def findings(asked: Asked, facts: Facts | None = None) -> list[Finding]:
    """Why the NeuronCore of this machine can't do what is asked; nothing where it can."""
    facts, releases = facts or look_for_device(), load_releases()
    judged = [requirement.judge(facts, releases, asked) for requirement in requirements()]
    return [finding for finding in judged if finding.state in BAD]


def requirements() -> tuple[Requirement, ...]:
    """All of them, the weightiest first."""
    packages = [Requirement(p.name, partial(package, wanted=p)) for p in load_releases().packages if p.needed]
    return (
        Requirement("device", device),
        *packages,
        Requirement("kernels", kernels),
        Requirement("lnc", lnc),
        Requirement("visible", visible),
    )


def device(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """There is a device, and it is of the target that is asked for."""
    what = facts.instance or "an unknown machine"
    if not asked.running:
        return Finding("device", "ok", "none is needed to compile")
    if not facts.devices:
        mend = f"launch a {DEFAULT_TARGET} instance: docs/neuron.md says how; without one, --backend simulator"
        if facts.target is not None:
            mend = install_command(releases, "aws-neuronx-dkms")
        return Finding("device", "missing", f"there is no /dev/neuron* ({what})", "/dev/neuron0", mend)
    if asked.target is not None and facts.target not in (None, asked.target):
        told = f"target {asked.target} was asked for, and this machine's device is {facts.target}"
        mend = f"leave --target out, or compile for {asked.target} only: trnrt compile --backend neuron"
        return Finding("device", "wrong", told, asked.target, mend)
    if asked.target is None and facts.target is None:
        mend = f"say --target {' or '.join(', '.join(target_names()).rsplit(', ', 1))}"
        return Finding("device", "missing", f"the kind of this machine's device can't be told ({what})", "", mend)
    count = count_text(len(facts.devices), "device")
    return Finding("device", "ok", f"{count} ({facts.devices[0]} first) on {what}")


def package(facts: Facts, releases: Releases, asked: Asked, wanted: Range) -> Finding:
    """A Python package is there, is AWS's, and is of a version that trnrt was written to."""
    found = facts.packages.get(wanted.name)
    mend = releases.pip_command if wanted.needed else f"pip install '{wanted.name}=={wanted.install}'"
    if found is None:
        return Finding(wanted.name, "missing", "not installed", wanted.text, mend)
    if found.placeholder:
        told = f"{found.version}, PyPI's empty placeholder"
        return Finding(wanted.name, "wrong", told, wanted.text, f"pip uninstall -y {wanted.name} && {mend}")
    state, told = wanted.state(found.version), found.version
    if wanted.beyond and numbers(found.version) >= numbers(wanted.below):
        told += f", {wanted.beyond}"
    return Finding(wanted.name, state, told, wanted.text, "" if state == "ok" else mend)


def kernels(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """Kernels get AWS's nki where it is installed, and that compiles them: it has a simulator of its own."""
    if (value := facts.settings.get(AWS_SIMULATOR)) not in (None, "", "0"):
        told = f"{AWS_SIMULATOR}={value} is set: AWS's nki would simulate the kernels on the CPU"
        return Finding("kernels", "wrong", told, "unset", f"unset {AWS_SIMULATOR}")
    if facts.seam and "nki" in facts.packages and not facts.packages["nki"].placeholder:
        told = f"AWS's nki is installed, but kernels don't get it: {facts.seam}"
        mend = "unset TRNRT_NKI" if "TRNRT_NKI" in facts.seam else releases.pip_command
        return Finding("kernels", "wrong", told, "AWS's nki", mend)
    return Finding("kernels", "ok", "get the simulator's nki" if facts.seam else "get AWS's nki")


def lnc(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """trn2 groups two physical cores by default; trnrt's kernels run on one, and runtime and compiler must agree.

    Where NEURON_LOGICAL_NC_CONFIG is not set, the backend sets it, to ``--lnc`` or 1, for its own process.
    """
    variable = facts.settings.get(LNC_VARIABLE)
    flag = _LNC_FLAG.search(facts.settings.get("NEURON_CC_FLAGS", ""))
    used = variable if variable is not None else str(asked.lnc or DEFAULT_LNC)
    mend = f"export {LNC_VARIABLE}={DEFAULT_LNC}"
    if variable is not None and variable not in ("1", "2"):
        return Finding("lnc", "wrong", f"{LNC_VARIABLE}={variable} is neither 1 nor 2", "1 or 2", mend)
    if asked.lnc is not None and used != str(asked.lnc):
        told = f"--lnc {asked.lnc} was asked for, and {LNC_VARIABLE}={variable} is set, which the runtime goes by"
        return Finding("lnc", "wrong", told, "", f"unset {LNC_VARIABLE}, or ask for --lnc {variable}")
    if flag is not None and flag[1] != used:
        told = f"NEURON_CC_FLAGS says {flag[0]}, and the runtime goes by {used}: compiler and runtime must agree"
        return Finding("lnc", "wrong", told, "the same", "take it out of NEURON_CC_FLAGS")
    target = asked.target or facts.target
    if target is not None and int(used) > get_target(target).device.most_lnc:
        mend = "use --lnc 1" if variable is None else mend
        return Finding("lnc", "wrong", f"{target} has no logical cores of 2: there, LNC is always 1", "1", mend)
    return _lnc_of_machine(facts, asked, variable)


def visible(facts: Facts, releases: Releases, asked: Asked) -> Finding:
    """NEURON_RT_VISIBLE_CORES names cores: what starts a process gives it some by it, or none."""
    told = facts.settings.get(VISIBLE)
    if told is None or not asked.running:
        return Finding("visible", "ok", f"{VISIBLE} is not set" if told is None else "no core is needed to compile")
    try:
        cores = parse_cores(told)
    except BackendError as error:
        return Finding("visible", "wrong", str(error), "", error.hint or "")
    return Finding("visible", "ok", f"{VISIBLE} names {count_text(len(cores), 'core')}")


def _lnc_of_machine(facts: Facts, asked: Asked, variable: str | None) -> Finding:
    """What other programs on this machine go by, which changes nothing for trnrt, may surprise."""
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
        told = f"{source} {others}; a kernel of trnrt runs on one physical core"
        return Finding("lnc", "warning", told, str(DEFAULT_LNC), f"export {LNC_VARIABLE}={DEFAULT_LNC}")
    return Finding("lnc", "ok", f"{source} {others}", str(DEFAULT_LNC))


def install_command(releases: Releases, name: str) -> str:
    """The command that installs a package of the system."""
    wanted = next(package for package in releases.system if package.name == name)
    return f"sudo apt-get install -y '{name}={wanted.install}*'"
