"""The HTML report's text: readable without its script and its pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from trnrt.nki.machine.targets import overlay_of
from trnrt.nki.profiling import Profile, StepUse
from trnrt.report.profiles import wide_text
from trnrt.report.verdict import Tried, verdict_of
from trnrt.text import count_text, escape_text, name_text, range_text, significant_text, size_text, time_text

_NODES_SHOWN = 4


def headline(profile: Profile) -> str:
    """The kernel, target, dtype, batch and cores."""
    parts = [profile.kernel, profile.target, profile.dtype]
    parts += [] if profile.batch is None else [f"batch {profile.batch}"]
    parts += [] if len(profile.cores) == 1 else [count_text(len(profile.cores), "core")]
    return "".join(f"<li>{_text(part)}</li>" for part in parts)


def marks(profile: Profile) -> str:
    """Notes on the reliability of the numbers."""
    wide = f'<p class="mark warning" id="too-wide"><strong>{_text(wide_text(profile.benchmark))}.</strong></p>'
    return _compared_mark(profile) + (wide if profile.benchmark.too_wide else "")


def _compared_mark(profile: Profile) -> str:
    overlay = overlay_of(profile.target)
    if overlay is not None:
        return f'<p class="mark" id="timing">{_text(overlay.describe())}.</p>'
    if profile.compared:
        return '<p class="mark">Predicted by a model that was compared with measurements of this target.</p>'
    return (
        '<p class="mark warning" id="not-compared"><strong>Never compared with a measurement.</strong> '
        f"The model of {_text(profile.target)} rests on documented parameters alone.</p>"
    )


def verdict(profile: Profile, tried: Sequence[Tried] = ()) -> str:
    """The cause of the latency, and changes to try; "" without instructions. ``tried``: see ``verdict_of``."""
    found = verdict_of(profile, tried)
    if found is None:
        return ""
    tries = "".join(f"<li>Try {_text(advice.text)}</li>" for advice in found.advice)
    return f'<p class="verdict" id="verdict">{_text(found.sentence)}</p>' + (
        f'<ul class="tries" id="tries">{tries}</ul>' if tries else ""
    )


def bottleneck(profile: Profile) -> str:
    """The sentence on the bottleneck, with its advice; "" for a kernel without instructions."""
    found = profile.bottleneck
    if found is None:
        return ""
    advice = f' <span id="advice">{_text(found.advice)}</span>' if found.advice else ""
    return f'<p class="bottleneck" id="bottleneck">{_text(found.sentence)}{advice}</p>'


def facts(profile: Profile) -> str:
    """The numbers at the top."""
    found = [
        (
            "Latency, predicted",
            range_text(profile.benchmark),
            "what a benchmark of many runs measures, and its range; all shares are of this"
            f"{'' if profile.fits else '; the kernel does not fit'}",
        ),
        (
            "A profiler's total_time",
            range_text(profile.profiler),
            "the same run by another clock: with the whole of the program's start and end",
        ),
        ("MFU", share_text(profile.mfu), "of the tensor engine's peak"),
        ("MBU", share_text(profile.mbu), "of the HBM bandwidth"),
        ("HBM traffic", size_text(profile.hbm_bytes), _read_and_written(profile)),
        ("DMA transfers", f"{profile.dma_transfer_count:,}", count_text(profile.dma_packets, "packet")),
        ("Instructions", f"{profile.instructions:,}", f"{significant_text(profile.flops / 1e6)} MFLOP"),
        ("SBUF and PSUM peak", _peaks(profile), "a partition, alive at once in the program's order"),
    ]
    return "".join(
        f"<div><dt>{_text(name)}</dt><dd>{_text(value)}<small>{_text(note)}</small></dd></div>"
        for name, value, note in found
    )


def step_table(profile: Profile) -> str:
    """A row for each step; its button shows it in the timeline."""
    longest = max((step.share for step in profile.steps), default=0.0)
    rows = [_step_row(number, step, longest) for number, step in enumerate(profile.steps)]
    heads = ("Step", "ONNX nodes", "Time", "Share", "Bound", "MFU", "HBM bytes", "Instructions")
    if any(step.nodes for step in profile.steps):
        return table("Steps", heads, rows, numeric=(2, 3, 5, 6, 7))
    return table("Steps", heads[:1] + heads[2:], [row[:1] + row[2:] for row in rows], numeric=(1, 2, 4, 5, 6))


def engine_table(profile: Profile) -> str:
    """A row for each engine, with its busy time."""
    rows = [[_text(name), _text(time_text(use.busy_us)), _bar(use.share, 1.0)] for name, use in profile.engines.items()]
    return table("Engines", ("Engine", "Busy", "Share"), rows, numeric=(1, 2))


def breakdown_table(profile: Profile) -> str:
    """A row for each part of the critical path: its time, and its time in a program that only loads and stores."""
    breakdown = profile.breakdown
    rows = [
        [
            _text(part.part),
            "fixed" if part.fixed else "data",
            _text(time_text(part.time_us)),
            _bar(part.time_us / profile.benchmark_us, 1.0),
            "-" if part.floor_us is None else _text(time_text(part.floor_us)),
        ]
        for part in breakdown.parts
    ]
    floor_note = ""
    if breakdown.floor_us is not None and breakdown.ratio is not None:
        floor = f"To load the inputs and store the outputs, with nothing between, takes {time_text(breakdown.floor_us)}"
        floor_note = f"<p>{_text(floor)}; this is {breakdown.ratio:,.2f} times that.</p>"
    return table("Critical path", ("Part", "Kind", "Time", "Share", "Floor"), rows, numeric=(2, 3, 4)) + floor_note


def causes_table(profile: Profile) -> str:
    """A row for each cause of a wide range: the range due to it alone, how to pin it, and its source."""
    rows = [
        [
            _text(cause.name),
            _text(time_text(cause.range.least_us)),
            _text(time_text(cause.range.most_us)),
            f"<code>{_text(cause.pin)}</code>" if cause.pin else "-",
            _text(cause.source),
        ]
        for cause in profile.causes
    ]
    if not rows:
        return "<p>Nothing that is uncertain changes this prediction.</p>"
    heads = ("Cause, alone", "Least", "Most", "To pin it, write in the kernel", "What the interval comes from")
    whole = f"The prediction is {range_text(profile.benchmark)}, with all causes together"
    return f"<p>{_text(whole)}.</p>" + table("What makes the range wide", heads, rows, numeric=(1, 2))


def notes(profile: Profile) -> str:
    """The timing model's assumptions."""
    found = list(dict.fromkeys([*profile.notes, *(note for core in profile.cores for note in core.notes)]))
    if not found:
        return ""
    items = "".join(f"<li>{_text(note)}</li>" for note in found)
    card = '<section class="card" aria-labelledby="notes"><h2 id="notes">Notes</h2>'
    return f'{card}<ul class="notes">{items}</ul></section>'


