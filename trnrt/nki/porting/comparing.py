"""Are the numbers of a ported file those of the old one? Both run in the simulator, on the same inputs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from trnrt.nki.calls import Call
from trnrt.nki.checking import read_script
from trnrt.nki.errors import KernelError, OptionError
from trnrt.nki.level import Level
from trnrt.nki.loading import Launch, find_kernel, find_launches, import_kernels, loading
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Program
from trnrt.nki.numbers import compare_results, fill_inputs, named_results
from trnrt.nki.porting import port_source
from trnrt.nki.sim.kernel import Simulated


@dataclass(frozen=True)
class Compared:
    """A call of both kernels: the largest difference, and the largest share of what is allowed; or why it has none."""

    kernel: str
    arguments: str
    difference: float | None = None
    ratio: float | None = None
    error: str | None = None

    @property
    def equal(self) -> bool:
        return self.error is None and self.ratio is not None and self.ratio <= 1


def compare_ported(
    script: Path,
    text: str,
    calls: Sequence[str] = (),
    *,
    target: str | None = None,
    nki: Level | str | None = None,
    capacity: bool = True,
) -> list[Compared]:
    """Run the kernels of the old file and of its ported ``text``: on these calls, by default on those that the script
    itself makes, each of its shapes once; none if it makes none.

    The ported kernels run strictly: what only works in a simulator is an error. Tensors of calls by text are random.

    Raises:
        OptionError: if a call can't be read, or names no kernel of the file.
    """
    with loading(script, target, nki=nki, capacity=capacity), redirect_stdout(sys.stderr):
        try:
            launches = find_launches(script, calls)
        except KernelError as error:
            return [Compared(script.stem, "", error=f"the old kernel failed: {_first_line(error)}")]
        except OptionError:
            if calls:
                raise
            return []
        with _module_of(script, text) as new:
            return [_compare(launch, new) for launch in launches]


def _compare(launch: Launch, new: ModuleType) -> Compared:
    """Run the old and the ported kernel."""
    name, arguments = launch.name, launch.arguments
    try:
        programs = launch.trace()
        arrays = _arrays(launch, programs)
        old = named_results(programs, arrays)
    except KernelError as error:
        return Compared(name, arguments, error=f"the old kernel failed: {_first_line(error)}")
    try:
        found = find_kernel(new, Call(launch.kernel.function.__name__, None, (), {}))
        ported = Simulated(found.kernel, found.target, strict=True, capacity=found.capacity)
        results = named_results(Launch(ported, launch.args, launch.kwargs).trace(), arrays)
    except (KernelError, OptionError) as error:
        return Compared(name, arguments, error=f"the ported kernel failed: {_first_line(error)}")
    agreements = compare_results(old, results)
    problem = next((f"{found.name}: {found.problem}" for found in agreements if found.problem), None)
    difference = max((found.largest for found in agreements), default=0.0)
    return Compared(name, arguments, difference, max((found.ratio for found in agreements), default=0.0), problem)


def _arrays(launch: Launch, programs: Sequence[Program]) -> list[Array]:
    """The call's arrays; random ones for tensors without data."""
    return fill_inputs(programs[0], launch.arrays)


@contextmanager
def _module_of(script: Path, text: str) -> Iterator[ModuleType]:
    """The ported text as a module, in a file of its own: the checks read a kernel's source from its file.

    Old modules beside the script, which it imports, are ported as well: a kernel of today can't call an old one.
    """
    with tempfile.TemporaryDirectory(prefix="trnrt-port-") as folder:
        file = Path(folder) / script.name
        file.write_text(text, encoding="utf-8")
        before = _port_modules_beside(script, Path(folder))
        sys.path.insert(0, folder)
        try:
            yield import_kernels(file)
        finally:
            sys.path.remove(folder)
            for name in before:
                sys.modules.pop(name, None)
            sys.modules.update(before)


def _port_modules_beside(script: Path, folder: Path) -> dict[str, ModuleType]:
    """Write ported copies of the old modules that the script's run imported from its folder; return those modules."""
    found, home = dict[str, ModuleType](), script.resolve().parent
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or "." in name or Path(file).parent != home or Path(file) == script.resolve():
            continue
        ported = port_source(read_script(Path(file)), file)
        if not ported.is_new:
            (folder / f"{name}.py").write_text(ported.text, encoding="utf-8")
            found[name] = sys.modules.pop(name)
    return found


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    at = next((line.strip() for line in lines if line.startswith("  at ")), "")
    return f"{lines[0]} ({at})" if at else lines[0]
