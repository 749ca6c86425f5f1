"""The source in the HTML report: which lines are shown, what they cost, and that a file's text is data."""

from __future__ import annotations

import json
import linecache
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from timelines import matmul_program, paced, profile_of

from trnrt.nki.bottleneck import Bottleneck, Place
from trnrt.nki.profiling import Profile, profile_programs
from trnrt.report.page import report_html
from trnrt.report.page.columns import report_data
from trnrt.report.page.sources import shown_spans

HOSTILE = "</script><!--<script>alert(1)</script>\u202e"

SOURCE = """import os

X = 1


@decorated
def first(a):
    return a


class Second:
    def inner(self):
        return 2


def third():
    pass
"""


def spans(*used: int, source: str = SOURCE) -> list[tuple[int, int]]:
    return shown_spans(source.splitlines(keepends=True), used)


def test_functions_with_instructions_are_shown_whole() -> None:
    assert spans(8) == [(6, 8)], "with its decorators"
    assert spans(13, 8) == [(6, 8), (11, 13)]
    assert spans(17) == [(16, 17)]
    assert spans() == []


def test_a_line_outside_of_functions_has_its_surroundings() -> None:
    assert spans(3) == [(1, 15)]
    assert spans(2, source="def f(:\n    x\n") == [(1, 2)], "what does not parse is text"
    assert spans(0, 99) == [], "lines that are not there"


def test_of_a_very_long_function_only_the_surroundings_are_shown() -> None:
    source = "def f():\n" + "    pass\n" * 3000
    assert spans(1000, 2000, 2010, source=source) == [(988, 1012), (1988, 2022)]


@pytest.fixture
def hostile_source(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "evil.py"
    path.write_text(f"def f():\n\tx = '{HOSTILE}'\n\t# {'y' * 1000}\n\treturn x\n", encoding="utf-8")
    yield str(path)
    linecache.clearcache()


def moved_to(file: str, line: int) -> Profile:
    """The small product's profile, all of whose instructions come from a line of another file."""
    program = matmul_program()
    program.file = file
    for instruction in program.instructions:
        instruction.source = instruction.source._replace(file=file, line=line)
        instruction.line = line
    return profile_programs([program])


def test_the_source_is_data(hostile_source: str) -> None:
    profile = moved_to(hostile_source, 2)
    text = report_html(profile, "evil")
    assert text.count("</script>") == 2 and "alert(1)</script>" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    ((first, lines),) = data["sources"][0]["parts"]
    assert (first, data["sources"][0]["name"]) == (1, "evil.py")
    assert lines[1] == "        x = '</script><!--<script>alert(1)</script>\\u202e'", "tabs become spaces"
    assert len(lines[2]) == 240 and lines[2].endswith("...")


def test_lines_cost_what_the_profile_says(hostile_source: str) -> None:
    profile = moved_to(hostile_source, 2)
    data = report_data(profile)
    (line,) = data["lines"]
    assert (line["file"], line["line"], line["instructions"]) == (0, 2, 5)
    assert line["path"] == profile.timeline.duration and line["share"] == 1
    assert data["entry"] == 0 and data["places"] == [(data["places"][0][0], 0, 2)]


def test_files_of_one_name_have_their_folders(tmp_path: Path) -> None:
    profile = profile_programs([matmul_program()])
    program = profile.timeline.program
    for number, instruction in enumerate(program.instructions):
        instruction.source = instruction.source._replace(file=f"{tmp_path}/{number % 2}/helper.py")
    names = [source["name"] for source in report_data(profile)["sources"]]
    assert names == ["timelines.py", "0/helper.py", "1/helper.py"]


def test_a_source_that_is_gone_leaves_an_empty_pane() -> None:
    data = report_data(moved_to("/nowhere/kernel.py", 3))
    assert [source["parts"] for source in data["sources"]] == [[]]


def test_the_bottleneck_is_text() -> None:
    place = Place(HOSTILE, "", 0, 1.0)
    found = Bottleneck("DMA data", 0.5, 1.0, 2, (place,), 0, f"{HOSTILE} holds 50 %.", f"Try {HOSTILE}.")
    text = report_html(replace(profile_of(paced(matmul_program())), bottleneck=found), "x")
    assert "&lt;/script&gt;&lt;!--&lt;script&gt;alert(1)&lt;/script&gt;\\u202e holds 50 %." in text
    assert text.count("</script>") == 2


def test_a_page_without_a_bottleneck_has_no_sentence() -> None:
    assert 'id="bottleneck"' not in report_html(profile_of(paced(matmul_program())), "x")


def test_a_real_profile_has_its_sentence_at_the_top() -> None:
    profile: Any = profile_programs([matmul_program()])
    text = report_html(profile, "matmul")
    assert profile.bottleneck.sentence in text
    assert text.index(profile.bottleneck.sentence) < text.index("Latency, predicted")
