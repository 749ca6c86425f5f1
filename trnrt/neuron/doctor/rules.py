"""The table of rules: what must hold on this machine, for which backend, and what mends it where it doesn't."""

from __future__ import annotations

import re
from functools import partial

from trnrt.neuron.cores import AVOIDED_S
from trnrt.neuron.device import OWN_PACKAGES, TARGET_VARIABLE
from trnrt.neuron.doctor import Rule
from trnrt.neuron.doctor.machine import Machine
from trnrt.neuron.releases import Range, Releases, load_releases, numbers
from trnrt.neuron.requirements import Asked, Finding, Requirement, install_command, package, requirements
from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target, known_targets

_CAST_FLAG = re.compile(r"--auto-cast[= ]\s*(?!none)(\S+)")


def simulator(machine: Machine, releases: Releases) -> Finding:
    """What the simulator needs is installed with trnrt; somebody may have removed it."""
    gone = [name for name in OWN_PACKAGES if name not in machine.packages]
    if gone:
        return Finding(
            "simulator", "missing", f"not installed: {', '.join(gone)}", "all of them", f"pip install {' '.join(gone)}"
        )
    return Finding("simulator", "ok", "its packages are installed")


def python(machine: Machine, releases: Releases) -> Finding:
    """AWS's packages are built for some versions of Python only."""
    state = releases.python.state(machine.python)
    mend = "" if state == "ok" else "make a venv with python3.12: python3.12 -m venv .venv"
    return Finding("python", state, machine.python, releases.python.text, mend)


def together(machine: Machine, releases: Releases) -> Finding:
    """NKI and the compiler are of one release of the SDK; torch-neuronx of 2.31 goes with that of 2.32.

    nrtpy goes with no nki at all.
    """
    if "nrtpy" in machine.packages and "nki" in machine.packages:
        told = (
            f"nki {machine.packages['nki'].version} and nrtpy {machine.packages['nrtpy'].version} claim the same names"
        )
        mend = f"pip uninstall -y nrtpy nki && {releases.pip_command}"
        return Finding("together", "wrong", told, "nki without nrtpy", mend)
    known = {}
    for name in ("nki", "neuronx-cc"):
        found = machine.packages.get(name)
        if found is not None and not found.placeholder:
            known[name] = (found.version, releases.release_of(name, found.version))
    told = ", ".join(f"{name} {version} of SDK {sdk or 'unknown'}" for name, (version, sdk) in known.items())
    if len(known) < 2:
        return Finding("together", "ok", told or "nothing to compare", "one release")
    if len({sdk for _, sdk in known.values() if sdk}) > 1:
        return Finding("together", "wrong", told, "one release", releases.pip_command)
    if any(sdk is None for _, sdk in known.values()):
        return Finding("together", "warning", told, f"SDK {releases.sdk}", releases.pip_command)
    return Finding("together", "ok", told, "one release")


def system_package(machine: Machine, releases: Releases, wanted: Range) -> Finding:
    """The driver, the runtime and the tools, as the machine's own package manager has them."""
    found = machine.system.get(wanted.name)
    mend = f"sudo apt-get install -y '{wanted.name}={wanted.install}*'"
    if found is None:
        return Finding(wanted.name, "missing", "not installed, or not by apt or dnf", wanted.text, mend)
    if wanted.state(found) == "ok":
        return Finding(wanted.name, "ok", found, wanted.text)
    # An older one that fits its fellows works; a newer one may.
    sdk = releases.release_of(wanted.name, found)
    told = found if sdk is None else f"{found} of SDK {sdk}"
    if wanted.state(found) == wanted.newer:
        mend = f"try it; else {mend.replace('install', 'install --allow-downgrades', 1)}"
    return Finding(wanted.name, "warning", told, wanted.text, mend)


