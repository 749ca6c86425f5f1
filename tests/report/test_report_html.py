"""The HTML report: one file that loads nothing, in which no name becomes markup or code."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from timelines import LANES, line_steps, matmul_program, paced, profile_of

from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.machine.timing import Timeline
from trnrt.nki.profiling import Profile, Roofline
from trnrt.report.page import report_html
from trnrt.report.page.parts import share_text
from trnrt.report.timeline import NO_STEP, bytes_held, stack_rows, step_finder, tile_spans
from trnrt.text import range_text, size_text, time_text

HOSTILE = "</script><!--<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x1b"


CODE = ("script", "style")


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts by their id."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = (dict(attrs).get("id") or tag) if tag in CODE else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data
        elif data.strip():
            self.words.append(data.strip())

    @property
    def data(self) -> Any:
        return json.loads(self.scripts["data"], parse_constant=lambda constant: pytest.fail(f"{constant} in JSON"))


def matmul_profile(**changes: Any) -> Profile:
    return profile_of(paced(matmul_program()), **changes)


def test_the_page_loads_nothing() -> None:
    text = report_html(matmul_profile(), "matmul")
    page = Page(text)
    assert text.isascii()
    assert not re.search(
        r"""(src|href|action|poster|srcset)\s*=\s*["']?\s*(?!data:,)[^"'\s>]*[:/]""", text.split("<script")[0]
    )
    assert not re.search(
        r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)|fetch\(|XMLHttp|WebSocket|import\(|\beval\b", text
    )
    loading = {"img", "iframe", "object", "embed", "base", "form", "video", "audio"}
    assert not {tag for tag, _ in page.tags} & loading
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_names_are_never_set_as_markup() -> None:
    code = Page(report_html(matmul_profile(), "matmul")).scripts["script"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setAttribute\(.on|new Function", code)


def hostile_profile() -> Profile:
    """Every name of a profile that a model, a kernel or a file could choose."""
    program = matmul_program()
    for storage in program.storages:
        storage.name = HOSTILE
        storage.source = storage.source._replace(file=HOSTILE, function=HOSTILE)
    for instruction in program.instructions:
        instruction.name = HOSTILE
        instruction.source = instruction.source._replace(file=HOSTILE, function=HOSTILE)
    program.kernel = HOSTILE
    timeline = replace(paced(program), notes=(HOSTILE,))
    steps = [replace(step, name=HOSTILE, nodes=(HOSTILE,) * 6) for step in line_steps(timeline)]
    return profile_of(timeline, steps=steps, dtype=HOSTILE)


def test_hostile_names_stay_text() -> None:
    harmless = Page(report_html(matmul_profile(), "matmul"))
    page = Page(report_html(hostile_profile(), HOSTILE))
    tags = {tag for tag, _ in page.tags}
    assert tags - {"details", "summary", "section", "ul", "li", "h2"} <= {tag for tag, _ in harmless.tags}
    assert "img" not in tags
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    assert page.scripts["script"] == harmless.scripts["script"]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "</script><!--<script>alert(1)</script>" in page.data["steps"][0]["name"]
    assert any(words.startswith("</script><!--<script>") for words in page.words)
    assert "\u202e" not in "".join(page.words) and "\x1b" not in "".join(page.words)


def test_the_columns_are_the_timeline() -> None:
    timeline = paced(matmul_program())
    core = Page(report_html(profile_of(timeline), "matmul")).data["cores"][0]
    start = [sum(core["spans"]["start"][: k + 1]) for k in range(len(core["spans"]["start"]))]
    end = [first + length for first, length in zip(start, core["spans"]["length"], strict=True)]
    transfers = timeline.transfers
    assert start == timeline.start + [transfer.triggered for transfer in transfers]
    assert end == timeline.end + [transfer.trigger_end for transfer in transfers]
    assert core["spans"]["lane"] == timeline.lane + [transfer.lane for transfer in transfers]
    assert core["issues"] == {"instruction": timeline.instruction, "waited": [0, 1, 1, 1, 1]}
    assert core["duration"] == timeline.duration and core["lanes"] == list(timeline.lanes)
    assert [core["memories"][k]["capacity"] for k in range(2)] == [212_992, 16_384]


def test_the_numbers_are_readable_without_the_script() -> None:
    profile = matmul_profile(notes=("no table loads were modelled",))
    words = " ".join(Page(report_html(profile, "matmul")).words)
    for text in (
        range_text(profile.benchmark),
        range_text(profile.profiler),
        "total_time",
        "12.3 %",
        "45.6 %",
        "576.0 KiB",
        "batch 8",
        "DMA latency",
        profile.steps[0].nodes[0],
    ):
        assert text in words, text
    assert "no table loads were modelled" in words


@pytest.mark.parametrize("compared", [True, False])
def test_a_target_that_was_never_compared_is_marked(compared: bool) -> None:
    text = report_html(matmul_profile(compared=compared), "matmul")
    assert ("Never compared with a measurement" in text) is not compared


def test_a_profile_of_nothing_is_a_page() -> None:
    program = matmul_program()
    program.instructions.clear()
    nothing = Timeline(program, LANES, [], [], [], [], [], [], dict.fromkeys(LANES, 0), 0, timing=program.target.timing)
    profile = profile_of(nothing, steps=(), mfu=float("nan"), roofline=Roofline(float("inf"), 0.0, 22.8, 2900.0))
    page = Page(report_html(profile, "nothing"))
    assert page.data["roofline"]["intensity"] is None and "Timeline and source" in page.words


def test_spans_of_a_row_do_not_overlap() -> None:
    lanes, starts, ends = [0, 0, 0, 1, 0, 0], [0, 5, 10, 5, 12, 12], [10, 12, 20, 6, 12, 13]
    assert stack_rows(lanes, starts, ends) == [0, 1, 0, 0, 1, 2]


def test_a_step_covers_its_lines() -> None:
    first = line_steps(paced(matmul_program()))[0]
    steps = [replace(first, lines=lines) for lines in ((10, 19), (20, 20), (30, 39))]
    find = step_finder(steps)
    assert [find(line) for line in (9, 10, 19, 20, 21, 39, 40)] == [NO_STEP, 0, 0, 1, NO_STEP, 2, NO_STEP]
    rest = step_finder([*steps, replace(first, lines=(0, 0))])
    assert [rest(line) for line in (9, 10, 40)] == [3, 0, 3]


def test_a_tile_lives_from_its_first_to_its_last_use() -> None:
    timeline = paced(matmul_program())
    spans = {tile.storage.name: tile for tile in tile_spans(timeline)}
    assert (spans["product"].start, spans["product"].end) == (timeline.start[2], timeline.end[3])
    assert (spans["stationary"].start, spans["stationary"].end) == (timeline.start[0], timeline.end[2])
    assert set(spans) == {"product", "stationary", ""} and spans[""].label.endswith("in matmul_kernel")
    assert bytes_held(tile_spans(timeline), MemoryRegion.psum) == [(timeline.start[2], 2048), (timeline.end[3], 0)]


def test_tiles_on_other_partitions_of_the_same_bytes_count_once() -> None:
    tile = next(tile for tile in tile_spans(paced(matmul_program())) if tile.storage.name == "stationary")
    below = replace(tile, partition=64, start=tile.start + 10, end=tile.end + 10)
    curve = bytes_held([tile, below], MemoryRegion.sbuf)
    assert [held for _, held in curve] == [512, 512, 512, 0]


def test_texts_of_times_and_shares() -> None:
    times = (0, 0.0123, 0.9996, 1.5, 16.482, 123.45, 999.6, 1234.5, 9_999.0, 1.2e7, float("nan"))
    assert [time_text(value) for value in times] == [
        "0 us", "12.3 ns", "1.00 us", "1.50 us", "16.5 us", "123 us", "1.00 ms", "1.23 ms", "10.0 ms", "12.0 s", "-"
    ]  # fmt: skip
    assert [size_text(value) for value in (0, 148.4, 2048, 107_393_144)] == [
        "0 bytes", "148 bytes", "2.0 KiB", "102.4 MiB"
    ]  # fmt: skip
    assert [share_text(value) for value in (0.0, 0.0012, 0.5, float("nan"))] == ["0.0 %", "0.12 %", "50.0 %", "-"]
