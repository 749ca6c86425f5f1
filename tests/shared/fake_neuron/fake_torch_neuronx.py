"""torch_neuronx's documented functions, and torch.jit's for what they make, on fake hardware."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from fake_neuron import fake_torch
from fake_neuron.documented import NotDocumented, documented
from fake_neuron.fake_torch import DTYPES
from fake_neuron.hardware import Hardware, compiler_flags
from trnrt.nki.machine.targets import get_target
from trnrt.nki.seam import use_simulator
from trnrt.nki.sim.kernel import Kernel, Simulated, Spec, intercept_calls


class State:
    """The machine that the functions work on, the placement that is in force, with the thread that asked for it, and
    whose tensors they are: the fake's (``Scripts``), or PyTorch's own (``real_torch``)."""

    hardware = Hardware()
    tensors: Any = None
    placement: tuple[int, int] | None = None


class Neff:
    """What a kernel was compiled to: enough to run it on the simulator, in any process."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    def run(self, arrays: list[Any]) -> list[Any]:
        source, file = self.document["source"], self.document["file"]
        module = ModuleType("neff")
        with use_simulator():
            exec(compile(source, file, "exec"), module.__dict__)
        kernel = getattr(module, self.document["entry"])
        function = kernel.function if isinstance(kernel, Kernel) else kernel
        runner = Simulated(function, get_target(self.document["target"]), cores=self.document["lnc"])
        results = runner(*arrays)
        return list(results) if isinstance(results, tuple) else [results]


@dataclass
class Placed:
    """A module on a core, with weights that are there, too, or come anew with each run."""

    core: int | None
    weights_moved: bool = False


def execute(placed: Placed, neff: Neff, inputs: list[Any], weights: list[Any]) -> list[Any]:
    """Run a compiled module: arrays in, arrays out."""
    hardware, document = State.hardware, neff.document
    if placed.core is None:
        raise NotDocumented(
            "run on an instance", "a module that was compiled without a device is run before torch.jit.load"
        )
    got = [[list(array.shape), array.dtype.name] for array in inputs]
    if got != document["inputs"]:
        raise NotDocumented(
            "shapes of the trace", f"the module was traced for {document['inputs']}, and is run on {got}"
        )
    # rule: weights come each time
    hardware.weight_copies += not placed.weights_moved and bool(weights)
    if hardware.faults.gathering is not None:
        hardware.faults.gathering.wait(timeout=300)
    if hardware.faults.hanging is not None:
        hardware.faults.hanging.wait()
    if hardware.faults.running:
        raise RuntimeError(hardware.faults.running)
    hardware.ran_on.append(placed.core)
    results = neff.run(inputs + weights)
    results = [result + result.dtype.type(1) for result in results] if hardware.faults.wrong else results
    results = [result[None] for result in results] if hardware.faults.wrong_shape else results
    if hardware.faults.wide_integers:
        results = [result.astype(np.int64) if result.dtype.kind == "u" else result for result in results]
    return results


class ScriptModule:
    """What trace returns and torch.jit.load loads, where PyTorch is a fake, too."""

    def __init__(self, neff: Neff, weights: list[Any], placed: Placed) -> None:
        self.neff, self.weights, self.placed = neff, weights, placed

    def __call__(self, *inputs: Any) -> Any:
        if not all(fake_torch.is_tensor(tensor, "cpu") for tensor in inputs):
            raise NotDocumented("tensors of the CPU", "a traced module takes tensors of the CPU")
        results = execute(self.placed, self.neff, [tensor.array for tensor in inputs], self.weights)
        tensors = tuple(fake_torch.from_array(result, "cpu") for result in results)
        return tensors if self.neff.document["returns_tuple"] else tensors[0]


