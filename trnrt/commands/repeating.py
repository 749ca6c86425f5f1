"""The flags of a command line, to print a command that plans a model in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trnrt.commands.members import DType, Fallback, Narrow
from trnrt.commands.options import EFFORT

if TYPE_CHECKING:
    from trnrt.commands.records import Planning, SessionOptions


def planning_flags(planning: Planning) -> list[str]:
    """The words that give ``planning``, as the shell passes them; flags with their default value are left out."""
    found = [
        ("--target", planning.target),
        ("--dtype", None if planning.dtype is DType.FLOAT32 else planning.dtype.value),
        ("--calibration", planning.calibration),
        ("--narrow", None if planning.narrow is Narrow.FASTER else planning.narrow.value),
        ("--fallback", None if planning.fallback is Fallback.NONE else planning.fallback.value),
        *(("--shape", text) for text in planning.shape or []),
        ("--max-instructions", None if planning.max_instructions is None else planning.max_instructions or "none"),
    ]
    return [*_words(found)]


def inspect_flags(options: SessionOptions, batch: int | None) -> list[str]:
    """``planning_flags``, and what else changes the plan that ``trnrt inspect`` shows."""
    lnc = None if options.device is None else options.device.lnc
    found = [
        ("--timing", options.planning.timing),
        *(("--no-fuse", name) for name in options.overrides.no_fuse or []),
        ("--plan", options.overrides.plan),
        ("--batch", batch),
        ("--lnc", lnc),
        ("--effort", None if options.effort == EFFORT else options.effort),
    ]
    return [*planning_flags(options.planning), *_words(found)]


def _words(flags: Sequence[tuple[str, object]]) -> Iterator[str]:
    """Each flag that has a value, and the value; in one word if the value looks like a flag."""
    for name, value in flags:
        if value is None:
            continue
        text = str(value)
        yield from [f"{name}={text}"] if text.startswith("-") else [name, text]
