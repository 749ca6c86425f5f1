"""A device profile beside the prediction, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.report.profiles import STEPS_SHOWN
from trnrt.report.tables import plain_table
from trnrt.text import count_text, escape_text, name_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.neuron.captured import Attribution, StepMeasured
    from trnrt.report.documents import Document


def attribution_document(found: Attribution) -> Document:
    """``device_profile``: times in microseconds; ``inferred`` of a step's ``instructions`` were assigned by order of
    execution; ``rest`` belongs to no single step."""
    return asdict(found)


def attribution_parts(found: Attribution) -> list[RenderableType]:
    """Measured and predicted times, a line for each step, and the rest."""
    where = f" on {escape_text(found.instance)}" if found.instance else ""
    total = f"{found.total_us:,.1f} us" if found.total_us is not None else "not in the profile"
    head = (
        f"{name_text(found.part)} as captured{where}: total_time {total}; predicted: {found.predicted_total_us:,.1f} us"
    )
    steps = sorted(found.steps, key=lambda step: -step.active_us)[:STEPS_SHOWN]
    rows = [_row(step) for step in found.steps if step in steps]
    for rest in found.rest:
        name = f"(shared by {', '.join(map(name_text, rest.steps))})" if rest.steps else "(of no known line)"
        rows.append((name, "", f"{rest.active_us:,.2f}", "", "", f"{rest.instructions:,}", ""))
    columns = ("step", "predicted us", "measured us", "ratio", "from - to", "instructions", "inferred")
    parts: list[RenderableType] = [
        Text(head, "bold"),
        plain_table(columns, rows, (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6)),
    ]
    hidden = len(found.steps) - len(steps)
    if hidden > 0:
        parts.append(Text(f"and {count_text(hidden, 'more step')} that took less"))
    return [*parts, Text(_meaning(found)), *(Text(escape_text(note)) for note in found.notes), ""]


def _row(step: StepMeasured) -> tuple[str, ...]:
    ratio = f"{step.active_us / step.predicted_active_us:.2f}" if step.predicted_active_us and step.instructions else ""
    when = f"{step.start_us:,.1f} - {step.end_us:,.1f}" if step.instructions else "not seen"
    share = f"{step.inferred / step.instructions:.0%}" if step.inferred else ""
    return (
        name_text(step.name),
        f"{step.predicted_active_us:,.2f}",
        f"{step.active_us:,.2f}" if step.instructions else "",
        ratio,
        when,
        f"{step.instructions:,}",
        share,
    )


def _meaning(found: Attribution) -> str:
    what = "an instruction of the step, or its transfer, ran" if found.dma else "an instruction of the step ran"
    notes = [f"us: the time in which {what}; steps overlap, waits are not counted"]
    if not found.dma:
        notes.append("the profile has no times of transfers")
    if any(step.inferred for step in found.steps):
        notes.append("inferred: instructions of a line that several steps share, assigned by order of execution")
    return "; ".join(notes)
