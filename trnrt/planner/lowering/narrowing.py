"""8-bit floats where they make a plan faster: convolutions whose products pair, and the tensors that they read.

A tensor of 8 bits is its value divided by a scale, a power of two. It is written by the step that makes the value if
nothing else reads that, and if the weights prove that no input makes it too large for the format; else a step of its
own limits and rounds it. The scale is the least at which the calibration data fits, doubled until the proof holds:
up to _DOUBLINGS times, which takes numbers near 0 their last digits, but is cheaper than a step that limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from trnrt.operators.conv_steps import NO_POOL, ConvStep
from trnrt.operators.float8_steps import LARGEST, Float8ConvStep, NarrowStep, gains_by_float8, scale_for
from trnrt.planner.lowering.walk import Lowering
from trnrt.planner.options import Float8
from trnrt.planner.steps import Operand, Step

# Numbers below 2**-6 (2**-14 of float8_e5m2) have fewer digits. After 8 doublings the largest of the data is about 1,
# and what has fewer digits is below a 60th of it; its error is below that of the others.
_DOUBLINGS = {"float8_e4m3": 8, "float8_e5m2": 16}
# Room for the roundings of a sum that the proof computes in real numbers.
_MARGIN = 1.001


@dataclass(frozen=True)
class Narrow:
    """A value in 8 bits: the tensor's name and scale; ``most``: the largest magnitude that it can hold, in units of the
    scale; ``signed``: it may hold negative numbers."""

    name: str
    scale: float
    most: float
    signed: bool


@dataclass
class Narrowing:
    """The pass over the steps. ``made``: the values in 8 bits so far; ``after``: steps that follow a step, by the value
    that it makes."""

    lowering: Lowering
    float8: Float8
    leaving: set[str]
    made: dict[str, Narrow] = field(default_factory=dict)
    after: dict[str, Step] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = self.lowering.steps
        self.ranges = dict(self.float8.ranges)
        self.makers = {step.output: number for number, step in enumerate(steps)}
        convolutions = [number for number, step in enumerate(steps) if isinstance(step, ConvStep)]
        self.chosen = {
            number
            for number in convolutions[1:]
            if gains_by_float8(steps[number]) and self._has_range(steps[number].sources[0].value)
        }
        products = [number for number, step in enumerate(steps) if hasattr(step, "weight")]
        self.chosen -= set(products[-1:])

    def _has_range(self, value: str) -> bool:
        return value in self.makers and self.ranges.get(value, 0.0) > 0

    def run(self) -> None:
        """Narrow the chosen steps, in order: the steps before one are narrow already."""
        steps = self.lowering.steps
        for number in sorted(self.chosen):
            step = steps[number]
            assert isinstance(step, ConvStep)
            source = step.sources[0]
            if source.value not in self.made:
                self.made[source.value] = self._narrow_value(source)
            narrow = self.made[source.value]
            sources = [Operand(narrow.name, source.shape), *step.sources[1:]]
            steps[number] = replace(Float8ConvStep.narrow(step, self.float8.dtype, narrow.scale), sources=sources)
        self.lowering.steps = [one for number, step in enumerate(steps) for one in (step, *self._followers(number))]

    def _followers(self, number: int) -> list[Step]:
        value = next((value for value, maker in self.makers.items() if maker == number), "")
        return [self.after[value]] if value in self.after else []

    def _narrow_value(self, source: Operand) -> Narrow:
        """A value in 8 bits, from its own step or from one after it."""
        value, dtype = source.value, self.float8.dtype
        maker = self.lowering.steps[self.makers[value]]
        name = self.lowering.spare_name(f"{value}.{dtype}")
        scale, most = scale_for(self.ranges[value], dtype), LARGEST[dtype]
        signed = not (isinstance(maker, ConvStep) and maker.act == "relu")
        if isinstance(maker, Float8ConvStep) and self._is_only_read_narrow(maker):
            reach = maker.largest_sum(self._most_of(maker), signed=self._is_signed(maker)) * _MARGIN
            for _ in range(_DOUBLINGS[dtype]):
                scale = scale if reach <= most * scale else 2 * scale
            if reach <= most * scale:
                narrowed = replace(maker, output=name, dtype=dtype, result_scale=scale)
                self.lowering.steps[self.makers[value]] = narrowed
                return Narrow(name, scale, reach / scale, signed)
            scale = scale_for(self.ranges[value], dtype)
        self.after[value] = NarrowStep.make(name, source, scale, dtype, signed=signed)
        return Narrow(name, scale, most, signed)

    def _is_only_read_narrow(self, maker: ConvStep) -> bool:
        """True if a step can write 8 bits, and nothing reads what it makes in 16."""
        if maker.output in self.leaving or maker.added or maker.act not in ("none", "relu") or maker.pool != NO_POOL:
            return False
        readers = [
            (number, position)
            for number, step in enumerate(self.lowering.steps)
            for position, source in enumerate(step.sources)
            if source.value == maker.output
        ]
        return all(number in self.chosen and position == 0 for number, position in readers)

    def _source_of(self, maker: Float8ConvStep) -> Narrow:
        return next(narrow for narrow in self.made.values() if narrow.name == maker.sources[0].value)

    def _most_of(self, maker: Float8ConvStep) -> float:
        return self._source_of(maker).most

    def _is_signed(self, maker: Float8ConvStep) -> bool:
        return self._source_of(maker).signed


def narrow_steps(lowering: Lowering, float8: Float8, leaving: set[str]) -> None:
    """Store what pairs of products read in 8 bits. The first and the last step of the kind keep 16, as do all values
    without a range, and ``leaving`` ones."""
    narrowing = Narrowing(lowering, float8, leaving)
    narrowing.run()
    count = len(narrowing.chosen)
    some = f"{count} convolution{'s' * (count != 1)} read {float8.dtype}" if count else "no convolution is faster in it"
    lowering.notes.append(f"{float8.dtype}: {some}; the other steps are bfloat16")
