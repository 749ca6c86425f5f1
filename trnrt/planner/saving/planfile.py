"""A plan as a small document to be edited, and the choices that an edited one asks for.

Nothing in such a file is executed: its names only choose among steps and nodes of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trnrt.errors import OptionError
from trnrt.nki.machine.targets import data_digest
from trnrt.planner.checking import unknown
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.parts.partition import Partition
from trnrt.planner.plan import StepReport
from trnrt.text import list_text, name_text, quote

SCHEMA_VERSION = 1
MOST_STEPS = 20_000
MOST_OPTIONS = 16
MOST_ROWS = 4096
"""The most rows in a file: planning takes memory and time per row."""

_PLACES = ("sbuf", "hbm")
_LOADING = ("prefetched", "own", "none")


@dataclass(frozen=True)
class Entry:
    """A step of the file. None leaves the choice to the planner; options left out are defaults."""

    step: str
    nodes: tuple[str, ...]
    place: str | None
    weights: str | None
    options: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True)
class PlanFile:
    """A parsed file: its model and device, its steps, and how its batch is divided (see ``Choices``).

    ``timing``: the digest of the target's data that chose it; "" if the file doesn't say.
    """

    model: str
    target: str
    dtype: str
    batch: int | None
    entries: tuple[Entry, ...]
    sweeps: frozenset[tuple[str, str, int]] = frozenset()
    rows: int | None = None
    share: float | None = None
    timing: str = ""


def plan_document(partition: Partition) -> dict[str, Any]:
    """The plan as JSON: of all parts on the device together."""
    chosen = partition.choices.document
    return {
        "schema_version": SCHEMA_VERSION,
        "model": partition.name,
        "target": partition.target,
        "dtype": partition.dtype,
        "batch": partition.batch,
        "timing": data_digest(partition.target),
        **{key: chosen[key] for key in ("rows", "sweeps", "share")},
        "steps": [
            {
                "step": step.name,
                "kernel": step.kernel,
                "nodes": list(step.nodes),
                "output": step.output,
                "place": step.place,
                "why": step.reason,
                "weights": step.weights,
                "options": dict(step.options),
            }
            for step in partition.steps
        ],
    }


def parse_plan(content: bytes) -> PlanFile:
    """Parse ``content``. ValueError, with the reason, where it is no plan."""
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    if type(document.get("schema_version")) is not int or document["schema_version"] != SCHEMA_VERSION:
        found = name_text(str(document.get("schema_version")))
        raise ValueError(f"it has schema_version {found}; this trnrt reads {SCHEMA_VERSION}")
    model, target, dtype = (_text(document, key, "the plan") for key in ("model", "target", "dtype"))
    batch = document.get("batch")
    if batch is not None and (type(batch) is not int or not 1 <= batch <= MOST_ROWS):
        raise ValueError(f"batch is {name_text(str(batch))}; it is null, or 1 to {MOST_ROWS} rows")
    steps = document.get("steps")
    if not isinstance(steps, list) or len(steps) > MOST_STEPS:
        raise ValueError(f"steps is no list of up to {MOST_STEPS:,} steps")
    entries = tuple(_entry(k, step) for k, step in enumerate(steps, 1))
    timing = _text(document, "timing", "the plan") if "timing" in document else ""
    return PlanFile(model, target, dtype, batch, entries, *_division(document), timing)


def _division(document: dict[str, Any]) -> tuple[frozenset[tuple[str, str, int]], int | None, float | None]:
    """The sweeps, the rows of a pass, and the share of SBUF for weights."""
    sweeps, rows, share = document.get("sweeps", []), document.get("rows"), document.get("share")
    if rows is not None and (type(rows) is not int or not 1 <= rows <= MOST_ROWS):
        raise ValueError(f"rows is {name_text(str(rows))}; it is null, or 1 to {MOST_ROWS} rows of a pass")
    if share is not None and (type(share) is not float or not 0 < share < 1):
        raise ValueError(f"share is {name_text(str(share))}; it is null, or between 0.0 and 1.0")
    if not isinstance(sweeps, list) or len(sweeps) > MOST_STEPS or not all(map(_is_sweep, sweeps)):
        raise ValueError("sweeps is no list of [first step, last step, images]")
    return frozenset((first, last, images) for first, last, images in sweeps), rows, share


def _is_sweep(found: Any) -> bool:
    return isinstance(found, list) and [type(part) for part in found] == [str, str, int] and 1 <= found[2] <= MOST_ROWS


def choices_of(file: PlanFile, plan: Callable[[Choices], Partition]) -> tuple[Choices, list[str]]:
    """The file's choices that differ from the planner's; and, in words, which of them can't be followed.

    ``plan`` makes the parts for given choices. Raises OptionError, with the step and the reason, for impossible ones.
    """
    default = plan(DEFAULT)
    _check_nodes(file, default.steps)
    apart = Choices(no_fuse=frozenset(_starts(file, default.steps)))
    split = default if apart == DEFAULT else plan(apart)
    pairs = list(_pairs(file, split, default))
    for entry, step in pairs:
        _check_loading(entry, step)
    choices = Choices(
        apart.no_fuse,
        frozenset(step.output for entry, step in pairs if (entry.place, step.place) == ("hbm", "sbuf")),
        frozenset(step.name for entry, step in pairs if (entry.weights, step.weights) == ("own", "prefetched")),
        frozenset((step.name, option, value) for entry, step in pairs for option, value in entry.options),
        file.sweeps,
        file.rows,
        file.share,
    )
    made = split if choices == apart else plan(choices)
    return choices, list(_differences(file, made, default))


def _entry(number: int, step: Any) -> Entry:
    what = f"step number {number}"
    if not isinstance(step, dict):
        raise ValueError(f"{what} is no object")
    name = _text(step, "step", what)
    nodes = step.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
        raise ValueError(f"{what}, {quote(name)}, has no list of nodes")
    place, weights = (_word(step, key, words) for key, words in (("place", _PLACES), ("weights", _LOADING)))
    return Entry(name, tuple(nodes), place, weights, _options(step, name))


def _options(step: dict[str, Any], name: str) -> tuple[tuple[str, int | str], ...]:
    options = step.get("options", {})
    if not isinstance(options, dict) or len(options) > MOST_OPTIONS:
        raise ValueError(f"options of step {quote(name)} is no object of up to {MOST_OPTIONS}")
    if not all(isinstance(value, (int, str)) and not isinstance(value, bool) for value in options.values()):
        raise ValueError(f"options of step {quote(name)} are not all whole numbers or words")
    return tuple(sorted(options.items()))


def _text(document: dict[str, Any], key: str, what: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} of {what} is no text")
    return value


def _word(step: dict[str, Any], key: str, words: Sequence[str]) -> str | None:
    value = step.get(key)
    if value is not None and value not in words:
        raise ValueError(f"{key} of step {quote(str(step['step']))} is not {' or '.join(words)}")
    return value if isinstance(value, str) else None


def _check_nodes(file: PlanFile, steps: Sequence[StepReport]) -> None:
    """Check that steps compute exactly the nodes in the file."""
    known = list(dict.fromkeys(node for step in steps for node in step.nodes))
    named = {node for entry in file.entries for node in entry.nodes}
    for node in sorted(named.difference(known)):
        raise unknown("--plan", "node in a step", node, known)
    for step in steps:
        lost = [node for node in step.nodes if node not in named]
        if lost:
            raise OptionError(
                f"--plan: the file has no step for node {quote(lost[0])}, which step {quote(step.name)} computes",
                hint="a step can be split, not left out; --save-plan writes a whole plan",
            )


def _starts(file: PlanFile, steps: Sequence[StepReport]) -> Iterator[str]:
    """The first nodes of the later parts of a step that the file splits."""
    homes: dict[str, list[int]] = {}
    for number, entry in enumerate(file.entries):
        for node in dict.fromkeys(entry.nodes):
            homes.setdefault(node, []).append(number)
    for step in steps:
        parts: dict[int, list[str]] = {}
        for node in step.nodes:
            for number in homes[node]:
                parts.setdefault(number, []).append(node)
        if all(len(part) < len(step.nodes) for part in parts.values()):
            yield from {part[0] for part in parts.values()} - {step.nodes[0]}


def _pairs(file: PlanFile, made: Partition, default: Partition) -> Iterator[tuple[Entry, StepReport]]:
    """Each step of the file with the plan's step for its nodes. Raises OptionError if there is none."""
    left: dict[tuple[str, ...], list[StepReport]] = {}
    for step in made.steps:
        left.setdefault(tuple(sorted(step.nodes)), []).append(step)
    by_default = {(step.name, step.nodes) for step in default.steps}
    for entry in file.entries:
        same = left.get(tuple(sorted(entry.nodes)), [])
        found = next((step for step in same if step.name == entry.step), same[0] if same else None)
        if found is not None:
            same.remove(found)
            yield entry, found
        elif (entry.step, entry.nodes) not in by_default:
            raise _not_so(entry, made)