@documented("torch_neuronx.trace")
def trace(func: Any, example_inputs: Any, **options: Any) -> Any:
    hardware = State.hardware
    examples = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    if not callable(func) or not all(State.tensors.is_tensor(tensor, "cpu") for tensor in examples):
        raise NotDocumented("what is traced", "trace takes a function or module, and a tensor or a tuple of tensors")
    flags = compiler_flags([] if options["compiler_args"] is None else options["compiler_args"])
    if options["cpu_backend"] and "--target" not in flags:
        raise NotDocumented("target of the CPU", "cpu_backend needs --target")
    target = flags.get("--target", hardware.target)
    if not options["cpu_backend"]:
        hardware.start()
    # rule: LNC by default; rule: LNC of trn3 by default; rule: one LNC for the compiler
    lnc = int(flags.get("--lnc") or flags.get("--logical-nc-config") or (1 if target == "trn1" else 2))
    if target == "trn1" and lnc != 1:  # rule: LNC of trn1
        raise RuntimeError("NCC_EARG001: the LNC configuration is not supported by the target")
    if hardware.faults.compiling:
        raise RuntimeError(hardware.faults.compiling)
    document, weights = recorded(func, examples, target, lnc)
    if options["compiler_workdir"] is not None:
        # rule: graph.neff
        (Path(options["compiler_workdir"]) / "graph.neff").write_text(json.dumps(document), encoding="utf-8")
    if options["inline_weights_to_neff"]:
        raise NotDocumented("weights beside the NEFF", "the fake knows no weights inside of the NEFF")
    hardware.compiled.append(document["entry"])
    # rule: loaded after tracing
    placed = Placed(None if options["cpu_backend"] else hardware.place(0))
    return State.tensors.script(Neff(document), weights, examples, placed)