def driver(machine: Machine, releases: Releases) -> Finding:
    """The loaded driver is the installed one, and neither older than the runtime's release nor too new for it."""
    if machine.driver is None and machine.devices:
        return Finding(
            "driver", "warning", "the devices are here, but /sys/module/neuron/version is not", "its version"
        )
    if machine.driver is None:
        mend = (
            "sudo modprobe neuron"
            if "aws-neuronx-dkms" in machine.system
            else install_command(releases, "aws-neuronx-dkms")
        )
        return Finding("driver", "missing", "no driver is loaded", "the module neuron", mend)
    installed = machine.system.get("aws-neuronx-dkms")
    if installed is not None and numbers(installed)[:3] != numbers(machine.driver)[:3]:
        told = f"{machine.driver} is loaded, {installed} is installed"
        return Finding("driver", "warning", told, "the same", "sudo rmmod neuron && sudo modprobe neuron")
    runtime = machine.system.get("aws-neuronx-runtime-lib", "")
    ages = [
        releases.release_of("aws-neuronx-dkms", machine.driver),
        releases.release_of("aws-neuronx-runtime-lib", runtime),
    ]
    if all(ages) and numbers(ages[0] or "") < numbers(ages[1] or ""):
        told = f"{machine.driver} of SDK {ages[0]}, the runtime {runtime} of SDK {ages[1]}"
        return Finding(
            "driver", "wrong", told, "no older than the runtime", install_command(releases, "aws-neuronx-dkms")
        )
    since, least = releases.driver_needs_runtime
    if runtime and numbers(machine.driver) >= numbers(since) and numbers(runtime) < numbers(least):
        told = f"{machine.driver}, and the runtime {runtime}, which does not start with a driver from {since} on"
        mend = install_command(releases, "aws-neuronx-runtime-lib")
        return Finding("driver", "wrong", told, f"a runtime >={least}", mend)
    return Finding("driver", "ok", machine.driver)


def instance(machine: Machine, releases: Releases) -> Finding:
    """The device is of a kind that NKI 0.6 is for; of some the SDK's own pages disagree."""
    if not machine.devices:
        return Finding("instance", "ok", machine.instance or "unknown")
    if machine.target is None:
        told = f"{machine.instance or 'unknown'}: its target can't be told"
        return Finding("instance", "warning", told, _certain_targets(), f"say --target {DEFAULT_TARGET}")
    device = get_target(machine.target).device
    if device.nki_against:
        pages = f"for it: {'; '.join(device.nki_for)}. Against it: {'; '.join(device.nki_against)}"
        told = (
            f"{machine.instance}: the SDK's pages contradict each other on NKI {numbers_text(releases)} here. {pages}"
        )
        mend = f"run trnrt doctor --self-test, or use a {DEFAULT_TARGET} instance"
        return Finding("instance", "warning", told, _certain_targets(), mend)
    return Finding("instance", "ok", f"{machine.instance}, target {machine.target}")


def _certain_targets() -> str:
    """The targets that all pages of the SDK say NKI is for."""
    return ", ".join(target.name for target in known_targets() if not target.device.nki_against)


def numbers_text(releases: Releases) -> str:
    """NKI's version, as AWS writes it in titles."""
    return next(package.at_least for package in releases.packages if package.name == "nki")


def cores(machine: Machine, releases: Releases) -> Finding:
    """Some core is free: a runtime keeps the cores that it took until its process ends."""
    if not machine.devices:
        return Finding("cores", "ok", "no device, no cores")
    if not machine.listed and machine.neuron_ls is not None:
        told = f"{machine.neuron_ls} --json-output lists nothing; from SDK 2.34 on it has another format"
        return Finding("cores", "warning", told, "the devices' cores", "look yourself: neuron-ls")
    if not machine.listed:
        mend = install_command(releases, "aws-neuronx-tools")
        return Finding("cores", "warning", "neuron-ls is missing", "the devices' cores", mend)
    total = sum(listed.cores for listed in machine.listed)
    leased = f"; leased by trnrt: {', '.join(map(str, machine.leased))} (physical)" if machine.leased else ""
    if machine.failed:
        leased += f"; failed in the last {AVOIDED_S / 60:g} minutes: {', '.join(map(str, machine.failed))} (physical)"
    users = list(dict.fromkeys(user for listed in machine.listed for user in listed.users))
    if not users:
        return Finding("cores", "ok", f"{total} cores, no process on them{leased}")
    idle = sum(listed.cores for listed in machine.listed if not listed.users)
    told = f"{total} cores, {idle} of them on devices that nobody uses; in use by {'; '.join(users[:3])}{leased}"
    mend = "" if idle else f"end what is not needed: kill {users[0].split()[0]}"
    return Finding("cores", "ok" if idle else "warning", told, "a free core", mend)


