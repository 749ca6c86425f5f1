"""The table of ``validate --layers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.report.layout import Grid
from trnrt.report.tables import Items, plain_table
from trnrt.text import error_text, name_text, shape_text

if TYPE_CHECKING:
    from trnrt.validate import LayerComparison, LayersReport


def layers_table(report: LayersReport) -> Grid:
    """A line for each step: its nodes, its output, its longest sum, and both errors beside their tolerances.

    Errors and tolerances are those of the element with the largest ratio.
    """
    columns = ("nodes", "kernel, shape", "K", "isolated", "within", "cumulative", "within", "verdict")
    return plain_table(columns, [_row(layer) for layer in report.layers], right=(2, 3, 4, 5, 6))


def _row(layer: LayerComparison) -> tuple[str | Text | Items, ...]:
    nodes = Items([name_text(name) for name in layer.nodes])
    made = Items([layer.kernel, shape_text(layer.shape).replace(" ", "")])
    isolated, cumulative = layer.isolated, layer.cumulative
    if isolated is None:
        return nodes, made, "", "", "", error_text(cumulative.max_abs), "", Text("-")
    verdict = Text("pass", "green") if layer.passed else Text("FAIL", "bold red")
    numbers = (isolated.error, isolated.tolerance, cumulative.error, cumulative.tolerance)
    return nodes, made, f"{layer.length:,}", *map(error_text, numbers), verdict
