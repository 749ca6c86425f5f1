"""The rows: what the planner's search finds for a layer, and what trying all choices finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from math import inf

from benchmarks.search.layers import LAYERS, Layer, layer_called
from trnrt.errors import OptionError
from trnrt.importer import import_model
from trnrt.nki.machine.timing import Range
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.making import Planning
from trnrt.planner.options import PlanOptions
from trnrt.planner.searching.search import search, shares_to_try
from trnrt.planner.searching.trials import Timed, Trials
from trnrt.planner.sizes import default_shapes

MOST_RATIO = 1.03
"""The bar: the most that the search's plan takes, as a multiple of the best plan that there is."""


@dataclass(frozen=True)
class Row:
    """A layer's plans: without a search, as the search found it, and the best of all ``count`` choices."""

    layer: str
    batch: int
    count: int
    trials: int
    estimated: Range
    found: Range
    best: Range

    @property
    def ratio(self) -> float:
        """The time of the search's plan over that of the best one: the middles of their ranges."""
        return _middle(self.found) / _middle(self.best)

    @property
    def meets_bar(self) -> bool:
        return self.ratio <= MOST_RATIO


def _middle(found: Range) -> float:
    return (found.least_us + found.most_us) / 2


def choose_layers(names: Sequence[str]) -> list[Layer]:
    """The layers of these names, all if there is none. OptionError for an unknown name."""
    layers = {name: layer_called(name) for name in names}
    for name, layer in layers.items():
        if layer is None:
            raise OptionError(f"no layer is called {name!r}", hint=f"there are {', '.join(one.name for one in LAYERS)}")
    return [layer for layer in layers.values() if layer] or list(LAYERS)


def measure(target: str, dtype: str, layers: Sequence[Layer], done: Callable[[int], None]) -> Iterator[Row]:
    """The rows; ``done`` is called with 1 after each."""
    for layer in layers:
        yield measure_layer(layer, target, dtype)
        done(1)


def measure_layer(layer: Layer, target: str, dtype: str) -> Row:
    """Search, and try everything."""
    model = import_model(layer.build().SerializeToString())
    shapes = default_shapes(model, layer.batch)
    planning = Planning(model, model.bind(shapes, {}), PlanOptions(target, dtype), layer.batch, None)
    trials = Trials(planning, budget=inf)
    searched = search(planning, DEFAULT, 1)
    plans = [timed for choices in every_choice(planning) if (timed := trials.time(choices)) is not None]
    return Row(
        layer=layer.name,
        batch=layer.batch,
        count=len(plans),
        trials=len(searched.weighed),
        estimated=_time(trials, DEFAULT),
        found=_time(trials, searched.choices),
        best=min(plans, key=lambda timed: timed.us).range,
    )


def _time(trials: Trials, choices: Choices) -> Range:
    timed: Timed | None = trials.time(choices)
    assert timed is not None, "it was planned before"
    return timed.range


def every_choice(planning: Planning) -> Iterator[Choices]:
    """All combinations of fusions, options, steps that load their own weights, and room for weights."""
    trials = Trials(planning)
    fitted = trials.fit(DEFAULT)
    assert fitted is not None
    fused = [node for step in trials.material(DEFAULT).steps for node in step.nodes[1:]]
    for apart in _subsets(fused):
        choices = Choices(no_fuse=frozenset(apart))
        steps = trials.material(choices).steps
        offered = [(step.name, name, (None, *values)) for step in steps for name, values in step.tunable().items()]
        fitted = trials.fit(choices)
        assert fitted is not None
        loading = zip(steps, fitted.module.loading, strict=True)
        ahead = [step.name for step, how in loading if how[0] == "prefetched"]
        for values in product(*(one[2] for one in offered)):
            asked = zip(offered, values, strict=True)
            options = frozenset((step, name, value) for (step, name, _), value in asked if value is not None)
            for own in _subsets(ahead):
                for share in (None, *shares_to_try(fitted)) if ahead else (None,):
                    yield Choices(choices.no_fuse, frozenset(), frozenset(own), options, share=share)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))
