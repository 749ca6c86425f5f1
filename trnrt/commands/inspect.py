"""``trnrt inspect``: the step of every node, and the place of each tensor."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.members import Stage
from trnrt.commands.opening import check_rows, fixed_batch, open_session, target_notes
from trnrt.commands.options import Reporting
from trnrt.commands.records import SessionOptions, Viewing
from trnrt.commands.repeating import inspect_flags
from trnrt.commands.results import deliver
from trnrt.errors import OptionError, UnsupportedModelError
from trnrt.report.console import complain, render
from trnrt.report.documents import as_text, inspect_document, stage_document, unsupported_document
from trnrt.report.files import check_writable, write_text
from trnrt.report.progress import working
from trnrt.text import count_text, escape_text, name_text, range_text

if TYPE_CHECKING:
    from trnrt.nki.breakdown import PlanCost
    from trnrt.planner.parts.partition import Partition
    from trnrt.planner.parts.ways_out import Cut, FallbackCost
    from trnrt.planner.plan import NodeReport
    from trnrt.session import InferenceSession


HOLDERS_SHOWN = 5
"""The most parts of the critical path that are shown."""


def inspect(model: Path, options: SessionOptions, viewing: Viewing, reporting: Reporting) -> bool:
    """Print a stage of the model; return whether trnrt can run it."""
    _check(viewing)
    stage = viewing.stage
    session = open_session(model, options)
    from trnrt.planner.parts.partition import fallback_notes

    rows = rows_to_plan(session, viewing.batch)
    if stage is not Stage.PLANNED:
        listing = _listing(session, stage, rows)
        deliver(reporting, stage_document(session.model, stage.value, listing), listing)
        return True
    try:
        with working("planning"):
            partition = session.partition(rows)
    except UnsupportedModelError as error:
        _refuse(session, model, inspect_flags(options, viewing.batch), rows, error, reporting)
        return False
    _save_plan(partition, viewing.save_plan)
    if viewing.why is not None:
        _explain(session, partition, rows, viewing.why, reporting)
        return True
    shown_batch = rows if session.model.batch is not None else None
    cost = _cost(partition) if viewing.tiles else None
    notes = [*fallback_notes(partition), *target_notes(partition.target)]
    document = inspect_document(partition, shown_batch, cost, notes)
    deliver(reporting, document, _text(partition, shown_batch, cost, notes))
    return True


def _check(viewing: Viewing) -> None:
    """OptionError for flags that contradict each other, or a file that can't be written."""
    flags = {"--why": viewing.why, "--save-plan": viewing.save_plan}
    given = [flag for flag, value in flags.items() if value is not None]
    if given and viewing.stage is not Stage.PLANNED:
        raise OptionError(
            f"{given[0]} needs the plan, and --stage {viewing.stage.value} comes before it", hint="leave --stage out"
        )
    if viewing.save_plan is not None:
        check_writable(viewing.save_plan)


def _save_plan(partition: Partition, path: Path | None) -> None:
    """Write the plan where ``--save-plan`` names a file."""
    if path is not None:
        from trnrt.planner.saving.planfile import plan_document

        write_text(path, as_text(plan_document(partition)))


def _explain(session: InferenceSession, partition: Partition, rows: int, wanted: str, reporting: Reporting) -> None:
    """Print the alternatives for the step that ``--why`` names, and the cost of each."""
    from trnrt.commands.overriding import weigh
    from trnrt.report.weighing import why_document, why_parts

    step, weighed = weigh(session, partition, rows, wanted)
    document = why_document(partition, step, weighed)
    deliver(reporting, document, render(why_parts(partition, step, weighed)))


def _cost(partition: Partition) -> PlanCost:
    """The predicted cost of all parts on the device, with the tiles of every step."""
    from trnrt.running.profiler import add_costs, cost_of_plan

    found: list[PlanCost] = []
    for number, plan in enumerate(partition.plans, 1):
        which = f" of part {number} of {len(partition.plans)}" if len(partition.plans) > 1 else ""
        with working(f"tracing {count_text(len(plan.steps), 'step')}{which} (--no-tiles leaves this out)"):
            found.append(cost_of_plan(plan))
    return add_costs(found, partition.crossings_us)


def rows_to_plan(session: InferenceSession, batch: int | None) -> int:
    """Rows to plan for: ``batch``, else the model's fixed batch, else 1. OptionError if that contradicts the model."""
    check_rows(session, batch, "--batch")
    fixed = fixed_batch(session)
    if fixed is not None and batch not in (None, fixed):
        raise OptionError(
            f"--batch {batch}: the model's batch is fixed at {fixed}",
            hint="leave --batch out; trnrt run takes any number of rows, and runs them in slices",
        )
    return batch or fixed or 1


def _listing(session: InferenceSession, stage: Stage, rows: int) -> str:
    from trnrt.importer import describe

    if stage is Stage.IMPORTED:
        return describe(session.model.model)
    return describe(session.model.bind(session.shapes_for(rows)).model)


