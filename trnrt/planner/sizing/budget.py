"""Meet the budget of instructions: by a loop of the device over the batch, by several kernels, or by both.

A kernel within the budget stays as it is: a loop costs barriers, and a second kernel a launch and a trip to HBM. Above
it, the loop over most rows that fits and the cheapest cut are timed, and the faster is taken. If neither is enough, the
steps are cut, and each kernel loops over single rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from trnrt.errors import KernelSizeError
from trnrt.importer import GraphView, ImportedModel
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Range, add_ranges, predict_benchmark
from trnrt.nki.profiling import in_order_us
from trnrt.planner.choices import Choices
from trnrt.planner.cores.sharing import is_faster, share_work
from trnrt.planner.making import Making, Planning
from trnrt.planner.naming import printable
from trnrt.planner.options import PlanOptions
from trnrt.planner.parts.crossing import host_link
from trnrt.planner.placing.passes import Fewer
from trnrt.planner.placing.sweeps import sweep_sizes
from trnrt.planner.plan import DeviceTensor, KernelSize, NodeReport, Plan, PlanOutput, StepReport
from trnrt.planner.rendering.draft import Material
from trnrt.planner.searching.fitting import Fitted, loop_part, trace_module
from trnrt.planner.searching.search import Searched, search
from trnrt.planner.searching.trial import trace_cores_of
from trnrt.planner.sizing.counting import count_steps, measure_size
from trnrt.planner.sizing.dividing import Traffic, crossing_tensors, divide, made_tensor, tensor_bytes
from trnrt.text import count_text, quote

MOST_CUT = 120_000
"""A looped plan of more instructions, unrolled, is not compared with cut ones: planning those takes too long."""
_ROUNDS = 6
"""Cuts are made again, with smaller kernels, this often: a cut moves tensors to HBM, which takes more instructions."""
_MARGIN = 0.95
"""The share of the budget that is left for that, each time again."""
_SAME_WORK = "the cores of a logical one do the same work: no way to divide it keeps the budget of instructions"


@dataclass(frozen=True)
class PlannedKernel:
    """A plan that is one kernel of a model.

    ``inputs`` are the names of all that it reads: values of the model, and results of the kernels before it.
    ``reports`` are those of all nodes of the model. ``us``: its predicted time in order; 0 for an
    only kernel, which isn't timed.
    """

    plan: Plan
    inputs: tuple[str, ...]
    reports: tuple[NodeReport, ...]
    us: float = 0.0


def plan_kernels(
    model: ImportedModel, view: GraphView, options: PlanOptions, batch: int | None, fewer: Fewer | None = None
) -> list[PlannedKernel]:
    """The kernels of a bound graph, in order; one, unless it has more instructions than the budget.

    Raises what ``plan_view`` raises, and KernelSizeError if a requested budget can't be met. If the default one can't
    be met, the plans' notes say so.
    """
    planning = Planning(model, view, options, batch, fewer)
    searched = planning.search()
    if searched.estimated is None:
        return _meet_budget(planning, searched)
    try:
        found = _meet_budget(planning, searched)
    except KernelSizeError:
        return _meet_budget(planning, searched.estimated)
    if _is_whole(found):
        return found
    # The search has judged the model as one kernel, which may not be how it is cut or looped.
    estimated = _meet_budget(planning, searched.estimated)
    return found if is_faster(_predict_kernels(found), _predict_kernels(estimated)) else estimated


def _is_whole(kernels: Sequence[PlannedKernel]) -> bool:
    """True if they are one kernel without a loop of the device."""
    return len(kernels) == 1 and kernels[0].plan.size.trips == 1


def _predict_kernels(kernels: Sequence[PlannedKernel]) -> Range:
    return add_ranges(predict_benchmark(trace_cores_of(kernel.plan)) for kernel in kernels)


def _meet_budget(planning: Planning, searched: Searched) -> list[PlannedKernel]:
    """The kernels with the choices of a search."""
    model, options = planning.model, planning.options
    alone, budget = planning.whole_plan(searched), options.budget
    plan = share_work(planning, alone)
    if not budget or plan.size.compiled <= budget:
        return [PlannedKernel(plan, tuple(info.name for info in model.inputs), plan.nodes)]
    if options.lnc > 1:
        alone = replace(alone, notes=(*alone.notes, _SAME_WORK))
    return _Budgeting(planning, searched, alone, budget).kernels()


class _Budgeting:
    """One plan that has more instructions than the ``budget``, and the other ways to plan it."""

    def __init__(self, planning: Planning, searched: Searched, plan: Plan, budget: int) -> None:
        self._planning, self._searched, self._plan, self._budget = planning, searched, plan, budget
        self._choices: Choices = searched.choices
        self._batch = planning.batch
        self._whole = planning.material(self._choices, self._batch)

    def kernels(self) -> list[PlannedKernel]:
        """The fastest of the ways that meet the budget; if none does, the one with the smallest kernels."""
        looped = self._loop()
        found = [looped] if looped is not None else []
        if looped is None or self._plan.size.compiled <= MOST_CUT:
            cut = self._cut(self._whole, 1)
            found += [cut] if _largest(cut).compiled <= self._budget else []
        if found:
            return min(found, key=lambda kernels: sum(kernel.us for kernel in kernels))
        return self._cut_and_loop()

    def _loop(self) -> list[PlannedKernel] | None:
        """One kernel that loops over as many rows at a time as the budget allows; None if there is none."""
        batch, size = self._batch or 1, self._plan.size.compiled
        for rows in reversed(list(sweep_sizes(batch))):
            part = self._planning.part_material(self._choices, rows)
            if part is None:
                return None
            if size * rows / batch > self._budget:
                continue
            kernel = self._kernel(self._whole, part)
            if kernel.plan.size.compiled <= self._budget:
                note = f"{_loop_text(batch, kernel.plan)}: {self._reason()}"
                plan = replace(kernel.plan, notes=(*kernel.plan.notes, note))
                return [replace(kernel, plan=plan, inputs=tuple(i.name for i in self._planning.model.inputs))]
        return None

    def _cut_and_loop(self) -> list[PlannedKernel]:
        """Kernels of few steps each, which loop over single rows if the batch allows it."""
        batch = self._batch or 1
        part = self._planning.part_material(self._choices, 1) if batch > 1 else None
        kernels = self._cut(part or self._whole, batch if part else 1)
        largest = _largest(kernels)
        if largest.compiled <= self._budget:
            return kernels
        plan = next(kernel.plan for kernel in kernels if kernel.plan.size == largest)
        step = plan.steps[0]
        what = f"step {quote(step.name)} ({printable(step.kernel)}) alone takes {largest.compiled:,} instructions"
        if self._planning.options.max_instructions is not None:
            raise KernelSizeError(
                f"{printable(self._plan.name)}: {what}; the limit for a kernel is {self._budget:,}",
                hint=f"allow --max-instructions {largest.compiled}, or plan for fewer rows or a smaller input",
            )
        note = f"{what}, more than the {self._budget:,} of a kernel: AWS's compiler may take long for it"
        last = kernels[-1]
        return [*kernels[:-1], replace(last, plan=replace(last.plan, notes=(*last.plan.notes, note)))]

    def _reason(self) -> str:
        size = self._plan.size.compiled
        return f"as one kernel without loops it has {size:,} instructions, and the budget is {self._budget:,}"

    def _kernel(self, whole: Material, part: Material) -> PlannedKernel:
        """The kernel of these steps: in a loop, if ``part`` has fewer rows than ``whole``."""
        part, fitted = _fit_piece(part)
        trips = (whole.batch or 1) // (part.batch or 1)
        if trips > 1:
            fitted = loop_part(part, fitted, trips, whole.heading)
        program = fitted.program or trace_module(part, fitted.module)
        plan = self._planning.plan(self._choices, Making(whole, part, fitted))
        return PlannedKernel(
            replace(plan, size=measure_size(program, trips)), (), self._plan.nodes, in_order_us(program)
        )

    def _cut(self, part: Material, trips: int) -> list[PlannedKernel]:
        """Kernels of at most the budget, if no single step exceeds it; each loops ``trips`` times."""
        part, fitted = _fit_piece(part)
        counts = count_steps(fitted.program or trace_module(part, fitted.module), fitted.module.lines)
        costs = Traffic(self._whole, get_target(part.target)).costs
        capacity = self._budget * _MARGIN
        for _ in range(_ROUNDS):
            bounds = divide(counts, costs, int(capacity))
            kernels = self._pieces(part, bounds)
            sizes = [kernel.plan.size.compiled for kernel in kernels]
            worst = max((size for size, (a, b) in zip(sizes, bounds, strict=True) if b - a > 1), default=0)
            if worst <= self._budget:
                break
            capacity *= _MARGIN * self._budget / worst
        return self._finish(kernels, bounds, trips)

    def _pieces(self, part: Material, bounds: Sequence[tuple[int, int]]) -> list[PlannedKernel]:
        kernels = []
        for number, (first, end) in enumerate(bounds, 1):
            names = f"{self._plan.name}_kernel{number}", f"kernel {number} of {len(bounds)} of {self._plan.name}"
            whole, piece = (_piece(material, first, end, *names) for material in (self._whole, part))
            kernels.append(self._kernel(whole, piece))
        return kernels

    def _finish(
        self, kernels: Sequence[PlannedKernel], bounds: Sequence[tuple[int, int]], trips: int
    ) -> list[PlannedKernel]:
        """Give the kernels their inputs and outputs; the last one has the model's outputs."""
        whole, found = self._plan, list[PlannedKernel]()
        leaving = {tensor.name for tensor in self._whole.results}
        notes = [*whole.notes, *self._notes(kernels, bounds, trips)]
        for kernel in kernels:
            is_last = kernel is kernels[-1]
            plan = kernel.plan
            inputs = {tensor.name for tensor in plan.inputs}
            before = tuple(node for node in whole.before if node.output in inputs)
            names = {step.name for step in plan.steps}
            plan = replace(
                plan,
                before=before,
                host=whole.host if is_last else (),
                outputs=whole.outputs if is_last else tuple(_passed_output(tensor) for tensor in plan.results),
                constants=whole.constants if is_last else {},
                nodes=tuple(node for node in whole.nodes if node.step in names or (is_last and not node.step)),
                notes=tuple(notes) if is_last else (),
                weighed=self._searched.weighed if not found else (),
                steps=tuple(_explain_place(step, plan, leaving) for step in plan.steps),
            )
            found.append(replace(kernel, plan=plan, inputs=_read_names(plan)))
        return found

    def _notes(self, kernels: Sequence[PlannedKernel], bounds: Sequence[tuple[int, int]], trips: int) -> list[str]:
        """How the plan was cut, and what each cut costs."""
        notes = [f"cut into {count_text(len(kernels), 'kernel')}: {self._reason()}"]
        if trips > 1:
            notes[0] = f"{_loop_text(trips, kernels[0].plan)}; {notes[0]}"
        link, traffic = host_link(self._whole.target), Traffic(self._whole, get_target(self._whole.target))
        stored = set[str]()
        for number, (first, end) in enumerate(bounds[1:], 2):
            read = traffic.read_by(first, end)
            new = [tensor for tensor in read if tensor.name not in stored]
            stored |= {tensor.name for tensor in new}
            over_host = link.transfer_us(tensor_bytes(new)) + link.transfer_us(tensor_bytes(read))
            notes.append(
                f"kernel {number} starts at step {quote(self._whole.steps[first].name)}: it reads "
                f"{count_text(len(read), 'tensor')} of earlier kernels from HBM, {tensor_bytes(read):,} bytes; "
                f"about {traffic.reading_us(read, new):,.1f} us with its launch "
                f"(through the host {over_host:,.1f} us more)"
            )
        return notes


