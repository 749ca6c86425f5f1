"""The search: one over a plan, for everything that ``Choices`` name.

First the batch is divided, if it doesn't fit SBUF (``dividing``). Then, with effort, come the other choices: sizes of
pieces and of loads, and ways to compute (``Step.tunable``); nodes in steps of their own; steps that load their weights
themselves; more or less of SBUF for weights. Layers that are alike are decided together. At first, all of them try
something at once. The timeline then shows how much later each step ends than those before it, which ranks the
alternatives for all layers at the price of one trial. Then the most promising ones are timed alone, in the whole model,
and kept only if it gets faster.

All trials share one budget (``trials``), and one record: ``Tried``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod

from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.choices import Choices
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.placing import passes
from trnrt.planner.placing.prefetching import PIECE_BYTES
from trnrt.planner.placing.sweeps import sweep_at
from trnrt.planner.plan import Tried
from trnrt.planner.rendering.draft import Material
from trnrt.planner.searching.dividing import divide_batch, try_passes
from trnrt.planner.searching.fitting import Fitted
from trnrt.planner.searching.trials import Source, Timed, Trials
from trnrt.planner.steps import Step

LEAST_GAIN = 0.0003
"""The share of the model's time that a change must save: 0.3 us of a millisecond, less than a device's noise."""
PATIENCE = 24_000
"""The search ends after this many instructions in a row were traced without a gain; the most promising come first. It
is six or seven trials of a light network, four of NFNet-l0, one of Swin-T. A survey takes no more, either."""
_FUSED_BYTES = 2048
"""Results smaller than this (bytes per partition) don't get a step of their own tried: another pass over less never
gained enough to be kept. Unchanged since the search was added."""
_SHARES = (0.95, 0.75, 0.5)
"""The shares of SBUF for weights that are tried instead of the first that fits."""


@dataclass(frozen=True)
class Searched:
    """The result: the choices with their module, and everything that was timed."""

    choices: Choices
    fitted: Fitted
    weighed: tuple[Tried, ...] = ()


@dataclass(frozen=True)
class Move:
    """One change of the choices, for ``steps`` that are alike: ``value`` for an option, None for the default; for the
    ``option`` "no_fuse" or "own_weights", the names to add; for "share", the share."""

    steps: tuple[str, ...]
    option: str
    value: int | str | float | None = None
    names: frozenset[str] = frozenset()

    def apply(self, choices: Choices) -> Choices:
        """The choices with this change."""
        if self.option == "no_fuse":
            return replace(choices, no_fuse=choices.no_fuse | self.names)
        if self.option == "own_weights":
            return replace(choices, own_weights=choices.own_weights | self.names)
        if isinstance(self.value, float):
            return replace(choices, share=self.value)
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
        if isinstance(self.value, float):
            return f"{self.value:.0%} of SBUF for tensors and weights"
        return f"{self.option}={'default' if self.value is None else self.value}"


def search(source: Source, choices: Choices, effort: int) -> Searched:
    """The choices with the lowest predicted time found within the budget; the user's choices stay.

    Nothing is timed if the batch needs no division, and the steps are too small to gain.
    """
    trials, tried = Trials(source), list[Tried]()
    # Found and requested options must give the same plan: the batch is divided without either.
    plain = replace(choices, options=frozenset(), own_weights=frozenset(), share=None)
    divided = None if _is_divided(choices, source.batch) else divide_batch(trials, plain, tried)
    trials.refill()
    if effort and divided is not None and (source.batch or 1) <= passes.AT_ONCE:
        divided = try_passes(trials, divided, tried)
    if divided is not None:
        choices = replace(choices, rows=divided.choices.rows, sweeps=divided.choices.sweeps)
    first = divided if divided is not None and divided.choices == choices else None
    fitted = first.fitted if first is not None else trials.fit(choices)
    if fitted is None:
        choices = replace(choices, sweeps=frozenset())
        fitted = trials.fit(choices)
    assert fitted is not None, "without a sweep tensors go to HBM until the rest finds room"
    plain_result = Searched(choices, fitted, tuple(tried))
    if effort and _can_gain(trials.material(choices), fitted):
        found = _Search(trials, first or trials.time_fitted(choices, fitted), tried).run()
        return found if _holds_in_passes(trials, found.choices, choices) else plain_result
    return plain_result


def _holds_in_passes(trials: Trials, found: Choices, before: Choices) -> bool:
    """True if what was found for one pass makes the whole batch no slower."""
    batch = trials.source.batch
    if found == before or batch is None or trials.material(before).batch == batch:
        return True
    new, old = trials.time(found, of=batch), trials.time(before, of=batch)
    return new is not None and old is not None and new.gain_over(old) >= 0


def _can_gain(material: Material, fitted: Fitted) -> bool:
    """True if a step has options, or weights that take several transfers."""
    itemsize = as_dtype(material.dtype).itemsize
    columns = (array.size // array.shape[0] for call in fitted.module.calls for array in call.weights.values())
    return any(step.tunable() for step in material.steps) or any(one * itemsize > PIECE_BYTES for one in columns)


def shares_to_try(fitted: Fitted) -> list[float]:
    """The shares of SBUF for weights to try beside a module's own."""
    return [share for share in _SHARES if share != fitted.share]


