"""DMA transfers: which engine starts one, which DMA engines carry it, and how its bytes are cut into packets.

Policy (AWS's compiler is free here; this is ours, in one place):
- a transfer without named descriptors uses the target's default (``timing.dma.default_mode``), or software descriptors
  if a tile of indices selects its rows;
- the sync engine triggers loads; the scalar engine triggers stores with hardware descriptors, the gpsimd engine those
  with static ones; the gpsimd engine makes software descriptors, with one generator for loads and stores; a kernel that
  names an engine gets it;
- exchanges with another core have a queue of their own, triggered by the engine that triggers loads (``meetings.py``);
- loads run ahead of stores (the compiler hoists them as far as their memory is free), each kind in the order of the
  program; an engine triggers one transfer at a time, and issues no compute instruction meanwhile;
- an SBUF partition belongs to one DMA engine: eight in a row to each of the 16 (nki-dma-overview.rst);
- a transfer from HBM to HBM is spread over all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import lcm

from trnrt.nki.machine.modes import dge_mode
from trnrt.nki.machine.program import Engine, Instruction, View
from trnrt.nki.machine.targets import Target

_LEAST_PIECE = 512  # bytes: transfers are not spread over engines in smaller pieces


@dataclass(frozen=True, slots=True)
class Load:
    """The part of a transfer that one DMA engine moves: ``picoseconds`` at its own rate."""

    engine: int
    picoseconds: int


@dataclass(frozen=True, slots=True)
class Movement:
    """A transfer as the DMA engines see it. ``latency``: picoseconds from its last packet to its arrival.

    ``longest`` is the largest of the loads; ``even`` is the same if all engines have that load, else -1.
    """

    loads: tuple[Load, ...]
    payload: int
    hbm_bytes: int
    packets: int
    latency: int
    longest: int
    even: int


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a transfer: the engine that triggers it, how long the trigger occupies it, and when data flows.

    Times are picoseconds from the trigger. ``mode``: the origin of its descriptors; ``software``: gpsimd makes them.
    Triggers of one ``stream`` are in order; the last DMA engine begins ``skew`` after the first.
    """

    engine: str
    stream: str
    queue: str
    trigger: int
    until_data: int
    skew: int
    mode: str
    software: bool


class Starts:
    """Computes how transfers start on a target; equal starts share a ``Start``."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[str, str, bool, int, bool, bool], Start] = {}

    def get(self, instruction: Instruction) -> Start:
        """The start of a transfer."""
        named = instruction.args.get("engine")
        engine = named.name if isinstance(named, Engine) and named not in (Engine.unknown, Engine.dma) else ""
        dst, src = instruction.operands[0][1], instruction.operands[-1][1]
        loads, rows = dst.storage.on_chip, max(dst.partitions if dst.storage.on_chip else src.partitions, 1)
        mode = _mode(instruction)
        meets = instruction.operation.meets
        key = (mode or self._target.timing.dma.default_mode, engine, loads, rows, not (mode or engine), meets)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._start(*key)
        return found

    def _start(self, mode: str, engine: str, loads: bool, rows: int, free: bool, meets: bool) -> Start:
        timing = self._target.timing.dma
        idle = (self._target.partitions - rows) * timing.row_software_ns
        trigger, until = {
            "hardware": (timing.trigger_hardware_ns, timing.start_hardware_ns),
            "software": (timing.trigger_software_ns - idle, timing.prepare_software_ns + timing.start_software_ns),
            "static": (timing.trigger_static_ns, timing.start_static_ns),
        }[mode]
        if mode == "software":
            engine = "gpsimd"
        engine = engine or ("sync" if loads else "scalar" if mode == "hardware" else timing.static_stores)
        made_here = mode != "static"
        until += timing.load_start_ns if loads and made_here else 0
        skew = (timing.load_skew_ns if loads else timing.store_skew_ns) if made_here else timing.static_skew_ns
        kind = "exchanges" if meets else "loads" if loads else "stores"
        queue = f"queue {engine}{' exchanges' * meets}"
        times = (_ps(trigger), _ps(until), _ps(skew))
        return Start(engine, f"{'any' if free else engine} {kind}", queue, *times, mode, mode == "software")


def _mode(instruction: Instruction) -> str:
    """The origin of a transfer's descriptors; "" if the compiler chooses."""
    asked = instruction.args.get("dge_mode")
    if asked is dge_mode.hwdge:
        return "hardware"
    if asked is dge_mode.swdge or instruction.engine is Engine.gpsimd:
        return "software"
    if asked is dge_mode.none:
        return "static"
    indirect = any(view.dynamic is not None and view.dynamic.vector is not None for _, view in instruction.operands)
    return "software" if indirect else ""


