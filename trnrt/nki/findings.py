"""The kinds of findings of ``trnrt nki check``: each rule's stable code, and what it says.

The codes are data, ``finding_codes.toml``; the texts come from the tables of rules.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DATA = Path(__file__).with_name("finding_codes.toml")
RETIRED = "retired"
# Rules that are in no table: (what is wrong, what to do).
_OTHERS = {
    "syntax": ("the file is not Python", "Correct the syntax"),
    "script": ("the script stopped before its first kernel call", "Make the script run, or name the calls with --call"),
    "kernel": ("the kernel can't be traced: Python raises an error in it, or a call doesn't match its parameters", ""),
    "memory": ("the kernel's tiles do not fit SBUF or PSUM, or overlap", "The message lists the tiles alive there"),
    "unwritten-memory": (
        "the kernel reads or returns memory that nothing has written",
        "Write it first, or use less of it",
    ),
    "constant-name": ("one name means different things in the files of a kernel", "Rename one of them"),
    "api-name": ("NKI has no such name", ""),
    "api-positional": ("a function has too many positional arguments", "Follow its signature"),
    "api-argument": ("a function has no such argument, or gets it twice", "Follow its signature"),
    "api-missing": ("a required argument is missing", "Follow its signature"),
    "api-deprecated": ("the release deprecates the name", ""),
}
_ONLY_0_6 = frozenset(["constant-name"])
_WARNINGS = frozenset(["api-deprecated"])


@dataclass(frozen=True)
class Kind:
    """A kind of finding. ``says``: what is wrong, or for the hardware what must hold; ``instead``: what to do.

    ``levels``: the releases of NKI that it holds for, none for all. ``refuses``: False if it is a warning.
    """

    code: str
    rule: str
    group: str
    says: str
    instead: str = ""
    source: str = ""
    levels: tuple[str, ...] = ()
    refuses: bool = True


@cache
def load_codes() -> dict[str, dict[str, str]]:
    """Group -> rule -> code; the group ``retired`` has rules that are gone."""
    loaded: dict[str, dict[str, str]] = tomllib.loads(_DATA.read_text(encoding="utf-8"))
    return loaded


@cache
def _codes() -> dict[str, str]:
    return {rule: code for rules in load_codes().values() for rule, code in rules.items()}


def code_of(rule: str) -> str:
    """The code of a finding of this rule; the rule's name if it has none."""
    return _codes().get(rule, rule)


def kind_of(rule: str) -> Kind:
    """The kind of a finding of this rule."""
    return _kinds().get(rule, Kind(code_of(rule), rule, "file", rule))


@cache
def _kinds() -> dict[str, Kind]:
    return {kind.rule: kind for kind in kinds()}


def kinds() -> Iterator[Kind]:
    """Every kind of finding that there is, in the order of the tables of rules; those without a code have code ""."""
    from trnrt.nki.level import Level
    from trnrt.nki.machine.rules.table import RULES
    from trnrt.nki.sim.subset_rules import RULES as CONSTRUCTS

    _load_rules()
    codes = _codes()
    for rule, (says, instead) in _OTHERS.items():
        group = "api" if rule.startswith("api-") else "language" if rule in _ONLY_0_6 else "file"
        levels: tuple[str, ...] = (Level.nki_0_6.value,) if rule in _ONLY_0_6 else ()
        yield Kind(codes.get(rule, ""), rule, group, says, instead, levels=levels, refuses=rule not in _WARNINGS)
    for row in CONSTRUCTS:
        levels = () if row.levels == tuple(Level) else tuple(level.value for level in row.levels)
        says = row.message.replace("{}", "…")
        yield Kind(codes.get(row.id, ""), row.id, "language", says, row.instead, row.source, levels)
    for name, held in RULES.items():
        yield Kind(codes.get(name, ""), name, "hardware", held.says, "", held.source, refuses=held.refuses)


def _load_rules() -> None:
    """Import every family of instructions: each registers its rules, and a process has loaded those that it used."""
    from trnrt.nki.sim.instructions import OPERATIONS  # noqa: F401
