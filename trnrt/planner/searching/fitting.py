"""Place tensors and render the kernel module: retried until its tiles fit, and timed where there is a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from trnrt.errors import KernelMemoryError
from trnrt.nki import Spec
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.profiling import in_order_us
from trnrt.planner.choices import ASKED
from trnrt.planner.placing.placement import Placed, place, rooms_of
from trnrt.planner.placing.prefetching import Rooms
from trnrt.planner.placing.sweeps import Sweep, sweep_bounds, sweep_sizes
from trnrt.planner.rendering.module import Draft, KernelModule, Material, Repeat, render
from trnrt.planner.searching.trial import trace_source

# Shares of SBUF's room for prefetched weights: less if the gaps between tiles are too small. The first was 0.85 before
# the search existed; a larger one is refused more often, and each refusal costs a trace. When one changes, measure the
# networks with many weights (ResNet-101, the VGGs), and their planning time.
_SHARES = (0.86, 0.75, 0.65, 0.5, 0.0)
# After tracing this many instructions to time sweeps, no further one is tried. It is not a time, so that plans are the
# same everywhere. Measure the networks of large batches when it changes, and their planning time.
MOST_TRACED = 160_000


@dataclass(frozen=True)
class Fitted:
    """A placement with a module whose tiles fit; its program, if it was traced to check that, and how many traces it
    took. ``share`` is the part of SBUF's room left for weights; ``traced`` counts the instructions traced to choose it.

    ``rows``: the batch of the module, None if there is none. If it is only part of the requested batch, the module runs
    in passes.
    """

    placed: Placed
    module: KernelModule
    share: float
    rows: int | None
    program: Program | None = None
    tries: int = 0
    traced: int = 0


def fit(material: Material) -> Fitted:
    """The module with the lowest predicted time among those that fit.

    If the batch doesn't fit, that may be one for fewer rows, in several passes. Then no more rows than these are tried
    at a time.
    """
    batch = material.batch or 1
    fitted = None if batch > 1 and _place_tensors(material, None).spilled else _fit_plain(material)
    if fitted is not None and (batch == 1 or not fitted.placed.spilled):
        return fitted
    fewer = material.fewer()
    part = None if fewer is None else fit(fewer)
    if fewer is not None and part is not None and part.rows != fewer.batch:
        return part
    fitted = fitted or _fit_plain(material)
    sweeping = _Sweeping(material, fitted, 0 if part is None else part.traced)
    limits = sweep_bounds(material.steps, fitted.placed.spilled)
    if limits is not None:
        sweeping.search(*limits, list(sweep_sizes(batch)))
    if fewer is not None and part is not None and sweeping.is_beaten(fewer, part):
        return part
    return replace(sweeping.best, traced=sweeping.traced_count)


def _fit_plain(material: Material) -> Fitted:
    """The module without a sweep."""
    fitted = _fit(material, None)
    assert fitted is not None, "without a sweep tensors go to HBM until the rest finds room"
    return fitted


def repeat_part(part: Material, fitted: Fitted, times: int, heading: list[str]) -> Fitted:
    """The module that takes a batch in ``times`` passes over one that was fitted for a ``part`` of its rows.

    ``heading`` is that of the whole. It isn't traced: passes share nothing in SBUF.
    """
    draft = Draft(replace(part, heading=heading), fitted.placed, Repeat(times))
    rooms = _rooms(part, fitted.placed)
    return replace(fitted, module=render(draft, rooms.with_share(fitted.share)), program=None)


def loop_part(part: Material, fitted: Fitted, times: int, heading: list[str]) -> Fitted:
    """``repeat_part`` with a loop on the device; traced.

    The prefetched weights are loaded before the loop or in each trip, whichever is predicted to be faster: before it,
    those that are not too many stay in SBUF all the time, and the others are loaded by their steps.
    """
    rooms = _rooms(part, fitted.placed)
    inside = Draft(replace(part, heading=heading), fitted.placed, Repeat(times, on_device=True))
    before = replace(inside, repeat=Repeat(times, on_device=True, resident=True))
    around = replace(rooms, loop=(0, len(part.steps)))
    whole = {tensor.name: (times * tensor.shape[0], *tensor.shape[1:]) for tensor in part.inputs}
    inputs = [replace(tensor, shape=whole[tensor.name]) for tensor in part.inputs]
    timed: list[tuple[float, int, Fitted]] = []
    for draft, room, shares in ((before, around, _SHARES[:-1]), (inside, rooms, (fitted.share,))):
        found = _fit_loop(draft, room, shares, replace(part, inputs=inputs), fitted)
        if found is not None and found.program is not None:
            timed.append((in_order_us(found.program), len(timed), found))
    assert timed, "what fits once fits in each trip"
    return min(timed)[2]


def _fit_loop(draft: Draft, rooms: Rooms, shares: Sequence[float], whole: Material, fitted: Fitted) -> Fitted | None:
    """The draft's module with the first share of SBUF for weights with which it fits; None if it fits with none."""
    for share in shares:
        module = render(draft, rooms.with_share(share))
        try:
            return replace(fitted, module=module, share=share, program=trace_module(whole, module))
        except KernelMemoryError:
            continue
    return None


