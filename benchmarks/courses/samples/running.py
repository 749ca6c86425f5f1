"""Load the kernels of nki-samples, run their drivers, and compare."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.courses.samples.cases import SAMPLES, Sample
from benchmarks.courses.samples.stand_ins import unused_packages
from trnrt.nki.installing import install_briefly

DRIVERS = ("attention", "contributed", "reference", "tutorials")
PACKAGE = "src/nki_samples/reference/"  # its files import each other by `from ..util`

_MODULES = r"neuronxcc\.nki\.(?:_\w+(?:\.\w+)*|nccl|docs[\w.]*|kernels[\w.]*)|nki\.[\w.]+"
PRIVATE = re.compile(rf"^\s*(?:from|import)\s+({_MODULES})", re.MULTILINE)
"""An import of a module that SDK 2.26 doesn't document, or doesn't ship."""

HELPERS = {
    "contributed/neuron-team-kernels/flash_paged_attn_varlen/flash_attn_core.py": "parts of varlen_attention_kernel.py",
    "src/nki_samples/reference/rmsnorm_quant/rmsnorm_quant_constants.py": "parts of rmsnorm_quant.py",
    "src/nki_samples/tutorials/attention_fwd_performance/test_attention.py": "a test of attention_kernels.py",
}
"""Files with no kernel of their own that a host calls."""

UNDRIVEN = {
    "contributed/neuron-team-kernels/flash_paged_attn_varlen/varlen_attention_kernel.py": (
        "flash_paged_attention_varlen",
        "not run: its loops count to a number in a tensor, by flags that the SDK calls experimental",
    ),
}
"""Kernels without a driver, and why."""


@dataclass(frozen=True)
class Outcome:
    """The result of a kernel. ``difference``: the largest, absolute; ``problem``: why it didn't run or agree."""

    file: str
    kernel: str
    public: bool
    difference: float | None
    tolerance: str
    seconds: float
    problem: str

    @property
    def agrees(self) -> bool:
        return not self.problem


def find_files(repository: Path) -> list[str]:
    """The files that mention ``nki.jit`` or ``nki_jit``."""
    found = []
    for path in sorted(repository.rglob("*.py")):
        if re.search(r"nki\.jit|nki_jit", path.read_text(encoding="utf-8")):
            found.append(path.relative_to(repository).as_posix())
    return found


def run_samples(repository: Path, select: str = "") -> list[Outcome]:
    """Run all drivers, or those whose file or kernel matches the regular expression ``select``."""
    for name in DRIVERS:
        import_module(f"benchmarks.courses.samples.{name}")
    outcomes = list[Outcome]()
    files = sorted({*find_files(repository), *(file for file, _ in SAMPLES)})
    for file in files:
        samples = [sample for sample in SAMPLES.values() if sample.file == file]
        wanted = [one for one in samples if re.search(select, f"{file}:{one.kernel}")]
        if wanted or (not samples and re.search(select, file)):
            outcomes += run_file(repository, file, wanted)
    return [replace(one, problem=one.problem.replace(f"{repository}/", "")) for one in outcomes]


def run_file(repository: Path, file: str, samples: Sequence[Sample]) -> list[Outcome]:
    """The outcomes of a file's kernels; one outcome without a kernel's name if it can't be imported."""
    with _environment(repository, file):
        try:
            _load(repository, file)
        except Exception as error:
            return [Outcome(file, "", is_public(repository, file), None, "", 0.0, _missing(repository, file, error))]
        if not samples:
            kernel, why = UNDRIVEN.get(file, ("", HELPERS.get(file, "no driver")))
            return [Outcome(file, kernel, bool(kernel), None, "", 0.0, why)]
    outcomes = []
    for sample in samples:
        with _environment(repository, file):  # modules afresh: some keep the next free address
            outcomes.append(_run(_load(repository, file), sample))
    return outcomes