def target_override(machine: Machine, releases: Releases) -> Finding:
    """NEURON_PLATFORM_TARGET_OVERRIDE names the device that is here. trnrt sets it itself; other programs go by it."""
    name = TARGET_VARIABLE
    value = machine.settings.get(name)
    if value is None:
        return Finding("target", "ok", f"{name} is not set")
    meanings = {text: target.name for target in known_targets() for text in (target.name, *target.aliases)}
    meant = meanings.get(value.lower())
    if meant is None:
        return Finding("target", "warning", f"{name}={value}", ", ".join(meanings), f"unset {name}")
    if machine.devices and machine.target not in (None, meant):
        told = f"{name}={value}, and the device is a {machine.target}"
        return Finding("target", "warning", told, str(machine.target), f"unset {name}")
    return Finding("target", "ok", f"{name}={value}")


def settings(machine: Machine, releases: Releases) -> Finding:
    """No variable changes the numbers, or keeps the runtime from the cores, without anybody having asked for it."""
    told = [(f"{name}={value}", why) for name, value in machine.settings.items() if (why := _trouble(name, value))]
    if not told:
        shown = [f"{name}={value}" for name, value in machine.settings.items()]
        return Finding("settings", "ok", ", ".join(shown) or "no NEURON_ or TRNRT_ variable is set")
    names = " ".join(dict.fromkeys(text.partition("=")[0] for text, _ in told))
    return Finding("settings", "warning", "; ".join(f"{text}: {why}" for text, why in told), "unset", f"unset {names}")


def _trouble(name: str, value: str) -> str:
    """Why a variable's value is worth a warning, or nothing."""
    on = value.strip().lower() not in ("", "0", "false")
    if name == "NEURON_CC_FLAGS" and (cast := _CAST_FLAG.search(value)):
        return f"the compiler rounds float32 ({cast[0]})"
    if name == "NEURON_RT_NUM_CORES" and not value.strip().isdecimal():
        return "is no number of cores"
    troubles = {
        "XLA_USE_BF16": "float32 becomes bfloat16",
        "XLA_DOWNCAST_BF16": "float32 becomes bfloat16",
        "NEURON_RT_STOCHASTIC_ROUNDING_EN": "results differ from run to run",
        "NEURON_RT_ALLOW_LEGACY_NEFF": "a model that was compiled for another device is run",
        "NEURONCORE_GROUP_SIZES": "is deprecated",
        # In the SDK's tutorials for trn2: libraries/nxd-inference/tutorials/trn2-llama3.1-405b-speculative-tutorial.rst
        "NEURON_RT_VIRTUAL_CORE_SIZE": "is an older name of NEURON_LOGICAL_NC_CONFIG, and may say something else",
    }
    return troubles.get(name, "") if on else ""


def cache(machine: Machine, releases: Releases) -> Finding:
    """The cache is the owner's alone and can be written."""
    if machine.cache_error is None:
        return Finding("cache", "ok", machine.cache)
    state, why, mend = machine.cache_error
    return Finding("cache", state, why, "a directory of your own", mend)


def judge_requirement(machine: Machine, releases: Releases, requirement: Requirement, asked: Asked) -> Finding:
    """What ``--backend neuron`` itself goes by."""
    return requirement.judge(machine, releases, asked)


def optional(machine: Machine, releases: Releases, wanted: Range) -> Finding:
    """A package that trnrt works without, or with other versions of."""
    return package(machine, releases, Asked(), wanted)


def table(asked: Asked | None = None) -> tuple[Rule, ...]:
    """All rules, in the order in which they are shown. Of those for the device, the backend's own requirements decide.

    The others may be wrong where the documentation is: they are told, and keep nobody from trying.
    """
    releases = load_releases()
    asked = asked or Asked()
    rows = {
        r.name: Rule(r.name, ("neuron",), partial(judge_requirement, requirement=r, asked=asked))
        for r in requirements()
    }
    packages = [
        rows.pop(p.name) if p.needed else Rule(p.name, (), partial(optional, wanted=p)) for p in releases.packages
    ]
    return (
        Rule("simulator", ("simulator", "neuron"), simulator),
        Rule("cache", ("simulator", "neuron"), cache),
        rows.pop("device"),
        Rule("instance", (), instance),
        Rule("driver", (), driver),
        *(Rule(p.name, (), partial(system_package, wanted=p)) for p in releases.system),
        Rule("python", (), python),
        *packages,
        Rule("together", (), together),
        *rows.values(),
        Rule("target", (), target_override),
        Rule("settings", (), settings),
        Rule("cores", (), cores),
    )
