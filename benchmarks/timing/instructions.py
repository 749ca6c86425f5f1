"""Single instructions: published figures, and the model's time for each in a small program.

A duration is from an instruction's start to its end; an interval from one end (or start) to the next of equal
instructions. Figures that are themselves parameters of the model (semaphores, DMA's start) are not repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from trnrt.calibration.cases import Document, published_facts
from trnrt.nki import Spec, nisa, nki, nl, trace
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Timeline, schedule

Tensor = Any
Emit = Callable[[Tensor, Tensor], Any]  # (dst, src): one instruction
Measure = Callable[[str], float]  # target -> nanoseconds

COLUMNS = 512  # for published times that depend on the number of elements per partition
PS_PER_NS = 1000


@dataclass(frozen=True)
class InstructionRow:
    """An instruction's published and predicted time, nanoseconds; a published range counts as its middle."""

    id: str
    target: str
    what: str
    measured_ns: float
    predicted_ns: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_ns / self.measured_ns - 1


@nki.jit
def repeated(x: Tensor, emit: Emit, count: int, memory: Any, columns: int) -> Tensor:
    """The same instruction ``count`` times, each on tiles of its own.

    x: HBM (P, F), the shape and dtype of the tiles; columns: F of the destination; memory: where src is
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for _n in range(count):
        src = nl.ndarray(x.shape, dtype=x.dtype, buffer=memory)
        emit(nl.ndarray((x.shape[0], columns), dtype=x.dtype, buffer=nl.sbuf), src)
    return out


@nki.jit
def chained(x: Tensor, count: int) -> Tensor:
    """``count`` activations, each of the result of the one before. x: HBM (P, F)"""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    for _n in range(count):
        nisa.activation(dst=x_sb, op=nl.copy, data=x_sb)
    return out


@nki.jit
def products(stationary: Tensor, moving: Tensor, count: int) -> Tensor:
    """``count`` products of the same two tiles. stationary: HBM (128, 128), moving: HBM (128, F)"""
    out = nl.ndarray(moving.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    lhs_sb = nl.ndarray(stationary.shape, dtype=stationary.dtype, buffer=nl.sbuf)
    rhs_sb = nl.ndarray(moving.shape, dtype=moving.dtype, buffer=nl.sbuf)
    sum_psum = nl.ndarray((128, moving.shape[1]), dtype=nl.float32, buffer=nl.psum)
    for _n in range(count):
        nisa.nc_matmul(dst=sum_psum, stationary=lhs_sb, moving=rhs_sb)
    return out


@nki.jit
def transfers(x: Tensor, count: int, store: bool) -> Tensor:
    """``count`` loads (or stores) of one tile. x: HBM (P, F)"""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for _n in range(count):
        x_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        if store:
            nisa.dma_copy(dst=out, src=x_sb)
        else:
            nisa.dma_copy(dst=x_sb, src=x)
    return out


def _add(dst: Tensor, src: Tensor) -> None:
    nisa.tensor_tensor(dst=dst, data1=src, data2=src, op=nl.add)


def _activate(op: Any, dst: Tensor, src: Tensor) -> None:
    nisa.activation(dst=dst, op=op, data=src)


def _copy(dst: Tensor, src: Tensor) -> None:
    nisa.tensor_copy(dst=dst, src=src, engine=nisa.engine.vector)


def _reduce(dst: Tensor, src: Tensor) -> None:
    nisa.tensor_reduce(dst=dst, op=nl.add, data=src, axis=1)


def _scale(dst: Tensor, src: Tensor) -> None:
    """Scale by a tile of one number per partition, as kernels mostly do: the publication doesn't say which form it
    measured."""
    factor = nl.ndarray((src.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=factor, value=2.0)
    nisa.tensor_scalar(dst=dst, data=src, op0=nl.multiply, operand0=factor)


def _invert(dst: Tensor, src: Tensor) -> None:
    nisa.reciprocal(dst=dst, data=src)


_exp, _plain = partial(_activate, nl.exp), partial(_activate, nl.copy)


def _run(emit: Emit, target: str, columns: int, memory: Any, count: int, *, written: int | None = None) -> Timeline:
    return schedule(
        trace(repeated, Spec((128, columns), "float32"), emit, count, memory, written or columns, target=target)
    )


def _duration(emit: Emit, columns: int, target: str, *, memory: Any = nl.sbuf, written: int | None = None) -> float:
    """The duration of the second of two: by then the activation table is loaded."""
    line = _run(emit, target, columns, memory, 2, written=written)
    return (line.end[1] - line.start[1]) / PS_PER_NS


def _interval(target: str) -> float:
    """From one activation of one element to the next, which depends on the first one's result."""
    line = schedule(trace(chained, Spec((128, 1), "float32"), 8, target=target))
    return (line.start[-1] - line.start[-2]) / PS_PER_NS