def _run(module: ModuleType, sample: Sample) -> Outcome:
    began = time.process_time()
    largest, problem, compared = 0.0, "", 0
    try:
        for found, expected in sample.drive(getattr(module, sample.kernel), np.random.default_rng(0)):
            difference, wrong = compare(found, expected, sample.rtol, sample.atol)
            largest, compared = max(largest, difference), compared + 1
            problem = problem or wrong
        problem = problem or ("" if compared else "its driver compares nothing")
    except Exception as error:
        problem = _first_line(error)
    seconds = time.process_time() - began
    tolerance = f"{sample.rtol:g}: {sample.because}" if sample.rtol else sample.because
    return Outcome(sample.file, sample.kernel, True, largest, tolerance, seconds, problem)


def compare(found: Any, expected: Any, rtol: float, atol: float) -> tuple[float, str]:
    """The largest absolute difference, and the sentence that says what is wrong, or nothing."""
    given, wanted = np.asarray(found).astype(np.float64), np.asarray(expected).astype(np.float64)
    if given.shape != wanted.shape:
        return 0.0, f"the result has shape {given.shape}, the reference {wanted.shape}"
    difference = np.abs(given - wanted)
    bad = ~(difference <= atol + rtol * np.abs(wanted))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        share = f"{int(bad.sum()):,} of {bad.size:,} numbers differ"
        known = difference[~np.isnan(difference)]
        first = f"first at {at}: {given[at]:g} in place of {wanted[at]:g}"
        return float(known.max(initial=0)), f"{share}, {first}"
    return float(difference.max()), ""


def is_public(repository: Path, file: str) -> bool:
    """True if a file, with the files beside it that it imports, names only modules that the SDK documents."""
    return _private_import(repository, file) is None


def _private_import(repository: Path, file: str) -> str | None:
    """The first module that a file, or one beside it that it imports, names and the SDK doesn't document."""
    text = (repository / file).read_text(encoding="utf-8")
    beside = [(repository / file).parent / f"{name}.py" for name in re.findall(r"(?m)^\s*from (\w+) import", text)]
    texts = [text, *(path.read_text(encoding="utf-8") for path in beside if path.exists())]
    return next((found.group(1) for found in map(PRIVATE.search, texts) if found is not None), None)


@contextmanager
def _environment(repository: Path, file: str) -> Iterator[None]:
    """The old namespace, the file's folder on the path; modules loaded inside are forgotten after it."""
    path, modules, before = list(sys.path), set(sys.modules), Path.cwd()
    sys.path[:0] = [str((repository / file).parent), str(repository / "src")]
    try:
        # Kernels with the options of a benchmark write files into the working directory.
        with install_briefly(legacy=True), unused_packages(), tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in [name for name in set(sys.modules) - modules if _is_below(sys.modules[name], repository)]:
            del sys.modules[name]


def _is_below(module: ModuleType, folder: Path) -> bool:
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    return any(place and Path(place).is_relative_to(folder) for place in places)


def _load(repository: Path, file: str) -> ModuleType:
    if file.startswith(PACKAGE):
        return import_module(file.removeprefix("src/").removesuffix(".py").replace("/", "."))
    path = repository / file
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    load: Callable[[ModuleType], None] = spec.loader.exec_module
    load(module)
    return module


def _missing(repository: Path, file: str, error: Exception) -> str:
    """The module that a file needs and SDK 2.26 doesn't document, else the error of its import."""
    private = _private_import(repository, file)
    return _first_line(error) if private is None else f"imports {private}"


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    place = next((line.strip() for line in lines[1:] if line.startswith("  at ")), "")
    named = f"{type(error).__name__}: " if not lines or not place else ""
    return f"{named}{lines[0] if lines else ''} {place}".strip()


def main(arguments: Sequence[str]) -> None:
    """``python -m benchmarks.courses.samples.running REPOSITORY [SELECT]``: print an outcome a line."""
    for outcome in run_samples(Path(arguments[0]).resolve(), arguments[1] if len(arguments) > 1 else ""):
        shown = "" if outcome.difference is None else f"{outcome.difference:.2g}"
        verdict = "agrees" if outcome.agrees else outcome.problem
        print(f"{outcome.file}:{outcome.kernel} {outcome.seconds:.1f}s {shown} {verdict}")


if __name__ == "__main__":
    main(sys.argv[1:])
