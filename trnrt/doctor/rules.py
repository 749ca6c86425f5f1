"""The table of rules: what must hold on this machine, for which backend, and what mends it where it doesn't."""

from __future__ import annotations

import re
from functools import partial

from trnrt.doctor import Finding, Rule
from trnrt.doctor.machine import Machine
from trnrt.doctor.releases import Range, Releases, load_releases, numbers

LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
LNC = 1
"""Physical cores that a kernel of trnrt runs on."""

_WITHOUT = ("numpy", "onnx", "onnx_ir", "onnxruntime", "ml_dtypes")
_OVERRIDES = {
    "trn1": "trn1",
    "inf2": "trn1",
    "gen2": "trn1",
    "trn2": "trn2",
    "gen3": "trn2",
    "trn3": "trn3",
    "gen4": "trn3",
}
_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_LNC_FLAG = re.compile(r"(?:--logical-nc-config|--?lnc)[= ]\s*(\d+)")
_CAST_FLAG = re.compile(r"--auto-cast[= ]\s*(?!none)(\S+)")


def simulator(machine: Machine, releases: Releases) -> Finding:
    """What the simulator needs is installed with trnrt; somebody may have removed it."""
    gone = [name for name in _WITHOUT if name not in machine.packages]
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


def package(machine: Machine, releases: Releases, wanted: Range) -> Finding:
    """A Python package is there, is AWS's, and is of a version that trnrt was written to."""
    found = machine.packages.get(wanted.name)
    mend = releases.pip_command if wanted.needed else f"pip install '{wanted.name}=={wanted.install}'"
    if found is None:
        return Finding(wanted.name, "missing", "not installed", wanted.text, mend)
    if found.placeholder:
        told = f"{found.version}, PyPI's empty placeholder"
        return Finding(wanted.name, "wrong", told, wanted.text, f"pip uninstall -y {wanted.name} && {mend}")
    state = wanted.state(found.version)
    return Finding(wanted.name, state, found.version, wanted.text, "" if state == "ok" else mend)


def together(machine: Machine, releases: Releases) -> Finding:
    """NKI and the compiler are of one release of the SDK; torch-neuronx of 2.31 goes with that of 2.32."""
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
    state = wanted.state(found)
    # An older one that fits its fellows works; a newer one may.
    state = "warning" if state == "wrong" else state
    return Finding(wanted.name, state, found, wanted.text, "" if state == "ok" else mend)