def refit(material: Material, sweep: Sweep | None) -> Fitted | None:
    """The module with this sweep, traced; None if it doesn't fit."""
    fitted = _fit(material, sweep)
    if fitted is None or fitted.program is not None:
        return fitted
    return replace(fitted, program=trace_module(material, fitted.module), tries=fitted.tries + 1)


class _Sweeping:
    """The search for the best sweep: its start, then its end, then its number of images, each as long as it gains."""

    def __init__(self, material: Material, plain: Fitted, traced: int) -> None:
        self._material = material
        self._left = MOST_TRACED - traced
        self._cost = 0  # instructions of the plan without a sweep
        self.best, self._least = plain, self._predict_us(plain)
        self._sweep: Sweep | None = None

    @property
    def traced_count(self) -> int:
        """The number of traced instructions, including those for parts of the batch."""
        return MOST_TRACED - self._left

    def search(self, firsts: range, ends: range, counts: list[int]) -> None:
        """Search the sweeps that start at one of ``firsts`` and end at one of ``ends``."""
        for first in firsts:
            if not self._try(Sweep(first, ends[0], counts[0])) and self._sweep is not None:
                break
        if self._sweep is None:
            return
        for end in ends[1:]:
            if not self._try(Sweep(self._sweep.first, end, counts[0])):
                break
        for images in counts[1:]:
            if not self._try(Sweep(self._sweep.first, self._sweep.end, images)):
                break

    def is_beaten(self, part: Material, fitted: Fitted) -> bool:
        """True if passes over the module for a part of the batch are no slower than the best so far."""
        assert self._material.batch is not None and part.batch is not None
        passes = repeat_part(part, fitted, self._material.batch // part.batch, part.heading)
        try:
            return self._predict_us(passes) <= self._least
        except KernelMemoryError:
            return False

    def _try(self, sweep: Sweep) -> bool:
        """True if a sweep is the best so far; False once the tracing budget is used up."""
        if self._left <= 0:
            return False
        fitted = _fit(self._material, sweep)
        if fitted is None:  # it was traced with each share, and never fit
            self._left -= len(_SHARES) * self._cost
            return False
        time = self._predict_us(fitted)
        if time >= self._least:
            return False
        self.best, self._least, self._sweep = fitted, time, sweep
        return True

    def _predict_us(self, fitted: Fitted) -> float:
        """The predicted latency, microseconds."""
        program = fitted.program or trace_module(self._material, fitted.module)
        self._cost = self._cost or len(program.instructions)
        self._left -= max(1, fitted.tries) * len(program.instructions)
        return in_order_us(program)


def trace_module(material: Material, module: KernelModule) -> Program:
    """The program of a module."""
    weights = module.weights.items()
    specs = [Spec(array.shape, array.dtype if name in module.biases else material.dtype) for name, array in weights]
    return trace_source(module.source, module.entry, material.inputs, specs, material.target)


def _fit(material: Material, sweep: Sweep | None) -> Fitted | None:
    """The module with as many prefetched weights as fit; None if a sweep doesn't fit.

    Tensors too large for the gaps between other tiles go to HBM, one after the other.
    """
    in_hbm: dict[str, str] = {}
    tries = 0
    while True:
        placed = _place_tensors(material, sweep, in_hbm)
        draft, rooms = Draft(material, placed), _rooms(material, placed)
        largest = placed.largest_in_sbuf()
        for share in _SHARES:
            module = render(draft, rooms.with_share(share))
            if module.loosely or (not share and largest is None):
                return Fitted(placed, module, share, material.batch, tries=tries)
            tries += 1
            try:
                return Fitted(placed, module, share, material.batch, trace_module(material, module), tries)
            except KernelMemoryError:
                continue
        if sweep is not None:
            return None
        assert largest is not None, "kernels find room alone"
        in_hbm[largest] = "the gaps between other tiles in SBUF are too small for it"


def _place_tensors(
    material: Material, sweep: Sweep | None, too_large: Mapping[str, str] = MappingProxyType({})
) -> Placed:
    """Place tensors by their sizes; ``too_large`` are already known not to fit, each with the reason."""
    constants = {name: array.shape for name, array in material.constants.items()}
    shapes = {tensor.name: tensor.shape for tensor in material.inputs} | constants
    leaving = {tensor.name for tensor in material.results}
    in_hbm = dict.fromkeys(material.choices.in_hbm, ASKED) | dict(too_large)
    material.tune()
    hardware, itemsize = get_target(material.target), as_dtype(material.dtype).itemsize
    return place(material.steps, shapes, leaving, hardware, itemsize, in_hbm, sweep)


def _rooms(material: Material, placed: Placed) -> Rooms:
    return rooms_of(material.steps, placed, get_target(material.target), as_dtype(material.dtype).itemsize)
