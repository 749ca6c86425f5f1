"""The docs say what the code does: every operator, verb, flag and environment variable, and nothing that is not there.

``UPDATE_DOCS=1 pytest tests/unit/test_docs.py`` writes the generated pages anew.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from profiles import made_profile
from typer.core import TyperArgument, TyperGroup, TyperOption

from trnrt.cli import app
from trnrt.nki.checking import Report
from trnrt.nki.machine.timing.steps import BOUNDS
from trnrt.planner import ops as ops
from trnrt.planner.lowering import _REGISTRY, supported_operators
from trnrt.report.documents import nki_profile_document, profile_document
from trnrt.report.profiles import step_uses_table
from trnrt.report.summary import summary_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def operator_page() -> str:
    """docs/operators.md: one row an operator, from the lowering functions' docstrings."""
    lines = [
        "# Operators",
        "",
        "What trnrt lowers, generated from the functions in `trnrt/planner/ops`. Anything else is refused with",
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


def verbs(group: TyperGroup, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb with its whole name, those of groups included."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from verbs(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def command_page() -> str:
    """docs/cli.md: every verb with its arguments and flags, from the commands themselves."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    lines = [
        "# The command line",
        "",
        "Generated from the commands, but for [Reading a profile](#reading-a-profile) at the end. Every verb exits",
        "with 0 for success, 1 where the answer is no (a mismatch, an unsupported model, a regression), and 2 where",
        "the request was wrong (a bad file, flag or input, or a file that can't be written).",
        "",
    ]
    for name, command in verbs(group):
        arguments = " ".join(p.name.upper() for p in command.params if isinstance(p, TyperArgument) and p.name)
        lines += [f"## trnrt {name} {arguments}".rstrip(), "", " ".join((command.help or "").split()), ""]
        lines += ["| flag | meaning |", "|---|---|"]
        for parameter in command.params:
            if isinstance(parameter, TyperOption) and not parameter.hidden:
                flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
                lines.append(f"| {flags} | {' '.join((parameter.help or '').split()).replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


BY_HAND = "# Reading a profile\n"


def test_command_reference_is_generated() -> None:
    page = DOCS / "cli.md"
    generated, heading, rest = page.read_text(encoding="utf-8").partition(BY_HAND)
    if os.environ.get("UPDATE_DOCS"):
        generated = f"{command_page()}\n"
        page.write_text(generated + heading + rest, encoding="utf-8")
    assert generated == f"{command_page()}\n"


def test_reading_a_profile_names_every_key_column_and_name_of_the_profiler() -> None:
    text = (DOCS / "cli.md").read_text(encoding="utf-8").partition(BY_HAND)[2]
    profile = made_profile()
    document = profile_document("m", profile, version="1")
    nested = (document["predicted_us"], document["steps"][0], document["engines"]["dma"], document["roofline"])
    columns = [str(column.header) for column in step_uses_table(profile).columns]
    report = nki_profile_document(Report("f", "trn2"), [], version="1")
    wanted = [*document, *report, *(key for keys in nested for key in keys), *columns, *summary_of(profile), *BOUNDS]
    assert [name for name in wanted if f"`{name}`" not in text] == []


def test_every_environment_variable_is_documented() -> None:
    used = set()
    for path in (ROOT / "trnrt").rglob("*.py"):
        used |= set(re.findall(r'"((?:TRNRT|NEURON)_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *DOCS.glob("*.md")])
    assert used and all(name in pages for name in used), used


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
