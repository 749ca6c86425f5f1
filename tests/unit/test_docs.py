"""The docs say what the code does: every operator, verb, flag and environment variable, and nothing that is not there.

``UPDATE_DOCS=1 pytest tests/unit/test_docs.py`` writes the generated pages anew.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pytest

from trnrt.planner import ops as ops
from trnrt.planner.lowering import _REGISTRY, supported_operators

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def operator_page() -> str:
    """docs/operators.md: one row an operator, from the lowering functions' docstrings."""
    lines = [
        "# Operators",
        "",
        "What trnrt lowers, generated from the lowering functions in `trnrt/planner/ops`. Anything else is refused with",
        "its node, the attribute or shape that blocks it, and a way out.",
        "",
        "| operator | what is done | file |",
        "|---|---|---|",
    ]
    for domain, operator in supported_operators():
        function = _REGISTRY[domain, operator]
        text = " ".join((inspect.getdoc(function) or "").split())
        name = f"{domain}.{operator}" if domain else operator
        lines.append(f"| {name} | {text} | `{Path(inspect.getfile(function)).name}` |")
    return "\n".join(lines) + "\n"


def test_operator_table_is_generated() -> None:
    page = DOCS / "operators.md"
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(operator_page(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == operator_page()


def test_readme_names_every_operator_and_none_that_is_missing() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## What it runs")[1].split(". ")[0]
    named = set(re.findall(r"\b[A-Z][A-Za-z]+\b", section))
    lowered = {operator for domain, operator in supported_operators() if not domain}
    assert named - {"Constant"} == lowered


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda p: p.name)
def test_pages_name_files_that_exist(page: Path) -> None:
    """A path in backquotes or in a listing is there."""
    for path in re.findall(r"`((?:trnrt|kernels|models|tests|docs)/[\w/.]+?)/?`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{page.name} names {path}"
