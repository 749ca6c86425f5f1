"""Two kernels side by side: their times by source line and engine, the order of the two, and their numbers."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnrt.nki.errors import KernelError, OptionError
from trnrt.nki.level import Level
from trnrt.nki.lines import match_lines
from trnrt.nki.loading import Launch, find_launches, loading
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Program
from trnrt.nki.numbers import Agreement, compare_results, fill_inputs, named_results
from trnrt.nki.ordering import Order, order_profiles
from trnrt.nki.profiling import Profile, StepUse, profile_programs

_ALIKE = 0.8  # an edited line has most of its characters still

Inputs = Callable[[Program, Sequence[Any]], list[Array]]
"""Gives the arrays to run a program on; the second argument is the call's tensors: arrays, or ``Spec`` without data."""


@dataclass(frozen=True)
class Side:
    """One kernel: its file and call, its predicted cost, and its numbers (None, and a ``problem``, if it can't run)."""

    file: Path
    call: str
    profile: Profile
    results: dict[str, Array] | None
    problem: str = ""


@dataclass(frozen=True)
class LinePair:
    """A line of both kernels, or of one of them: its number in each file, and its part of the critical path.

    ``code``: the line, as the second has it if it was edited. None where a kernel has no such line.
    """

    code: str
    first_line: int | None
    second_line: int | None
    first_us: float | None
    second_us: float | None

    @property
    def difference_us(self) -> float:
        """The second's time less the first's."""
        return (self.second_us or 0.0) - (self.first_us or 0.0)


@dataclass(frozen=True)
class Comparison:
    """Two kernels. ``agreements`` are empty if one of them can't run: then ``problem`` says why."""

    first: Side
    second: Side
    order: Order
    lines: tuple[LinePair, ...]
    agreements: tuple[Agreement, ...]
    problem: str = ""

    @property
    def equal(self) -> bool:
        """The numbers agree within the tolerance."""
        return not self.problem and all(agreement.within for agreement in self.agreements)

    @property
    def slowdown(self) -> float:
        """The percentage by which the second is slower than the first; negative if it is faster."""
        return 100 * (self.order.ratio - 1)


@dataclass(frozen=True)
class Asking:
    """A request to compare two files: the calls of each (empty: those of its script), and the settings.

    ``inputs`` gives the arrays to run both on. ``rtol``, ``atol``: None for the dtypes' own.
    """

    files: tuple[Path, Path]
    calls: tuple[Sequence[str], Sequence[str]]
    target: str | None = None
    level: Level | str | None = None
    capacity: bool = True
    inputs: Inputs = fill_inputs
    rtol: float | None = None
    atol: float | None = None


def compare_kernels(asking: Asking) -> list[Comparison]:
    """The comparison of each call of the first file with the call of the second in the same place.

    Raises:
        OptionError: if they don't make as many calls, or their tensors differ. KernelError: if one can't be traced.
    """
    first = _take_sides(asking, 0, None)
    second = _take_sides(asking, 1, [arrays for _, arrays in first])
    return [_compare(asking, one, other) for (one, _), (other, _) in zip(first, second, strict=True)]


def _take_sides(asking: Asking, which: int, given: Sequence[list[Array]] | None) -> list[tuple[Side, list[Array]]]:
    """The calls of one file with the arrays that they ran on: ``given``, or their own."""
    file = asking.files[which]
    found = []
    with loading(file, asking.target, nki=asking.level, capacity=asking.capacity):
        launches = find_launches(file, asking.calls[which])
        if given is not None and len(launches) != len(given):
            raise OptionError(
                f"{asking.files[0]} makes {len(given)} calls of kernels, and {file} {len(launches)}",
                hint="name the calls to compare with --call, and with --call-b those of the second",
            )
        for index, launch in enumerate(launches):
            found.append(_take_side(file, launch, asking.inputs, None if given is None else given[index]))
    return found


def _take_side(file: Path, launch: Launch, inputs: Inputs, given: list[Array] | None) -> tuple[Side, list[Array]]:
    programs = launch.trace()
    if given is not None:
        _check_same_tensors(programs[0], given, launch)
    arrays = inputs(programs[0], launch.arrays) if given is None else given
    results, problem = None, ""
    try:
        results = named_results(programs, arrays)
    except KernelError as error:
        problem = str(error)
    return Side(file, launch.text, profile_programs(programs), results, problem), arrays


def _check_same_tensors(program: Program, arrays: Sequence[Array], launch: Launch) -> None:
    """OptionError unless a kernel takes the same tensors as the first one."""
    wanted = [(storage.shape, storage.dtype.numpy) for storage in program.inputs]
    got = [(array.shape, array.dtype) for array in arrays]
    if wanted != got:
        texts = [", ".join(f"{dtype.name}{list(shape)}" for shape, dtype in one) for one in (got, wanted)]
        raise OptionError(
            f"the two calls have different tensors: {texts[0]}; and {texts[1]} in {launch.text}",
            hint="both kernels are run on the same inputs: name calls of the same shapes and dtypes",
        )


def _compare(asking: Asking, first: Side, second: Side) -> Comparison:
    order = order_profiles(first.profile, second.profile)
    lines = pair_lines(first.profile, second.profile)
    problems = [f"{side.call}: {side.problem}" for side in (first, second) if side.results is None]
    if first.results is None or second.results is None:
        return Comparison(first, second, order, lines, (), "; ".join(problems))
    agreements = compare_results(first.results, second.results, asking.rtol, asking.atol)
    return Comparison(first, second, order, lines, tuple(agreements))


def pair_lines(first: Profile, second: Profile) -> tuple[LinePair, ...]:
    """The lines of both kernels in the order of the second, with those that only the first has in their place."""
    one, other = _lines(first), _lines(second)
    pairs = match_lines([code for code, _ in one], [code for code, _ in other], _ALIKE)
    return tuple(_pair(None if i is None else one[i], None if j is None else other[j]) for i, j in pairs)


def _pair(first: tuple[str, StepUse] | None, second: tuple[str, StepUse] | None) -> LinePair:
    known = second or first
    assert known is not None
    a, b = (None if line is None else line[1] for line in (first, second))
    numbers = (None if use is None else use.lines[0] for use in (a, b))
    times = (None if use is None else use.time_us for use in (a, b))
    return LinePair(known[0], *numbers, *times)


def _lines(profile: Profile) -> list[tuple[str, StepUse]]:
    """The code of each line that has instructions, and its cost."""
    file = profile.timeline.program.file
    return [(linecache.getline(file, step.lines[0]).strip() or step.name, step) for step in profile.steps]
