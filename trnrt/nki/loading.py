"""The kernel calls of a file, ready to trace and to run: those given as text, or those that its script makes."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from trnrt.nki import scripts
from trnrt.nki.calls import Call, describe, parse_call
from trnrt.nki.checking import ending_error, kernel_named
from trnrt.nki.errors import KernelError, OptionError
from trnrt.nki.level import Level, choose_level
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.numbers import run_programs
from trnrt.nki.sim.arguments import map_tensors
from trnrt.nki.sim.kernel import Kernel, Simulated, default_target, intercept_calls, tensor_arguments
from trnrt.nki.tolerating import tolerate_zeros

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = tuple(Path(sysconfig.get_paths()[name]).resolve() for name in ("stdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class Launch:
    """A kernel and the arguments of one call: arrays, or ``Spec`` for tensors, and plain values."""

    kernel: Simulated
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name as ``parse_call`` reads it, with its cores or its grid."""
        return f"{self.kernel.function.__name__}{self.kernel.kernel.brackets}"

    @property
    def arguments(self) -> str:
        """The arguments as ``parse_call`` reads them."""
        return describe(self.args, self.kwargs)

    @property
    def text(self) -> str:
        """The whole call as ``parse_call`` reads it."""
        return f"{self.name}({self.arguments})"

    @property
    def arrays(self) -> list[Any]:
        """The tensors in the order of the program's inputs: arrays, or ``Spec`` of those that have no data."""
        return tensor_arguments(self.kernel.function, self.args, self.kwargs)

    def trace(self) -> list[Program]:
        """The program of each core. Raises the errors of ``trnrt.nki.trace``."""
        return self.kernel.trace(*self.args, **self.kwargs)

    def with_values(self, values: Mapping[str, Any]) -> Launch:
        """The same call with other values of named arguments.

        Raises:
            OptionError: if the kernel has no such argument.
        """
        places, args, kwargs = self._places(), list(self.args), dict(self.kwargs)
        for name, value in values.items():
            if name in places:
                args[places[name]] = value
            else:
                self._check_argument(name)
                kwargs[name] = value
        return Launch(self.kernel, tuple(args), kwargs)

    def value_of(self, name: str) -> Any:
        """The value of a named argument in this call, or the kernel's default for it; ``Parameter.empty`` if neither.

        Raises:
            OptionError: if the kernel has no such argument.
        """
        self._check_argument(name)
        places, parameters = self._places(), signature(self.kernel.function).parameters
        if name in places:
            return self.args[places[name]]
        default = parameters[name].default if name in parameters else Parameter.empty
        return self.kwargs.get(name, default)

    def _places(self) -> dict[str, int]:
        """The positions of the arguments that are given without their names."""
        parameters = signature(self.kernel.function).parameters.values()
        by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        names = [parameter.name for parameter in parameters if parameter.kind in by_place]
        return {name: place for place, name in enumerate(names[: len(self.args)])}

    def _check_argument(self, name: str) -> None:
        parameters = signature(self.kernel.function).parameters
        kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        known = [p.name for p in parameters.values() if p.kind in kinds]
        if name not in known and not any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()):
            raise OptionError(
                f"kernel {self.name} has no argument {name!r}", hint=f"its arguments are {', '.join(known)}"
            )


@contextmanager
def loading(
    script: Path, target: str | None, *, nki: Level | str | None = None, capacity: bool = True
) -> Iterator[list[Program]]:
    """The environment to find a file's launches in, and to trace and run them (``scripts.environment``).

    The user's own modules that are imported within are forgotten at the end, so that another file's module of the same
    name is not taken for them.

    Raises:
        OptionError: if there is no such file.
    """
    if not script.is_file():
        raise OptionError(f"there is no file {str(script)!r}")
    before = set(sys.modules)
    try:
        with scripts.environment(script, (), target, nki=choose_level(nki), capacity=capacity) as overflowed:
            yield overflowed
    finally:
        for name in _own_modules(before):
            del sys.modules[name]


