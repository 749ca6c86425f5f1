"""Plan to kernel module: the Python file that both backends compile, and that a person can read, edit and run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import numpy as np

from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import get_target
from trnrt.planner.choices import ASKED
from trnrt.planner.naming import Names, printable
from trnrt.planner.placing.placement import Placed, tile_shape
from trnrt.planner.placing.prefetching import (
    LAST_PIECE_BYTES,
    PIECE_BYTES,
    Part,
    Prefetched,
    Rooms,
    Transfer,
    plan_prefetch,
    rows_of,
)
from trnrt.planner.placing.shares import CORE, share_code
from trnrt.planner.placing.sweeps import Sweep, sweep_at
from trnrt.planner.plan import Array, DeviceTensor, Layout, WeightPart
from trnrt.planner.rendering.draft import Draft, Repeat
from trnrt.planner.rendering.head import LINE_LIMIT, render_head
from trnrt.planner.steps import Call, SourceName, Step, WeightName, stored_dtype

# Names that the module itself uses.
_OWN_NAMES = {"nki", "nl", "nisa", "numpy", "main", "first", "row", "range", "run_rows", "start", CORE}
_OWN_NAMES |= {"prefetch", "reserve", "warm_up", "exchange"}
# The most dimensions of an access pattern (``.ap``): NKI 0.6, nki/api, nki.language.NkiTensor.ap.
_MOST_DIMENSIONS = 5
# Modules that start with products, and the number of transposes of zeros that bridge the wait for small loads: more
# would delay the first product. Digits and LeNet, predicted: 12 slow the feed-forward net by 3.5 % on trn2, and fewer,
# or none, change nothing at batch 1.
_PRODUCTS = ("conv.conv2d", "conv.stacking", "linear")
_WARMING = "warm_up(6)"


@dataclass
class KernelModule:
    """The rendered text, its entry function, and its weight arguments in order (biases keep float32).

    ``lines`` are the first and last line of each step's call, ``identifiers`` the names of stored tensors; ``loosely``:
    its tiles are sure to fit; ``parts``: the weights that share an argument, by name; ``loading``: who loads the
    weights of each step, and why; ``views``: the names of the parts of tensors in a sweep's current round; ``shares``:
    how cores divide the step of each value, "" if they don't; ``completing``: see ``StepReport.complete``.
    """

    source: str
    entry: str
    weights: dict[str, Array]
    biases: set[str]
    lines: list[tuple[int, int]]
    calls: list[Call]
    identifiers: dict[str, str]
    loosely: bool
    parts: dict[str, WeightPart]
    loading: list[tuple[str, str]]
    views: dict[str, str]
    shares: dict[str, str]
    completing: dict[str, str]

    def cast_weights(self, dtype: str) -> dict[str, Array]:
        """Weights in the session's dtype, rounded once here, or in one of their own; biases in float32.

        Beyond the largest number of a dtype they are infinite: a mask's -3.4e38 is -inf in float16.
        """
        with np.errstate(over="ignore"):
            return {
                n: a if n in self.biases else a.astype(stored_dtype(a, dtype), copy=False)
                for n, a in self.weights.items()
            }


@dataclass
class _Writer:
    """Writes the function's body. The first body line is line ``first_line`` of the file."""

    draft: Draft
    placed: Placed
    dtype: str
    names: Names
    results: dict[str, DeviceTensor]
    prefetched: Prefetched
    itemsize: int
    warms_up: bool
    makers: Mapping[str, Step]
    made: set[str] = field(default_factory=set)  # tensors that the module has by now
    body: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    biases: set[str] = field(default_factory=set)
    tiles: dict[int, str] = field(default_factory=dict)  # of each transfer, by its id
    arguments: dict[int, str] = field(default_factory=dict)
    parts: dict[str, WeightPart] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)  # tensors whose images a sweep takes in rounds
    rows: dict[str, str] = field(default_factory=dict)  # tensors whose rows a pass takes
    completing: dict[str, str] = field(default_factory=dict)  # values of which each core keeps a share
    outer: str = ""  # the indent outside of sweeps
    indent: str = ""

    def find_core(self, cores: int) -> None:
        """Name the number of the core that runs the module, if each makes shares of its own."""
        if self.draft.shares.steps:
            self.body += ["", *_check_cores(cores), f"{CORE} = nl.program_id(0)"]

    def begin_passes(self, inputs: list[DeviceTensor], repeat: Repeat) -> None:
        """Open the loop over passes; each takes its part of the tensors that cross the boundary."""
        if repeat.count == 1:
            return
        crossing = {tensor.name: tensor for tensor in [*inputs, *self.results.values()]}
        for tensor in self.results.values():
            shape = (repeat.count * tensor.shape[0], *tensor.shape[1:])
            name = self.names.identifier(tensor.name)
            self.body += ["", f"{name} = nl.ndarray({shape}, dtype=nl.{tensor.dtype}, buffer=nl.shared_hbm)"]
        rows = self._rows
        self.body += ["", *_first_lines(repeat, rows)]
        if repeat.times > 1:
            self.outer = self.indent = "    "
        for value, tensor in crossing.items():
            name = self.rows[value] = self.names.identifier(value, "rows")
            if not repeat.on_device:
                each = tensor.shape[0] // rows  # rows of the tensor that belong to one of the batch
                first = "row" if each == 1 else f"{each} * row"
                part = f"[{first} : {first} + {tensor.shape[0]}]"
                self.body.append(f"{self.indent}{name} = {self.names.identifier(value)}{part}")
                continue
            self.body.append(
                f"{self.indent}{name} = nl.ndarray({tensor.shape}, dtype=nl.{tensor.dtype}, buffer=nl.private_hbm)"
            )
            if value not in self.results:
                self._copy_rows(dst=self._pattern_view(name, tensor), src=self._dynamic_rows(tensor, repeat))

    def end_passes(self, repeat: Repeat) -> None:
        """Close a loop on the device: its trips store their rows of the results."""
        if not repeat.on_device:
            return
        self.body.append("")
        for tensor in self.results.values():
            part = self._pattern_view(self.rows[tensor.name], tensor)
            self._copy_rows(dst=self._dynamic_rows(tensor, repeat), src=part)
        rows = self._rows
        self.body += ["", f"nl.fori_loop(0, {repeat.times * rows}, run_rows, step={rows})"]
        self.outer = self.indent = ""

    def _copy_rows(self, *, dst: str, src: str) -> None:
        self.body += [f"{self.indent}{line}" for line in self._wrap_call("nisa.dma_copy", [f"dst={dst}", f"src={src}"])]

    @property
    def _rows(self) -> int:
        """The rows of the batch that a pass takes."""
        rows = self.draft.material.batch
        assert rows is not None
        return rows

    def _dynamic_rows(self, tensor: DeviceTensor, repeat: Repeat) -> str:
        """The rows from ``row`` on of a tensor of the whole batch, as many as ``tensor`` has."""
        shape = self._pattern_shape(tensor.shape)
        pattern = [[prod(shape[d + 1 :]), size] for d, size in enumerate(shape)]
        name = self.names.identifier(tensor.name)
        if shape[0] != tensor.shape[0]:
            name = f"{name}.reshape({(repeat.count * shape[0], *shape[1:])})"
        return f"{name}.ap({pattern}, scalar_offset=row, indirect_dim=0)"

    def _pattern_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape with the rows of the batch first, and with its last dimensions joined, if an access pattern can't
        have as many."""
        kept = _MOST_DIMENSIONS - 1
        each = shape[0] // self._rows
        shape = shape if each == 1 else (self._rows, each, *shape[1:])
        return shape if len(shape) <= _MOST_DIMENSIONS else (*shape[:kept], prod(shape[kept:]))

    def _pattern_view(self, name: str, tensor: DeviceTensor) -> str:
        return _reshape_code(name, tensor.shape, self._pattern_shape(tensor.shape))

    def transfers(self, calls: list[Call], number: int) -> None:
        """Write the transfers that come before step ``number``."""
        if self.prefetched.biases is not None and number == 0:
            bare = all(part.bias for part in self.prefetched.biases.parts)
            if not bare and self.warms_up and calls[0].module in _PRODUCTS:
                self.body += ["", f"{self.outer}{_WARMING}"]
            self._transfer(self.prefetched.biases, calls, *(("biases", "all") if bare else ("weights", "first")))
        for k, transfer in enumerate(self.prefetched.weights):
            if transfer.before == number:
                self._transfer(transfer, calls, "weights", f"{k}")
            elif transfer.reserved == number:
                tile, source = (self.names.identifier("weights", f"{k}{end}") for end in ("_sb", ""))
                self.body += [""] * (not self.body)  # as before every paragraph: the body's first line is left out
                self.body.append(f"{self.outer}{tile} = reserve({source}{self._core_index(transfer)})")

    def _transfer(self, transfer: Transfer, calls: list[Call], what: str, part: str) -> None:
        name, tile = self.names.identifier(what, part), self.names.identifier(what, f"{part}_sb")
        self.weights[name] = self.draft.join_arrays(transfer)
        if is_bias := transfer.parts[0].bias:
            self.biases.add(name)
        self.tiles[id(transfer)], self.arguments[id(transfer)] = tile, name
        itemsize = 4 if is_bias else transfer.itemsize(self.itemsize)
        self.body += [""] * (not self.body or self.body[-1].partition(" = prefetch(")[1] == "")
        place = f", {tile}" if transfer.reserved < transfer.before else ""
        last = f", last={LAST_PIECE_BYTES // itemsize}" if self.prefetched.weights[-1:] == (transfer,) else ""
        piece = PIECE_BYTES // itemsize
        self.body.append(f"{self.outer}{tile} = prefetch({name}{self._core_index(transfer)}, {piece}{place}{last})")

    def _core_index(self, transfer: Transfer) -> str:
        """The index of a core's own part of a transfer's weights, if each core has one."""
        return f"[{CORE}]" if self.draft.differs(transfer) else ""

    def sweep(self, steps: list[Step], number: int) -> None:
        """End the loop of a sweep after its last step, and begin one before its first."""
        sweep = sweep_at(self.placed.sweeps, number)
        if sweep is None or number == sweep.first:
            self.indent = self.outer
        if sweep is not None and number == sweep.first:
            self._begin_sweep(sweep, steps[sweep.first : sweep.end])

    def _begin_sweep(self, sweep: Sweep, swept: list[Step]) -> None:
        for step in swept:
            if step.output not in self.placed.within and step.output not in self.rows:
                lines = self._allocations(step.output)
                self.body += ["", *lines] if lines else []
        images = self.placed.shape(swept[0].output)[0]
        self.body += ["", f"{self.outer}for first in range(0, {images}, {sweep.images}):"]
        self.indent = self.outer + "    "
        made = {step.output for step in swept}
        for value in dict.fromkeys(source.value for step in swept for source in step.sources):
            if value not in made:
                self.body.append(self._view(value, sweep))

    def _view(self, value: str, sweep: Sweep) -> str:
        """Name the images of a tensor that a sweep is at."""
        whole, view = self.identifier(value), self.names.identifier(value, "part")
        self.views[value] = view
        before = "" if self.placed.layout(value) is Layout.HBM else ":, :, "
        return f"{self.indent}{view} = {whole}[{before}first : first + {sweep.images}]"

    def step(self, number: int, step: Step, call: Call) -> None:
        """A comment, the result's memory, and the call."""
        title = printable(" + ".join(step.title))
        shapes = ", ".join(str(source.shape) for source in step.sources)
        where = _where(self.placed.layout(step.output))
        self.body += ["", f"{self.indent}# {title}   {shapes} -> {step.shape}, {where}"]
        sweep = sweep_at(self.placed.sweeps, number)
        if sweep is not None and step.output not in self.placed.within:
            self.body.append(self._view(step.output, sweep))
        elif step.output not in self.rows:
            self.body += self._allocations(step.output)
        first = len(self.body)
        if not call.module:
            self.body.append(f"{self.indent}# Nothing to do: the steps before have written all of it.")
        else:
            self.body += [self.indent + line for line in self._call(number, step, call)]
            self.body += self._exchange(number, step.output)
        self.spans.append((first, len(self.body) - 1))

    def _exchange(self, number: int, value: str) -> list[str]:
        """The line in which the cores exchange their shares of a value, if a later step needs it; else it is noted."""
        shares, layout = self.draft.shares, self.placed.layout(value)
        if number not in shares.steps or layout is Layout.HBM:
            return []
        name, outputs = self._name(value), shares.steps[number][0].shape[1]
        other, own = (share_code(name, layout, outputs, core) for core in (f"(1 - {CORE})", CORE))
        line = f"exchange({other}, {own})"
        if value in shares.exchanged:
            return [self.indent + line]
        self.completing[value] = line
        return []

    def _allocations(self, value: str) -> list[str]:
        """The lines that make a tensor: after its first window, none; for a window, those of the whole come first."""
        if value in self.made:
            return []
        self.made.add(value)
        window = self.placed.windows.get(value)
        if window is None:
            return [self._allocation(value)]
        root, channels = self.identifier(window.root), self.placed.shape(value)[1]
        code = window.code(root, self.placed.layout(value), channels)
        before = [] if window.root in self.rows else self._allocations(window.root)
        return [*before, f"{self.indent}{self.names.identifier(value)} = {code}"]

    def _allocation(self, value: str) -> str:
        step, layout, shape = self.makers[value], self.placed.layout(value), self.placed.held_shape(value)
        name = self.names.identifier(value)
        dtype = f"nl.{step.dtype or self.dtype}"
        if layout is not Layout.HBM:
            tile = tile_shape(layout, shape)
            return f"{self.indent}{name} = nl.ndarray({tile}, dtype={dtype}, buffer=nl.sbuf)"
        memory = "shared_hbm" if value in self.results else "private_hbm"
        return f"{self.indent}{name} = nl.ndarray({shape}, dtype={dtype}, buffer=nl.{memory})"

    def _call(self, number: int, step: Step, call: Call) -> list[str]:
        names = {key: self._weight(number, step, key) for key in call.weights}
        names |= {key: self._weight(number, step, key, bias=True) for key in call.biases}
        sources = [self._source(number, step, position) for position in range(len(step.sources))]

        def argument(value: Any) -> str:
            if isinstance(value, WeightName):
                return names[value.key]
            if isinstance(value, SourceName):
                return sources[value.position]
            return _tuple([argument(v) for v in value]) if isinstance(value, tuple) else _literal(value)

        args = [self._destination(number, step), *([] if _names_sources(call.args) else sources)]
        args += [argument(value) for value in call.args]
        args += [f"{option}={argument(value)}" for option, value in call.options.items()]
        return self._wrap_call(call.kernel, args)

    def _wrap_call(self, function: str, args: list[str]) -> list[str]:
        """A call on one line, or on as many as it has arguments."""
        line = f"{function}({', '.join(args)})"
        if len(self.indent) + len(line) + 4 <= LINE_LIMIT:
            return [line]
        return [f"{function}(", *(f"    {arg}," for arg in args), ")"]

    def _weight(self, number: int, step: Step, key: str, *, bias: bool = False) -> str:
        """A weight's name in a call: an argument of the module, or its part of a prefetched tile."""
        found = self.prefetched.part(number, key, bias=bias)
        name = self.names.identifier(step.name, key)
        if found is not None:
            self.parts[name] = WeightPart(self.arguments[id(found[0])], found[1].first, found[1].shape)
            return _part_of(self.tiles[id(found[0])], *found)
        self.weights[name] = self.draft.weight(number, key, bias=bias)
        if bias:
            self.biases.add(name)
        return f"{name}[{CORE}]" if number in self.draft.shares.steps else name

    def _destination(self, number: int, step: Step) -> str:
        name, layout = self._name(step.output), self.placed.layout(step.output)
        if number in self.draft.shares.steps:
            step = self.draft.shares.steps[number][0]
            return share_code(name, layout, step.shape[1])
        if layout is not Layout.HBM:
            return name
        return _reshape_code(name, step.shape, step.hbm_view(None))

    def _name(self, value: str) -> str:
        return self.views[value] if self._in_part(value) else self.identifier(value)

    def identifier(self, value: str) -> str:
        """The name of a value outside of sweeps."""
        return self.rows.get(value) or self.names.identifier(value)

    @property
    def _in_sweep(self) -> bool:
        return self.indent != self.outer

    def _in_part(self, value: str) -> bool:
        """True if the sweep being written reads or writes a part of the value."""
        return self._in_sweep and value in self.views

    def _source(self, number: int, step: Step, position: int) -> str:
        source = step.sources[position]
        name, shape = self._name(source.value), self.placed.held_shape(source.value)
        layout = self.placed.layout(source.value)
        if self.draft.shares.reads_own(number, position, step):
            shape = self.draft.shares.steps[number][0].sources[position].shape
            return step.on_chip_view(share_code(name, layout, shape[1]), layout, shape)
        if self._in_part(source.value):
            shape = source.shape
        if layout is Layout.HBM:
            return _reshape_code(name, shape, step.hbm_view(position))
        return step.on_chip_view(name, layout, shape)


