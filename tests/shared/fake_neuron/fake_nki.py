"""A stand-in for AWS's nki where no framework is, and below TorchNeuron: ``nki.jit`` functions called on the host.

``standalone`` and ``on_tensors`` take the calls of kernels in this process, where the simulator is in the place of nki.
``SOURCES`` is a package ``nki`` for another process, which does the same with the module's own start: what the
environment said when it was imported counts. What the device would compute, our simulator does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from fake_neuron import fake_torch
from fake_neuron.documented import REFERENCE, ROUTES, NotDocumented, signature
from fake_neuron.hardware import Hardware, compiler_flags
from trnrt.nki.machine.targets import get_target
from trnrt.nki.sim import kernel as simulated
from trnrt.nki.sim.kernel import Simulated, Spec, jit

SOURCES = {
    "__init__": "from fake_neuron.fake_nki import begin as _begin\njit = _begin()\n",
    "language": "from trnrt.nki.sim import language as _it\n"
    "globals().update((n, getattr(_it, n)) for n in dir(_it))\nAWS = True\n",
    "isa": "from trnrt.nki.sim import isa as _it\n"
    "globals().update((n, getattr(_it, n)) for n in dir(_it))\nAWS = True\n",
}
MACHINE = "FAKE_NKI_MACHINE"
"""A JSON file for the other process: the version of nki, ``devices`` and ``target``, and a compiler's message."""

_KNOWN = {*ROUTES["variables"], *REFERENCE["variables"], *REFERENCE["profile"]["variables"]}
_ARTIFACTS = "NKI_ARTIFACTS_DIR"

Call = Callable[[Simulated, tuple[Any, ...], dict[str, Any]], Any]


class NCCError(Exception):
    """What nki 0.6 raises if the compiler refuses a kernel."""


def check_variables() -> None:
    """Refuse the variables of AWS's families that no page names."""
    for name in os.environ:
        if name.startswith(("NEURON_", "NKI_")) and name not in _KNOWN:
            raise NotDocumented("variables of the pages", f"{name} is on no page")


def check_settings(kernel: Simulated, version: str) -> tuple[str, int]:
    """The target and the degree of LNC, if all that is set agrees."""
    check_variables()
    target = os.environ.get("NEURON_PLATFORM_TARGET_OVERRIDE")
    if target not in ROUTES["targets"]["values"]:
        raise NotDocumented("target is named", f"NEURON_PLATFORM_TARGET_OVERRIDE={target}")
    values = ROUTES["frontends"][".".join(version.split(".")[:2])]["values"]
    frontend = os.environ.get("NKI_COMPILER_FRONTEND")
    if frontend is not None and frontend not in values:
        raise NotDocumented("values of the frontend", f"NKI_COMPILER_FRONTEND={frontend} with nki {version}")
    if frontend is None and version.startswith("0.6"):
        raise NotDocumented("tracer of 0.6", "NKI_COMPILER_FRONTEND is not set with nki 0.6")
    degree = int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", "1"))
    flags = compiler_flags(os.environ.get("NEURON_CC_FLAGS", ""))
    # rule: one LNC for the compiler
    unset = 1 if target in ("trn1", "inf2", "gen2") or "NEURON_LOGICAL_NC_CONFIG" in os.environ else 2
    compilers = int(flags.get("--lnc") or flags.get("--logical-nc-config") or max(degree, unset))
    if not kernel.cores == degree == compilers:
        raise NotDocumented(
            "one degree", f"the kernel has {kernel.cores}, the variable {degree}, the compiler {compilers}"
        )
    return str(target), degree


