"""Steps that only move elements: assemble a tensor from access patterns on others, or transpose one."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import product
from math import prod

from trnrt.kernels import movement
from trnrt.kernels.channels import QUADRANT, Run, channel_tile_bytes
from trnrt.planner.lowering.blocked import Blocked
from trnrt.planner.lowering.views import View, merge_dims
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Layout
from trnrt.planner.steps import NO_CALL, WORKING_BYTES, Call, Operand, SourceName, Step, Tensors

# A step with more DMA transfers than this is refused: each takes about 2 us.
MOST_PARTS = 16384


@dataclass(frozen=True)
class Part:
    """Elements of source number ``source`` that go to a region of the result: both are access patterns."""

    source: int
    taken: View
    put: View


# A step with more runs than this puts its tensors in HBM: each run is one or more transfers of about 2 us. There is no
# record of how 64 was chosen; measure DenseNet-121, Inception and ShuffleNet when it changes.
MOST_RUNS = 64


@dataclass(kw_only=True)
class MoveStep(Step):
    """A tensor assembled from ``parts`` of others; ``fill``, if a number, goes everywhere else.

    If the parts are whole channels of images, the tensors may be in SBUF.
    """

    parts: list[Part]
    fill: float | None = None

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        stored = shapes.shape(self.sources[position].value)
        same = len(stored) == 4 and (stored[0], stored[2:]) == (self.shape[0], self.shape[2:])
        return (Layout.CHANNELS, Layout.HBM) if same and self.runs() else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.CHANNELS, Layout.HBM) if self.runs() else (Layout.HBM,)

    def read_wide(self, *, whole: bool) -> bool:
        self.dtype = "float32"  # others are converted as they are moved
        return True

    def runs(self) -> list[Run]:
        """The channels that each part moves; empty if the parts aren't whole channels, or are too many."""
        if len(self.shape) != 4 or self.fill is not None:
            return []
        runs: list[Run] = []
        for part in self.parts:
            found = channel_runs(part, self.shape)
            if not found or len(runs) + len(found) > MOST_RUNS:
                return []
            for run in found:
                last = runs.pop() if runs and _follows(run, runs[-1]) else None
                joined = None if last is None else Run(run.source, last.first, 1, last.put, 1, last.count + run.count)
                runs.append(joined or run)
        return runs

    def joins(self) -> dict[str, int]:
        runs = self.runs()
        by_source: dict[int, list[Run]] = {}
        for run in runs:
            by_source.setdefault(run.source, []).append(run)
        crooked = {block for run in runs if not _is_aligned(run) for block in _blocks(run)}
        found: dict[str, int] = {}
        for source, own in by_source.items():
            channels = prod(self.sources[source].shape) * self.shape[1] // prod(self.shape)
            first = _joined_channel(own, channels)
            if first is not None and not any(block in crooked for run in own for block in _blocks(run)):
                found[self.sources[source].value] = first
        return found

    def first_taken_channel(self) -> int | None:
        runs = self.runs() if len(self.sources) == 1 else []
        if len(runs) != 1 or runs[0].put != 0 or runs[0].count != self.shape[1]:
            return None
        return runs[0].first if runs[0].step == 1 or runs[0].count == 1 else None

    def fills_window(self, first: int) -> bool:
        return True

    def _is_part(self, tensors: Tensors) -> bool:
        """True if the result is a window of its source."""
        first = self.first_taken_channel()
        if first is None:
            return False
        root, start = tensors.position(self.sources[0].value)
        return tensors.position(self.output) == (root, start + first)

    def _in_place(self, tensors: Tensors) -> set[int]:
        """The sources that other steps have written into the result."""
        root, start = tensors.position(self.output)
        wanted = {value: (root, start + first) for value, first in self.joins().items()}
        return {k for k, s in enumerate(self.sources) if tensors.position(s.value) == wanted.get(s.value)}

    def _moved_runs(self, tensors: Tensors) -> list[Run]:
        there = self._in_place(tensors)
        return [run for run in self.runs() if run.source not in there]

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else self.sources[position].shape or (1,)

    def _in_sbuf(self, tensors: Tensors) -> bool:
        """True if any of the tensors is in SBUF."""
        values = [self.output, *(source.value for source in self.sources)]
        return any(tensors.layout(value) is not Layout.HBM for value in values)

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        if not self._in_sbuf(tensors):
            return WORKING_BYTES
        if tensors.layout(self.output) is Layout.HBM or self._is_part(tensors):
            return 0
        runs = self._moved_runs(tensors)
        return channel_tile_bytes(len(runs), self.shape[1]) if runs else 0

    def call(self, tensors: Tensors) -> Call:
        there = self._in_place(tensors)
        if self._is_part(tensors) or (self.sources and len(there) == len(self.sources)):
            return NO_CALL
        names = tuple(SourceName(k) for k in range(len(self.sources)))
        if self._in_sbuf(tensors):
            runs = tuple(astuple(run) for run in self._moved_runs(tensors))
            return Call("channels", "move_channels", (names, runs))
        parts = tuple(astuple(_merge_dimensions(part)) for part in self.parts if part.source not in there)
        options = {} if self.fill is None else {"fill": self.fill}
        return Call("movement", "move", (names, parts), options)


def _follows(run: Run, last: Run) -> bool:
    """True if both are neighbouring channels of one source that stay neighbours."""
    straight = all(one.count == 1 or one.step == one.put_step == 1 for one in (run, last))
    moved = run.first - last.first, run.put - last.put
    return straight and run.source == last.source and moved == (last.count, last.count)


def _is_aligned(run: Run) -> bool:
    """True if an engine can write what the run moves: it starts at a multiple of 32 partitions on both sides."""
    return run.first % QUADRANT == 0 and run.put % QUADRANT == 0 and run.step == run.put_step == 1