def _text(partition: Partition, batch: int | None, cost: PlanCost | None, notes: Sequence[str]) -> str:
    from rich.text import Text

    from trnrt.report.tables import blockers_table, kernels_table, nodes_table, parts_table, steps_table

    rows = "" if batch is None else f", planned for {count_text(batch, 'row')}"
    heading = f"{name_text(partition.name)}: {partition.dtype} on {partition.target}{rows}"
    steps = [step for plan in partition.plans for step in plan.steps]
    counts = f"{count_text(len(partition.nodes), 'node')} in {count_text(len(steps), 'step')}"
    parts: list[Any] = [Text(f"{heading}; {counts}", "bold"), ""]
    if partition.blockers:
        parts += [Text("not on the NeuronCore:", "bold"), blockers_table(partition.blockers), ""]
        parts += [parts_table(partition), ""]
    parts.append(nodes_table(partition.nodes))
    if steps:
        parts += ["", steps_table(steps)]
        parts += [] if cost is None else ["", *_cost_parts(cost)]
    if partition.plans:
        parts += ["", kernels_table(partition)]
    if notes := [*partition.notes, *notes]:
        parts += ["", *(Text(f"- {escape_text(note)}") for note in notes)]
    return render(parts)


def _cost_parts(cost: PlanCost) -> list[Any]:
    """Each step's tiles and time, and what holds the whole."""
    from trnrt.report.tables import tiles_table

    held = ", ".join(f"{one.by} {one.us / cost.predicted.us:.0%}" for one in cost.held[:HOLDERS_SHOWN])
    return [tiles_table(cost.steps.values()), "", f"predicted: {range_text(cost.predicted)}; held by {held}"]


def _refuse(
    session: InferenceSession,
    path: Path,
    flags: Sequence[str],
    rows: int,
    error: UnsupportedModelError,
    reporting: Reporting,
) -> None:
    """Print every blocker, and the ways out that work; ``flags`` are those of this command."""
    from trnrt.planner.parts.ways_out import fallback_cost, find_cut
    from trnrt.report.tables import blockers_table

    cut = cost = None
    if session.options.fallback is None:
        with working("looking for ways out"):
            shapes = session.shapes_for(rows)
            cut = find_cut(session.model, shapes, session.options, [blocker.node for blocker in error.blockers])
            cost = fallback_cost(session.model, shapes, session.options)
    ways = ways_out_lines(path, flags, cut, cost)
    document = unsupported_document(session.name, _known_nodes(session, error), error.blockers)
    document["ways_out"] = {"cut": cut and asdict(cut), "fallback": cost and asdict(cost)}
    # A command must stay on one line, to be copied: no terminal's width bounds it.
    text = "\n".join([render([blockers_table(error.blockers)]), *(["", "ways out", *ways] if ways else [])])
    deliver(reporting, document, text)
    complain(f"{name_text(session.name)} can't run on the NeuronCore, for {count_text(len(error.blockers), 'reason')}")


def ways_out_lines(path: Path, flags: Sequence[str], cut: Cut | None, cost: FallbackCost | None) -> list[str]:
    """The commands that avoid a refusal, with what each keeps or costs. No cut at tensors whose names aren't ASCII.

    ``flags`` are those of the refused command: the fallback needs them, too.
    """
    lines = []
    if cut is not None and all(name.isprintable() and name.isascii() for name in cut.outputs):
        out = _path_argument(path.with_name(f"{path.stem}_cut.onnx"))
        lines.append(f"  trnrt cut {_path_argument(path)} {_outputs_argument(cut.outputs)} -o {out}")
        lines.append(f"    keeps {cut.kept:,} of {count_text(cut.nodes, 'node')}, all on the NeuronCore")
    if cost is not None:
        words = [_path_argument(path), *map(shlex.quote, flags), "--fallback onnxruntime"]
        lines.append(f"  trnrt inspect {' '.join(words)}")
        trips = f"round trips of {cost.crossings_us:,.1f} us" if cost.crossings_us else "no round trip"
        on_cpu = f"{cost.on_cpu:,} of {count_text(cost.nodes, 'node')} on the CPU"
        lines.append(f"    {on_cpu}: {trips}; the CPU's own time is not predicted")
    return lines


def _path_argument(path: Path) -> str:
    """A path as the shell takes it, and not as an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def _outputs_argument(names: Sequence[str]) -> str:
    """``--outputs`` with these names; one with each if a name looks like an option."""
    if any(name.startswith("-") for name in names):
        return " ".join(f"--outputs={shlex.quote(name)}" for name in names)
    return " ".join(["--outputs", *map(shlex.quote, names)])


def _known_nodes(session: InferenceSession, error: UnsupportedModelError) -> list[NodeReport]:
    """The file's nodes; those that block the model with the reason, the others unplanned."""
    from trnrt.planner.lowering.walk import node_name, operator_name
    from trnrt.planner.plan import NodeReport

    reasons: dict[str, str] = {}
    for blocker in error.blockers:
        reasons.setdefault(blocker.node, blocker.reason)
    return [
        NodeReport(
            name, operator_name(node), None, None, "none", reasons.get(name, "not planned: others block the model")
        )
        for node in session.model.model.graph
        for name in [node_name(node)]
    ]