def standalone(hardware: Hardware, version: str, artifacts: str | None = None) -> Call:
    """Calls on arrays: each compiles, and runs on core 0. ``artifacts``: the folder when nki was imported."""

    def called(kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = (*args, *kwargs.values())
        if any(isinstance(value, list) for value in given):
            raise NotDocumented("lists are for ranks", f"{kernel.function.__name__} is called with a list")
        if not any(type(value) is np.ndarray for value in given) and given:
            raise NotDocumented("arrays without a framework", f"{kernel.function.__name__} is called without an array")
        target, _ = check_settings(kernel, version)
        if os.environ.get(_ARTIFACTS) != artifacts:
            raise NotDocumented("set before the import", f"{_ARTIFACTS}={os.environ.get(_ARTIFACTS)} was set too late")
        hardware.compiled.append(kernel.function.__name__)
        if hardware.faults.compiling:
            raise NCCError(hardware.faults.compiling)
        if artifacts is not None:
            write_neff(kernel, given, target, Path(artifacts))
        if not hardware.devices:
            raise RuntimeError("NRT_FAILURE(1): no neuron device found")
        core = hardware.place(0)  # rule: core 0 alone
        fail_or_hang(hardware)
        hardware.ran_on.append(core)
        return simulate(kernel, called, args, kwargs)

    return called


def on_tensors(hardware: Hardware, version: str) -> Call:
    """Calls on tensors of the device: the first with some shapes compiles, later ones reuse that."""
    compiled: set[tuple[Any, ...]] = set()

    def called(kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or not all(fake_torch.is_tensor(arg, "neuron") for arg in args):
            raise NotDocumented("tensors of the device", f"{kernel.function.__name__} is called with something else")
        check_settings(kernel, version)
        key = (kernel.function.__name__, *((arg.shape, arg.dtype.name) for arg in args))
        if key not in compiled:
            compiled.add(key)
            hardware.compiled.append(kernel.function.__name__)
            if hardware.faults.compiling:
                raise NCCError(hardware.faults.compiling)
        core = hardware.place(0)
        fail_or_hang(hardware)
        hardware.ran_on.append(core)
        results = simulate(kernel, called, tuple(arg.array for arg in args), {})
        if isinstance(results, tuple):
            return tuple(fake_torch.from_array(result, "neuron") for result in results)
        return fake_torch.from_array(results, "neuron")

    return called


def simulate(kernel: Simulated, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the device would compute: by the simulator, which ``call`` stands in the way of."""
    simulated._interceptors.remove(call)
    try:
        return kernel(*args, **kwargs)
    finally:
        simulated._interceptors.append(call)


def fail_or_hang(hardware: Hardware) -> None:
    """What goes wrong while a kernel runs."""
    if hardware.faults.hanging is not None:
        hardware.faults.hanging.wait()
    if hardware.faults.running:
        raise RuntimeError(hardware.faults.running)


def write_neff(kernel: Simulated, given: tuple[Any, ...], target: str, folder: Path) -> None:
    """What the compiler leaves: a NEFF of the fake nrtpy's, which runs the kernel on the simulator."""
    if any(folder.iterdir()):
        raise NotDocumented("an empty folder", f"{folder} has files")
    code = kernel.function.__code__
    program = kernel.trace(*(Spec(array.shape, array.dtype.name) for array in given))[0]
    names = code.co_varnames[: code.co_argcount]
    kept = {
        "source": Path(code.co_filename).read_text(encoding="utf-8"),
        "entry": kernel.function.__name__,
        "target": get_target(target).name,
        "lnc": kernel.cores,
        "file": code.co_filename,
    }
    outputs = [(f"output_{k}", output.shape, output.dtype.name) for k, output in enumerate(program.outputs)]
    run = f"__import__('fake_neuron.fake_nki', fromlist=['run_neff']).run_neff({json.dumps(kept)!r}, {names}, locals())"
    document = {
        "target": kept["target"],
        "inputs": [(name, a.shape, a.dtype.name) for name, a in zip(names, given, strict=True)],
        "outputs": outputs,
        "compute": [f"{run}[{k}]" for k in range(len(outputs))],
    }
    (folder / "kernel.neff").write_text(json.dumps(document), encoding="utf-8")


def run_neff(text: str, names: tuple[str, ...], arrays: dict[str, Any]) -> list[Any]:
    """Run what ``write_neff`` kept, in the fake nrtpy's process."""
    from fake_neuron.fake_torch_neuronx import Neff

    return Neff(json.loads(text)).run([arrays[name] for name in names])


def begin() -> Callable[..., Any]:
    """The start of the package ``nki`` in another process: its ``jit``."""
    machine = json.loads(Path(os.environ[MACHINE]).read_bytes())
    hardware = Hardware(machine["target"], machine["devices"])
    hardware.faults.compiling = machine["compiling"]
    artifacts = os.environ.get(_ARTIFACTS)
    check_variables()
    call = standalone(hardware, machine["version"], artifacts)
    simulated._interceptors.append(call)
    stated = signature(
        next(f["signature"] for f in ROUTES["functions"] if f["name"] == f"nki.jit {machine['version'][:3]}")
    )

    def strict(*args: Any, **kwargs: Any) -> Any:
        try:
            stated.bind(*args, **kwargs)
        except TypeError as error:
            raise NotDocumented("signature of jit", f"nki.jit: {error}") from None
        return jit(*args, **kwargs)

    return strict


def torchneuron() -> ModuleType:
    """The package torch_neuronx of TorchNeuron, which has no ``trace``."""

    class Module(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            raise NotDocumented("names of TorchNeuron", f"torch_neuronx.{name}")

    return Module("torch_neuronx")
