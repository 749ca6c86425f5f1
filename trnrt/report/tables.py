"""The tables of each verb, without lines: they read the same in a terminal and in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trnrt.report.documents import dtype_name
from trnrt.report.layout import Grid, Line
from trnrt.report.layout import plain_table as plain_table
from trnrt.text import (
    aligned_number,
    count_text,
    error_text,
    escape_text,
    escaped_lines,
    name_text,
    number_text,
    shape_text,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.text import Text

    from trnrt.errors import Blocker
    from trnrt.nki.breakdown import StepCost
    from trnrt.nki.checking import CheckedCall
    from trnrt.nki.sim.subset_source import Finding
    from trnrt.nki.tiles import StepTiles
    from trnrt.planner.parts.partition import Partition
    from trnrt.planner.plan import NodeReport, StepReport
    from trnrt.report.top import Top
    from trnrt.validate import ValidationReport
    from trnrt.validate.integers import IntegersReport

ROWS_SHOWN = 10
"""The most rows of a batch that ``run`` shows."""

_VALUES_SHOWN = 5


def outputs_table(outputs: Mapping[str, npt.NDArray[Any]]) -> Grid:
    """A line for each output of a run, with its first values."""
    rows = [
        (name_text(name), dtype_name(array), shape_text(array.shape), _first_values(array))
        for name, array in outputs.items()
    ]
    return plain_table(("output", "dtype", "shape", "values"), rows)


def top_table(top: Top) -> Grid:
    """The best classes of the first rows."""
    labelled = any(choice.label is not None for row in top.rows for choice in row)
    rows = [
        ("" if rank else str(index), str(choice.index), aligned_number(choice.number), name_text(choice.label or ""))
        for index, row in enumerate(top.rows[:ROWS_SHOWN])
        for rank, choice in enumerate(row)
    ]
    number = "share" if top.softmax else "number"
    columns = ("row", "class", number, "label") if labelled else ("row", "class", number)
    return plain_table(columns, [row[: len(columns)] for row in rows], right=(0, 1, 2))


def comparison_table(report: ValidationReport) -> Grid:
    """A line for each output of a validation: its errors against onnxruntime's."""
    rows = [
        (
            name_text(output.name),
            output.dtype,
            error_text(output.max_abs),
            error_text(output.max_rel),
            error_text(output.required_rtol),
            error_text(output.error),
            error_text(output.tolerance),
            Line("pass", "green") if output.passed else Line("FAIL", "bold red"),
        )
        for output in report.outputs
    ]
    columns = ("output", "dtype", "max abs", "max rel", "rtol needed", "error", "allowed", "verdict")
    return plain_table(columns, rows, right=(2, 3, 4, 5, 6))


def tolerance_text(report: ValidationReport, dtype: str) -> list[str]:
    """The origin of a validation's tolerances, in a sentence or two."""
    if report.integers is not None:
        return [
            *integers_text(report.integers),
            f"allowed: |difference| <= {report.atol:g} + {report.rtol:g} * |the meaning's|",
        ]
    share = f"{report.rtol:g} * |onnxruntime's|"
    if report.tolerances != "measured":
        return [f"allowed: |difference| <= {report.atol:g} + {share}"]
    explained = [
        f"allowed: what rounding does to each element, by onnxruntime with random roundings, + {share}",
        "error and allowed are those of the element that comes closest to its own, or exceeds it most",
    ]
    if dtype != "float32" and report.passed:
        explained.append(f"the errors are rounding to {dtype}: the float32 path is within its own tolerance")
    return explained


LAYERS_SHOWN = 5
"""Tensors of a quantised model that differ, in text; JSON has all."""