def share_text(share: float) -> str:
    """A share of 1 in percent."""
    if not math.isfinite(share):
        return "-"
    return f"{share * 100:.{1 if abs(share) >= 0.01 or share == 0 else 2}f} %"


def _peaks(profile: Profile) -> str:
    return f"{size_text(profile.sbuf_peak_bytes)} / {size_text(profile.psum_peak_bytes)}"


def _read_and_written(profile: Profile) -> str:
    return f"{size_text(profile.hbm_read_bytes)} read, {size_text(profile.hbm_write_bytes)} written"


def _step_row(number: int, step: StepUse, longest: float) -> list[str]:
    name = f'<button type="button" class="link" data-step="{number}">{_text(step.name)}</button>'
    return [
        f'<span class="step"><i class="swatch" data-swatch="{number}"></i>{name}</span>',
        _nodes(step.nodes),
        _text(time_text(step.time_us)),
        _bar(step.share, longest),
        f'<span class="bound">{_text(step.bound)}</span>',
        _text(share_text(step.mfu)),
        _text(size_text(step.hbm_bytes)),
        f"{step.instructions:,}",
    ]


def _nodes(nodes: Sequence[str]) -> str:
    names = ", ".join(name_text(node) for node in nodes)
    if len(nodes) <= _NODES_SHOWN:
        return f'<span class="names">{escape(names)}</span>'
    short = ", ".join(name_text(node) for node in nodes[:_NODES_SHOWN])
    rest = count_text(len(nodes) - _NODES_SHOWN, "more node")
    return f"<details><summary>{escape(short)} and {rest}</summary>{escape(names)}</details>"


def _bar(share: float, whole: float) -> str:
    """A share as a number and as the length of a bar; ``whole`` is a full one."""
    width = min(100.0, 100 * share / whole) if whole > 0 and math.isfinite(share) else 0.0
    bar = f'<svg class="bar" aria-hidden="true"><rect width="{max(0.0, width):.1f}%" height="100%"/></svg>'
    return f'<span class="share">{_text(share_text(share))}{bar}</span>'


def table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int]) -> str:
    """A table; its cells are HTML. ``numeric``: the columns of numbers."""
    kind = ['class="number"' if column in numeric else "" for column in range(len(heads))]
    head = "".join(f'<th scope="col" {kind[k]}>{_text(text)}</th>' for k, text in enumerate(heads))
    body = "".join(_row(cells, kind) for cells in rows)
    caption = f'<caption class="hidden">{_text(name)}</caption>'
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(cells: Sequence[str], kind: Sequence[str]) -> str:
    first = f'<th scope="row">{cells[0]}</th>'
    return f"<tr>{first}{''.join(f'<td {kind[k]}>{cell}</td>' for k, cell in enumerate(cells) if k)}</tr>"


def _text(text: str) -> str:
    return escape(escape_text(text))
