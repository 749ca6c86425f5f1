"""Choose the weights to prefetch into SBUF, their transfers, and how early each starts.

A step's weights stay in SBUF while it runs if they fit beside the resident tensors and the tiles of the step's kernel.
Consecutive steps share transfers of some kilobytes per partition. Transfers come in the order of use, each as early as
room allows, so that DMA seldom idles while an engine computes, and an engine seldom waits for weights. All biases come
first, in one transfer, together with the first weights if these are small. Weights don't overtake the model's inputs in
the queue, but their tiles are reserved before the step that loads these: the weights then follow the last input, not
the end of that step, whose tiles could else have their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Array
from trnrt.planner.steps import Call

# Bytes per partition that share a group, and those of one transfer: AWS advises at least 2 KiB, and bandwidth stops
# growing at 4 KiB (nki/deep-dives/nki-dma-bandwidth-guide.rst); a product waits for a whole transfer. Small ResNet-18
# and VGG-11, predicted: half and twice GROUP_BYTES take 0.2 and 0.3 % less on average.
GROUP_BYTES = 8 * 1024
PIECE_BYTES = 8 * 1024
# The same of the model's last weights, for whose last transfer nothing else is left to compute. ResNet-18 at batch 1,
# predicted: transfers of PIECE_BYTES take 3 % more.
LAST_PIECE_BYTES = 2 * 1024
# Bytes of a bias's element, and the bytes per partition up to which the biases' transfer includes the first float32
# weights: a transfer of that size takes no longer than its fixed cost. Digits, predicted: without it the feed-forward
# net takes 2.5 % more on trn2; four times as much changes nothing.
BIAS_BYTES = 4
OPENING_BYTES = 1024
# Columns from which on a bias of few rows has a transfer of its own, ahead of its step's weights. ResNet-18 at batch 1,
# predicted: among the others, the classifier's 1000 columns delay the first product by 1.1 us.
ROW_COLUMNS = 128
# Below this share of SBUF a module isn't checked for room: no model of the tests has failed to fit. This is no proof;
# if one doesn't fit, the compiler refuses it.
_LOOSE = 0.5


@dataclass(frozen=True)
class Part:
    """The weight, or bias, ``key`` of step number ``step``: columns ``first``... of its transfer, in ``shape``."""

    step: int
    key: str
    first: int
    shape: tuple[int, ...]
    bias: bool = False


@dataclass
class Transfer:
    """Weights loaded into SBUF together, before step number ``before``; their tile is in use from before step number
    ``reserved`` on."""

    parts: list[Part] = field(default_factory=list)
    columns: int = 0
    before: int = 0
    reserved: int = 0
    most: int = BIAS_BYTES

    def itemsize(self, session: int) -> int:
        """The bytes of an element: those of the session's dtype, or fewer if the weights were cast before."""
        return min(session, self.most)

    @property
    def first(self) -> int:
        """The first step that reads from it."""
        return self.parts[0].step

    @property
    def last(self) -> int:
        """The last step that reads from it."""
        return self.parts[-1].step

    def append(self, step: int, key: str, array: Array, *, bias: bool = False) -> None:
        """Append an array (P, ...)."""
        self.parts.append(Part(step, key, self.columns, array.shape, bias))
        self.columns += prod(array.shape[1:])
        self.most = array.dtype.itemsize

    def join_arrays(self, calls: Sequence[Call]) -> Array:
        """The arrays side by side, as stored in HBM (P, columns)."""
        held = [(calls[part.step].biases if part.bias else calls[part.step].weights)[part.key] for part in self.parts]
        rows = max(array.shape[0] for array in held)
        flat = [array.reshape(array.shape[0], -1) for array in held]
        if len(flat) == 1:
            return flat[0]
        joined = np.zeros((rows, self.columns), flat[0].dtype)
        for part, array in zip(self.parts, flat, strict=True):
            joined[: array.shape[0], part.first : part.first + array.shape[1]] = array
        return joined


