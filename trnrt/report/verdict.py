"""The first sentence of a profile: what holds the latency, and what to try, with the gain where it is known.

Every part comes from the profile's numbers, or from another plan of the model that was predicted (``Tried``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trnrt.text import count_text, name_text, range_text, significant_text, time_text

if TYPE_CHECKING:
    from trnrt.nki.bottleneck import Bottleneck
    from trnrt.nki.profiling import Profile

_HOLDS = {
    "DMA latency": "DMA transfers wait out their fixed latency",
    "DMA data": "the DMA queues move data",
    "semaphores": "engines wait for each other's semaphores",
    "loop barriers": "all engines meet at the barriers of device loops",
    "meetings": "one core waits for the other",
    "function tables": "the scalar engine loads function tables",
    "tensor engine": "the tensor engine multiplies matrices",
}
_WORTH = 1.05
"""A smaller gain is no advice: it is within what the model can tell apart."""
_LAUNCH_MATTERS = 0.2
_STEP_MATTERS, _LITTLE_USED = 0.04, 0.1
"""A step is named for its padding from this share of the kernel on, if it uses less than this of the tensor engine."""
_NAMES_SHOWN = 3
_LARGER = 8


@dataclass(frozen=True, slots=True)
class Tried:
    """Another plan of the model: the flags that ask for it, and its predicted time for each row, microseconds."""

    flags: str
    us_per_row: float


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to try. ``flags``: what to add to the command, "" for a change of the kernel; ``gain``: how many times
    faster a row is predicted to be, None if nothing was predicted."""

    text: str
    flags: str = ""
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sentence on the cause of a profile's latency, and changes to try, the largest gain first.

    A change of the kernel that certainly helps isn't among them: it is the bottleneck's own ``advice``.
    """

    sentence: str
    advice: tuple[Advice, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return asdict(self)


def verdict_of(profile: Profile, tried: Sequence[Tried] = ()) -> Verdict | None:
    """The verdict on a profile; None for a kernel without instructions."""
    found = profile.bottleneck
    if found is None:
        return None
    launch = profile.benchmark_us - profile.timeline.duration / 1e6
    whole = range_text(profile.benchmark)
    held = f"{_percent(found.us / profile.benchmark_us)} of the time {_holder(found)}{_places(profile, found)}"
    start = f"the launch, a fixed cost of each call, takes {_percent(launch / profile.benchmark_us)}"
    parts = [held, start] if found.us >= launch else [start, held]
    fits = "" if profile.fits else " The kernel does not fit the memory: this leaves out the spills."
    return Verdict(f"{whole} predicted: {parts[0]}; {parts[1]}.{fits}", _advice(profile, found, launch, tried))


def _holder(found: Bottleneck) -> str:
    if _loads_weights(found):
        return "the DMA queues load weights"
    if found.kind in _HOLDS:
        return _HOLDS[found.kind]
    engine = found.kind.partition(" ")[0]
    if found.kind.endswith(" latency"):
        return f"the {engine} engine's instructions take their fixed times"
    return f"the {engine} engine works on elements"


def _loads_weights(found: Bottleneck) -> bool:
    return found.kind == "DMA data" and bool(found.places) and found.places[0].name.startswith("(weights")


def _places(profile: Profile, found: Bottleneck) -> str:
    """`` in conv1 and conv2``; places that share the time evenly are only counted."""
    if _loads_weights(found):
        return " ahead of their steps"
    count = len(found.places) + found.more
    named = found.places[:_NAMES_SHOWN]
    if count > len(named) and sum(place.us for place in named) < found.us / 2:
        return f" ({count_text(count, 'line' if found.places[0].line else 'step')})"
    names = [name_text(place.name.strip("()")) for place in named]
    if all(name == f"line {place.line}" for name, place in zip(names, named, strict=True)) and len(names) > 1:
        numbers = sorted(place.line for place in named)
        names = [f"lines {numbers[0]}", *map(str, numbers[1:])]
    rest = [f"{count - len(named):,} more"] if count > len(named) else []
    *first, last = names + rest
    return f" in {', '.join(first)} and {last}" if first else f" in {last}"


def _advice(profile: Profile, found: Bottleneck, launch: float, tried: Sequence[Tried]) -> tuple[Advice, ...]:
    now = profile.benchmark_us / (profile.batch or 1)
    predicted = [(now / other.us_per_row, other) for other in tried]
    advice = [
        Advice(
            f"{other.flags}: predicted {significant_text(gain)} times faster per row ({time_text(other.us_per_row)})",
            other.flags,
            gain,
        )
        for gain, other in sorted(predicted, key=lambda pair: -pair[0])
        if gain >= _WORTH
    ]
    if not tried and any(step.nodes for step in profile.steps):
        advice += _name_flags(profile, found, launch)
    padded = [step for step in profile.steps if step.share >= _STEP_MATTERS and 0 < step.mfu < _LITTLE_USED]
    padded = [step for step in padded if step.bound == "tensor"]
    if padded and not tried:
        step = max(padded, key=lambda one: one.time_us)
        used = f"{_percent(step.mfu)} of the tensor engine for {time_text(step.time_us)}"
        advice.append(Advice(f"more rows at once: {name_text(step.name)} uses {used}"))
    return tuple(advice)


def _name_flags(profile: Profile, found: Bottleneck, launch: float) -> list[Advice]:
    """Flags whose gain nothing predicted yet: the command that does."""
    advice = []
    if profile.dtype == "float32" and found.kind in ("tensor engine", "DMA data"):
        why = "smaller weights, faster products" if found.kind == "tensor engine" else "half the bytes"
        advice.append(Advice(f"--dtype bfloat16: {why}; profile again to see the gain", "--dtype bfloat16"))
    weights = found.kind == "DMA data" and _holder(found).endswith("weights")
    if profile.batch is not None and (weights or launch >= _LAUNCH_MATTERS * profile.benchmark_us):
        flags = f"--batch {profile.batch * _LARGER}"
        advice.append(Advice(f"{flags}: rows share the launch and the weights; profile again to see the gain", flags))
    return advice


def _percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "less than 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"
