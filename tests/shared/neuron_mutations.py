"""Mistakes in the backend for NeuronCores, each of which a test must find.

    PYTHONPATH=. python tests/shared/neuron_mutations.py [NUMBER...]      # about ten minutes for all

Each is a replacement of text in one file. The script applies it to a copy of the repository, runs the tests that it
names, and prints whether they fail. ``tests/neuron/test_neuron_mutations.py`` holds that each text still occurs once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COPIED = ("kernels", "models", "serve", "tests", "trnrt", "docs", "pyproject.toml")
_ROUTES = "trnrt/neuron/routes"
_TRACE, _NEURON = ("tests/neuron/test_neuron.py",), ("tests/neuron/test_neuron_routes.py",)
_NEFF = ("tests/neuron/test_neff_route.py",)


@dataclass(frozen=True)
class Mutation:
    """A mistake, and the tests that must find it."""

    what: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation("misspelt keyword", f"{_ROUTES}/trace.py", "compiler_workdir=", "compiler_work_dir=", _TRACE),
    Mutation("dropped --target", f"{_ROUTES}/trace.py", 'arguments += ["--target", job.plan.target]', "pass", _TRACE),
    Mutation("misspelt --lnc", f"{_ROUTES}/trace.py", '["--lnc", str(job.lnc)]', '["--nlc", str(job.lnc)]', _TRACE),
    Mutation("weights in the NEFF", f"{_ROUTES}/trace.py", "weights_to_neff=False", "weights_to_neff=True", _TRACE),
    Mutation(
        "weights never moved", f"{_ROUTES}/trace.py", "torch_neuronx.move_trace_to_device(module, core)", "pass", _TRACE
    ),
    Mutation(
        "wrong variable of the target",
        "trnrt/neuron/device.py",
        '"NEURON_PLATFORM_TARGET_OVERRIDE"',
        '"NEURON_PLATFORM_TARGET"',
        _NEURON,
    ),
    Mutation(
        "LNC never set", "trnrt/neuron/backend.py", "os.environ[LNC_VARIABLE] = str(lnc)", "pass", (*_TRACE, *_NEURON)
    ),
    Mutation(
        "wrong variable of the limit",
        "trnrt/neuron/backend.py",
        '"NEURON_RT_EXEC_TIMEOUT"',
        '"NEURON_RT_TIMEOUT"',
        _NEURON,
    ),
    Mutation(
        "wrong variable of the frontend",
        "trnrt/neuron/frontend.py",
        '"NKI_COMPILER_FRONTEND"',
        '"NKI_FRONTEND"',
        _NEURON,
    ),
    Mutation("0.6 parses", "trnrt/neuron/frontend.py", '"parses"}, "tracer",', '"parses"}, "parser",', _NEURON),
    Mutation(
        "key without the frontend",
        "trnrt/neuron/artefacts.py",
        'frontend=os.environ.get(FRONTEND_VARIABLE, "")',
        'frontend=""',
        _TRACE,
    ),
    Mutation("key without a variable", "trnrt/neuron/artefacts.py", '    "NKI_PREFETCH_RING_SIZE",\n', "", _TRACE),
    Mutation(
        "key without the settings", "trnrt/neuron/artefacts.py", "if os.environ.get(name)}", "if not name}", _TRACE
    ),
    Mutation(
        "key without the kernels", "trnrt/neuron/artefacts.py", "source + _kernels_digest() +", "source +", _TRACE
    ),
    Mutation("key without the weights", f"{_ROUTES}/trace.py", "has_weights = True", "has_weights = False", _TRACE),
    Mutation("key without a package", "trnrt/neuron/artefacts.py", '("nki", "neuronx-cc")', '("neuronx-cc",)', _TRACE),
    Mutation(
        "wrong variable of the artefacts", "trnrt/neuron/device.py", '"NKI_ARTIFACTS_DIR"', '"NKI_ARTIFACT_DIR"', _NEFF
    ),
    Mutation("folder not empty", f"{_ROUTES}/compiling.py", "shutil.rmtree(work, ignore_errors=True)", "pass", _NEFF),
    Mutation("simulator compiles", f"{_ROUTES}/compiling.py", 'made.pop("TRNRT_NKI", None)', "pass", _NEFF),
    Mutation("weights shifted", f"{_ROUTES}/neff.py", "names[len(inputs) :]", "names[: -len(inputs)]", _NEFF),
    Mutation("worker on another core", f"{_ROUTES}/neff.py", "parse_cores(os.environ[VISIBLE])[core]", "core", _NEFF),
    Mutation(
        "a worker for each model", f"{_ROUTES}/neff.py", "if worker is None or not worker.is_alive", "if True", _NEFF
    ),
    Mutation("lists go through", f"{_ROUTES}/jit.py", "if isinstance(argument, list):", "if False:", _NEURON),
    Mutation("compiler's errors as the device's", "trnrt/neuron/failures.py", '== "NCCError"', '== "NCC"', _NEURON),
    Mutation(
        "inputs stay on the CPU",
        f"{_ROUTES}/torchneuron.py",
        "as_tensor(torch, array).to(DEVICE)",
        "as_tensor(torch, array)",
        _NEURON,
    ),
    Mutation("misspelt device", f"{_ROUTES}/torchneuron.py", 'DEVICE = "neuron"', 'DEVICE = "nc"', _NEURON),
    Mutation("results stay on the device", f"{_ROUTES}/torchneuron.py", 'result.to("cpu")', "result", _NEURON),
    Mutation("trn1 runs unasked", "trnrt/neuron/requirements.py", "if device.nki_supported:", "if True:", _NEURON),
    Mutation(
        "jit keeps kernels",
        f"{_ROUTES}/choosing.py",
        'KEEPING = ("neff", "trace")',
        'KEEPING = ("neff", "trace", "jit")',
        _NEURON,
    ),
    Mutation("kernel not launched on two cores", f"{_ROUTES}/jit.py", "if job.lnc == 1 else", "if True else", _NEURON),
)


def find(mutation: Mutation, folder: Path) -> bool:
    """Apply it to a copy, and run its tests there: True if one fails."""
    for name in _COPIED:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, copy)
    file = folder / mutation.file
    file.write_text(file.read_text(encoding="utf-8").replace(mutation.before, mutation.after), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *mutation.tests]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    print(f"{'caught' if done.returncode == 1 and lines else 'MISSED'}: {mutation.what}: {lines[:1]}", flush=True)
    return done.returncode == 1 and bool(lines)


def main(numbers: list[int]) -> bool:
    """Try the mutations with these numbers, by default all; return whether all are found."""
    results = []
    for number in numbers or range(len(MUTATIONS)):
        with tempfile.TemporaryDirectory() as folder:
            results.append(find(MUTATIONS[number], Path(folder)))
    print(f"{sum(results)} of {len(results)} caught")
    return all(results)


if __name__ == "__main__":
    sys.exit(not main([int(number) for number in sys.argv[1:]]))