def _literal(value: Any) -> str:
    """A compile-time value as source text: only numbers, our own words and tuples of those get here."""
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _part_of(tile: str, transfer: Transfer, part: Part) -> str:
    """The view of one weight in a transfer's tile."""
    rows, columns = part.shape[0], prod(part.shape[1:])
    whole = columns == transfer.columns and rows == rows_of(transfer)
    view = tile if whole else f"{tile}[0:{rows}, {part.first}:{part.first + columns}]"
    return view if len(part.shape) == 2 else f"{view}.reshape({part.shape})"


def _names_sources(args: tuple[Any, ...]) -> bool:
    return any(isinstance(a, SourceName) or (isinstance(a, tuple) and _names_sources(a)) for a in args)


def _reshape_code(name: str, stored: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    assert prod(stored) == prod(wanted), (name, stored, wanted)
    return name if stored == wanted else f"{name}.reshape({wanted})"


def _first_lines(repeat: Repeat, rows: int) -> list[str]:
    """The lines that set ``row``, the first of a pass's ``rows``; a loop, if there are several passes on a core."""
    if repeat.on_device:
        return ["def run_rows(row):"]
    if repeat.cores == 1:
        return [f"for row in range(0, {repeat.times * rows}, {rows}):"]
    own, checks = f"nl.program_id(0) * {repeat.times * rows}", _check_cores(repeat.cores)
    if repeat.times == 1:
        return [*checks, f"row = {own}"]
    return [*checks, f"start = {own}", f"for row in range(start, start + {repeat.times * rows}, {rows}):"]


def _check_cores(cores: int) -> list[str]:
    return [f'assert nl.num_programs(0) == {cores}, "launch it on {cores} cores: kernel[{cores}]"']


def _where(layout: Layout) -> str:
    return "HBM" if layout is Layout.HBM else f"SBUF {layout.value}"


def render(draft: Draft, rooms: Rooms) -> KernelModule:
    """The module of a plan; ``rooms`` is what SBUF has left for weights."""
    steps, calls, material = draft.parts, draft.calls[0], draft.material
    itemsize = as_dtype(material.dtype).itemsize
    prefetched = plan_prefetch(calls, rooms, itemsize)
    known = _OWN_NAMES | {call.kernel for call in calls if call.module}
    entry = Names(known).identifier(material.name)
    names = Names(known | {entry})
    parameters = [names.identifier(tensor.name) for tensor in material.inputs]
    weights = {names.identifier(constant): array for constant, array in material.constants.items()}
    results = {result.name: result for result in material.results}
    ramps = get_target(material.target).timing.tensor.ramp_window_ns > 0  # its clock rises with its work
    makers = {step.output: step for step in steps}
    writer = _Writer(
        draft, draft.placed, material.dtype, names, results, prefetched, itemsize, ramps, makers, weights=weights
    )
    writer.find_core(material.cores)
    if draft.repeat.resident:
        writer.transfers(calls, 0)  # ``rooms`` has the whole module as a loop: no transfer starts later
    writer.begin_passes(material.inputs, draft.repeat)
    for number, (step, call) in enumerate(zip(steps, calls, strict=True)):
        if not draft.repeat.resident:
            writer.transfers(calls, number)
        writer.sweep(steps, number)
        writer.step(number, step, call)
    writer.end_passes(draft.repeat)
    imports = _imports(writer, calls)
    parameters += list(writer.weights)
    head = render_head(entry, imports, parameters, material.heading, uses_isa=draft.repeat.on_device)
    returned = _tuple([names.identifier(result) for result in results])
    body = [f"    {line}".rstrip() for line in [*writer.body[1:], "", f"return {returned}"]]
    stored = [value for step in steps for value in (step.output, *(source.value for source in step.sources))]
    return KernelModule(
        source="\n".join([*head, *body]) + "\n",
        entry=entry,
        weights=writer.weights,
        biases=writer.biases,
        lines=[(first + len(head), last + len(head)) for first, last in writer.spans],
        calls=calls,
        identifiers={value: writer.identifier(value) for value in stored},
        loosely=prefetched.loosely,
        parts=writer.parts,
        loading=_loadings(draft, prefetched),
        views=writer.views,
        shares={step.output: draft.shares.describe(number, step.output) for number, step in enumerate(steps)},
        completing=writer.completing,
    )


def _imports(writer: _Writer, calls: list[Call]) -> set[tuple[str, str]]:
    """The kernels that a module calls, with their files."""
    imports = {(call.module, call.kernel) for call in calls if call.module}
    imports |= {("prefetch", "prefetch")} if writer.tiles else set()
    reserved = any(one.reserved < one.before for one in writer.prefetched.weights)
    imports |= {("prefetch", "reserve")} if reserved else set()
    imports |= {("warm_up", "warm_up")} if any(line.strip() == _WARMING for line in writer.body) else set()
    return imports | ({("exchange", "exchange")} if writer.draft.shares.exchanged else set())


def _loadings(draft: Draft, prefetched: Prefetched) -> list[tuple[str, str]]:
    """Who loads the weights of each step, and why; see ``StepReport``."""
    asked = draft.material.choices.own_weights
    return [
        _loading(number, step.name in asked, call, prefetched)
        for number, (step, call) in enumerate(zip(draft.parts, draft.calls[0], strict=True))
    ]


def _loading(number: int, asked: bool, call: Call, prefetched: Prefetched) -> tuple[str, str]:
    """Who loads a step's weights, and why; see ``StepReport``."""
    if not call.weights:
        return "none", ""
    if any(prefetched.part(number, key, bias=False) for key in call.weights):
        return "prefetched", "brought to SBUF ahead of the step"
    if asked:
        return "own", ASKED
    if not call.weights.keys() & set(call.held):
        return "own", "the kernel arranges them itself as it loads them"
    return "own", "they find no room in SBUF beside the tensors and tiles that are there while the step runs"


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
