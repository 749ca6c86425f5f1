"""A profiler's JSON report made from a run: what the profiler would write had a device kept to it to the nanosecond."""

from __future__ import annotations

from typing import Any

from benchmarks.timing.traces.record import ENGINES, Event, Run

Record = dict[str, Any]

LABELS = {"tensor": "Tensor", "vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd", "sync": "Sync"}
QUEUES = {"sync": (1, "qSyncDynamicHW"), "scalar": (0, "qScalarDynamicHW"), "gpsimd": (2, "qGpSimdDynamic")}
OPCODES = {
    "copy": "COPY",
    "activate": "ACTIVATE",
    "reduce": "TENSOR_REDUCE",
    "scalar": "TENSOR_SCALAR",
    "tensor": "TENSOR_TENSOR",
    "reciprocal": "RECIPROCAL",
    "product": "MATMUL",
    "transpose": "MATMUL",
}
ADDRESSES = {"P": "0x2000000", "S": "0x4000"}


def report_of(run: Run, **more: Any) -> Record:
    """The report's tables; ``more`` replaces some of them."""
    return _Writer(run).tables | more


class _Writer:
    """Engines have a semaphore each that counts their events, and every transfer one of its own, set by 16 engines."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.instructions: list[Record] = [instruction("Tensor", "NOTIFY", 5, 10, "hint=2", name="")]
        if run.events[0].start > run.first:  # gpsimd makes descriptors, which no profiler shows
            self.instructions.append(instruction("Sync", "EVENT_SEMAPHORE", run.first, 1, "setter=0", name="I-first"))
        self.packets: list[Record] = []
        self.updates: list[Record] = [update("3", 0, 1)]
        self.sets: dict[int, tuple[int, int]] = {}  # event -> its semaphore and the value it brings it to
        counts = dict.fromkeys(ENGINES, 0)
        for number, event in enumerate(run.events):
            counts[event.engine] += event.transfer is None
            own = (3 + ENGINES.index(event.engine), counts[event.engine])
            self.sets[number] = (100 + number, 16) if event.transfer else own
        for number, event in enumerate(run.events):
            self.write(number, event)
        self.tables = {
            "instruction": self.instructions,
            "dma": self.packets,
            "semaphore_update": self.updates,
            "dma_queues_info": [{"q_idx": n, "q_name": name, "subgraph": "sg00"} for n, name in QUEUES.values()],
            "ham": [],
            "active_time": [{"engine": e, "duration_ns": ns, "subgraph": "sg00"} for e, ns in run.active.items()],
            "summary": [{"total_time": run.total / 1e9, "instance_type": "trn2.3xlarge"}],
            "warnings": [],
        }

    def write(self, number: int, event: Event) -> None:
        """An event's rows."""
        waits = ""
        if event.waited_for >= 0:
            semaphore, value = self.sets[event.waited_for]
            waits = f"S[{semaphore}] (it)>={value} "
        semaphore, value = self.sets[number]
        if event.transfer is not None:
            text = f"{waits}semaphore={semaphore} sem_increment=16 {pattern(event)}"
            label = LABELS[event.engine]
            self.instructions.append(
                instruction(label, "DMA_DIRECT2D", event.start, event.duration, text, f"I-{number}", number)
            )
            self.transfer(event, semaphore)
            return
        kind, *detail = event.kind.split()
        sets = f"{waits}S[{semaphore}] ({event.engine})++@complete "
        text = f"{sets}{' '.join(f'op={word.upper()}' for word in detail)} {operands(event)}"
        label = "TensorMatrix" if event.engine == "tensor" else LABELS[event.engine]
        row = instruction(label, OPCODES[kind], event.start, event.duration, text, f"I-{number}", number)
        row["instruction_type"] = "TRANSPOSE" if kind == "transpose" else "REGULAR"
        self.instructions.append(row)
        assert event.seen is not None
        self.updates.append(update(f"S[{semaphore}] ({event.engine})", value, event.seen))

    def transfer(self, event: Event, semaphore: int) -> None:
        """A packet and a mark on each of the 16 engines, all over the whole time of the data."""
        moved, (queue, name) = event.transfer, QUEUES[event.engine]
        assert moved is not None and moved.seen is not None
        for engine in range(64, 80):
            self.packets.append(packet(queue, moved.mode, engine, moved.start, moved.end, moved.size // 16))
            self.packets.append(packet(queue, moved.mode, engine, moved.end, moved.end, 4))
        for value in range(1, 17):
            self.updates.append(update(f"S[{semaphore}] ({name})", value, moved.seen - 16 + value))


def instruction(
    label: str, opcode: str, start: int, duration: int, operands: str, name: str, number: int = 0
) -> Record:
    return {
        "label": label,
        "opcode": opcode,
        "timestamp": start,
        "duration": duration,
        "operands": operands,
        "bir_instruction_name": name,
        "pc": number,
        "subgraph": "sg00",
        "activation_fn": "",
    }


def packet(queue: int, mode: str, engine: int, start: int, end: int, size: int) -> Record:
    return {
        "dma_queue": str(queue),
        "dma_engine": str(engine),
        "queue_type": f"{mode}_dynamic",
        "timestamp": start,
        "duration": end - start,
        "transfer_size": size,
        "subgraph": "sg00",
    }


def update(semaphore: str, value: int, time: int) -> Record:
    return {"id": semaphore, "value": value, "timestamp": time, "subgraph": "sg00"}


def pattern(event: Event) -> str:
    """Rows of 128 partitions in SBUF, and a whole in HBM."""
    row = event.size // 128
    sides = {"hbm": f"[{row},1][128,1]", "chip": "[262144,1][128,1]"}
    src, dst = ("hbm", "chip") if event.kind == "load" else ("chip", "hbm")
    elements = f"src_elem_size={row} dst_elem_size={row}"
    return f"{elements} src_pattern={sides[src]} dst_pattern={sides[dst]} compute_op=NONE"


def operands(event: Event) -> str:
    """``src`` and ``dst`` as the place of an event says, the size in the first."""
    if event.kind in ("product", "transpose"):
        return f"src={event.place}@0x4000[1,0,0][{event.size},1,1] dst=0x2000000[1,0,0][{event.size},1,1] 128*128"
    (memory, dtype), *rest = (side.split() for side in event.place.split(" to "))
    (other, other_dtype) = rest[0] if rest else (memory, dtype)
    first = f"src={dtype}@{ADDRESSES[memory]}[1,1,1,1][{event.size},1,1,1]"
    return f"{first} dst={other_dtype}@{ADDRESSES[other]}[1,1,1,1][{event.size},1,1,1] channels=128"