def integers_text(report: IntegersReport) -> list[str]:
    """How a quantised model's integers differ from their meaning, here and in onnxruntime; the first layers that do."""
    lines = ["compared with the integer meaning of the file (docs/quantised.md), not with onnxruntime"]
    if report.compared:
        count = f"{len(report.layers):,} of {count_text(report.compared, 'quantised tensor')}"
        lines.append(f"{count} differ, each recomputed from the values that it was given here")
    for layer in report.layers[:LAYERS_SHOWN]:
        kind = "integer layer, where none may differ" if layer.exact else f"at most {layer.ulps:.2g} ulps from a tie"
        verdict = "tie" if layer.passed else "WRONG"
        lines.append(
            f"{verdict}: {name_text(layer.value)} of {name_text(layer.node)}: {layer.elements:,} of {layer.size:,}"
            f" elements by up to {count_text(layer.steps, 'step')}, {kind}"
        )
    if report.reference_elements:
        lines.append(
            f"onnxruntime's own difference from the meaning: {count_text(report.reference_elements, 'element')} of the"
            f" outputs; trnrt's: {report.own_elements:,}"
        )
    return [*lines, f"reference: {report.reference}"]


def split_table(report: ValidationReport) -> Grid:
    """A line for each 16-bit output: its error in float32, and the error that rounding adds."""
    rows = [
        (
            name_text(output.name),
            error_text(output.max_abs),
            error_text(output.split.float32_max_abs),
            error_text(output.split.rounding_max_abs),
            "" if output.split.rounding_rms is None else f"{output.split.rounding_rms:.2f}",
            Line("rounding", "green") if output.split.float32_passed else Line("float32 is off, too", "bold red"),
        )
        for output in report.outputs
        if output.split is not None
    ]
    columns = ("output", "max abs", "float32 path", "16 bits from float32", "of its noise", "its error is")
    return plain_table(columns, rows, right=(1, 2, 3, 4))


def nodes_table(nodes: Iterable[NodeReport]) -> Grid:
    """A line for each ONNX node: its step and kernel, and why."""
    rows = [
        (
            name_text(node.name),
            name_text(node.op),
            name_text(node.step or "-"),
            node.kernel or "-",
            node.place,
            escape_text(node.reason),
        )
        for node in nodes
    ]
    return plain_table(("node", "op", "step", "kernel", "place", "why"), rows)


def steps_table(steps: Iterable[StepReport]) -> Grid:
    """A line for each step: its output tensor, the tensor's place, and why there."""
    rows = [
        (
            name_text(step.name),
            step.kernel,
            name_text(step.output),
            shape_text(step.shape),
            step.place,
            step.layout,
            escape_text(step.reason),
        )
        for step in steps
    ]
    return plain_table(("step", "kernel", "output", "shape", "place", "layout", "why"), rows)


TILES_SHOWN = 5
"""The most kinds of instructions that a step's line shows."""


def tiles_table(costs: Iterable[StepCost]) -> Grid:
    """A line for each step: its time and what holds it, the memory held while it runs, and its instructions."""
    rows = [
        (
            name_text(cost.tiles.name),
            f"{cost.time_us:,.2f}",
            cost.bound,
            _amount(cost.tiles.sbuf_bytes),
            _amount(cost.tiles.psum_bytes),
            _tile_plan(cost.tiles),
        )
        for cost in costs
    ]
    columns = ("step", "us", "held by", "SBUF", "PSUM", "tile plan (bytes are of one partition)")
    return plain_table(columns, rows, right=(1, 3, 4))


def _tile_plan(step: StepTiles) -> Items:
    counts: dict[str, int] = {}
    for tile in step.tiles:  # engines are added up here; JSON has each
        counts[tile.text] = counts.get(tile.text, 0) + tile.count
    kinds = [f"{count:,} {text}" for text, count in sorted(counts.items(), key=lambda entry: -entry[1])]
    rest = len(kinds) - TILES_SHOWN
    return Items([*kinds[:TILES_SHOWN], *([f"{rest} more kinds"] if rest > 0 else [])])