@dataclass(frozen=True)
class Rooms:
    """Free bytes per partition for weights at each step: with the step's weights prefetched, and with the step loading
    them.

    ``opening`` are the steps that load inputs of the model, ``loops`` the first step and the end of each loop: no
    transfer starts inside one.
    """

    held: Sequence[int]
    own: Sequence[int]
    opening: frozenset[int] = frozenset()
    usable: int = 0
    share: float = 1.0
    loops: Sequence[tuple[int, int]] = ()

    @property
    def left_alone(self) -> int:
        """Bytes per partition that the gaps between tiles may take."""
        return int(self.usable * (1 - self.share))

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The steps from ``first`` to ``last``; a whole loop if either is inside it."""
        begins, ends = self.loop_of(first), self.loop_of(last)
        return begins[0] if begins else first, ends[1] - 1 if ends else last

    def loop_of(self, step: int) -> tuple[int, int] | None:
        """The loop that a step is in."""
        return next((loop for loop in self.loops if loop[0] <= step < loop[1]), None)

    def with_share(self, share: float) -> Rooms:
        """The rooms scaled by a share of SBUF; the rest is left for the changing gaps between tiles."""
        less = int(self.usable * (1 - share))
        held, own = ([room - less for room in rooms] for rooms in (self.held, self.own))
        return replace(self, held=held, own=own, share=share)


@dataclass(frozen=True)
class Prefetched:
    """The transfers of weights, in order, after the one of biases, which may include weights; and whether all tiles are
    sure to fit, wherever they lie."""

    weights: tuple[Transfer, ...] = ()
    biases: Transfer | None = None
    loosely: bool = True

    def part(self, step: int, key: str, *, bias: bool) -> tuple[Transfer, Part] | None:
        """The place of a weight or bias in its transfer; None if the step loads it."""
        for transfer in ([self.biases] if self.biases else []) + list(self.weights):
            for part in transfer.parts:
                if (part.step, part.key, part.bias) == (step, key, bias):
                    return transfer, part
        return None


def plan_prefetch(calls: Sequence[Call], rooms: Rooms, itemsize: int) -> Prefetched:
    """Choose the weights to prefetch, group them, and start each group as early as room allows."""
    if not calls:
        return Prefetched()
    biases, rows = Transfer(), Transfer()
    for step, call in enumerate(calls):
        for key in call.held:
            if key in call.biases:
                (rows if _is_long_row(call.biases[key]) else biases).append(step, key, call.biases[key], bias=True)
    taken = (biases.columns + rows.columns) * BIAS_BYTES
    if not rooms.share or not taken or min(rooms.own) + rooms.left_alone < taken:
        return Prefetched(loosely=rooms.usable - min(rooms.own) - rooms.left_alone < _LOOSE * rooms.usable)
    if itemsize == BIAS_BYTES:
        held = _held_weights(calls, [room - taken for room in rooms.held], rooms, itemsize)
        _add_first_weights(biases, calls, held, min(OPENING_BYTES, min(rooms.own) + rooms.left_alone))
        taken = (biases.columns + rows.columns) * BIAS_BYTES
    held = _held_weights(calls, [max(0, room - taken) for room in rooms.held], rooms, itemsize)
    free = [max(0, (rooms.held if keys else rooms.own)[step] - taken) for step, keys in enumerate(held)]
    opened = {(part.step, part.key) for part in biases.parts if not part.bias}
    held = [[key for key in keys if (step, key) not in opened] for step, keys in enumerate(held)]
    transfers = _group_transfers(calls, held, free, rooms, itemsize)
    used = _bring_early(transfers, free, rooms, itemsize)
    if rows.parts:
        _insert_rows(transfers, rows, rooms)
    fullest = max(rooms.share * rooms.usable - room + more for room, more in zip(free, used, strict=True))
    return Prefetched(tuple(transfers), biases if biases.parts else None, fullest < _LOOSE * rooms.usable)


def _is_long_row(bias: Array) -> bool:
    """True for a bias of few equal rows with ROW_COLUMNS or more: beside the others it would take as many columns of
    all partitions, and the first product would wait for them."""
    return bias.shape[0] < PARTITIONS // 2 and prod(bias.shape[1:]) >= ROW_COLUMNS


def _insert_rows(transfers: list[Transfer], rows: Transfer, rooms: Rooms) -> None:
    """Put the biases of few rows among the transfers: ahead of the weights of the first step that reads them, and of
    the loop that it is in."""
    place = next((k for k, one in enumerate(transfers) if one.last >= rows.first), len(transfers))
    # The transfer there may be that of a later step, if the first one loads its own weights.
    first, _ = rooms.span(rows.first, rows.first)
    rows.before = rows.reserved = min([first, *(one.before for one in transfers[place : place + 1])])
    transfers.insert(place, rows)


def _add_first_weights(opening: Transfer, calls: Sequence[Call], held: Sequence[list[str]], most: int) -> None:
    """Append the first weights to the biases' transfer, as long as they are small together.

    A transfer takes 1 to 2 us however small it is, and the first product should not wait for two.
    """
    for step, keys in enumerate(held):
        if calls[step].weights and not keys:
            return  # loads its own, which come first
        for key in keys:
            array = calls[step].weights[key]
            if array.dtype.itemsize < BIAS_BYTES or opening.columns * BIAS_BYTES + _bytes(array, BIAS_BYTES) > most:
                return
            opening.append(step, key, array)


def _held_weights(calls: Sequence[Call], free: Sequence[int], rooms: Rooms, itemsize: int) -> list[list[str]]:
    """The weights of each step that fit while it runs. Weights of a loop are resident together."""
    left = {loop: min(free[slice(*loop)]) for loop in rooms.loops}
    held: list[list[str]] = []
    for step, call in enumerate(calls):
        loop = rooms.loop_of(step)
        keys = [key for key in call.held if key in call.weights]
        size = sum(_bytes(call.weights[key], itemsize) for key in keys)
        held.append(keys if size <= (free[step] if loop is None else left[loop]) else [])
        if held[-1] and loop is not None:
            left[loop] -= size
    return held


def _group_transfers(
    calls: Sequence[Call], held: Sequence[list[str]], free: Sequence[int], rooms: Rooms, itemsize: int
) -> list[Transfer]:
    """Weights in the order of their steps, put together up to GROUP_BYTES."""
    transfers: list[Transfer] = []
    for step, keys in enumerate(held):
        for key in keys:
            array = calls[step].weights[key]
            last = transfers[-1] if transfers else None
            if last is not None and _fits(last, step, array, free, rooms, itemsize):
                last.append(step, key, array)
            else:
                transfers.append(Transfer())
                transfers[-1].append(step, key, array)
    return transfers


def _fits(transfer: Transfer, step: int, more: Array, free: Sequence[int], rooms: Rooms, itemsize: int) -> bool:
    """True if a weight of ``step`` can join a transfer, and fits from the transfer's first step on."""
    if min(itemsize, more.dtype.itemsize) != transfer.itemsize(itemsize):
        return False
    total = transfer.columns * transfer.itemsize(itemsize) + _bytes(more, itemsize)
    first, last = rooms.span(transfer.first, step)
    # The model's first product waits for the first transfer: no later weight may share it.
    return transfer.first > 0 and total <= GROUP_BYTES and total <= min(free[first : last + 1]) // 2


