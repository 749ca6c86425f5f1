"""The table of rules: each checks one thing on this machine, says which backends need it, and how to fix it."""

from __future__ import annotations

import re
from functools import partial

from trnrt.neuron.cores import AVOIDED_S
from trnrt.neuron.device import OWN_PACKAGES, TARGET_VARIABLE
from trnrt.neuron.doctor import Rule
from trnrt.neuron.doctor.machine import Machine
from trnrt.neuron.findings import Finding
from trnrt.neuron.releases import Needs, Range, Releases, load_releases, numbers
from trnrt.neuron.requirements import Asked, install_command, requirements
from trnrt.neuron.routes.choosing import Use, choose_route, judge_package
from trnrt.nki.machine.targets import DEFAULT_TARGET, known_targets

_CAST_FLAG = re.compile(r"--auto-cast[= ]\s*(?!none)(\S+)")


def simulator(machine: Machine, releases: Releases) -> Finding:
    """The simulator's packages, which come with trnrt, are still installed."""
    gone = [name for name in OWN_PACKAGES if name not in machine.packages]
    if gone:
        mend = f"pip install {' '.join(gone)}"
        return Finding("simulator", "missing", f"not installed: {', '.join(gone)}", "all of them", mend)
    return Finding("simulator", "ok", "its packages are installed")


def python(machine: Machine, releases: Releases) -> Finding:
    """Python has a version that AWS's packages are built for."""
    wanted = _needs(machine, releases).python
    state = wanted.state(machine.python)
    mend = "" if state == "ok" else "make a venv with python3.12: python3.12 -m venv .venv"
    return Finding("python", state, machine.python, wanted.text, mend)


def matching_versions(machine: Machine, releases: Releases) -> Finding:
    """NKI and the compiler are from one SDK release (torch-neuronx of 2.31 works with 2.32), and nrtpy is absent."""
    packages = machine.packages
    install = releases.pip_command(_needs(machine, releases).packages())
    if "nrtpy" in packages and "nki" in packages:
        message = f"nki {packages['nki'].version} and nrtpy {packages['nrtpy'].version} claim the same names"
        mend = f"pip uninstall -y nrtpy nki && {install}"
        return Finding("together", "wrong", message, "nki without nrtpy", mend)
    known = {}
    for name in ("nki", "neuronx-cc"):
        found = packages.get(name)
        if found is not None and not found.placeholder:
            known[name] = (found.version, releases.release_of(name, found.version))
    message = ", ".join(f"{name} {version} of SDK {sdk or 'unknown'}" for name, (version, sdk) in known.items())
    if len(known) < 2:
        return Finding("together", "ok", message or "nothing to compare", "one release")
    if len({sdk for _, sdk in known.values() if sdk}) > 1:
        return Finding("together", "wrong", message, "one release", install)
    if any(sdk is None for _, sdk in known.values()):
        return Finding("together", "warning", message, f"SDK {releases.sdk}", install)
    return Finding("together", "ok", message, "one release")


def system_package(machine: Machine, releases: Releases, wanted: Range) -> Finding:
    """The driver, the runtime or the tools are installed by the machine's package manager."""
    found = machine.system.get(wanted.name)
    mend = install_command(machine, releases, wanted.name)
    if found is None:
        return Finding(wanted.name, "missing", "not installed, or not by apt or dnf", wanted.text, mend)
    if wanted.state(found) == "ok":
        return Finding(wanted.name, "ok", found, wanted.text)
    # An older one works if it fits the others; a newer one may.
    sdk = releases.release_of(wanted.name, found)
    message = found if sdk is None else f"{found} of SDK {sdk}"
    if wanted.state(found) == wanted.newer:
        mend = f"try it; else {mend.replace('install', 'install --allow-downgrades', 1)}"
    return Finding(wanted.name, "warning", message, wanted.text, mend)


def driver(machine: Machine, releases: Releases) -> Finding:
    """The loaded driver is the installed one, and neither older than the runtime's release nor too new for it."""
    install = install_command(machine, releases, "aws-neuronx-dkms")
    if machine.driver is None and machine.devices:
        message = "the devices are here, but /sys/module/neuron/version is not"
        return Finding("driver", "warning", message, "its version")
    if machine.driver is None:
        mend = "sudo modprobe neuron" if "aws-neuronx-dkms" in machine.system else install
        return Finding("driver", "missing", "no driver is loaded", "the module neuron", mend)
    installed = machine.system.get("aws-neuronx-dkms")
    if installed is not None and numbers(installed)[:3] != numbers(machine.driver)[:3]:
        message = f"{machine.driver} is loaded, {installed} is installed"
        return Finding("driver", "warning", message, "the same", "sudo rmmod neuron && sudo modprobe neuron")
    runtime = machine.system.get("aws-neuronx-runtime-lib", "")
    own = releases.release_of("aws-neuronx-dkms", machine.driver)
    runtimes = releases.release_of("aws-neuronx-runtime-lib", runtime)
    if own and runtimes and numbers(own) < numbers(runtimes):
        message = f"{machine.driver} of SDK {own}, the runtime {runtime} of SDK {runtimes}"
        return Finding("driver", "wrong", message, "no older than the runtime", install)
    since, least = releases.driver_needs_runtime
    if runtime and numbers(machine.driver) >= numbers(since) and numbers(runtime) < numbers(least):
        message = f"{machine.driver}, and the runtime {runtime}, which does not start with a driver from {since} on"
        mend = install_command(machine, releases, "aws-neuronx-runtime-lib")
        return Finding("driver", "wrong", message, f"a runtime >={least}", mend)
    return Finding("driver", "ok", machine.driver)


