"""Are the numbers of a ported file those of the old one? Both run in the simulator, on the same inputs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from trnrt.nki import scripts
from trnrt.nki.calls import Call, describe, parse_call
from trnrt.nki.checking import read_script
from trnrt.nki.errors import KernelError, OptionError
from trnrt.nki.level import Level, choose_level
from trnrt.nki.machine.dtypes import DType, as_dtype
from trnrt.nki.machine.targets import get_target
from trnrt.nki.porting import port_source
from trnrt.nki.sim.kernel import Kernel, Simulated, Spec, default_target, intercept_calls, run_intercepted

# The share of the largest number by which numbers of a dtype may differ: those of `trnrt validate`.
TOLERANCES = {"float32": 1e-4}
_NARROW = 2e-2
_SEED = 0


@dataclass(frozen=True)
class Compared:
    """A call of both kernels: the largest difference, as a share of the largest number, or why it has none."""

    kernel: str
    arguments: str
    difference: float | None = None
    tolerance: float | None = None
    error: str | None = None

    @property
    def equal(self) -> bool:
        return self.error is None and self.difference is not None and self.difference <= (self.tolerance or 0.0)


@dataclass(frozen=True)
class _Observed:
    """A call of an old kernel, with its arguments as they were before, and its results."""

    kernel: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Any]


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
    itself makes, each of its shapes once.

    The ported kernels run strictly: what only works in a simulator is an error. Tensors of calls by text are random.

    Raises:
        OptionError: if a call can't be read, or names no kernel of the file.
    """
    asked = [parse_call(call) for call in calls]
    at = get_target(target or default_target())
    with scripts.environment(script, (), target, nki=choose_level(nki), capacity=capacity), redirect_stdout(sys.stderr):
        if asked:
            observed = list(_run_calls(script, asked, at))
        else:
            observed = _observe_script(script, at)
        if not observed:
            return []
        with _module_of(script, text) as (new, stopped):
            return [_compare(call, new, stopped, at) for call in observed]


def _run_calls(script: Path, asked: Sequence[Call], target: Any) -> Iterator[_Observed | Compared]:
    """Run calls of the old file's kernels on random tensors."""
    old = ModuleType(script.stem)
    stopped = _ending(lambda: scripts.import_module(script, old))
    draw = np.random.default_rng(_SEED)
    for call in asked:
        kernel = getattr(old, call.kernel, None)
        if not isinstance(kernel, Kernel) and not isfunction(kernel):
            names = ", ".join(name for name, value in vars(old).items() if isinstance(value, Kernel))
            reason = f"; it stopped: {stopped}" if stopped else ""
            raise OptionError(
                f"{script} has no kernel {call.kernel!r}{reason}", hint=f"it has {names}" if names else None
            )
        args = tuple(_draw(value, draw) for value in call.args)
        kwargs = {name: _draw(value, draw) for name, value in call.kwargs.items()}
        yield _observe(Simulated(kernel, target, cores=call.cores), args, kwargs)


def _draw(value: Any, draw: np.random.Generator) -> Any:
    """An array for a tensor: normal floats, small integers; another argument as it is."""
    if not isinstance(value, Spec):
        return value
    if value.dtype.is_float:
        return draw.standard_normal(value.shape).astype(np.float32).astype(value.dtype.numpy)
    return draw.integers(0, 2 if value.dtype.name == "bool_" else 100, value.shape).astype(value.dtype.numpy)


