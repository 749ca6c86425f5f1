"""The numbers of the timing model. They come from a target's data file, which gives the source of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

End = Literal["least", "most"]

TIMING_VARIABLE = "TRNRT_TIMING"
"""Names the file with the numbers of the overlay in use (``overlays``)."""


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """A compute engine's pipeline.

    An instruction of ``c`` cycles ends ``latency_ns`` plus its cycles after its start; the next one that does not
    depend on it may start after ``max(c, interval_cycles)``. ``signal_ns``: from an end to its semaphore. ``wait_ns``:
    from the semaphore to the start of the instruction that waited; ``second_wait_ns`` for each further semaphore.
    """

    clock_ghz: float
    latency_ns: float
    interval_cycles: int
    signal_ns: float
    wait_ns: float
    second_wait_ns: float


@dataclass(frozen=True, slots=True)
class TensorTiming:
    """The tensor engine: it loads weights, then streams columns through them.

    ``latency_ns``: from a multiplication's start to its first column in PSUM. ``gap_ns``: between two passes at full
    clock. ``load_latency_ns``: a weight load that no product hides; ``load_interval_cycles``: the least time between
    two loads. Float32 weights whose columns are more than ``hidden_stride_bytes`` apart are loaded after the previous
    product, not during it, 128 columns in ``strided_load_ns``.

    The clock's rate changes at the edges of windows of ``ramp_window_ns``. It is halved after a window that was busy
    for less than ``ramp_share`` (0: never), and every instruction then takes ``slow_latency_ns`` more. The first
    product starts when ``ramp_offset`` of a window is over.
    """

    clock_ghz: float
    latency_ns: float
    gap_ns: float
    interval_cycles: int
    load_latency_ns: float
    load_interval_cycles: int
    signal_ns: float
    wait_ns: float
    second_wait_ns: float
    hidden_stride_bytes: int
    strided_load_ns: float
    ramp_window_ns: float
    ramp_share: float
    ramp_offset: float
    slow_latency_ns: float
    peak_tflops: tuple[tuple[str, float], ...]

    def peak(self, dtype: str) -> float:
        """TFLOP a second of products of this dtype."""
        peaks = dict(self.peak_tflops)
        return peaks.get("float8" if dtype.startswith("float8") else dtype, peaks["other"])


@dataclass(frozen=True, slots=True)
class DmaTiming:
    """The DMA engines, and how transfers start. ``*_hardware``, ``*_software`` and ``*_static`` say where descriptors
    come from: ``trigger`` blocks the issuing engine, ``start`` is from the trigger to the first data. A load whose
    descriptors the device makes takes ``load_start_ns`` longer to start.

    Software descriptors take ``prepare_software_ns`` before the trigger. They occupy gpsimd for ``trigger_software_ns``
    with all SBUF partitions, and ``row_software_ns`` less for each unused partition. The last engine of a transfer
    begins ``load_skew_ns`` or ``store_skew_ns`` after the first, ``static_skew_ns`` with static descriptors.

    A packet of contiguous bytes takes ``packet_ns`` plus its bytes over ``engine_gbps``; all engines together move at
    most ``total_gbps``. ``read_ns``: the extra time of a transfer out of HBM, whatever its size. ``completion_ns``:
    from the last packet to the semaphore. ``hbm_gbps``: a core's part of the device's bandwidth; ``hbm_stack_gbps``:
    the bandwidth of one HBM stack.
    """

    engines: int
    engine_gbps: float
    total_gbps: float
    packet_ns: float
    read_ns: float
    completion_ns: float
    default_mode: Literal["hardware", "software", "static"]
    static_stores: Literal["vector", "scalar", "gpsimd", "tensor", "sync"]
    trigger_hardware_ns: float
    trigger_software_ns: float
    trigger_static_ns: float
    row_software_ns: float
    prepare_software_ns: float
    load_start_ns: float
    load_skew_ns: float
    store_skew_ns: float
    static_skew_ns: float
    start_hardware_ns: float
    start_software_ns: float
    start_static_ns: float
    transpose_share: float
    hbm_gbps: float
    hbm_stack_gbps: float


@dataclass(frozen=True, slots=True)
class Uncertain:
    """Uncertain numbers: ``least`` and ``most`` are (name, value) pairs with which a kernel takes the least and the
    most time. ``cause`` names them in a few words, ``source`` says where the interval comes from, ``pin`` what to
    write in a kernel so that they don't matter ("": nothing helps).
    """

    cause: str
    least: tuple[tuple[str, float | str], ...]
    most: tuple[tuple[str, float | str], ...]
    source: str
    pin: str


@dataclass(frozen=True, slots=True)
class Timing:
    """A target's timing. ``compared``: its predictions were compared with measurements.

    ``order``: the order in which the compiler is assumed to issue the headline's instructions, "program" or "free"
    (list scheduling). ``places``: the tiles of a loop rotate over this many times the places that they need.
    ``head_ns`` and ``tail_ns``: a profiler's total has them before the first and after the last instruction;
    ``benchmark_ns``: how much of them a benchmark of many runs still sees. ``loop_barrier_ns``: how long all engines
    wait at a device loop's entry and after each trip, once the work before is done. ``meeting_ns``: from when the later
    of two cores has reached a meeting until both go on.
    """

    compared: bool
    order: Literal["program", "free"]
    places: int
    head_ns: float
    tail_ns: float
    benchmark_ns: float
    table_load_ns: float
    function_latency_ns: float
    loop_barrier_ns: float
    meeting_ns: float
    wide_stride_factor: float
    vector_modes: bool
    exclusive_psum: bool
    exclusive_sbuf: bool
    vector: EngineTiming
    scalar: EngineTiming
    gpsimd: EngineTiming
    sync: EngineTiming
    tensor: TensorTiming
    dma: DmaTiming
    uncertain: tuple[Uncertain, ...]

    def move_to(self, end: End, causes: Collection[str] | None = None) -> Timing:
        """The timing with the uncertain numbers of ``causes`` (None: all) at one end of their intervals."""
        timing = self
        for one in self.uncertain:
            if causes is None or one.cause in causes:
                for name, value in one.least if end == "least" else one.most:
                    timing = with_value(timing, name, value)
        return timing


def with_value(timing: Any, name: str, value: float | str) -> Any:
    """``timing`` (or a part of it) with another value at ``name`` ("dma.packet_ns")."""
    head, _, rest = name.partition(".")
    return replace(timing, **{head: with_value(getattr(timing, head), rest, value) if rest else value})
