"""A profile on a terminal: the latency first, then its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import WIDEST
from trnrt.report.layout import Grid, Line, plain_table
from trnrt.report.summary import summary_of
from trnrt.report.verdict import verdict_of
from trnrt.text import count_text, ends_text, escape_text, list_text, name_text, range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.nki.machine.timing import Cause, Range
    from trnrt.nki.profiling import Profile, StepUse
    from trnrt.report.comparing import Change, Comparison
    from trnrt.report.verdict import Tried

STEPS_SHOWN = 20
"""The most steps in a profile's table: those that take longest."""

CHANGES_SHOWN = 8
CAUSES_SHOWN = 4
"""The most causes of a wide range to show, the widest first. JSON and the HTML page have all."""

_NODES_SHOWN = 6
_NEGLIGIBLE_US = 0.005  # what two decimals show as nothing


def heading(profile: Profile, name: str) -> Line:
    """The model or the call, with dtype, target, cores and rows."""
    rows = "" if profile.batch is None else f", {count_text(profile.batch, 'row')}"
    cores = f", {count_text(len(profile.cores), 'core')}" if len(profile.cores) > 1 else ""
    return Line(f"{name_text(name)}: {profile.dtype} on {profile.target}{cores}{rows}", "bold")


def profile_parts(profile: Profile, name: str, tried: Sequence[Tried] = ()) -> list[RenderableType]:
    """A profile, from top to bottom. ``tried``: see ``verdict_of``."""
    parts: list[RenderableType] = [heading(profile, name), *_verdict(profile, tried)]
    parts += [_latency(profile), _utilization(profile), *_bottleneck(profile), ""]
    parts += range_lines(profile.benchmark, profile.causes)
    if profile.steps:
        parts += [step_uses_table(profile), *_rest_text(profile.steps), ""]
    parts += breakdown_parts(profile)
    parts += [engines_table(profile), "", *_memory(profile), _roofline(profile), ""]
    return [*parts, summary_table(profile)]


def comparison_parts(comparisons: Iterable[Comparison], baseline: str) -> list[RenderableType]:
    """Before and after: the verdict, the totals, and the steps that changed most."""
    from rich.text import Text

    parts: list[RenderableType] = []
    for comparison in comparisons:
        verdict = ("FAIL", "bold red") if comparison.regressed else ("PASS", "bold green")
        change = f"{comparison.benchmark.percent or 0:+.1f}%, accepted +{comparison.limit:g}%"
        rest = len(comparison.steps) - CHANGES_SHOWN
        parts += [
            Text.assemble(verdict, f" {name_text(comparison.name)} against {name_text(baseline)}: {change}"),
            "",
            changes_table(comparison),
            *([Line(f"and {count_text(rest, 'more step')} that changed less")] if rest > 0 else []),
            "",
        ]
    return parts[:-1]


def range_lines(found: Range, causes: Sequence[Cause]) -> list[Line]:
    """The widest causes of a prediction's range; empty if there are none."""
    lines = [Line(wide_text(found), "bold yellow")] if found.too_wide else []
    if causes:
        lines.append(Line("What makes the first range wide, each cause alone:"))
    for cause in causes[:CAUSES_SHOWN]:
        lines.append(Line(f"  {name_text(cause.name)}: {ends_text(cause.range)} us"))
        if cause.pin:
            lines.append(Line(f"    to pin it, write in the kernel: {cause.pin}"))
    rest = len(causes) - CAUSES_SHOWN
    if rest > 0:
        lines.append(Line(f"  and {count_text(rest, 'narrower cause')}; --json has all, with their sources"))
    return [*lines, Line()] if lines else []


def wide_text(found: Range) -> str:
    """A warning about a range that is too wide."""
    times = f"its most is {found.ratio:.2f} times its least, where {WIDEST:g} is the limit"
    return f"The range is too wide to plan with: {times}"


