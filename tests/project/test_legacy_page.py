"""docs/legacy.md lists every name of the old namespace, from the modules themselves.

``UPDATE_DOCS=1 pytest tests/project/test_legacy_page.py`` writes its tables anew.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trnrt.nki.legacy.api import NAMES
from trnrt.nki.legacy.namespaces import CONTENTS

PAGE = Path(__file__).parents[2] / "docs" / "legacy.md"
HEADING = "## The names\n"
SHORT = {
    "neuronxcc.nki": "nki",
    "neuronxcc.nki.compiler": "ncc",
    "neuronxcc.nki.isa": "nisa",
    "neuronxcc.nki.language": "nl",
}
CONSTANT = "a constant"


def sentence(value: Any) -> str:
    """The first sentence of a function's docstring, on one line; of other values what they are."""
    if not (inspect.isfunction(value) or type(value).__name__ == "_Function"):
        return CONSTANT
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    first = re.match(r"(.*?\.)(?=\s[A-Z`]|$)", text)
    return (first[1] if first else text).replace("``", "`").replace("|", "\\|")


def tables() -> str:
    """The names of each module of SDK 2.26.1, and what they do in trnrt."""
    lines = ["All names of SDK 2.26.1, and what they do in trnrt. The tables are generated from the modules.", ""]
    for module, names in NAMES.items():
        held: Mapping[str, Any] = CONTENTS[module]()
        missing = sorted(names - set(held))
        constants = sorted(name for name in names & set(held) if sentence(held[name]) == CONSTANT)
        lines += [f"### `{module}` (`{SHORT[module]}`)", ""]
        if constants:
            lines += [f"Constants: {', '.join(f'`{name}`' for name in constants)}.", ""]
        if missing:
            lines += [f"Missing: {', '.join(f'`{name}`' for name in missing)}.", ""]
        rows: dict[str, list[str]] = {}
        for name in sorted((names & set(held)).difference(constants)):
            rows.setdefault(sentence(held[name]), []).append(f"`{SHORT[module]}.{name}`")
        lines += ["| function | what it does |", "|---|---|"]
        lines += [f"| {', '.join(alike)} | {says} |" for says, alike in rows.items()]
        lines += [""]
    return "\n".join(lines)


def test_the_tables_are_generated() -> None:
    text, heading, found = PAGE.read_text(encoding="utf-8").partition(HEADING)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(f"{text}{HEADING}\n{tables()}", encoding="utf-8")
        return
    assert (heading, found) == (HEADING, f"\n{tables()}")


def test_every_name_of_the_language_is_there() -> None:
    assert NAMES["neuronxcc.nki.language"] - set(CONTENTS["neuronxcc.nki.language"]()) == set()


@pytest.mark.parametrize("module", NAMES)
def test_functions_say_what_they_do(module: str) -> None:
    held = CONTENTS[module]()
    assert [name for name in NAMES[module] & set(held) if not sentence(held[name])] == []