def _bring_early(transfers: Sequence[Transfer], free: Sequence[int], rooms: Rooms, itemsize: int) -> list[int]:
    """Set the step before which each transfer starts: the first from which on it fits, in order.

    Loads run one after the other: weights of later steps come after the inputs of the model. Returns the bytes per
    partition that the transfers take at each step.
    """
    used = [0] * len(free)
    earliest = 0
    for transfer in transfers:
        size = transfer.columns * transfer.itemsize(itemsize)
        start, last = rooms.span(transfer.first, transfer.last)
        while start > earliest and start - 1 not in rooms.opening and used[start - 1] + size <= free[start - 1]:
            start -= 1
        loop = rooms.loop_of(start)
        if loop is not None and start > loop[0]:
            start = loop[1]
        transfer.before = earliest = start
        transfer.reserved = _reserve_early(start, size, free, used, rooms)
        for step in range(transfer.reserved, last + 1):
            used[step] += size
    return used


def _reserve_early(start: int, size: int, free: Sequence[int], used: Sequence[int], rooms: Rooms) -> int:
    """The step before which the tile of a transfer can be reserved, if it starts behind steps that load inputs."""
    first = start
    while first > 0 and first - 1 in rooms.opening:
        before, _ = rooms.span(first - 1, first - 1)
        if any(used[step] + size > free[step] for step in range(before, first)):
            break
        first = before
    return first


def _bytes(array: Array, itemsize: int) -> int:
    return prod(array.shape[1:]) * min(itemsize, array.dtype.itemsize)


def rows_of(transfer: Transfer) -> int:
    """The number of partitions in a transfer."""
    return min(PARTITIONS, max(part.shape[0] for part in transfer.parts))
