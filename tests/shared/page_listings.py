"""The listings of a page of Markdown: fenced or indented, each with the comment that stands before it.

A comment says what becomes of the listing after it: ``<!-- not run: needs a device -->`` with one of REASONS,
``<!-- run by tests/serve/test_serving_docs.py -->``, or ``<!-- file: add.py -->`` for one that becomes a file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REASONS = (
    "needs a checkout of its own",
    "needs a cluster",
    "needs a device",
    "needs a file that isn't in the repository",
    "needs AWS's packages",
    "needs other packages",
    "needs the network",
    "runs until it is stopped",
    "takes minutes",
)
"""The reasons for which a page may leave a listing out."""
PROGRAMS = {"trnrt", "python", "python3", "pip", "pytest", "bash", "source", "cat", "ls", "curl", "git"}
PROGRAMS |= {"docker", "podman", "kubectl"}
_FENCE = re.compile(r"^```(\w*)(?: +title=\"([^\"]+)\")?(.*)$")
_COMMENT = re.compile(r"^<!-- (.*?) -->$")


@dataclass(frozen=True)
class Listing:
    """One listing. ``language`` is that of its fence, or "" if it is indented; ``title`` a file's name."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    comment: str

    @property
    def place(self) -> str:
        """The page and the line, for messages."""
        return f"{self.page.name}:{self.line}"

    @property
    def is_python(self) -> bool:
        """Python that can run: it parses, and has a statement that TOML can't have."""
        if self.language:
            return self.language == "python"
        try:
            tree = ast.parse(self.text)
        except SyntaxError:
            return False
        kinds = (ast.Import, ast.ImportFrom, ast.With, ast.For, ast.FunctionDef)
        return any(isinstance(node, kinds) for node in tree.body)

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Each command of the listing with the output that is shown for it; none if it has no command."""
        if self.language not in ("", "sh"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):
            parts = re.split(r"(?m)^\$ ", self.text.replace("\\\n", " "))[1:]
            return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]
        first = next((line for line in lines if line.strip()), "")
        if first.split(" ")[0].removeprefix(".venv/bin/") not in PROGRAMS:
            return []
        return [(line, "") for line in lines if line.strip() and not line.lstrip().startswith("#")]


def listings(page: Path) -> list[Listing]:
    """All listings of a page, in order."""
    return list(_walk(page, page.read_text(encoding="utf-8").splitlines()))


def _walk(page: Path, lines: list[str]) -> Iterator[Listing]:
    comment, at, after_blank = "", 0, True
    while at < len(lines):
        line, first = lines[at], at
        if fence := _FENCE.match(line):
            at = lines.index("```", at + 1)
            text = "\n".join(lines[first + 1 : at]) + "\n"
            yield Listing(page, first + 1, fence[1], fence[2] or "", text, comment)
            comment = ""
        elif line.startswith("    ") and after_blank:
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or _is_gap(lines, at + 1)):
                at += 1
            text = "\n".join(each[4:] for each in lines[first : at + 1]) + "\n"
            yield Listing(page, first + 1, "", "", text, comment)
            comment = ""
        elif found := _COMMENT.match(line):
            comment = found[1]
        elif line.strip():
            comment = ""
        after_blank = not lines[at].strip() or lines[at].startswith("#")
        at += 1


def _is_gap(lines: list[str], at: int) -> bool:
    """True if an indented listing goes on after the empty lines from here."""
    while at < len(lines) and not lines[at].strip():
        at += 1
        if at < len(lines) and lines[at].startswith("    "):
            return True
    return False
