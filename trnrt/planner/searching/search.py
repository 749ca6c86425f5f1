"""The search: the timing model makes choices that estimates would have to guess.

Steps offer alternatives to their defaults: sizes of pieces and of loads, and ways to compute (``Step.tunable``). Nodes
can be kept in steps of their own, and steps can load their weights themselves. Layers that are alike are decided
together. First, all of them try something at once. The timeline then shows how much later each step ends than those
before it, which ranks the alternatives for all layers at the price of one trial. Then the most promising ones are timed
alone, in the whole model, and kept only if it gets faster.

The budget is a number of traced instructions, never a time: a model has the same plan on every machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod

from trnrt.errors import KernelError
from trnrt.nki.machine.timing import PS_PER_US, schedule
from trnrt.planner.choices import Choices
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Tried
from trnrt.planner.rendering.module import Material
from trnrt.planner.searching.fitting import Fitted, fit, refit
from trnrt.planner.steps import Step

BUDGET = 96_000
"""The most instructions in all trials of one plan, the initial plan included: a limit of planning time that is the same
on every machine. When it or a number below changes, search the networks again (docs/kernels.md, Tuned numbers) and
compare latencies and planning time."""
TRIAL = 1_500
"""The fixed cost of a trial, in instructions: about the share of its time that goes to planning and rendering."""
LEAST_GAIN = 0.0003
"""The share of the model's time that a change must save: 0.3 us of a millisecond, less than a device's noise."""
PATIENCE = 10
"""The search ends after this many trials in a row without a gain; the most promising come first."""
_FUSED_BYTES = 2048
"""Results smaller than this (bytes per partition) don't get a step of their own tried: another pass over less never
gained enough to be kept. Unchanged since the search was added."""


@dataclass(frozen=True)
class Searched:
    """The result: the choices with their module, and everything that was timed."""

    choices: Choices
    fitted: Fitted
    weighed: tuple[Tried, ...] = ()


@dataclass(frozen=True)
class Timed:
    """A sketch's predicted time, and how much later it is after each step than after those before it; microseconds."""

    us: float
    added: dict[str, float]


@dataclass(frozen=True)
class Move:
    """One change of the choices, for ``steps`` that are alike: ``value`` for an option, None for the default; for the
    ``option`` "no_fuse" or "own_weights", the names to add."""

    steps: tuple[str, ...]
    option: str
    value: int | str | None = None
    names: frozenset[str] = frozenset()

    def apply(self, choices: Choices) -> Choices:
        """The choices with this change."""
        if self.option == "no_fuse":
            return replace(choices, no_fuse=choices.no_fuse | self.names)
        if self.option == "own_weights":
            return replace(choices, own_weights=choices.own_weights | self.names)
        steps = set(self.steps)
        kept = {one for one in choices.options if one[0] not in steps or one[1] != self.option}
        new = {(step, self.option, self.value) for step in self.steps if self.value is not None}
        return replace(choices, options=frozenset(kept | new))

    @property
    def what(self) -> str:
        """The change in words."""
        if self.option == "no_fuse":
            return f"not fused: {', '.join(sorted(self.names))}"
        if self.option == "own_weights":
            return "weights loaded by itself"
        return f"{self.option}={'default' if self.value is None else self.value}"


def search(
    material: Callable[[Choices, int | None], Material], batch: int | None, choices: Choices, effort: int
) -> Searched:
    """The choices with the lowest predicted time found within the budget; the user's choices stay. ``material`` gives
    the material of a module for a number of rows. Nothing is traced if no step can gain."""
    fitted = fit_first(material, batch, choices)

    def part(chosen: Choices) -> Material:
        return material(chosen, fitted.rows)

    if not effort or not any(step.tunable() for step in part(choices).steps):
        return Searched(choices, fitted)
    return _Search(part, choices, fitted).run()