def source_files(script: Path, before: set[str]) -> list[Path]:
    """The script, and the files of the user's own modules that were imported since ``before`` (names of modules)."""
    modules = (sys.modules[name].__file__ for name in _own_modules(before))
    return [script.resolve(), *sorted({Path(file).resolve() for file in modules if file} - {script.resolve()})]


def _own_modules(before: set[str]) -> list[str]:
    return [name for name, module in sys.modules.items() if name not in before and _is_own(module)]


def _is_own(module: ModuleType) -> bool:
    """True if a module is neither trnrt's, nor Python's, nor an installed package's."""
    file = getattr(module, "__file__", None)
    if not file:
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PACKAGE, *_INSTALLED))


def find_launches(script: Path, calls: Sequence[str] = ()) -> list[Launch]:
    """The calls given as text; without any, those that the script makes, each different one once.

    Call it within ``loading``. The script then runs as a whole, its kernels on the simulator.

    Raises:
        OptionError: if a call can't be read, the file has no such kernel, or the script stops before its first call.
    """
    if calls:
        asked = [parse_call(text) for text in calls]
        module = import_kernels(script)
        return [Launch(find_kernel(module, call), call.args, call.kwargs) for call in asked]
    return _recorded_launches(script)


def import_kernels(script: Path) -> ModuleType:
    """The file as a module; its own calls of kernels compute nothing. It may have stopped after some definitions."""
    module = ModuleType(script.stem)
    with intercept_calls(_return_zeros), tolerate_zeros():
        stopped = ending_error(lambda: scripts.import_module(script, module))
    vars(module)["__stopped__"] = stopped
    return module


def find_kernel(module: ModuleType, call: Call) -> Simulated:
    """The kernel that a call names, on the target in the environment.

    Raises:
        OptionError: if the file has no such kernel, or stopped before it.
    """
    kernel = kernel_named(module, call)
    if kernel is not None:
        return Simulated(kernel, get_target(default_target()))
    stopped = vars(module).get("__stopped__")
    if stopped is not None:
        raise OptionError(f"{module.__file__} stopped before it defined {call.kernel!r}: {_error_text(stopped)}")
    names = ", ".join(key for key, value in vars(module).items() if isinstance(value, Kernel))
    raise OptionError(
        f"{module.__file__} has no kernel {call.kernel!r}", hint=f"it has {names}" if names else "it has no kernels"
    )


def without_data(launch: Launch) -> Call:
    """The call with ``Spec`` in the place of arrays: it can be sent to another process."""
    return parse_call(launch.text)


def _return_zeros(kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    program = kernel.trace(*args, **kwargs)[0]
    return program.call_result([np.zeros(view.shape, view.dtype.numpy) for view in program.outputs])


def _recorded_launches(script: Path) -> list[Launch]:
    """Run the script; return its different calls with their data."""
    found: dict[tuple[Callable[..., Any], str], Launch] = {}

    def record(kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kept = Launch(kernel, _copy(args), _copy(kwargs))
        programs, arrays = kept.trace(), tensor_arguments(kernel.function, args, kwargs)
        found.setdefault((kernel.function, kept.text), kept)
        outputs, changed = run_programs(programs, arrays)
        for position, values in changed.items():
            np.copyto(arrays[position], values, casting="unsafe")
        return programs[0].call_result(outputs)

    with intercept_calls(record), tolerate_zeros():
        stopped = ending_error(lambda: scripts.run_main(script))
    if isinstance(stopped, KernelError):
        raise stopped
    if not found:
        why = f" (it stopped: {_error_text(stopped)})" if stopped else ""
        raise OptionError(f"{str(script)!r} calls no kernel{why}", hint="name a call with --call")
    return list(found.values())


def _copy(values: Any) -> Any:
    """A tuple or dict of arguments, with copies of the arrays."""

    def copy(_name: str, value: Any) -> Any:
        return value.copy() if isinstance(value, np.ndarray) else value

    if isinstance(values, dict):
        return {name: map_tensors(copy, name, value) for name, value in values.items()}
    return tuple(map_tensors(copy, "", value) for value in values)


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0].removesuffix(":")