class Movements:
    """Computes movements; equal ones are computed once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[object, ...], Movement] = {}

    def get(self, instruction: Instruction) -> Movement:
        """The movement of a DMA instruction."""
        views = instruction.operands
        key = (instruction.operation.name, *(_key(view) for _, view in views))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._move(instruction)
        return found

    def _move(self, instruction: Instruction) -> Movement:
        timing = self._target.timing.dma
        dst: View = instruction.operands[0][1]
        sources = [view for _, view in instruction.operands[1:]]
        turned = instruction.operation.name == "dma_transpose"
        rate = timing.engine_gbps * (timing.transpose_share if turned else 1.0)
        loads: Counter[int] = Counter()
        payload = packets = 0
        for src in sources:
            size = dst.size * max(dst.dtype.itemsize, src.dtype.itemsize)
            weights = self._engines(dst, src, size, turned=turned)
            total = sum(weights.values())
            pieces = max(1, size // _LEAST_PIECE) if turned else _packets(dst, src)
            pieces = max(pieces, len(weights))  # each engine has at least one
            for engine, weight in weights.items():
                loads[engine] += _ps(-(-pieces * weight // total) * timing.packet_ns + size * weight / total / rate)
            payload, packets = payload + size, packets + pieces
        longest = max(loads.values())
        alike = len(loads) == timing.engines and len(set(loads.values())) == 1
        return Movement(
            loads=tuple(Load(engine, ps) for engine, ps in sorted(loads.items())),
            payload=payload,
            hbm_bytes=sum(_hbm_bytes(view) for _, view in instruction.operands),
            packets=packets,
            latency=0 if all(src.storage.on_chip for src in sources) else _ps(timing.read_ns),
            longest=longest,
            even=longest if alike else -1,
        )

    def _engines(self, dst: View, src: View, payload: int, *, turned: bool) -> dict[int, int]:
        """DMA engine -> the weight of its share of a transfer."""
        timing = self._target.timing.dma
        side = dst if dst.storage.on_chip else src
        if turned or not side.storage.on_chip:
            pieces = max(1, min(timing.engines, payload // _LEAST_PIECE))
            return dict.fromkeys(range(pieces), 1)
        per_engine = self._target.partitions // timing.engines
        first = side.first_partition
        step = max(1, side.strides[0] // max(1, side.partition_elements)) if side.strides[0] else 0
        partitions = (first + row * step for row in range(side.shape[0]))
        return Counter(partition % self._target.partitions // per_engine for partition in partitions)


def _hbm_bytes(view: View) -> int:
    return 0 if view.storage.on_chip else view.size * view.dtype.itemsize


def _key(view: View) -> tuple[object, ...]:
    storage, itemsize = view.storage, view.dtype.itemsize
    if not storage.on_chip:
        return view.shape, view.strides, itemsize
    within = view.offset < storage.partition_elements and view.cast is None and not storage.pinned
    first = 0 if within else view.first_partition
    return view.shape, view.strides, itemsize, first, view.partition_elements


def _packets(dst: View, src: View) -> int:
    """The number of pieces of a copy that are contiguous on both sides."""
    size = dst.size
    if not size:
        return 1
    mine, theirs = dst.contiguous_elements, src.contiguous_elements
    return max(1, size // mine + size // theirs - -(-size // lcm(mine, theirs)))


def _ps(nanoseconds: float) -> int:
    return round(nanoseconds * 1000)