def step_uses_table(profile: Profile) -> Grid:
    """A line for each step: its nodes, time, limit and utilisation."""
    steps = _longest_steps(profile.steps)
    with_nodes = any(step.nodes for step in steps)
    rows = [_step_row(step) for step in steps]
    shown_times = sum(step.time_us for step in profile.steps)
    fixed = profile.benchmark_us - shown_times
    if fixed > _NEGLIGIBLE_US:
        rows.append(("fixed cost", "", _us(fixed), "", "", "", ""))  # shares exclude it
    columns = ("step", "ONNX nodes", "time us", "share", "bound", "MFU", "HBM bytes")
    keep = [index for index in range(len(columns)) if with_nodes or index != 1]
    numbers = [keep.index(index) for index in (2, 3, 5, 6)]
    whole = [*numbers, keep.index(4)]
    return plain_table([columns[i] for i in keep], [[row[i] for i in keep] for row in rows], numbers, whole)


def breakdown_parts(profile: Profile) -> list[RenderableType]:
    """The parts of the latency, beside those of the floor; empty without a breakdown."""
    breakdown = profile.breakdown
    spent = [part for part in breakdown.parts if part.time_us or part.floor_us]
    if not spent:
        return []
    rows = [
        (part.part, "fixed" if part.fixed else "data", _us(part.time_us), _share(part.time_us / profile.benchmark_us))
        for part in spent
    ]
    columns = ("critical path", "kind", "time us", "share")
    if breakdown.floor_us is None or breakdown.ratio is None:
        return [plain_table(columns, rows, right=(2, 3)), ""]
    beside = [(*row, _us(part.floor_us or 0)) for row, part in zip(rows, spent, strict=True)]
    floor = (
        f"floor: {breakdown.floor_us:,.2f} us to load the inputs and store the outputs, with nothing between; this is "
        f"{breakdown.ratio:,.2f} times that"
    )
    return [plain_table((*columns, "floor us"), beside, right=(2, 3, 4)), Line(floor), ""]


def engines_table(profile: Profile) -> Grid:
    """A line for each engine, and one for the DMA engines together."""
    rows = [(name, _us(use.busy_us), _share(use.share)) for name, use in profile.engines.items()]
    return plain_table(("engine", "busy us", "share"), rows, right=(1, 2))


def summary_table(profile: Profile) -> Grid:
    """The profile under the names of AWS's profiler."""
    rows = [(name, _summary_text(name, value)) for name, value in summary_of(profile).items()]
    return plain_table(("as a profiler says it", ""), rows, whole=(1,))


def changes_table(comparison: Comparison) -> Grid:
    """A line for each total, and for the steps that changed most."""
    changes = [comparison.benchmark, comparison.profiler, *comparison.steps[:CHANGES_SHOWN]]
    return plain_table(("", "before us", "after us", "change"), change_rows(changes), right=(1, 2, 3), whole=(1, 2, 3))


def change_rows(changes: Iterable[Change]) -> list[tuple[str, ...]]:
    """The cells of times before and after."""
    return [(name_text(c.name), _amount(c.before_us), _amount(c.after_us), _change_text(c)) for c in changes]


def _latency(profile: Profile) -> Grid:
    of = "" if profile.fits else f", of a kernel that does not fit {profile.target}"
    rows = [
        (range_text(profile.benchmark), f"predicted, as a benchmark of repeated runs measures it{of}"),
        (range_text(profile.profiler), "a profiler's total_time, with program start and end"),
    ]
    return Grid(("", ""), rows, right=(0,), whole=(0,), bold=(0,))


def _utilization(profile: Profile) -> Line:
    counts = (
        f"{_size_text(profile)}, {count_text(profile.dma_transfer_count, 'DMA transfer')}, "
        f"{profile.hbm_bytes:,} HBM bytes"
    )
    return Line(f"MFU {_share(profile.mfu)}, MBU {_share(profile.mbu)}; {counts}")


def _verdict(profile: Profile, tried: Sequence[Tried]) -> list[Line]:
    """The cause that holds the latency, and the changes to try."""
    found = verdict_of(profile, tried)
    if found is None:
        return []
    return [Line(found.sentence, "bold"), *(Line(f"  try {advice.text}") for advice in found.advice), Line()]


