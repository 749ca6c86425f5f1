"""The table as a page for a browser: one file without external resources, in the style of profile reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from string import Template

from benchmarks.zoo.published import Published, figure_text, list_published
from benchmarks.zoo.results import Result
from benchmarks.zoo.table import (
    DTYPE,
    Cell,
    Line,
    accuracy_cells,
    batch_cell,
    cost_cell,
    held_cell,
    instructions_cell,
    item_cell,
    lines_of,
    list_targets,
    profile_command,
    published_cell,
    rate_cell,
    report_names,
    sbuf_cell,
    size_cell,
    time_cell,
    version_texts,
)
from trnrt.capacity.prices import Prices
from trnrt.report.page import content_policy, page_style
from trnrt.text import count_text

_CHOSEN = "trn2"
_NOTES = (
    "float32, bfloat16: Spearman's rank correlation with onnxruntime on seeded random inputs, simulated, of the worst"
    " output; below it the items whose largest score is at the same place, where the first output is a row of numbers",
    "first batch: 1, or the only one that the file has; best batch: of those tried, in brackets below it, the one with"
    " the most items a second on trn2",
    "ms, items/s: of one physical core, predicted",
    "instructions: of all kernels of the best batch, loops unrolled; SBUF: its peak, KiB a partition",
    "bound by: the longest parts of the critical path of the best batch, as shares of the predicted time",
    "published: what others say for cores of this generation, which measures something else: see the table below",
)
_COST_NOTE = (
    "$ a million: an instance's price an hour over what all its cores compute in an hour at the best batch, on the"
    " cheapest type that the price file has: "
)


def zoo_html(rows: Sequence[Result], prices: Prices | None = None, reports: Path | None = None, *, page: Path) -> str:
    """The page as one HTML document in ASCII. All names are data: they can't become markup or code.

    ``reports``: the folder of the profile reports, which are linked if they exist, relative to the file ``page``.
    """
    style = page_style() + _file("page.css")
    script = _file("page.js")
    body = "".join(_row(line, prices, reports, page) for line in lines_of(rows))
    text = Template(_file("page.html")).substitute(
        policy=content_policy(style, script),
        style=style,
        script=script,
        dtype=DTYPE,
        headline=_headline(rows),
        targets=_targets(list_targets(rows)),
        heads="".join(_head(*head) for head in _heads(prices)),
        rows=body,
        published=_published_table(rows),
        notes="".join(f"<li>{escape(note)}</li>" for note in (*_NOTES, *_price_notes(prices))),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _file(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _headline(rows: Sequence[Result]) -> str:
    return "".join(f"<li>{escape(text)}</li>" for text in (count_text(len(rows), "model"), *version_texts(rows)))


def _targets(names: Sequence[str]) -> str:
    """The choice of a target."""
    first = _CHOSEN if _CHOSEN in names else ""
    choices = [("", "all"), *((name, name) for name in names)]
    return "".join(
        f'<label><input type="radio" name="target" value="{escape(value)}"{" checked" if value == first else ""}>'
        f"<span>{escape(text)}</span></label>"
        for value, text in choices
    )


def _heads(prices: Prices | None) -> list[tuple[str, str]]:
    """The columns, with their class."""
    number, wide = ' class="number"', ' class="wide"'
    columns = [("model", ""), ("parameters", number), ("float32", number), ("bfloat16", number), ("target", "")]
    columns += [("first batch: ms", number), ("best batch", number), ("ms an item", number), ("items/s", number)]
    columns += [("instructions", number), ("SBUF", number), ("bound by", wide), ("published", wide)]
    return [*columns, *([("$ a million", number)] if prices is not None else []), ("profile", "")]


def _head(text: str, kind: str) -> str:
    return f'<th scope="col"{kind}><button type="button">{escape(text)}</button></th>'


def _row(line: Line, prices: Prices | None, reports: Path | None, page: Path) -> str:
    row, best = line.row, line.best
    name, kind = escape(row.entry.title), escape(row.entry.kind)
    title = f'<th scope="row" data-text="{name}">{name}<small>{kind}</small></th>'
    cells = [
        _number(size_cell(row)),
        *(_accuracy(row, dtype) for dtype in ("float32", "bfloat16")),
        _text(Cell(line.target)),
        _number(time_cell(line.first)),
        _number(batch_cell(line)),
        _number(item_cell(best)),
        _number(rate_cell(best)),
        _number(instructions_cell(best)),
        _number(sbuf_cell(best)),
        _text(held_cell(best)),
        _text(published_cell(line)),
        *([] if prices is None else [_number(cost_cell(line, prices))]),
        _profile_cell(line, reports, page),
    ]
    words = escape(f"{row.entry.title} {row.entry.kind} {row.entry.name}".lower())
    return f'<tr data-target="{escape(line.target)}" data-find="{words}">{title}{"".join(cells)}</tr>\n'


def _accuracy(row: Result, dtype: str) -> str:
    """The rank correlation, with the top-1 agreement below."""
    difference, *others = accuracy_cells(row, dtype)
    if not others[0].text:
        return _number(difference)
    agreement = f"<small>{escape(others[2].text)}</small>" if isfinite(others[2].value) else ""
    return f'<td class="number"{_value(others[0])}>{escape(others[0].text)}{agreement}</td>'


def _number(cell: Cell) -> str:
    """A number; its range goes to a line of its own."""
    figure, bracket, rest = cell.text.partition(" (")
    within = f' <span class="range">({escape(rest)}</span>' if bracket else ""
    return f'<td class="number"{_value(cell)}>{escape(figure)}{within}</td>'


def _text(cell: Cell) -> str:
    return f"<td{_value(cell)}>{escape(cell.text)}</td>"


def _value(cell: Cell) -> str:
    """The attribute by which the page sorts the cell."""
    return f' data-value="{cell.value}"' if isfinite(cell.value) else f' data-text="{escape(cell.text)}"'


def _profile_cell(line: Line, reports: Path | None, page: Path) -> str:
    """Links to the reports that exist, or the command that writes one."""
    found = [] if reports is None else [reports / name for name in report_names(line) if (reports / name).is_file()]
    if not found:
        command = escape(profile_command(line))
        return f'<td data-text=""><details><summary>command</summary><code>{command}</code></details></td>'
    places = [Path(os.path.relpath(path, page.parent)).as_posix() for path in found]
    names = ["report"] if len(places) == 1 else [f"part {number}" for number in range(1, len(places) + 1)]
    links = [f'<a href="{escape(place)}">{name}</a>' for place, name in zip(places, names, strict=True)]
    return f'<td data-text="report">{" ".join(links)}</td>'


def _published_table(rows: Sequence[Result]) -> str:
    titles = {row.entry.name: row.entry.title for row in rows}
    lines = [_published_row(titles[one.model], one) for one in list_published() if one.model in titles]
    heads = "".join(f'<th scope="col">{head}</th>' for head in ("model", "figure", "what it is", "source"))
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _published_row(title: str, one: Published) -> str:
    read = f"read {one.read}" if one.read else "as an issue of this project quotes it; not read again"
    source = f'<a href="{escape(one.page)}" rel="noreferrer">{escape(one.source)}</a>, {escape(read)}'
    cells = (escape(figure_text(one)), escape(f"{one.what}; {one.clock_text}"), source)
    return f'<tr><th scope="row">{escape(title)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _price_notes(prices: Prices | None) -> Iterable[str]:
    """Where the prices are from."""
    if prices is None:
        return []
    stated = [f"{name} ${one.usd_per_hour:g} in {one.region} on {one.date}, {one.page}" for name, one in prices.items()]
    return [_COST_NOTE + "; ".join(stated)]