def _explain_place(step: StepReport, plan: Plan, leaving: set[str]) -> StepReport:
    """The step's report, with the reason for a result that leaves the kernel and not the model."""
    crosses = step.output not in leaving and any(tensor.name == step.output for tensor in plan.results)
    return replace(step, reason="a later kernel reads it") if crosses else step


def _passed_output(tensor: DeviceTensor) -> PlanOutput:
    """A result for later kernels: as it is stored."""
    return PlanOutput(tensor.name, tensor.name, tensor.shape, as_dtype(tensor.dtype).numpy)


def _read_names(plan: Plan) -> tuple[str, ...]:
    """All that a plan reads: values of the model, and results of kernels before it."""
    made = {tensor.name for tensor in plan.results} | {node.output for node in plan.host} | set(plan.constants)
    prepared = {node.output for node in plan.before}
    wanted = [tensor.name for tensor in plan.inputs if tensor.name not in prepared]
    wanted += [name for node in plan.before for name in node.inputs]
    wanted += [name for node in plan.host for name in node.inputs if name not in made]
    wanted += [output.source for output in plan.outputs if output.source not in made]
    return tuple(dict.fromkeys(wanted))


def _loop_text(batch: int, plan: Plan) -> str:
    rows = batch // plan.size.trips
    return f"{count_text(rows, 'row')} of {batch} at a time, in a loop on the device"