def _bottleneck(profile: Profile) -> list[Line]:
    """The sentence on the bottleneck, with its advice."""
    found = profile.bottleneck
    return [] if found is None else [Line(escape_text(text)) for text in (found.sentence, found.advice) if text]


def _size_text(profile: Profile) -> str:
    """The number of issued instructions; with device loops, the two sizes of the program."""
    compiled, unrolled = profile.counts
    if compiled == unrolled:
        return count_text(profile.instructions, "instruction")
    times = "trips known at run time only" if unrolled is None else f"{unrolled:,} unrolled"
    return f"{count_text(compiled, 'instruction')} as compiled, {times}"


def _longest_steps(steps: Sequence[StepUse]) -> list[StepUse]:
    """The steps that take longest, in the program's order."""
    longest = sorted(range(len(steps)), key=lambda index: -steps[index].time_us)[:STEPS_SHOWN]
    return [steps[index] for index in sorted(longest)]


def _rest_text(steps: Sequence[StepUse]) -> list[Line]:
    rest = len(steps) - STEPS_SHOWN
    if rest <= 0:
        return []
    time, share = sum(s.time_us for s in steps), sum(s.share for s in steps)
    kept = _longest_steps(steps)
    time, share = time - sum(s.time_us for s in kept), share - sum(s.share for s in kept)
    return [Line(f"and {count_text(rest, 'shorter step')}: {_us(time)} us, {_share(share)}; --json has all")]


def _step_row(step: StepUse) -> tuple[str, ...]:
    nodes = list_text([name_text(node) for node in step.nodes], _NODES_SHOWN)
    cells = (_us(step.time_us), _share(step.share), step.bound, _share(step.mfu), f"{step.hbm_bytes:,}")
    return (name_text(step.name), nodes, *cells)


def _memory(profile: Profile) -> list[Line]:
    target = get_target(profile.target)
    peaks = (
        ("SBUF", profile.sbuf_peak_bytes, target.sbuf_usable_bytes),
        ("PSUM", profile.psum_peak_bytes, target.psum_bytes),
    )
    return [
        Line(f"{name} peak: {peak:,} of {capacity:,} bytes a partition ({_share(peak / capacity)})")
        for name, peak, capacity in peaks
    ]


def _roofline(profile: Profile) -> Line:
    roofline = profile.roofline
    if not profile.flops:
        gbps = profile.hbm_bytes / profile.benchmark_us / 1000
        of = f"{gbps:.3g} of {roofline.hbm_gbps:.4g} GB/s ({_share(gbps / roofline.hbm_gbps)})"
        return Line(f"roofline: no matrix products; HBM traffic {of}")
    attainable = roofline.attainable_tflops
    bound = "memory-bound" if attainable < roofline.peak_tflops else "compute-bound"
    of = f" ({_share(roofline.achieved_tflops / attainable)})" if attainable else ""
    return Line(
        f"roofline: {roofline.intensity:,.1f} FLOP/byte, {bound}: {roofline.achieved_tflops:.3g} of "
        f"{attainable:.3g} TFLOP/s{of}"
    )


def _summary_text(name: str, value: float) -> str:
    if name == "total_time":
        return f"{_us(value * 1e6)} us"
    if name.endswith("_percent"):
        return f"{value:.2f}%"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f} FLOP/byte"


def _change_text(change: Change) -> str:
    if change.before_us is None or change.after_us is None:
        return "new" if change.before_us is None else "gone"
    percent = "" if change.percent is None else f" ({change.percent:+.1f}%)"
    return f"{change.difference:+,.2f} us{percent}"


def _amount(value: float | None) -> str:
    return "-" if value is None else _us(value)


def _us(value: float) -> str:
    return f"{value:,.2f}"


def _share(value: float) -> str:
    return "<0.1%" if 0 < value < 0.0005 else f"{100 * value:.1f}%"