def _blocks(run: Run) -> range:
    """The blocks of 128 channels that a run writes."""
    return range(run.put // PARTITIONS, (run.put + (run.count - 1) * run.put_step) // PARTITIONS + 1)


def _joined_channel(runs: list[Run], channels: int) -> int | None:
    """The first channel of the result that an image of ``channels`` is moved to, if the runs move all of it as it is;
    else None."""
    done, first = 0, runs[0].put - runs[0].first
    for run in sorted(runs, key=lambda run: run.first):
        straight = run.count == 1 or run.step == run.put_step == 1
        if not straight or run.first != done or run.put - run.first != first:
            return None
        done += run.count
    return first if done == channels else None


def _merge_dimensions(part: Part) -> movement.Part:
    """A part in the kernel's form, over as few dimensions as possible."""
    shape, (taken, put) = merge_dims(part.taken.shape, (part.taken.strides, part.put.strides))
    if not shape:
        shape, taken, put = (1,), (1,), (1,)
    return movement.Part(part.source, part.taken.offset, taken, part.put.offset, put, shape)


def channel_runs(part: Part, images: tuple[int, ...]) -> list[Run]:
    """A part as runs of channels in a result of shape ``images`` (N, C, H, W); empty if it isn't whole channels.

    The part's dimensions are N, any number of channel dimensions, then H and W. Both tensors must be whole images of
    whole channels. The strides alone don't prove that if there is only one image, channel or pixel.
    """
    taken, put = part.taken, part.put
    pixels = prod(images[2:])
    if len(taken.shape) < 4 or (taken.shape[0], taken.shape[-2:]) != (images[0], images[2:]) or taken.size == 0:
        return []
    sides = (taken, taken.size // images[0]), (put, put.size // images[0])
    for view, image in sides:
        wanted = (image, images[3], 1)
        steps = (view.strides[0], *view.strides[-2:])
        sizes = (images[0], *images[2:])
        if view.offset % pixels or view.size % (images[0] * pixels):
            return []
        if any(n > 1 and a != b for n, a, b in zip(sizes, steps, wanted, strict=True)):
            return []
        if any(n > 1 and (s <= 0 or s % pixels) for n, s in zip(view.shape[1:-2], view.strides[1:-2], strict=True)):
            return []
    dims = [
        (n, a // pixels, b // pixels)
        for n, a, b in zip(taken.shape[1:-2], taken.strides[1:-2], put.strides[1:-2], strict=True)
        if n > 1
    ]
    dims.sort()
    count, step, put_step = dims.pop() if dims else (1, 1, 1)
    runs = []
    for index in product(*(range(n) for n, _, _ in dims)):
        first = taken.offset // pixels + sum(i * a for i, (_, a, _) in zip(index, dims, strict=True))
        start = put.offset // pixels + sum(i * b for i, (_, _, b) in zip(index, dims, strict=True))
        runs.append(Run(part.source, first, step, start, put_step, count))
    return runs


@dataclass(kw_only=True)
class TransposeStep(Step):
    """``source.transpose(order)`` over the collapsed dimensions ``collapsed``."""

    order: tuple[int, ...]
    collapsed: tuple[int, ...]

    def read_wide(self, *, whole: bool) -> bool:
        self.dtype = "float32"
        return True

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        shape = self.collapsed if position == 0 else tuple(self.collapsed[d] for d in self.order)
        return (1, *shape) if self.order == (1, 0) else shape

    def call(self, tensors: Tensors) -> Call:
        if self.order in ((1, 0), (0, 2, 1)):
            return Call("transpose", "transpose_matrices", ())
        return Call("transpose", "permute_dims", (self.order,))


def copy_step(name: str, view: View) -> tuple[Step, str]:
    """The step that makes the tensor ``name`` of the elements of ``view``, and why: a transpose, or any movement."""
    order = view.order
    if order is not None:
        collapsed, small = _collapse(view)
        if len(collapsed) <= movement.MOST_DIMENSIONS:
            source = Operand(view.root, (view.size,))
            step = TransposeStep(
                name=name, sources=[source], output=name, shape=view.shape, order=small, collapsed=collapsed
            )
            return step, "another order of elements, by the tensor engine (matrices) or DMA"
    moved = move_step(name, name, view.shape, [(view, View.whole(name, view.shape))])
    return moved, "elements moved by DMA: the next kernel reads them dense"


def _collapse(view: View) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A permutation as (sizes of the stored dimensions, order), over as few of them as possible."""
    sizes, (strides,) = merge_dims(view.shape, (view.strides,))
    by_source = sorted(range(len(sizes)), key=lambda d: -strides[d])
    return tuple(sizes[d] for d in by_source), tuple(by_source.index(d) for d in range(len(sizes)))


def move_step(
    name: str, output: str, shape: tuple[int, ...], parts: list[tuple[View, View]], fill: float | None = None
) -> MoveStep:
    """The step that assembles ``parts`` (elements and their place); each stored tensor is one source, empty parts are
    dropped."""
    parts = [(taken, put) for taken, put in parts if prod(taken.shape)]
    roots = list(dict.fromkeys(taken.root for taken, _ in parts))
    if len(parts) > MOST_PARTS:
        raise Blocked(f"{len(parts)} separate transfers; a step makes {MOST_PARTS} at most")
    sizes = {taken.root: taken.size for taken, _ in parts}
    return MoveStep(
        name=name,
        sources=[Operand(root, (sizes[root],)) for root in roots],
        output=output,
        shape=shape,
        parts=[Part(roots.index(taken.root), taken, put) for taken, put in parts],
        fill=fill,
    )