def fit_first(material: Callable[[Choices, int | None], Material], batch: int | None, choices: Choices) -> Fitted:
    """The initial plan. Sweeps and passes are chosen before options, so that found and requested options give the same
    plan."""
    plain = replace(choices, options=frozenset(), own_weights=frozenset())
    fitted = fit(material(plain, batch))
    if choices == plain:
        return fitted
    again = None
    if fitted.placed.sweep is not None or fitted.rows != batch:
        again = refit(material(choices, fitted.rows), fitted.placed.sweep)
    return again or fit(material(choices, batch))


def time_module(steps: Sequence[Step], fitted: Fitted) -> Timed:
    """Schedule a module that was traced."""
    assert fitted.program is not None
    timeline = schedule(fitted.program)
    lines, instructions = fitted.module.lines, fitted.program.instructions
    starts, added, done = [first for first, _ in lines], [0] * len(lines), 0
    for issue, index in enumerate(timeline.instruction):
        end, line = timeline.end[issue], instructions[index].line
        at = bisect_right(starts, line) - 1
        if end > done and at >= 0 and line <= lines[at][1]:
            added[at] += end - done
            done = end
    fixed = fitted.program.target.timing.benchmark_ns / 1000
    of_steps = {step.name: late / PS_PER_US for step, late in zip(steps, added, strict=True)}
    return Timed(timeline.duration / PS_PER_US + fixed, of_steps)


