"""docs/zoo.md: the tables, generated from the results file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.zoo.measuring import TARGETS
from benchmarks.zoo.published import figure_text, list_published
from benchmarks.zoo.results import Result
from benchmarks.zoo.table import (
    DTYPE,
    Line,
    accuracy_cells,
    batch_cell,
    held_cell,
    instructions_cell,
    item_cell,
    lines_of,
    profile_command,
    rate_cell,
    sbuf_cell,
    size_cell,
    time_cell,
    version_texts,
)
from trnrt.text import count_text, size_text

_INTRO = """# The zoo

Well-known networks on trnrt: how close their outputs are to onnxruntime's, and how fast each is predicted to run on
trn1, trn2 and trn3. **None of our times was measured on a device**: all are predictions of the timing model
([how far it is off](timing.md#how-accurate-it-is)), for one physical NeuronCore, without the host. trn3's model was
never compared with a measurement.

The scripts `models/exports/zoo_*.py` export the models with random weights, by their libraries' own exporters
([models/README.md](https://github.com/trnrt/trnrt/blob/main/models/README.md) says how). `python -m benchmarks.zoo`
writes `benchmarks/zoo/results.json`, from which this page is generated.
"""
_VERSIONS = """
After the + is a digest of the code that plans and times; for the accuracy, also of the code that runs and compares.
If there are several versions, the number in brackets is how many results each made; `results.json` has the version of
every result.
"""
_ACCURACY = """## Accuracy

The simulator computes what the core would, in the dtype of the column. The table compares that with onnxruntime in
float32, on seeded random inputs. If a model has several outputs, a column has the worst one.

- **difference**: the largest absolute difference over the output's largest magnitude.
- **rank**: Spearman's rank correlation of all elements of an output.
- **cosine**: the cosine similarity of the outputs for one item; the lowest of all items.
- **top-1**: how many items have their largest score at the same place; only if the first output has a row of numbers
  for each item.
- "not measured": not simulated yet, because that takes minutes for a large model.

A detector that ends with TopK sorts its boxes. If random weights give nearly equal scores, rounding swaps boxes, and
the columns then compare different ones.
"""
_PREDICTIONS = f"""## Predicted times

The table has predictions in {DTYPE} for the first batch, which is 1 or the only one of the file, and for the best one:
of the batches tried, it has the most items a second on trn2, with quick plans. If several were tried, brackets after it
name them. Other brackets hold ranges.

- **ms**: the time of a batch. **items/s**: the rate of one core at the best batch.
- **instructions**: those of all kernels of the best batch, loops unrolled. **SBUF**: its peak, in KiB a partition.
- **bound by**: the longest parts of the critical path, as shares of the predicted time, as `trnrt inspect` shows them.

`trnrt profile --html` writes a model's profile report: its timeline, memory and steps. `python -m benchmarks.zoo DIR
--profiles reports --html zoo.html` writes those of all models in DIR, and a page with links to them. One report:

<!-- not run: needs a file that isn't in the repository -->
"""
_PUBLISHED = """## Published figures

The table has figures that others published for these models on NeuronCores, beside our prediction for one core of that
generation. They can't be compared: published figures are throughputs of whole programs in other software, mostly with
the host's part, and some are of two cores as one or at other resolutions. So the page forms no ratio.
"""
_COST = """## Cost

trnrt ships no prices. `python -m benchmarks.zoo --prices FILE --html zoo.html` adds the cost of a million items, with
the prices of your own file ([Prices](scale.md#prices)). It is an instance's price an hour, over the items that all its
cores compute in an hour at the best batch, fully loaded. The instance is of the cheapest type with a price.
"""


def zoo_page(rows: Sequence[Result]) -> str:
    """The page."""
    parts = [_INTRO, *_versions(rows), "", *_contents(rows), "", _ACCURACY, *accuracy_table(rows), ""]
    lines = lines_of(rows)
    parts += [_PREDICTIONS, *(f"    {profile_command(line)}" for line in lines[:1]), "", *predictions_table(lines), ""]
    counts = ", ".join(f"{sum(line.target == target for line in lines)} on {target}" for target in TARGETS)
    parts += [f"Predicted so far, of {count_text(len(rows), 'model')}: {counts}.", ""]
    left = [row.entry.title for row in rows if not row.predictions and not row.refused]
    parts += [f"Not predicted yet: {'; '.join(left)}.", ""] if left else []
    refused = [(row, target, why) for row in rows for target, why in row.refused.items()]
    if refused:
        parts += ["## Refused", "", *_table(("model", "target", "why"), map(_refusal, refused)), ""]
    return "\n".join([*parts, _PUBLISHED, *published_table(rows), "", _COST.rstrip("\n")]) + "\n"


def _versions(rows: Sequence[Result]) -> list[str]:
    """The code that made the numbers."""
    return [*(f"- {text[0].upper()}{text[1:]}." for text in version_texts(rows)), _VERSIONS.rstrip("\n")]


def _contents(rows: Sequence[Result]) -> list[str]:
    cells = [
        (row.entry.kind, row.entry.title, size_cell(row).text, size_text(row.size), row.entry.exporter) for row in rows
    ]
    return _table(("kind", "model", "parameters", "file", "exporter"), cells, right=(2, 3))


def accuracy_table(rows: Sequence[Result]) -> list[str]:
    """A row for each model, with the columns of both dtypes."""
    columns = ("difference", "rank", "cosine", "top-1")
    heads = ("model", "items", *(f"float32: {one}" for one in columns), *(f"bfloat16: {one}" for one in columns))
    lines = []
    for row in rows:
        items = sorted({found.items for found in row.accuracy.values()})
        cells = [cell.text for dtype in ("float32", "bfloat16") for cell in accuracy_cells(row, dtype)]
        lines.append((row.entry.title, " and ".join(map(str, items)) or "-", *cells))
    return _table(heads, lines, right=range(1, 10))


def predictions_table(lines: Sequence[Line]) -> list[str]:
    """A row for each model and target."""
    heads = ["model", "target", "first batch", "ms", "best batch", "ms", "ms an item", "items/s"]
    heads += ["instructions", "SBUF", "bound by"]
    rows = []
    for line in lines:
        first, best = line.first, line.best
        cells = [time_cell(best), item_cell(best), rate_cell(best), instructions_cell(best), sbuf_cell(best)]
        cells.append(held_cell(best))
        start = (line.row.entry.title, line.target, str(first.batch), time_cell(first).text, batch_cell(line).text)
        rows.append((*start, *(cell.text for cell in cells)))
    return _table(heads, rows, right=range(2, 10))


def published_table(rows: Sequence[Result]) -> list[str]:
    """A row for each figure of a model that the results have."""
    titles = {row.entry.name: row.entry.title for row in rows}
    best = {(line.row.entry.name, line.target): line.best for line in lines_of(rows)}
    lines = []
    for one in list_published():
        if one.model in titles:
            read = f"read {one.read}" if one.read else "as issue 25 of this project quotes it; not read again"
            found = best.get((one.model, one.target))
            ours = "-" if found is None else f"{rate_cell(found).text}/s on {one.target}, batch {found.batch}"
            what = f"{one.what}; {one.clock_text}"
            lines.append((titles[one.model], figure_text(one), what, f"[{one.source}]({one.page}), {read}", ours))
    return _table(("model", "figure", "what it is", "source", "predicted here"), lines)


def _refusal(refused: tuple[Result, str, tuple[str, ...]]) -> tuple[str, str, str]:
    row, target, why = refused
    more = [f"and {count_text(len(why) - 3, 'more reason')}"] if len(why) > 3 else []
    return row.entry.title, target, "; ".join([*why[:3], *more])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """A Markdown table; columns in ``right`` are right-aligned."""
    numbers = set(right)
    rule = "|".join("---:" if place in numbers else "---" for place in range(len(heads)))
    cells = [[cell.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in cells)]
