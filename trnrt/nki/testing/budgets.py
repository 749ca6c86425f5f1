"""Predicted times of a test's kernel calls against the test's budget, ``@pytest.mark.nki_budget(us=...)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from trnrt.nki.calls import describe
from trnrt.nki.errors import OptionError
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.profiling import Profile, profile_programs
from trnrt.nki.sim.arguments import host_arguments
from trnrt.nki.sim.kernel import Simulated, intercept_calls

_STEPS = 5


@dataclass(frozen=True)
class Budget:
    """The most that a kernel call may take, microseconds. ``upper``: compare the upper end of the predicted range.

    ``us`` may be a dictionary from targets; a target that isn't in it has no limit.
    """

    us: float | Mapping[str, float]
    upper: bool = False

    def limit(self, target: str) -> float:
        """The most on that target."""
        return self.us.get(target, inf) if isinstance(self.us, Mapping) else self.us


def read_budget(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Budget:
    """The budget of a mark with these arguments; ValueError if they are others, or name a target that doesn't exist."""
    try:
        budget = Budget(*args, **kwargs)
    except TypeError:
        raise ValueError("nki_budget takes us=, and upper=True for the upper end of the range") from None
    limits = budget.us.values() if isinstance(budget.us, Mapping) else (budget.us,)
    positive = [isinstance(us, (int, float)) and not isinstance(us, bool) and us > 0 for us in limits]
    if not positive or not all(positive):
        raise ValueError(f"nki_budget: us={budget.us!r} is not a positive number of microseconds")
    return replace(budget, us=_by_name(budget.us)) if isinstance(budget.us, Mapping) else budget


def _by_name(limits: Mapping[str, float]) -> dict[str, float]:
    """Limits by the names of their targets, which may be given by an alias."""
    try:
        return {get_target(target).name: us for target, us in limits.items()}
    except OptionError as error:
        raise ValueError(f"nki_budget: us={dict(limits)!r}: {error}; {error.hint}") from None


class Calls:
    """The kernel calls of a test: programs by what ran them, each once, with the call as text."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, str, Sequence[Program]]] = {}

    def observe(self, kernel: Simulated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an intercepted call, and remember its programs."""
        __tracebackhide__ = True
        given = host_arguments(kernel.function, args, kwargs)
        result = kernel.run(given)
        executor, _ = kernel.prepare(given)
        label = f"{given.kernel}({describe(args, kwargs)})"
        self._made[id(executor)] = executor, label, executor.programs  # held, so that the identity stays its own
        return result

    def complaints(self, budget: Budget) -> list[str]:
        """A text for each call over the budget; a single text if there is no call at all."""
        if not self._made:
            return ["nki_budget: the test ran no kernel on the simulator, so there is no time to compare"]
        profiles = [(label, profile_programs(programs)) for _, label, programs in self._made.values()]
        return [over for label, profile in profiles if (over := "\n".join(_excess(label, profile, budget)))]


@contextmanager
def record_calls() -> Iterator[Calls]:
    """Observe the kernel calls that are made inside."""
    calls = Calls()
    with intercept_calls(calls.observe):
        yield calls


def _excess(label: str, profile: Profile, budget: Budget) -> Iterator[str]:
    """The lines about a call that is over the budget; none if it isn't."""
    low, high = profile.low_us.benchmark, profile.high_us.benchmark
    compared, most = high if budget.upper else profile.benchmark_us, budget.limit(profile.target)
    if compared <= most:
        return
    end = " at the upper end" if budget.upper else ""
    yield (
        f"{label} on {profile.target} is predicted to take {profile.benchmark_us:,.2f} us ({low:,.2f} to {high:,.2f}), "
        f"{compared - most:,.2f} us over the budget of {most:g} us{end}"
    )
    yield from _breakdown(profile)


def _breakdown(profile: Profile) -> Iterator[str]:
    """The time by kind of cost, and the lines of the kernel that take most."""
    yield "by cost:"
    for part in sorted(profile.breakdown.parts, key=lambda part: -part.time_us):
        if part.time_us > 0:
            yield f"  {part.time_us:8.2f} us  {part.part}{' (fixed)' if part.fixed else ''}"
    steps = sorted(profile.steps, key=lambda step: -step.time_us)[:_STEPS]
    yield "by line of the kernel:"
    for step in steps:
        if step.time_us > 0:
            yield f"  {step.time_us:8.2f} us  {step.name}  (bound by {step.bound})"
