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
from trnrt.neuron.device import AWS_SIMULATOR, DEFAULT_LNC, LNC_VARIABLE, Facts, logical_config, look_for_device
from trnrt.neuron.releases import Range, Releases, load_releases, numbers
from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target, target_names
from trnrt.text import count_text

STATES = ("ok", "warning", "missing", "wrong")
BAD = ("missing", "wrong")

Judge = Callable[[Facts, Releases], "Finding"]

_LNC_FLAG = re.compile(r"(?:--logical-nc-config|--?lnc)[= ]\s*(\d+)")


@dataclass(frozen=True)
class Finding:
    """The result of a rule. ``state``: one of STATES; ``mend``: a command or advice, or empty."""

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
    """The use of the device. ``target``, ``lnc``: None is the machine's own. ``running``: False for compiling only,
    which needs no device."""

    target: str | None = None
    lnc: int | None = None
    running: bool = True


def findings(asked: Asked, facts: Facts | None = None) -> list[Finding]:
    """The findings that keep this machine's NeuronCore from this use."""
    facts, releases = facts or look_for_device(), load_releases()
    judged = [judge(facts, releases) for judge in requirements(asked).values()]
    return [finding for finding in judged if finding.state in BAD]


def requirements(asked: Asked) -> dict[str, Judge]:
    """The rules by name, the most important first."""
    packages = {wanted.name: partial(package, wanted=wanted) for wanted in load_releases().packages if wanted.needed}
    return {
        "device": partial(device, asked=asked),
        **packages,
        "kernels": kernels,
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
            mend = install_command(releases, "aws-neuronx-dkms")
        return Finding("device", "missing", f"there is no /dev/neuron* ({what})", "/dev/neuron0", mend)
    if asked.target is not None and facts.target not in (None, asked.target):
        message = f"target {asked.target} was asked for, and this machine's device is {facts.target}"
        mend = f"leave --target out, or compile for {asked.target} only: trnrt compile --backend neuron"
        return Finding("device", "wrong", message, asked.target, mend)
    if asked.target is None and facts.target is None:
        mend = f"say --target {' or '.join(', '.join(target_names()).rsplit(', ', 1))}"
        return Finding("device", "missing", f"the kind of this machine's device is unknown ({what})", "", mend)
    count = count_text(len(facts.devices), "device")
    return Finding("device", "ok", f"{count} ({facts.devices[0]} first) on {what}")


def package(facts: Facts, releases: Releases, wanted: Range) -> Finding:
    """A Python package is installed, is AWS's, and has a version that trnrt was written to."""
    found = facts.packages.get(wanted.name)
    mend = releases.pip_command if wanted.needed else f"pip install '{wanted.name}=={wanted.install}'"
    if found is None:
        return Finding(wanted.name, "missing", "not installed", wanted.text, mend)
    if found.placeholder:
        message = f"{found.version}, PyPI's empty placeholder"
        return Finding(wanted.name, "wrong", message, wanted.text, f"pip uninstall -y {wanted.name} && {mend}")
    state, message = wanted.state(found.version), found.version
    if wanted.beyond and numbers(found.version) >= numbers(wanted.below):
        message += f", {wanted.beyond}"
    return Finding(wanted.name, state, message, wanted.text, "" if state == "ok" else mend)


def kernels(facts: Facts, releases: Releases) -> Finding:
    """Kernels import AWS's nki if it is installed, and it compiles them: it has a simulator of its own."""
    if (value := facts.settings.get(AWS_SIMULATOR)) not in (None, "", "0"):
        message = f"{AWS_SIMULATOR}={value} is set: AWS's nki would simulate the kernels on the CPU"
        return Finding("kernels", "wrong", message, "unset", f"unset {AWS_SIMULATOR}")
    if facts.seam and "nki" in facts.packages and not facts.packages["nki"].placeholder:
        message = f"AWS's nki is installed, but kernels don't get it: {facts.seam}"
        mend = "unset TRNRT_NKI" if "TRNRT_NKI" in facts.seam else releases.pip_command
        return Finding("kernels", "wrong", message, "AWS's nki", mend)
    return Finding("kernels", "ok", "get the simulator's nki" if facts.seam else "get AWS's nki")


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


def install_command(releases: Releases, name: str) -> str:
    """The command that installs a system package."""
    wanted = next(package for package in releases.system if package.name == name)
    return f"sudo apt-get install -y '{name}={wanted.install}*'"
