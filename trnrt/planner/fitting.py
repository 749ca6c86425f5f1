"""Where tensors live, and the kernel module: tried until its tiles find room, and timed where there is a choice."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trnrt.errors import KernelMemoryError
from trnrt.nki import Spec
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.profiling import profile_programs
from trnrt.planner.choices import ASKED, Choices
from trnrt.planner.placing import Placed, place, rooms_of
from trnrt.planner.plan import Array, DeviceTensor
from trnrt.planner.rendering import Draft, KernelModule, render
from trnrt.planner.steps import Step
from trnrt.planner.sweeps import Sweep, possible, sizes
from trnrt.planner.trial import traced

# Of SBUF's room, what weights that are brought in ahead may take: less where the gaps between tiles are too small.
_SHARES = (0.86, 0.75, 0.65, 0.5, 0.0)
# Once so many instructions were traced to time sweeps, no other is tried. It is no time, so that a plan is the same
# anywhere.
MOST_TRACED = 160_000


@dataclass(frozen=True)
class Material:
    """What a module is made from: see ``Draft``; ``batch`` is None where the model has none."""

    name: str
    steps: list[Step]
    inputs: list[DeviceTensor]
    constants: dict[str, Array]
    results: list[DeviceTensor]
    target: str
    dtype: str
    heading: list[str]
    batch: int | None
    choices: Choices

    def tune(self) -> None:
        """Give the steps' kernels the options that were chosen."""
        for step in self.steps:
            step.tune(self.choices.tuned(step.name))


@dataclass(frozen=True)
class Fitted:
    """Where tensors live, and a module whose tiles find room; its program, if it was traced to see that, and how often
    it was until they did."""

    placed: Placed
    module: KernelModule
    program: Program | None = None
    tries: int = 0


def fit(material: Material) -> Fitted:
    """The module that the timing model likes best of those that find room."""
    fitted = _fit(material, None)
    assert fitted is not None, "without a sweep tensors go to HBM until the rest finds room"
    batch = material.batch or 1
    limits = possible(material.steps, fitted.placed.spilled) if batch > 1 else None
    if limits is not None:
        fitted = _Sweeping(material, fitted).best(*limits, list(sizes(batch)))
    return fitted


def refit(material: Material, sweep: Sweep | None) -> Fitted | None:
    """The module with this sweep, traced; None where it finds no room."""
    fitted = _fit(material, sweep)
    if fitted is None or fitted.program is not None:
        return fitted
    return replace(fitted, program=_traced(material, fitted.module), tries=fitted.tries + 1)


class _Sweeping:
    """The search for the best sweep: its beginning, then its end, then its number of images, each while it helps."""

    def __init__(self, material: Material, plain: Fitted) -> None:
        self._material = material
        self._left = MOST_TRACED
        self._cost = 0  # instructions of the plan without a sweep
        self._best, self._least = plain, self._timed(plain)
        self._sweep: Sweep | None = None

    def best(self, firsts: range, ends: range, counts: list[int]) -> Fitted:
        """The best found for sweeps that begin at one of ``firsts`` and end at one of ``ends``."""
        for first in firsts:
            if not self._try(Sweep(first, ends[0], counts[0])) and self._sweep is not None:
                break
        if self._sweep is None:
            return self._best
        for end in ends[1:]:
            if not self._try(Sweep(self._sweep.first, end, counts[0])):
                break
        for images in counts[1:]:
            if not self._try(Sweep(self._sweep.first, self._sweep.end, images)):
                break
        return self._best

    def _try(self, sweep: Sweep) -> bool:
        """Whether a sweep is the best so far; not, once what may be traced is used up."""
        if self._left <= 0:
            return False
        fitted = _fit(self._material, sweep)
        if fitted is None:  # it was traced with each share, and found no room with any
            self._left -= len(_SHARES) * self._cost
            return False
        time = self._timed(fitted)
        if time >= self._least:
            return False
        self._best, self._least, self._sweep = fitted, time, sweep
        return True

    def _timed(self, fitted: Fitted) -> float:
        """The predicted latency, microseconds."""
        program = fitted.program or _traced(self._material, fitted.module)
        self._cost = self._cost or len(program.instructions)
        self._left -= max(1, fitted.tries) * len(program.instructions)
        return profile_programs([program], dtype=self._material.dtype, batch=self._material.batch).benchmark_us


def _traced(material: Material, module: KernelModule) -> Program:
    weights = module.weights.items()
    specs = [Spec(array.shape, array.dtype if name in module.biases else material.dtype) for name, array in weights]
    return traced(module.source, module.entry, material.inputs, specs, material.target)


def _fit(material: Material, sweep: Sweep | None) -> Fitted | None:
    """The module with as many weights brought in ahead as find room; None where a sweep does not.

    Tensors that are too large for the gaps between other tiles go to HBM, one after the other.
    """
    hardware, itemsize = get_target(material.target), as_dtype(material.dtype).itemsize
    constants = {name: array.shape for name, array in material.constants.items()}
    shapes = {tensor.name: tensor.shape for tensor in material.inputs} | constants
    leaving = {tensor.name for tensor in material.results}
    in_hbm = dict.fromkeys(material.choices.in_hbm, ASKED)
    material.tune()
    tries = 0
    while True:
        placed = place(material.steps, shapes, leaving, hardware, itemsize, in_hbm, sweep)
        draft = Draft(
            material.name,
            material.steps,
            material.inputs,
            material.constants,
            material.results,
            placed,
            material.dtype,
            material.heading,
            material.choices.own_weights,
            hardware.timing.tensor.ramp_window_ns > 0,
        )
        rooms = rooms_of(material.steps, placed, hardware, itemsize)
        largest = placed.largest_in_sbuf()
        for share in _SHARES:
            module = render(draft, rooms.shared(share))
            if module.loosely or (not share and largest is None):
                return Fitted(placed, module, tries=tries)
            tries += 1
            try:
                return Fitted(placed, module, _traced(material, module), tries)
            except KernelMemoryError:
                continue
        if sweep is not None:
            return None
        assert largest is not None, "kernels find room alone"
        in_hbm[largest] = "the gaps between other tiles in SBUF are too small for it"