def driver(machine: Machine, releases: Releases) -> Finding:
    """The loaded driver is the installed one, and none older than the runtime's release."""
    if machine.driver is None and machine.devices:
        return Finding(
            "driver", "warning", "the devices are here, but /sys/module/neuron/version is not", "its version"
        )
    if machine.driver is None:
        mend = (
            "sudo modprobe neuron" if "aws-neuronx-dkms" in machine.system else _install(releases, "aws-neuronx-dkms")
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
        return Finding("driver", "wrong", told, "no older than the runtime", _install(releases, "aws-neuronx-dkms"))
    return Finding("driver", "ok", machine.driver)


def device(machine: Machine, releases: Releases) -> Finding:
    """There is a device."""
    what = machine.instance or "an unknown machine"
    if machine.devices:
        count = f"{len(machine.devices)} device{'s' if len(machine.devices) != 1 else ''}"
        return Finding("device", "ok", f"{count} ({machine.devices[0]} first) on {what}")
    if machine.target is not None:
        return Finding(
            "device", "missing", f"{what}, but no /dev/neuron*", "/dev/neuron0", _install(releases, "aws-neuronx-dkms")
        )
    mend = "launch a trn2 instance: docs/neuron.md says how; without one, --backend simulator"
    return Finding("device", "missing", f"no /dev/neuron* ({what})", "/dev/neuron0", mend)


def instance(machine: Machine, releases: Releases) -> Finding:
    """The device is of a kind that NKI 0.6 is for; of trn1 the SDK's own pages disagree."""
    if not machine.devices:
        return Finding("instance", "ok", machine.instance or "unknown")
    if machine.target is None:
        told = f"{machine.instance or 'unknown'}: its target can't be told"
        return Finding("instance", "warning", told, "trn2, trn3", "say --target trn2")
    if machine.target == "trn1":
        pages = f"for it: {'; '.join(releases.trn1['for'])}. Against it: {'; '.join(releases.trn1['against'])}"
        told = (
            f"{machine.instance}: the SDK's pages contradict each other on NKI {numbers_text(releases)} here. {pages}"
        )
        return Finding(
            "instance", "warning", told, "trn2, trn3", "run trnrt doctor --self-test, or use a trn2 instance"
        )
    return Finding("instance", "ok", f"{machine.instance}, target {machine.target}")


def numbers_text(releases: Releases) -> str:
    """NKI's version, as AWS writes it in titles."""
    return next(package.at_least for package in releases.packages if package.name == "nki")


def cores(machine: Machine, releases: Releases) -> Finding:
    """Some core is free: a runtime keeps the cores that it took until its process ends."""
    if not machine.devices:
        return Finding("cores", "ok", "no device, no cores")
    if not machine.listed:
        mend = _install(releases, "aws-neuronx-tools")
        return Finding("cores", "warning", "neuron-ls is missing, or lists nothing", "the devices' cores", mend)
    total = sum(listed.cores for listed in machine.listed)
    leased = f"; leased by trnrt: {', '.join(map(str, machine.leased))} (physical)" if machine.leased else ""
    users = list(dict.fromkeys(user for listed in machine.listed for user in listed.users))
    if not users:
        return Finding("cores", "ok", f"{total} cores, no process on them{leased}")
    idle = sum(listed.cores for listed in machine.listed if not listed.users)
    told = f"{total} cores, {idle} of them on devices that nobody uses; in use by {'; '.join(users[:3])}{leased}"
    mend = "" if idle else f"end what is not needed: kill {users[0].split()[0]}"
    return Finding("cores", "ok" if idle else "warning", told, "a free core", mend)


def lnc(machine: Machine, releases: Releases) -> Finding:
    """trn2 groups two physical cores by default; trnrt's kernels run on one, and runtime and compiler must agree."""
    if not machine.devices:
        return Finding("lnc", "ok", "no device to set it for", str(LNC))
    variable = machine.settings.get(LNC_VARIABLE)
    flag = _LNC_FLAG.search(machine.settings.get("NEURON_CC_FLAGS", ""))
    runtime, source = _runtime_lnc(machine)
    mend = f"export {LNC_VARIABLE}={LNC}"
    if variable is not None and variable not in ("1", "2"):
        return Finding("lnc", "wrong", f"{LNC_VARIABLE}={variable}", "1 or 2", mend)
    if flag is not None and flag[1] != (runtime or str(LNC)):
        told = f"NEURON_CC_FLAGS says {flag[0]}, {source} {runtime or 'unknown'}: compiler and runtime must agree"
        return Finding("lnc", "wrong", told, "the same", "take it out of NEURON_CC_FLAGS")
    if machine.target == "trn1" and runtime == "2":
        return Finding("lnc", "wrong", f"{source} 2, and trn1 has no logical cores of 2", "1", mend)
    if runtime != str(LNC):
        told = f"{source} {runtime or 'unknown'}; a kernel of trnrt runs on one physical core"
        return Finding("lnc", "warning", told, str(LNC), mend)
    return Finding("lnc", "ok", f"{source} {runtime}", str(LNC))


def _runtime_lnc(machine: Machine) -> tuple[str | None, str]:
    """What the runtime goes by, and who says so."""
    if (variable := machine.settings.get(LNC_VARIABLE)) is not None:
        return variable, f"{LNC_VARIABLE} is"
    if machine.lnc_file is not None:
        return machine.lnc_file, "/opt/aws/neuron/logical_nc_config says"
    listed = {device.lnc for device in machine.listed if device.lnc is not None}
    if listed:
        return str(max(listed)), "neuron-ls says"
    return {"trn1": "1", "trn2": "2"}.get(machine.target or ""), "the default is"


def target_override(machine: Machine, releases: Releases) -> Finding:
    """NEURON_PLATFORM_TARGET_OVERRIDE names the device that is here."""
    name = "NEURON_PLATFORM_TARGET_OVERRIDE"
    value = machine.settings.get(name)
    if value is None:
        return Finding("target", "ok", f"{name} is not set")
    meant = _OVERRIDES.get(value.lower())
    if meant is None:
        return Finding("target", "wrong", f"{name}={value}", ", ".join(_OVERRIDES), f"unset {name}")
    if machine.devices and machine.target not in (None, meant):
        told = f"{name}={value}, and the device is a {machine.target}"
        return Finding("target", "wrong", told, str(machine.target), f"unset {name}")
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
    if name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES") and not _CORES.fullmatch(value.strip()):
        return "is no number or range of cores"
    troubles = {
        "XLA_USE_BF16": "float32 becomes bfloat16",
        "XLA_DOWNCAST_BF16": "float32 becomes bfloat16",
        "NEURON_RT_STOCHASTIC_ROUNDING_EN": "results differ from run to run",
        "NEURON_RT_ALLOW_LEGACY_NEFF": "a model that was compiled for another device is run",
        "NEURONCORE_GROUP_SIZES": "is deprecated",
    }
    return troubles.get(name, "") if on else ""


def cache(machine: Machine, releases: Releases) -> Finding:
    """The cache is the owner's alone and can be written."""
    if machine.cache_error is None:
        return Finding("cache", "ok", machine.cache)
    state, why, mend = machine.cache_error
    return Finding("cache", state, why, "a directory of your own", mend)


def backend(machine: Machine, releases: Releases) -> Finding:
    """What ``--backend neuron`` says when it is asked for."""
    if machine.choice_error is None:
        return Finding("backend", "ok", machine.choice or "the neuron backend can be opened")
    return Finding("backend", "missing", machine.choice_error[0], "a backend that opens", machine.choice_error[1])


def _install(releases: Releases, name: str) -> str:
    wanted = next(package for package in releases.system if package.name == name)
    return f"sudo apt-get install -y '{name}={wanted.install}*'"


def table() -> tuple[Rule, ...]:
    """All rules, in the order in which they are shown."""
    releases = load_releases()
    on_device = ("neuron",)
    packages = [Rule(p.name, on_device if p.needed else (), partial(package, wanted=p)) for p in releases.packages]
    system = [Rule(p.name, on_device if p.needed else (), partial(system_package, wanted=p)) for p in releases.system]
    return (
        Rule("simulator", ("simulator", "neuron"), simulator),
        Rule("cache", ("simulator", "neuron"), cache),
        Rule("device", on_device, device),
        Rule("instance", (), instance),
        Rule("driver", on_device, driver),
        *system,
        Rule("python", on_device, python),
        *packages,
        Rule("together", on_device, together),
        Rule("lnc", on_device, lnc),
        Rule("target", on_device, target_override),
        Rule("settings", (), settings),
        Rule("cores", (), cores),
        Rule("backend", on_device, backend),
    )
