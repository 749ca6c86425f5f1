"""The tables of each verb. Without lines, so that they read the same in a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from trnrt.report.documents import dtype_name
from trnrt.report.text import aligned_number, error_text, escaped, escaped_lines, number_text, shape_text, shown

if TYPE_CHECKING:
    import numpy.typing as npt

    from trnrt.bench.measuring import Row
    from trnrt.errors import Blocker
    from trnrt.nki.checking import CheckedCall
    from trnrt.nki.sim.subset_source import Finding
    from trnrt.planner.plan import NodeReport, StepReport
    from trnrt.report.top import Top
    from trnrt.validate import ValidationReport

ROWS_SHOWN = 10
"""Rows of a batch that the tables of ``run`` show."""

_VALUES_SHOWN = 5


def outputs_table(outputs: Mapping[str, npt.NDArray[Any]]) -> Table:
    """A line for each output of a run: what it is, and how it starts."""
    rows = [
        (shown(name), dtype_name(array), shape_text(array.shape), _first_values(array))
        for name, array in outputs.items()
    ]
    return plain_table(("output", "dtype", "shape", "values"), rows)


def top_table(top: Top) -> Table:
    """The best classes of the first rows."""
    labelled = any(choice.label is not None for row in top.rows for choice in row)
    rows = [
        ("" if rank else str(index), str(choice.index), aligned_number(choice.number), shown(choice.label or ""))
        for index, row in enumerate(top.rows[:ROWS_SHOWN])
        for rank, choice in enumerate(row)
    ]
    number = "share" if top.softmax else "number"
    columns = ("row", "class", number, "label") if labelled else ("row", "class", number)
    return plain_table(columns, [row[: len(columns)] for row in rows], right=(0, 1, 2))


def comparison_table(report: ValidationReport) -> Table:
    """A line for each output of a validation: how far it is from onnxruntime's."""
    rows = [
        (
            shown(output.name),
            output.dtype,
            error_text(output.max_abs),
            error_text(output.max_rel),
            error_text(output.required_rtol),
            Text("pass", "green") if output.passed else Text("FAIL", "bold red"),
        )
        for output in report.outputs
    ]
    return plain_table(("output", "dtype", "max abs", "max rel", "rtol needed", "verdict"), rows, right=(2, 3, 4))


def nodes_table(nodes: Iterable[NodeReport]) -> Table:
    """A line for each ONNX node: the step and the kernel it went to, and why."""
    rows = [
        (
            shown(node.name),
            shown(node.op),
            shown(node.step or "-"),
            node.kernel or "-",
            node.place,
            escaped(node.reason),
        )
        for node in nodes
    ]
    return plain_table(("node", "op", "step", "kernel", "place", "why"), rows)


def steps_table(steps: Iterable[StepReport]) -> Table:
    """A line for each step: the tensor it makes, where that lives, and why there."""
    rows = [
        (
            shown(step.name),
            step.kernel,
            shown(step.output),
            shape_text(step.shape),
            step.place,
            step.layout,
            escaped(step.reason),
        )
        for step in steps
    ]
    return plain_table(("step", "kernel", "output", "shape", "place", "layout", "why"), rows)


def blockers_table(blockers: Iterable[Blocker]) -> Table:
    """A line for each reason why a model can't run."""
    rows = [(shown(b.node), shown(b.op), escaped(b.reason), escaped(b.hint)) for b in blockers]
    count = 4 if any(hint for *_, hint in rows) else 3
    return plain_table(("node", "op", "why not", "what would help")[:count], [row[:count] for row in rows])


def findings_table(findings: Iterable[Finding]) -> Table:
    """A line for each place of a kernel file that is refused, and what to write instead."""
    rows = [
        (f"{shown(f.file)}:{f.line}:{f.column}", f.rule, escaped_lines(f.message), escaped_lines(f.instead))
        for f in findings
    ]
    return plain_table(("where", "rule", "what is wrong", "instead"), rows)


def calls_table(calls: Iterable[CheckedCall]) -> Table:
    """A line for each kernel call that was traced."""
    rows = [
        (
            f"{shown(call.kernel)}({shown(call.arguments)})",
            _amount(call.instructions),
            _amount(call.sbuf_peak_bytes),
            _amount(call.psum_peak_bytes),
            Text("pass", "green") if call.error is None else Text("FAIL", "bold red"),
        )
        for call in calls
    ]
    columns = ("call", "instructions", "SBUF bytes/partition", "PSUM bytes/partition", "verdict")
    return plain_table(columns, rows, right=(1, 2, 3))


def bench_table(rows: Iterable[Row]) -> Table:
    """A line for each measurement, with its bar."""
    verdicts = {None: Text("-"), True: Text("pass", "green"), False: Text("MISS", "bold red")}
    lines = [
        (
            row.case,
            "-" if row.value is None else f"{row.value:,.0f}" if row.value >= 1000 else f"{row.value:.2f}",
            row.unit,
            "-" if row.bar is None else f"{'>=' if row.at_least else '<='} {row.bar:,g}",
            verdicts[row.passed],
            row.note,
        )
        for row in rows
    ]
    return plain_table(("case", "value", "unit", "bar", "verdict", "how"), lines, right=(1, 3))


def _amount(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[int] = (), whole: Sequence[int] = ()
) -> Table:
    """A table without lines; the columns ``right`` are aligned to the right, ``whole`` ones keep their lines whole."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold", no_wrap=index in whole)
    for row in rows:
        # Text, not str: rich would read brackets in a name as markup.
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _first_values(array: npt.NDArray[Any]) -> str:
    values = [_value_text(value) for value in array.flat[:_VALUES_SHOWN].tolist()]
    return " ".join([*values, "..."] if array.size > len(values) else values)


def _value_text(value: Any) -> str:
    return number_text(value) if isinstance(value, float) else shown(str(value))
