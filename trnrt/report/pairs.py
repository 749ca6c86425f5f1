"""Two kernels side by side: the page on a terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.nki.numbers import agreement_text
from trnrt.nki.ordering import TIE, Certainty
from trnrt.report.documents import SCHEMA_VERSION, Document, prediction_document
from trnrt.report.tables import plain_table
from trnrt.text import count_text, escape_text, list_text, name_text, range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.nki.numbers import Agreement
    from trnrt.nki.ordering import Order
    from trnrt.nki.pairing import Comparison, LinePair, Side
    from trnrt.nki.profiling import Profile
    from trnrt.report.layout import Grid

LINES_SHOWN = 12
"""The most lines of a comparison: those whose times differ most."""

_COMMON_SHOWN = 3
_LARGE_RATIO = 2  # from here on, percent are hard to read


def compare_document(
    found: Sequence[Comparison], target: str, level: str, max_slower: float | None, *, version: str
) -> Document:
    """``nki compare``: an entry for each pair of calls. Times are microseconds; of ``a`` and ``b``, b is the second."""
    return {
        "schema_version": SCHEMA_VERSION,
        "trnrt_version": version,
        "target": target,
        "nki": level,
        "max_slower_percent": max_slower,
        "comparisons": [_comparison_document(comparison, max_slower) for comparison in found],
    }


def _comparison_document(found: Comparison, max_slower: float | None) -> Document:
    return {
        "a": _side_document(found.first),
        "b": _side_document(found.second),
        "change_percent": found.slowdown,
        "too_slow": max_slower is not None and found.slowdown > max_slower,
        "order": order_document(found.order),
        "numbers": {
            "equal": found.equal,
            "problem": found.problem or None,
            "results": [asdict(agreement) | {"problem": agreement.problem or None} for agreement in found.agreements],
        },
        "lines": [asdict(line) | {"difference_us": line.difference_us} for line in found.lines],
    }


def _side_document(side: Side) -> Document:
    return {"file": str(side.file), "call": side.call} | prediction_document(side.profile)


def order_document(order: Order) -> Document:
    """Which is faster, and how sure the model is: ``certainty`` is tie, certain, likely or open."""
    return {
        "certainty": order.certainty.value,
        "ranges_overlap": order.overlap,
        "common_causes": list(order.common),
        "turned_by": [asdict(pair) for pair in order.turned],
    }


def compare_parts(found: Iterable[Comparison], max_slower: float | None) -> list[RenderableType]:
    """All comparisons, from top to bottom."""
    parts: list[RenderableType] = []
    for comparison in found:
        parts += [*([""] if parts else []), *_comparison_parts(comparison, max_slower)]
    return parts


def _comparison_parts(found: Comparison, max_slower: float | None) -> list[RenderableType]:
    first, second = found.first, found.second
    parts: list[RenderableType] = [Text(f"a: {_side_text(first)}", "bold"), Text(f"b: {_side_text(second)}", "bold")]
    parts += ["", _totals_table(first.profile, second.profile), ""]
    parts += [*order_lines(found.order), *_limit_lines(found, max_slower), *_numbers_lines(found), ""]
    parts += [_engines_table(first.profile, second.profile)]
    changed = sorted((line for line in found.lines if line.difference_us), key=lambda line: -abs(line.difference_us))
    if changed:
        parts += ["", lines_table(changed[:LINES_SHOWN])]
        rest = len(changed) - LINES_SHOWN
        parts += [Text(f"and {count_text(rest, 'line')} that changed less; --json has all")] if rest > 0 else []
    return parts


def _side_text(side: Side) -> str:
    return f"{name_text(Path(side.file).name)}: {name_text(side.call)}"


def _totals_table(a: Profile, b: Profile) -> Grid:
    """Both times with their ranges, and what the two kernels need."""
    rows = [
        ("benchmark", range_text(a.benchmark), range_text(b.benchmark), _change(a.benchmark.us, b.benchmark.us)),
        ("profiler's total", range_text(a.profiler), range_text(b.profiler), _change(a.profiler.us, b.profiler.us)),
    ]
    counts = (
        ("instructions", a.instructions, b.instructions),
        ("DMA transfers", a.dma_transfer_count, b.dma_transfer_count),
        ("HBM bytes", a.hbm_bytes, b.hbm_bytes),
        ("SBUF peak, bytes a partition", a.sbuf_peak_bytes, b.sbuf_peak_bytes),
        ("PSUM peak, bytes a partition", a.psum_peak_bytes, b.psum_peak_bytes),
    )
    rows += [(name, f"{one:,}", f"{other:,}", _count_change(one, other)) for name, one, other in counts]
    return plain_table(("", "a", "b", "b - a"), rows, right=(1, 2, 3), whole=(1, 2, 3))


def order_lines(order: Order, names: tuple[str, str] = ("a", "b")) -> list[Text]:
    """Which is faster, and how sure the model is, in plain words."""
    first, second = names
    faster, slower = (second, first) if order.second.us < order.first.us else (first, second)
    ratio = max(order.ratio, 1 / order.ratio)
    meets = "overlap" if order.overlap else "don't overlap"
    longer = f"{100 * (ratio - 1):.1f} % longer than" if ratio < _LARGE_RATIO else f"{ratio:.1f} times as long as"
    verdict = f"{slower} takes {longer} {faster}"
    common = f" ({list_text(order.common, _COMMON_SHOWN)})" if order.common else ""
    if order.certainty is Certainty.TIE:
        text = f"A tie: {first} and {second} differ by less than {100 * TIE:g} %, and the model is no better than that."
    elif order.certainty is Certainty.CERTAIN:
        text = f"{verdict}. The ranges {meets}: the model is sure of the order."
    elif order.certainty is Certainty.LIKELY:
        text = (
            f"{verdict}. The ranges {meets}, but what makes them wide is common to both{common}: "
            f"{faster} stays faster at both ends of every uncertain number."
        )
    else:
        turned = list(dict.fromkeys(pair.cause for pair in order.turned))
        text = (
            f"{verdict}, but the model is not sure of the order: the ranges {meets}, "
            f"and {slower} is faster with {list_text(turned, _COMMON_SHOWN)}."
        )
    style = "bold" if order.certainty in (Certainty.CERTAIN, Certainty.LIKELY) else "bold yellow"
    return [Text(text, style)]


def _limit_lines(found: Comparison, max_slower: float | None) -> list[Text]:
    """The verdict of --max-slower; empty without it."""
    if max_slower is None:
        return []
    failed = found.slowdown > max_slower
    verdict = Text("FAIL", "bold red") if failed else Text("PASS", "bold green")
    return [Text.assemble(verdict, f" b against a: {found.slowdown:+.1f} %, accepted +{max_slower:g} %")]


def _numbers_lines(found: Comparison) -> list[Text]:
    """A line for each result that says whether its numbers are equal."""
    if found.problem:
        return [Text.assemble(("FAIL", "bold red"), f" the numbers can't be compared: {name_text(found.problem)}")]
    return [agreement_line(agreement) for agreement in found.agreements]


def agreement_line(found: Agreement) -> Text:
    """The line on one result."""
    verdict = Text("PASS", "bold green") if found.within else Text("FAIL", "bold red")
    return Text.assemble(verdict, f" {escape_text(agreement_text(found))}")


def _engines_table(a: Profile, b: Profile) -> Grid:
    rows = []
    for name in dict.fromkeys([*a.engines, *b.engines]):
        one, other = (p.engines[name].busy_us if name in p.engines else 0.0 for p in (a, b))
        rows.append((name, f"{one:,.2f}", f"{other:,.2f}", f"{other - one:+,.2f}"))
    return plain_table(("engine, busy us", "a", "b", "b - a"), rows, right=(1, 2, 3))


def lines_table(lines: Iterable[LinePair]) -> Grid:
    """A line for each line of either kernel: its part of the critical path in both."""
    rows = [
        (
            _number(line.first_line),
            _number(line.second_line),
            name_text(line.code),
            _us(line.first_us),
            _us(line.second_us),
            f"{line.difference_us:+,.2f}",
        )
        for line in lines
    ]
    return plain_table(("a", "b", "line, us of the critical path", "a", "b", "b - a"), rows, right=(0, 1, 3, 4, 5))


def _change(before: float, after: float) -> str:
    return f"{after - before:+,.2f} us ({100 * (after / before - 1):+.1f} %)"


def _count_change(before: int, after: int) -> str:
    return f"{after - before:+,}" if after != before else "same"


def _number(line: int | None) -> str:
    return "-" if line is None else str(line)


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
