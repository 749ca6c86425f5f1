"""The time of a kept case by the imported ``trnrt``'s model: its parts traced, timed, and added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.baseline.library import load
from trnrt.nki import Profile, Spec, trace
from trnrt.nki.floor import floor_program
from trnrt.nki.profiling import Step, profile_programs


@dataclass(frozen=True)
class Range:
    """The predicted range of a benchmark's figure, microseconds; ``cause`` says what is uncertain."""

    low: float
    headline: float
    high: float
    cause: str = ""


def range_of(found: Profile) -> Range:
    """The benchmark's range of a profile, and the main cause of its width."""
    known = found.benchmark
    cause = found.causes[0].name if known.most_us > known.least_us and found.causes else ""
    return Range(known.least_us, known.us, known.most_us, cause)


def time_part(part: dict[str, Any], target: str, dtype: str) -> Profile:
    """The profile of one kernel module, as ``trnrt.running.profiler.profile_plan`` makes it of a plan."""
    kernel = getattr(load(part["module"]), part["entry"])
    arguments = _specs([*part["inputs"], *part["weights"]])
    program = trace(kernel, *arguments, target=target, **part["options"])
    if "steps" not in part:
        return profile_programs([program], dtype=dtype)
    steps = [Step(name, tuple(nodes), (first, last)) for name, nodes, (first, last) in part["steps"]]
    if part["weights_ahead"]:
        steps.append(Step("(weights brought ahead)", (), (0, 0)))
    floor = floor_program(_specs(part["inputs"]), _specs(part["results"]), target)
    return profile_programs([program], steps=steps, dtype=dtype, floor=floor)


def time_case(case: dict[str, Any]) -> tuple[Range, float]:
    """The range of a case, round trips to the CPU included, and a profiler's figure for its parts.

    Causes from several parts are listed side by side.
    """
    found = [time_part(part, case["target"], case["dtype"]) for part in case["parts"]]
    ranges, crossings = [range_of(one) for one in found], case["crossings_us"]
    low, headline, high = (
        sum(getattr(one, name) for one in ranges) + crossings for name in ("low", "headline", "high")
    )
    causes = dict.fromkeys(one.cause for one in ranges if one.cause)
    return Range(low, headline, high, "; ".join(causes)), sum(one.profiler_us for one in found) + crossings


def _specs(described: Sequence[tuple[Sequence[int], str]]) -> list[Spec]:
    return [Spec(tuple(shape), dtype) for shape, dtype in described]