def _not_so(entry: Entry, made: Partition) -> OptionError:
    """The error for a step that can't consist of these nodes."""
    if not entry.nodes:
        return OptionError(f"--plan: step {quote(entry.step)} has no nodes", hint="leave it out")
    homes = {node: step for step in made.steps for node in step.nodes}
    first = homes[entry.nodes[0]]
    other = next((node for node in entry.nodes if homes[node].name != first.name), None)
    wrong = f"--plan: step {quote(entry.step)} can't be {_nodes_text(entry.nodes)}"
    if other is None:
        return OptionError(
            f"{wrong}: the planner computes them in step {quote(first.name)}, which is {_nodes_text(first.nodes)}",
            hint="each node once; a step can be split before a node that reads what the nodes before it make",
        )
    reason = next(report.reason for report in made.nodes if report.name == other)
    return OptionError(
        f"{wrong}: {quote(other)} is computed in step {quote(homes[other].name)} ({reason})",
        hint="nodes can be split from a step; they can't be joined to one that the planner does not fuse them into",
    )


def _nodes_text(nodes: Sequence[str]) -> str:
    return list_text([quote(node) for node in nodes])


def _check_loading(entry: Entry, step: StepReport) -> None:
    """Raise OptionError if a file names weights of a step without any, or omits those of a step with some."""
    if entry.weights is not None and (entry.weights == "none") != (step.weights == "none"):
        has = "none" if step.weights == "none" else step.weights
        raise OptionError(
            f'--plan: step {quote(entry.step)} has weights "{entry.weights}", and in the plan {has}',
            hint="leave weights out of the step, or say what the plan says",
        )


def _differences(file: PlanFile, made: Partition, default: Partition) -> Iterator[str]:
    """Differences between a file and its plan, in words, where the file repeats the default plan.

    OptionError if the user changed it.
    """
    before = {(step.name, step.nodes): step for step in default.steps}
    for entry, step in _pairs(file, made, default):
        old = before.get((entry.step, entry.nodes))
        settings = (
            ("place", entry.place, step.place, old and old.place, step.reason),
            ("weights", entry.weights, step.weights, old and old.weights, step.weights_reason),
        )
        for key, wanted, got, unasked, reason in settings:
            if wanted is None or wanted == got:
                continue
            if wanted != unasked:
                raise OptionError(
                    f'--plan: {key} "{wanted}" can\'t be for step {quote(entry.step)}: {reason}',
                    hint=f'write "{got}", or change what is in the way',
                )
            yield f'step {quote(entry.step)}: {key} "{got}", not "{wanted}": {reason}'
