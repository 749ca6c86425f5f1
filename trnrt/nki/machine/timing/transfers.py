"""DMA transfers: who starts one, which DMA engines carry it, and how its bytes are cut into packets.

Policy (AWS's compiler is free here; this is ours, in one place):
- a transfer whose descriptors nobody names is made by the target's default (``timing.dma.default_mode``), by software
  where a tile of indices selects its rows;
- loads are triggered by the sync engine; stores with hardware descriptors by the scalar engine's generator, those with
  static ones by the gpsimd engine; software descriptors are made by the gpsimd engine, whose one generator serves loads
  and stores; a kernel that names an engine gets it;
- loads run ahead of stores (the compiler hoists them as far as their memory is free), each kind in the order of the
  program; an engine's triggers exclude each other, and keep it from issuing compute instructions;
- an SBUF partition belongs to one DMA engine: eight in a row to each of the 16 (nki-dma-overview.rst);
- a transfer from HBM to HBM is spread over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from trnrt.nki.machine.modes import dge_mode
from trnrt.nki.machine.program import Engine, Instruction, View
from trnrt.nki.machine.targets import Target

_LEAST_PIECE = 512  # bytes: what is spread over engines is not cut smaller


@dataclass(frozen=True, slots=True)
class Load:
    """What one DMA engine has to move: ``picoseconds`` at its own rate."""

    engine: int
    picoseconds: int


@dataclass(frozen=True, slots=True)
class Movement:
    """A transfer as the DMA engines see it. ``latency``: picoseconds between its packets and their arrival.

    ``longest`` is the largest of the loads; ``even`` the same if all engines have that, else -1.
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
    """Who triggers a transfer, for how long that keeps it busy, and when the first data flows: picoseconds from then.

    ``mode`` is where its descriptors come from, ``software`` whether gpsimd makes them. Triggers of one ``stream`` are
    in order; the last DMA engine of all begins ``skew`` after the first.
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
    """How transfers are started on a target; those that start alike share what describes it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[str, str, bool, int, bool], Start] = {}

    def get(self, instruction: Instruction) -> Start:
        """How a transfer is started."""
        named = instruction.args.get("engine")
        engine = named.name if isinstance(named, Engine) and named not in (Engine.unknown, Engine.dma) else ""
        dst, src = instruction.operands[0][1], instruction.operands[-1][1]
        loads, rows = dst.storage.on_chip, max(dst.partitions if dst.storage.on_chip else src.partitions, 1)
        mode = _mode(instruction)
        key = (mode or self._target.timing.dma.default_mode, engine, loads, rows, not (mode or engine))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._start(*key)
        return found

    def _start(self, mode: str, engine: str, loads: bool, rows: int, free: bool) -> Start:
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
        stream = f"{'any' if free else engine} {'loads' if loads else 'stores'}"
        times = (_ps(trigger), _ps(until), _ps(skew))
        return Start(engine, stream, f"queue {engine}", *times, mode, mode == "software")


def _mode(instruction: Instruction) -> str:
    """Where a transfer's descriptors come from; "" where the compiler chooses."""
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
            found = self._move(instruction)
            self._known[key] = found
        return found

    def _move(self, instruction: Instruction) -> Movement:
        dst: View = instruction.operands[0][1]
        sources = [view for _, view in instruction.operands[1:]]
        parts = [self._copy(dst, src, turned=instruction.operation.name == "dma_transpose") for src in sources]
        loads: dict[int, int] = {}
        for part in parts:
            for load in part.loads:
                loads[load.engine] = loads.get(load.engine, 0) + load.picoseconds
        alike = len(loads) == self._target.timing.dma.engines and len(set(loads.values())) == 1
        longest = max(loads.values())
        return Movement(
            tuple(Load(engine, ps) for engine, ps in sorted(loads.items())),
            sum(part.payload for part in parts),
            sum(_hbm_bytes(view) for _, view in instruction.operands),
            sum(part.packets for part in parts),
            max(part.latency for part in parts),
            longest,
            longest if alike else -1,
        )

    def _copy(self, dst: View, src: View, *, turned: bool) -> Movement:
        timing = self._target.timing.dma
        payload = dst.size * max(dst.dtype.itemsize, src.dtype.itemsize)
        packets = _packets(dst, src) if not turned else max(1, payload // _LEAST_PIECE)
        share = timing.transpose_share if turned else 1.0
        weights = self._engines(dst, src, payload, turned=turned)
        total = sum(weights.values())
        packets = max(packets, len(weights))  # what is spread is cut
        loads = tuple(
            Load(
                engine,
                _ps(
                    (-(-packets * weight // total)) * timing.packet_ns
                    + payload * weight / total / (timing.engine_gbps * share)
                ),
            )
            for engine, weight in weights.items()
        )
        latency = 0 if src.storage.on_chip else _ps(timing.read_ns)
        return Movement(loads, payload, _hbm_bytes(dst) + _hbm_bytes(src), packets, latency, 0, -1)

    def _engines(self, dst: View, src: View, payload: int, *, turned: bool) -> dict[int, int]:
        """DMA engine -> its share of a transfer, as a weight."""
        timing = self._target.timing.dma
        side = dst if dst.storage.on_chip else src
        if turned or not side.storage.on_chip:
            pieces = max(1, min(timing.engines, payload // _LEAST_PIECE))
            return dict.fromkeys(range(pieces), 1)
        per_engine = self._target.partitions // timing.engines
        first = side.start_partition + (side.storage.address[0] if side.storage.address else 0)
        step = max(1, side.strides[0] // max(1, side.partition_elements)) if side.strides[0] else 0
        weights: dict[int, int] = {}
        for partition in range(side.shape[0]):
            engine = (first + partition * step) % self._target.partitions // per_engine
            weights[engine] = weights.get(engine, 0) + 1
        return weights


def _hbm_bytes(view: View) -> int:
    return 0 if view.storage.on_chip else view.size * view.dtype.itemsize


def _key(view: View) -> tuple[object, ...]:
    storage = view.storage
    dtype = storage.dtype if view.cast is None else view.cast
    if not storage.on_chip:
        return view.shape, view.strides, dtype.itemsize
    within = view.offset < storage.partition_elements and view.cast is None and not storage.pinned
    first = 0 if within else view.start_partition + (storage.address[0] if storage.address else 0)
    return view.shape, view.strides, dtype.itemsize, first, view.partition_elements


def _packets(dst: View, src: View) -> int:
    """Into how many pieces that are contiguous on both sides a copy falls."""
    mine, theirs = _run(dst), _run(src)
    both = mine * theirs // gcd(mine, theirs)
    size = dst.size
    return max(1, size // mine + size // theirs - -(-size // both))


def _run(view: View) -> int:
    """Elements that lie side by side in memory, from the start of each piece."""
    run = 1
    dims = list(zip(view.shape, view.strides, strict=True))
    for size, stride in reversed(dims[1:] if view.storage.on_chip else dims):
        if size != 1 and stride != run:
            break
        run *= size
    return run if prod(view.shape) else 1


def _ps(nanoseconds: float) -> int:
    return round(nanoseconds * 1000)
