"""Flags that verbs share are declared once, and stand in groups in ``--help``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from commanding import trnrt
from typer.core import TyperGroup, TyperOption
from typer.testing import CliRunner

from trnrt.cli import app
from trnrt.commands.options import PANELS
from trnrt.commands.records import Verb, takes_records


def options(group: TyperGroup, name: str = "") -> Iterator[tuple[str, TyperOption]]:
    """(verb, option) of every verb but those for developers, and the server's, which has settings without a group."""
    for key, command in group.commands.items():
        if key in ("bench", "serve"):
            continue
        if isinstance(command, TyperGroup):
            yield from options(command, f"{name}{key} ")
            continue
        for parameter in command.params:
            if isinstance(parameter, TyperOption):
                yield f"{name}{key}", parameter


def test_every_flag_has_a_group() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found = list(options(group))
    assert len(found) > 100
    assert [f"{verb} {option.name}" for verb, option in found if option.rich_help_panel not in PANELS] == []


@pytest.mark.parametrize("verb", ["run", "validate", "predict"])
def test_help_shows_the_groups_in_their_order(verb: str) -> None:
    headings = [line.rstrip(":") for line in trnrt(verb, "--help").out.splitlines() if line and line[0] != " "][1:]
    known = ["Arguments", *PANELS, "Options"]
    assert headings == [heading for heading in known if heading in headings]
    assert {"Model and inputs", "Planning", "Device", "Output"} <= set(headings)


@dataclass(frozen=True)
class Two:
    """A record."""

    number: Annotated[int, typer.Option("--number")]
    name: Annotated[str, typer.Option("--name", rich_help_panel="Output")] = "none"


def test_a_record_becomes_flags_and_comes_back() -> None:
    one = typer.Typer(rich_markup_mode=None)
    seen: list[Any] = []

    @one.command(cls=Verb)
    @takes_records
    def verb(*, two: Two, last: Annotated[bool, typer.Option("--last")] = False) -> None:
        """A verb."""
        seen.append((two, last))

    assert CliRunner().invoke(one, ["--number", "3", "--last"]).exit_code == 0
    assert CliRunner().invoke(one, ["--number", "4", "--name", "x"]).exit_code == 0
    assert seen == [(Two(3), True), (Two(4, "x"), False)]
    assert CliRunner().invoke(one, []).exit_code == 2
