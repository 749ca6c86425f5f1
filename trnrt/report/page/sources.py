"""The source of a kernel for its report: the functions that issue instructions, and the cost of their lines."""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from trnrt.nki.profiling import Profile
from trnrt.report.timeline import source_text
from trnrt.text import escape_text, name_text

_LONGEST_LINE = 240
_LONGEST_FUNCTION = 1500
"""Lines; of a longer one only the surroundings of the lines with instructions are shown."""
_AROUND = 12
"""Lines shown before and after one of a long function, or of a file that does not parse."""
Span = tuple[int, int]


class Files:
    """The files that instructions come from, the kernel's own first; each has a number."""

    def __init__(self, profile: Profile) -> None:
        used: dict[str, set[int]] = defaultdict(set)
        self.places: dict[str, tuple[str, int]] = {}  # a source as text -> its file and line
        programs = [timeline.program for timeline in profile.cores]
        for program in programs:
            used[program.file] |= {instruction.line for instruction in program.instructions if instruction.line}
            for source in dict.fromkeys(instruction.source for instruction in program.instructions):
                used[source.file].add(source.line)
                self.places[source_text(source)] = source.file, source.line
        cost: dict[str, float] = defaultdict(float)
        for line in profile.lines:
            cost[line.file] += line.path_us
        entries = [program.file for program in programs]
        order = sorted(used, key=lambda file: (file not in entries, -cost[file], file))
        self.number = {file: number for number, file in enumerate(order)}
        self._used = used

    def to_list(self) -> list[dict[str, Any]]:
        """Each file with its name and its parts: the first line's number, and the lines."""
        names = _names(self.number)
        return [{"name": names[file], "path": name_text(file), "parts": self._parts(file)} for file in self.number]

    def _parts(self, file: str) -> list[tuple[int, list[str]]]:
        lines = linecache.getlines(file)
        spans = shown_spans(lines, self._used[file])
        return [(first, [_line_text(line) for line in lines[first - 1 : last]]) for first, last in spans]


def source_data(profile: Profile, files: Files, before_us: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    """``sources``, the ``entry`` function's file, in ``lines`` the cost of each line, picoseconds, and the lines of the
    ``bottleneck``. ``before_us``: of files and lines that another run has, too, their part of its critical path."""
    program = profile.cores[0].program
    named = profile.bottleneck.places if profile.bottleneck is not None else ()
    return {
        "sources": files.to_list(),
        "entry": files.number.get(program.file, -1),
        "lines": [
            {
                "file": files.number[use.file],
                "line": use.line,
                "instructions": use.instructions,
                "path": round(use.path_us * 1e6),
                "share": use.share,
                **({"before": round(before_us[use.place] * 1e6)} if use.place in before_us else {}),
                "busy": {name: round(time * 1e6) for name, time in use.busy_us.items()},
            }
            for use in profile.lines
            if use.file in files.number
        ],
        "bottleneck": [(files.number[place.file], place.line) for place in named if place.file in files.number],
    }


def _names(files: Collection[str]) -> dict[str, str]:
    """The names of files, with their folder where two have the same."""
    paths = [PurePath(file) for file in files]
    names = [path.name for path in paths]
    return {
        file: name_text(path.name if names.count(path.name) == 1 else "/".join(path.parts[-2:]))
        for file, path in zip(files, paths, strict=True)
    }


def _line_text(line: str) -> str:
    text = escape_text(line.rstrip().expandtabs())
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 3]}..."


def shown_spans(lines: Sequence[str], used: Iterable[int]) -> list[Span]:
    """The parts of a file to show, each its first and last line: the outermost functions that have a ``used`` line."""
    known = sorted(line for line in used if 0 < line <= len(lines))
    functions = [span for span in _functions("".join(lines)) if span[1] - span[0] < _LONGEST_FUNCTION]
    spans = []
    for line in known:
        inside = next((span for span in functions if span[0] <= line <= span[1]), None)
        spans.append(inside or (max(1, line - _AROUND), min(len(lines), line + _AROUND)))
    joined: list[Span] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _functions(source: str) -> list[Span]:
    """The lines of each outermost function or class with its decorators; none of a source that does not parse."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.append((first, node.end_lineno or node.lineno))
    return found