def _observe(kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Observed | Compared:
    """Run an old kernel."""
    name = kernel.function.__name__
    before = tuple(_copy(value) for value in args), {key: _copy(value) for key, value in kwargs.items()}
    try:
        results = run_intercepted(kernel, *args, **kwargs)
    except KernelError as error:
        return Compared(name, describe(*before), error=f"the old kernel failed: {_first_line(error)}")
    changed = [value for value in (*args, *kwargs.values()) if isinstance(value, np.ndarray)]
    return _Observed(name, *before, [*_arrays(results), *changed])


def _observe_script(script: Path, target: Any) -> list[_Observed | Compared]:
    """Run the old script, and keep the calls that it makes: one for each kernel and description of its arguments."""
    found: dict[tuple[str, str], _Observed | Compared] = {}

    def observe(kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = kernel.function.__name__, describe(args, kwargs)
        if key in found:
            return run_intercepted(kernel, *args, **kwargs)
        observed = found[key] = _observe(kernel, args, kwargs)
        if isinstance(observed, Compared):
            raise KernelError(str(observed.error))
        count = len(observed.results) - len([v for v in (*args, *kwargs.values()) if isinstance(v, np.ndarray)])
        results = observed.results[:count]
        return results[0] if count == 1 else tuple(results)

    with intercept_calls(observe):
        _ending(lambda: scripts.run_main(script))
    return list(found.values())


@contextmanager
def _module_of(script: Path, text: str) -> Iterator[tuple[ModuleType, BaseException | None]]:
    """The ported text as a module, in a file of its own: the checks read a kernel's source from its file.

    Old modules beside the script, which it imports, are ported as well: a kernel of today can't call an old one.
    """
    with tempfile.TemporaryDirectory(prefix="trnrt-port-") as folder:
        file = Path(folder) / script.name
        file.write_text(text, encoding="utf-8")
        before = _port_modules_beside(script, Path(folder))
        sys.path.insert(0, folder)
        module = ModuleType(script.stem)
        try:
            yield module, _ending(lambda: scripts.import_module(file, module))
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


def _compare(call: _Observed | Compared, new: ModuleType, stopped: BaseException | None, target: Any) -> Compared:
    """Run the ported kernel on an observed call's arguments."""
    if isinstance(call, Compared):
        return call
    text = describe(call.args, call.kwargs)
    kernel = getattr(new, call.kernel, None)
    if kernel is None:
        why = f": {_first_line(stopped)}" if stopped is not None else ""
        return Compared(call.kernel, text, error=f"the ported file has no such kernel{why}")
    try:
        results = Simulated(kernel, target, strict=True)(*call.args, **call.kwargs)
    except KernelError as error:
        return Compared(call.kernel, text, error=f"the ported kernel failed: {_first_line(error)}")
    changed = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, np.ndarray)]
    return _measure(call, text, [*_arrays(results), *changed])


def _measure(call: _Observed, text: str, results: list[Any]) -> Compared:
    """The largest difference of any result, in tolerances."""
    if [array.shape for array in call.results] != [array.shape for array in results]:
        shapes = f"{[array.shape for array in call.results]} and {[array.shape for array in results]}"
        return Compared(call.kernel, text, error=f"the results have other shapes: {shapes}")
    worst, tolerance = 0.0, TOLERANCES["float32"]
    for old, new in zip(call.results, results, strict=True):
        allowed = _tolerance(as_dtype(old.dtype))
        found = _difference(old, new)
        if found / (allowed or 1e-30) >= worst / (tolerance or 1e-30):
            worst, tolerance = found, allowed
    return Compared(call.kernel, text, worst, tolerance)


def _tolerance(dtype: DType) -> float:
    return TOLERANCES.get(dtype.name, _NARROW) if dtype.is_float else 0.0


def _difference(old: Any, new: Any) -> float:
    """The largest difference as a share of the largest number; infinite where only one of them is finite."""
    one, other = np.asarray(old, np.float64), np.asarray(new, np.float64)
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        apart = np.where((one == other) | np.isnan(one), 0.0, np.abs(one - other))
    largest = float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0))
    return float(np.max(apart, initial=0.0)) / (largest or 1.0)


def _arrays(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    at = next((line.strip() for line in lines if line.startswith("  at ")), "")
    return f"{lines[0]} ({at})" if at else lines[0]


def _ending(run: Callable[[], None]) -> BaseException | None:
    """The error that ended a run of the user's code, or None."""
    try:
        run()
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except BaseException as error:
        return error
    return None
