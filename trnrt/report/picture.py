"""A profile as one SVG picture: its engines over time, its live SBUF, and what holds it. For a README or a notebook."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING

from trnrt.nki.machine.program import MemoryRegion
from trnrt.nki.machine.timing import PS_PER_US, Timeline
from trnrt.report.timeline import bytes_held, step_finder, tile_spans
from trnrt.text import name_text, range_text, size_text, time_text

if TYPE_CHECKING:
    from trnrt.nki.profiling import Profile

THEMES: Mapping[str, Mapping[str, str]] = {
    "light": {
        "page": "#ffffff",
        "lane": "#f3f5f7",
        "text": "#1b2430",
        "muted": "#57606d",
        "line": "#d9dee4",
        "launch": "#dfe3e9",
    },
    "dark": {
        "page": "#11151a",
        "lane": "#1b2129",
        "text": "#e4e9ef",
        "muted": "#a0acba",
        "line": "#333c47",
        "launch": "#39434f",
    },
}
_COLOURS = ("#3f78c9", "#e08a2c", "#3f9d6d", "#c6565b", "#8a6cc2", "#2f9aa8")
_NO_COLOUR = "#8793a1"

_WIDTH, _LEFT, _RIGHT = 960, 96, 16
_TOP, _LANE, _GAP, _MEMORY = 92, 20, 6, 64
_TICKS = 6
_JOINED, _THIN = 0.6, 0.5
"""Pixels: bars of one colour that are closer are one, and none is thinner."""


def profile_svg(profile: Profile, title: str, theme: str = "light") -> str:
    """The picture as an SVG document in ASCII. ``theme``: "light" or "dark". Its names can't become markup."""
    colours = THEMES[theme]
    timeline = max(profile.cores, key=lambda core: core.duration)
    scale = _Scale(timeline)
    lanes = sorted(set(timeline.lane))
    bottom = _TOP + len(lanes) * (_LANE + _GAP)
    height = bottom + _MEMORY + 74
    heading = f"{name_text(title)}: {profile.dtype} on {profile.target}"
    rows = "" if profile.batch is None else f", batch {profile.batch}"
    found = f"{range_text(profile.benchmark)} predicted{rows}"
    body = [
        f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="{colours["page"]}"/>',
        _text(16, 30, heading, colours["text"], "font-size:17px;font-weight:650"),
        _text(16, 52, found, colours["text"], "font-size:14px"),
        *(part for number, lane in enumerate(lanes) for part in _lane(timeline.lanes[lane], number, colours)),
        *_axis(scale, bottom + _MEMORY + 10, colours),
        *_launch(scale, bottom, colours),
    ]
    for number, lane in enumerate(lanes):
        body += _bars(profile, timeline, lane, scale, _TOP + number * (_LANE + _GAP))
    body += _memory(timeline, scale, bottom + 8, colours)
    legend = "A colour: a step, one kernel call for one or more ONNX nodes. Grey: the weights that are loaded ahead."
    if any(step.nodes for step in profile.steps):
        body.append(_text(_LEFT, height - 14, legend, colours["muted"]))
    label = escape(f"{heading}: {found}", quote=True)
    font = "font-family:system-ui,Segoe UI,Roboto,Helvetica,Arial,sans-serif;font-size:12.5px"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" style="{font}"'
    text = f'{opening} aria-label="{label}">\n' + "\n".join(body) + "\n</svg>\n"
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


class _Scale:
    """The launch and the timeline across the picture, in pixels."""

    def __init__(self, timeline: Timeline) -> None:
        self.launch = round(timeline.timing.benchmark_ns * PS_PER_US / 1000)
        self.whole = max(1, self.launch + timeline.duration)
        self.left, self.width = _LEFT, _WIDTH - _LEFT - _RIGHT

    def x(self, picoseconds: int) -> float:
        """The place of a time, counted from the first instruction."""
        return self.left + (picoseconds + self.launch) / self.whole * self.width


def _lane(name: str, number: int, colours: Mapping[str, str]) -> Iterator[str]:
    y = _TOP + number * (_LANE + _GAP)
    yield _box(_LEFT, y, _WIDTH - _LEFT - _RIGHT, _LANE, colours["lane"])
    yield _text(_LEFT - 10, y + 14, name, colours["muted"], anchor="end")


