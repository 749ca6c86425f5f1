"""``trnrt nki check --watch``: check a script again whenever it, or a file beside it that it imports, changes.

Each check is a process of its own: a script may change Python's state, and modules that were imported stay.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trnrt.commands.exits import INTERRUPTED
from trnrt.commands.options import Reporting
from trnrt.commands.views import Checking, Tracing
from trnrt.errors import OptionError
from trnrt.report.console import say
from trnrt.text import count_text, name_text

INTERVAL = 0.3
"""Seconds between two looks at the files."""
_CLEAR = "\033[2J\033[3J\033[H"

Stamps = dict[Path, tuple[int, int] | None]


def watch_script(
    script: Path,
    tracing: Tracing,
    checking: Checking,
    reporting: Reporting,
    *,
    wait: Callable[[float], object] = time.sleep,
) -> int:
    """Check until Ctrl-C; return the last check's exit code, INTERRUPTED if there is none.

    It prints each check's page on a terminal, and else a line of each.

    Raises:
        OptionError: if there is no such file, a call can't be read, or JSON is to be printed.
    """
    from trnrt.nki.calls import parse_call

    if reporting.as_json:
        raise OptionError("--watch prints for people, and --json for programs", hint="use --json-out FILE")
    if not script.is_file():
        raise OptionError(f"there is no file {str(script)!r}")
    for text in tracing.calls or []:
        parse_call(text)
    command, stamps, code = _command(script, tracing, checking, reporting), Stamps(), INTERRUPTED
    try:
        while True:
            now = _stamps(script)
            if now != stamps:
                stamps = now
                code, text = _check(command, script, sum(state is not None for state in now.values()))
                say(text)
            wait(INTERVAL)
    except KeyboardInterrupt:
        return code


def _check(command: list[str], script: Path, files: int) -> tuple[int, str]:
    """Run one check; return its exit code, and what to print when it is done."""
    if sys.stdout.isatty():
        say(_CLEAR)
        code = subprocess.run(command, check=False).returncode
        return code, f"\nwatching {count_text(files, 'file')}; Ctrl-C ends"
    wide = {name: value for name, value in os.environ.items() if name != "COLUMNS"}  # so that a line is one
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=wide)
    line = ran.stdout.partition("\n")[0]
    return ran.returncode, line or f"{name_text(str(script))}: not checked, exit code {ran.returncode}"


def _command(script: Path, tracing: Tracing, checking: Checking, reporting: Reporting) -> list[str]:
    """The command line of one check."""
    words = [sys.executable, "-m", "trnrt", "nki", "check", str(script)]
    for call in tracing.calls or []:
        words += ["--call", call]
    options = {"--target": tracing.target, "--nki": tracing.nki, "--sarif": checking.sarif}
    for name, value in (options | {"--json-out": reporting.json_out}).items():
        words += [] if value is None else [name, str(value)]
    return words + (["--no-capacity"] if tracing.no_capacity else [])


def _stamps(script: Path) -> Stamps:
    """The time and the size of each watched file; None for one that isn't there."""
    found = Stamps()
    for path in local_files(script):
        try:
            state = path.stat()
            found[path] = state.st_mtime_ns, state.st_size
        except OSError:
            found[path] = None
    return found


def local_files(script: Path) -> set[Path]:
    """The script, and the files beside it that it imports, directly or through others.

    Also those that can't be parsed, and those that would be imported if they were there.
    """
    folder, seen, ahead = script.absolute().parent, set[Path](), [script.absolute()]
    while ahead:
        path = ahead.pop()
        if path not in seen:
            seen.add(path)
            ahead += [file for name in _imports(path) for file in _files_of(name, path, folder)]
    return seen


def _imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports; relative ones with their dots."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}.{alias.name}" if node.module else base + alias.name for alias in node.names)


def _files_of(name: str, importer: Path, folder: Path) -> Iterator[Path]:
    """The files below ``folder``, the script's, that an import executes if they are there."""
    level = len(name) - len(name.lstrip("."))
    start = importer.parents[min(level, len(importer.parents)) - 1] if level else folder
    for part in [part for part in name.lstrip(".").split(".") if part]:
        yield from (start / f"{part}.py", start / part / "__init__.py")
        start = start / part