def _largest(kernels: Iterable[PlannedKernel]) -> KernelSize:
    return max((kernel.plan.size for kernel in kernels), key=lambda size: size.compiled)


def _piece(material: Material, first: int, end: int, name: str, title: str) -> Material:
    """The material of steps ``first`` to ``end`` alone."""
    steps = material.steps[first:end]
    read = {source.value for step in steps for source in step.sources}
    later = {source.value for step in material.steps[end:] for source in step.sources}
    leaving = {tensor.name for tensor in material.results} | later
    given = [*material.inputs, *crossing_tensors(material, first)]
    inputs = [tensor for tensor in given if tensor.name in read]
    shapes = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in inputs)
    return replace(
        material,
        name=name,
        steps=steps,
        inputs=inputs,
        constants={name: array for name, array in material.constants.items() if name in read},
        results=[made_tensor(step, material.dtype) for step in steps if step.output in leaving],
        heading=[
            f"{title}: {material.dtype} on {material.target}.",
            f"Inputs: {shapes or 'none'}.",
            *material.heading[2:],
        ],
    )


@dataclass
class _Piece:
    """Some steps of a plan as the ``Source`` of a search; their rows are not divided into passes."""

    whole: Material

    @property
    def batch(self) -> int | None:
        return self.whole.batch

    def material(self, choices: Choices, rows: int | None) -> Material:
        return replace(self.whole, choices=choices)

    def part_material(self, choices: Choices, rows: int) -> Material | None:
        return None


def _fit_piece(piece: Material) -> tuple[Material, Fitted]:
    """The module of some steps, with their choices; their batch is divided anew."""
    found = search(_Piece(piece), replace(piece.choices, sweeps=frozenset(), rows=None), 0)
    piece = replace(piece, choices=found.choices)
    piece.tune()
    return piece, found.fitted