class Items:
    """A list in a table's cell: lines break between items, not within them."""

    def __init__(self, items: Sequence[str]) -> None:
        self._items = [*(f"{item}," for item in items[:-1]), *items[-1:]]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The widest item at least, all of them in one line at most."""
        from rich.measure import Measurement

        return Measurement(max(map(len, self._items), default=0), len(" ".join(self._items)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """As many items per line as fit."""
        from rich.text import Text

        lines: list[str] = []
        for item in self._items:
            if lines and len(lines[-1]) + 1 + len(item) <= options.max_width:
                lines[-1] += f" {item}"
            else:
                lines.append(item)
        yield from (Text(line, overflow="fold") for line in lines or [""])


def parts_table(partition: Partition) -> Grid:
    """A line for each part of a model: its place, and the cost of its round trip."""
    from trnrt.planner.parts.partition import CpuPart

    rows: list[tuple[str, ...]] = []
    for part in partition.parts:
        if isinstance(part, CpuPart):
            c = part.crossing
            cost = (f"{c.to_host:,}", f"{c.to_device:,}", f"{c.predicted_us:,.1f}")
            rows.append((name_text(part.name), "cpu", f"{len(part.nodes):,}", *cost))
        else:
            rows.append((name_text(part.name), "core", f"{len(part.plan.nodes):,}", "", "", ""))
    columns = ("part", "place", "nodes", "bytes to the CPU", "bytes back", "round trip us")
    return plain_table(columns, rows, right=(2, 3, 4, 5))


def kernels_table(partition: Partition) -> Grid:
    """A line for each kernel: its steps, and its instructions, unrolled and as AWS's compiler sees them."""
    rows = [
        (
            name_text(plan.name),
            _amount(len(plan.steps)),
            _amount(plan.size.unrolled),
            _amount(plan.size.compiled),
            _amount(plan.size.trips) if plan.size.trips > 1 else "-",
        )
        for plan in partition.plans
    ]
    return plain_table(("kernel", "steps", "instructions", "as compiled", "trips"), rows, right=(1, 2, 3, 4))


def blockers_table(blockers: Iterable[Blocker]) -> Grid:
    """A line for each reason why a model can't run."""
    rows = [(name_text(b.node), name_text(b.op), escape_text(b.reason), escape_text(b.hint)) for b in blockers]
    count = 4 if any(hint for *_, hint in rows) else 3
    return plain_table(("node", "op", "why not", "what would help")[:count], [row[:count] for row in rows])


def findings_table(findings: Iterable[Finding]) -> Grid:
    """A line for each refused place of a kernel file, with what to write instead."""
    from trnrt.nki.findings import code_of

    rows = [
        (
            f"{name_text(f.file)}:{f.line}:{f.column}",
            code_of(f.rule),
            f.rule,
            escaped_lines(f.message),
            escaped_lines(f.instead),
        )
        for f in findings
    ]
    # A page of a given width may be narrower than a place: kept whole, it would leave no room for the other columns.
    whole = () if sys.stdout.isatty() or "COLUMNS" in os.environ else (0,)
    return plain_table(("where", "code", "rule", "what is wrong", "instead"), rows, whole=whole)


_FITS = {True: Line("pass", "green"), False: Line("does not fit", "yellow")}


def calls_table(calls: Iterable[CheckedCall], *, clean: bool = True) -> Grid:
    """A line for each kernel call that was traced; none passes if the file isn't ``clean``."""
    passed = _FITS[True] if clean else Line("traced")
    rows = [
        (
            f"{name_text(call.kernel)}({name_text(call.arguments)})",
            _amount(call.instructions),
            _amount(call.sbuf_peak_bytes),
            _amount(call.psum_peak_bytes),
            Line("FAIL", "bold red") if call.error is not None else passed if call.fits is not False else _FITS[False],
        )
        for call in calls
    ]
    columns = ("call", "instructions", "SBUF bytes/partition", "PSUM bytes/partition", "verdict")
    return plain_table(columns, rows, right=(1, 2, 3))


def _amount(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _first_values(array: npt.NDArray[Any]) -> str:
    values = [_value_text(value) for value in array.flat[:_VALUES_SHOWN].tolist()]
    return " ".join([*values, "..."] if array.size > len(values) else values)


def _value_text(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else name_text(str(value))