def _table_load(target: str) -> float:
    """The delay of a function that needs a table over one that doesn't."""
    exp, plain = (_run(emit, target, COLUMNS, nl.sbuf, 1).start[0] for emit in (_exp, _plain))
    return (exp - plain) / PS_PER_NS


def _products(dtype: str, columns: int, target: str, count: int) -> Timeline:
    specs = Spec((128, 128), dtype), Spec((128, columns), dtype)
    return schedule(trace(products, *specs, count, target=target))


def _product_interval(dtype: str, columns: int, target: str, *, ramped: bool) -> float:
    """From one of the hardware's products to the next; a float32 nc_matmul is two of them."""
    line = _products(dtype, columns, target, 256 if ramped else 2)
    return (line.end[-1] - line.end[-2]) / PS_PER_NS / (2 if dtype == "float32" else 1)


def _product_latency(columns: int, target: str) -> float:
    """The best case: the clock has ramped and the weights are loaded, which a timeline doesn't show separately."""
    timing = get_target(target).timing.tensor
    return timing.latency_ns + columns / timing.clock_ghz


def _transfer(target: str, *, store: bool) -> float:
    """The published tile's transfer: four rows of 8 KiB, so four packets, on one engine."""
    line = schedule(trace(transfers, Spec((4, 4096), "bfloat16"), 1, store, target=target))
    return (line.end[0] - line.start[0]) / PS_PER_NS


def _packet(size: int, target: str) -> float:
    """A partition's bytes while all engines are busy: each has eight partitions of a transfer."""
    line = schedule(trace(transfers, Spec((128, size // 4), "float32"), 4, False, target=target))
    ends = sorted(line.end)
    return (ends[-1] - ends[-2]) / PS_PER_NS / 8


MEASURES: dict[str, Measure] = {
    "tensor_tensor-sbuf": partial(_duration, _add, COLUMNS),
    "tensor_tensor-sbuf-trn1": partial(_duration, _add, COLUMNS),
    "activation-copy": partial(_duration, _plain, COLUMNS, memory=nl.psum),
    "activation-exp": partial(_duration, _exp, COLUMNS),
    "table-load": _table_load,
    "tensor_copy-psum": partial(_duration, _copy, COLUMNS, memory=nl.psum),
    "tensor_copy-sbuf": partial(_duration, _copy, 512),
    "tensor_reduce-sbuf": partial(_duration, _reduce, 512, written=1),
    "tensor_reduce-psum": partial(_duration, _reduce, 512, memory=nl.psum, written=1),
    "tensor_reduce-tiny": partial(_duration, _reduce, 4, written=1),
    "tensor_scalar-sbuf": partial(_duration, _scale, 512),
    "tensor_scalar-psum": partial(_duration, _scale, 128, memory=nl.psum),
    "reciprocal-4": partial(_duration, _invert, 4),
    "reciprocal-8": partial(_duration, _invert, 8),
    "matmul-interval-128": partial(_product_interval, "bfloat16", 128, ramped=True),
    "matmul-interval-512": partial(_product_interval, "bfloat16", 512, ramped=True),
    "matmul-interval-fp32-128": partial(_product_interval, "float32", 128, ramped=True),
    "matmul-interval-fp32-512": partial(_product_interval, "float32", 512, ramped=True),
    "matmul-throttled-128": partial(_product_interval, "bfloat16", 128, ramped=False),
    "matmul-throttled-512": partial(_product_interval, "bfloat16", 512, ramped=False),
    "matmul-throttled-fp32-128": partial(_product_interval, "float32", 128, ramped=False),
    "matmul-throttled-fp32-512": partial(_product_interval, "float32", 512, ramped=False),
    "matmul-latency-128": partial(_product_latency, 128),
    "matmul-latency-512": partial(_product_latency, 512),
    "matmul-latency-128-trn1": partial(_product_latency, 128),
    "dma-load-32KiB": partial(_transfer, store=False),
    "dma-store-32KiB": partial(_transfer, store=True),
    "activation-1-trn1": partial(_duration, _plain, 1),
    "activation-interval-trn1": _interval,
    "dma-packet-16-trn1": partial(_packet, 16000),
}


def compare_instructions() -> list[InstructionRow]:
    """A row for each published instruction that the model can time."""
    entries = [entry for entry in published_facts()["instructions"] if entry["id"] in MEASURES]
    return [
        InstructionRow(
            entry["id"], entry["target"], entry["what"], measured_ns(entry), MEASURES[entry["id"]](entry["target"])
        )
        for entry in entries
    ]


def measured_ns(entry: Document) -> float:
    """The single figure of an entry that has one, a range or a function of N."""
    if "fixed" in entry:
        return float(entry["fixed"] + entry["per_element"] * COLUMNS)
    value = entry["value"]
    if entry["id"] == "dma-packet-16-trn1":  # the first of two sizes
        return float(value[0])
    return float(sum(value) / len(value)) if isinstance(value, list) else float(value)
