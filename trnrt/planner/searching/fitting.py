"""Place tensors and render the kernel module, until its tiles fit."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
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
from trnrt.planner.placing.sweeps import find_sweeps
from trnrt.planner.rendering.draft import Draft, Material, Repeat
from trnrt.planner.rendering.module import KernelModule, render
from trnrt.planner.searching.trial import trace_source_cores
from trnrt.planner.steps import stored_dtype

SHARES = (0.86, 0.75, 0.65, 0.5, 0.0)
"""Shares of SBUF's room for prefetched weights: less if the gaps between tiles are too small. The first was 0.85 before
the search existed; a larger one is refused more often, and each refusal costs a trace. When one changes, measure the
networks with many weights (ResNet-101, the VGGs), and their planning time."""


@dataclass(frozen=True)
class Fitted:
    """A placement with a module whose tiles fit; its program, if it was traced to check that, and how many traces it
    took. ``share`` is the part of SBUF's room left for weights.

    ``rows``: the batch of the module, None if there is none. If it is only part of the requested batch, the module runs
    in passes.
    """

    placed: Placed
    module: KernelModule
    share: float
    rows: int | None
    program: Program | None = None
    tries: int = 0


def fit(material: Material, known: Container[object] = ()) -> Fitted | None:
    """The module of the material's choices, with as many prefetched weights as fit; None if its sweeps don't fit.

    Tensors too large for the gaps between other tiles go to HBM, one after the other. A module whose ``module_key`` is
    ``known`` fits: it isn't traced again.
    """
    in_hbm: dict[str, str] = {}
    tries = 0
    while True:
        placed = place_tensors(material, in_hbm)
        draft, rooms = Draft(material, placed), _rooms(material, placed)
        largest = placed.largest_in_sbuf()
        for share in _shares(material.choices.share):
            module = render(draft, rooms.with_share(share))
            if module.loosely or (not share and largest is None) or module_key(material, module) in known:
                return Fitted(placed, module, share, material.batch, tries=tries)
            tries += 1
            try:
                return Fitted(placed, module, share, material.batch, trace_module(material, module), tries)
            except KernelMemoryError:
                continue
        if placed.sweeps:
            return None
        assert largest is not None, "kernels find room alone"
        in_hbm[largest] = "the gaps between other tiles in SBUF are too small for it"


def trace(material: Material, fitted: Fitted) -> Fitted:
    """The fitted module with its program."""
    if fitted.program is not None:
        return fitted
    return replace(fitted, program=trace_module(material, fitted.module), tries=fitted.tries + 1)


def _shares(first: float | None) -> Sequence[float]:
    """The shares to try: from the chosen one down."""
    return SHARES if first is None else (first, *(share for share in SHARES if share < first))


def repeat_part(part: Material, fitted: Fitted, times: int, heading: list[str], cores: int = 1) -> Fitted:
    """The module that takes a batch in ``times`` passes over one that was fitted for a ``part`` of its rows, on each of
    ``cores``.

    ``heading`` is that of the whole. It isn't traced: passes share nothing in SBUF.
    """
    draft = Draft(replace(part, heading=heading), fitted.placed, Repeat(times, cores=cores))
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
    around = replace(rooms, loops=((0, len(part.steps)),))
    whole = {tensor.name: (times * tensor.shape[0], *tensor.shape[1:]) for tensor in part.inputs}
    inputs = [replace(tensor, shape=whole[tensor.name]) for tensor in part.inputs]
    timed: list[tuple[float, int, Fitted]] = []
    for draft, room, shares in ((before, around, SHARES[:-1]), (inside, rooms, (fitted.share,))):
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


def trace_module(material: Material, module: KernelModule) -> Program:
    """The program of a module; of the first core, if it is for several."""
    return trace_each_core(material, module)[0]


def trace_each_core(material: Material, module: KernelModule) -> list[Program]:
    """The program of each core of a module."""
    weights = _weight_specs(material, module)
    return trace_source_cores(module.source, module.entry, material.inputs, weights, material.target, material.cores)


def module_key(material: Material, module: KernelModule) -> object:
    """Modules of one plan with equal keys have the same program."""
    return module.source, tuple((spec.shape, spec.dtype) for spec in _weight_specs(material, module))


def _weight_specs(material: Material, module: KernelModule) -> list[Spec]:
    return [
        Spec(array.shape, array.dtype if name in module.biases else stored_dtype(array, material.dtype))
        for name, array in module.weights.items()
    ]


def place_tensors(material: Material, too_large: Mapping[str, str] = MappingProxyType({})) -> Placed:
    """Place tensors by their sizes; ``too_large`` are already known not to fit, each with the reason."""
    constants = {name: array.shape for name, array in material.constants.items()}
    shapes = {tensor.name: tensor.shape for tensor in material.inputs} | constants
    leaving = {tensor.name for tensor in material.results}
    in_hbm = dict.fromkeys(material.choices.in_hbm, ASKED) | dict(too_large)
    material.tune()
    hardware, itemsize = get_target(material.target), as_dtype(material.dtype).itemsize
    sweeps = find_sweeps(material.choices.sweeps, material.steps, material.batch)
    return place(material.steps, shapes, leaving, hardware, itemsize, in_hbm, sweeps)


def _rooms(material: Material, placed: Placed) -> Rooms:
    return rooms_of(material.steps, placed, get_target(material.target), as_dtype(material.dtype).itemsize)
