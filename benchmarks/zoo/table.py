"""The cells that all forms of the table share: each a text, and the number that it is sorted by."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from benchmarks.zoo.accuracy import Accuracy
from benchmarks.zoo.predicting import Prediction
from benchmarks.zoo.published import figure_text, find_published
from benchmarks.zoo.results import Result
from trnrt.capacity.instances import find_instances
from trnrt.capacity.prices import Prices, usd_per_million
from trnrt.report.capacity import usd_text

DTYPE = "bfloat16"
NOT_MEASURED = "not measured"
HELD_SHOWN = 3


@dataclass(frozen=True)
class Cell:
    """A text, and the number to sort by; infinity where there is none."""

    text: str
    value: float = math.inf


@dataclass(frozen=True)
class Line:
    """A model on a target: its predictions at the smallest batch and at the best one."""

    row: Result
    target: str
    first: Prediction
    best: Prediction


def list_targets(rows: Sequence[Result]) -> list[str]:
    """The targets with predictions, in alphabetical order."""
    return sorted({one.target for row in rows for one in row.predictions})


def lines_of(rows: Sequence[Result]) -> list[Line]:
    """A line for each model and each target that it has predictions for."""
    found = []
    for row in rows:
        for target in list_targets([row]):
            own = [one for one in row.predictions if (one.target, one.dtype) == (target, DTYPE)]
            best = row.best(target, DTYPE)
            if own and best is not None:
                found.append(Line(row, target, min(own, key=lambda one: one.batch), best))
    return found


def version_texts(rows: Sequence[Result]) -> list[str]:
    """The versions of the code that made the predictions and measured the accuracy, the most frequent first."""
    predicted = _counts_text(one.version for row in rows for one in row.predictions)
    measured = _counts_text(one.version for row in rows for one in row.accuracy.values())
    named = (("predictions", predicted), ("accuracy", measured))
    return [f"{name} by trnrt {text}" for name, text in named if text]


def _counts_text(versions: Iterable[str]) -> str:
    counts = Counter(versions).most_common()
    return ", ".join(version if len(counts) == 1 else f"{version} ({count})" for version, count in counts)


def size_cell(row: Result) -> Cell:
    """The number of parameters."""
    count = row.entry.parameters
    text = f"{count / 1e6:,.0f} M" if count >= 99.5e6 else f"{count / 1e6:.3g} M"
    return Cell(text, count)


def accuracy_cells(row: Result, dtype: str) -> list[Cell]:
    """The largest relative difference, rank correlation, cosine and top-1 agreement."""
    found = row.accuracy.get(dtype)
    if found is None:
        return [Cell(NOT_MEASURED)] + [Cell("")] * 3
    top_1 = Cell("-") if found.top_1 is None else Cell(f"{found.top_1} of {found.items}", found.top_1 / found.items)
    correlations = [Cell(_share_text(value), value) for value in (found.rank, found.cosine)]
    return [Cell(difference_text(found.difference), found.difference), *correlations, top_1]


def accuracy_text(found: Accuracy | None) -> str:
    """The accuracy in one cell: rank correlation, and top-1 agreement where the outputs are scores."""
    if found is None:
        return NOT_MEASURED
    agreement = "" if found.top_1 is None else f", {found.top_1} of {found.items}"
    return f"{_share_text(found.rank)}{agreement}"


def difference_text(value: float) -> str:
    """A relative difference: two digits, small ones as a power."""
    return "0" if value == 0 else f"{value:.1e}" if value < 1e-2 else f"{value:.2g}"


def _share_text(value: float) -> str:
    """A correlation: as many nines as it has, at most seven digits, and 1 only if nothing is left."""
    missing = 1 - value
    if missing <= 0.5e-7:
        return "1"
    digits = min(7, max(3, 1 - math.floor(math.log10(missing)))) if missing > 0 else 3
    return f"{value:.{digits}f}"


def time_cell(one: Prediction) -> Cell:
    """Milliseconds a batch, with the range."""
    found = one.predicted
    return Cell(f"{_ms(found.us)} ({_ms(found.least_us)} to {_ms(found.most_us)})", found.us)


def batch_cell(line: Line) -> Cell:
    """The best batch, and those that were tried, if several were."""
    tried = line.row.tried[line.target]
    among = f" (of {', '.join(map(str, tried))})" if len(tried) > 1 else ""
    return Cell(f"{line.best.batch}{among}", line.best.batch)


def item_cell(one: Prediction) -> Cell:
    """Milliseconds an item, by the headline."""
    return Cell(_ms(one.ms_per_item * 1e3), one.ms_per_item)


def rate_cell(one: Prediction) -> Cell:
    """Items a second of a core, with the range."""
    low, high = one.rates
    return Cell(f"{_rate(one.items_per_second)} ({_rate(low)} to {_rate(high)})", one.items_per_second)


def instructions_cell(one: Prediction) -> Cell:
    """The instructions of all kernels, and the number of kernels if there are several."""
    kernels = f" in {one.kernels}" if one.kernels > 1 else ""
    return Cell(f"{one.instructions:,}{kernels}", one.instructions)


def sbuf_cell(one: Prediction) -> Cell:
    """SBUF's peak in KiB a partition."""
    return Cell(f"{one.sbuf_peak_bytes / 1024:.0f}", one.sbuf_peak_bytes)


def held_cell(one: Prediction) -> Cell:
    """The longest parts of the critical path, as shares of the headline; sorted by the largest share."""
    shares = [(part.by, part.us / one.predicted.us) for part in one.held[:HELD_SHOWN]]
    return Cell(", ".join(f"{by} {share:.0%}" for by, share in shares), shares[0][1] if shares else math.inf)


def published_cell(line: Line) -> Cell:
    """The published figures for cores of this generation; empty if there are none."""
    found = find_published(line.row.entry.name, line.target)
    return Cell("; ".join(figure_text(one) for one in found), found[0].items_per_second if found else math.inf)


def cost_cell(line: Line, prices: Prices) -> Cell:
    """Dollars a million items on the cheapest instance type with a price: all its cores at the best batch's rate."""
    found = [
        (usd_per_million(prices[one.name].usd_per_hour, one.cores * line.best.items_per_second), one.name)
        for one in find_instances(line.target)
        if one.name in prices
    ]
    if not found:
        return Cell("-")
    cost, name = min(found)
    return Cell(f"{usd_text(cost)} ({name})", cost)


def profile_command(line: Line) -> str:
    """The command that writes the profile report of the best batch."""
    entry, best = line.row.entry, line.best
    shapes = "".join(f" --shape {shape}" for shape in entry.shapes)
    name = f"{entry.name}-{line.target}.html"
    return (
        f"trnrt profile {entry.file} --dtype {best.dtype} --target {line.target} --batch {best.batch}{shapes}"
        f" --effort {best.effort} --html {name}"
    )


def report_names(line: Line) -> list[PurePath]:
    """The files of the profile report, one a kernel: their names change with the model and the code."""
    best = line.best
    made_of = [line.row.digest, best.version, line.row.entry.shapes, best.target, best.dtype, best.batch]
    made_of.append(best.effort)
    digest = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:10]
    whole = f"{line.row.entry.name}-{best.target}-{best.batch}-{digest}"
    if best.kernels == 1:
        return [PurePath(f"{whole}.html")]
    return [PurePath(f"{whole}-{number}.html") for number in range(1, best.kernels + 1)]


def _ms(us: float) -> str:
    return f"{us / 1e3:,.3g}" if us < 999_500 else f"{us / 1e3:,.0f}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