def instance(machine: Machine, releases: Releases) -> Finding:
    """The instance type tells the target."""
    if machine.devices and machine.target is None:
        message = f"{machine.instance or 'unknown'}: its target is unknown"
        return Finding("instance", "warning", message, "", f"say --target {DEFAULT_TARGET}")
    suffix = f", target {machine.target}" if machine.devices else ""
    return Finding("instance", "ok", f"{machine.instance or 'unknown'}{suffix}")


def cores(machine: Machine, releases: Releases) -> Finding:
    """Some core is free. A runtime keeps its cores until its process ends."""
    if not machine.devices:
        return Finding("cores", "ok", "no device, no cores")
    if not machine.listed and machine.neuron_ls is not None:
        message = f"{machine.neuron_ls} --json-output lists nothing; from SDK 2.34 on it has another format"
        return Finding("cores", "warning", message, "the devices' cores", "run neuron-ls yourself")
    if not machine.listed:
        mend = install_command(machine, releases, "aws-neuronx-tools")
        return Finding("cores", "warning", "neuron-ls is missing", "the devices' cores", mend)
    total = sum(listed.cores for listed in machine.listed)
    leased = f"; leased by trnrt: {', '.join(map(str, machine.leased))} (physical)" if machine.leased else ""
    if machine.failed:
        leased += f"; failed in the last {AVOIDED_S / 60:g} minutes: {', '.join(map(str, machine.failed))} (physical)"
    users = list(dict.fromkeys(user for listed in machine.listed for user in listed.users))
    if not users:
        return Finding("cores", "ok", f"{total} cores, no process on them{leased}")
    idle = sum(listed.cores for listed in machine.listed if not listed.users)
    message = f"{total} cores, {idle} of them on devices that nobody uses; in use by {'; '.join(users[:3])}{leased}"
    mend = "" if idle else f"end what is not needed: kill {users[0].split()[0]}"
    return Finding("cores", "ok" if idle else "warning", message, "a free core", mend)


def target_override(machine: Machine, releases: Releases) -> Finding:
    """NEURON_PLATFORM_TARGET_OVERRIDE names this machine's device. trnrt sets it itself; other programs read it."""
    name = TARGET_VARIABLE
    value = machine.settings.get(name)
    if value is None:
        return Finding("target", "ok", f"{name} is not set")
    # A user's target may have the aliases of the one that it is like; the name is then that one's.
    known = reversed(known_targets())
    meanings = {text: target.name for target in known for text in (target.name, *target.aliases)}
    meant = meanings.get(value.lower())
    if meant is None:
        return Finding("target", "warning", f"{name}={value}", ", ".join(meanings), f"unset {name}")
    if machine.devices and machine.target not in (None, meant):
        message = f"{name}={value}, and the device is a {machine.target}"
        return Finding("target", "warning", message, str(machine.target), f"unset {name}")
    return Finding("target", "ok", f"{name}={value}")


def settings(machine: Machine, releases: Releases) -> Finding:
    """No variable silently changes the numbers, or hides the cores from the runtime."""
    found = [(f"{name}={value}", why) for name, value in machine.settings.items() if (why := _trouble(name, value))]
    if not found:
        shown = [f"{name}={value}" for name, value in machine.settings.items()]
        return Finding("settings", "ok", ", ".join(shown) or "no NEURON_ or TRNRT_ variable is set")
    names = " ".join(dict.fromkeys(text.partition("=")[0] for text, _ in found))
    return Finding("settings", "warning", "; ".join(f"{text}: {why}" for text, why in found), "unset", f"unset {names}")


def _trouble(name: str, value: str) -> str:
    """The warning for a variable's value, or ""."""
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
    """The cache can be written, by its owner alone."""
    if machine.cache_error is None:
        return Finding("cache", "ok", machine.cache)
    state, why, mend = machine.cache_error
    return Finding("cache", state, why, "a directory of your own", mend)


def table(asked: Asked | None = None) -> tuple[Rule, ...]:
    """All rules, in the order in which they are shown. For the device, only the backend's own requirements block.

    The others only warn: they may be wrong if the documentation is.
    """
    releases = load_releases()
    rows = {name: Rule(name, ("neuron",), judge) for name, judge in requirements(asked or Asked()).items()}
    first = ("device", "supported", "route")
    return (
        Rule("simulator", ("simulator", "neuron"), simulator),
        Rule("cache", ("simulator", "neuron"), cache),
        *(rows.pop(name) for name in first),
        Rule("instance", (), instance),
        Rule("driver", (), driver),
        *(Rule(p.name, (), partial(system_package, wanted=p)) for p in releases.system),
        Rule("python", (), python),
        *(Rule(p.name, (), partial(common_package, wanted=p)) for p in releases.packages),
        Rule("together", (), matching_versions),
        *rows.values(),
        Rule("target", (), target_override),
        Rule("settings", (), settings),
        Rule("cores", (), cores),
    )


def common_package(machine: Machine, releases: Releases, wanted: Range) -> Finding:
    """A package that every route needs in a range of versions."""
    return judge_package(machine.packages.get(wanted.name), wanted, f"pip install '{wanted.name}=={wanted.install}'")


def _needs(machine: Machine, releases: Releases) -> Needs:
    """The needs of the route that would be used."""
    return releases.route(choose_route(machine, releases, Use()).name)