def recorded(func: Any, examples: tuple[Any, ...], target: str, lnc: int) -> tuple[dict[str, Any], list[Any]]:
    """Run ``func`` on XLA's tensors, and record the one kernel that it calls, and its weights."""
    torch = State.tensors
    parameters = torch.parameters(func)
    inputs = [torch.on_xla(tensor) for tensor in examples]
    calls: list[tuple[Simulated, list[Any], Any]] = []

    def called(kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or not all(torch.is_tensor(arg) for arg in args):
            raise NotDocumented("arguments of a kernel", "a kernel in a traced module is called with tensors")
        programs = kernel.trace(*(Spec(tuple(arg.shape), torch.dtype_name(arg)) for arg in args))
        made = [np.zeros(output.shape, output.dtype.numpy) for output in programs[0].outputs]
        results = tuple(torch.on_xla(torch.from_array(array, "cpu")) for array in made)
        answer = results if programs[0].returns_tuple else results[0]
        calls.append((kernel, list(args), answer))
        return answer

    with intercept_calls(called):
        answer = func(*inputs)
    if len(calls) != 1 or calls[0][2] is not answer:
        raise NotDocumented("one kernel", f"{len(calls)} kernels were called; the fake compiles a module of one")
    kernel, args, _ = calls[0]
    check_settings(kernel, target, lnc)
    weights = list(parameters.values())
    if [id(arg) for arg in args] != [id(tensor) for tensor in (*inputs, *weights)]:
        raise NotDocumented(
            "order of the arguments", "the fake compiles a kernel of the inputs, then the parameters, in their order"
        )
    code = kernel.function.__code__
    document = {
        "file": code.co_filename,
        "source": Path(code.co_filename).read_text(encoding="utf-8"),
        "entry": kernel.function.__name__,
        "target": target,
        "lnc": lnc,
        "inputs": [[list(tensor.shape), torch.dtype_name(tensor)] for tensor in examples],
        "returns_tuple": isinstance(answer, tuple),
        "results": len(answer) if isinstance(answer, tuple) else 1,
    }
    return document, weights


def check_settings(kernel: Simulated, target: str, lnc: int) -> None:
    """What must agree: the kernel's launch, the compiler's flags, and the environment."""
    told = os.environ.get("NEURON_LOGICAL_NC_CONFIG", "1" if target == "trn1" else "2")
    if not kernel.cores == lnc == int(told):
        raise NotDocumented(
            "one LNC",
            f"the kernel is launched on {kernel.cores} cores, compiled for {lnc}, and the environment says {told}",
        )
    if kernel.target.name != target:
        raise NotDocumented(
            "one target", f"the compiler is told {target}, and NEURON_PLATFORM_TARGET_OVERRIDE {kernel.target.name}"
        )


@documented("torch.jit.save")
def save(m: Any, f: Any, _extra_files: Any) -> None:
    if not isinstance(m, ScriptModule) or not isinstance(f, str):
        raise NotDocumented("what is saved", "torch.jit.save takes a ScriptModule and a path")
    names = [array.dtype.name for array in m.weights]
    bits = [array.view(np.uint16) if array.dtype.name == "bfloat16" else array for array in m.weights]
    with Path(f).open("wb") as file:
        np.savez(file, *bits, neff=np.array(json.dumps([m.neff.document, names])), allow_pickle=False)


@documented("torch.jit.load")
def load(f: Any, map_location: Any, _extra_files: Any, _restore_shapes: Any) -> ScriptModule:
    if not isinstance(f, str) or map_location is not None:
        raise NotDocumented("no map_location", "a Neuron module is loaded from a path, without map_location")
    with np.load(f, allow_pickle=False) as held:
        document, names = json.loads(str(held["neff"]))
        arrays = [held[f"arr_{k}"] for k in range(len(names))]
    weights = [array.view(DTYPES[name].numpy) for array, name in zip(arrays, names, strict=True)]
    return ScriptModule(Neff(document), weights, loaded(document))


def loaded(document: dict[str, Any]) -> Placed:
    """Put a module that is being loaded on the core that the context names."""
    hardware = State.hardware
    core = hardware.place(0 if State.placement is None else State.placement[0])
    if document["target"] != hardware.target or document["lnc"] != hardware.lnc:
        # rule: NEFF of another target
        raise RuntimeError(f"NRT_FAILURE: a NEFF for {document['target']}, LNC {document['lnc']}")
    return Placed(core)


@contextmanager
def placed(start_nc: int, nc_count: int) -> Iterator[None]:
    if State.placement is not None:
        raise NotDocumented("one thread places", "neuron_cores_context is not for several threads at a time")
    if nc_count not in (-1, 1):
        raise NotDocumented("one core a load", "the fake loads on one core at a time")
    State.placement = (start_nc, get_ident())
    time.sleep(0.02)  # so that threads do meet
    try:
        yield
    finally:
        State.placement = None


@documented("torch_neuronx.neuron_cores_context")
def neuron_cores_context(start_nc: int, nc_count: int) -> Any:
    return placed(start_nc, nc_count)


@documented("torch_neuronx.move_trace_to_device")
def move_trace_to_device(trace: Any, device_id: int) -> None:
    placed = State.tensors.placed_of(trace)
    if placed is None:
        raise NotDocumented("what is moved", "move_trace_to_device takes a traced module")
    placed.core = State.hardware.place(device_id)
    placed.weights_moved = True


jit = SimpleNamespace(save=save, load=load)


class Scripts:
    """The fake's tensors, and the modules that are made of them."""

    is_tensor = staticmethod(fake_torch.is_tensor)
    dtype_name = staticmethod(fake_torch.dtype_name)
    from_array = staticmethod(fake_torch.from_array)
    on_xla = staticmethod(fake_torch.on_xla)
    parameters = staticmethod(fake_torch.parameters)

    @staticmethod
    def script(neff: Neff, weights: list[Any], examples: tuple[Any, ...], placed: Placed) -> ScriptModule:
        return ScriptModule(neff, [weight.array for weight in weights], placed)

    @staticmethod
    def placed_of(module: Any) -> Placed | None:
        return module.placed if isinstance(module, ScriptModule) else None
