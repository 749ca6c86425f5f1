"""Pages without rich: the same lines as rich makes."""

from __future__ import annotations

import random
from io import StringIO

import pytest
from rich.console import Console

from trnrt.report.console import render
from trnrt.report.layout import Line, plain_table, plain_text

WORDS = ("a", "bb", "c-d", "(x,", "yyyyy", " ", "   ")


def rich_text(line: Line, width: int) -> str:
    page = StringIO()
    Console(file=page, width=width, markup=False, emoji=False, highlight=False).print(line, crop=False)
    return "".join(f"{one.rstrip()}\n" for one in page.getvalue().splitlines())


def test_long_lines_are_wrapped_as_rich_does() -> None:
    generator, wrapped = random.Random(0), 0
    for _ in range(200):
        line = Line("".join(generator.choices(WORDS, k=generator.randint(1, 30))))
        width = generator.randint(6, 30)
        plain = plain_text([line], width)
        assert plain in (None, rich_text(line, width)), line
        wrapped += plain is not None and plain.count("\n") > 1
    assert wrapped > 50


@pytest.mark.parametrize("columns", [20, 40, 60, 200])
def test_no_column_is_lost_on_a_narrow_page(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    names = ("step", "nodes", "time us", "share", "bound", "HBM bytes")
    page = render(
        [plain_table(names, [("conv", "conv, relu", "4.12", "45.3%", "DMA latency", "62,720")], right=(2, 3, 5))]
    )
    assert all(word in page for word in ("step", "nodes", "time us", "share", "bound", "HBM bytes"))
    assert all(word in page for word in ("conv", "relu", "4.12", "45.3%", "DMA", "62,720"))


def test_a_word_wider_than_the_page_is_left_to_rich() -> None:
    assert plain_text([Line("a word")], 3) is None
    assert plain_text([Line("a word")], 4) == "a\nword\n"
