"""The whole search: candidates, their times, the best one, and whether its numbers are right."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from inspect import Parameter, isfunction
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any

import numpy as np

from trnrt.nki.calls import value_text
from trnrt.nki.errors import KernelError, OptionError, TrnrtError
from trnrt.nki.level import Level, choose_level
from trnrt.nki.loading import Launch, find_launches, import_kernels, loading, source_files, without_data
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing import Range, predict_benchmark
from trnrt.nki.numbers import Agreement, agreement_text, compare_results, fill_inputs, named_results
from trnrt.nki.ordering import Certainty, Order, order_profiles, order_ranges
from trnrt.nki.pairing import Inputs
from trnrt.nki.profiling import Profile, profile_programs
from trnrt.nki.sim.arguments import Spec
from trnrt.nki.sim.kernel import Kernel, Simulated
from trnrt.nki.tuning.records import Records, run_key
from trnrt.nki.tuning.search import search
from trnrt.nki.tuning.space import Point, Space, different_values
from trnrt.nki.tuning.timing import Task, Trial, reason_of, values_text
from trnrt.nki.tuning.workers import Workers

SHOWN = 10
"""The candidates whose ranges are predicted: the fastest."""


@dataclass(frozen=True)
class Wish:
    """A request to tune: the file, the call (None: the only one that its script makes), and the values to try.

    ``trials``, ``seconds``: the most candidates, and the most time. ``reference``: a function of the file that computes
    the right numbers; None takes the default candidate's. ``records``: the file of results. ``inputs`` gives the arrays
    to run the candidates on. ``version``: that of trnrt's code, for the key of the results.
    """

    script: Path
    call: str | None
    space: Space
    records: Path
    target: str | None = None
    level: Level | str | None = None
    capacity: bool = True
    trials: int = 200
    seconds: float | None = None
    seed: int = 0
    jobs: int = 0
    reference: str | None = None
    inputs: Inputs = fill_inputs
    rtol: float | None = None
    atol: float | None = None
    version: str = ""

    @property
    def processes(self) -> int:
        """The processes to use: ``jobs``, or one for each core that this process may use."""
        return self.jobs or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Ranked:
    """One of the fastest candidates: its arguments as text, its whole call, its range, and how sure the model is of its
    order with the best."""

    values: dict[str, str]
    call: str
    range: Range
    certainty: Certainty


@dataclass
class Tuned:
    """The outcome of a search.

    ``best``: the fastest candidate whose numbers agree, with its profile; None if there is none. ``default``: the call
    as given; None if it can't run (``default_reason``). ``order`` has the default first. ``agreements`` compare the
    best's numbers with the default's or the reference's; None if there was nothing to compare with (``unchecked``).
    ``wrong``: faster candidates whose numbers don't agree, with the difference as their reason. ``complete``: all
    candidates of the space were tried. ``resumed``: candidates whose results the file had. ``stopped``: the time was
    up.
    """

    kernel: str
    space: Space
    trials: list[Trial]
    complete: bool
    resumed: int
    stopped: bool
    default_call: str
    best_call: str = ""
    best: Profile | None = None
    default: Profile | None = None
    default_reason: str = ""
    order: Order | None = None
    agreements: list[Agreement] | None = None
    unchecked: str = ""
    top: list[Ranked] = field(default_factory=list)
    wrong: list[Trial] = field(default_factory=list)

    @property
    def refusals(self) -> list[Trial]:
        """The candidates that have no time."""
        return [trial for trial in self.trials if trial.us is None]


def tune(wish: Wish, advance: Callable[[int], None] = lambda count: None) -> Tuned:
    """Search, and check the best. ``advance`` is called with the number of candidates just done.

    Raises:
        OptionError: if the file has no such call, the kernel no such argument, or the results can't be kept.
        KernelError: if the file can't be loaded, or the reference fails.
    """
    before = set(sys.modules)
    with loading(wish.script, wish.target, nki=wish.level, capacity=wish.capacity):
        launch = _find_launch(wish)
        task = Task(wish.script.resolve(), without_data(launch), wish.target, choose_level(wish.level), wish.capacity)
        records = Records(wish.records, run_key(task, source_files(wish.script, before), wish.version))
        try:
            tuning = _Tuning(wish, launch, task, records, advance)
            return tuning.judge(tuning.run())
        finally:
            records.close()


def start_of(space: Space, launch: Launch) -> tuple[Space, Point]:
    """The candidate that the call is without any change, and the space with its values.

    An argument without a default starts with its first value.
    """
    values, start = dict(space.values), []
    for name, listed in space.values.items():
        default = launch.value_of(name)
        if isinstance(default, (Spec, np.ndarray)):
            raise OptionError(f"--space can't change {name!r}: it is a tensor of {launch.text}")
        texts = [value_text(value) for value in listed]
        if default is not Parameter.empty and value_text(default) not in texts:
            values[name] = different_values((*listed, default))
            texts = [value_text(value) for value in values[name]]
        start.append(0 if default is Parameter.empty else texts.index(value_text(default)))
    return Space(values), tuple(start)


def _find_launch(wish: Wish) -> Launch:
    launches = find_launches(wish.script, [] if wish.call is None else [wish.call])
    if len(launches) > 1:
        texts = ", ".join(repr(launch.text) for launch in launches[:3])
        raise OptionError(f"the script makes {len(launches)} different calls", hint=f"name one with --call: {texts}")
    return launches[0]


class _Tuning:
    """One search under way."""

    def __init__(
        self, wish: Wish, launch: Launch, task: Task, records: Records, advance: Callable[[int], None]
    ) -> None:
        self.wish, self.launch, self.task, self.records, self.advance = wish, launch, task, records, advance
        self.space, self.start = start_of(wish.space, launch)
        self.trials: dict[Point, Trial] = {}
        self.resumed = 0

    def run(self) -> Tuned:
        """Time the candidates."""
        wish = self.wish
        deadline = None if wish.seconds is None else monotonic() + wish.seconds
        with Workers(self.task, wish.processes) as workers:

            def evaluate(points: Sequence[Point]) -> dict[Point, float | None]:
                return self._evaluate(points, workers, deadline)

            known = search(self.space, self.start, evaluate, wish.trials, wish.seed)
        return Tuned(
            self.launch.name,
            self.space,
            [self.trials[point] for point in known],
            complete=len(known) == self.space.size,
            resumed=self.resumed,
            stopped=len(known) < min(wish.trials, self.space.size),
            default_call=self.launch.with_values(self.space.values_at(self.start)).text,
        )

    def _evaluate(self, points: Sequence[Point], workers: Workers, deadline: float | None) -> dict[Point, float | None]:
        """The times of these candidates, kept or new; fewer if the time is up."""
        asked = {tuple(values_text(self.space.values_at(point)).items()): point for point in points}
        new = []
        for point in asked.values():
            kept = self.records.find(values_text(self.space.values_at(point)))
            if kept is None:
                new.append(point)
            else:
                self.trials[point] = Trial(values_text(self.space.values_at(point)), kept.us, kept.reason)
                self.resumed += 1
                self.advance(1)
        for trial in workers.time_all([self.space.values_at(point) for point in new], deadline):
            self.trials[asked[tuple(trial.values.items())]] = trial
            self.records.add(trial)
            self.advance(1)
        return {point: self.trials[point].us for point in points if point in self.trials}

    def judge(self, tuned: Tuned) -> Tuned:
        """Find the fastest candidate whose numbers agree, and compare it with the default and the next ones."""
        points = {tuple(trial.values.items()): point for point, trial in self.trials.items()}
        ranked = sorted((t for t in tuned.trials if t.us is not None), key=lambda trial: trial.us or 0.0)
        checker = _Checker(self.wish, self.launch, self.launch.with_values(self.space.values_at(self.start)))
        tuned.default, tuned.default_reason = checker.default, checker.reason
        right: list[Trial] = []
        for trial in ranked:
            call = self.launch.with_values(self.space.values_at(points[tuple(trial.values.items())]))
            if tuned.best is None:
                programs = call.trace()
                agreements, problem = checker.check(programs)
                if problem:
                    tuned.wrong.append(replace(trial, reason=problem))
                    continue
                tuned.agreements, tuned.unchecked = agreements, checker.why_unchecked
                tuned.best, tuned.best_call = profile_programs(programs), call.text
            right.append(trial)
            if len(right) == SHOWN:
                break
        self._rank(tuned, right, points)
        if tuned.best is not None and tuned.default is not None:
            tuned.order = order_profiles(tuned.default, tuned.best)
        return tuned

    def _rank(self, tuned: Tuned, trials: Sequence[Trial], points: dict[Any, Point]) -> None:
        """Give the fastest candidates their ranges, and their order with the best."""
        for trial in trials:
            call = self.launch.with_values(self.space.values_at(points[tuple(trial.values.items())]))
            found = predict_benchmark(call.trace())
            best = tuned.top[0].range if tuned.top else found
            tuned.top.append(Ranked(dict(trial.values), call.text, found, order_ranges(best, found)))


class _Checker:
    """The right numbers: the reference's, or the default candidate's."""

    def __init__(self, wish: Wish, launch: Launch, default: Launch) -> None:
        self.wish, self.launch = wish, launch
        self.default: Profile | None = None
        self.reason = ""
        self._arrays: list[Array] | None = None
        self._right: dict[str, Array] | None = None
        try:
            programs = default.trace()
            self.default = profile_programs(programs)
            if wish.reference is None:
                self._right = named_results(programs, self._inputs(programs[0]))
        except TrnrtError as error:
            self.reason = reason_of(error)

    def check(self, programs: Sequence[Program]) -> tuple[list[Agreement] | None, str]:
        """How the numbers of a kernel's programs agree with the right ones, and what is wrong with them ("": nothing).

        None if there are no right ones (``why_unchecked``).
        """
        arrays = self._inputs(programs[0])
        if self._right is None and self.wish.reference is not None:
            self._right = self._run_reference(self.wish.reference, arrays)
        if self._right is None:
            return None, ""
        try:
            found = named_results(programs, arrays)
        except KernelError as error:
            return None, reason_of(error)
        if self.wish.reference is not None:  # it returns results alone
            found = {name: array for name, array in found.items() if name in self._right}
        agreements = compare_results(self._right, found, self.wish.rtol, self.wish.atol)
        apart = [agreement for agreement in agreements if not agreement.within]
        return agreements, f"its numbers differ: {agreement_text(apart[0])}" if apart else ""

    @property
    def why_unchecked(self) -> str:
        """Why there are no right numbers to compare with, or ""."""
        return "" if self._right is not None else f"the default can't run: {self.reason}"

    def _inputs(self, program: Program) -> list[Array]:
        """The arrays that every candidate runs on."""
        if self._arrays is None:
            self._arrays = self.wish.inputs(program, self.launch.arrays)
        return self._arrays

    def _run_reference(self, name: str, arrays: Sequence[Array]) -> dict[str, Array]:
        """The results of a function of the file for the call's tensors alone: a kernel, or one on numpy's arrays."""
        module: ModuleType = import_kernels(self.wish.script)
        function = getattr(module, name, None)
        if not (isinstance(function, Kernel) or isfunction(function)):
            raise OptionError(f"{self.wish.script} has no function {name!r}", hint="--reference names a function of it")
        copies = [array.copy() for array in arrays]
        if isinstance(function, Kernel):
            return named_results(Simulated(function, self.launch.kernel.target).trace(*copies), copies)
        try:
            result = function(*copies)
        except Exception as error:
            raise KernelError(f"--reference {name} stopped: {type(error).__name__}: {error}") from error
        results = [np.asarray(value) for value in (result if isinstance(result, tuple) else (result,))]
        if not results or any(array.dtype.kind in "OUSMm" for array in results):
            raise OptionError(f"--reference {name} returned {result!r}", hint="return an array, or a tuple of arrays")
        names = ["result"] if len(results) == 1 else [f"result[{n}]" for n in range(len(results))]
        return dict(zip(names, results, strict=True))