@dataclass
class _Search:
    """One run: the best ``choices`` so far with their module and times, and the budget that is ``left``."""

    material: Callable[[Choices], Material]
    choices: Choices
    fitted: Fitted
    left: int = field(default_factory=lambda: BUDGET)
    weighed: list[Tried] = field(default_factory=list)

    def run(self) -> Searched:
        """Rank the possible changes, and keep those that make the model faster."""
        first = self.material(self.choices)
        base = self.fitted if self.fitted.program is not None else refit(first, self.fitted.placed.sweep)
        assert base is not None, "it found room before"
        self.cost = _cost(base)
        self.left -= self.cost
        self.best = time_module(first.steps, base)
        layers = _Layers(first.steps, base, self.choices)
        groups = layers.options()
        promised = self._survey(groups)
        self._take_together(promised)
        failed = 0
        for move in self._order_moves(groups, promised, layers):
            if self.left < self.cost or failed == PATIENCE:
                break
            failed = 0 if self._try([move]) else failed + 1
        return Searched(self.choices, self.fitted, tuple(self.weighed))

    def _trial(self, choices: Choices) -> tuple[Fitted, Timed] | None:
        """The module and its times with other choices; None if they can't be planned."""
        material = self.material(choices)
        try:
            fitted = refit(material, self.fitted.placed.sweep)
        except KernelError:
            fitted = None
        self.left -= self.cost if fitted is None else _cost(fitted)
        return None if fitted is None else (fitted, time_module(material.steps, fitted))

    def _survey(self, groups: Sequence[Sequence[Move]]) -> dict[Move, float]:
        """The gain that each change promises: microseconds that its steps end earlier if all layers change
        something."""
        promised: dict[Move, float] = {}
        for number in range(max(map(len, groups), default=0)):
            moves = [group[number] for group in groups if number < len(group)]
            if self.left < 2 * self.cost:
                break
            found = self._trial(_apply_moves(self.choices, moves))
            if found is None:
                continue
            for move in moves:
                gain = sum(self.best.added[step] - found[1].added[step] for step in move.steps)
                promised[move] = gain
                self.weighed.append(Tried(move.steps, move.what, gain, False, False))
        return promised

    def _take_together(self, promised: dict[Move, float]) -> None:
        """Make the most promising change of each layer, all at once; if that fails, the better half of them, and so
        on."""
        best: dict[tuple[str, ...], Move] = {}
        for move in sorted(promised, key=lambda move: (-promised[move], move.steps, move.what)):
            if promised[move] > LEAST_GAIN * self.best.us:
                best.setdefault(move.steps, move)
        moves = list(best.values())
        while len(moves) > 1 and self.left >= self.cost:
            if self._try(moves):
                return
            moves = moves[: len(moves) // 2]

    def _order_moves(
        self, groups: Sequence[Sequence[Move]], promised: dict[Move, float], layers: _Layers
    ) -> list[Move]:
        """The moves to try alone, most promising first, without those that promise exactly 0."""
        least = LEAST_GAIN * self.best.us
        options = [move for group in groups for move in group if promised.get(move, least) > -least]
        options = [move for move in options if promised.get(move) != 0.0]
        options.sort(key=lambda move: (-promised.get(move, 0.0), move.steps, move.what))
        pairs = zip_longest(layers.loads(), layers.fusions())
        return options + [move for pair in pairs for move in pair if move is not None]

    def _try(self, moves: Sequence[Move]) -> bool:
        """True if the model gets faster with these changes, which are then kept."""
        choices = _apply_moves(self.choices, moves)
        if choices == self.choices:
            return False
        found = self._trial(choices)
        if found is None:
            return False
        gain = self.best.us - found[1].us
        taken = gain > LEAST_GAIN * self.best.us
        what = "; ".join(move.what for move in moves) if len(moves) == 1 else f"{len(moves)} changes at once"
        steps = tuple(step for move in moves for step in move.steps)
        self.weighed.append(Tried(steps, what, gain, True, taken))
        if taken:
            self.choices, (self.fitted, self.best) = choices, found
        return taken


def _cost(fitted: Fitted) -> int:
    assert fitted.program is not None
    return max(1, fitted.tries) * len(fitted.program.instructions) + TRIAL


def _apply_moves(choices: Choices, moves: Iterable[Move]) -> Choices:
    for move in moves:
        choices = move.apply(choices)
    return choices


@dataclass(frozen=True)
class _Layers:
    """The steps of the initial plan, and the changes for those that are alike."""

    steps: Sequence[Step]
    fitted: Fitted
    choices: Choices

    def options(self) -> list[list[Move]]:
        """The options of the steps, except those chosen by the user."""
        asked = {(step, option) for step, option, _ in self.choices.options}
        alike: dict[object, list[Step]] = {}
        for number, step in enumerate(self.steps):
            if step.tunable():
                alike.setdefault(self._signature(number), []).append(step)
        groups = []
        for steps in alike.values():
            names = tuple(step.name for step in steps)
            values = steps[0].tunable()
            offered = [
                Move(names, option, value)
                for k in range(max(map(len, values.values())))
                for option in values
                for value in values[option][k : k + 1]
            ]
            groups.append([move for move in offered if not any((name, move.option) in asked for name in names)])
        return groups

    def loads(self) -> list[Move]:
        """Steps with prefetched weights, to try loading their own: the last first, as they wait for most."""
        loading = zip(self.steps, self.fitted.module.loading, strict=True)
        names = [step.name for step, how in loading if how[0] == "prefetched"]
        return [Move((name,), "own_weights", names=frozenset({name})) for name in reversed(names)]

    def fusions(self) -> list[Move]:
        """Nodes of steps with large results, each in a step of its own, the smallest first, which lose least; none if a
        sweep numbers the steps."""
        if self.fitted.placed.sweep is not None:
            return []
        alike: dict[object, list[tuple[str, str]]] = {}
        for number, step in sorted(enumerate(self.steps), key=lambda one: prod(one[1].shape)):
            if step.tunable() or prod(step.shape) * 4 >= _FUSED_BYTES * PARTITIONS:
                for k, node in enumerate(step.nodes[1:]):
                    alike.setdefault((self._signature(number), k), []).append((step.name, node))
        return [
            Move(tuple(step for step, _ in pairs), "no_fuse", names=frozenset(node for _, node in pairs))
            for pairs in alike.values()
        ]

    def _signature(self, number: int) -> object:
        """The key that equal steps share: everything but their names and weights."""
        step, module, placed = self.steps[number], self.fitted.module, self.fitted.placed
        call = module.calls[number]
        tensors = [step.output, *(source.value for source in step.sources)]
        return (
            call.kernel,
            repr(sorted(call.options.items())),
            tuple((placed.held_shape(name), placed.layout(name)) for name in tensors),
            tuple(array.shape for array in call.weights.values()),
            module.loading[number][0],
            placed.sweep is not None and number in placed.sweep,
        )
