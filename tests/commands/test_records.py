"""Flags that verbs share are declared once, and stand in groups in ``--help``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from click.testing import CliRunner
from commanding import trnrt

from trnrt.cli import app
from trnrt.commands.verbs import PANELS, Flag, Verb, Verbs, option


def options(group: Verbs, name: str = "") -> Iterator[tuple[str, Flag]]:
    """(verb, option) of every verb but those for developers, and the server's, which has settings without a group."""
    for key, command in group.all_verbs().items():
        if key in ("bench", "serve"):
            continue
        if isinstance(command, Verbs):
            yield from options(command, f"{name}{key} ")
            continue
        for parameter in command.params:
            if isinstance(parameter, Flag):
                yield f"{name}{key}", parameter


def test_every_flag_has_a_group() -> None:
    found = list(options(app))
    assert len(found) > 100
    assert [f"{verb} {option.name}" for verb, option in found if option.panel not in PANELS] == []


@pytest.mark.parametrize("verb", ["run", "validate", "predict"])
def test_help_shows_the_groups_in_their_order(verb: str) -> None:
    headings = [line.rstrip(":") for line in trnrt(verb, "--help").out.splitlines() if line and line[0] != " "][1:]
    known = ["Arguments", *PANELS, "Options"]
    assert headings == [heading for heading in known if heading in headings]
    assert {"Model and inputs", "Planning", "Device", "Output"} <= set(headings)


@dataclass(frozen=True)
class Two:
    """A record."""

    number: Annotated[int, option("--number")]
    name: Annotated[str, option("--name", panel="Output")] = "none"


def test_a_record_becomes_flags_and_comes_back() -> None:
    seen: list[Any] = []

    def verb(*, two: Two, last: Annotated[bool, option("--last")] = False) -> None:
        """A verb."""
        seen.append((two, last))

    one = Verb(verb)
    assert CliRunner().invoke(one, ["--number", "3", "--last"]).exit_code == 0
    assert CliRunner().invoke(one, ["--number", "4", "--name", "x"]).exit_code == 0
    assert seen == [(Two(3), True), (Two(4, "x"), False)]
    assert CliRunner().invoke(one, []).exit_code == 2