def _is_divided(choices: Choices, batch: int | None) -> bool:
    """True if the choices say how the batch is divided."""
    return bool(choices.sweeps) or (choices.rows is not None and (batch or 1) % choices.rows == 0)


class _Search:
    """One run after the division: the ``best`` plan so far, and what was tried."""

    def __init__(self, trials: Trials, first: Timed, tried: list[Tried]) -> None:
        self._trials, self._best, self._tried = trials, first, tried
        self._asked = first.choices

    def run(self) -> Searched:
        """Rank the possible changes, and keep those that make the model faster; again while options may gain anew,
        because something else has changed."""
        done: Choices | None = None
        while done != self._without_options and self._trials.can_go_on():
            done = self._without_options
            self._go_round()
        return Searched(self._best.choices, self._best.fitted, tuple(self._tried))

    def _go_round(self) -> None:
        layers = _Layers(self._best.steps, self._best.fitted, self._asked)
        groups = layers.options()
        promised = self._survey(groups)
        self._take_together(promised)
        gained_at = self._trials.left
        for move in self._order_moves(groups, promised, layers):
            if not self._trials.can_go_on() or gained_at - self._trials.left + self._trials.cost > PATIENCE:
                break
            if self._is_worth([move]) and self._try([move]):
                gained_at = self._trials.left

    def _is_worth(self, moves: Sequence[Move]) -> bool:
        """True if what these changes can gain, at most, is worth a trial."""
        if any(move.option == "share" for move in moves):
            return True
        taken = sum(self._best.added_us.get(step, 0.0) for step in {step for move in moves for step in move.steps})
        return self._trials.is_worth(taken / self._best.headline_us)

    @property
    def _without_options(self) -> Choices:
        return replace(self._best.choices, options=frozenset())

    @property
    def _least_gain(self) -> float:
        return LEAST_GAIN * self._best.us

    def _survey(self, groups: Sequence[Sequence[Move]]) -> dict[Move, float]:
        """The gain that each change promises: microseconds that its steps end earlier if all layers change
        something."""
        promised, left = dict[Move, float](), self._trials.left
        for number in range(max(map(len, groups), default=0)):
            moves = [group[number] for group in groups if number < len(group)]
            if self._trials.left < 2 * self._trials.cost or left - self._trials.left + self._trials.cost > PATIENCE:
                break
            if not self._is_worth(moves):
                continue
            found = self._trials.challenge(self._best, _apply_moves(self._best.choices, moves))
            if found is None:
                continue
            for move in moves:
                gain = sum(self._best.added_us[step] - found.added_us[step] for step in move.steps)
                promised[move] = gain
                self._tried.append(Tried(move.steps, move.what, gain, False, False))
        return promised

    def _take_together(self, promised: dict[Move, float]) -> None:
        """Make the most promising change of each layer, all at once; if that fails, the better half of them, and so
        on."""
        best: dict[tuple[str, ...], Move] = {}
        for move in sorted(promised, key=lambda move: (-promised[move], move.steps, move.what)):
            if promised[move] > self._least_gain:
                best.setdefault(move.steps, move)
        moves = list(best.values())
        while len(moves) > 1 and self._trials.can_go_on():
            if self._try(moves):
                return
            moves = moves[: len(moves) // 2]

    def _order_moves(
        self, groups: Sequence[Sequence[Move]], promised: dict[Move, float], layers: _Layers
    ) -> list[Move]:
        """The moves to try alone, most promising first, without those that promise exactly 0."""
        least = self._least_gain
        options = [move for group in groups for move in group if promised.get(move, least) > -least]
        options = [move for move in options if promised.get(move) != 0.0]
        options.sort(key=lambda move: (-promised.get(move, 0.0), move.steps, move.what))
        others = zip_longest(layers.shares(), layers.loads(), layers.fusions())
        return options + [move for some in others for move in some if move is not None]

    def _try(self, moves: Sequence[Move]) -> bool:
        """True if the model gets faster with these changes, which are then kept."""
        choices = _apply_moves(self._best.choices, moves)
        if choices == self._best.choices:
            return False
        found = self._trials.challenge(self._best, choices)
        if found is None:
            return False
        gain = found.gain_over(self._best)
        taken = gain > self._least_gain
        what = "; ".join(move.what for move in moves) if len(moves) == 1 else f"{len(moves)} changes at once"
        steps = tuple(step for move in moves for step in move.steps)
        self._tried.append(Tried(steps, what, gain, True, taken))
        if taken:
            self._best = found
        return taken


def _apply_moves(choices: Choices, moves: Iterable[Move]) -> Choices:
    for move in moves:
        choices = move.apply(choices)
    return choices


@dataclass(frozen=True)
class _Layers:
    """The steps of a plan, and the changes for those that are alike, but for what was ``asked`` for."""

    steps: Sequence[Step]
    fitted: Fitted
    asked: Choices

    def options(self) -> list[list[Move]]:
        """The options of the steps, except those chosen by the user."""
        asked = {(step, option) for step, option, _ in self.asked.options}
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
        names = reversed(self._prefetched_steps())
        return [Move((name,), "own_weights", names=frozenset({name})) for name in names]

    def shares(self) -> list[Move]:
        """Other shares of SBUF, if the user chose none and weights are prefetched."""
        names = self._prefetched_steps()
        if not names or self.asked.share is not None:
            return []
        return [Move(names, "share", share) for share in shares_to_try(self.fitted)]

    def fusions(self) -> list[Move]:
        """Nodes of steps with large results, each in a step of its own, the smallest first, which lose least."""
        alike: dict[object, list[tuple[str, str]]] = {}
        for number, step in sorted(enumerate(self.steps), key=lambda one: prod(one[1].shape)):
            if step.tunable() or prod(step.shape) * 4 >= _FUSED_BYTES * PARTITIONS:
                for k, node in enumerate(step.nodes[1:]):
                    alike.setdefault((self._signature(number), k), []).append((step.name, node))
        return [
            Move(tuple(step for step, _ in pairs), "no_fuse", names=frozenset(node for _, node in pairs))
            for pairs in alike.values()
        ]

    def _prefetched_steps(self) -> tuple[str, ...]:
        """The steps with prefetched weights."""
        loading = zip(self.steps, self.fitted.module.loading, strict=True)
        return tuple(step.name for step, how in loading if how[0] == "prefetched")

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
            sweep_at(placed.sweeps, number),
        )
