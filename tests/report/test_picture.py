"""The picture of a profile: well-formed, small, readable, and its names stay text."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from contrast import contrast
from timelines import line_steps, matmul_program, paced, profile_of

from trnrt.report.picture import THEMES, profile_svg
from trnrt.text import range_text

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</svg><script>alert(1)</script>\"'&\u202e"


def texts(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("theme", THEMES)
def test_the_headline_the_lanes_and_the_launch_are_there(theme: str) -> None:
    timeline = paced(matmul_program())
    profile = profile_of(timeline)
    svg = profile_svg(profile, "matmul", theme)
    words = texts(svg)
    assert svg.isascii() and len(svg) < 6000
    assert f"{range_text(profile.benchmark)} predicted, batch 8" in words
    assert {timeline.lanes[lane] for lane in timeline.lane} < set(words)
    assert any(word.startswith("launch 7.40 us") for word in words)
    assert "at most 2.5 KiB of 208.0 KiB a partition" in words


def test_bars_lie_where_the_timeline_has_them() -> None:
    timeline = paced(matmul_program())
    bars = [
        (float(left), float(width))
        for path in ElementTree.fromstring(profile_svg(profile_of(timeline), "matmul")).iter(f"{SVG}path")
        for left, width in re.findall(r"M([\d.]+) 0h([\d.]+)v", path.get("d", ""))
    ]
    launch = timeline.timing.benchmark_ns * 1000
    scale = (960 - 96 - 16) / (launch + timeline.duration)
    tensor = timeline.lane.index(0)
    start, length = timeline.start[tensor], timeline.end[tensor] - timeline.start[tensor]
    assert min(abs(left - 96 - scale * (launch + start)) + abs(width - scale * length) for left, width in bars) < 0.2
    assert all(left >= 96 and left + width <= 960 - 16 + 0.1 for left, width in bars)


def test_a_name_can_not_become_markup() -> None:
    timeline = paced(matmul_program())
    steps = [replace(step, name=HOSTILE, nodes=(HOSTILE,)) for step in line_steps(timeline)]
    svg = profile_svg(profile_of(timeline, steps=steps), HOSTILE)
    assert "<script" not in svg and any(word.startswith("</svg><script>alert(1)</script>") for word in texts(svg))


@pytest.mark.parametrize("theme", THEMES)
def test_every_text_stands_out_from_what_is_behind_it(theme: str) -> None:
    colours = THEMES[theme]
    for text in ("text", "muted"):
        for page in ("page", "lane"):
            assert contrast(colours[text], colours[page]) >= 4.5
