"""Run a user's script as ``python script.py`` would, with the simulator as ``nki``."""

from __future__ import annotations

import linecache
import os
import re
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

from trnrt.nki.errors import KernelError, OptionError
from trnrt.nki.installing import install_briefly
from trnrt.nki.level import Level
from trnrt.nki.machine.program import Program, Source
from trnrt.nki.machine.targets import portable_name
from trnrt.nki.sim.kernel import TARGET_VARIABLE, without_capacity
from trnrt.nki.sim.trace import source_of

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_MACHINERY = ("<frozen ", runpy.__file__)
_AT = re.compile(r"^  at (.+):(\d+) in (.+)$", re.MULTILINE)


@contextmanager
def environment(
    script: Path,
    arguments: Sequence[str],
    target: str | None,
    *,
    nki: Level | str | None = None,
    capacity: bool = True,
) -> Iterator[list[Program]]:
    """The environment of a script: ``nki`` at a level, ``sys.argv``, its own folder on the path, the target.

    Yields the programs that do not fit the device, if they needn't (``capacity=False``).

    Raises:
        OptionError: if AWS's package is installed, because the script would run on that.
    """
    argv, path, before = sys.argv, sys.path, os.environ.get(TARGET_VARIABLE)
    with (
        install_briefly(nki, legacy=True) as ours,
        nullcontext(list[Program]()) if capacity else without_capacity() as overflowed,
    ):
        if not ours:
            raise OptionError(
                "AWS's nki is installed here, and the script would run on it", hint="set TRNRT_NKI=simulator"
            )
        sys.argv = [str(script), *arguments]
        sys.path = [str(script.resolve().parent), *path]
        if target is not None:
            os.environ[TARGET_VARIABLE] = portable_name(target)  # a script may change its folder
        try:
            yield overflowed
        finally:
            sys.argv, sys.path = argv, path
            if target is not None:
                os.environ.pop(TARGET_VARIABLE)
                os.environ.update({} if before is None else {TARGET_VARIABLE: before})


def run_main(script: Path) -> None:
    """Run the script as ``__main__``; raises its errors, SystemExit too."""
    runpy.run_path(str(script.resolve()), run_name="__main__")


def import_module(script: Path, namespace: ModuleType) -> None:
    """Run the script as a module of its own name, in ``namespace``; after an error, earlier definitions are there."""
    file = str(script.resolve())
    namespace.__file__ = file
    before = sys.modules.get(namespace.__name__)
    sys.modules[namespace.__name__] = namespace  # dataclasses look their module up
    try:
        exec(compile(script.read_bytes(), file, "exec"), namespace.__dict__)
    finally:
        if before is None:
            del sys.modules[namespace.__name__]
        else:
            sys.modules[namespace.__name__] = before


def exit_code(error: SystemExit) -> tuple[int, str]:
    """The exit code that Python gives a SystemExit, and the text that it prints."""
    if error.code is None:
        return 0, ""
    return (error.code, "") if isinstance(error.code, int) else (1, str(error.code))


def script_traceback(error: BaseException) -> str:
    """The traceback that ``python script.py`` prints, without trnrt's own frames."""
    report = traceback.TracebackException.from_exception(error)
    _strip(report)
    return "".join(report.format()).rstrip()


def _strip(report: traceback.TracebackException | None) -> None:
    if report is not None:
        theirs = [frame for frame in report.stack if not frame.filename.startswith((_PACKAGE, *_MACHINERY))]
        report.stack = traceback.StackSummary.from_list(theirs)
        _strip(report.__cause__)
        _strip(report.__context__)


def place_of(error: BaseException) -> Source | None:
    """The line of the user's code that an error is about: the one in its message, else the innermost outside trnrt."""
    named = _AT.findall(str(error))
    if isinstance(error, KernelError) and named:
        file, line, function = named[-1]
        return Source(file, int(line), function)
    if isinstance(error, SyntaxError) and error.filename:
        return Source(error.filename, error.lineno or 1, "<module>")
    place = source_of(error.__traceback__)
    return None if place is None or place.file.startswith((_PACKAGE, *_MACHINERY)) else place


def with_code(error: KernelError) -> str:
    """The error's message with the line of the kernel that it is about."""
    message, place = str(error), place_of(error)
    if place is None:
        return message
    if not _AT.search(message):
        message = f"{message}\n  at {place}"
    code = linecache.getline(place.file, place.line).strip()
    return f"{message}\n    {code}" if code else message