def _axis(scale: _Scale, y: int, colours: Mapping[str, str]) -> Iterator[str]:
    """Ticks at round times since the launch began."""
    size, unit = (PS_PER_US, "us") if scale.whole < 10_000 * PS_PER_US else (1000 * PS_PER_US, "ms")
    whole = scale.whole / size
    power = 10.0 ** math.floor(math.log10(whole / _TICKS))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= whole / _TICKS)
    for tick in range(int(whole / step) + 1):
        x = scale.left + tick * step / whole * scale.width
        yield f'<path d="M{x:.1f} {_TOP}V{y}" stroke="{colours["line"]}"/>'
        anchor = "end" if x > _WIDTH - 40 else "middle"
        yield _text(x, y + 18, f"{tick * step:,.6g} {unit}", colours["muted"], anchor=anchor)


def _launch(scale: _Scale, bottom: int, colours: Mapping[str, str]) -> Iterator[str]:
    """The fixed start and end of the program, as a block before the first instruction."""
    width = scale.x(0) - scale.left
    yield _box(scale.left, _TOP, width, bottom - _TOP - _GAP, colours["launch"])
    text = f"launch {time_text(scale.launch / PS_PER_US)}, a fixed cost of each call"
    yield _text(scale.left, _TOP - 9, text, colours["muted"])


def _bars(profile: Profile, timeline: Timeline, lane: int, scale: _Scale, y: int) -> Iterator[str]:
    """The bars of a lane, a path for each colour."""
    find = step_finder(profile.steps)
    program = timeline.program.instructions
    named = any(step.nodes for step in profile.steps)
    paths: dict[str, list[str]] = defaultdict(list)
    order = sorted((k for k, own in enumerate(timeline.lane) if own == lane), key=timeline.start.__getitem__)
    spans = []
    for issue in order:
        step = find(program[timeline.instruction[issue]].line)
        own = step >= 0 and (not named or bool(profile.steps[step].nodes))
        colour = _COLOURS[step % len(_COLOURS)] if own else _NO_COLOUR
        spans.append((colour, scale.x(timeline.start[issue]), scale.x(timeline.end[issue])))
    for colour, left, right in _merge(spans):
        width = max(right - left, _THIN)
        paths[colour].append(f"M{left:.1f} 0h{width:.1f}v{_LANE - 4}h-{width:.1f}z")
    for colour, bars in paths.items():
        yield f'<path fill="{colour}" transform="translate(0 {y + 2})" d="{"".join(bars)}"/>'


def _merge(spans: Iterable[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Bars that don't overlap: neighbours of one colour that touch are one, and a later bar begins after an earlier."""
    merged: list[tuple[str, float, float]] = []
    for colour, left, right in spans:
        if merged and merged[-1][0] == colour and left - merged[-1][2] < _JOINED:
            merged[-1] = (colour, merged[-1][1], max(right, merged[-1][2]))
        elif not merged or right > merged[-1][2]:
            merged.append((colour, max(left, merged[-1][2]) if merged else left, right))
    return merged


def _memory(timeline: Timeline, scale: _Scale, y: int, colours: Mapping[str, str]) -> Iterator[str]:
    """The live bytes of SBUF as an area: up to the target's capacity, or up to the most where that is little."""
    capacity = timeline.program.target.sbuf_usable_bytes
    curve = bytes_held(tile_spans(timeline), MemoryRegion.sbuf)
    most = max((held for _, held in curve), default=0)
    top = capacity if most > capacity / 4 else max(1, most) * 2
    yield _box(_LEFT, y, scale.width, _MEMORY, colours["lane"])
    yield _text(_LEFT - 10, y + 14, "SBUF", colours["muted"], anchor="end")
    yield _text(_LEFT - 10, y + 30, "live bytes", colours["muted"], anchor="end")
    heights: list[tuple[float, float]] = []
    for moment, held in curve:
        x, height = round(scale.x(moment), 1), round(y + _MEMORY * (1 - held / top), 1)
        if heights and x - heights[-1][0] < 1:
            heights[-1] = (heights[-1][0], min(height, heights[-1][1]))
        else:
            heights.append((x, height))
    if heights:
        path = "".join(f"H{x}V{height}" for x, height in heights)
        yield f'<path fill="{_COLOURS[0]}" fill-opacity="0.5" d="M{heights[0][0]} {y + _MEMORY}{path}V{y + _MEMORY}z"/>'
    share = f"at most {size_text(most)} of {size_text(capacity)} a partition"
    yield _text(_LEFT + scale.width - 8, y + 15, share, colours["text"], anchor="end")


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, colour: str, style: str = "", anchor: str = "start") -> str:
    """One line of text; what it says is data."""
    attributes = f' style="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}"{attributes}>{escape(text)}</text>'
