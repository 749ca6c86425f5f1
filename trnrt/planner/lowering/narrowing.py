"""8-bit floats where they make a plan faster: layers whose products pair, and the tensors that convolutions read.

A linear layer's kernel narrows its source itself. Convolutions read tensors of 8 bits. Such a tensor is its value
divided by a scale, a power of two. It is written by the step that makes the value if nothing else reads that, and if
the weights prove that no input makes it too large for the format; else a step of its own limits and rounds it. The
scale is the least at which the calibration data fits, doubled until the proof holds: up to _DOUBLINGS times, which
takes numbers near 0 their last digits, but is cheaper than a step that limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trnrt.operators.conv_steps import NO_POOL, ConvStep
from trnrt.operators.float8_steps import (
    LARGEST,
    Float8ConvStep,
    Float8LinearStep,
    NarrowStep,
    can_narrow,
    gains_by_float8,
    narrowing_ns,
    saved_by_float8,
    scale_for,
)
from trnrt.operators.linear import LinearStep
from trnrt.planner.lowering.walk import Lowering
from trnrt.planner.options import Float8
from trnrt.planner.steps import Operand, Step
from trnrt.text import count_text, list_text, quote

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
    that it makes, or that the model reads; ``without_range``: layers to narrow whose source has no range."""

    lowering: Lowering
    float8: Float8
    leaving: set[str]
    made: dict[str, Narrow] = field(default_factory=dict)
    after: dict[str, Step] = field(default_factory=dict)
    without_range: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        steps = self.lowering.steps
        self.ranges = dict(self.float8.ranges)
        self.makers = {step.output: number for number, step in enumerate(steps)}
        layers = [number for number, step in enumerate(steps) if hasattr(step, "weight")]
        ends = {layers[0], layers[-1]} if layers and self.float8.narrow != "all" else set()
        able = [number for number in layers if number not in ends and can_narrow(steps[number])]
        wanted = able if self.float8.narrow == "all" else self._gaining(able)
        self.chosen = {number for number in wanted if self.ranges.get(steps[number].sources[0].value, 0.0) > 0}
        self.without_range = [steps[number].name for number in wanted if number not in self.chosen]

    def _gaining(self, able: list[int]) -> list[int]:
        """The layers that are estimated to be faster: convolutions that read one value share the narrowing of it."""
        steps, saving = self.lowering.steps, dict[str, float]()
        for number in able:
            step = steps[number]
            if isinstance(step, ConvStep):
                value = step.sources[0].value
                saving[value] = saving.get(value, 0.0) + max(0.0, saved_by_float8(step))
        return [number for number in able if self._gains(steps[number], saving)]

    def _gains(self, step: Step, saving: Mapping[str, float]) -> bool:
        if isinstance(step, LinearStep):
            return gains_by_float8(step)
        assert isinstance(step, ConvStep)
        return saved_by_float8(step) > 0 and saving[step.sources[0].value] > narrowing_ns(step)

    def run(self) -> None:
        """Narrow the chosen steps, in order: the steps before one are narrow already."""
        steps = self.lowering.steps
        for number in sorted(self.chosen):
            step = steps[number]
            steps[number] = self._narrow_linear(step) if isinstance(step, LinearStep) else self._narrow_conv(step)
            self._report(steps[number])
        inputs = [step for value, step in self.after.items() if value not in self.makers]
        self.lowering.steps = inputs + [
            one for number, step in enumerate(steps) for one in self._with_follower(step, number)
        ]

    def _with_follower(self, step: Step, number: int) -> list[Step]:
        value = next((value for value, maker in self.makers.items() if maker == number), "")
        return [step, self.after[value]] if value in self.after else [step]

    def _narrow_linear(self, step: LinearStep) -> Step:
        value = step.sources[0].value
        scale = scale_for(self.ranges[value], self.float8.dtype)
        return Float8LinearStep.narrow(step, self.float8.dtype, scale, signed=self._may_be_negative(value))

    def _narrow_conv(self, step: Step) -> Step:
        assert isinstance(step, ConvStep)
        source = step.sources[0]
        if source.value not in self.made:
            self.made[source.value] = self._narrow_value(source)
        narrow = self.made[source.value]
        sources = [Operand(narrow.name, source.shape), *step.sources[1:]]
        return replace(Float8ConvStep.narrow(step, self.float8.dtype, narrow.scale), sources=sources)

    def _may_be_negative(self, value: str) -> bool:
        maker = self.lowering.steps[self.makers[value]] if value in self.makers else None
        return not (isinstance(maker, ConvStep | LinearStep) and maker.act == "relu")

    def _report(self, step: Step) -> None:
        """Say in the report of its node that the step multiplies 8-bit floats."""
        report = self.lowering.reports.get(step.name)
        if report is not None:
            why = f"{report.reason}, in {step.float8} (source in units of {step.source_scale:g})"
            self.lowering.reports[step.name] = replace(report, reason=why)

    def _narrow_value(self, source: Operand) -> Narrow:
        """A value in 8 bits, from its own step or from one after it."""
        value, dtype = source.value, self.float8.dtype
        maker = self.lowering.steps[self.makers[value]] if value in self.makers else None
        name = self.lowering.spare_name(f"{value}.{dtype}")
        scale, most = scale_for(self.ranges[value], dtype), LARGEST[dtype]
        signed = self._may_be_negative(value)
        if isinstance(maker, Float8ConvStep) and self._is_only_read_narrow(maker):
            reach = maker.largest_sum(self._most_of(maker), signed=self._is_signed(maker)) * _MARGIN
            for _ in range(_DOUBLINGS[dtype]):
                scale = scale if reach <= most * scale else 2 * scale
            if reach <= most * scale:
                narrowed = replace(maker, output=name, dtype=dtype, result_scale=scale)
                self.lowering.steps[self.makers[value]] = narrowed
                return Narrow(name, scale, reach / scale, signed)
            scale = scale_for(self.ranges[value], dtype)
        stored = source if maker is None else Operand(value, maker.shape)
        self.after[value] = NarrowStep.make(name, stored, scale, dtype, signed=signed)
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
        return all(
            number in self.chosen and position == 0 and isinstance(self.lowering.steps[number], ConvStep)
            for number, position in readers
        )

    def _source_of(self, maker: Float8ConvStep) -> Narrow:
        return next(narrow for narrow in self.made.values() if narrow.name == maker.sources[0].value)

    def _most_of(self, maker: Float8ConvStep) -> float:
        return self._source_of(maker).most

    def _is_signed(self, maker: Float8ConvStep) -> bool:
        return self._source_of(maker).signed


def narrow_steps(lowering: Lowering, float8: Float8, leaving: set[str]) -> None:
    """Multiply in 8 bits where ``float8`` asks for it; values without a range, and ``leaving`` ones, keep 16."""
    narrowing = Narrowing(lowering, float8, leaving)
    narrowing.run()
    count = len(narrowing.chosen)
    some = f"{count_text(count, 'layer')} in {float8.dtype}" if count else f"no layer is faster in {float8.dtype}"
    lowering.notes.append(f"{some}; the other steps are bfloat16")
    if float8.narrow == "all" and narrowing.without_range:
        missing = list_text(map(quote, narrowing.without_range))
        lowering.notes.append(f"no range was measured for the source of {missing}, which therefore keep bfloat16")
