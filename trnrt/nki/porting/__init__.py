"""From the old namespace (``neuronxcc.nki``, values returned) to today's NKI (destinations), source to source.

``port_source`` needs libcst, which keeps comments and layout: ``pip install 'trnrt[port]'``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from trnrt.nki.errors import OptionError
from trnrt.nki.level import Level
from trnrt.nki.porting.marks import PREFIX, Mark
from trnrt.nki.sim.subset_source import Finding

__all__ = ["Mark", "Ported", "port_source"]


@dataclass(frozen=True)
class Ported:
    """The text of a ported file. ``marks``: what is left as it was; ``refused``: what NKI
    refuses in the other lines of the ported text; ``notes``: what changes that numbers don't show.

    ``is_new``: the file was written for today's NKI already, and is unchanged.
    """

    text: str
    is_new: bool = False
    marks: tuple[Mark, ...] = ()
    refused: tuple[Finding, ...] = ()
    notes: dict[int, str] = field(default_factory=dict)


def port_source(source: str, name: str, *, nki: Level | str | None = None) -> Ported:
    """Port the text of a file; ``nki``: the release of NKI that the ported file is checked against.

    Raises:
        OptionError: if it is no Python, with the place; or if libcst is not installed.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise OptionError(f"{name}:{error.lineno}: {error.msg}", hint="mend the syntax, then port the file") from None
    from trnrt.nki.porting.imports import is_old

    if not is_old(tree, source):
        return Ported(source, is_new=True)
    try:
        import libcst  # noqa: F401
    except ImportError:
        raise OptionError("porting needs libcst, which is not installed", hint="pip install 'trnrt[port]'") from None
    from trnrt.nki.porting.modules import Porter

    porter = Porter(source)
    text = porter.port()
    marks = tuple(sorted(porter.marks, key=lambda mark: mark.line))
    return Ported(text, marks=marks, refused=_find_refused(text, name, nki), notes=porter.notes)


def _find_refused(text: str, name: str, nki: Level | str | None) -> tuple[Finding, ...]:
    """What NKI refuses in the ported text, other than in marked statements and in imports that those need."""
    from trnrt.nki.checking import static_findings

    lines, marked = text.split("\n"), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            marked.add(node.lineno)
        elif isinstance(node, ast.stmt) and lines[node.lineno - 2].strip().startswith(PREFIX):
            marked |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    indexes = {line for line in range(1, len(lines) + 1) if _INDEXES.search(lines[line - 1])}
    found = static_findings(text, f"{name} (ported)", level=nki)
    return tuple(finding for finding in found if finding.line not in marked | indexes)


_INDEXES = re.compile(r"\.(mgrid|arange)\b")  # kept for a marked statement
